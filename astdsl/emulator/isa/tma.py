"""Bulk and tensor copies, their groups and prefetches (PTX ISA 9.7.9.25, 9.7.9.27).

Invariant: what is not modelled (im2col, multicast, gather and scatter modes, copies between blocks)
is refused by name when the program is prepared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.copies import BulkStore, Transfer, issue_load
from astdsl.emulator.formats.boxes import box_units, fill_pattern, require_plain, shared_units
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.swizzle import Swizzle
from astdsl.emulator.formats.tensormap import TensorDataType, TensorMap
from astdsl.emulator.groups import GroupLedger
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.mbarrier import barrier_place
from astdsl.emulator.reductions import BULK_TYPES, OPERATIONS, combiner, map_dtype
from astdsl.emulator.syntax import Address, Immediate, Symbol, Vector

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import Array

_DIMENSIONS = ("1d", "2d", "3d", "4d", "5d")
_TILED = (
    "async", "bulk", "tensor", "tile", "global", "shared::cta", "shared::cluster",
    "L2::cache_hint", "cta_group::1", *_DIMENSIONS,
)  # fmt: skip
_TENSOR_ALIGN_BYTES = 128
_BULK_ALIGN_BYTES = 16


class _Stores(GroupLedger[BulkStore]):
    """The bulk async-groups of every thread of a machine."""

    def __init__(self, m: Machine) -> None:
        super().__init__(m.n_lanes)


class _Maps:
    """The tensor maps that a launch has read from its parameters, which cannot change."""

    def __init__(self, m: Machine) -> None:
        self.known: dict[int, TensorMap] = {}


class _Box:
    """The map, coordinates and shared address of one tensor instruction."""

    def __init__(self, ops: Operands, tensor: Any, shared: Any) -> None:
        self._address = ops.address(shared)
        self._map, self._space = ops.address(tensor), _map_space(ops, tensor)
        rank = next((int(d[0]) for d in _DIMENSIONS if ops.has(d)), 0)
        extra = tensor.extra if isinstance(tensor, Address) else ()
        if len(extra) != 1 or not isinstance(extra[0], Vector):
            raise ops.refuse("a tensor operand is written [map, {coordinates}]")
        self._coordinates = ops.sources(extra[0], "s32")
        if len(self._coordinates) != rank:
            raise ops.refuse(f"{rank}d needs {rank} coordinates, not {len(self._coordinates)}")
        ops.sensitive += ops.reads

    def maps(self, m: Machine, lanes: Lanes) -> Iterator[tuple[Lanes, TensorMap]]:
        """Yield lanes that use one map, and the map."""
        addresses = np.broadcast_to(self._map(m, lanes), lanes.n)
        for address in np.unique(addresses):
            some = lanes if (addresses == address).all() else lanes.where(addresses == address)
            found = _read_map(m, some, self._space, int(address))
            if found.rank != len(self._coordinates):
                text = f"a {len(self._coordinates)}d copy uses a tensor map of rank {found.rank}"
                raise m.fault("E255", text, int(some.index[0]))
            yield some, found

    def transfer(
        self, m: Machine, lanes: Lanes, found: TensorMap, what: str, by_element: bool = False
    ) -> Transfer:
        """Return the copy of one box for each lane."""
        corner = np.stack(
            [np.broadcast_to(get(m, lanes), lanes.n).astype(np.int64) for get in self._coordinates],
            axis=1,
        )
        rows, starts = m.memory.shared_place(m, lanes, self._address(m, lanes), found.box_bytes)
        _require_aligned(m, lanes, starts, _TENSOR_ALIGN_BYTES, "a tensor copy's shared address")
        cut = box_units(found, corner, by_element=by_element)
        units = _place(starts, found.box_bytes, cut.unit_bytes, found.swizzle)
        return Transfer(
            m, lanes, what, cut.unit_bytes, found.address + cut.offsets_bytes, cut.inside, rows,
            starts, found.box_bytes, units, fill_pattern(found), found.element_bytes,
        )  # fmt: skip


def _place(starts: Array, size_bytes: int, unit_bytes: int, mode: Swizzle) -> Array:
    """Return the units in shared memory: one list for all lanes if they agree."""
    if (starts == starts[0]).all():
        return shared_units(int(starts[0]), size_bytes, unit_bytes, mode)
    return np.stack([shared_units(int(s), size_bytes, unit_bytes, mode) for s in starts])


def _map_space(ops: Operands, tensor: Any) -> str:
    """Return the space of a map's address: a parameter by name, else generic."""
    base = tensor.base if isinstance(tensor, Address) else None
    found = ops.symbols(base.name) if isinstance(base, Symbol) else None
    return found[0] if found else "generic"


