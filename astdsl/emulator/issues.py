"""Who issued an asynchronous operation, and where: what reports of it say when it is done, too.

Invariant: it holds nothing of the operation but these few numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from astdsl.emulator.scalars import all_of

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["Issue"]


class _Box(NamedTuple):
    """By box of an operation: the block that it reaches, its first byte there, and who issued it.

    Without first bytes, all of a block's are one.
    """

    rows: Array
    starts: Array | None
    issuers: Array
    warps: Array


class Issue(NamedTuple):
    """What was issued where, by a warp of each block that it reaches, or by others in `boxes`."""

    what: str
    place: str
    warp: int
    boxes: _Box | None = None

    @classmethod
    def of(
        cls, m: Machine, what: str, lanes: Lanes, rows: Array, starts: Array | None = None
    ) -> Issue:
        """Note the current instruction, which lanes issue for the blocks `rows`, one a lane."""
        warps, issuers = m.thread_of[lanes.sel] >> 5, m.block_of[lanes.sel]
        alike = all_of(warps == warps[0]) and all_of(issuers == rows)
        boxes = None if alike else _Box(rows, starts, issuers, warps)
        return cls(what, m.place_text(m.pc), int(warps[0]), boxes)

    def by(self, row: int, offset: int | None = None) -> tuple[int, int]:
        """Return the block and the warp in it that issued what reaches a byte of block `row`."""
        if self.boxes is None:
            return row, self.warp
        mine = self.boxes.rows == row
        if self.boxes.starts is not None and offset is not None:
            before = mine & (self.boxes.starts <= offset)
            mine = before & (self.boxes.starts == self.boxes.starts[before].max(initial=-1))
        at = int(np.argmax(mine))
        return int(self.boxes.issuers[at]), int(self.boxes.warps[at])

    def text(self, m: Machine, row: int, offset: int | None = None) -> str:
        """Return who issued what reaches a byte of block `row`, and where."""
        return f"of {m.warp_text(*self.by(row, offset))}, {self.place}"
