"""Tests of atomics, with and without lanes that meet at one address."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl.emulator import run
from astdsl.emulator.isa.atomic import Turn
from tests.emulator.running import bits_of, module

REGISTERS = ".reg .b64 %d<16>; .reg .b32 %r<32>; .reg .b16 %h<4>; .reg .pred %p<8>;"
N = 96


def atomic(opcode: str, memory: Any, values: Any, places: Any, *, third: Any = None) -> Any:
    """Run `opcode` in every thread on memory[places]; returns (memory after, values before)."""
    memory, before = memory.copy(), np.zeros(len(values), values.dtype)
    size = values.dtype.itemsize
    register = {2: "%h", 4: "%r1", 8: "%d1"}[size]
    value, out = register[:2] + "1", register[:2] + "2"
    body = f"""mov.u32 %r0, %tid.x; ld.param.u64 %d8, [p0]; ld.param.u64 %d9, [p1];
      ld.param.u64 %d10, [p2]; ld.param.u64 %d11, [p3]; mad.wide.u32 %d12, %r0, 4, %d10;
      ld.global.b32 %r9, [%d12]; mad.wide.u32 %d13, %r9, {size}, %d8;
      mad.wide.u32 %d14, %r0, {size}, %d9; mad.wide.u32 %d15, %r0, {size}, %d11;
      ld.global.b{8 * size} {value}, [%d14];
      atom.global.{opcode} {out}, [%d13], {value}{"" if third is None else f", {third}"};
      st.global.b{8 * size} [%d15], {out};"""
    text = module(body, ["u64"] * 4, REGISTERS)
    run(text, "k", (1,), (len(values),), [memory, values, places.astype(np.uint32), before])
    return memory, before


PYTHON: dict[str, Any] = {
    "add": lambda old, b: old + b,
    "min": min,
    "max": max,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda old, b: b,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
}


@pytest.mark.parametrize("name", PYTHON)
@pytest.mark.parametrize("shared", [False, True])
def test_lanes_take_their_turns(name: str, shared: bool) -> None:
    values = bits_of(N, "u4", 1)
    memory = bits_of(N, "u4", 2)
    rng = np.random.default_rng(3)
    places = rng.integers(0, 7, N) if shared else rng.permutation(N)
    kind = "b32" if name in ("and", "or", "xor", "exch") else "u32"
    after, before = atomic(f"{name}.{kind}", memory, values, places)
    expected, seen = memory.tolist(), []
    for value, place in zip(values.tolist(), places.tolist(), strict=True):
        seen.append(expected[place])
        expected[place] = PYTHON[name](expected[place], value) & 0xFFFFFFFF
    assert after.tolist() == expected
    assert before.tolist() == seen


def test_compare_and_swap_lets_one_lane_win() -> None:
    memory = np.zeros(1, np.uint32)
    values = np.zeros(N, np.uint32)
    after, before = atomic("cas.b32", memory, values, np.zeros(N), third="77")
    assert after.tolist() == [77]
    assert before.tolist() == [0] + [77] * (N - 1)


@pytest.mark.parametrize(("kind", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_float_sums_are_rounded_at_each_step(kind: str, dtype: Any) -> None:
    values = np.random.default_rng(4).standard_normal(N).astype(dtype)
    after, _ = atomic(f"add.{kind}", np.zeros(1, dtype), values, np.zeros(N))
    total = dtype(0)
    for value in values:
        total = dtype(total + value)
    assert after[0] == total


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_packed_sums(kind: str) -> None:
    dtype = np.float16 if kind == "f16x2" else ml_dtypes.bfloat16
    values = np.arange(2 * N).astype(dtype).view(np.uint32)
    after, _ = atomic(f"add.noftz.{kind}", np.zeros(N, np.uint32), values, np.arange(N))
    assert after.tolist() == values.tolist()


def test_signed_extremes_compare_as_signed() -> None:
    values = np.array([-5, 3], np.int32)
    after, _ = atomic("max.s32", np.array([-9, -9], np.int32), values, np.arange(2))
    assert after.tolist() == [-5, 3]


def test_reductions_in_shared_memory_count_the_threads() -> None:
    out = np.zeros(1, np.uint32)
    body = """mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.b32 [sh], 0; bar.sync 0;
      red.shared.add.u32 [sh], 1; bar.sync 0; ld.shared.b32 %r1, [sh];
      ld.param.u64 %d0, [p0]; st.global.b32 [%d0], %r1;"""
    text = module(body, ["u64"], REGISTERS + ".shared .align 4 .b8 sh[4];")
    run(text, "k", (1,), (256,), [out])
    assert out.tolist() == [256]


def test_blocks_of_every_batch_add_to_the_same_counter() -> None:
    out = np.zeros(1, np.uint32)
    body = "ld.param.u64 %d0, [p0]; red.global.add.u32 [%d0], 1;"
    run(module(body, ["u64"], REGISTERS), "k", (300,), (128,), [out])
    assert out.tolist() == [300 * 128]


def test_a_vector_is_an_atomic_for_each_element() -> None:
    out = np.zeros(8, np.float32)
    body = """ld.param.u64 %d0, [p0]; mov.f32 %f0, 0f3F800000; mov.f32 %f1, 0f40000000;
      red.relaxed.gpu.global.add.v2.f32 [%d0], {%f0, %f1};
      red.relaxed.gpu.global.add.v4.f32 [%d0+16], {%f0, %f1, %f0, %f1};"""
    text = module(body, ["u64"], ".reg .b64 %d<2>; .reg .f32 %f<4>;")
    run(text, "k", (2,), (32,), [out])
    assert out.tolist() == [64, 128, 0, 0, 64, 128, 64, 128]


def test_128_bits_are_exchanged_and_compared_as_one() -> None:
    memory, out = np.array([1, 2], np.uint64), np.zeros(4, np.uint64)
    body = """ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; mov.u64 %d2, 1; mov.u64 %d3, 2;
      mov.u64 %d4, 7; mov.b128 %q0, {%d2, %d3}; mov.b128 %q1, {%d4, %d3}; mov.b128 %q4, {%d2, %d4};
      atom.global.cas.b128 %q2, [%d0], %q0, %q1; atom.global.cas.b128 %q3, [%d0], %q4, %q0;
      st.global.b128 [%d1], %q3; atom.global.exch.b128 %q3, [%d0], %q4;
      st.global.b128 [%d1+16], %q3;"""
    text = module(body, ["u64", "u64"], ".reg .b64 %d<8>; .reg .b128 %q<6>;")
    run(text, "k", (1,), (1,), [memory, out])
    assert memory.tolist() == [1, 7]
    assert out.tolist() == [7, 2, 7, 2]


@pytest.mark.parametrize("shared", [False, True])
def test_lanes_compare_in_their_turns(shared: bool) -> None:
    rng = np.random.default_rng(5)
    memory = rng.integers(0, 4, N).astype(np.uint32)
    places = rng.integers(0, 7, N) if shared else rng.permutation(N)
    values = rng.integers(0, 4, N).astype(np.uint32)
    after, before = atomic("cas.b32", memory, values, places, third="%r9")
    expected, seen = memory.tolist(), []
    for value, place in zip(values.tolist(), places.tolist(), strict=True):
        seen.append(expected[place])
        expected[place] = place if expected[place] == value else expected[place]
    assert after.tolist() == expected
    assert before.tolist() == seen


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that fills with the number of lanes of each turn of an atomic."""
    counts: list[int] = []
    begin = Turn.__init__

    def counted(self: Turn, lanes: Any, turn: Any) -> None:
        begin(self, lanes, turn)
        counts.append(self.lanes.n)

    monkeypatch.setattr(Turn, "__init__", counted)
    return counts


