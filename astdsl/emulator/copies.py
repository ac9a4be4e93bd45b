"""Asynchronous copies between global and shared memory, for all blocks that issue one together.

Invariant: a `Transfer` lists the same units of memory on both sides, in one order; what it moves is
read as late as its completion, and its shared side is guarded from issue to completion.
Source: PTX ISA 9.7.9.25 "Data movement: asynchronous copy" (bulk and tensor).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.clocks import by_group
from astdsl.emulator.global_proxies import Past, Written
from astdsl.emulator.guard import define
from astdsl.emulator.issues import Issue
from astdsl.emulator.lanes import WARPGROUP_THREADS, Lanes
from astdsl.emulator.mbarriers import BarrierMisuse, mbarriers_of
from astdsl.emulator.native import copies as native
from astdsl.emulator.occupancy import CHUNK_BYTES, Index, chunk_index
from astdsl.emulator.scalars import UNSIGNED, all_of, any_of

if TYPE_CHECKING:
    from astdsl.emulator.global_memory import Allocation
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = [
    "Addresses",
    "BulkStore",
    "Transfer",
    "issue_load",
    "issue_shared",
    "issue_values",
    "unit_dtype",
]


# What most copies move at a time.
_WIDE_BYTES = 16


def unit_dtype(unit_bytes: int) -> np.dtype[Any]:
    """Return the type that moves one unit without looking at it."""
    return np.dtype(np.complex128) if unit_bytes == 16 else UNSIGNED[unit_bytes * 8]


class Addresses:
    """Global addresses of the units of n boxes, each of the same number of units.

    `corners` [n] are those of the boxes, `relative` [units] what is added for each unit, the first
    the least and the last the most; or `each` [n, units] is listed.
    """

    __slots__ = ("_each", "corners", "relative")

    def __init__(self, corners: Array, relative: Array) -> None:
        self.corners: Array | None = corners
        self.relative = relative
        self._each: Array | None = None

    @classmethod
    def listed(cls, each: Array) -> Addresses:
        """Make addresses that have no common form."""
        addresses = cls(each, each)
        addresses.corners, addresses._each = None, each
        return addresses

    @property
    def each(self) -> Array:
        """Return the address of every unit, [n, units]."""
        if self._each is None:
            if self.corners is None:
                raise AssertionError("addresses are corners and offsets, or listed")
            self._each = self.corners[:, None] + self.relative
        return self._each


@dataclass(slots=True, eq=False)
class Transfer:
    """Name the units of one copy: n boxes (one a lane), each of the same number of units.

    `places` are global, meaningless where `inside` [n, units] is false; `units` indexes each row of
    shared memory seen as units, [units] or [n, units]; `starts` are the boxes' first bytes.
    """

    m: Machine
    lanes: Lanes
    what: str
    unit_bytes: int
    places: Addresses
    inside: BoolArray | None
    rows: Array
    starts: Array
    size_bytes: int
    units: Array
    fill: int = 0
    element_bytes: int = 1
    # Bytes that an mbarrier counts, those of shared memory or fewer; what happens to the values.
    counted_bytes: int = 0
    change: Callable[[Array], Array] | None = None
    pc: int = field(init=False)
    past: Past | None = field(init=False, default=None)
    written: Written | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.pc = self.m.pc
        self.counted_bytes = self.counted_bytes or self.size_bytes

    @property
    def addresses(self) -> Array:
        """Return the global address of every unit, [n, units]."""
        return self.places.each

    def operation(self, perform: Callable[[], None]) -> Operation:
        """Return the operation that performs this copy."""
        issue = Issue.of(self.m, self.what, self.lanes, self.rows, self.starts)
        return Operation(perform, issue, blocks=self.rows)

    def release(self, operation: Operation, mine: BoolArray, rest: BoolArray) -> None:
        """End the operation's reads for some of its lanes, which leaves the rest of them.

        The group of a lane's warpgroup tells of each.
        """
        guard = self.m.guard
        if guard is None:
            return
        guard.end_some(operation, self.chunks(rest) if any_of(rest) else None)
        groups = self.m.thread_of[self.lanes.index] // WARPGROUP_THREADS
        for group in np.unique(groups[mine]).tolist():
            index = self.chunks(mine & (groups == group))
            guard.races.done(index, operation.issue, writes=False, by=by_group(group))

    def chunks(self, boxes: Any = slice(None)) -> Index:
        """Return the index of the 16-byte chunks of shared memory that (some) boxes touch."""
        rows, first = self.rows[boxes], self.starts[boxes] // CHUNK_BYTES
        count = self.size_bytes // CHUNK_BYTES
        if all_of(first == first[0]):
            span = slice(int(first[0]), int(first[0]) + count)
            return chunk_index(rows, span, self.m.n_blocks)
        spans = first[:, None] + np.arange(count)
        return chunk_index(rows, spans, self.m.n_blocks, per_row=True)

    def _shared(self) -> tuple[Array, Index]:
        """Return shared memory as [blocks, units] and the index of this copy's units."""
        view = self.m.memory.shared.data.view(unit_dtype(self.unit_bytes))
        per_row = self.units.ndim == 2
        return view, chunk_index(self.rows, self.units, self.m.n_blocks, per_row=per_row)

    def read_shared(self) -> Array:
        """Return the units in shared memory, [n, units]."""
        if self.unit_bytes == _WIDE_BYTES and self.units.ndim == 1:
            found = native.collect(self.m.memory.shared.data, self.rows, self.units)
            if found is not None:
                return found
        view, index = self._shared()
        values: Array = view[index]
        return values

    def write_shared(self, values: Array) -> None:
        """Write the units to shared memory."""
        view, index = self._shared()
        view[index] = values

    def load(self) -> BoolArray | None:
        """Copy the units in global memory to shared memory; return which are undefined."""
        if self._is_plain and self.units.ndim == 1:
            corners = self._host_corners(self._whole_allocation())
            if corners is not None and native.fill(
                self.m.memory.shared.data, self.rows, self.units, (corners, self.places.relative)
            ):
                return None
        values, undefined = self.read_global()
        self.write_shared(values)
        return undefined

    @property
    def _is_plain(self) -> bool:
        """Return whether the copy moves wide units, which are all inside, of boxes alike."""
        if self.places.corners is None or not self.places.relative.size or self.change is not None:
            return False
        return self.unit_bytes == _WIDE_BYTES and self.inside is None

    def _whole_allocation(self) -> Allocation:
        """Return the allocation that holds all units."""
        corners, relative = self.places.corners, self.places.relative
        if corners is None:
            return self._allocation(self.addresses)
        low, high = int(np.minimum.reduce(corners)), int(np.maximum.reduce(corners))
        return self._holding(low + int(relative[0]), high + int(relative[-1]) + self.unit_bytes)

    def _host_corners(self, allocation: Allocation) -> Array | None:
        """Return where the boxes' corners are in this process, None if writes are tracked."""
        corners = self.places.corners
        return None if corners is None else allocation.host_addresses(corners)

    def combine_shared(self, values: Array, dtype: np.dtype[Any], combine: Any) -> None:
        """Combine units, elements of `dtype`, with shared memory, lane after lane."""
        view = self.m.memory.shared.data.view(dtype)
        for k, row in enumerate(self.rows):
            units = self.units if self.units.ndim == 1 else self.units[k]
            new = combine(view[row, units], values[k].view(dtype))
            view[row, units] = new.astype(dtype)

    def read_global(self) -> tuple[Array, BoolArray | None]:
        """Return the units in global memory, outside ones filled, and which are undefined."""
        if self.inside is not None and not any_of(self.inside):
            dtype = unit_dtype(self.unit_bytes)
            return np.full(self.addresses.shape, self._fill_unit(dtype), dtype), None
        allocation, at = self._global_index()
        values = allocation.view(self.unit_bytes)[1].take(at)
        undefined: BoolArray | None = None
        if allocation.written is not None:
            undefined = np.logical_not(allocation.shadow(self.unit_bytes)[at].all(axis=-1))
            if self.inside is not None:
                undefined &= self.inside
        if self.inside is not None:
            values[~self.inside] = self._fill_unit(values.dtype)
        return values if self.change is None else self.change(values), undefined

    def write_global(self, values: Array) -> None:
        """Write the inside units to global memory."""
        if self.inside is not None and not any_of(self.inside):
            return
        if self.change is not None:
            values = self.change(values)
        self._note_write(values)
        if self._is_plain:
            allocation = self._whole_allocation()
            self._require_writable(allocation)
            corners = self._host_corners(allocation)
            if corners is not None and native.scatter(values, (corners, self.places.relative)):
                return
        allocation, at = self._global_index()
        self._require_writable(allocation)
        if self.inside is not None:
            at, values = at[self.inside], values[self.inside]
        allocation.view(self.unit_bytes)[1][at] = values
        if allocation.written is not None:
            allocation.shadow(self.unit_bytes)[at] = True

    def combine_global(self, values: Array, dtype: np.dtype[Any], combine: Any) -> None:
        """Combine the inside units, elements of `dtype`, with global memory, box after box."""
        if self.inside is not None and not any_of(self.inside):
            return
        self._note_write(None)
        allocation, at = self._global_index()
        self._require_writable(allocation)
        view = allocation.view(self.unit_bytes)[1].view(dtype)
        for k in range(len(at)):
            chosen = slice(None) if self.inside is None else self.inside[k]
            where = at[k][chosen]
            view[where] = combine(view[where], values[k].view(dtype)[chosen]).astype(dtype)

    def _note_write(self, values: Array | None) -> None:
        """Check what the copy writes, or without values combines, against other accesses."""
        if self.past is not None and self.m.memory.globals.races is not None:
            self.m.memory.globals.races.copy_out(self, self.past, values)

    def _require_writable(self, allocation: Allocation) -> None:
        """Fault if the copy writes memory that the launch may only read."""
        if allocation.read_only:
            raise self.fault("E222", f"the {self.what} writes {allocation.name}, read-only memory")

    def fault(self, code: str, message: str, at: int = 0) -> Exception:
        """Return a fault at the instruction that issued the copy, of its lane number `at`."""
        self.m.pc = self.pc
        return self.m.fault(code, message, int(self.lanes.index[at]))

    def _global_index(self) -> tuple[Allocation, Array]:
        """Return the allocation and each unit's place in it; outside units get place 0."""
        reached = self.addresses if self.inside is None else self.addresses[self.inside]
        allocation = self._allocation(reached)
        start, _ = allocation.view(self.unit_bytes)
        at = (self.addresses - start) // self.unit_bytes
        return allocation, at if self.inside is None else np.where(self.inside, at, 0)

    def _allocation(self, reached: Array) -> Allocation:
        """Return the allocation that holds the units at some addresses."""
        return self._holding(int(reached.min()), int(reached.max()) + self.unit_bytes)

    def _holding(self, low: int, high: int) -> Allocation:
        allocation = self.m.memory.globals.find(low)
        if allocation is None or high > allocation.high:
            raise self._outside(low, high, allocation)
        return allocation

    def _outside(self, low: int, high: int, allocation: Allocation | None) -> Exception:
        where = "where nothing is allocated"
        if allocation is not None:
            where = f"past the end of {allocation.name} [{allocation.low:#x}, {allocation.high:#x})"
        return self.fault(
            "E220", f"the {self.what} reaches global addresses [{low:#x}, {high:#x}), {where}"
        )

    def _fill_unit(self, dtype: np.dtype[Any]) -> Any:
        pattern = self.fill.to_bytes(self.element_bytes, "little")
        return np.frombuffer(pattern * (self.unit_bytes // self.element_bytes), dtype)[0]


def issue_load(transfer: Transfer, barrier_rows: Array, barrier_offsets: Array) -> None:
    """Issue a copy to shared memory that counts its bytes off an mbarrier, outside ones too."""
    m, chunks = transfer.m, transfer.chunks()
    sizes = np.full(len(barrier_rows), transfer.counted_bytes, np.int64)

    def perform() -> None:
        undefined = transfer.load()
        if races is not None and fetch is not None:
            races.fetching.end_bulk(fetch)
        if m.guard is not None:
            m.guard.end(operation)
        else:
            define(m.memory.shared, chunks)
        if undefined is not None and any_of(undefined):
            _undefine(transfer, undefined)
        try:
            mbarriers_of(m).complete_bytes(barrier_rows, barrier_offsets, sizes)
        except BarrierMisuse as error:
            raise transfer.fault(error.code, error.message, error.at) from None
        if m.guard is not None:
            m.guard.complete_mbarrier(transfer.lanes, transfer.pc, barrier_rows, barrier_offsets)
        m.wake = True

    operation = transfer.operation(perform)
    operation.signals = True
    operation.offsets = frozenset(barrier_offsets.tolist())
    if m.guard is not None:
        m.guard.begin_write(operation, transfer.lanes, chunks)
        m.guard.count_bytes(transfer.lanes, barrier_rows, barrier_offsets)
    races, fetch = m.memory.globals.races, None
    if races is not None:
        fetch = races.copy_in(transfer)
    m.asynchronous.issue(operation)


def issue_shared(
    source: Transfer, target: Transfer, barrier: tuple[Array, Array], combine: Any = None
) -> None:
    """Issue a copy between blocks of a cluster, counted off a barrier of the target's block.

    `combine` = (dtype, function) reduces the units of the target instead of replacing them.
    """
    m = source.m

    def move() -> None:
        values = source.read_shared()
        if combine is None:
            target.write_shared(values)
        else:
            target.combine_shared(values, *combine)

    operation = _signalling(target, barrier, move)
    operation.blocks = np.concatenate([source.rows, target.rows])
    # Reports tell who issued what reaches a byte: at its source, too.
    lanes = Lanes.of(np.concatenate([source.lanes.index, target.lanes.index]))
    starts = np.concatenate([source.starts, target.starts])
    operation.issue = Issue.of(m, target.what, lanes, operation.blocks, starts)
    if m.guard is not None:
        m.guard.begin_read(operation, source.lanes, source.chunks())
        begin = m.guard.begin_write if combine is None else m.guard.begin_combine
        begin(operation, target.lanes, target.chunks())
        m.guard.count_bytes(target.lanes, *barrier)
    m.asynchronous.issue(operation)


def issue_values(target: Transfer, values: Array, barrier: tuple[Array, Array]) -> None:
    """Issue a write of values, [n, units], counted off a barrier of the target's block."""
    m, operation = target.m, _signalling(target, barrier, lambda: target.write_shared(values))
    if m.guard is not None:
        m.guard.begin_write(operation, target.lanes, target.chunks())
        m.guard.count_bytes(target.lanes, *barrier)
    m.asynchronous.issue(operation)


def _signalling(
    target: Transfer, barrier: tuple[Array, Array], move: Callable[[], None]
) -> Operation:
    """Return an operation that fills shared memory and then counts its bytes off a barrier."""
    m, sizes = target.m, np.full(len(barrier[0]), target.size_bytes, np.int64)

    def perform() -> None:
        move()
        if m.guard is not None:
            m.guard.end(operation)
        else:
            define(m.memory.shared, target.chunks())
        try:
            mbarriers_of(m).complete_bytes(*barrier, sizes)
        except BarrierMisuse as error:
            raise target.fault(error.code, error.message, error.at) from None
        if m.guard is not None:
            m.guard.complete_mbarrier(target.lanes, target.pc, *barrier)
        m.wake = True

    operation = target.operation(perform)
    operation.signals = True
    return operation


def _undefine(transfer: Transfer, undefined: BoolArray) -> None:
    """Carry unwritten global bytes over to shared memory as unwritten."""
    units = np.broadcast_to(transfer.units, undefined.shape)
    rows = np.broadcast_to(transfer.rows[:, None], undefined.shape)
    shared = transfer.m.memory.shared
    by_unit = shared.defined.reshape(len(shared.defined), -1, transfer.unit_bytes)
    by_unit[rows[undefined], units[undefined]] = False
    if transfer.m.guard is not None:
        transfer.m.guard.undefine(rows[undefined], units[undefined] * transfer.unit_bytes)


class BulkStore:
    """A copy or reduction from shared to global memory, which completes in two steps.

    First the source has been read (`wait_group.read` waits for that), then global memory has been
    written; `write` takes the values read. Each of its lanes may use the source again, or what is
    written, once it has waited, whenever that happens.
    """

    def __init__(self, transfer: Transfer, write: Callable[[Array], None]) -> None:
        self._transfer = transfer
        self._write = write
        self._values: Array | None = None
        self.operation = transfer.operation(self._perform)
        # Which lanes have not waited for the reads; when they have waited for the writes.
        self._reading = np.ones(len(transfer.rows), np.bool_)
        self.written = Written(transfer.lanes.index)
        m = transfer.m
        if m.guard is not None:
            m.guard.begin_read(self.operation, transfer.lanes, transfer.chunks())
        if m.memory.globals.races is not None:
            transfer.past = m.memory.globals.races.proxies.past()
            transfer.written = self.written

    @property
    def is_over(self) -> bool:
        """Return whether every lane has waited for what it writes."""
        return self.written.is_awaited

    def wait(self, mine: BoolArray, *, reads: bool) -> None:
        """Let some of the lanes wait for the operation, or with `reads` for its reads."""
        m = self._transfer.m
        if reads:
            self._read()
        else:
            m.asynchronous.complete(self.operation)
        new = mine & self._reading
        if any_of(new):
            self._reading &= ~new
            self._transfer.release(self.operation, new, self._reading)
            # These blocks may end now: only global memory is still to be written.
            m.asynchronous.keep(self.operation, self._transfer.rows[self._reading])
        if not reads:
            races = m.memory.globals.races
            self.written.await_by(mine, 0 if races is None else races.clocks.tick())

    def _read(self) -> None:
        """Read the source, if that has not happened."""
        if self._values is None:
            self._values = self._transfer.read_shared()

    def _perform(self) -> None:
        self._read()
        if self._values is None:
            raise AssertionError("a store without values")
        self._write(self._values)
