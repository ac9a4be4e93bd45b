"""The threads that run a statement together: a block, one of its warpgroups, or one warp.

Invariant: they are neighbours, numbered from 0; the first one does what they do once; they meet at
a barrier of their own. Named barrier 0 is the block's, 1 + k is that of warpgroup k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from astdsl.lowering.nvptx.asm import barriers, warp
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.values import LV, i32
from astdsl.lowering.target import Target

_FIRST_WARPGROUP_BARRIER = 1
# A segment of 32 lanes, nothing clamped below the last (PTX ISA 9.7.9.6).
_WHOLE_WARP = 0x1F


@dataclass(frozen=True, slots=True)
class Crew:
    """Some threads: this one's number among them, how many they are, and how they meet.

    `number` is that of the warpgroup in its block, or of the warp in its warpgroup; None where
    there is only one.
    """

    thread: LV
    threads: int
    meet: Callable[[], None]
    number: LV | None = None


def whole_block(builder: Builder, threads: int) -> Crew:
    """Return the crew of a block."""
    thread = builder.special_register("tid.x")
    return Crew(thread, threads, lambda: _meet_at(builder, 0, threads))


def _meet_at(builder: Builder, barrier: int, threads: int) -> None:
    builder.asm(barriers.bar_sync(barrier, threads))


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
    row = barriers.bar_sync_of(groups, _FIRST_WARPGROUP_BARRIER, threads)

    def meet() -> None:
        builder.asm(row, number)

    return Crew(thread, threads, meet, number)


def known_warpgroup(builder: Builder, crew: Crew, number: int) -> Crew:
    """Return the crew where it is known to be warpgroup `number`: its barrier is a constant."""
    barrier = _FIRST_WARPGROUP_BARRIER + number
    meet = crew.meet if crew.number is None else lambda: _meet_at(builder, barrier, crew.threads)
    return Crew(crew.thread, crew.threads, meet, crew.number)


def own_warp(builder: Builder, warpgroup: Crew, target: Target) -> Crew:
    """Return the crew of the warp of this thread; `warpgroup` is its warpgroup's."""
    lanes = i32(target.threads_per_warp)
    number = _of_first_lane(builder, builder.binary("udiv", warpgroup.thread, lanes))
    lane = builder.binary("urem", warpgroup.thread, lanes)

    def meet() -> None:
        builder.asm(barriers.WARP_SYNC, i32(warp.FULL_MASK))

    return Crew(lane, target.threads_per_warp, meet, number)


def _of_first_lane(builder: Builder, word: LV) -> LV:
    members, lane = i32(warp.FULL_MASK), i32(0)
    (result,) = builder.asm(warp.shuffle("idx"), word, lane, i32(_WHOLE_WARP), members)
    return result