def _read_map(m: Machine, lanes: Lanes, space: str, address: int) -> TensorMap:
    known = m.state(_Maps).known
    if address in known:
        return known[address]
    one = lanes.where(np.arange(lanes.n) == 0)
    raw = b"".join(
        m.memory.load(m, one, space, np.array([address + at]), np.dtype(np.uint64), 1)[0].tobytes()
        for at in range(0, 128, 8)
    )
    try:
        found = TensorMap.from_bytes(raw)
        require_plain(found)
    except FormatError as error:
        raise m.fault("E255", str(error), int(lanes.index[0])) from None
    if space == "param" or m.memory.split_generic(np.array([address]))[0][0] == "param":
        known[address] = found
    return found


def _require_aligned(m: Machine, lanes: Lanes, values: Array, align: int, what: str) -> None:
    wrong = values % align != 0
    if wrong.any():
        at = int(np.argmax(wrong))
        text = f"{what}, {int(values[at]):#x}, is not a multiple of {align}"
        raise m.fault("E221", text, int(lanes.index[at]))


@executes("cp.async.bulk.tensor")
def prepare_tensor_copy(ops: Operands) -> Execute:
    """`cp.async.bulk.tensor.dim.dst.src{.tile}.completion`, by its direction."""
    if ops.has("bulk_group"):
        return _tensor_store(ops)
    return _tensor_load(ops)


def _tensor_load(ops: Operands) -> Execute:
    """`[dst], [map, {coordinates}], [mbar]{, hint}`: fills a box, then counts its bytes."""
    ops.allow(*_TILED, "mbarrier::complete_tx::bytes")
    box, barrier = _Box(ops, ops.args[1], ops.args[0]), barrier_place(ops, ops.args[2])

    def execute(m: Machine, lanes: Lanes) -> None:
        for some, found in box.maps(m, lanes):
            transfer = box.transfer(m, some, found, "TMA load")
            issue_load(transfer, *barrier(m, some))

    return execute


def _tensor_store(ops: Operands) -> Execute:
    """`[map, {coordinates}], [src]{, hint}`: writes what lies inside the tensor."""
    ops.allow(*_TILED, "bulk_group")
    box = _Box(ops, ops.args[0], ops.args[1])

    def execute(m: Machine, lanes: Lanes) -> None:
        for some, found in box.maps(m, lanes):
            transfer = box.transfer(m, some, found, "TMA store")
            _issue_store(m, some, BulkStore(transfer, transfer.write_global))

    return execute


@executes("cp.reduce.async.bulk.tensor")
def prepare_tensor_reduction(ops: Operands) -> Execute:
    """`cp.reduce.async.bulk.tensor.dim.global.shared::cta.op.bulk_group [map, {c}], [src]`."""
    ops.allow(*_TILED, "reduce", "bulk_group", *OPERATIONS)
    box = _Box(ops, ops.args[0], ops.args[1])
    operation = next((word for word in OPERATIONS if ops.has(word)), None)
    if operation is None:
        raise ops.refuse("a reduction needs one of " + ", ".join(OPERATIONS))

    def execute(m: Machine, lanes: Lanes) -> None:
        for some, found in box.maps(m, lanes):
            transfer = box.transfer(m, some, found, "TMA reduction", by_element=True)
            dtype = map_dtype(found.dtype, operation)
            if dtype is None:
                name = TensorDataType(found.dtype).name
                raise transfer.fault("E255", f"there is no .{operation} of {name} elements")
            _issue_reduction(m, some, transfer, dtype, operation)

    return execute


def _issue_reduction(
    m: Machine, lanes: Lanes, transfer: Transfer, dtype: np.dtype[Any], operation: str
) -> None:
    combine = combiner(operation, dtype)

    def write(values: Array) -> None:
        transfer.combine_global(values, dtype, combine)

    _issue_store(m, lanes, BulkStore(transfer, write))


def _issue_store(m: Machine, lanes: Lanes, store: BulkStore) -> None:
    m.state(_Stores).issue(store, lanes.index)
    m.asynchronous.issue(store.operation)


class _Run:
    """The operands of a copy of consecutive bytes: global and shared address, size."""

    def __init__(self, ops: Operands, global_operand: Any, shared: Any, size: Any) -> None:
        self._global, self._shared = ops.address(global_operand), ops.address(shared)
        self._size = ops.source(size, "u32")
        ops.sensitive += ops.reads

    def transfers(
        self, m: Machine, lanes: Lanes, what: str, unit_bytes: int = 16
    ) -> Iterator[tuple[Lanes, Transfer]]:
        """Yield the copies, one for each size that lanes ask for."""
        sizes = np.broadcast_to(self._size(m, lanes), lanes.n).astype(np.int64)
        _require_aligned(m, lanes, sizes, _BULK_ALIGN_BYTES, "a bulk copy's size")
        for size in np.unique(sizes[sizes > 0]):
            some = lanes if (sizes == size).all() else lanes.where(sizes == size)
            yield some, self._transfer(m, some, int(size), what, unit_bytes)

    def _transfer(
        self, m: Machine, lanes: Lanes, size: int, what: str, unit_bytes: int
    ) -> Transfer:
        sources = np.broadcast_to(self._global(m, lanes), lanes.n)
        rows, starts = m.memory.shared_place(m, lanes, self._shared(m, lanes), size)
        _require_aligned(m, lanes, sources, _BULK_ALIGN_BYTES, "a bulk copy's global address")
        _require_aligned(m, lanes, starts, _BULK_ALIGN_BYTES, "a bulk copy's shared address")
        addresses = sources[:, None] + np.arange(0, size, unit_bytes)
        units = _place(starts, size, unit_bytes, Swizzle.NONE)
        return Transfer(m, lanes, what, unit_bytes, addresses, None, rows, starts, size, units)


