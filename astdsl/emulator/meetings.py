"""When the lanes of each warp accessed memory last, signalled last, and came together last.

What one lane signals tells of its own past, and of the other lanes' only up to when they met.
Invariant: a lane that has signalled anything since its last access counts as told of.
Source: PTX ISA 9.7.13.2 "bar.warp.sync" (it orders memory accesses among the threads that take
part), 8.9.3 "Synchronizes-with".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.lanes import WARP_THREADS

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks, Who
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["Meetings"]


class Meetings:
    """The times, by one set of clocks, of all lanes of a machine."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self._m, self._clocks = m, clocks
        # Of warps, [blocks, warps].
        self.met = np.zeros(clocks.known.shape[:2], np.int32)
        self._accessed = np.zeros(m.n_lanes, np.int32)
        self._signalled = np.zeros(m.n_lanes, np.int32)

    def access(self, lanes: Lanes) -> None:
        """Note that lanes access memory now."""
        self._accessed[lanes.sel] = self._clocks.now

    def meet(self, who: Who) -> None:
        """Note that the lanes of warps have come together: their accesses are ordered."""
        self.met[who] = self._clocks.now

    def meet_whole(self, who: Who) -> None:
        """Note the same for those warps all of whose lanes are listed."""
        counts = np.zeros(self.met.shape, np.int64)
        np.add.at(counts, who, 1)
        self.met[counts >= WARP_THREADS] = self._clocks.now

    def untold(self, lanes: Lanes) -> Array:
        """Return up to when the past of each warp is told by lanes that signal, [blocks, warps]."""
        m = self._m
        own = np.full(self.met.shape, self._clocks.now, np.int32)
        self._signalled[lanes.sel] = self._clocks.now
        late = self._accessed > self._signalled
        rows, warps = self._clocks.warps_of(m.block_of[late], m.thread_of[late])
        behind = self._accessed[late] > self.met[rows, warps]
        rows, warps = rows[behind], warps[behind]
        own[rows, warps] = self.met[rows, warps]
        return own
