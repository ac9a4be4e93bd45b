"""How undefined bits pass through instructions, compared with what other choices of them change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astdsl.emulator.lanes import WARP_THREADS, Lanes
from astdsl.emulator.machine import Machine
from astdsl.emulator.program import Program
from astdsl.emulator.registers import Place
from astdsl.emulator.undefined import Undefined, row_of
from tests.emulator.native.machines import machine_of, program_of

Values = dict[Place, Any]
# Undefined bits at a time, all choices of which are tried.
FEW = 5
SEEDS = st.integers(0, 2**32 - 1)

# Instructions whose results have no more undefined bits than need be, and the registers that may
# be undefined where that does not hold for all of them.
EXACT = {
    "mov.b16 %h0, %h1;": "",
    "mov.b64 %d0, %d0;": "",
    "mov.pred %p0, %p1;": "",
    "mov.b32 %r0, {%h0, %h1};": "",
    "mov.b32 {%h0, %h1}, %r0;": "",
    "mov.b64 %d0, {%h3, 7, %h1, %h3};": "",
    "mov.b64 {%r0, %r1}, %d0;": "",
    "and.b32 %r0, %r1, %r2;": "",
    "and.b64 %d1, %d1, 0xff00ff;": "",
    "or.b16 %h0, %h1, %h2;": "",
    "or.pred %p0, %p1, %p0;": "",
    "and.pred %p0, %p1, !%p2;": "",
    "xor.b32 %r0, %r1, %r0;": "",
    "xor.b32 %r0, %r1, %r1;": "",
    "not.b64 %d0, %d1;": "",
    "cnot.b32 %r0, %r1;": "",
    "lop3.b32 %r0, %r1, %r2, %r3, 0x96;": "",
    "lop3.b32 %r0, %r1, %r2, %r3, 0xe8;": "",
    "lop3.b32 %r0, %r1, %r1, %r3, 0x1d;": "",
    "shl.b32 %r0, %r1, 5;": "",
    "shl.b64 %d0, %d1, %r2;": "%d1",
    "shr.u32 %r0, %r1, %r0;": "%r1",
    "shr.s16 %h0, %h1, 3;": "",
    "shf.l.wrap.b32 %r0, %r1, %r2, %r3;": "%r1 %r2",
    "shf.r.clamp.b32 %r0, %r1, %r1, %r3;": "%r1",
    "prmt.b32 %r0, %r1, %r2, %r3;": "%r1 %r2",
    "prmt.b32 %r0, %r1, 0, 0xb710;": "",
    "prmt.b32.rc16 %r0, %r1, %r2, %r3;": "%r1 %r2",
    "bfe.u32 %r0, %r1, %r2, %r3;": "%r1",
    "bfe.s64 %d0, %d1, 40, 12;": "",
    "bfi.b32 %r0, %r1, %r2, 7, %r3;": "%r1 %r2",
    "bfi.b64 %d0, %d1, %d2, 8, 48;": "",
    "szext.wrap.s32 %r0, %r1, 9;": "",
    "brev.b64 %d0, %d1;": "",
    "cvt.u16.u32 %h0, %r1;": "",
    "cvt.s64.s32 %d0, %r1;": "",
    "cvt.u64.u32 %d0, %r1;": "",
    "cvt.s32.s8 %r0, %r1;": "",
    "cvt.u8.u16 %h0, %h1;": "",
    "cvt.s8.s64 %r0, %d1;": "",
    "selp.b32 %r0, %r1, %r2, %p3;": "",
    "selp.b16 %h0, %h0, 5, !%p0;": "",
    "slct.b32.s32 %r0, %r1, %r2, %r3;": "",
    "setp.eq.s32 %p0, %r1, %r2;": "",
    "setp.ne.b64 %p0, %d1, 255;": "",
    "setp.eq.and.u16 %p0|%p1, %h1, %h2, %p1;": "",
    "setp.ne.xor.b32 %p0, %r0, 0, !%p1;": "",
    "setp.lt.u32 %p0, %r1, %r2;": "",
    "setp.ge.or.s32 %p0|%p1, %r1, %r2, %p2;": "",
    "setp.gt.s16 %p0, %h1, -1;": "",
    "setp.hi.u64 %p0, %d1, 0xff;": "",
    "set.le.u32.s32 %r0, %r1, %r2;": "",
    "add.u32 %r0, %r1, %r2;": "",
    "add.s64 %d0, %d1, 4096;": "",
    "add.u16x2 %r0, %r1, %r2;": "",
    "sub.s16 %h0, %h1, %h2;": "",
    "sub.u32 %r0, 100, %r2;": "",
    "neg.s32 %r0, %r1;": "",
    "neg.f16x2 %r0, %r1;": "",
    "abs.f32 %r0, %r1;": "",
    "copysign.f32 %r0, %r1, %r2;": "",
    "and.b32 %r0, %r1, %ntid.x;": "",
}
# Where what is found may be more.
SAFE = [
    "shl.b32 %r0, %r1, %r2;",
    "shf.l.wrap.b32 %r0, %r1, %r2, %r1;",
    "prmt.b32 %r0, %r1, %r2, %r0;",
    "prmt.b32.f4e %r0, %r1, %r2, %r3;",
    "bfe.s32 %r0, %r1, %r2, %r3;",
    "bfi.b32 %r0, %r1, %r2, %r3, %r3;",
    "bmsk.clamp.b32 %r0, %r1, %r2;",
    "szext.clamp.u32 %r0, %r1, %r2;",
    "lop3.or.b32 %r0|%p0, %r1, %r2, %r3, 0x68, %p1;",
    "add.u32 %r0, %r1, %r1;",
    "sub.u32 %r0, %r1, %r1;",
    "add.sat.s32 %r0, %r1, %r2;",
    "mul.lo.u32 %r0, %r1, %r2;",
    "mul.wide.s16 %r0, %h1, %h2;",
    "mul.wide.u32 %d0, %r1, 12;",
    "mul.hi.s32 %r0, %r1, %r2;",
    "mad.lo.s32 %r0, %r1, %r2, %r3;",
    "mad.wide.u32 %d0, %r1, %r2, %d3;",
    "mad.hi.u32 %r0, %r1, %r2, %r3;",
    "mul24.lo.u32 %r0, %r1, %r2;",
    "min.s32 %r0, %r1, %r2;",
    "max.u16x2 %r0, %r1, %r2;",
    "abs.s32 %r0, %r1;",
    "sad.u32 %r0, %r1, %r2, %r3;",
    "dp4a.u32.s32 %r0, %r1, %r2, %r3;",
    "div.s32 %r0, %r1, %r2;",
    "rem.u32 %r0, %r1, %r2;",
    "popc.b32 %r0, %r1;",
    "clz.b64 %r0, %d1;",
    "bfind.s32 %r0, %r1;",
    "fns.b32 %r0, %r1, 3, 2;",
    "slct.b32.f32 %r0, %r1, %r2, %r3;",
    "setp.lt.f32 %p0, %r1, %r2;",
    "setp.eq.f16x2 %p0|%p1, %r1, %r2;",
    "setp.ltu.and.bf16x2 %p0|%p1, %r1, %r2, %p2;",
    "set.gt.f32.f32 %r0, %r1, %r2;",
    "testp.normal.f32 %p0, %r1;",
    "isspacep.shared %p0, %d1;",
    "cvta.shared.u64 %d0, %d1;",
    "add.f32 %r0, %r1, %r2;",
    "fma.rn.f16x2 %r0, %r1, %r2, %r3;",
    "fma.rn.relu.bf16x2 %r0, %r1, %r2, %r3;",
    "mul.f64 %d0, %d1, %d2;",
    "min.f16x2 %r0, %r1, %r2;",
    "neg.ftz.f32 %r0, %r1;",
    "ex2.approx.f16x2 %r0, %r1;",
    "rcp.approx.ftz.f32 %r0, %r1;",
    "cvt.sat.u8.s32 %r0, %r1;",
    "cvt.rn.f32.s32 %r0, %r1;",
    "cvt.rzi.s32.f32 %r0, %r1;",
    "cvt.rn.f16.f32 %h0, %r1;",
    "cvt.f32.f16 %r0, %h1;",
    "cvt.rn.f32.u8 %r0, %r1;",
    "cvt.rn.bf16x2.f32 %r0, %r1, %r2;",
    "cvt.rs.f16x2.f32 %r0, %r1, %r2, %r3;",
    "cvt.rn.satfinite.e4m3x2.f32 %h0, %r1, %r2;",
    "cvt.rn.satfinite.e5m2x2.f16x2 %h0, %r1;",
    "cvt.rn.f16x2.e4m3x2 %r0, %h1;",
    "cvt.pack.sat.u8.s32.b32 %r0, %r1, %r2, %r3;",
    "add.cc.u32 %r0, %r1, %r2;",
    "addc.u32 %r0, %r1, %r2;",
]
# Of the lanes of a warp, and the registers that may be undefined.
COLLECTIVE = {
    "vote.sync.any.pred %p0, %p1, -1;": "",
    "vote.sync.all.pred %p0, !%p1, -1;": "",
    "vote.sync.uni.pred %p0, %p0, -1;": "",
    "vote.sync.ballot.b32 %r0, %p1, -1;": "",
    "shfl.sync.bfly.b32 %r0, %r1, 3, 31, -1;": "",
    "shfl.sync.up.b32 %r0|%p0, %r0, %r2, 0, -1;": "%r0",
    "movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;": "",
}
SAFE_COLLECTIVE = [
    "redux.sync.add.s32 %r0, %r1, -1;",
    "match.any.sync.b32 %r0, %r1, -1;",
    "match.all.sync.b32 %r0|%p0, %r1, -1;",
    "shfl.sync.idx.b32 %r0|%p0, %r1, %r2, 31, -1;",
]


@lru_cache(maxsize=256)
def prepared(line: str) -> Program:
    return program_of([line])


@dataclass
class Case:
    """An instruction and a machine of which some bits are undefined, `masks`."""

    line: str
    machine: Machine
    masks: Values
    lanes: Lanes

    @property
    def writes(self) -> list[Place]:
        return list(prepared(self.line).native.instructions[0].writes)

    def place(self, name: str) -> Place:
        return prepared(self.line).native.instructions[0].register_place(name)

    def execute(self, *, tracked: bool) -> None:
        program, m = prepared(self.line), self.machine
        with np.errstate(all="ignore"):
            control = program.controls[0]
            if control is not None:
                assert control(m, self.lanes) is None
            else:
                (program.tracked if tracked else program.steps)[0](m, self.lanes)

    def rows(self, places: Any) -> Values:
        return {place: row_of(self.machine, place).copy() for place in places}

    def put(self, rows: Values) -> None:
        for place, row in rows.items():
            row_of(self.machine, place)[...] = row

    def found(self) -> Values:
        """Track the instruction; return the undefined bits of its results."""
        m = self.machine
        m.undefined.clear()
        for place, bits in self.masks.items():
            if bits.any():
                m.undefined[place] = Undefined(bits.copy(), np.ones(m.n_lanes, np.uint32))
        self.execute(tracked=True)
        none = Undefined(np.zeros(0), np.zeros(0))
        found = {place: m.undefined.get(place, none).bits for place in self.writes}
        m.undefined.clear()
        return {p: b if b.size else np.zeros_like(row_of(m, p)) for p, b in found.items()}

    def changed(self, choices: list[Values]) -> Values:
        """Return which bits of the results are not the same for all choices of undefined bits."""
        before = self.rows({*self.masks, *self.writes})
        results = []
        for choice in choices:
            self.put(before)
            self.put({p: (before[p] & ~self.masks[p]) | bits for p, bits in choice.items()})
            self.execute(tracked=False)
            results.append(self.rows(self.writes))
        self.put(before)
        return {
            place: np.bitwise_or.reduce([each[place] ^ results[0][place] for each in results])
            for place in self.writes
        }


def sources(line: str, names: str) -> list[Place]:
    ops = prepared(line).native.instructions[0]
    return [ops.register_place(n) for n in names.split()] or list(dict.fromkeys(ops.reads))


def case_of(line: str, names: str, seed: int, width: int) -> tuple[Case, list[Values]]:
    """Return a case with few undefined bits for each `width` lanes, and all choices of them."""
    machine = machine_of(prepared(line), 2 * WARP_THREADS, seed)
    rng = np.random.default_rng(seed)
    places = sources(line, names)
    masks = {place: np.zeros_like(row_of(machine, place)) for place in places}
    singles: list[Values] = []
    for _ in range(FEW):
        single = {place: np.zeros_like(mask) for place, mask in masks.items()}
        for first in range(0, machine.n_lanes, width):
            place = places[rng.integers(len(places))]
            lane = first + rng.integers(width)
            bit = masks[place].dtype.type(1 << int(rng.integers(place[0])))
            if not masks[place][lane] & bit:
                single[place][lane] = bit
                masks[place][lane] |= bit
        singles.append(single)
    choices = [
        {
            p: np.bitwise_or.reduce(
                [s[p] * s[p].dtype.type(c >> i & 1) for i, s in enumerate(singles)]
            )
            for p in places
        }
        for c in range(1 << FEW)
    ]
    return Case(line, machine, masks, Lanes.span(0, machine.n_lanes)), choices


def many(line: str, names: str, seed: int) -> tuple[Case, list[Values]]:
    """Return a case with many undefined bits, whole bytes or any, and some choices of them."""
    case, _ = case_of(line, names, seed, 1)
    rng = np.random.default_rng(seed)

    def random_bits(like: Any) -> Any:
        return (
            rng.integers(0, 256, like.nbytes, np.uint8).view(like.dtype)
            if like.dtype != bool
            else (rng.integers(0, 2, len(like)).astype(bool))
        )

    for place, mask in case.masks.items():
        any_bits, octets = random_bits(mask), random_bits(mask)
        if mask.dtype != bool:
            octets = ((octets.view(np.uint8) & 1) * np.uint8(255)).view(mask.dtype)
        pick = rng.integers(0, 4, len(mask))
        case.masks[place] = np.select(
            [pick == 0, pick == 1, pick == 2], [any_bits, octets, mask], np.zeros_like(mask)
        )
    return case, [
        {place: random_bits(mask) & mask for place, mask in case.masks.items()} for _ in range(24)
    ]


def missing(found: Values, changed: Values) -> Values:
    return {p: bits & ~found[p] for p, bits in changed.items() if (bits & ~found[p]).any()}


@pytest.mark.parametrize("line", EXACT)
@settings(max_examples=2, deadline=None)
@given(seed=SEEDS)
def test_exactly_the_bits_that_undefined_ones_change_are_found(line: str, seed: int) -> None:
    case, choices = case_of(line, EXACT[line], seed, 1)
    changed, found = case.changed(choices), case.found()
    for place, bits in changed.items():
        assert np.array_equal(bits, found[place])


@pytest.mark.parametrize("line", [*EXACT, *SAFE])
@settings(max_examples=2, deadline=None)
@given(seed=SEEDS)
def test_no_bit_that_undefined_ones_change_is_missed(line: str, seed: int) -> None:
    for case, choices in (case_of(line, "", seed, 1), many(line, "", seed)):
        changed, found = case.changed(choices), case.found()
        assert missing(found, changed) == {}


@pytest.mark.parametrize("line", COLLECTIVE)
@settings(max_examples=2, deadline=None)
@given(seed=SEEDS)
def test_what_lanes_of_a_warp_change_is_found_exactly(line: str, seed: int) -> None:
    case, choices = case_of(line, COLLECTIVE[line], seed, WARP_THREADS)
    changed, found = case.changed(choices), case.found()
    for place, bits in changed.items():
        assert np.array_equal(bits, found[place])


@pytest.mark.parametrize("line", [*COLLECTIVE, *SAFE_COLLECTIVE])
@settings(max_examples=2, deadline=None)
@given(seed=SEEDS)
def test_nothing_that_lanes_of_a_warp_change_is_missed(line: str, seed: int) -> None:
    case, choices = case_of(line, "", seed, WARP_THREADS)
    changed, found = case.changed(choices), case.found()
    assert missing(found, changed) == {}


@pytest.mark.parametrize("line", [*EXACT, *SAFE])
def test_following_undefined_bits_leaves_the_values_as_they_are(line: str) -> None:
    case, _ = many(line, "", 1)
    before = case.rows({*case.masks, *case.writes})
    case.execute(tracked=False)
    plain = case.rows(before)
    case.put(before)
    case.found()
    tracked = case.rows(before)
    assert all(np.array_equal(plain[place], tracked[place]) for place in before)
