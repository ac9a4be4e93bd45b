"""Lowering of reductions: within a thread, then its warp, then the block.

A reduction folds *states*, tuples of registers (one for a sum; a key and an index for `argmax`),
by a combination that is associative and commutative up to rounding. The order is fixed: pairs of
a thread's registers, lanes by `shfl.bfly` (which gives every lane the same bits), warps in order
through shared memory.

Invariant: padding along a reduced axis counts as the identity; copies in other threads never
count twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from astdsl.lowering.layout.registers import REPLICATED, Layout
from astdsl.lowering.nvptx.asm import warp
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.function import Emitter
from astdsl.lowering.nvptx.values import INTEGER_BITS, LV, bits_of, constant, i32

WARP_THREADS = 32
# A segment of 32 lanes, nothing clamped below the last (PTX ISA 9.7.9.6).
_WHOLE_WARP = 0x1F
_WORD_BITS = 32

State: TypeAlias = tuple[LV, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """How two states become one, and the state that changes nothing."""

    combine: Callable[[State, State], State]
    identity: State


@dataclass(frozen=True, slots=True)
class _Part:
    """Threads `value * stride`, within a warp or whole warps; `is_reduced` or `is_copy`."""

    stride: int
    extent: int
    is_reduced: bool
    is_copy: bool

    @property
    def is_lanes(self) -> bool:
        return self.stride < WARP_THREADS


def folded(
    emitter: Emitter, layout: Layout, axes: Sequence[int], states: Sequence[State], fold: Fold
) -> list[State]:
    """Write the reduction of a tile's states along axes: those of `layout.without(axes)`."""
    states = [_unless_padding(emitter, layout, axes, k, s, fold) for k, s in enumerate(states)]
    groups: dict[int, list[State]] = {}
    for number, state in zip(layout.kept_registers(axes), states, strict=True):
        groups.setdefault(number, []).append(state)
    parts = _parts(layout, axes)
    partial = [_combined(groups[k], fold) for k in range(len(groups))]
    partial = [_across_lanes(emitter, state, parts, fold) for state in partial]
    if any(p.is_reduced and not p.is_lanes for p in parts):
        return _across_warps(emitter, partial, parts, fold)
    return partial


def _unless_padding(
    emitter: Emitter, layout: Layout, axes: Sequence[int], register: int, state: State, fold: Fold
) -> State:
    inside = emitter.is_inside(layout, register, axes)
    if inside is None:
        return state
    choices = zip(state, fold.identity, strict=True)
    return tuple(emitter.builder.select(inside, value, neutral) for value, neutral in choices)


def _combined(states: Sequence[State], fold: Fold) -> State:
    """Combine neighbours, then neighbouring pairs, and so on: short chains, small errors."""
    level = list(states)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        combined = [fold.combine(x, y) for x, y in pairs]
        level = combined + level[len(level) & ~1 :]
    return level[0]


