"""Global memory that copies to shared memory read while they are in flight.

Those of `cp.async` are so until the thread that issued them has waited, whenever they happen (PTX
ISA 9.7.9.25.3: asynchronous, with no order before `cp.async.wait_group` or
`cp.async.mbarrier.arrive` of the executing thread). Bulk and tensor copies are so until they
happen, which is when somebody waits for their mbarrier, or sooner.

Invariant: a store is reported only if it changes what a copy reads that is in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

import numpy as np

from astdsl.emulator.issues import Issue
from astdsl.emulator.occupancy import WAIT_FOR_FILL
from astdsl.emulator.scalars import all_of, any_of

if TYPE_CHECKING:
    from astdsl.emulator.copies import Transfer
    from astdsl.emulator.global_accesses import Access
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["BulkFetch", "Fetch", "Fetching", "InFlight", "Source", "sources"]

_WORD_BYTES = 4


class Source(NamedTuple):
    """What some of a copy's lanes read: the `width` bytes of each from its byte `start` on.

    `of` says which of the copy's lanes they are.
    """

    of: BoolArray
    lanes: Lanes
    addresses: Array
    width: int
    start: int


def sources(lanes: Lanes, addresses: Array, n_valid: Array, size_bytes: int) -> list[Source]:
    """Return the reads of a copy of `size_bytes`, whose lanes read their first `n_valid` bytes."""
    whole = n_valid >= size_bytes
    if all_of(whole):
        return [Source(whole, lanes, addresses, size_bytes, 0)]
    rest = np.where(whole, 0, n_valid)
    unit = 1 if any_of(rest % _WORD_BYTES) else _WORD_BYTES
    parts = [(rest > start, start, unit) for start in range(0, int(rest.max()), unit)]
    return [
        Source(some, lanes.where(some), addresses[some] + start, width, start)
        for some, start, width in [(whole, 0, size_bytes), *parts]
        if any_of(some)
    ]


@dataclass(slots=True, eq=False)
class Fetch:
    """A copy in flight, and for which of its lanes it is `open`: they have not waited."""

    help: ClassVar[str] = WAIT_FOR_FILL

    issue: Issue
    sources: list[Source]
    open: BoolArray
    low: int
    high: int

    def reached(self, addresses: Array, width: int) -> BoolArray:
        """Say which accesses of `width` bytes touch what it reads."""
        found = np.zeros(len(addresses), np.bool_)
        for source in self.sources:
            unit = min(width, source.width)
            read = _units(source.addresses[self.open[source.of]], source.width, unit)
            found |= np.isin(_units(addresses, width, unit), read).any(axis=1)
        return found

    def reader(self, address: int, width: int) -> int:
        """Return a lane that reads some of the `width` bytes at an address."""
        for source in self.sources:
            first = source.addresses
            mine = (first < address + width) & (address < first + source.width)
            mine &= self.open[source.of]
            if any_of(mine):
                return source.lanes.first(mine)
        raise AssertionError("bytes that no lane reads")


class BulkFetch:
    """A bulk or tensor copy that has not happened."""

    help: ClassVar[str] = "wait for the mbarrier of the copy first"

    def __init__(self, transfer: Transfer) -> None:
        self.issue = Issue.of(transfer.m, transfer.what, transfer.lanes, transfer.rows)
        self._transfer = transfer
        places, unit = transfer.places, transfer.unit_bytes
        firsts, relative = places.corners, places.relative
        if firsts is None:
            firsts, relative = places.each, np.zeros(1, np.int64)
        self.low = int(firsts.min()) + int(relative.min())
        self.high = int(firsts.max()) + int(relative.max()) + unit

    def reached(self, addresses: Array, width: int) -> BoolArray:
        """Say which accesses of `width` bytes touch what it reads."""
        size = self._transfer.unit_bytes
        read, inside = self._transfer.addresses, self._transfer.inside
        unit = min(width, size)
        units = _units(read.reshape(-1) if inside is None else read[inside], size, unit)
        return np.asarray(np.isin(_units(addresses, width, unit), units).any(axis=1))

    def reader(self, address: int, width: int) -> int:
        """Return a lane that reads some of the `width` bytes at an address."""
        read, inside = self._transfer.addresses, self._transfer.inside
        mine = (read < address + width) & (address < read + self._transfer.unit_bytes)
        if inside is not None:
            mine &= inside
        return self._transfer.lanes.first(np.asarray(mine.any(axis=1)))


InFlight: TypeAlias = Fetch | BulkFetch


class Fetching:
    """All copies of a machine that are in flight."""

    def __init__(self) -> None:
        self._fetches: list[InFlight] = []

    def begin_bulk(self, transfer: Transfer) -> BulkFetch:
        """Note what a copy begins to read."""
        fetch = BulkFetch(transfer)
        self._fetches.append(fetch)
        return fetch

    def end_bulk(self, fetch: BulkFetch) -> None:
        """Note that a copy has happened."""
        self._fetches.remove(fetch)

    def begin(self, issue: Issue, read: list[Source], n_lanes: int) -> Fetch:
        """Note what lanes begin to read."""
        low = min((int(source.addresses.min()) for source in read), default=0)
        high = max((int(source.addresses.max()) + source.width for source in read), default=0)
        fetch = Fetch(issue, read, np.ones(n_lanes, np.bool_), low, high)
        self._fetches.append(fetch)
        return fetch

    def end(self, fetch: Fetch, waited: BoolArray) -> None:
        """Note that some of its lanes have waited for a copy."""
        fetch.open &= ~waited
        if not any_of(fetch.open):
            self._fetches.remove(fetch)

    def require_read(self, access: Access) -> None:
        """Fault if a write changes what a copy in flight is still reading."""
        for fetch, reached in self._reached(access.addresses, access.width):
            bad = reached & access.changes()
            if any_of(bad):
                raise _still_read(access, int(np.argmax(bad)), fetch)

    def _reached(self, addresses: Array, width: int) -> Iterator[tuple[InFlight, BoolArray]]:
        """Yield the copies that accesses of `width` bytes touch the source of, and which do."""
        if not self._fetches:
            return
        low, high = int(addresses.min()), int(addresses.max()) + width
        for fetch in self._fetches:
            if low < fetch.high and fetch.low < high:
                found = fetch.reached(addresses, width)
                if any_of(found):
                    yield fetch, found


def _still_read(access: Access, lane: int, fetch: InFlight) -> Exception:
    """Return the fault of who changes what a copy is still reading."""
    m, address = access.m, int(access.addresses[lane])
    who = m.lane_text(fetch.reader(address, access.width))
    verb = "is written" if access.past is None else f"is overwritten by the {access.what}"
    return m.fault(
        "E250" if access.past is None else "E251",
        f"global memory at {address:#x} in {access.allocation.name} {verb} while the "
        f"{fetch.issue.what} (of {who}, {fetch.issue.place}) is still reading it",
        int(access.lanes[lane]),
        help=fetch.help,
    )


def _units(addresses: Array, width: int, unit: int) -> Array:
    """Return the numbers of the aligned units that accesses cover, [n, units of each]."""
    covered: Array = (addresses // unit)[:, None] + np.arange(width // unit)
    return covered
