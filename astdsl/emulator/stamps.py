"""Stamps of the last accesses of an allocation: when, and by which warp of which block.

A stamp is one number: the time, the block's number in the launch, the lane, whether an asynchronous
copy made it, and the warp; 0 is none.  Invariant: granules are no wider than any access that was
noted, so that every access covers whole ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.lanes import WARP_THREADS

if TYPE_CHECKING:
    from astdsl.emulator.scalars import Array

__all__ = [
    "BLOCK_SHIFT", "BY_COPY", "ELSEWHERE", "LANES", "LANE_SHIFT", "READ", "TIME_SHIFT", "WRITTEN",
    "Stamps", "block_of", "lane_of", "warp_of",
]  # fmt: skip

TIME_SHIFT = 36
BLOCK_SHIFT = 11
LANE_SHIFT = 6
LANES = WARP_THREADS - 1 << LANE_SHIFT
BY_COPY = 1 << 5
_BLOCKS = (1 << (TIME_SHIFT - BLOCK_SHIFT)) - 1
# The last write, the last read, and the last read by another cluster than that.
WRITTEN, READ, ELSEWHERE = range(3)
_WIDEST_SHIFT = 4


def block_of(stamps: Any) -> Any:
    """Return the numbers of the blocks that made stamps."""
    return stamps >> BLOCK_SHIFT & _BLOCKS


def warp_of(stamps: Any) -> Any:
    """Return the numbers of the warps, in their blocks, that made stamps."""
    return stamps & (BY_COPY - 1)


def lane_of(stamps: Any) -> Any:
    """Return the numbers of the lanes, in their warps, that made stamps."""
    return (stamps & LANES) >> LANE_SHIFT


class Stamps:
    """The stamps of one allocation, low <= address < high, by kind and granule."""

    def __init__(self, low: int, high: int) -> None:
        self._low = low >> _WIDEST_SHIFT << _WIDEST_SHIFT
        self._size = high - self._low
        self._shift = _WIDEST_SHIFT
        self.kinds: dict[int, Array] = {}

    @property
    def size_bytes(self) -> int:
        """Return what the stamps take."""
        return sum(each.nbytes for each in self.kinds.values())

    def needed_bytes(self, width: int) -> int:
        """Return what all kinds of stamps take if accesses of `width` bytes come."""
        granule = min(width, 1 << self._shift)
        return 3 * np.dtype(np.int64).itemsize * (self._size // granule + 1)

    def places(self, addresses: Array, width: int) -> Array:
        """Return the granules of accesses of `width` bytes, [n, granules of each]."""
        if width < 1 << self._shift:
            self._refine(width)
        first: Array = ((addresses - self._low) >> self._shift)[:, None]
        count = width >> self._shift
        return first if count == 1 else first + np.arange(count)

    def address(self, place: int) -> int:
        """Return the first address of a granule."""
        return self._low + (place << self._shift)

    def note_write(self, at: Array, made: Array) -> Array:
        """Stamp writes made [n] at granules [n, k]; return the stamps of those that won."""
        written = self._of(WRITTEN)
        written[at] = made[:, None]
        won: Array = written[at]
        return won

    def note_read(self, at: Array, made: Array, cluster: Callable[[Array], Array]) -> None:
        """Stamp reads; of those at one time the last is kept, and one of another cluster."""
        reads, made = self._of(READ), np.broadcast_to(made[:, None], at.shape)
        before = reads[at]
        reads[at] = made
        last = reads[at]
        for stamps in (before, made):
            moved = (stamps != last) & (stamps > 0)
            if moved.any():
                far = moved & (cluster(stamps) != cluster(last))
                self._of(ELSEWHERE)[at[far]] = stamps[far]

    def _of(self, kind: int) -> Array:
        found = self.kinds.get(kind)
        if found is None:
            count = (self._size >> self._shift) + 1
            found = self.kinds[kind] = np.zeros(count, np.int64)
        return found

    def _refine(self, width: int) -> None:
        """Make granules as narrow as an access that comes."""
        parts = (1 << self._shift) // width
        self._shift = width.bit_length() - 1
        self.kinds = {kind: np.repeat(stamps, parts) for kind, stamps in self.kinds.items()}
