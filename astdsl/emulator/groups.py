"""Groups of asynchronous operations: what `commit_group` closes and `wait_group N` waits for.

Invariant: an operation belongs, for each owner (a thread for bulk copies, a warpgroup for wgmma),
to the group that the owner's next commit closes; groups are numbered by their owner's commits.
Source: PTX ISA 9.7.9.25.1 "bulk async-group", 9.7.15.3 "wgmma-group".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from astdsl.emulator.scalars import any_of

__all__ = ["GroupLedger"]

Index = NDArray[np.int64]
_OPEN = -1


class _Finishes(Protocol):
    @property
    def done(self) -> bool: ...


T = TypeVar("T", bound=_Finishes)


@dataclass(slots=True)
class _Entry(Generic[T]):
    operation: T
    owners: Index
    numbers: Index


class GroupLedger(Generic[T]):
    """Record which operations of which owners are open or committed, oldest first."""

    def __init__(self, n_owners: int) -> None:
        self._commits = np.zeros(n_owners, np.int64)
        self._issuers = np.zeros(n_owners, np.bool_)
        self._entries: list[_Entry[T]] = []

    def issue(self, operation: T, owners: Index) -> None:
        """Add an operation to the open group of each owner."""
        self._issuers[owners] = True
        self._entries.append(_Entry(operation, owners, np.full(len(owners), _OPEN, np.int64)))

    def commit(self, owners: Index) -> None:
        """Close the open group of each owner; an empty group counts as one."""
        chosen = self._chosen(owners)
        for entry in self._pending():
            mine = chosen[entry.owners] & (entry.numbers == _OPEN)
            entry.numbers[mine] = self._commits[entry.owners[mine]]
        self._commits[owners] += 1

    def due(self, owners: Index, keep: int) -> list[T]:
        """Return the operations, oldest first, outside of the `keep` youngest groups."""
        entries = self._pending()
        if not entries:
            return []
        chosen = self._chosen(owners)
        return [e.operation for e in entries if self._is_due(e, chosen, keep)]

    def has_issued(self, owners: Index) -> NDArray[np.bool_]:
        """Say which owners have ever issued an operation: others wait for nothing."""
        return self._issuers[owners]

    def open_operations(self) -> list[T]:
        """Return the operations that some owner has not committed."""
        return [e.operation for e in self._pending() if any_of(e.numbers == _OPEN)]

    def _is_due(self, entry: _Entry[T], chosen: NDArray[np.bool_], keep: int) -> bool:
        age = self._commits[entry.owners] - 1 - entry.numbers
        return any_of(chosen[entry.owners] & (entry.numbers != _OPEN) & (age >= keep))

    def _chosen(self, owners: Index) -> NDArray[np.bool_]:
        chosen = np.zeros(len(self._commits), np.bool_)
        chosen[owners] = True
        return chosen

    def _pending(self) -> list[_Entry[T]]:
        """Drop finished operations and return the rest."""
        self._entries = [entry for entry in self._entries if not entry.operation.done]
        return self._entries
