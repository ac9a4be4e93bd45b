"""Accesses of global memory by threads and by asynchronous copies, as races are judged by.

Invariant: addresses, lanes, makers and values list the same accesses in one order, all of one width
and in one allocation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from astdsl.emulator.scalars import UNSIGNED

if TYPE_CHECKING:
    from astdsl.emulator.copies import Transfer
    from astdsl.emulator.global_memory import Allocation
    from astdsl.emulator.global_proxies import Past, Written
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["Access", "Read", "elements", "of_copy"]

_WORD_BYTES = 8


class Read(NamedTuple):
    """A read that may matter once something writes there."""

    addresses: Array
    width: int
    made: Array
    scope: int | None


@dataclass(slots=True)
class Access:
    """Accesses of `width` bytes at addresses [n], by the lanes number `lanes` of `m`.

    `who` are their makers as stamps have them; `scope` is that of strong accesses, None of weak
    ones. Of a copy, `what` it is, what was so (`past`) when it was issued, and who waits for what
    it has `written`.
    """

    m: Machine
    allocation: Allocation
    addresses: Array
    width: int
    lanes: Array
    who: Array
    scope: int | None = None
    writes: bool = False
    values: Array | None = None
    what: str = ""
    past: Past | None = None
    written: Written | None = None

    def changes(self) -> BoolArray:
        """Say which of the lanes store something else than is there; all, of what combines."""
        if self.values is None:
            return np.ones(len(self.addresses), np.bool_)
        start, view = self.allocation.view(self.width)
        old = view[(self.addresses - start) // self.width]
        differs: BoolArray = elements(old, self.width) != elements(self.values, self.width)
        if differs.ndim > 1:
            differs = np.logical_or.reduce(differs, axis=1)
        return differs

    def some(self, mask: BoolArray) -> Access:
        """Return some of the accesses."""
        values = None if self.values is None else self.values[mask]
        return Access(
            self.m, self.allocation, self.addresses[mask], self.width, self.lanes[mask],
            self.who[mask], self.scope, self.writes, values, self.what, self.past,
            self.written,
        )  # fmt: skip


def of_copy(transfer: Transfer, makers: Array, past: Past) -> Iterator[Access]:
    """Yield the units of a copy that lie inside, by one lane each; none if none does.

    `makers` are those of all lanes of the machine.
    """
    addresses, inside = transfer.addresses, transfer.inside
    lanes = np.broadcast_to(transfer.lanes.index[:, None], addresses.shape)
    chosen: Any = slice(None) if inside is None else inside
    places = addresses[chosen].reshape(-1)
    if not len(places):
        return
    allocation = transfer.m.memory.globals.find(int(places[0]))
    if allocation is not None and int(places.max()) < allocation.high:
        by = lanes[chosen].reshape(-1)
        yield Access(
            transfer.m, allocation, places, transfer.unit_bytes, by, makers[by],
            what=transfer.what, past=past, written=transfer.written,
        )  # fmt: skip


def elements(values: Array, width: int) -> Array:
    """Return what lanes hold, `width` bytes each, as integers [n], or [n, words] of wide ones."""
    plain = np.ascontiguousarray(values)
    if width > _WORD_BYTES:
        return plain.view(np.uint64).reshape(-1, width // _WORD_BYTES)
    return plain.reshape(-1).view(UNSIGNED[8 * width])
