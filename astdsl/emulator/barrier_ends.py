"""mbarriers that end (`mbarrier.inval`) while others may still come to them.

Invariant: a use is reported only if no chain of barriers leads from it to the end.
Source: PTX ISA 9.7.13.15.10 "mbarrier.inval", 9.7.13.15.3 "Lifecycle of the mbarrier object".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["BarrierEnds"]


class BarrierEnds:
    """When each mbarrier was last used by each warp."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self._m, self._clocks = m, clocks
        self._last = np.zeros((m.n_blocks, 0, clocks.n_actors), np.int32)

    @classmethod
    def of(cls, m: Machine, clocks: Clocks) -> BarrierEnds | None:
        """Return what watches the mbarriers of a machine, None where none ends before its block."""
        return cls(m, clocks) if m.program.ends_mbarriers else None

    def note(self, lanes: Lanes, rows: Array, columns: Array) -> None:
        """Note that lanes arrive at mbarriers, or see their phases."""
        need = int(columns.max()) + 1 - self._last.shape[1]
        if need > 0:
            self._last = np.pad(self._last, ((0, 0), (0, need), (0, 0)))
        self._last[rows, columns, self._clocks.actors(*self._clocks.warps(lanes))] = (
            self._clocks.tick()
        )

    def check(self, lanes: Lanes, rows: Array, columns: Array, offsets: Array) -> None:
        """Fault if lanes end mbarriers that others use in no order before that."""
        known = (columns < self._last.shape[1]) & (columns >= 0)
        last = self._last[rows[known], columns[known]]
        late = last > self._clocks.known[self._clocks.warps(lanes)][known]
        if late.any():
            at, actor = (int(k) for k in np.argwhere(late)[0])
            row, offset = int(rows[known][at]), int(offsets[known][at])
            raise self._m.fault(
                "E232",
                f"the mbarrier at shared {offset:#x} ends, and nothing orders its use by "
                f"{self._clocks.place_of(row, actor)} "
                f"({self._clocks.place_text(int(last[at, actor]))}) before that",
                int(lanes.index[np.flatnonzero(known)[at]]),
                help="put a barrier between the last wait and `mbarrier.inval`",
            )
