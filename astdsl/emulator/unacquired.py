"""Copies that have come, of which nobody has learnt yet: in programs whose waits may be relaxed.

A relaxed wait sees that a phase is complete, and orders nothing. Invariant: a chunk is reported
only if no wait for the phase that tells of it acquires, and no fence follows.
Source: PTX ISA 9.7.13.15.16 "mbarrier.test_wait, try_wait", 8.8 "Release and acquire patterns".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from astdsl.emulator.issues import Issue
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["Unacquired"]


class Unacquired:
    """Of each chunk of shared memory, which mbarrier tells of the copy that filled it last."""

    def __init__(self, shape: tuple[int, int]) -> None:
        # The barrier's column and 1; 0 for what is known.
        self._told = np.zeros(shape, np.int16)
        self._filled: list[Any] = []
        # Which of the issues filled a chunk last.
        self._by = np.zeros(shape, np.int32)
        self._issues: list[Issue] = []

    @classmethod
    def of(cls, m: Machine, shape: tuple[int, int]) -> Unacquired | None:
        """Return what watches the copies of a machine, None where every wait acquires."""
        return cls(shape) if m.program.waits_relaxed else None

    def fill(self, index: Any, issue: Issue) -> None:
        """Note that an operation has filled chunks, which a barrier will tell."""
        self._told[index] = 0
        self._filled.append(index)
        self._by[index] = len(self._issues)
        self._issues.append(issue)

    def issue(self, row: int, chunk: int) -> Issue:
        """Return what filled a chunk last."""
        return self._issues[int(self._by[row, chunk])]

    def tell(self, rows: Array, columns: Array) -> None:
        """Note that the barriers of the blocks `rows` tell of what was filled since the last."""
        for index in self._filled:
            chosen = np.zeros(self._told.shape, np.bool_)
            chosen[index] = True
            for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
                self._told[row][chosen[row]] = column + 1
        self._filled.clear()

    def acquire(self, rows: Array, columns: Array) -> None:
        """Note that waits for phases of barriers have acquired."""
        for row, column in {*zip(rows.tolist(), columns.tolist(), strict=True)}:
            told = self._told[row]
            told[told == column + 1] = 0

    def fence(self, rows: Array) -> None:
        """Note that threads of blocks have executed a fence."""
        self._told[rows] = 0

    def unknown(self, index: Any) -> BoolArray:
        """Say which chunks hold what nobody has acquired."""
        found: BoolArray = self._told[index] > 0
        return found
