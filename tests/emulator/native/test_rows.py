"""Tests that compiled forms leave the very bits that the steps of `isa` leave."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astdsl.emulator.native.host import host
from tests.emulator.native.machines import disagreements

pytestmark = pytest.mark.skipif(host() is None, reason="this processor has no compiled forms")

_INTEGERS = ["s16", "u16", "s32", "u32", "s64", "u64"]
_LETTERS = {"16": "h", "32": "r", "64": "d"}


def _three(opcode: str, bits: str) -> str:
    letter = _LETTERS[bits]
    return f"{opcode} %{letter}0, %{letter}1, %{letter}2;"


def _instructions() -> list[str]:
    found = []
    for kind in _INTEGERS:
        bits, letter = kind[1:], _LETTERS[kind[1:]]
        found += [_three(f"{name}.{kind}", bits) for name in ("add", "sub", "mul.lo", "min", "max")]
        found.append(f"mad.lo.{kind} %{letter}0, %{letter}1, %{letter}2, %{letter}3;")
        found += [
            f"{name}.{kind} %{letter}0, %{letter}1, %r2;" for name in ("shr",) if bits != "16"
        ]
        found += [
            f"setp.{word}.{kind} %p0, %{letter}1, %{letter}2;"
            for word in ("eq", "ne", "lt", "le", "gt", "ge")
        ]
        found.append(f"add.{kind} %{letter}0, %{letter}1, -7;")
    for kind in ("s16", "u16", "s32", "u32"):
        wide = _LETTERS[str(2 * int(kind[1:]))]
        narrow = _LETTERS[kind[1:]]
        found.append(f"mul.wide.{kind} %{wide}0, %{narrow}1, %{narrow}2;")
        found.append(f"mad.wide.{kind} %{wide}0, %{narrow}1, %{narrow}2, %{wide}3;")
        found.append(_three(f"mul.hi.{kind}", kind[1:]))
    for bits, letter in _LETTERS.items():
        found += [_three(f"{name}.b{bits}", bits) for name in ("and", "or", "xor")]
        found += [f"not.b{bits} %{letter}0, %{letter}1;", f"mov.b{bits} %{letter}0, %{letter}1;"]
        found += [f"shl.b{bits} %{letter}0, %{letter}1, %r2;" for _ in "1" if bits != "16"]
        found += [f"selp.b{bits} %{letter}0, %{letter}1, %{letter}2, %p1;"]
    for kind in ("s32", "s64"):
        found += [f"{name}.{kind} %{_LETTERS[kind[1:]]}0, %{_LETTERS[kind[1:]]}1;"
                  for name in ("neg", "abs")]  # fmt: skip
    return found


_FLOATS = [
    "add.f32 %r0, %r1, %r2;", "sub.rn.f32 %r0, %r1, %r2;", "mul.f32 %r0, %r1, %r2;",
    "add.ftz.f32 %r0, %r1, %r2;", "mul.rn.ftz.f32 %r0, %r1, %r2;", "mul.f32 %r0, %r1, 0f3FB8AA3B;",
    "fma.rn.f32 %r0, %r1, %r2, %r3;", "fma.rn.ftz.f32 %r0, %r1, %r2, %r3;",
    "mad.rn.f32 %r0, %r1, %r2, %r3;", "fma.rn.f32 %r0, %r1, 0f40490FDB, 0fFF800000;",
    "div.rn.f32 %r0, %r1, %r2;", "div.full.f32 %r0, %r1, %r2;", "div.approx.ftz.f32 %r0, %r1, %r2;",
    "sqrt.rn.f32 %r0, %r1;", "sqrt.approx.ftz.f32 %r0, %r1;", "rcp.rn.f32 %r0, %r1;",
    "rcp.approx.ftz.f32 %r0, %r1;", "ex2.approx.f32 %r0, %r1;", "ex2.approx.ftz.f32 %r0, %r1;",
    "neg.f32 %r0, %r1;", "abs.f32 %r0, %r1;", "neg.ftz.f32 %r0, %r1;", "abs.ftz.f32 %r0, %r1;",
    "min.f32 %r0, %r1, %r2;", "max.f32 %r0, %r1, %r2;", "max.ftz.f32 %r0, %r1, %r2;",
    "min.NaN.f32 %r0, %r1, %r2;", "max.NaN.f32 %r0, %r1, %r2;", "max.f32 %r0, %r1, %r2, %r3;",
    "min.ftz.NaN.f32 %r0, %r1, %r2;", "max.f32 %r0, %r1, 0f00000000;",
    "add.rn.f32x2 %d0, %d1, %d2;", "mul.rn.f32x2 %d0, %d1, %d2;",
    "fma.rn.f32x2 %d0, %d1, %d2, %d3;",
    "cvt.rn.f16.f32 %h0, %r1;", "cvt.rn.f16x2.f32 %r0, %r1, %r2;", "cvt.f32.f16 %r0, %h1;",
    "cvt.rn.bf16.f32 %h0, %r1;", "cvt.rn.bf16x2.f32 %r0, %r1, %r2;", "cvt.f32.bf16 %r0, %h1;",
]  # fmt: skip
_COMPARISONS = [
    f"setp.{word}{ftz}.f32 %p0, %r1, %r2;"
    for ftz in ("", ".ftz")
    for word in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu",
                 "num", "nan")
]  # fmt: skip
_OTHERS = [
    "setp.lt.f64 %p0, %d1, %d2;", "setp.lt.and.s32 %p0|%p1, %r1, %r2, %p2;",
    "setp.eq.or.b32 %p0, %r1, 0, !%p1;", "setp.gt.xor.u64 %p0|%p3, %d1, %d2, !%p0;",
    "setp.lo.u32 %p0, %r1, %r2;", "setp.hs.u16 %p0, %h1, %h2;", "setp.eq.s32 _|%p0, %r1, %r2;",
    "and.pred %p0, %p1, %p2;", "or.pred %p0, %p1, %p2;", "xor.pred %p0, %p1, %p2;",
    "not.pred %p0, %p1;", "mov.pred %p0, %p1;", "mov.pred %p0, -1;", "mov.pred %p0, 0;",
    "mov.b32 %r0, 305419896;", "mov.f32 %r0, 0f3F800000;", "mov.u64 %d0, -3;",
    "mov.b32 %r0, {%h1, %h2};", "mov.b64 %d0, {%r1, %r2};", "mov.b32 {%h0, %h1}, %r2;",
    "mov.b64 {%r0, %r1}, %d2;", "mov.b64 {%r0, _}, %d2;", "mov.b64 {_, %r0}, %d2;",
    "mov.b64 %d0, {%r1, 7};", "selp.b32 %r0, 1, 0, %p1;", "selp.f32 %r0, %r1, 0f80000000, %p2;",
    "shl.b32 %r0, %r1, 4;", "shl.b32 %r0, %r1, 40;", "shr.s32 %r0, %r1, 31;",
    "shr.u64 %d0, %d1, 64;", "shr.s64 %d0, %d1, 200;", "shl.b64 %d0, %d1, %r1;",
    "cvt.u64.u32 %d0, %r1;", "cvt.s64.s32 %d0, %r1;", "cvt.u32.u64 %r0, %d1;",
    "cvt.s32.s64 %r0, %d1;", "cvt.u16.u32 %h0, %r1;", "cvt.s32.s16 %r0, %h1;",
    "cvt.u32.u16 %r0, %h1;", "cvt.s32.u32 %r0, %r1;", "cvt.s16.s8 %h0, %h1;",
    "lop3.b32 %r0, %r1, %r2, %r3, 0x96;", "lop3.b32 %r0, %r1, 255, %r3, 0xEA;",
    "bfe.u32 %r0, %r1, 5, 9;", "bfe.u32 %r0, %r1, 30, 9;", "bfe.u64 %d0, %d1, 4, 14;",
    "bfe.u32 %r0, %r1, 40, 3;", "mul.wide.u32 %d0, %r1, 4;",
    "add.s16x2 %r0, %r1, %r2;", "min.u16x2 %r0, %r1, %r2;",
]  # fmt: skip
INSTRUCTIONS = [*_instructions(), *_FLOATS, *_COMPARISONS, *_OTHERS]


@pytest.mark.parametrize("line", INSTRUCTIONS)
def test_a_form_leaves_the_bits_that_the_step_leaves(line: str) -> None:
    for seed, n_lanes in enumerate((800, 8, 3)):
        assert disagreements([line], n_lanes, 0, seed) == []


@pytest.mark.parametrize("line", INSTRUCTIONS[::3])
def test_a_guarded_form_leaves_the_other_lanes_alone(line: str) -> None:
    assert disagreements([f"@%p3 {line}"], 100, 0, 1) == []
    assert disagreements([f"@!%p0 {line}"], 21, 0, 2) == []


@given(
    st.lists(st.sampled_from(INSTRUCTIONS), min_size=2, max_size=12),
    st.integers(1, 600),
    st.integers(0, 20),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_a_run_leaves_the_bits_that_its_steps_leave(
    lines: list[str], count: int, first: int, seed: int
) -> None:
    assert disagreements(lines, first + count, first, seed) == []
