"""Lowering of reductions: within a thread, then its warp, then the block.

A reduction folds *states*, tuples of registers (one for a sum; a key and an index for `argmax`),
by a combination that is associative and commutative up to rounding. The order is fixed: pairs of
a thread's registers, lanes by `shfl.bfly` (which gives every lane the same bits) or at once by an
instruction of the whole warp, warps in order through shared memory.

Invariant: padding along a reduced axis counts as the identity; copies in other threads never
count twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from astdsl.lowering.layout.levels import Holder, Level, thread_levels
from astdsl.lowering.layout.registers import WARP_THREADS, Layout
from astdsl.lowering.nvptx.function import Emitter
from astdsl.lowering.nvptx.lanes import shuffled
from astdsl.lowering.nvptx.rules.exchange import Board, State
from astdsl.lowering.nvptx.values import LV, i32, lanes_of


@dataclass(frozen=True, slots=True)
class Fold:
    """How two states become one, and the state that changes nothing.

    With `packs` a state is one register, and `combine` takes vectors of them as well. `of_warp`
    combines the one registers of all lanes.
    """

    combine: Callable[[State, State], State]
    identity: State
    packs: bool = False
    of_warp: Callable[[LV], LV] | None = None


def folded(
    emitter: Emitter, layout: Layout, axes: Sequence[int], states: Sequence[State], fold: Fold
) -> list[State]:
    """Write the reduction of a tile's states along axes: those of `layout.without(axes)`."""
    states = [_unless_padding(emitter, layout, axes, k, s, fold) for k, s in enumerate(states)]
    levels = thread_levels(layout)
    reduced = [level for level in levels if level.axis in axes]
    lanes = [level for level in reduced if level.holder is Holder.LANES]
    partial = _within_threads(emitter, layout.kept_registers(axes), states, fold)
    partial = [_across_lanes(emitter, state, lanes, fold) for state in partial]
    warps = [level for level in reduced if level.holder is Holder.WARPS]
    if not warps:
        return partial
    kept = [level for level in levels if level not in reduced and not level.is_copy]
    same = [level for level in levels if level in lanes or level.is_copy]
    board = Board(emitter, across=warps, kept=kept, same=same)
    return [_combined(states, fold) for states in board.exchanged(partial)]


def _within_threads(
    emitter: Emitter, numbers: Sequence[int], states: Sequence[State], fold: Fold
) -> list[State]:
    """Combine the states that have one number; those that were loaded together as vectors first."""
    groups: dict[int, list[State]] = {}
    for number, state in zip(*_packed(emitter, numbers, states, fold), strict=True):
        groups.setdefault(number, []).append(state)
    return [_combined(groups[k], fold) for k in range(len(groups))]


def _packed(
    emitter: Emitter, numbers: Sequence[int], states: Sequence[State], fold: Fold
) -> tuple[Sequence[int], Sequence[State]]:
    """Return what is left to combine once the vectors whose lanes have the same numbers are."""
    vectors = emitter.builder.vectors([state[0] for state in states]) if fold.packs else []
    if not vectors:
        return numbers, states
    alike: dict[Sequence[int], list[State]] = {}
    place = 0
    for each in vectors:
        end = place + lanes_of(each.type)
        alike.setdefault(tuple(numbers[place:end]), []).append((each,))
        place = end
    combined = [_combined(group, fold)[0] for group in alike.values()]
    lanes = [(lane,) for each in combined for lane in emitter.builder.unpack(each)]
    return [number for key in alike for number in key], lanes


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


def _across_lanes(emitter: Emitter, state: State, lanes: Sequence[Level], fold: Fold) -> State:
    if fold.of_warp and math.prod(level.extent for level in lanes) == WARP_THREADS:
        return (fold.of_warp(state[0]),)
    for level in lanes:
        assert level.extent & (level.extent - 1) == 0, f"{level.extent} lanes hold an axis"
        distance = level.divisor
        while distance < level.divisor * level.extent:
            lane = i32(distance)
            other = tuple(shuffled(emitter.builder, value, "bfly", lane) for value in state)
            state = fold.combine(state, other)
            distance *= 2
    return state