# Each thread puts its number before those that are in a list, whose head is a word.
PUSH = """mov.u32 %r0, %tid.x; ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1];
  mul.wide.u32 %d2, %r0, 4; add.u64 %d2, %d1, %d2; ld.relaxed.gpu.global.b32 %r1, [%d0];
  AGAIN: st.relaxed.gpu.global.b32 [%d2], %r1;
  atom.acq_rel.gpu.global.cas.b32 %r2, [%d0], %r1, %r0; setp.ne.u32 %p0, %r1, %r2;
  mov.u32 %r1, %r2; @%p0 bra AGAIN;"""


@pytest.mark.parametrize("order", ["min-pc", "max-pc", 3])
def test_compares_that_fail_at_one_word_take_one_turn(order: Any, taken: list[int]) -> None:
    head, links = np.full(1, 999, np.uint32), np.zeros(N, np.uint32)
    run(module(PUSH, ["u64"] * 2, REGISTERS), "k", (1,), (N,), [head, links], order=order)
    listed = [int(head[0])]
    while listed[-1] != 999:
        listed.append(int(links[listed[-1]]))
    assert sorted(listed[:-1]) == list(range(N))
    assert len(taken) < 5 * N


def test_wide_compares_that_fail_at_one_word_take_one_turn(taken: list[int]) -> None:
    memory, out = np.array([1, 2], np.uint64), np.zeros(N, np.uint64)
    body = """ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; mov.u32 %r0, %tid.x;
      mul.wide.u32 %d2, %r0, 8; add.u64 %d1, %d1, %d2; mov.u64 %d3, 1; mov.u64 %d4, 2;
      cvt.u64.u32 %d5, %r0; add.u64 %d5, %d5, 7; mov.b128 %q0, {%d3, %d4};
      mov.b128 %q1, {%d5, %d4}; atom.global.cas.b128 %q2, [%d0], %q0, %q1;
      mov.b128 {%d6, %d7}, %q2; st.global.b64 [%d1], %d6;"""
    text = module(body, ["u64", "u64"], REGISTERS + ".reg .b128 %q<6>;")
    run(text, "k", (1,), (N,), [memory, out])
    assert memory.tolist() == [7, 2]
    assert out.tolist() == [1] + [7] * (N - 1)
    assert taken == [1, N - 1]


@pytest.mark.parametrize("space", ["shared", "generic"])
def test_words_of_two_blocks_are_not_one(space: str, taken: list[int]) -> None:
    out = np.zeros(4 * 32, np.uint32)
    word = "[sh]" if space == "shared" else "[%d3]"
    body = f"""mov.u32 %r0, %tid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r4, %r3, 32, %r0;
      mov.u32 %r5, sh; cvt.u64.u32 %d2, %r5; cvta.shared.u64 %d3, %d2;
      ld.param.u64 %d0, [p0]; mad.wide.u32 %d1, %r4, 4, %d0; setp.eq.u32 %p0, %r0, 0;
      @%p0 st.shared.b32 [sh], %r3; bar.sync 0;
      atom{".shared" if space == "shared" else ""}.add.u32 %r1, {word}, 8;
      st.global.b32 [%d1], %r1;"""
    text = module(body, ["u64"], REGISTERS + ".shared .align 4 .b8 sh[4];")
    run(text, "k", (4,), (32,), [out])
    assert out.tolist() == [block + 8 * thread for block in range(4) for thread in range(32)]
    assert taken == [4] * 32
