"""Lowering of tensor memory by hand (PTX ISA 9.7.16).

Rows of a buffer of 128 are lanes; 64 rows are 16 lanes of each warp (layout F). A load is waited
for where it stands, so its registers may be used at once.

Invariant: what is done once for the block, products and their commits, its elected thread does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astdsl.errors import UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import DType
from astdsl.ir.types import TMEM
from astdsl.lowering.layout.inference import TMEM_CELL_BITS, tmem_layout
from astdsl.lowering.layout.registers import TMEM_LANES, Layout
from astdsl.lowering.nvptx import tensor_memory
from astdsl.lowering.nvptx.asm import tcgen05
from astdsl.lowering.nvptx.descriptors import tcgen05_instruction
from astdsl.lowering.nvptx.function import (
    MEMORY_TYPES,
    Emitter,
    as_memory,
    as_register,
    lowers,
    lowers_tile,
)
from astdsl.lowering.nvptx.rules.memory import barrier_address
from astdsl.lowering.nvptx.rules.tensor import MOST_COLUMNS, Side
from astdsl.lowering.nvptx.values import LV, i1, i32, i64, vector
from astdsl.lowering.products import TCGEN05_COLUMNS, WGMMA_COLUMNS, Product, ProductKind

_LANE_BIT = 16
_WARP_LANES = 32


@lowers(ops.AllocTmem)
def _alloc(emitter: Emitter, op: ops.AllocTmem) -> None:
    """Write nothing: the entry of the kernel reserved its columns."""


def _accesses(emitter: Emitter, op: ops.Window, layout: Layout) -> Iterator[tensor_memory.Access]:
    builder, per_cell = emitter.builder, tensor_memory.memory_of(emitter).cells[op.ref]
    rows, columns = op.sizes
    warp = emitter.thread_digit(_WARP_LANES, emitter.target.warps_per_warpgroup)
    lane = builder.shl(builder.mul(warp, i32(_WARP_LANES)), i32(_LANE_BIT))
    start = builder.add(column_address(emitter, op.ref, op.starts[1]), lane)
    groups = emitter.threads // emitter.target.threads_per_warpgroup
    if groups > 1:
        own = emitter.coordinate_base(layout, 1)
        start = builder.add(start, builder.binary("udiv", own, i32(per_cell)))
    cells = columns // per_cell // groups
    yield from tensor_memory.accesses(emitter, start, cells, half=rows < TMEM_LANES)


def column_address(emitter: Emitter, buffer: Value, start: Value) -> LV:
    """Return the address of lane 0 of the cell where column `start` of a buffer is."""
    builder = emitter.builder
    number = builder.cast("trunc", emitter.scalar(start), "i32")
    per_cell = tensor_memory.memory_of(emitter).cells[buffer]
    if per_cell > 1:
        number = builder.binary("udiv", number, i32(per_cell))
    return builder.add(tensor_memory.address(emitter, buffer), number)


@lowers_tile(ops.TmemLoad)
def _load(emitter: Emitter, op: ops.TmemLoad, layout: Layout) -> Sequence[LV]:
    builder, per_cell = emitter.builder, tensor_memory.memory_of(emitter).cells[op.ref]
    words: list[LV] = []
    for access in _accesses(emitter, op, layout):
        words += builder.asm(access.load, access.address)
    done = builder.asm(tcgen05.wait_load(len(words)), *words)
    dtype = op.ref.ref.dtype
    return [e for word in done for e in _elements(emitter, word, dtype, per_cell)]


def _elements(emitter: Emitter, word: LV, dtype: DType, per_cell: int) -> list[LV]:
    """Return the elements of a cell of 32 bits."""
    builder, kind = emitter.builder, MEMORY_TYPES[dtype.name]
    if per_cell > 1:
        found = builder.unpack(builder.cast("bitcast", word, vector(per_cell, kind)))
        return [as_register(builder, element, dtype) for element in found]
    bits = word if dtype.bits == TMEM_CELL_BITS else builder.cast("trunc", word, f"i{dtype.bits}")
    element = bits if bits.type == kind else builder.cast("bitcast", bits, kind)
    return [as_register(builder, element, dtype)]


def _word(emitter: Emitter, registers: Sequence[LV], dtype: DType) -> LV:
    """Return a cell that holds some elements."""
    builder = emitter.builder
    elements = [as_memory(builder, register, dtype) for register in registers]
    if len(elements) > 1:
        return builder.cast("bitcast", builder.pack(elements), "i32")
    (element,) = elements
    kind = f"i{dtype.bits}"
    bits = element if element.type == kind else builder.cast("bitcast", element, kind)
    return bits if dtype.bits == TMEM_CELL_BITS else builder.cast("zext", bits, "i32")


@lowers(ops.TmemStore)
def _store(emitter: Emitter, op: ops.TmemStore) -> None:
    per_cell = tensor_memory.memory_of(emitter).cells[op.ref]
    layout = tmem_layout(op, emitter.threads, per_cell)
    registers = emitter.get(op.value, layout)
    dtype = op.ref.ref.dtype
    words = [
        _word(emitter, registers[first : first + per_cell], dtype)
        for first in range(0, len(registers), per_cell)
    ]
    for access in _accesses(emitter, op, layout):
        given = words[access.first : access.first + access.registers]
        emitter.builder.asm(access.store, access.address, *given)


@lowers(ops.TmemWaitLoad)
def _wait_load(emitter: Emitter, op: ops.TmemWaitLoad) -> None:
    emitter.builder.asm(tcgen05.wait_load(0))
    emitter.builder.asm(tcgen05.FENCE_BEFORE)
    emitter.synchronise()


@lowers(ops.TmemCommit)
def _commit_stores(emitter: Emitter, op: ops.TmemCommit) -> None:
    emitter.builder.asm(tcgen05.WAIT_ST)
    emitter.builder.asm(tcgen05.FENCE_BEFORE)
    emitter.synchronise()
    emitter.builder.asm(tcgen05.FENCE_AFTER)


@lowers(ops.TensorCommit)
def _commit(emitter: Emitter, op: ops.TensorCommit) -> None:
    barrier = barrier_address(emitter, op.barrier, op.index)
    with emitter.guarded(emitter.is_first_thread(), "commit"):
        emitter.builder.asm(tcgen05.COMMIT, barrier)


class _Left:
    """A: a descriptor, or an address in tensor memory; and how it moves along k."""

    def __init__(self, emitter: Emitter, op: ops.TensorMultiply, kind: ProductKind) -> None:
        self.emitter = emitter
        self.in_tensor_memory = op.a.ref.space == TMEM
        self.is_k_major = True
        if self.in_tensor_memory:
            self.start = column_address(emitter, op.a, op.a_column[0])
            self.per_cell = tensor_memory.memory_of(emitter).cells[op.a]
            return
        side = Side(emitter, op.a, op.a_slot, op.a_window, 0 if op.a_transposed else 1)
        side.require_fit(op, "a", kind, emitter.target)
        self.side, self.is_k_major = side.operand, side.operand.is_k_major
        self.start = side.tcgen05()

    def at(self, k: int) -> LV:
        """Return the operand from element k of its rows on."""
        builder = self.emitter.builder
        if self.in_tensor_memory:
            return builder.add(self.start, i32(k // self.per_cell))
        return builder.add(self.start, i64(self.side.units(0, k)))


@lowers(ops.TensorMultiply)
def _multiply(emitter: Emitter, op: ops.TensorMultiply) -> None:
    product = Product(op.a.ref.dtype, op.b.ref.dtype, op.accumulator.ref.dtype)
    builder, left = emitter.builder, _Left(emitter, op, product.kind)
    right = Side(emitter, op.b, op.b_slot, op.b_window, 1 if op.b_transposed else 0)
    right.require_fit(op, "b", product.kind, emitter.target)
    rows = op.accumulator.ref.shape[0]
    assert rows is not None, "tensor memory has static extents"
    accumulate = emitter.scalar(op.accumulate)
    place = column_address(emitter, op.accumulator, op.column)
    b = right.tcgen05()
    row = tcgen05.mma(product.kind.name, a_in_tensor_memory=left.in_tensor_memory)
    with emitter.guarded(emitter.is_first_thread(), "issue"):
        builder.asm(tcgen05.FENCE_AFTER)
        for first, width in _parts(op, right, rows):
            instruction = tcgen05_instruction(
                product,
                rows,
                width,
                a_is_k_major=left.is_k_major,
                b_is_k_major=right.operand.is_k_major,
            )
            for k in range(0, right.depth, product.kind.depth):
                b_here = builder.add(b, i64(right.operand.units(first, k)))
                scale = i1(True) if k else accumulate
                here = builder.add(place, i32(first))
                builder.asm(row, here, left.at(k), b_here, i32(instruction), scale)


def _parts(op: ops.TensorMultiply, right: Side, rows: int) -> list[tuple[int, int]]:
    """Return (first column, columns) of each instruction along N."""
    multiple = TCGEN05_COLUMNS if rows == TMEM_LANES else WGMMA_COLUMNS
    parts = list(right.operand.parts(op.columns, MOST_COLUMNS))
    if any(width % multiple for _, width in parts):
        raise UnsupportedFeature(
            f"products of {rows} rows come in {multiple} columns, and `b` begins where "
            f"{parts[0][1]} are left of a row of {right.operand.layout.row_elements}",
            (op.span, "this product"),
            help=f"begin at a multiple of {multiple} columns",
        )
    return parts
