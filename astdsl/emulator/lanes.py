"""A set of lanes: the threads of all blocks of a batch that execute an instruction together.

Invariant: lane = thread * n_blocks + block, indices ascend without repeats, and `sel` is a slice
whenever the lanes are contiguous (so that warps and warpgroups of all blocks are slices).
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from astdsl.emulator.scalars import BoolArray

Index = NDArray[np.int64]
WARP_THREADS = 32
WARPGROUP_WARPS = 4
WARPGROUP_THREADS = WARPGROUP_WARPS * WARP_THREADS


class Lanes:
    """An immutable ascending set of lane numbers; `sel` indexes any array with one row a lane."""

    __slots__ = ("_index", "contiguous", "n", "sel")

    sel: slice | Index
    n: int
    contiguous: bool
    _index: Index | None

    @classmethod
    def span(cls, start: int, stop: int) -> Lanes:
        """Make the lanes start..stop-1."""
        lanes = cls.__new__(cls)
        lanes.sel = slice(start, stop)
        lanes.n = stop - start
        lanes.contiguous = True
        lanes._index = None
        return lanes

    @classmethod
    def of(cls, index: Index) -> Lanes:
        """Make lanes of an ascending index array."""
        n = len(index)
        if n and int(index[-1]) - int(index[0]) + 1 == n:
            return cls.span(int(index[0]), int(index[-1]) + 1)
        if not n:
            return NONE
        lanes = cls.__new__(cls)
        lanes.sel = index
        lanes.n = n
        lanes.contiguous = False
        lanes._index = index
        return lanes

    @classmethod
    def listed(cls, index: Index) -> Lanes:
        """Make a list of lanes in any order, some of them perhaps repeated: for reading only."""
        lanes = cls.__new__(cls)
        lanes.sel, lanes.n, lanes.contiguous, lanes._index = index, len(index), False, index
        return lanes

    @property
    def index(self) -> Index:
        """Return the lane numbers as an array."""
        if self._index is None:
            span = cast(slice, self.sel)
            self._index = np.arange(span.start, span.stop, dtype=np.int64)
        return self._index

    def first(self, mask: BoolArray) -> int:
        """Return the first lane for which `mask` is true; a mask of length 1 is of all lanes."""
        return int(self.index[np.argmax(np.broadcast_to(mask, self.n))])

    def where(self, mask: BoolArray) -> Lanes:
        """Return the lanes for which `mask` (one a lane, in order) is true."""
        if self.contiguous:
            start = cast(slice, self.sel).start
            return Lanes.of(np.asarray(mask).nonzero()[0] + start)
        return Lanes.of(self.index[mask])

    def union(self, other: Lanes) -> Lanes:
        """Return the lanes of both sets, which must be disjoint."""
        if not self.n:
            return other
        if not other.n:
            return self
        if self.contiguous and other.contiguous:
            first, second = sorted((cast(slice, each.sel) for each in (self, other)), key=_start)
            if first.stop == second.start:
                return Lanes.span(first.start, second.stop)
        merged = np.concatenate((self.index, other.index))
        merged.sort()
        return Lanes.of(merged)

    def minus(self, other: Lanes) -> Lanes:
        """Return the lanes that `other`, a subset, does not have."""
        if other.n == self.n:
            return NONE
        if self.contiguous and other.contiguous and other.n:
            whole, part = cast(slice, self.sel), cast(slice, other.sel)
            if part.start == whole.start:
                return Lanes.span(part.stop, whole.stop)
            if part.stop == whole.stop:
                return Lanes.span(whole.start, part.start)
        index = self.index
        return Lanes.of(np.delete(index, np.searchsorted(index, other.index)))


def _start(span: slice) -> int:
    return int(span.start)


NONE = Lanes.span(0, 0)