def _parts(layout: Layout, axes: Sequence[int]) -> list[_Part]:
    """Return the thread digits, cut where a warp ends."""
    parts, stride = [], 1
    for digit in layout.threads:
        kind = (digit.axis in axes, digit.axis == REPLICATED)
        lanes = min(digit.extent, max(1, WARP_THREADS // stride))
        assert digit.extent % lanes == 0, f"{digit} crosses the border of a warp"
        parts.append(_Part(stride, lanes, *kind))
        parts.append(_Part(stride * lanes, digit.extent // lanes, *kind))
        stride *= digit.extent
    return [part for part in parts if part.extent > 1]


def _across_lanes(emitter: Emitter, state: State, parts: Sequence[_Part], fold: Fold) -> State:
    for part in parts:
        if not (part.is_reduced and part.is_lanes):
            continue
        assert part.extent & (part.extent - 1) == 0, f"{part.extent} lanes hold an axis"
        distance = part.stride
        while distance < part.stride * part.extent:
            other = tuple(_from_lane(emitter.builder, value, distance) for value in state)
            state = fold.combine(state, other)
            distance *= 2
    return state


def _from_lane(builder: Builder, value: LV, distance: int) -> LV:
    """Return the value of the lane whose number differs in the bit `distance`."""
    bits = bits_of(value.type)
    whole = f"i{bits}"
    number = value if value.type in INTEGER_BITS else builder.cast("bitcast", value, whole)
    if bits <= _WORD_BITS:
        word = _exchanged(builder, builder.cast("zext", number, "i32"), distance)
        number = builder.cast("trunc", word, whole)
    else:
        upper = builder.lshr(number, constant(whole, _WORD_BITS))
        low, high = (
            builder.cast(
                "zext", _exchanged(builder, builder.cast("trunc", x, "i32"), distance), whole
            )
            for x in (number, upper)
        )
        number = builder.or_(low, builder.shl(high, constant(whole, _WORD_BITS)))
    return number if value.type in INTEGER_BITS else builder.cast("bitcast", number, value.type)


def _exchanged(builder: Builder, word: LV, distance: int) -> LV:
    members = i32(warp.FULL_MASK)
    row = warp.shuffle("bfly")
    (result,) = builder.asm(row, word, i32(distance), i32(_WHOLE_WARP), members)
    return result


def _across_warps(
    emitter: Emitter, states: Sequence[State], parts: Sequence[_Part], fold: Fold
) -> list[State]:
    """Combine the states of the warps: each leaves its own in shared memory, all read all."""
    reduced = [p for p in parts if p.is_reduced and not p.is_lanes]
    kept = [p for p in parts if not p.is_reduced and not p.is_copy]
    warps = math.prod(p.extent for p in reduced)
    positions = math.prod(p.extent for p in kept)
    spaces = _spaces(emitter, states[0], len(states) * positions * warps)
    place = emitter.builder.mul(_number(emitter, kept), i32(warps))
    own = emitter.builder.add(place, _number(emitter, reduced))
    emitter.synchronise()
    with emitter.guarded(_is_representative(emitter, parts)):
        for k, state in enumerate(states):
            for space, value in zip(spaces, state, strict=True):
                space.store(value, own, k * positions * warps)
    emitter.synchronise()
    return [
        _combined(
            [
                tuple(space.load(place, k * positions * warps + number) for space in spaces)
                for number in range(warps)
            ],
            fold,
        )
        for k in range(len(states))
    ]


def _number(emitter: Emitter, parts: Sequence[_Part]) -> LV:
    """Return the number, i32, that the thread's digits of `parts` make, first one fastest."""
    total, step = i32(0), 1
    for part in parts:
        digit = emitter.thread_digit(part.stride, part.extent)
        total = emitter.builder.add(total, emitter.builder.mul(digit, i32(step)))
        step *= part.extent
    return total


def _is_representative(emitter: Emitter, parts: Sequence[_Part]) -> LV | None:
    """Return whether the thread is the first of those in its warp that hold the same state."""
    result = None
    for part in parts:
        if part.is_copy or (part.is_reduced and part.is_lanes):
            digit = emitter.thread_digit(part.stride, part.extent)
            result = emitter.both(result, emitter.builder.icmp("eq", digit, i32(0)))
    return result


@dataclass(frozen=True, slots=True)
class _Space:
    """A part of the scratch: elements of one type."""

    builder: Builder
    type: str
    pointer: LV

    @property
    def memory_type(self) -> str:
        return "i8" if self.type == "i1" else self.type

    @property
    def element_bytes(self) -> int:
        return bits_of(self.memory_type) // 8

    def store(self, value: LV, index: LV, offset: int) -> None:
        wide = self.builder.cast("zext", value, "i8") if self.type == "i1" else value
        self.builder.store(wide, self._place(index, offset), self.element_bytes)

    def load(self, index: LV, offset: int) -> LV:
        value = self.builder.load(self.memory_type, self._place(index, offset), self.element_bytes)
        return self.builder.cast("trunc", value, "i1") if self.type == "i1" else value

    def _place(self, index: LV, offset: int) -> LV:
        # A constant apart, so that LLVM joins the accesses.
        first = self.builder.gep(self.memory_type, self.pointer, index)
        return self.builder.gep(self.memory_type, first, i32(offset))


def _spaces(emitter: Emitter, state: State, elements: int) -> list[_Space]:
    """Share the scratch among the registers of a state, the widest first."""
    start = emitter.shared.scratch_offset_bytes
    used_bytes, spaces = 0, {}
    for number, value in sorted(enumerate(state), key=lambda pair: -bits_of(pair[1].type)):
        pointer = emitter.builder.shared(start + used_bytes)
        spaces[number] = _Space(emitter.builder, value.type, pointer)
        used_bytes += elements * spaces[number].element_bytes
    emitter.shared.require_scratch(used_bytes)
    return [spaces[number] for number in range(len(state))]
