"""Words of shared memory that `cp.async` fills, until the thread that issued it has waited.

Invariant: a word is reported only if its copy is in flight for the thread that issued it, whenever
the copy happens. Source: PTX ISA 9.7.9.25.3 "cp.async" (writes are seen after `cp.async.wait_group`
or `cp.async.mbarrier.arrive` of the executing thread).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from astdsl.emulator.issues import Issue
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["Filling"]

_WORD_BYTES = 4
_CHUNK_WORDS = 4


class Filling:
    """Which copy fills each word, by 16-byte chunk: [blocks, chunks, words]."""

    def __init__(self, shape: tuple[int, int]) -> None:
        # The number of an issue and 1; 0 where no copy is in flight.
        self._by = np.zeros((*shape, _CHUNK_WORDS), np.int32)
        self._issues: list[Issue] = []

    def begin(self, rows: Array, offsets: Array, size_bytes: int, issue: Issue) -> None:
        """Note that lanes fill `size_bytes` at each place."""
        self._issues.append(issue)
        self._words[self._place(rows, offsets, size_bytes)] = len(self._issues)

    def end(self, rows: Array, offsets: Array, size_bytes: int) -> None:
        """Note that those who fill these places have waited."""
        self._words[self._place(rows, offsets, size_bytes)] = 0

    def reached(self, rows: Array, offsets: Array, size_bytes: int) -> BoolArray:
        """Say which accesses of `size_bytes` touch a word in flight."""
        words = self._words[self._place(rows, offsets, size_bytes)]
        found: BoolArray = np.logical_or.reduce(words, axis=-1)
        return found

    def reached_chunks(self, index: Any) -> BoolArray:
        """Say which chunks have a word in flight."""
        found: BoolArray = self._by[index].any(axis=-1)
        return found

    def first(self, row: int, offset: int, size_bytes: int) -> tuple[int, Issue]:
        """Return the first word in flight of those at a place: its offset, and what fills it."""
        first = offset // _WORD_BYTES
        words = self._words[row, first : first + max(size_bytes // _WORD_BYTES, 1)]
        at = int(np.argmax(words > 0))
        return (first + at) * _WORD_BYTES, self._issues[int(words[at]) - 1]

    @property
    def _words(self) -> Array:
        return self._by.reshape(len(self._by), -1)

    def _place(self, rows: Array, offsets: Array, size_bytes: int) -> tuple[Array, Array]:
        first = (offsets // _WORD_BYTES)[..., None]
        return rows[:, None], first + np.arange(max(size_bytes // _WORD_BYTES, 1))
