"""The last accesses of global memory in a launch, and which of them race.

Every access is stamped with its time, block and warp, by granules as wide as the narrowest access
of the allocation.  Where blocks cannot wait for each other (no atomics, no loads that acquire),
accesses of two clusters are never ordered; elsewhere barriers, releases and acquires at one word
and fences order blocks that run at the same time, and those that do not count as ordered.
Invariant: an access is reported only if nothing leads from the other to it.  Strong accesses and
reductions do not race with each other (PTX ISA 8.7), nor do stores of what is there already.
Reads that come before the first write of an allocation are kept, as many as fit into `LOG_BYTES`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from astdsl.emulator.clocks import BlockClocks, Clocks
from astdsl.emulator.issues import Issue
from astdsl.emulator.scalars import UNSIGNED
from astdsl.emulator.stamps import (
    BLOCK_SHIFT,
    BY_COPY,
    ELSEWHERE,
    READ,
    TIME_SHIFT,
    WRITTEN,
    Stamps,
    block_of,
    warp_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from astdsl.emulator.copies import Transfer
    from astdsl.emulator.global_memory import Allocation
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["GlobalRaces"]

# Warps that know of each other, at most; of more, blocks as wholes do.
MOST_ACTORS = 2048
BUDGET_BYTES = 1 << 28
LOG_BYTES = 1 << 26
_WORD_BYTES = 8
# What a read in the log takes, in units of its addresses: they and who read, at most.
_LOGGED = 2
_APART = (
    "the blocks of a launch run in any order: make two launches of it, or let one block wait for "
    "the other by a release and an acquire at one word"
)
_ORDER = (
    "put a barrier between them, or release and acquire at one word: st.release and ld.acquire, or "
    "an atomic with a fence before it and one after it"
)


class _Epoch(NamedTuple):
    """The blocks that ran at one time: their first number, when that began, and where they are."""

    first_block: int
    first_time: int
    axes: tuple[Array, Array, Array]
    places: list[int | Issue]


class _Read(NamedTuple):
    """A read that may matter once something writes there."""

    addresses: Array
    width: int
    made: Array
    strong: bool


@dataclass(slots=True)
class _Access:
    """Accesses of `width` bytes at addresses [n], by the lanes number `lanes` of `m`."""

    m: Machine
    allocation: Allocation
    addresses: Array
    width: int
    lanes: Array
    who: Array
    strong: bool = False
    by_copy: bool = False
    values: Array | None = None

    def changes(self) -> BoolArray:
        """Say which of the lanes store something else than is there; all, of what combines."""
        if self.values is None:
            return np.ones(len(self.addresses), np.bool_)
        start, view = self.allocation.view(self.width)
        old = view[(self.addresses - start) // self.width]
        differs: BoolArray = _elements(old, self.width) != _elements(self.values, self.width)
        if differs.ndim > 1:
            differs = np.logical_or.reduce(differs, axis=1)
        return differs


class GlobalRaces:
    """Stamps of the accesses of a launch; machine after machine runs its blocks."""

    clocks: Clocks

    def __init__(self, *, exclusive: bool = False, crew_threads: int = 0) -> None:
        """Make it; with `exclusive` no two clusters may store in one place, nor two crews."""
        self._exclusive = exclusive
        self._crew_warps = crew_threads // 32
        self._epochs: list[_Epoch] = []
        self._alone = True
        self._stamps: dict[tuple[int, bool], Stamps] = {}
        # Allocations that are too large for the budget are not looked at.
        self._lost: set[int] = set()
        self._log: dict[int, deque[_Read]] = {}
        self._logged_bytes = 0

    def begin(self, m: Machine, clocks: Clocks) -> Clocks | None:
        """Begin a machine, whose clusters have `clocks`; return those that all its blocks need."""
        first_block = first_time = 0
        if self._epochs:
            last = self._epochs[-1]
            first_block = last.first_block + len(last.axes[0])
            first_time = last.first_time + len(last.places)
        self._alone = not m.program.meets_other_blocks
        # Warps that nothing of the program could ever order are not told of it.
        self._within = not self._alone or self._exclusive or m.launch.fences.barriers
        self._size = m.launch.cluster_size
        self._reach = self._size
        self.clocks = clocks
        if not self._alone:
            self._reach = m.n_blocks
            few = m.n_blocks * -(-m.n_threads // 32) < MOST_ACTORS
            self.clocks = Clocks(m, reach=m.n_blocks) if few else BlockClocks(m)
        index, places = m.launch.index, self.clocks.places
        self._epochs.append(_Epoch(first_block, first_time, index, places))
        warps = m.thread_of.astype(np.int64) >> 5
        self._who = (m.block_of + first_block) << BLOCK_SHIFT | warps
        return None if self._alone else self.clocks

    # What accesses do.

    def read(
        self, m: Machine, lanes: Lanes, allocation: Allocation, addresses: Array, width: int
    ) -> None:
        """Check and note a read of `width` bytes at each address."""
        if allocation.read_only:
            return
        self._read(self._access(m, lanes, allocation, addresses, width))

    def write(
        self, m: Machine, lanes: Lanes, allocation: Allocation, addresses: Array, values: Array
    ) -> None:
        """Check and note a write of each lane's row of values."""
        width = values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)
        access = self._access(m, lanes, allocation, addresses, width)
        access.values = values
        self._write(access)

    def copy_in(self, transfer: Transfer) -> None:
        """Check and note what an asynchronous copy that is issued will read."""
        for access in self._of_copy(transfer):
            if not access.allocation.read_only:
                self._read(access)

    def copy_out(self, transfer: Transfer, values: Array | None) -> None:
        """Check and note what an asynchronous copy writes; without values, what it combines."""
        here, transfer.m.pc = transfer.m.pc, transfer.pc
        for access in self._of_copy(transfer):
            access.by_copy = False
            access.strong = values is None
            if values is not None:
                inside = transfer.inside
                access.values = (values if inside is None else values[inside]).reshape(-1)
            self._write(access)
        transfer.m.pc = here

    def _access(
        self, m: Machine, lanes: Lanes, allocation: Allocation, addresses: Array, width: int
    ) -> _Access:
        strong = m.guard is not None and m.guard.strong
        who = self._who[lanes.sel]
        return _Access(m, allocation, addresses, width, lanes.index, who, strong)

    def _of_copy(self, transfer: Transfer) -> Iterator[_Access]:
        """Yield the units of a copy that lie inside, by one lane each; none if none does."""
        addresses, inside = transfer.addresses, transfer.inside
        lanes = np.broadcast_to(transfer.lanes.index[:, None], addresses.shape)
        chosen: Any = slice(None) if inside is None else inside
        places = addresses[chosen].reshape(-1)
        if not len(places):
            return
        allocation = transfer.m.memory.globals.find(int(places[0]))
        if allocation is not None and int(places.max()) < allocation.high:
            by = lanes[chosen].reshape(-1)
            unit_bytes = transfer.unit_bytes
            yield _Access(
                transfer.m, allocation, places, unit_bytes, by, self._who[by], by_copy=True
            )

    # Checks.

    def _read(self, access: _Access) -> None:
        low = access.allocation.low
        for each in self._others(access):
            self._check(access, each, (WRITTEN,))
        # Who waits for a copy knows of its bytes, and not of the warp that issued it.
        if low in self._lost or (access.by_copy and not self._alone):
            return
        made = access.who | self._tick() << TIME_SHIFT
        read = _Read(access.addresses, access.width, made, access.strong)
        if any((low, strong) in self._stamps for strong in (False, True)):
            self._note_read(access.allocation, read)
        else:
            self._keep(low, read)

    def _write(self, access: _Access) -> None:
        if access.allocation.low in self._lost:
            return
        for read in self._log.pop(access.allocation.low, ()):
            self._logged_bytes -= _LOGGED * read.addresses.nbytes
            self._note_read(access.allocation, read)
        exclusive = self._exclusive and self._alone
        changes = None if exclusive else access.changes()
        for each in self._others(access):
            self._check(access, each, (READ, ELSEWHERE, WRITTEN), changes)
        if changes is not None and self._alone and not changes.all():
            access = _some(access, changes)
        if len(access.addresses):
            self._note_write(access)

    def _others(self, access: _Access) -> list[Stamps]:
        """Return the stamps of what an access may race with."""
        kinds = (False,) if access.strong else (False, True)
        found = (self._stamps.get((access.allocation.low, kind)) for kind in kinds)
        return [stamps for stamps in found if stamps is not None]

    def _check(
        self, access: _Access, stamps: Stamps, kinds: tuple[int, ...],
        only: BoolArray | None = None,
    ) -> None:  # fmt: skip
        kinds = tuple(kind for kind in kinds if kind in stamps.kinds)
        at = stamps.places(access.addresses, access.width) if kinds else None
        for kind in kinds:
            found = stamps.kinds[kind][at]
            # Mostly nobody has been there, or the same warp.
            if not found.any() or not (_who(found) ^ access.who[:, None]).any():
                continue
            bad = self._unordered(found, access)
            if kind == WRITTEN and self._exclusive and self._alone and access.values is not None:
                bad |= (found > 0) & (self._owner(found) != self._owner(access.who)[:, None])
            if only is not None:
                bad &= only[:, None]
            if at is not None and bad.any():
                lane, k = (int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
                address = stamps.address(int(at[lane, k]))
                raise self._race(access, lane, address, int(found[lane, k]), kind)

    def _unordered(self, found: Array, access: _Access) -> BoolArray:
        """Say which stamps, [n, k], nothing orders before what lanes do now."""
        clocks, epoch, reach, m = self.clocks, self._epochs[-1], self._reach, access.m
        rows = m.block_of[access.lanes]
        local = block_of(found) - (epoch.first_block + rows // reach * reach)[:, None]
        inside = (local >= 0) & (local < reach)
        mine = np.minimum(m.thread_of[access.lanes] >> 5, clocks.n_warps - 1)
        warps = np.minimum(warp_of(found), clocks.n_warps - 1)
        actors = np.where(inside, local * clocks.n_warps + warps, 0)
        known = clocks.known[rows[:, None], mine[:, None], actors]
        late: BoolArray = (found >> TIME_SHIFT) - epoch.first_time > known
        late &= inside & ((found & BY_COPY) == 0) & self._within
        return late | (~inside & (found > 0)) if self._alone else late

    def _owner(self, stamps: Array) -> Array:
        """Return a number for what a warp stores for: its cluster, or a part of its block."""
        owner: Array = self._cluster(stamps)
        if self._crew_warps:
            owner = owner << 5 | warp_of(stamps) // self._crew_warps
        return owner

    def _cluster(self, stamps: Any) -> Any:
        blocks = block_of(stamps)
        return blocks if self._size == 1 else blocks // self._size

    # Notes.

    def _tick(self) -> int:
        return self._epochs[-1].first_time + self.clocks.tick()

    def _keep(self, low: int, read: _Read) -> None:
        """Keep a read of what nothing has written yet; it may be that nothing ever does."""
        kept = self._log.setdefault(low, deque())
        kept.append(read)
        self._logged_bytes += _LOGGED * read.addresses.nbytes
        while self._logged_bytes > LOG_BYTES and len(kept) > 1:
            self._logged_bytes -= _LOGGED * kept.popleft().addresses.nbytes

    def _note_read(self, allocation: Allocation, read: _Read) -> None:
        stamps = self._of(allocation, read.strong, read.width)
        if stamps is not None:
            at = stamps.places(read.addresses, read.width)
            stamps.note_read(at, read.made, self._cluster)

    def _note_write(self, access: _Access) -> None:
        stamps = self._of(access.allocation, access.strong, access.width)
        if stamps is None:
            return
        made = access.who | self._tick() << TIME_SHIFT
        at = stamps.places(access.addresses, access.width)
        won = stamps.note_write(at, made)
        if not access.strong:
            self._check_together(access, made, won)

    def _check_together(self, access: _Access, made: Array, won: Array) -> None:
        """Fault if two warps, or owners, have written one place by the same instruction."""
        if access.values is None:
            raise AssertionError("a weak write without values")
        exclusive = self._exclusive and self._alone
        owner = self._owner if exclusive or not self._within else _who
        if not (won != made[:, None]).any():
            return
        lost = np.flatnonzero((owner(won) != owner(made)[:, None]).any(axis=1))
        reached, last = np.unique(access.addresses[::-1], return_index=True)
        at = np.searchsorted(reached, access.addresses[lost])
        winners = len(made) - 1 - last[at]
        if not exclusive:
            values = _elements(access.values, access.width)
            differs = values[lost] != values[winners]
            keep = differs if differs.ndim == 1 else differs.any(axis=1)
            lost, winners = lost[keep], winners[keep]
        if len(lost):
            lane = int(lost[0])
            address, other = int(access.addresses[lane]), int(made[winners[0]])
            raise self._race(access, lane, address, other, WRITTEN)

    def _of(self, allocation: Allocation, strong: bool, width: int) -> Stamps | None:
        """Return the stamps that accesses of a width are noted in, None if they need too much."""
        if allocation.low in self._lost:
            return None
        key = allocation.low, strong
        found = self._stamps.setdefault(key, Stamps(allocation.low, allocation.high))
        others = sum(each.size_bytes for each in self._stamps.values() if each is not found)
        if found.needed_bytes(width) + others > BUDGET_BYTES:
            self._lost.add(allocation.low)
            for each in (False, True):
                self._stamps.pop((allocation.low, each), None)
            return None
        return found

    # Reports.

    def _race(self, access: _Access, lane: int, address: int, other: int, kind: int) -> Exception:
        m = access.m
        block, warp = int(block_of(other)), int(warp_of(other))
        at = bisect_right(self._epochs, block, key=lambda e: e.first_block) - 1
        epoch = self._epochs[at]
        index = tuple(int(axis[block - epoch.first_block]) for axis in epoch.axes)
        place = epoch.places[(other >> TIME_SHIFT) - epoch.first_time]
        where = place.place if isinstance(place, Issue) else m.place_text(place)
        who = f"warp {warp} of block {index}"
        what = f"global memory at {address:#x} in {access.allocation.name}"
        number = int(access.lanes[lane])
        exclusive = self._exclusive and self._alone and access.values is not None
        if exclusive and kind == WRITTEN:
            text = f"{what} is written by two blocks or warpgroups: {who} stores there too"
            return m.fault("E235", f"{text} ({where})", number)
        verb = "writes" if kind == WRITTEN else "reads"
        apart = self._alone and self._cluster(other) != self._cluster(access.who[lane])
        return m.fault(
            "E232",
            f"{what}: {who} {verb} it ({where}), and nothing orders that before this access",
            number,
            help=_APART if apart else _ORDER,
        )


def _who(stamps: Array) -> Array:
    """Return who made stamps, whenever that was."""
    who: Array = stamps & ((1 << TIME_SHIFT) - 1)
    return who


def _elements(values: Array, width: int) -> Array:
    """Return what lanes hold, `width` bytes each, as integers [n], or [n, words] of wide ones."""
    plain = np.ascontiguousarray(values)
    if width > _WORD_BYTES:
        return plain.view(np.uint64).reshape(-1, width // _WORD_BYTES)
    return plain.reshape(-1).view(UNSIGNED[8 * width])


def _some(access: _Access, mask: BoolArray) -> _Access:
    values = None if access.values is None else access.values[mask]
    return _Access(
        access.m, access.allocation, access.addresses[mask], access.width, access.lanes[mask],
        access.who[mask], access.strong, access.by_copy, values,
    )  # fmt: skip
