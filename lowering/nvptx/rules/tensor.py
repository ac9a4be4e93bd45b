"""Lowering of products in flight: `wgmma` on sm_90a, `tcgen05.mma` on sm_100a.

Invariant: an accumulator is a set of variables that LLVM turns into registers (wgmma), or columns
of tensor memory (tcgen05); in both, one product is one group that a wait counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from astdsl.errors import UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import Op, Value
from astdsl.ir.dtypes import DType, f16
from astdsl.ir.types import AccumulatorType, TileType
from astdsl.lowering.layout.registers import (
    TMEM_LANES,
    Layout,
    tmem_product,
    wgmma_accumulator,
    wgmma_operand,
)
from astdsl.lowering.layout.shared import SWIZZLES_BYTES
from astdsl.lowering.nvptx import tensor_memory
from astdsl.lowering.nvptx.access import slot_offset
from astdsl.lowering.nvptx.asm import tcgen05, wgmma
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.descriptors import UNIT_BYTES, Operand, tcgen05_instruction
from astdsl.lowering.nvptx.function import Emitter, lowers, lowers_tile
from astdsl.lowering.nvptx.rules.elements import unpacked, word_elements
from astdsl.lowering.nvptx.values import LV, i1, i32, i64
from astdsl.lowering.products import (
    TCGEN05_COLUMNS,
    WGMMA_COLUMNS,
    WGMMA_ROWS,
    Product,
    ProductKind,
    rows_of,
    up,
)
from astdsl.lowering.target import WGMMA, Target

MOST_COLUMNS = 256
_WORD_BYTES = 4
_WORD = 1 << 32
# How PTX spells the element types of a product.
PTX_TYPES = {
    "f16": "f16", "bf16": "bf16", "f32": "tf32", "tf32": "tf32", "f8e4m3": "e4m3",
    "f8e5m2": "e5m2", "i8": "s8", "u8": "u8",
}  # fmt: skip
PTX_RESULTS = {"f32": "f32", "f16": "f16", "i32": "s32"}


def _type(accumulator: Value) -> AccumulatorType:
    assert isinstance(accumulator.type, AccumulatorType), f"{accumulator} accumulates nothing"
    return accumulator.type


def _shape(accumulator: Value) -> tuple[int, int]:
    rows, columns = _type(accumulator).shape
    return rows, columns


@lowers(ops.AllocAccumulator)
def _alloc(emitter: Emitter, op: ops.AllocAccumulator) -> None:
    if emitter.target.has(WGMMA):
        layout = wgmma_accumulator(_shape(op.result), emitter.threads)
        count = layout.register_count // (2 if op.dtype is f16 else 1)
        number = sum(isinstance(each, wgmma.Accumulator) for each in emitter.extra.values())
        kind = wgmma.REGISTERS[PTX_RESULTS[op.dtype.name]]
        made = emitter.extra[op.result] = wgmma.Accumulator(number, kind, count)
        emitter.builder.declare(wgmma.declare(made))


@lowers(ops.AccumulatorWrite)
def _write(emitter: Emitter, op: ops.AccumulatorWrite) -> None:
    shape, dtype = _shape(op.accumulator), _type(op.accumulator).dtype
    if emitter.target.has(WGMMA):
        registers = emitter.get(op.value, wgmma_accumulator(shape, emitter.threads))
        row = wgmma.write(emitter.extra[op.accumulator])
        emitter.builder.asm(row, *_paired(emitter, dtype, registers))
        return
    layout = tmem_product(shape, emitter.threads)
    tensor_memory.write(emitter, op.accumulator, layout, emitter.get(op.value, layout))


@lowers_tile(ops.AccumulatorRead)
def _read(emitter: Emitter, op: ops.AccumulatorRead, layout: Layout) -> Sequence[LV]:
    if not emitter.target.has(WGMMA):
        registers = tensor_memory.read(emitter, op.accumulator, layout)
        width = word_elements(emitter, _type(op.accumulator).dtype, layout)
        return unpacked(emitter, emitter.builder.together(registers, width))
    held = emitter.builder.asm(wgmma.read(emitter.extra[op.accumulator]))
    if _type(op.accumulator).dtype is not f16:
        return held
    pairs = [emitter.builder.cast("bitcast", word, "<2 x half>") for word in held]
    return [half for pair in pairs for half in emitter.builder.unpack(pair)]


def _paired(emitter: Emitter, dtype: DType, registers: Sequence[LV]) -> Sequence[LV]:
    """Return elements as an accumulator's registers: f16 in pairs, neighbours of one row."""
    if dtype is not f16:
        return registers
    builder = emitter.builder
    pairs = zip(registers[::2], registers[1::2], strict=True)
    return [builder.cast("bitcast", builder.pack(pair), "i32") for pair in pairs]


