"""Waits for phases of mbarriers that the next phase may overtake.

A wait tells phases apart by their parity alone: who still waits for a phase when the next one is
complete waits for the one after that, for ever if it does not come.  Invariant: a phase is
reported only if none of those who arrived in it knows that a warp has seen the phase before it
complete, or has waited for a copy that the warp issued to another block after it had seen that.
Source: PTX ISA 9.7.13.15.16 "mbarrier.test_wait, try_wait": only the current phase and the one
immediately before it can be tested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.clocks import Channel
from astdsl.emulator.mbarriers import mbarriers_of

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.faults import DeviceFault
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["Overtaken"]

# A phase that no present one follows by two.
_NEVER = -9


class Overtaken:
    """Of each barrier, when each warp saw a phase complete last, and what its arrivals know."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self._m, self._clocks = m, clocks
        self._arrived = Channel(clocks, m.n_blocks)
        # By column, [blocks, warps of the cluster]: times of waits, the phases that they saw, and
        # the instructions.
        self._waited: dict[int, tuple[Array, Array, Array]] = {}

    def begin(self, rows: Array, columns: Array) -> None:
        """Note that barriers are made: nobody has waited there."""
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            self._of(column)[1][row] = _NEVER

    def arrive(self, lanes: Lanes, rows: Array, columns: Array) -> None:
        """Note who arrives, or lets an operation arrive."""
        self._arrived.give(self._clocks.warps(lanes), rows, columns)

    def announce(self, lanes: Lanes, rows: Array, columns: Array) -> None:
        """Note that lanes let an operation arrive, which others learn of: who waited has seen it.

        What waits for the operation comes after these waits, though it tells of no memory.
        """
        self.arrive(lanes, rows, columns)
        self.join(lanes)

    def join(self, lanes: Lanes) -> None:
        """Note that an operation begins when all of the lanes have issued it."""
        blocks, warps = self._clocks.warps(lanes)
        for _, seen, _ in self._waited.values():
            seen[blocks, self._clocks.actors(blocks, warps)] = _NEVER

    def wait(self, lanes: Lanes, rows: Array, columns: Array, times: Array) -> None:
        """Note when warps have seen that the phase before the present one is complete."""
        blocks, warps = self._clocks.warps(lanes)
        actors = self._clocks.actors(blocks, warps)
        phases = mbarriers_of(self._m).phases(rows, columns) - 1
        for column in np.unique(columns).tolist():
            mine = columns == column
            at, (when, seen, where) = (rows[mine], actors[mine]), self._of(column)
            when[at], seen[at], where[at] = times[mine], phases[mine], self._m.pc

    def check(self, lanes: Lanes, rows: Array, columns: Array, offsets: Array) -> None:
        """Fault if barriers have come two phases further than a warp has surely seen.

        They have by what lanes do at the present instruction, or did there.
        """
        phases = mbarriers_of(self._m).phases(rows, columns)
        for column in np.unique(columns).tolist():
            mine, (when, seen, where) = columns == column, self._of(column)
            some = rows[mine]
            known = self._arrived.before(some, column)[:, : -self._clocks.n_async]
            late = (seen[some] == phases[mine][:, None] - 2) & (when[some] > known)
            if late.any():
                at, actor = (int(k) for k in np.argwhere(late)[0])
                row, place = int(some[at]), self._m.place_text(int(where[some[at], actor]))
                who = f"{self._clocks.place_of(row, actor)} ({place})"
                barrier = int(offsets[mine][at]), int(phases[mine][at])
                raise self._fault(int(lanes.index[mine][at]), who, *barrier)

    def _fault(self, lane: int, who: str, offset: int, phase: int) -> DeviceFault:
        return self._m.fault(
            "E245",
            f"mbarrier at shared {offset:#x}: phase {phase - 1} is complete, and nothing orders "
            f"that after {who} has seen phase {phase - 2} complete, which it then never sees",
            lane,
            help="let a warp that waits arrive, or meet the one that does, before the next phase",
        )

    def _of(self, column: int) -> tuple[Array, Array, Array]:
        found = self._waited.get(column)
        if found is None:
            shape = self._m.n_blocks, self._clocks.n_actors - self._clocks.n_async
            found = np.zeros(shape, np.int32), np.full(shape, _NEVER), np.zeros(shape, np.int32)
            self._waited[column] = found
        return found
