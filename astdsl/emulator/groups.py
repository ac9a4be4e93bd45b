"""Groups of asynchronous operations: what `commit_group` closes and `wait_group N` waits for.

Invariant: an operation belongs, for each owner (a thread for copies, a warp for wgmma), to the
group that the owner's next commit closes; groups are numbered by their owner's commits. It may be
done long before its owners have waited for it, and is known until all of them have.
Source: PTX ISA 9.7.9.25.1 "async-group" and "bulk async-group", 9.7.15.3 "wgmma-group".
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


class _Awaited(Protocol):
    @property
    def is_over(self) -> bool:
        """Return whether all of its owners have waited for it."""


T = TypeVar("T", bound=_Awaited)


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
        for entry, mine in self._pending(owners):
            new = mine & (entry.numbers == _OPEN)
            entry.numbers[new] = self._commits[entry.owners[new]]
        self._commits[owners] += 1

    def of(self, owners: Index) -> list[tuple[T, NDArray[np.bool_]]]:
        """Return the operations of some of the owners, open ones too; with each, of which."""
        return [(entry.operation, mine) for entry, mine in self._pending(owners)]

    def due(self, owners: Index, keep: int) -> list[tuple[T, NDArray[np.bool_]]]:
        """Return the operations, oldest first, outside of the `keep` youngest groups.

        With each of them, for which of its owners that is so.
        """
        found = [(e.operation, mine & self._is_old(e, keep)) for e, mine in self._pending(owners)]
        return [(operation, mine) for operation, mine in found if any_of(mine)]

    def has_issued(self, owners: Index) -> NDArray[np.bool_]:
        """Say which owners have ever issued an operation: others wait for nothing."""
        return self._issuers[owners]

    def _is_old(self, entry: _Entry[T], keep: int) -> NDArray[np.bool_]:
        age = self._commits[entry.owners] - 1 - entry.numbers
        old: NDArray[np.bool_] = (entry.numbers != _OPEN) & (age >= keep)
        return old

    def _pending(self, owners: Index) -> list[tuple[_Entry[T], NDArray[np.bool_]]]:
        """Drop what all owners have waited for; return what some of these have, and which."""
        self._entries = [entry for entry in self._entries if not entry.operation.is_over]
        if not self._entries:
            return []
        chosen = np.zeros(len(self._commits), np.bool_)
        chosen[owners] = True
        found = [(entry, chosen[entry.owners]) for entry in self._entries]
        return [(entry, mine) for entry, mine in found if any_of(mine)]
