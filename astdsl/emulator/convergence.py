"""Warpgroups that execute an instruction together, and waiting until all threads are there.

Invariant: a `.sync.aligned` instruction of a warpgroup runs once for all its 128 threads; warps
that come early wait for the others.  Source: PTX ISA 9.7.15.5, ".sync", ".aligned".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator import lanes as lane_sets
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.machine import Condition

if TYPE_CHECKING:
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["WARPGROUP_THREADS", "Gathering", "Warpgroup", "warpgroups"]

WARPGROUP_THREADS = 128


@dataclass(frozen=True, slots=True, eq=False)
class Warpgroup:
    """Warpgroup `number` of the blocks `rows`: its lanes run thread by thread, block by block."""

    number: int
    rows: Array
    lanes: Lanes


def warpgroups(m: Machine, lanes: Lanes) -> list[Warpgroup]:
    """Split lanes that hold whole warpgroups."""
    width = WARPGROUP_THREADS * m.n_blocks
    first = int(lanes.index[0]) if not lanes.contiguous else lanes.sel.start  # type: ignore[union-attr]
    every = np.arange(m.n_blocks)
    if lanes.contiguous and lanes.n % width == 0 and first % width == 0:
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


class _Waiting:
    """The lanes that wait at each instruction for the rest of their warpgroup."""

    def __init__(self, m: Machine) -> None:
        self._n_lanes = m.n_lanes
        self._here: dict[int, BoolArray] = {}

    def here(self, pc: int) -> BoolArray:
        """Return the mask of the lanes that have come to an instruction."""
        if pc not in self._here:
            self._here[pc] = np.zeros(self._n_lanes, np.bool_)
        return self._here[pc]


class Gathering:
    """Lets a warpgroup's threads go on only together; made once for each instruction."""

    def __init__(self) -> None:
        self._wait = Condition(self._ready, self._describe, again=True)

    def complete(self, m: Machine, lanes: Lanes) -> Lanes:
        """Return the lanes whose warpgroups are complete; the others wait."""
        width = WARPGROUP_THREADS * m.n_blocks
        if lanes.contiguous and lanes.n % width == 0 and int(lanes.sel.start) % width == 0:  # type: ignore[union-attr]
            return lanes
        whole = self._counts(m, lanes.index)[self._key(m, lanes.index)] == WARPGROUP_THREADS
        if whole.all():
            return lanes
        here = m.state(_Waiting).here(m.pc)
        here[lanes.index[~whole]] = True
        m.block(lanes.where(~whole), self._wait)
        return lanes.where(whole) if whole.any() else lane_sets.NONE

    def _ready(self, m: Machine, lanes: Lanes) -> BoolArray:
        here = m.state(_Waiting).here(m.pc)
        counts = self._counts(m, np.flatnonzero(here))
        ready: BoolArray = counts[self._key(m, lanes.index)] == WARPGROUP_THREADS
        here[lanes.index[ready]] = False
        return ready

    def _describe(self, m: Machine, lanes: Lanes) -> str:
        return "waits for the other warps of its warpgroup, which must execute the same instruction"

    def _key(self, m: Machine, index: Array) -> Array:
        key: Array = m.thread_of[index] // WARPGROUP_THREADS * m.n_blocks + m.block_of[index]
        return key

    def _counts(self, m: Machine, index: Array) -> Array:
        size = -(-m.n_threads // WARPGROUP_THREADS) * m.n_blocks
        return np.bincount(self._key(m, index), minlength=size)
