"""Lowering of products in flight: `wgmma` on sm_90a, `tcgen05.mma` on sm_100a.

Invariant: an accumulator is a set of variables that LLVM turns into registers (wgmma), or columns
of tensor memory (tcgen05); in both, one product is one group that a wait counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.types import AccumulatorType
from astdsl.lowering.layout.registers import Layout, tmem_accumulator, wgmma_accumulator
from astdsl.lowering.nvptx import tensor_memory
from astdsl.lowering.nvptx.access import slot_pointer
from astdsl.lowering.nvptx.asm import tcgen05, wgmma
from astdsl.lowering.nvptx.descriptors import Operand, tcgen05_instruction
from astdsl.lowering.nvptx.function import Emitter, lowers, lowers_tile
from astdsl.lowering.nvptx.values import LV, constant, i1, i32, i64
from astdsl.lowering.products import TCGEN05_ROWS, WGMMA_ROWS
from astdsl.lowering.target import WGMMA

K_PER_PRODUCT = 16
MOST_COLUMNS = 256


def _shape(accumulator: Value) -> tuple[int, int]:
    assert isinstance(accumulator.type, AccumulatorType), f"{accumulator} accumulates nothing"
    rows, columns = accumulator.type.shape
    return rows, columns


def _column_parts(columns: int) -> Iterator[tuple[int, int]]:
    """Yield (first column, columns) of each instruction along N."""
    for first in range(0, columns, MOST_COLUMNS):
        yield first, min(MOST_COLUMNS, columns - first)


@lowers(ops.AllocAccumulator)
def _alloc(emitter: Emitter, op: ops.AllocAccumulator) -> None:
    if emitter.target.has(WGMMA):
        layout = wgmma_accumulator(_shape(op.result), emitter.threads)
        zero = constant("float", 0.0)
        count = layout.register_count
        emitter.extra[op.result] = [emitter.builder.variable(zero) for _ in range(count)]


@lowers(ops.AccumulatorWrite)
def _write(emitter: Emitter, op: ops.AccumulatorWrite) -> None:
    shape = _shape(op.accumulator)
    if emitter.target.has(WGMMA):
        registers = emitter.get(op.value, wgmma_accumulator(shape, emitter.threads))
        _keep(emitter, emitter.extra[op.accumulator], registers)
        return
    layout = tmem_accumulator(shape, emitter.threads)
    tensor_memory.write(emitter, op.accumulator, layout, emitter.get(op.value, layout))


@lowers_tile(ops.AccumulatorRead)
def _read(emitter: Emitter, op: ops.AccumulatorRead, layout: Layout) -> Sequence[LV]:
    if emitter.target.has(WGMMA):
        return _held(emitter, emitter.extra[op.accumulator])
    return tensor_memory.read(emitter, op.accumulator, layout)


def _held(emitter: Emitter, variables: Sequence[LV]) -> list[LV]:
    return [emitter.builder.load("float", place, 4) for place in variables]


def _keep(emitter: Emitter, variables: Sequence[LV], registers: Sequence[LV]) -> None:
    for place, register in zip(variables, registers, strict=True):
        emitter.builder.store(register, place, 4)


@lowers(ops.ProductWait)
def _wait(emitter: Emitter, op: ops.ProductWait) -> None:
    if not emitter.target.has(WGMMA):
        tensor_memory.wait_for_products(emitter, op.pending)
        return
    variables = [] if op.pending else _all_accumulators(emitter)
    row = wgmma.wait(op.pending, len(variables))
    _keep(emitter, variables, emitter.builder.asm(row, *_held(emitter, variables)))


def _all_accumulators(emitter: Emitter) -> list[LV]:
    """Return the registers of every accumulator: what a wait for all products makes valid."""
    return [
        place for places in emitter.extra.values() if isinstance(places, list) for place in places
    ]


@lowers(ops.MatrixMultiply)
def _multiply(emitter: Emitter, op: ops.MatrixMultiply) -> None:
    if emitter.target.has(WGMMA):
        _multiply_wgmma(emitter, op)
    else:
        _multiply_tcgen05(emitter, op)


class _Operands:
    """The two operands of a product, and where their slots begin."""

    def __init__(self, emitter: Emitter, op: ops.MatrixMultiply) -> None:
        layouts = emitter.shared.layouts
        self.dtype = op.a.ref.dtype
        self.a = Operand(layouts[op.a], k_axis=0 if op.a_transposed else 1)
        self.b = Operand(layouts[op.b], k_axis=1 if op.b_transposed else 0)
        self.depth = layouts[op.a].shape[self.a.k_axis]
        self.a_address = _slot_address(emitter, op.a, op.a_slot)
        self.b_address = _slot_address(emitter, op.b, op.b_slot)

    def instructions(self, blocks: int, columns: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (block of rows, first column, columns, first k) of each instruction."""
        depths = range(0, self.depth, K_PER_PRODUCT)
        for block, part, k in itertools.product(range(blocks), _column_parts(columns), depths):
            yield block, *part, k


