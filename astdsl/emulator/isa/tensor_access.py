"""Loads, stores and copies of tensor memory (PTX ISA 9.7.16.8, 9.7.16.9).

Invariant: a warp reaches only the 32 lanes of its place in its warpgroup; loaded cells are in use
until `tcgen05.wait::ld`, stored ones until `tcgen05.wait::st`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.convergence import Gathering, is_whole, together, warps_of
from astdsl.emulator.formats.descriptors import (
    OperandShape,
    decode_tcgen05_descriptor,
)
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.fragments import (
    TMEM_LANES,
    TMEM_SHAPES,
    TmemAccess,
    tmem_access,
)
from astdsl.emulator.isa import Control, Execute, controls, executes
from astdsl.emulator.issues import Issue
from astdsl.emulator.lanes import WARP_THREADS
from astdsl.emulator.matrix import contain
from astdsl.emulator.native.copies import register_addresses, transpose
from astdsl.emulator.products import register_rows
from astdsl.emulator.scalars import all_of, any_of
from astdsl.emulator.spread import Spread, own, pairs
from astdsl.emulator.syntax import Address, Immediate, Vector
from astdsl.emulator.tensor_memory import COLUMN_MASK, GROUP_LANES, LANE_SHIFT
from astdsl.emulator.tensor_products import (
    ORDER,
    OpenProduct,
    TensorTile,
    cells_of,
    tensor_memory,
)
from astdsl.emulator.tiles import locate
from astdsl.emulator.undefined import mark, require_defined

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import Array, BoolArray

Where = tuple[Any, Any, Any]
_REPEAT = re.compile(r"x\d+")


class _Access:
    """The shape, registers and address of one `tcgen05.ld` or `.st`."""

    def __init__(self, ops: Operands, registers: Any, address: Any, split: Any, pack: str) -> None:
        shape = next((w for w in ops.modifiers if w in TMEM_SHAPES), "")
        repeats = [w for w in ops.modifiers if _REPEAT.fullmatch(w)]
        ops.allow("ld", "st", "sync", "aligned", shape, pack, *repeats[:1])
        half = split.value if isinstance(split, Immediate) else 0
        repeat = int((repeats or ["x1"])[0][1:])
        try:
            found, near = tmem_access(shape, repeat, half), tmem_access(shape, repeat)
        except FormatError as error:
            raise ops.refuse(str(error)) from None
        self.packs = ops.has(pack)
        # Packed accesses take two columns for each register, sixteen bits of each. Upper threads
        # of .16x32bx2 begin at `taddr + immHalfSplitoff` all the same (PTX ISA 9.7.16.8.3).
        spread = TmemAccess(found.lane, found.column + near.column)
        self.access = spread if self.packs else found
        self.is_row = shape == "32x32b" and not self.packs
        self.n_columns = int(self.access.column.max()) + 1 + self.packs
        self.n_groups = 1 + int(self.access.lane.max()) // GROUP_LANES
        elements = registers.elements if isinstance(registers, Vector) else (registers,)
        self.places = tuple(ops.place(e) for e in elements)
        if len(self.places) != len(found.lane):
            raise ops.refuse(f".{shape} needs {len(found.lane)} registers here")
        self._address = ops.address(address)

    def locate(self, m: Machine, lanes: Lanes) -> _Located:
        """Return where the threads' registers lie, checked."""
        base = np.broadcast_to(self._address(m, lanes), lanes.n)
        thread = m.thread_of[lanes.sel]
        blocks = m.block_of[lanes.sel]
        lane, column = base >> LANE_SHIFT, base & COLUMN_MASK
        first = int(column[0])
        one = first if all_of(column == first) else None
        place = _Located(self, blocks, lane, column, thread, one)
        wrong = lane >> 5 != thread >> 5 & 3
        if any_of(wrong):
            at = int(np.argmax(wrong))
            raise m.fault(
                "E274", f"warp {int(thread[at]) // WARP_THREADS} accesses lane "
                f"{int(lane[at])} of tensor memory; a warp reaches only the 32 lanes of its "
                "place in its warpgroup",
                int(lanes.index[at]),
            )  # fmt: skip
        self._require_allocated(m, lanes, place)
        return place

    def _require_allocated(self, m: Machine, lanes: Lanes, place: _Located) -> None:
        if place.one is not None and is_whole(m, lanes, 1):
            # All blocks access the same columns.
            parts = [(place.one, np.arange(m.n_blocks), 0)]
        else:
            masks = {int(first): place.column == first for first in np.unique(place.column)}
            parts = [
                (first, np.unique(place.rows[mask]), int(np.argmax(mask)))
                for first, mask in masks.items()
            ]
        for first, rows, at in parts:
            columns = slice(first, first + self.n_columns)
            lane = int(lanes.index[at])
            tensor_memory(m).require_allocated(rows, columns, lane, "this access")


