"""Matrix products of tiles as products of shared-memory operands.

Before
    d = dot a, b
After, on the tensor core
    multiply accumulator, a's slot, b's slot; wait 0; d = read accumulator
After, where the tensor core has no such product
    d = shared_dot a's slot, b's slot

Invariant: an accumulator is read when every product into it has been waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from astdsl.ir import dtypes, ops
from astdsl.ir.types import TileType, scalar
from astdsl.lowering.products import TF32_BITS, ProductKind, product_kind
from astdsl.lowering.schedule.accumulation import allocate
from astdsl.lowering.schedule.block import BlockScheduler, schedules
from astdsl.lowering.schedule.operands import (
    Operand,
    in_shared_memory,
    source_of,
    stored,
    tile_of,
)


@schedules(ops.Dot)
def _dot(scheduler: BlockScheduler, op: ops.Dot) -> None:
    kind = product_kind(op)
    if kind is None:
        _by_threads(scheduler, op)
        return
    adds = op.result in scheduler.accumulators
    accumulator = scheduler.accumulators[op.result] if adds else allocate(scheduler, op)
    maker = scheduler.maker
    accumulate = adds
    for a, b in _pairs(scheduler, op, kind):
        scale = maker.number(accumulate, scalar(dtypes.boolean))
        fields = _operand_fields(op, a, b)
        maker.add_op(ops.MatrixMultiply(**fields, accumulator=accumulator, accumulate=scale))
        accumulate = True
    if not adds:
        maker.add_op(ops.ProductWait(span=op.span, pending=0))
        read = maker.add_op(ops.AccumulatorRead(span=op.span, accumulator=accumulator))
        scheduler.values[op.result] = read.result


def _pairs(
    scheduler: BlockScheduler, op: ops.Dot, kind: ProductKind
) -> Iterator[tuple[Operand, Operand]]:
    """Yield the operands of each product: one, or three that leave only the rests' product out."""
    a, b = (in_shared_memory(scheduler, op, side, kind) for side in "ab")
    if op.precision == "tf32x3":
        a_rest, b_rest = (_rest(scheduler, op, side, kind) for side in "ab")
        yield a_rest, b
        yield a, b_rest
    yield a, b


def _rest(scheduler: BlockScheduler, op: ops.Dot, side: str, kind: ProductKind) -> Operand:
    """Store what the tensor core leaves of an operand: `x` less `x` without its low bits."""
    source, maker, span = source_of(scheduler, op, side), scheduler.maker, op.span
    tile = tile_of(scheduler, source)
    shape, dtype = tile.tile.shape, tile.tile.dtype
    bits = maker.add_op(ops.Bitcast(span=span, x=tile, dtype=dtypes.u32)).result
    mask = maker.number(TF32_BITS, TileType(shape, dtypes.u32))
    kept = maker.binary(ops.BitAnd, bits, mask)
    read = maker.add_op(ops.Bitcast(span=span, x=kept, dtype=dtype)).result
    return stored(scheduler, maker.subtract(tile, read), source, op, kind)


def _by_threads(scheduler: BlockScheduler, op: ops.Dot) -> None:
    """Multiply what the tensor core does not: other dtypes, small extents."""
    a, b = (in_shared_memory(scheduler, op, side, None) for side in "ab")
    new = ops.SharedDot(**_operand_fields(op, a, b), dtype=op.dtype)
    scheduler.values[op.result] = scheduler.maker.add_op(new).result


def _operand_fields(op: ops.Dot, a: Operand, b: Operand) -> dict[str, Any]:
    return {
        "span": op.span,
        "a": a.slot.buffer,
        "b": b.slot.buffer,
        "a_slot": a.slot.slot,
        "b_slot": b.slot.slot,
        "a_transposed": a.is_transposed,
        "b_transposed": b.is_transposed,
    }


@schedules(ops.Add)
def _add(scheduler: BlockScheduler, op: ops.Add) -> None:
    """Leave out the addition that the accumulator does."""
    if op not in scheduler.absorbed:
        scheduler.copy(op)