@lowers(ops.ProductWait)
def _wait(emitter: Emitter, op: ops.ProductWait) -> None:
    if not emitter.target.has(WGMMA):
        tensor_memory.wait_for_products(emitter, op.pending)
        return
    emitter.builder.asm(wgmma.wait(op.pending))


@lowers(ops.MatrixMultiply)
def _multiply(emitter: Emitter, op: ops.MatrixMultiply) -> None:
    if emitter.target.has(WGMMA):
        _multiply_wgmma(emitter, op)
    else:
        _multiply_tcgen05(emitter, op)


class Side:
    """An operand in shared memory: its layout, and its slot."""

    def __init__(
        self,
        emitter: Emitter,
        buffer: Value,
        slot: Sequence[Value],
        window: ops.Window2D,
        k_axis: int,
    ) -> None:
        layout = emitter.shared.layouts[buffer]
        parts = window or tuple((0, extent) for extent in layout.shape)
        (first_i, self.extent), (first_k, self.depth) = parts[1 - k_axis], parts[k_axis]
        self.operand = Operand(layout, k_axis, (first_i, first_k))
        self._emitter, self._buffer, self._slot = emitter, buffer, slot

    def wgmma(self) -> LV:
        """Write the descriptor for wgmma."""
        return slot_descriptor(self._emitter, self._buffer, self._slot, self.operand.wgmma())

    def tcgen05(self) -> LV:
        """Write the descriptor for tcgen05.mma."""
        return slot_descriptor(self._emitter, self._buffer, self._slot, self.operand.tcgen05())

    def require_fit(self, op: Op, name: str, kind: ProductKind, target: Target) -> None:
        """Refuse a layout that products of a kind do not read."""
        layout = self.operand.layout
        if not self.operand.is_k_major and not kind.transposes(target):
            shape, turned = ("(k, m)", "(m, k)") if name == "a" else ("(k, n)", "(n, k)")
            raise UnsupportedFeature(
                f"{target.name} multiplies {layout.dtype} that is contiguous along k, and `{name}` "
                f"is so along {shape[-2]}",
                (op.span, "this product"),
                help=f"keep `{name}` as {turned}, contiguous along k"
                f"{', and multiply by its `.T`' if name == 'b' else ''}",
            )
        if self.operand.fits(self.extent, self.depth):
            return
        columns = SWIZZLES_BYTES[0] // layout.dtype.bytes
        raise UnsupportedFeature(
            f"a product cannot read `{name}` where and as it is laid out: {layout.dtype}"
            f"{list(layout.shape)}, swizzled by {layout.swizzle_bytes} bytes",
            (op.span, "this product"),
            help=f"parts begin at multiples of 8, rows are multiples of 32 bytes; state "
            f"`TilingTransform((8, {columns})), SwizzleTransform({SWIZZLES_BYTES[0]})`, or nothing",
        )