_LINEAR = ("async", "bulk", "global", "shared::cta", "shared::cluster", "L2::cache_hint")


@executes("cp.async.bulk")
def prepare_bulk_copy(ops: Operands) -> Execute:
    """`cp.async.bulk.dst.src.completion`, by its direction."""
    spaces = [word for word in ops.modifiers if word.partition("::")[0] in ("global", "shared")]
    if spaces == ["global", "shared::cta"]:
        return _bulk_store(ops)
    if spaces in (["shared::cluster", "global"], ["shared::cta", "global"]):
        return _bulk_load(ops)
    raise ops.refuse("copies between the shared memories of a cluster are not supported")


def _bulk_load(ops: Operands) -> Execute:
    """`[dst], [src], size, [mbar]{, hint}`."""
    ops.allow(*_LINEAR, "mbarrier::complete_tx::bytes")
    run = _Run(ops, ops.args[1], ops.args[0], ops.args[2])
    barrier = barrier_place(ops, ops.args[3])

    def execute(m: Machine, lanes: Lanes) -> None:
        for some, transfer in run.transfers(m, lanes, "bulk load"):
            issue_load(transfer, *barrier(m, some))

    return execute


def _bulk_store(ops: Operands) -> Execute:
    """`[dst], [src], size{, hint}`."""
    ops.allow(*_LINEAR, "bulk_group")
    run = _Run(ops, ops.args[0], ops.args[1], ops.args[2])

    def execute(m: Machine, lanes: Lanes) -> None:
        for some, transfer in run.transfers(m, lanes, "bulk store"):
            _issue_store(m, some, BulkStore(transfer, transfer.write_global))

    return execute


@executes("cp.reduce.async.bulk")
def prepare_bulk_reduction(ops: Operands) -> Execute:
    """`cp.reduce.async.bulk.global.shared::cta.bulk_group.op.type [dst], [src], size`."""
    ops.allow(*_LINEAR, "reduce", "bulk_group", "noftz", *OPERATIONS, *BULK_TYPES)
    if ops.modifiers[3] != "global":
        raise ops.refuse("reductions into shared memory of a cluster are not supported")
    operation = next((word for word in OPERATIONS if ops.has(word)), "")
    dtype = BULK_TYPES.get(ops.modifiers[-1])
    if dtype is None or not operation:
        raise ops.refuse("a reduction ends in an operation and a type")
    run = _Run(ops, ops.args[0], ops.args[1], ops.args[2])

    def execute(m: Machine, lanes: Lanes) -> None:
        for some, transfer in run.transfers(m, lanes, "bulk reduction", dtype.itemsize):
            _issue_reduction(m, some, transfer, dtype, operation)

    return execute


@executes("cp.async.bulk.commit_group")
def prepare_commit(ops: Operands) -> Execute:
    """`cp.async.bulk.commit_group`: close each thread's open group."""
    ops.allow("async", "bulk", "commit_group")

    def execute(m: Machine, lanes: Lanes) -> None:
        m.state(_Stores).commit(lanes.index)

    return execute


@executes("cp.async.bulk.wait_group")
def prepare_wait(ops: Operands) -> Execute:
    """`cp.async.bulk.wait_group{.read} N`: at most N groups stay pending (or unread)."""
    ops.allow("async", "bulk", "wait_group", "read")
    if not isinstance(ops.args[0], Immediate):
        raise ops.refuse("the number of groups must be a constant")
    keep, finish = ops.args[0].value, _finish_read if ops.has("read") else _finish

    def execute(m: Machine, lanes: Lanes) -> None:
        for store in m.state(_Stores).due(lanes.index, keep):
            finish(m, store)
        if m.guard is not None:
            m.guard.clocks.know_async(lanes)

    return execute


def _finish(m: Machine, store: BulkStore) -> None:
    m.asynchronous.complete(store.operation)


def _finish_read(m: Machine, store: BulkStore) -> None:
    store.read()


@executes("cp.async.bulk.prefetch", "prefetch.tensormap")
def prepare_prefetch(ops: Operands) -> Execute:
    """`cp.async.bulk.prefetch...`, `prefetch.tensormap`: no effect on values."""

    def execute(m: Machine, lanes: Lanes) -> None:
        """Do nothing."""

    return execute
