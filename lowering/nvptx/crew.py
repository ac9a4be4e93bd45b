"""The threads that run a statement together: a block, one of its warpgroups, or one warp.

Invariant: they are neighbours, numbered from 0; the first one does what they do once; they meet at
a barrier of their own. Named barrier 0 is the block's, 1 + k is that of warpgroup k.

The first one is elected (PTX ISA 9.7.13.15: the same one each time): of a branch that one lane
takes by its number, ptxas does not know that one lane takes it, and it writes a loop over lanes
around each asynchronous instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from astdsl.lowering.layout.registers import WARP_THREADS
from astdsl.lowering.nvptx.asm import warp
from astdsl.lowering.nvptx.asm.barriers import WARP_SYNC, bar_and, bar_sync, of_own_group
from astdsl.lowering.nvptx.asm.row import AsmRow
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.values import LV, i32
from astdsl.lowering.target import Target

_FIRST_WARPGROUP_BARRIER = 1
# A segment of 32 lanes, nothing clamped below the last (PTX ISA 9.7.9.6).
_WHOLE_WARP = 0x1F
# What makes the rows of a named barrier: to meet, and to agree.
_ROWS = (bar_sync, bar_and)


@dataclass(frozen=True, slots=True)
class Crew:
    """Some threads: this one's number among them, how many they are, and how they meet.

    `agree` meets too, and tells each whether a condition holds for all of them. `is_first` is
    whether this one does what they do once. `number` is that of the warpgroup in its block, or of
    the warp in its warpgroup; None where there is only one.
    """

    thread: LV
    threads: int
    is_first: LV
    meet: Callable[[], None]
    agree: Callable[[LV], LV]
    number: LV | None = None


def whole_block(builder: Builder, threads: int) -> Crew:
    """Return the crew of a block."""
    thread = builder.special_register("tid.x")
    is_first = _is_first(builder, thread)
    return Crew(thread, threads, is_first, *_at_named(builder, 0, threads))


def _at(
    builder: Builder, rows: Iterable[AsmRow], *own: LV
) -> tuple[Callable[[], None], Callable[[LV], LV]]:
    """Return how threads meet at a barrier, and agree there."""
    sync, both = rows

    def meet() -> None:
        builder.asm(sync, *own)

    def agree(mine: LV) -> LV:
        (result,) = builder.asm(both, *own, mine)
        return result

    return meet, agree


def _at_named(
    builder: Builder, barrier: int, threads: int
) -> tuple[Callable[[], None], Callable[[LV], LV]]:
    return _at(builder, (row(barrier, threads) for row in _ROWS))


def own_warpgroup(builder: Builder, block: Crew, target: Target) -> Crew:
    """Return the crew of the warpgroup of this thread; `block` is its block's.

    Its number comes from the first lane, so that branches on it are uniform to the assembler.
    """
    threads = target.threads_per_warpgroup
    if block.threads == threads:
        return block
    number = _of_first_lane(builder, builder.binary("udiv", block.thread, i32(threads)))
    thread = builder.binary("urem", block.thread, i32(threads))

    groups = block.threads // threads
    rows = (of_own_group(row, groups, _FIRST_WARPGROUP_BARRIER, threads) for row in _ROWS)
    return Crew(thread, threads, _is_first(builder, thread), *_at(builder, rows, number), number)


def warpgroup_among(builder: Builder, crew: Crew, target: Target) -> LV:
    """Return which of the warpgroups of a crew this thread's is, from its warp's first lane.

    What is computed from it is the same in a warp to the assembler, as descriptors have to be.
    """
    threads = target.threads_per_warpgroup
    if crew.threads <= threads:
        return i32(0)
    return _of_first_lane(builder, builder.binary("udiv", crew.thread, i32(threads)))


def known_warpgroup(builder: Builder, crew: Crew, number: int) -> Crew:
    """Return the crew where it is known to be warpgroup `number`: its barrier is a constant."""
    if crew.number is None:
        return crew
    meet, agree = _at_named(builder, _FIRST_WARPGROUP_BARRIER + number, crew.threads)
    return replace(crew, meet=meet, agree=agree)


def own_warp(builder: Builder, warpgroup: Crew, target: Target) -> Crew:
    """Return the crew of the warp of this thread; `warpgroup` is its warpgroup's."""
    lanes = i32(target.threads_per_warp)
    number = _of_first_lane(builder, builder.binary("udiv", warpgroup.thread, lanes))
    lane = builder.binary("urem", warpgroup.thread, lanes)

    def meet() -> None:
        builder.asm(WARP_SYNC, i32(warp.FULL_MASK))

    def agree(mine: LV) -> LV:
        (result,) = builder.asm(warp.vote("all"), mine, i32(warp.FULL_MASK))
        return result

    return Crew(lane, target.threads_per_warp, _elected(builder), meet, agree, number)


def _is_first(builder: Builder, thread: LV) -> LV:
    """Return whether this is the thread of the first warp that is elected; all warps are here."""
    in_first_warp = builder.icmp("ult", thread, i32(WARP_THREADS))
    return builder.and_(in_first_warp, _elected(builder))


def _elected(builder: Builder) -> LV:
    (result,) = builder.asm(warp.ELECT, i32(warp.FULL_MASK))
    return result


def _of_first_lane(builder: Builder, word: LV) -> LV:
    members, lane = i32(warp.FULL_MASK), i32(0)
    (result,) = builder.asm(warp.shuffle("idx"), word, lane, i32(_WHOLE_WARP), members)
    return result