class _Operands:
    """The two operands of a product, where their slots begin, and what kind of product it is."""

    def __init__(self, emitter: Emitter, op: ops.MatrixMultiply) -> None:
        self.a = None
        self.a_tile = op.a if isinstance(op.a.type, TileType) else None
        a_dtype = (op.a.ref if self.a_tile is None else op.a.tile).dtype
        self.product = Product(a_dtype, op.b.ref.dtype, _type(op.accumulator).dtype)
        self.kind = self.product.kind
        if self.a_tile is None:
            k_axis = 0 if op.a_transposed else 1
            self.a = Side(emitter, op.a, op.a_slot, op.a_window, k_axis)
            self.a.require_fit(op, "a", self.kind, emitter.target)
        k_axis = 1 if op.b_transposed else 0
        self.b = Side(emitter, op.b, op.b_slot, op.b_window, k_axis)
        self.b.require_fit(op, "b", self.kind, emitter.target)
        assert self.b.depth % self.kind.depth == 0, f"K = {self.b.depth}: no whole instruction"

    @property
    def types(self) -> wgmma.Types:
        """The element types as PTX spells them."""
        a, b = (PTX_TYPES[dtype.name] for dtype in (self.product.a, self.product.b))
        return wgmma.Types(PTX_RESULTS[self.product.result.name], a, b)

    def instructions(
        self, blocks: int, columns: int, has: Callable[[int], bool]
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield (block of rows, first column, columns, first k) of each instruction.

        `has` says which numbers of columns there are instructions of.
        """
        depths = range(0, self.b.depth, self.kind.depth)
        runs = self.b.operand.parts(columns, MOST_COLUMNS)
        parts = [
            (start + first, width)
            for start, run in runs
            for first, width in _column_parts(run, has)
        ]
        for block, part, k in itertools.product(range(blocks), parts, depths):
            yield block, *part, k


def _column_parts(columns: int, has: Callable[[int], bool]) -> list[tuple[int, int]]:
    """Return (first column, columns) of each instruction along N, the widest that there is."""
    parts, first = [], 0
    while first < columns:
        width = min(MOST_COLUMNS, columns - first)
        while not has(width):
            width -= WGMMA_COLUMNS
        parts.append((first, width))
        first += width
    return parts


def slot_descriptor(
    emitter: Emitter, buffer: Value, slot: Sequence[Value], constant_part: int
) -> LV:
    """Return the descriptor of an operand in a slot, i64: a constant part and the slot's address.

    The address, over 16, is in the low word, and nothing carries from there into the high one.
    """
    builder = emitter.builder
    numbers = [builder.cast("trunc", emitter.scalar(v), "i32") for v in slot]
    first = builder.binary("udiv", emitter.shared_address(buffer), i32(UNIT_BYTES))
    units = builder.add(first, slot_offset(emitter, buffer, numbers, UNIT_BYTES))
    high, low = divmod(constant_part, _WORD)
    words = builder.pack((builder.add(units, i32(low)), i32(high)))
    return builder.cast("bitcast", words, "i64")


def _multiply_wgmma(emitter: Emitter, op: ops.MatrixMultiply) -> None:
    builder, operands = emitter.builder, _Operands(emitter, op)
    types = operands.types
    all_columns = up(_shape(op.accumulator)[1], WGMMA_COLUMNS)
    (first_row, rows), (first_column, columns) = _window(op)
    groups = emitter.threads // emitter.target.threads_per_warpgroup
    blocks = -(-rows // (WGMMA_ROWS * groups))
    values = _Values(emitter, operands, op, blocks)
    values["accumulate"], values["always"] = emitter.scalar(op.accumulate), i1(True)
    steps = []
    covered = up(columns, WGMMA_COLUMNS)
    has: Callable[[int], bool] = partial(wgmma.has_columns, types)
    for block, first, width, k in operands.instructions(blocks, covered, has):
        place = (first_row // WGMMA_ROWS + block) * all_columns + first_column + first
        a, b = values.a(block, k), values.b(first, k)
        steps.append(wgmma.Step(wgmma.registers(place, types.d), width, a, b, k > 0))
    row = wgmma.product(
        emitter.extra[op.accumulator],
        tuple(steps),
        types,
        a_in_registers=operands.a is None,
        transpose_a=operands.a is not None and not operands.a.operand.is_k_major,
        transpose_b=not operands.b.operand.is_k_major,
    )
    builder.asm(row, *(values[name] for name in row.inputs))


def _window(op: ops.MatrixMultiply) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (first, extent) of the rows and columns of the accumulator that a product adds to."""
    rows, columns = op.accumulator_window or ((0, n) for n in _shape(op.accumulator))
    return rows, columns


class _Values(dict[str, LV]):
    """The inputs of the row of a product, by name."""

    def __init__(
        self, emitter: Emitter, operands: _Operands, op: ops.MatrixMultiply, blocks: int
    ) -> None:
        super().__init__()
        self._builder, self._operands = emitter.builder, operands
        builder = emitter.builder
        self._b = operands.b.wgmma()
        self._registers_per_block = 0
        if operands.a is None:
            self._fragment(emitter, op.a, blocks)
            return
        side = operands.a
        self._a = side.wgmma()
        if emitter.threads > emitter.target.threads_per_warpgroup:
            move = builder.mul(emitter.warpgroup, i32(side.operand.units(WGMMA_ROWS * blocks, 0)))
            self._a = builder.add(self._a, builder.cast("zext", move, "i64"))

    def _fragment(self, emitter: Emitter, a: Value, blocks: int) -> None:
        """Pack the registers of A into words."""
        rows, depth = a.tile.shape
        each = _WORD_BYTES // a.tile.dtype.bytes
        registers = emitter.get(a, wgmma_operand((rows, depth), emitter.threads, each))
        self._registers_per_block = len(registers) // each // blocks
        for number in range(len(registers) // each):
            word = self._builder.pack(registers[each * number : each * (number + 1)])
            self[f"a{number}"] = self._builder.cast("bitcast", word, "i32")

    def a(self, block: int, k: int) -> int:
        """Return the number of the operand of A for an instruction."""
        if self._operands.a is None:
            return (
                block * self._registers_per_block
                + k // self._operands.kind.depth * wgmma.A_REGISTERS
            )
        return self._moved("a", self._a, self._operands.a.operand.units(block * WGMMA_ROWS, k))

    def b(self, column: int, k: int) -> int:
        """Return the number of the operand of B for an instruction."""
        return self._moved("b", self._b, self._operands.b.operand.units(column, k))

    def _moved(self, side: str, start: LV, units: int) -> int:
        if f"{side}{units}" not in self:
            self[f"{side}{units}"] = self._builder.add(start, i64(units))
        return units


def _is_whole(columns: int) -> bool:
    return columns % TCGEN05_COLUMNS == 0


class _InSharedMemory:
    """A of a product, given by a descriptor."""

    def __init__(self, side: Side) -> None:
        self._operand, self._start = side.operand, side.tcgen05()
        self.is_k_major = side.operand.is_k_major

    def at(self, builder: Builder, row: int, k: int) -> LV:
        """Return the operand from a row and an element along k on."""
        return builder.add(self._start, i64(self._operand.units(row, k)))


class _InTensorMemory:
    """A of a product, a tile that the threads write to the columns of an accumulator."""

    is_k_major = True

    def __init__(self, emitter: Emitter, op: ops.MatrixMultiply) -> None:
        (lender,) = op.lender
        rows, self._depth = op.a.tile.shape
        layout = tmem_product((rows, self._depth), emitter.threads)
        self._each = _WORD_BYTES // op.a.tile.dtype.bytes
        self._start = tensor_memory.address(emitter, lender)
        registers = emitter.get(op.a, layout)
        tensor_memory.write_operand(emitter, lender, layout, registers, self._each)

    def at(self, builder: Builder, row: int, k: int) -> LV:
        """Return the address from a row and an element along k on."""
        column = (row // TMEM_LANES * self._depth + k) // self._each
        return builder.add(self._start, i32(column))


def _multiply_tcgen05(emitter: Emitter, op: ops.MatrixMultiply) -> None:
    builder, operands = emitter.builder, _Operands(emitter, op)
    rows, columns = _shape(op.accumulator)
    columns = up(columns, TCGEN05_COLUMNS)
    accumulate = emitter.scalar(op.accumulate)
    address = tensor_memory.address(emitter, op.accumulator)
    a = _InSharedMemory(operands.a) if operands.a else _InTensorMemory(emitter, op)
    b_side, b = operands.b.operand, operands.b.tcgen05()
    row = tcgen05.mma(operands.kind.name, a_in_tensor_memory=operands.a is None)
    at_once = rows_of(op, emitter.target)
    blocks = -(-rows // at_once)
    with emitter.guarded(emitter.is_first_thread(), "issue"):
        builder.asm(tcgen05.FENCE_AFTER)
        for block, first, width, k in operands.instructions(blocks, columns, _is_whole):
            instruction = tcgen05_instruction(
                operands.product,
                at_once,
                width,
                a_is_k_major=a.is_k_major,
                b_is_k_major=b_side.is_k_major,
            )
            place = builder.add(address, i32(block * columns + first))
            a_here = a.at(builder, block * at_once, k)
            b_here = builder.add(b, i64(b_side.units(first, k)))
            scale = i1(True) if k else accumulate
            builder.asm(row, place, a_here, b_here, i32(instruction), scale)
        tensor_memory.commit(emitter)
    tensor_memory.count_product(emitter)
