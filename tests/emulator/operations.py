"""Asynchronous operations as `causality.py` sees them: their parts, signals, and groups.

Invariant: a part is what one thread, or all threads that a product needs, let one operation do to
one kind of memory of one block; who waits for a group knows the parts in it and no others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from astdsl.emulator.asynchronous import Operation
from tests.emulator.knowledge import Array, Known

Key = tuple[Any, ...]
_OPEN = -1


@dataclass(eq=False)
class Part:
    """What one asynchronous operation does to one kind of memory of one block.

    `known` is ordered before it, `past` has happened before it can complete.
    """

    number: int
    space: str
    row: int
    mask: Array
    writes: bool
    issuers: frozenset[int]
    operation: Operation
    known: Known
    past: Known
    done: bool = False

    @property
    def bit(self) -> int:
        """Return the number as a bit."""
        return 1 << self.number

    def meets(self, other: Part) -> bool:
        """Say whether the two use one place, and one of them writes, as parts of no one order."""
        if (other.space, other.row) != (self.space, self.row):
            return False
        if not (other.writes or self.writes) or other._precedes(self):
            return False
        return bool((other.mask & self.mask).any())

    def _precedes(self, other: Part) -> bool:
        """Say whether both are issued by one thread, together or to a pipe that keeps an order."""
        if self.issuers != other.issuers:
            return False
        order = self.operation.order
        together = self.operation is other.operation
        return together or (order is not None and order == other.operation.order)


@dataclass(eq=False)
class Signal:
    """A barrier at which an operation will arrive: who issued it, and what they knew."""

    key: Key
    count: int
    issuer: int
    past: Known


@dataclass(eq=False)
class _Entry:
    operation: Operation
    owners: Array
    numbers: Array


class Groups:
    """The groups of operations of some owners, numbered by their commits."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._commits: defaultdict[int, int] = defaultdict(int)

    def issue(self, operation: Operation, owners: Array) -> None:
        """Add an operation to the open group of each owner."""
        self._entries.append(_Entry(operation, owners, np.full(len(owners), _OPEN)))

    def commit(self, owners: Array) -> None:
        """Close the open group of each owner."""
        chosen = owners.tolist()
        for entry in self._entries:
            for at in np.flatnonzero(np.isin(entry.owners, owners) & (entry.numbers == _OPEN)):
                entry.numbers[at] = self._commits[int(entry.owners[at])]
        for owner in chosen:
            self._commits[owner] += 1

    def due(self, owners: Array, keep: int) -> Iterator[tuple[int, Operation]]:
        """Yield owners and their operations outside of the `keep` youngest groups, once each."""
        for entry in self._entries:
            mine = np.isin(entry.owners, owners) & (entry.numbers != _OPEN)
            for at in np.flatnonzero(mine):
                owner = int(entry.owners[at])
                if entry.numbers[at] < self._commits[owner] - keep:
                    yield owner, entry.operation
            old = [self._commits[int(o)] - keep for o in entry.owners]
            gone = mine & (entry.numbers < old)
            entry.owners, entry.numbers = entry.owners[~gone], entry.numbers[~gone]
        self._entries = [entry for entry in self._entries if len(entry.owners)]
