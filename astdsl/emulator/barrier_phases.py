"""Phases of the block's barriers that mix with each other.

Invariant: who arrives at a barrier knows that the phase before has completed, by having waited
there or through other barriers; else its arrival may count in that phase, and let others go on too
early.
Source: PTX ISA 9.7.13.1 ("the barrier is reinitialised so that it can be immediately reused").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.barriers import N_BARRIERS
from astdsl.emulator.scalars import first_of

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["BarrierPhases"]


class BarrierPhases:
    """When each barrier of each block completed a phase last, and which warp came last."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self._m, self._clocks = m, clocks
        self._times = np.zeros((m.n_blocks, N_BARRIERS), np.int32)
        self._actors = np.zeros((m.n_blocks, N_BARRIERS), np.int32)

    def arrive(self, lanes: Lanes, numbers: Array, completed: Array | bool) -> None:
        """Check and note that lanes arrive; where they completed a phase, it ends now."""
        clocks = self._clocks
        rows, warps = clocks.warps(lanes)
        at = rows, np.broadcast_to(numbers, lanes.n)
        actors = self._actors[at]
        own = clocks.actors(rows, warps)
        late = self._times[at] > clocks.known[rows, warps, actors]
        if late.any():
            first, row, number, actor = first_of(late, *at, actors)
            who = clocks.place_of(row, actor)
            place = clocks.place_text(int(self._times[row, number]))
            raise self._m.fault(
                "E213",
                f"an arrival at barrier {number}, and nothing orders it after the phase there "
                f"which {who} completed ({place}): it may count in that one",
                int(lanes.index[first]),
                help="let other threads use another barrier, or wait for the phase before",
            )
        ends = np.broadcast_to(completed, lanes.n)
        if ends.any():
            self._times[rows[ends], at[1][ends]] = clocks.tick()
            self._actors[rows[ends], at[1][ends]] = own[ends]
