"""The last accesses of tensor memory, and which of them an access is not ordered after.

Cells are known by column and group of 16 lanes, as in `TensorMemory`.  Invariant: an access is
reported only if no chain of barriers leads from the other to it.
Source: PTX ISA 9.7.16.6 "Memory consistency model for tcgen05 operations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["TensorRaces"]

Where = tuple[Any, Any, Any]


class TensorRaces:
    """Stamps of loads and stores, and times of products and copies, for all cells of a machine."""

    def __init__(self, clocks: Clocks, shape: tuple[int, int, int]) -> None:
        self._clocks = clocks
        self._stored = np.zeros(shape, np.int32)
        self._loaded = np.zeros(shape, np.int32)
        # When an asynchronous operation has last used a cell, and last written it.
        self._used = np.zeros(shape, np.int32)
        self._written = np.zeros(shape, np.int32)

    def note(self, where: Where, warps: Array, *, stores: bool) -> None:
        """Note an access that warps make: `where` is [warps, groups, columns]."""
        self._clocks.tick()
        stamps = self._stored if stores else self._loaded
        rows = where[0].reshape(-1)
        stamps[where] = self._clocks.stamps(rows, warps)[:, None, None]

    def done(self, where: Where, place: str, *, writes: bool) -> None:
        """Note that an operation issued at `place` has used cells."""
        time = self._clocks.tick(place)
        self._used[where] = time
        if writes:
            self._written[where] = time
            self._stored[where] = 0

    def unordered_access(self, where: Where, warps: Array, *, stores: bool) -> BoolArray:
        """Say which cells a warp accesses without having waited for who used them before."""
        rows = where[0].reshape(-1)
        known = self._clocks.known[rows, warps]
        latest = known[:, -1][:, None, None]
        bad: BoolArray = (self._used if stores else self._written)[where] > latest
        return bad | self._clocks.unordered(self._stored[where], known)

    def unordered_operation(self, where: Where, known: Array, *, writes: bool) -> BoolArray:
        """Say which cells an operation uses without a barrier after the warps' accesses."""
        bad = self._clocks.unordered(self._stored[where], known)
        if writes:
            bad = bad | self._clocks.unordered(self._loaded[where], known)
        return bad

    def place_text(self, place: tuple[int, int, int]) -> str:
        """Return where the last access of a cell was issued, for reports."""
        stamps = (int(a[place]) // self._clocks.n_actors for a in (self._stored, self._loaded))
        return self._clocks.place_text(max(int(self._used[place]), *stamps))