@dataclass(frozen=True, slots=True, eq=False)
class _Located:
    """Blocks, first lanes and first columns of the threads of one access; `one` is of all."""

    access: _Access
    rows: Array
    lane: Array
    column: Array
    thread: Array
    one: int | None

    def leaders(self, lanes: Lanes) -> Array:
        """Return the first lane of each warp."""
        first: Array = lanes.index[(self.thread & (WARP_THREADS - 1)) == 0]
        return first

    def rectangles(self) -> Where:
        """Return (block, group, column) of all cells that each warp touches, [warps, g, c]."""
        leaders = self.thread & (WARP_THREADS - 1) == 0
        groups = self.lane[leaders] // GROUP_LANES
        span = np.arange(self.access.n_groups)[:, None], np.arange(self.access.n_columns)
        return (
            self.rows[leaders, None, None],
            groups[:, None, None] + span[0],
            self.column[leaders, None, None] + span[1],
        )

    def region(self, m: Machine) -> Where | None:
        """Return the same as slices, if the warps of a warpgroup touch all lanes of all blocks."""
        if not self.access.is_row or len(self.thread) != m.n_blocks * TMEM_LANES:
            return None
        if self.one is None or any_of(self.lane & (WARP_THREADS - 1)):
            return None
        return slice(None), slice(None), slice(self.one, self.one + self.access.n_columns)

    def cells(self) -> Where:
        """Return (block, lane, column) of every register of every thread."""
        inner = self.thread & (WARP_THREADS - 1)
        lane = self.lane + self.access.access.lane[:, inner]
        column = self.column + self.access.access.column[:, inner]
        return np.broadcast_to(self.rows, lane.shape), lane, column

    def _whole_columns(self, data: Array) -> slice | None:
        """Return the columns accessed, if four warps of every block access the same whole ones."""
        if not self.access.is_row or len(self.thread) != data.shape[0] * TMEM_LANES:
            return None
        lane = self.lane + (self.thread & (WARP_THREADS - 1))
        order = lane * data.shape[0] + self.rows
        if self.one is None or any_of(order != np.arange(len(order))):
            return None
        return slice(self.one, self.one + self.access.n_columns)

    def _row_cells(self, data: Array) -> tuple[Array, tuple[Any, slice]] | None:
        """Return tensor memory as rows of columns and the part accessed, if it is whole rows."""
        if not self.access.is_row or self.one is None:
            return None
        lane = self.rows * TMEM_LANES + self.lane + (self.thread & (WARP_THREADS - 1))
        columns = slice(self.one, self.one + self.access.n_columns)
        return data.reshape(-1, data.shape[-1]), (lane, columns)

    def row_addresses(self, data: Array) -> Array | None:
        """Return where each thread's cells lie, if they are neighbours from one column on."""
        if not self.access.is_row or self.one is None:
            return None
        lane = self.rows * TMEM_LANES + self.lane + (self.thread & (WARP_THREADS - 1))
        cell = lane * data.shape[-1] + self.one
        addresses: Array = data.ctypes.data + cell * data.itemsize
        return addresses

    def read(self, data: Array) -> Array:
        """Return the registers' values, [registers, threads]."""
        whole = self._whole_columns(data)
        if whole is not None:
            by_thread = np.ascontiguousarray(data[:, :, whole].transpose(1, 0, 2))
            registers: Array = by_thread.reshape(-1, self.access.n_columns).T
            return registers
        found = self._row_cells(data)
        if found is not None:
            rows: Array = found[0][found[1]].T
            return rows
        block, lane, column = self.cells()
        values: Array = data[block, lane, column]
        if self.access.packs:
            values &= np.uint32(0xFFFF)
            values |= data[block, lane, column + 1] << np.uint32(16)
        return values

    def undefined(self, defined: BoolArray) -> Array:
        """Return the undefined bits of the registers, [registers, threads]."""
        block, lane, column = self.cells()
        bits: Array = ~defined[block, lane // GROUP_LANES, column] * np.uint32(0xFFFFFFFF)
        if self.access.packs:
            bits &= np.uint32(0xFFFF)
            bits |= ~defined[block, lane // GROUP_LANES, column + 1] * np.uint32(0xFFFF0000)
        return bits

    def write(self, data: Array, values: Array) -> None:
        """Write the registers' values, [registers, threads]."""
        found = self._row_cells(data)
        if found is not None:
            found[0][found[1]] = values.T
            return
        block, lane, column = self.cells()
        if not self.access.packs:
            data[block, lane, column] = values
            return
        data[block, lane, column] = values & np.uint32(0xFFFF)
        data[block, lane, column + 1] = values >> np.uint32(16)


@controls("tcgen05.ld")
def prepare_load(ops: Operands) -> Control:
    """`tcgen05.ld.sync.aligned.shape.xN{.pack::16b}.b32 r, [taddr]{, half-split}`."""
    split = ops.args[2] if len(ops.args) > 2 else None
    access = _Access(ops, ops.args[0], ops.args[1], split, "pack::16b")
    ops.writes += access.places
    rows = register_rows(access.places)

    def body(m: Machine, lanes: Lanes) -> None:
        memory = tensor_memory(m)
        m.in_flight.require_free(access.places, lanes)
        place = access.locate(m, lanes)
        where = _touched(m, lanes, place)
        memory.load(where, place.leaders(lanes))
        registers = register_addresses(m, lanes, access.places)
        if registers is None or not transpose(place.row_addresses(memory.data), registers):
            _write_registers(m, lanes, rows, place.read(memory.data))
        undefined = None
        if not all_of(memory.defined[where]):
            undefined = place.undefined(memory.defined)
        if undefined is not None or m.undefined:
            for at, register in enumerate(access.places):
                mark(m, register, lanes, None if undefined is None else undefined[at])

    return together(body, Gathering(WARP_THREADS))


def _touched(m: Machine, lanes: Lanes, place: _Located) -> Where:
    """Return the cells of an access; as slices, which are faster, where nothing is to be reported.

    Lanes of one thread in all blocks are neighbours, so that a whole warpgroup is contiguous.
    """
    region = place.region(m) if m.guard is None and lanes.contiguous else None
    if region is None or tensor_memory(m).is_busy(region):
        return place.rectangles()
    return region


def _write_registers(m: Machine, lanes: Lanes, rows: Any, values: Array) -> None:
    bank = m.views[32, "b32"]
    if lanes.contiguous or isinstance(rows, slice):
        bank[rows, lanes.sel] = values
    else:
        bank[rows[:, None], lanes.index] = values


@controls("tcgen05.st")
def prepare_store(ops: Operands) -> Control:
    """`tcgen05.st.sync.aligned.shape.xN{.unpack::16b}.b32 [taddr]{, half-split}, r`."""
    split = ops.args[1] if len(ops.args) > 2 else None
    registers = ops.args[-1]
    elements = registers.elements if isinstance(registers, Vector) else (registers,)
    reads = [ops.source(element, "b32") for element in elements]
    access = _Access(ops, registers, ops.args[0], split, "unpack::16b")

    def body(m: Machine, lanes: Lanes) -> None:
        memory = tensor_memory(m)
        m.in_flight.require_free(access.places, lanes)
        require_defined(m, lanes, access.places, "a value stored to tensor memory")
        place = access.locate(m, lanes)
        where = _touched(m, lanes, place)
        memory.store(where, place.leaders(lanes))
        registers = register_addresses(m, lanes, access.places)
        if registers is None or not transpose(registers, place.row_addresses(memory.data)):
            values = np.stack([np.broadcast_to(read(m, lanes), lanes.n) for read in reads])
            place.write(memory.data, values)
        memory.defined[where] = True

    return together(body, Gathering(WARP_THREADS))


@controls("tcgen05.wait::ld")
def prepare_wait_load(ops: Operands) -> Control:
    """`tcgen05.wait::ld.sync.aligned`: the warp's loads are done."""
    ops.allow("wait::ld", "sync", "aligned")

    return together(lambda m, lanes: tensor_memory(m).wait_loads(*warps_of(m, lanes)))


@controls("tcgen05.wait::st")
def prepare_wait_store(ops: Operands) -> Control:
    """`tcgen05.wait::st.sync.aligned`: the warp's stores are done."""
    ops.allow("wait::st", "sync", "aligned")

    return together(lambda m, lanes: tensor_memory(m).wait_stores(*warps_of(m, lanes)))


# Shape and multicast -> (rows, bytes of a row, first lanes of each copy of each part of the rows).
# The four rows of 4x256b go to one lane of each partition: CuTe `SM100_UTCCP_4dp256bit`, whose
# layout is (4, 256):(32, 128), and TVM's documentation of TIRx (`tcgen05.cp`) agree on that.
_COPIES = {
    ("128x256b", ""): (128, 32, ((0,), (32,), (64,), (96,))),
    ("4x256b", ""): (4, 32, ((0,), (32,), (64,), (96,))),
    ("128x128b", ""): (128, 16, ((0,), (32,), (64,), (96,))),
    ("64x128b", "warpx2::02_13"): (64, 16, ((0, 64), (32, 96))),
    ("64x128b", "warpx2::01_23"): (64, 16, ((0, 32), (64, 96))),
    ("32x128b", "warpx4"): (32, 16, ((0, 32, 64, 96),)),
}


# Formats that a copy unpacks -> bits of an element.
_PACKED = {"b6x16_p32": 6, "b4x16_p64": 4}


@dataclass(frozen=True, slots=True)
class _CopyShape:
    """What a copy reads, in which lanes the copies of each part begin, and how it unpacks."""

    source: OperandShape
    targets: tuple[tuple[int, ...], ...]
    packed_bits: int

    @property
    def part_rows(self) -> int:
        """Return how many rows, and lanes, each part has."""
        return self.source.rows // len(self.targets)


@executes("tcgen05.cp")
def prepare_copy(ops: Operands) -> Execute:
    """`tcgen05.cp.cta_group.shape{.multicast}{.b8x16.format} [taddr], descriptor`.

    From shared to tensor memory; packed elements of 4 or 6 bits become bytes on the way.
    """
    shape = next((w for w in ops.modifiers if w in {s for s, _ in _COPIES}), "")
    cast = next((w for w in ops.modifiers if w.startswith("warpx")), "")
    row = _COPIES.get((shape, cast))
    if row is None:
        raise ops.refuse("supported are " + ", ".join(".".join(k).strip(".") for k in _COPIES))
    format_ = next((word for word in ops.modifiers if word in _PACKED), "")
    if ops.has("b8x16") != bool(format_):
        raise ops.refuse("the formats are .b8x16.b6x16_p32 and .b8x16.b4x16_p64")
    ops.allow("cp", "cta_group::1", "cta_group::2", shape, cast, "b8x16", format_)
    reach = pairs if ops.has("cta_group::2") else own
    if not isinstance(ops.args[0], Address):
        raise ops.refuse("the destination is an address of tensor memory")
    address, descriptor = ops.address(ops.args[0]), ops.source(ops.args[1], "b64")
    ops.sensitive += ops.reads
    move = _CopyShape(OperandShape(row[0], row[1], 1), row[2], _PACKED.get(format_, 0))

    def execute(m: Machine, lanes: Lanes) -> None:
        addresses = np.broadcast_to(address(m, lanes), lanes.n)
        bits = np.broadcast_to(descriptor(m, lanes), lanes.n)
        for start in np.unique(addresses):
            some = lanes.where(addresses == start)
            spread = reach(m, some)
            chosen = spread.of(bits[addresses == start])
            _issue_copy(m, spread, int(start), chosen, move)

    return execute


def _issue_copy(m: Machine, spread: Spread, address: int, bits: Array, move: _CopyShape) -> None:
    shape = move.source
    memory, lanes, rows = tensor_memory(m), spread.lanes, spread.rows
    lane = int(lanes.index[0])
    try:
        source = locate(m, bits, decode_tcgen05_descriptor, shape)
    except FormatError as error:
        raise m.fault("E281", str(error), lane) from None
    first_lane, first, n_columns = address >> LANE_SHIFT, address & COLUMN_MASK, shape.depth // 4
    if first_lane + move.part_rows > WARP_THREADS:
        text = f"rows of tcgen05.cp for {move.part_rows} lanes of each partition begin in lane "
        raise m.fault("E281", f"{text}{first_lane}", lane)
    columns = slice(first, first + n_columns)
    tile = TensorTile.of(np.arange(128), columns)
    memory.require_allocated(rows, columns, lane, "tcgen05.cp")
    index = source.index(m, rows)

    def perform() -> None:
        raw = np.ascontiguousarray(m.memory.shared.data.view(np.complex128)[index])
        if move.packed_bits:
            raw = contain(raw.view(np.uint8), move.packed_bits)
        cells = raw.view(np.uint32).reshape(len(rows), -1, move.part_rows, n_columns)
        for part, starts in enumerate(move.targets):
            for start in starts:
                target = slice(first_lane + start, first_lane + start + move.part_rows)
                memory.data[rows, target, columns] = cells[:, part]
        memory.end(operation)
        if m.guard is not None:
            m.guard.end(operation)

    issue = Issue.of(m, "tcgen05.cp", lanes, rows)
    operation = Operation(perform, issue, ORDER, blocks=rows)
    if m.guard is not None:
        m.guard.begin_read(operation, lanes, index, 2 * (move.packed_bits or 8))
    memory.begin(operation, cells_of(rows, tile), lanes, writes=True)
    m.state(OpenProduct).product = None
    m.asynchronous.issue(operation)
