"""The last accesses of tensor memory, and which of them an access is not ordered after.

Cells are known by column and group of 16 lanes, as in `TensorMemory`.  Invariant: an access is
reported only if no chain of barriers leads from the other to it.
Source: PTX ISA 9.7.16.6 "Memory consistency model for tcgen05 operations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.clocks import BY_MBARRIER
from astdsl.emulator.scalars import any_of

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.issues import Issue
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["TensorRaces"]

Where = tuple[Any, Any, Any]


class TensorRaces:
    """Stamps of loads and stores, and times of products and copies, for all cells of a machine."""

    def __init__(self, clocks: Clocks, shape: tuple[int, int, int], size: int) -> None:
        self._clocks = clocks
        self._size = size
        # What each warp knew at its last fence::after_thread_sync, itself always; and of all actors
        # of a cluster the time of their last fence::before_thread_sync.
        self._acquired = np.where(clocks.known > 0, clocks.known, 0)
        self._released = np.zeros((shape[0] // size, clocks.n_actors), np.int32)
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

    def done(self, where: Where, issue: Issue, *, writes: bool) -> None:
        """Note that an operation has used cells."""
        time = self._clocks.tick(issue)
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

    def unawaited(self, where: Where, known: Array) -> BoolArray:
        """Say which cells operations have used whose end is not known."""
        bad: BoolArray = self._used[where] > known[:, BY_MBARRIER, None, None]
        return bad

    # Fences between tcgen05 accesses and the synchronisation of threads (PTX ISA 9.7.16.6.4).

    def fence(self, rows: Array, warps: Array, *, after: bool) -> None:
        """Run tcgen05.fence of warps: after what they waited for, or before they signal."""
        if after:
            self._acquired[rows, warps] = self._clocks.known[rows, warps]
        else:
            actors = self._clocks.actors(rows, warps)
            self._released[rows // self._size, actors] = self._clocks.now

    def unfenced_access(self, where: Where, warps: Array) -> BoolArray:
        """Say which cells warps access without fences between that and an ordered use before."""
        rows = where[0].reshape(-1)
        acquired = self._acquired[rows, warps]
        bad: BoolArray = self._written[where] > acquired[:, -1][:, None, None]
        return bad | self._unfenced(self._stored[where], rows, warps, acquired)

    def unfenced_operation(self, where: Where, warps: Array, *, writes: bool) -> BoolArray:
        """Say which cells an operation of warps uses without fences after warps' accesses."""
        rows = where[0].reshape(-1)
        acquired = self._acquired[rows, warps]
        bad = self._unfenced(self._stored[where], rows, warps, acquired)
        if writes:
            bad |= self._unfenced(self._loaded[where], rows, warps, acquired)
        return bad

    def _unfenced(self, stamps: Array, rows: Array, warps: Array, acquired: Array) -> BoolArray:
        if not any_of(stamps):
            return np.zeros(stamps.shape, np.bool_)
        time, actor = np.divmod(stamps.reshape(len(stamps), -1), self._clocks.n_actors)
        released = self._released[rows // self._size]
        late = time > np.take_along_axis(acquired, actor, axis=1)
        late |= time > np.take_along_axis(released, actor, axis=1)
        late &= actor != self._clocks.actors(rows, warps)[:, None]
        bad: BoolArray = late.reshape(stamps.shape)
        return bad

    def accessed(self, place: tuple[int, int, int], *, stores: bool) -> str:
        """Return who accessed a cell last by a load, or a store, for reports."""
        clocks = self._clocks
        stamp = int((self._stored if stores else self._loaded)[place])
        time, actor = divmod(stamp, clocks.n_actors)
        return f"of {clocks.place_of(place[0], actor)}, {clocks.place_text(time)}"

    def last(self, place: tuple[int, int, int]) -> str:
        """Return which access of a cell was the last, for reports."""
        clocks = self._clocks
        newest = max(int(a[place]) for a in (self._stored, self._loaded)) // clocks.n_actors
        if self._used[place] > newest:
            what, who = clocks.issued(int(self._used[place]), place[0])
            return f"the {what} {who}"
        return self.accessed(place, stores=bool(self._stored[place] > self._loaded[place]))
