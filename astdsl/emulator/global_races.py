"""The last accesses of global memory in a launch, and which of them race.

Every access is stamped with its time, block and warp, by granules as wide as the narrowest access
of the allocation.  Where blocks cannot wait for each other (no atomics, no loads that acquire),
accesses of two clusters are never ordered; elsewhere barriers, releases and acquires at one word
and fences order blocks, whether they run at the same time or not.
Invariant: an access is reported only if nothing leads from the other to it.  Strong accesses and
reductions do not race with each other where the scope of either has the other's thread (PTX ISA
8.7), nor do stores of what is there already.
Reads that come before the first write of an allocation are kept, as many as fit into `LOG_BYTES`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from astdsl.emulator.clocks import SCOPES, BlockClocks, Clocks
from astdsl.emulator.ended_blocks import EndedBlocks
from astdsl.emulator.fetching import BulkFetch, Fetching
from astdsl.emulator.global_accesses import Access, Read, elements, of_copy
from astdsl.emulator.global_proxies import GlobalProxies, Past
from astdsl.emulator.issues import Issue
from astdsl.emulator.lanes import WARP_THREADS
from astdsl.emulator.ledger import Ledger
from astdsl.emulator.map_changes import MapChanges
from astdsl.emulator.stamps import (
    BLOCK_SHIFT,
    BY_COPY,
    ELSEWHERE,
    LANE_SHIFT,
    LANES,
    READ,
    TIME_SHIFT,
    WRITTEN,
    Stamps,
    block_of,
    lane_of,
    warp_of,
)

if TYPE_CHECKING:
    from astdsl.emulator.copies import Transfer
    from astdsl.emulator.global_memory import Allocation
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["GlobalRaces"]

_WIDEST = len(SCOPES) - 1
_SCOPES = (None, *range(len(SCOPES)))
# Warps that know of each other, at most; of more, blocks as wholes do.
MOST_ACTORS = 2048
BUDGET_BYTES = 1 << 28
LOG_BYTES = 1 << 26
# What a read in the log takes, in units of its addresses: they and who read, at most.
_LOGGED = 2
# Of a stamp: its block and warp.
_MAKER = (1 << TIME_SHIFT) - 1 & ~(BY_COPY | LANES)
_APART = (
    "the blocks of a launch run in any order: make two launches of it, or let one block wait for "
    "the other by a release and an acquire at one word"
)
_ORDER = (
    "put a barrier between them, or release and acquire at one word: st.release and ld.acquire, or "
    "an atomic with a fence before it and one after it, of a scope that has both threads"
)

_WAIT = (
    "let the thread that issues the copy wait for its group (`cp.async.bulk.wait_group`, without "
    "`.read`), and order what comes after that"
)


class _Epoch(NamedTuple):
    """The blocks that ran at one time: their first number, when that began, and where they are."""

    first_block: int
    first_time: int
    axes: tuple[Array, Array, Array]
    places: list[int | Issue]


class GlobalRaces:
    """Stamps of the accesses of a launch; machine after machine runs its blocks."""

    clocks: Clocks
    proxies: GlobalProxies
    fetching: Fetching
    maps: MapChanges

    def __init__(self, *, exclusive: bool = False, crew_threads: int = 0) -> None:
        """Make it; with `exclusive` no two clusters may store in one place, nor two crews."""
        self._exclusive = exclusive
        self._crew_warps = crew_threads // 32
        self._epochs: list[_Epoch] = []
        self._alone = True
        self._ended: EndedBlocks | None = None
        self._ledger: Ledger | None = None
        # By the first address of an allocation, and the scope of strong accesses, None of weak.
        self._stamps: dict[tuple[int, int | None], Stamps] = {}
        # Allocations that are too large for the budget are not looked at.
        self._lost: set[int] = set()
        self._log: dict[int, deque[Read]] = {}
        self._logged_bytes = 0
        self._rules = (
            (self._in_flight, self._collision),
            (self._unordered, self._race),
            (self._unshown, self._hidden),
        )

    def begin(self, m: Machine, clocks: Clocks) -> Ledger | None:
        """Begin a machine, whose clusters have `clocks`; return by what all its blocks learn."""
        first_block = first_time = 0
        if self._epochs:
            last = self._epochs[-1]
            first_block = last.first_block + len(last.axes[0])
            first_time = last.first_time + len(last.places)
        self._alone = not m.program.meets_other_blocks
        # Warps that nothing of the program could ever order are not told of it.
        self._within = not self._alone or self._exclusive or m.launch.fences.barriers
        self._size = m.launch.cluster_size
        self.clocks = clocks
        # What the clocks take for the beginning of time.
        self._zero = first_time
        if not self._alone:
            self._zero = 0
            self._ledger = self._meeting(m, first_time)
            self.clocks = self._ledger.clocks
        self.proxies = GlobalProxies(m, self.clocks)
        self.fetching = Fetching()
        self.maps = MapChanges(m, self.clocks)
        if self._ended is not None and self._ended.n_groups:
            self.proxies.covered.remember(self._ended.covered)
            self.maps.released.remember(self._ended.released)
        index, places = m.launch.index, self.clocks.places
        self._epochs.append(_Epoch(first_block, first_time, index, places))
        warps, lanes = np.divmod(m.thread_of.astype(np.int64), WARP_THREADS)
        self._who = (m.block_of + first_block) << BLOCK_SHIFT | lanes << LANE_SHIFT | warps
        self._copiers = self._who | BY_COPY
        return self._ledger

    def _meeting(self, m: Machine, first_time: int) -> Ledger:
        """Return what the blocks of a machine learn by, which know what those before have left."""
        if self._ended is None:
            x, y, z = m.launch.grid
            self._ended = EndedBlocks(x * y * z)
        if self._ledger is not None:
            covered, released = self.proxies.covered.times, self.maps.released.times
            self._ended.end(self._ledger, covered, released)
        n_ended = self._ended.n_groups
        if m.n_blocks * m.n_warps < MOST_ACTORS:
            clocks = Clocks(m, reach=m.n_blocks, start=first_time, n_ended=n_ended)
        else:
            clocks = BlockClocks(m, start=first_time, n_ended=n_ended)
        ledger = Ledger(m, clocks)
        self._ended.begin(ledger)
        return ledger

    def require_shown(self, m: Machine, lanes: Lanes, address: int, size_bytes: int) -> None:
        """Fault if lanes use a map without fences between that and what the launch wrote there."""
        allocation = m.memory.globals.find(address)
        if allocation is None or allocation.low in self._lost:
            return
        blocks, first = np.unique(m.block_of[lanes.index], return_index=True)
        for scope in _SCOPES:
            stamps = self._stamps.get((allocation.low, scope))
            if stamps is None or WRITTEN not in stamps.kinds:
                continue
            found = stamps.kinds[WRITTEN][stamps.places(np.array([address]), size_bytes)]
            for row, at in zip(blocks.tolist(), first.tolist(), strict=True):
                self._require_shown(m, int(lanes.index[at]), row, address, found)

    def _require_shown(self, m: Machine, lane: int, row: int, address: int, found: Array) -> None:
        actors, outside = self._actors(found, np.array([row]))
        # Nothing orders them, which is reported as a race; or it is taken for ordered.
        known = found > 0
        if self._ended is None or not self._ended.n_groups:
            known &= ~outside
        times = (found >> TIME_SHIFT) - self._zero
        for made, time, actor in zip(
            found[known].tolist(), times[known].tolist(), actors[known].tolist(), strict=True
        ):
            missing = self.maps.missing(row, address, time, actor)
            if missing:
                who, where = self._culprit(m, made)
                raise m.fault(
                    "E254",
                    f"the tensor map at {address:#x} was changed (by {who}, {where}), and is used "
                    f"without a tensormap proxy {missing}",
                    lane,
                    help="execute `fence.proxy.tensormap::generic.release.gpu` after the change, "
                    "and `fence.proxy.tensormap::generic.acquire.gpu [map], 128` before the use",
                )

    # What accesses do.

    def read(
        self, m: Machine, lanes: Lanes, allocation: Allocation, addresses: Array, width: int
    ) -> None:
        """Check and note a read of `width` bytes at each address."""
        if allocation.read_only:
            return
        self._read(self._access(m, lanes, allocation, addresses, width))
        self.clocks.meetings.access(lanes, writes=False)

    def write(
        self, m: Machine, lanes: Lanes, allocation: Allocation, addresses: Array, values: Array
    ) -> None:
        """Check and note a write of each lane's row of values."""
        width = values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)
        access = self._access(m, lanes, allocation, addresses, width)
        access.values, access.writes = values, True
        self._write(access)
        self.clocks.meetings.access(lanes, writes=True)

    def fetch(
        self, m: Machine, lanes: Lanes, allocation: Allocation, addresses: Array, width: int,
        *, waited: bool,
    ) -> None:  # fmt: skip
        """Check what `cp.async` will read, or note it when its lanes have `waited`."""
        access = self._access(m, lanes, allocation, addresses, width)
        if waited:
            self._note(access)
            self.clocks.meetings.access(lanes, writes=False)
        else:
            self._check_read(access)

    def copy_in(self, transfer: Transfer) -> BulkFetch | None:
        """Check and note what an asynchronous copy that is issued reads until it happens."""
        every = of_copy(transfer, self._copiers, self.proxies.past())
        reads = [access for access in every if not access.allocation.read_only]
        for access in reads:
            self._read(access)
        return self.fetching.begin_bulk(transfer) if reads else None

    def copy_out(self, transfer: Transfer, past: Past, values: Array | None) -> None:
        """Check and note what an asynchronous copy writes; without values, what it combines.

        `past` is what was so when it was issued.
        """
        for access in of_copy(transfer, self._copiers, past):
            access.scope, access.writes = _WIDEST if values is None else None, True
            if values is not None:
                inside = transfer.inside
                access.values = (values if inside is None else values[inside]).reshape(-1)
            with transfer.m.at(transfer.pc):
                self._write(access)

    def _access(
        self, m: Machine, lanes: Lanes, allocation: Allocation, addresses: Array, width: int
    ) -> Access:
        scope = None if m.guard is None else m.guard.scope
        who = self._who[lanes.sel]
        return Access(m, allocation, addresses, width, lanes.index, who, scope)

    # Checks.

    def _read(self, access: Access) -> None:
        self._check_read(access)
        # Who waits for a copy knows of its bytes, and not of the warp that issued it.
        if access.past is None or self._alone:
            self._note(access)

    def _check_read(self, access: Access) -> None:
        for each, reach in self._others(access):
            self._check(access, each, (WRITTEN,), reach)

    def _note(self, access: Access) -> None:
        """Keep a read for the writes after it."""
        low = access.allocation.low
        if low in self._lost:
            return
        made = access.who | self._tick() << TIME_SHIFT
        read = Read(access.addresses, access.width, made, access.scope)
        if any((low, scope) in self._stamps for scope in _SCOPES):
            self._note_read(access.allocation, read)
        else:
            self._keep(low, read)

    def _write(self, access: Access) -> None:
        if access.allocation.low in self._lost:
            self.fetching.require_read(access)
            return
        for read in self._log.pop(access.allocation.low, ()):
            self._logged_bytes -= _LOGGED * read.addresses.nbytes
            self._note_read(access.allocation, read)
        exclusive = self._exclusive and self._alone
        changes = None if exclusive else access.changes()
        for each, reach in self._others(access):
            self._check(access, each, (READ, ELSEWHERE, WRITTEN), reach, changes)
        self.fetching.require_read(access)
        if changes is not None and self._alone and not changes.all():
            access = access.some(changes)
        if len(access.addresses):
            self._note_write(access)

    def _others(self, access: Access) -> Iterator[tuple[Stamps, int | None]]:
        """Yield the stamps of what an access may race with, and the scope that both are strong at.

        That is the narrower of two; None where one is weak.
        """
        for scope in _SCOPES:
            stamps = self._stamps.get((access.allocation.low, scope))
            reach = None if scope is None or access.scope is None else min(scope, access.scope)
            if stamps is not None and reach != _WIDEST:
                yield stamps, reach

    def _check(
        self, access: Access, stamps: Stamps, kinds: tuple[int, ...], reach: int | None,
        only: BoolArray | None = None,
    ) -> None:  # fmt: skip
        kinds = tuple(kind for kind in kinds if kind in stamps.kinds)
        if not kinds:
            return
        at = stamps.places(access.addresses, access.width)
        for kind in kinds:
            found = stamps.kinds[kind][at]
            for judge, report in self._rules if found.any() else ():
                bad = judge(access, found, kind)
                if bad is None:
                    continue
                if only is not None:
                    bad &= only[:, None]
                if reach is not None:
                    bad &= self._apart(found, access.who[:, None], reach)
                if bad.any():
                    lane, k = (int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
                    address = stamps.address(int(at[lane, k]))
                    raise report(access, lane, address, int(found[lane, k]), kind)

    def _apart(self, found: Array, who: Array, reach: int) -> BoolArray:
        """Say which stamps are of others than a scope's threads."""
        group = block_of if SCOPES[reach] == "cta" else self._cluster
        apart: BoolArray = group(found) != group(who)
        return apart

    def _unordered(self, access: Access, found: Array, kind: int) -> BoolArray | None:
        """Say which stamps, [n, k], nothing orders before what lanes do now."""
        # Mostly only the same lane has been there, or the same warp before its lanes met.
        apart = found ^ access.who[:, None]
        if not (apart & (_MAKER | LANES)).any():
            return None
        clocks, m = self.clocks, access.m
        rows = m.block_of[access.lanes]
        mine = np.minimum(m.thread_of[access.lanes] >> 5, clocks.n_warps - 1)
        times = (found >> TIME_SHIFT) - self._zero
        met = clocks.meetings.met[rows, mine]
        is_own = (apart & _MAKER) == 0
        if is_own.all() and int(times.max()) <= int(met.min()):
            return None
        actors, ended = self._actors(found, rows)
        known = clocks.knowing.at(rows, mine, m.thread_of[access.lanes], actors)
        if isinstance(clocks, BlockClocks):
            late: BoolArray = times > known
        else:
            # Of its own warp a lane knows what came before they met, or what it has been told.
            heard = np.maximum(met, clocks.meetings.heard[access.lanes])
            known = np.where(is_own, heard[:, None], known)
            made = times, actors, lane_of(found)
            untold = clocks.meetings.untold(rows[:, None], made, known, writes=kind == WRITTEN)
            untold &= ~ended & ((found & BY_COPY) == 0) & (times > met[:, None] * is_own)
            late = (times > known) | untold
            late &= ~is_own | (((apart & LANES) != 0) & ((found & BY_COPY) == 0))
        if kind != WRITTEN:
            # Who waits for a copy knows of its bytes, and not of the warp that issued it.
            late &= (found & BY_COPY) == 0
        if self._ended is None:
            late &= ~ended & self._within
            late |= ended & (found > 0)
            if kind == WRITTEN and self._exclusive and access.values is not None:
                late |= (found > 0) & (self._owner(found) != self._owner(access.who)[:, None])
        elif self._ended.are_known:
            late &= ~ended
        elif not self._ended.n_groups:
            late |= ended & (found > 0)
        return late

    def _in_flight(self, access: Access, found: Array, kind: int) -> BoolArray | None:
        """Say which stamps, [n, k], are of what a copy still wrote, or came while this one did."""
        past = access.past if access.writes else None
        by_copy = (found & BY_COPY) != 0
        written_by_copy = kind == WRITTEN and bool(by_copy.any())
        if past is None and not written_by_copy:
            return None
        bad = np.zeros(found.shape, np.bool_)
        times = (found >> TIME_SHIFT) - self._zero
        if written_by_copy:
            for time, lanes in self.proxies.unawaited(times[by_copy], past):
                bad |= by_copy & (times == time) & np.isin(_maker(found), _maker(self._who[lanes]))
        if past is not None:
            if bad.any():
                late = self._unordered(access, found, kind)
                bad &= True if late is None else ~late
            bad |= (times > past.time) & ~(by_copy & (kind == WRITTEN))
        return bad

    def _unshown(self, access: Access, found: Array, kind: int) -> BoolArray | None:
        """Say which stamps, [n, k], are of ordinary writes that a copy is not shown by a fence."""
        past = access.past
        if past is None or kind != WRITTEN:
            return None
        rows = access.m.block_of[access.lanes]
        actors, ended = self._actors(found, rows)
        covered = past.covered[rows[:, None] // self.clocks.reach, actors]
        late: BoolArray = (found >> TIME_SHIFT) - self._zero > covered
        late &= (found & BY_COPY) == 0
        if self._ended is not None and not self._ended.n_groups:
            late &= ~ended
        return late

    def _actors(self, found: Array, rows: Array) -> tuple[Array, BoolArray]:
        """Return who made stamps, for blocks `rows`, and which of them are of other blocks.

        Those are the blocks of other clusters, or what has ended before, which is an actor where
        something tells of it.
        """
        clocks, first = self.clocks, self._epochs[-1].first_block
        reach = clocks.reach
        blocks = block_of(found)
        local = blocks - (first + rows // reach * reach)[:, None]
        outside: BoolArray = (local < 0) | (local >= reach)
        warps = np.minimum(warp_of(found), clocks.n_warps - 1)
        others: Any = 0
        if self._ended is not None and self._ended.n_groups:
            others = clocks.first_ended + self._ended.groups(blocks)
        return np.where(outside, others, local * clocks.n_warps + warps), outside

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
        return self._zero + self.clocks.tick()

    def _keep(self, low: int, read: Read) -> None:
        """Keep a read of what nothing has written yet; it may be that nothing ever does."""
        kept = self._log.setdefault(low, deque())
        kept.append(read)
        self._logged_bytes += _LOGGED * read.addresses.nbytes
        while self._logged_bytes > LOG_BYTES and len(kept) > 1:
            self._logged_bytes -= _LOGGED * kept.popleft().addresses.nbytes

    def _note_read(self, allocation: Allocation, read: Read) -> None:
        stamps = self._of(allocation, read.scope, read.width)
        if stamps is not None:
            at = stamps.places(read.addresses, read.width)
            stamps.note_read(at, read.made, self._cluster)

    def _note_write(self, access: Access) -> None:
        stamps = self._of(access.allocation, access.scope, access.width)
        if stamps is None:
            return
        time = self._tick()
        made = access.who | time << TIME_SHIFT
        if access.written is not None:
            self.proxies.write(time - self._zero, access.written)
        at = stamps.places(access.addresses, access.width)
        won = stamps.note_write(at, made)
        if access.scope is None:
            self._check_together(access, made, won)

    def _check_together(self, access: Access, made: Array, won: Array) -> None:
        """Fault if two warps, or owners, have written one place by the same instruction."""
        if access.values is None:
            raise AssertionError("a weak write without values")
        exclusive = self._exclusive and self._alone
        owner = self._owner if exclusive or not self._within else _maker
        if not (won != made[:, None]).any():
            return
        lost = np.flatnonzero((owner(won) != owner(made)[:, None]).any(axis=1))
        if not len(lost):
            return
        reached, last = np.unique(access.addresses[::-1], return_index=True)
        at = np.searchsorted(reached, access.addresses[lost])
        winners = len(made) - 1 - last[at]
        if not exclusive:
            values = elements(access.values, access.width)
            differs = values[lost] != values[winners]
            keep = differs if differs.ndim == 1 else differs.any(axis=1)
            lost, winners = lost[keep], winners[keep]
        if len(lost):
            lane = int(lost[0])
            address, other = int(access.addresses[lane]), int(made[winners[0]])
            raise self._race(access, lane, address, other, WRITTEN)

    def _of(self, allocation: Allocation, scope: int | None, width: int) -> Stamps | None:
        """Return the stamps that accesses of a width are noted in, None if they need too much."""
        if allocation.low in self._lost:
            return None
        key = allocation.low, scope
        found = self._stamps.setdefault(key, Stamps(allocation.low, allocation.high))
        others = sum(each.size_bytes for each in self._stamps.values() if each is not found)
        if found.needed_bytes(width) + others > BUDGET_BYTES:
            self._lost.add(allocation.low)
            for each in _SCOPES:
                self._stamps.pop((allocation.low, each), None)
            return None
        return found

    # Reports.

    def _culprit(self, m: Machine, other: int) -> tuple[str, str]:
        """Return who made a stamp, and where."""
        block = int(block_of(other))
        at = bisect_right(self._epochs, block, key=lambda e: e.first_block) - 1
        epoch = self._epochs[at]
        index = tuple(int(axis[block - epoch.first_block]) for axis in epoch.axes)
        place = epoch.places[(other >> TIME_SHIFT) - epoch.first_time]
        where = place.place if isinstance(place, Issue) else m.place_text(place)
        return f"warp {int(warp_of(other))} of block {index}", where

    def _race(self, access: Access, lane: int, address: int, other: int, kind: int) -> Exception:
        m, (who, where) = access.m, self._culprit(access.m, other)
        what = f"global memory at {address:#x} in {access.allocation.name}"
        number = int(access.lanes[lane])
        inside = ((other ^ int(access.who[lane])) & _MAKER) == 0
        exclusive = self._exclusive and self._alone and access.values is not None
        if exclusive and kind == WRITTEN and not inside:
            text = f"{what} is written by two blocks or warpgroups: {who} stores there too"
            return m.fault("E235", f"{text} ({where})", number)
        verb = "writes" if kind == WRITTEN else "reads"
        if inside:
            return m.fault(
                "E232",
                f"{what}: lane {int(lane_of(other))} of {who} {verb} it ({where}), and no "
                "`bar.warp.sync` orders that before this access",
                number,
                help="put a `bar.warp.sync` between the two accesses",
            )
        apart = self._alone and self._cluster(other) != self._cluster(access.who[lane])
        return m.fault(
            "E232",
            f"{what}: {who} {verb} it ({where}), and nothing orders that before this access",
            number,
            help=_APART if apart else _ORDER,
        )

    def _collision(
        self, access: Access, lane: int, address: int, other: int, kind: int
    ) -> Exception:
        """Return the fault of who comes to what a copy is still writing."""
        what = f"global memory at {address:#x} in {access.allocation.name}"
        who, where = self._culprit(access.m, other)
        if access.past is not None and not (kind == WRITTEN and other & BY_COPY):
            verb = "written" if kind == WRITTEN else "read"
            text = f"{what} is {verb} by {who} ({where}) while the {access.what} still writes it"
        else:
            verb = "written" if access.writes else "read"
            text = f"{what} is {verb} while a copy of {who} ({where}) still writes it"
        code = "E250" if access.past is None else "E251"
        return access.m.fault(code, text, int(access.lanes[lane]), help=_WAIT)

    def _hidden(self, access: Access, lane: int, address: int, other: int, kind: int) -> Exception:
        """Return the fault of a copy that does not see an ordinary write."""
        who, where = self._culprit(access.m, other)
        verb = "overwrites" if access.writes else "reads"
        return access.m.fault(
            "E252",
            f"the {access.what} {verb} global memory at {address:#x} in {access.allocation.name} "
            f"after an ordinary store by {who} ({where}) without fence.proxy.async between them",
            int(access.lanes[lane]),
            help="execute `fence.proxy.async.global` after the store and before what orders the "
            "copy after it, or after that and before the copy",
        )


def _maker(stamps: Array) -> Array:
    """Return which warps made stamps, whenever that was, themselves or by a copy."""
    maker: Array = stamps & _MAKER
    return maker
