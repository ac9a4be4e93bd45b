"""Warpgroups that execute an instruction together, and waiting until all threads are there.

Invariant: a `.sync.aligned` instruction of a warpgroup runs once for all its 128 threads; warps
that come early wait for the others.  Source: PTX ISA 9.7.15.5, ".sync", ".aligned".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from astdsl.emulator import lanes as lane_sets
from astdsl.emulator.lanes import WARP_THREADS, WARPGROUP_THREADS, Lanes
from astdsl.emulator.machine import Condition
from astdsl.emulator.scalars import all_of, any_of

if TYPE_CHECKING:
    from astdsl.emulator.isa import Control
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.registers import Place
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = [
    "Gathering", "Warpgroup", "first_threads", "is_whole", "require_converged", "together",
    "warpgroups", "warps_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Warpgroup:
    """Warpgroup `number` of the blocks `rows`: its lanes run thread by thread, block by block."""

    number: int
    rows: Array
    lanes: Lanes


def warpgroups(m: Machine, lanes: Lanes) -> list[Warpgroup]:
    """Split lanes that hold whole warpgroups."""
    width = WARPGROUP_THREADS * m.n_blocks
    if is_whole(m, lanes, WARPGROUP_THREADS):
        first, every = cast(slice, lanes.sel).start, np.arange(m.n_blocks)
        starts = range(first, first + lanes.n, width)
        return [Warpgroup(s // width, every, Lanes.span(s, s + width)) for s in starts]
    index = lanes.index
    numbers = m.thread_of[index] // WARPGROUP_THREADS
    found = []
    for number in np.unique(numbers):
        mine = index[numbers == number]
        rows = np.unique(m.block_of[mine])
        found.append(Warpgroup(int(number), rows, Lanes.of(mine)))
    return found


class Gathering:
    """Lets `width` neighbouring threads go on only together; made once for each instruction.

    With `of_live` those that have ended, or that the block has not, need not be there.
    """

    def __init__(self, width: int, *, of_live: bool = False) -> None:
        self._width = width
        self._of_live = of_live
        self._wait = Condition(self._ready, self._describe, again=True)

    def complete(self, m: Machine, lanes: Lanes) -> Lanes:
        """Return the lanes whose warp (or warpgroup) is complete; the others wait."""
        if is_whole(m, lanes, self._width):
            return lanes
        whole = self._ready(m, lanes)
        if all_of(whole):
            return lanes
        _require_agreed(m, lanes, whole)
        require_converged(m, lanes)
        # Blocked lanes at one instruction are one group, so `_ready` sees all who have come.
        m.block(lanes.where(~whole), self._wait)
        return lanes.where(whole) if any_of(whole) else lane_sets.NONE

    def _ready(self, m: Machine, lanes: Lanes) -> BoolArray:
        if is_whole(m, lanes, self._width):
            return np.ones(lanes.n, np.bool_)
        every = m.thread_of // self._width * m.n_blocks + m.block_of
        key = every[lanes.sel]
        wanted = np.bincount(every, m.live) if self._of_live else np.full(len(every), self._width)
        ready: BoolArray = np.bincount(key)[key] == wanted[key]
        return ready

    def _describe(self, m: Machine, lanes: Lanes) -> str:
        return f"waits for the others of its {self._width} threads to execute this instruction too"


def together(body: Control, gathering: Gathering | None = None) -> Control:
    """Return a step that runs `body` on whole warps, or what else is gathered (`.aligned`)."""
    gathering = gathering or Gathering(WARP_THREADS, of_live=True)

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        whole = gathering.complete(m, lanes)
        going = body(m, whole) if whole.n else None
        return whole if going is None else going

    return execute


def _require_agreed(m: Machine, lanes: Lanes, whole: BoolArray) -> None:
    """Fault if lanes skip an `.aligned` instruction by its predicate, and others execute it.

    It is undefined where lanes of a warp evaluate the condition differently (PTX ISA
    9.7.13.1); those that have ended evaluate nothing, and are not waited for.
    """
    every = m.group.lanes
    if every.n == lanes.n or m.guard is None:
        return
    skipping = np.zeros(m.n_blocks * m.n_warps, np.bool_)
    idle = every.minus(lanes).sel
    skipping[m.block_of[idle] * m.n_warps + m.thread_of[idle] // WARP_THREADS] = True
    mine = m.block_of[lanes.sel] * m.n_warps + m.thread_of[lanes.sel] // WARP_THREADS
    split = skipping[mine] & ~whole
    if any_of(split):
        lane = lanes.first(split)
        raise m.fault(
            "E214",
            f"some lanes of {m.lane_text(lane)} execute this `.aligned` instruction, and others "
            "skip it by its predicate",
            lane,
        )


def require_converged(m: Machine, lanes: Lanes) -> None:
    """Fault if other lanes of a warp wait at another `.aligned` instruction than these.

    A warp executes such an instruction with all of its lanes (PTX ISA 9.7.13.1, ".aligned").
    """
    if is_whole(m, lanes, WARP_THREADS) or m.guard is None:
        return
    here = m.thread_of[lanes.sel] // WARP_THREADS * m.n_blocks + m.block_of[lanes.sel]
    for pc, others in m.waiting():
        if pc == m.pc or not m.program.is_aligned(pc):
            continue
        there = m.thread_of[others.sel] // WARP_THREADS * m.n_blocks + m.block_of[others.sel]
        split = np.isin(here, there)
        if any_of(split):
            lane = int(lanes.index[np.argmax(split)])
            raise m.fault(
                "E214",
                f"lanes of {m.lane_text(lane)} are divided between two `.aligned` instructions: "
                f"this one, and {m.program.instructions[pc].opcode} ({m.place_text(pc)})",
                lane,
            )


def is_whole(m: Machine, lanes: Lanes, width: int) -> bool:
    """Say whether lanes are, of all blocks, `width` neighbouring threads or a multiple."""
    if not lanes.contiguous:
        return False
    step = width * m.n_blocks
    return lanes.n % step == 0 and cast(slice, lanes.sel).start % step == 0


def first_threads(m: Machine, lanes: Lanes, places: Iterable[Place]) -> Lanes | None:
    """Return one thread's lanes of all blocks, if all threads hold the same in some registers.

    None where they do not, where blocks have different threads here, or only one each.
    """
    n = m.n_blocks
    if not lanes.contiguous or lanes.n == n or not is_whole(m, lanes, 1):
        return None
    for bits, row in places:
        values = m.registers.banks[bits][row, lanes.sel].reshape(-1, n)
        if any_of(values[1:] != values[0]):
            return None
    start = cast(slice, lanes.sel).start
    return Lanes.span(start, start + n)


def warps_of(m: Machine, lanes: Lanes) -> tuple[Array, Array]:
    """Return block and number of each warp that has some of the lanes, block by block."""
    if is_whole(m, lanes, WARP_THREADS):
        first = cast(slice, lanes.sel).start // (WARP_THREADS * m.n_blocks)
        count = lanes.n // (WARP_THREADS * m.n_blocks)
        numbers = np.arange(first, first + count)
        return np.repeat(np.arange(m.n_blocks), count), np.tile(numbers, m.n_blocks)
    found = np.unique(m.block_of[lanes.sel] * m.n_warps + m.thread_of[lanes.sel] // WARP_THREADS)
    return found // m.n_warps, found % m.n_warps
