"""Tensor copies, the groups of all bulk copies, and prefetches (PTX ISA 9.7.9.25.5, 9.7.9.27).

Invariant: what is not modelled (im2col) is refused by name when the program is prepared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.copies import Addresses, BulkStore, Transfer, issue_load
from astdsl.emulator.formats.boxes import (
    box_units,
    fill_pattern,
    padded_units,
    require_plain,
    shared_units,
)
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.swizzle import Swizzle
from astdsl.emulator.formats.tensormap import (
    MAP_BYTES,
    PADDED_WORDS,
    TensorDataType,
    TensorMap,
)
from astdsl.emulator.groups import GroupLedger
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.mbarrier import barrier_place
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.reductions import OPERATIONS, combiner, map_dtype
from astdsl.emulator.rounded import ROUNDED, STORED, Change
from astdsl.emulator.scalars import all_of, any_of, one_a_lane
from astdsl.emulator.spread import Spread, own, spread_by_mask
from astdsl.emulator.syntax import Address, Immediate, Symbol, Vector

if TYPE_CHECKING:
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Getter, Operands
    from astdsl.emulator.scalars import Array

_DIMENSIONS = ("1d", "2d", "3d", "4d", "5d")
_TILED = (
    "async", "bulk", "tensor", "tile", "global", "shared::cta", "shared::cluster",
    "L2::cache_hint", "cta_group::1", "cta_group::2", "tile::gather4", "tile::scatter4",
    *_DIMENSIONS,
)  # fmt: skip
_MAP_WORDS = MAP_BYTES // 8
_MAP_ALIGN_BYTES = 64
_MAP_SPACES = ("param", "const", "global")
_TENSOR_ALIGN_BYTES = 128


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

    def __init__(self, ops: Operands, tensor: Any, shared: Any, *, is_loaded: bool) -> None:
        self._address, self._is_loaded = ops.address(shared), is_loaded
        self._map, self._space = ops.address(tensor), _map_space(ops, tensor)
        rank = next((int(d[0]) for d in _DIMENSIONS if ops.has(d)), 0)
        extra = tensor.extra if isinstance(tensor, Address) else ()
        if len(extra) != 1 or not isinstance(extra[0], Vector):
            raise ops.refuse("a tensor operand is written [map, {coordinates}]")
        self._coordinates = ops.sources(extra[0], "s32")
        self._rank = rank
        # A column and four rows, each of which is a box of its own.
        self._chooses = ops.has("tile::gather4") or ops.has("tile::scatter4")
        wanted = 5 if self._chooses else rank
        if self._chooses and rank != 2:
            raise ops.refuse("gather4 and scatter4 are modes of 2d copies")
        if len(self._coordinates) != wanted:
            raise ops.refuse(f"{wanted} coordinates are needed, not {len(self._coordinates)}")
        ops.sensitive += ops.reads

    def maps(self, m: Machine, lanes: Lanes) -> Iterator[tuple[Lanes, TensorMap]]:
        """Yield lanes that use one map, and the map."""
        addresses = one_a_lane(self._map(m, lanes), lanes.n)
        same = all_of(addresses == addresses[0])
        for address in addresses[:1] if same else np.unique(addresses):
            some = lanes if same else lanes.where(addresses == address)
            found = _read_map(m, some, self._space, int(address))
            if found.rank != self._rank:
                text = f"a {self._rank}d copy uses a tensor map of rank {found.rank}"
                raise m.fault("E255", text, int(some.index[0]))
            if self._chooses and found.box[1] != 1:
                text = f"gather4 and scatter4 need a box of one row, not {found.box[1]}"
                raise m.fault("E255", text, int(some.index[0]))
            yield some, found

    def transfer(
        self,
        m: Machine,
        spread: Spread,
        found: TensorMap,
        what: str,
        by_element: bool = False,
        change: Change | None = None,
    ) -> Transfer:
        """Return the copy of one box for each lane and each block that it reaches."""
        lanes = spread.lanes
        corner = np.stack(
            [one_a_lane(get(m, lanes), lanes.n).astype(np.int64) for get in self._coordinates],
            axis=1,
        )
        if not self._is_loaded:
            _require_storable(m, lanes, found, corner)
        words = PADDED_WORDS.get(found.dtype)
        if found.element_bits < 8:
            align, name = (128, "padded elements") if words else (2, "pairs of 4-bit elements")
            require_aligned(m, lanes, corner[:, 0], align, f"a coordinate of {name}")
            corner[:, 0] = corner[:, 0] * found.element_bits // found.whole.element_bits
        n_boxes = 4 if self._chooses else 1
        size, counted = found.shared_bytes * n_boxes, found.box_bytes * n_boxes
        found = found.whole
        rows, starts = m.memory.shared_place(m, lanes, self._address(m, lanes), size)
        if spread.at is not None:
            rows = spread.rows
        require_aligned(m, lanes, starts, _TENSOR_ALIGN_BYTES, "a tensor copy's shared address")
        if self._chooses:
            corner = corner[:, [0, 1, 0, 2, 0, 3, 0, 4]].reshape(-1, 2)
        cut = box_units(found, corner, by_element=by_element or words is not None)
        if words is not None:
            cut = padded_units(cut, words)
        inside = None if cut.inside is None else cut.inside.reshape(lanes.n, -1)
        addresses = Addresses(found.address + cut.corners_bytes, cut.relative_bytes)
        if self._chooses:
            addresses = Addresses.listed(addresses.each.reshape(lanes.n, -1))
        units = place_units(starts, size, cut.unit_bytes, found.swizzle)
        return Transfer(
            m, lanes, what, cut.unit_bytes, addresses, inside, rows, starts, size, units,
            fill_pattern(found), found.element_bytes, counted, change,
        )  # fmt: skip


def _require_storable(m: Machine, lanes: Lanes, found: TensorMap, corner: Array) -> None:
    """Fault if a copy to global memory does what loads alone may (PTX ISA 9.7.9.25.5.1)."""
    if found.swizzle is Swizzle.B128_ATOM_32B_FLIP_8B:
        raise m.fault("E255", f"only loads have swizzle {found.swizzle.name}", int(lanes.index[0]))
    wrong = (corner < 0).any(axis=1)
    if any_of(wrong):
        at = int(np.argmax(wrong))
        text = "a copy to global memory begins at the coordinates "
        text += f"{', '.join(map(str, corner[at].tolist()))}; only loads may begin before 0"
        raise m.fault("E255", text, int(lanes.index[at]))


def place_units(starts: Array, size_bytes: int, unit_bytes: int, mode: Swizzle) -> Array:
    """Return the units in shared memory: one list for all lanes if they agree."""
    if all_of(starts == starts[0]):
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
    place = m.memory.split_generic(np.array([address]))[0][0] if space == "generic" else space
    if place not in _MAP_SPACES:
        text = f"a tensor map lies in {place} memory; copies read it in {', '.join(_MAP_SPACES)}"
        raise m.fault("E255", text, int(lanes.index[0]))
    require_aligned(m, lanes, np.array([address]), _MAP_ALIGN_BYTES, "the address of a tensor map")
    one = Lanes.listed(np.repeat(lanes.index[:1], _MAP_WORDS))
    words = address + 8 * np.arange(_MAP_WORDS)
    raw = m.memory.load(m, one, space, words, np.dtype(np.uint64))[0].tobytes()
    try:
        found = TensorMap.from_bytes(raw)
        require_plain(found)
    except FormatError as error:
        raise m.fault("E255", str(error), int(lanes.index[0])) from None
    if place == "param":
        known[address] = found
    elif m.memory.globals.races is not None:
        m.memory.globals.races.require_shown(m, lanes, address, MAP_BYTES)
    return found


def require_aligned(m: Machine, lanes: Lanes, values: Array, align: int, what: str) -> None:
    """Fault if one of the values, one a lane, is no multiple of `align`."""
    wrong = values % align != 0
    if any_of(wrong):
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
    """`[dst], [map, {coordinates}], [mbar]{, mask}{, hint}`: fills boxes, then counts bytes."""
    ops.allow(*_TILED, "mbarrier::complete_tx::bytes", "multicast::cluster")
    if ops.has("tile::scatter4"):
        raise ops.refuse("scatter4 is a mode of stores")
    box = _Box(ops, ops.args[1], ops.args[0], is_loaded=True)
    target = LoadTarget(ops, ops.args[2], ops.args[3:])

    def execute(m: Machine, lanes: Lanes) -> None:
        for some, found in box.maps(m, lanes):
            spread = target.spread(m, some)
            change = ROUNDED.get(found.dtype)
            transfer = box.transfer(m, spread, found, "TMA load", change=change)
            issue_load(transfer, *target.barriers(m, spread, transfer.rows))

    return execute


class LoadTarget:
    """Where a load to shared memory goes and signals: one block, or all of a mask."""

    def __init__(self, ops: Operands, barrier: Any, rest: Any) -> None:
        self._barrier = barrier_place(ops, barrier)
        self._is_of_pair = ops.has("cta_group::2")
        self._mask: Getter | None = None
        if ops.has("multicast::cluster"):
            if not rest:
                raise ops.refuse("a multicast needs the mask of its blocks")
            self._mask = ops.source(rest[0], "u16")
            ops.sensitive += ops.reads

    def spread(self, m: Machine, lanes: Lanes) -> Spread:
        """Return the blocks that each lane writes."""
        if self._mask is None:
            return own(m, lanes)
        return spread_by_mask(m, lanes, self._mask)

    def barriers(self, m: Machine, spread: Spread, rows: Array) -> tuple[Array, Array]:
        """Return the barrier that counts the bytes of each block written.

        It lies in the block itself, or with `.cta_group::2` in the block of its pair whose rank
        has the parity of the rank in the barrier's address.
        """
        named, offsets = self._barrier(m, spread.lanes)
        allowed = (rows & ~1) | (named & 1) if self._is_of_pair else rows
        if self._mask is None and any_of(named != allowed):
            at = int(np.argmax(named != allowed))
            raise m.fault(
                "E257", "the mbarrier of a load lies in another block than its destination",
                int(spread.lanes.index[at]),
                help="name the barrier of the destination; `.cta_group::2` may name its pair's",
            )  # fmt: skip
        return allowed, offsets


def _tensor_store(ops: Operands) -> Execute:
    """`[map, {coordinates}], [src]{, hint}`: writes what lies inside the tensor."""
    ops.allow(*_TILED, "bulk_group")
    if ops.has("tile::gather4"):
        raise ops.refuse("gather4 is a mode of loads")
    box = _Box(ops, ops.args[0], ops.args[1], is_loaded=False)

    def execute(m: Machine, lanes: Lanes) -> None:
        for some, found in box.maps(m, lanes):
            change = STORED.get(found.dtype)
            transfer = box.transfer(m, own(m, some), found, "TMA store", change=change)
            if found.dtype not in STORED and found.dtype in PADDED_WORDS:
                raise transfer.fault("E255", f"there is no store of {found.dtype.name} elements")
            issue_store(m, some, BulkStore(transfer, transfer.write_global))

    return execute


@executes("cp.reduce.async.bulk.tensor")
def prepare_tensor_reduction(ops: Operands) -> Execute:
    """`cp.reduce.async.bulk.tensor.dim.global.shared::cta.op.bulk_group [map, {c}], [src]`."""
    ops.allow(*_TILED, "reduce", "bulk_group", *OPERATIONS)
    box = _Box(ops, ops.args[0], ops.args[1], is_loaded=False)
    operation = next((word for word in OPERATIONS if ops.has(word)), None)
    if operation is None:
        raise ops.refuse("a reduction needs one of " + ", ".join(OPERATIONS))

    def execute(m: Machine, lanes: Lanes) -> None:
        for some, found in box.maps(m, lanes):
            change = ROUNDED.get(found.dtype)
            transfer = box.transfer(
                m, own(m, some), found, "TMA reduction", by_element=True, change=change
            )
            dtype = map_dtype(found.dtype, operation)
            if dtype is None:
                name = TensorDataType(found.dtype).name
                raise transfer.fault("E255", f"there is no .{operation} of {name} elements")
            issue_reduction(m, some, transfer, dtype, operation)

    return execute


def issue_reduction(
    m: Machine, lanes: Lanes, transfer: Transfer, dtype: np.dtype[Any], operation: str
) -> None:
    """Issue a reduction from shared to global memory."""
    combine = combiner(operation, dtype, transfer.change)

    def write(values: Array) -> None:
        transfer.combine_global(values, dtype, combine)

    issue_store(m, lanes, BulkStore(transfer, write))


def issue_store(m: Machine, lanes: Lanes, store: BulkStore) -> None:
    """Issue a copy or reduction that belongs to the open groups of its threads."""
    m.state(_Stores).issue(store, lanes.index)
    m.asynchronous.hold(store.operation)


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
    reads = ops.has("read")
    keep = ops.args[0].value

    def execute(m: Machine, lanes: Lanes) -> None:
        stores = m.state(_Stores)
        for store, mine in stores.due(lanes.index, keep):
            store.wait(mine, reads=reads)
        if m.guard is not None:
            m.guard.clocks.know_async(lanes.where(stores.has_issued(lanes.index)))

    return execute


@executes("cp.async.bulk.prefetch", "prefetch.tensormap")
def prepare_prefetch(ops: Operands) -> Execute:
    """`cp.async.bulk.prefetch...`, `prefetch.tensormap`: no effect on values."""

    def execute(m: Machine, lanes: Lanes) -> None:
        """Do nothing."""

    return execute