def _slot_address(emitter: Emitter, buffer: Value, slot: Sequence[Value]) -> LV:
    """Return the address of a slot over 16, i64, the low part of a descriptor."""
    builder = emitter.builder
    numbers = [builder.cast("trunc", emitter.scalar(v), "i32") for v in slot]
    address = builder.shared_address(slot_pointer(emitter, buffer, numbers))
    return builder.cast("zext", builder.lshr(address, i32(4)), "i64")


def _multiply_wgmma(emitter: Emitter, op: ops.MatrixMultiply) -> None:
    builder, operands = emitter.builder, _Operands(emitter, op)
    rows, columns = _shape(op.accumulator)
    groups = emitter.threads // emitter.target.threads_per_warpgroup
    blocks = -(-rows // (WGMMA_ROWS * groups))
    a = builder.add(operands.a_address, i64(operands.a.wgmma()))
    if groups > 1:
        group = emitter.thread_digit(emitter.target.threads_per_warpgroup, groups)
        move = builder.mul(group, i32(operands.a.units(WGMMA_ROWS * blocks, 0)))
        a = builder.add(a, builder.cast("zext", move, "i64"))
    b = builder.add(operands.b_address, i64(operands.b.wgmma()))
    values = {"accumulate": emitter.scalar(op.accumulate), "always": i1(True)}
    steps = []
    for block, first, width, k in operands.instructions(blocks, columns):
        moves = (operands.a.units(block * WGMMA_ROWS, k), operands.b.units(first, k))
        steps.append(wgmma.Step((block * columns + first) // 2, width, *moves, k > 0))
        for side, start, units in zip("ab", (a, b), moves, strict=True):
            if f"{side}{units}" not in values:
                values[f"{side}{units}"] = builder.add(start, i64(units))
    row = wgmma.product(
        tuple(steps),
        operands.dtype.name,
        transpose_a=not operands.a.is_k_major,
        transpose_b=not operands.b.is_k_major,
    )
    variables = emitter.extra[op.accumulator]
    given = (values[name] for name in row.inputs)
    _keep(emitter, variables, builder.asm(row, *_held(emitter, variables), *given))


def _multiply_tcgen05(emitter: Emitter, op: ops.MatrixMultiply) -> None:
    builder, operands = emitter.builder, _Operands(emitter, op)
    rows, columns = _shape(op.accumulator)
    accumulate = emitter.scalar(op.accumulate)
    address = tensor_memory.address(emitter, op.accumulator)
    a = builder.add(operands.a_address, i64(operands.a.tcgen05()))
    b = builder.add(operands.b_address, i64(operands.b.tcgen05()))
    with emitter.guarded(emitter.is_first_thread(), "issue"):
        builder.asm(tcgen05.FENCE_AFTER)
        for block, first, width, k in operands.instructions(-(-rows // TCGEN05_ROWS), columns):
            instruction = tcgen05_instruction(
                operands.dtype,
                TCGEN05_ROWS,
                width,
                a_is_k_major=operands.a.is_k_major,
                b_is_k_major=operands.b.is_k_major,
            )
            place = builder.add(address, i32(block * columns + first))
            a_here = builder.add(a, i64(operands.a.units(block * TCGEN05_ROWS, k)))
            b_here = builder.add(b, i64(operands.b.units(first, k)))
            scale = i1(True) if k else accumulate
            builder.asm(tcgen05.MMA_F16, place, a_here, b_here, i32(instruction), scale)
        tensor_memory.commit(emitter)
    tensor_memory.count_product(emitter)
