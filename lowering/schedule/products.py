"""Matrix products of tiles as products of shared-memory operands.

Before
    d = dot a, b
After, on the tensor core
    multiply accumulator, a's slot, b's slot; wait 0; d = read accumulator
After, where the tensor core has no such product
    d = shared_dot a's slot, b's slot

Invariant: an operand in registers is stored to shared memory, fenced for the asynchronous proxy,
and overwritten only when every product that reads it has been waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from astdsl.errors import UnsupportedFeature
from astdsl.ir import dtypes, ops
from astdsl.ir.core import Value
from astdsl.ir.types import scalar
from astdsl.lowering.schedule.accumulation import allocate, is_for_tensor_core
from astdsl.lowering.schedule.block import BlockScheduler, Slot, schedules


@dataclass(frozen=True, slots=True)
class _Operand:
    slot: Slot
    is_transposed: bool


@schedules(ops.Dot)
def _dot(scheduler: BlockScheduler, op: ops.Dot) -> None:
    if not is_for_tensor_core(op):
        _by_threads(scheduler, op)
        return
    a, b = _operand(scheduler, op.a, op), _operand(scheduler, op.b, op)
    adds = op.result in scheduler.accumulators
    accumulator = scheduler.accumulators[op.result] if adds else allocate(scheduler, op)
    maker = scheduler.maker
    accumulate = maker.number(adds, scalar(dtypes.boolean))
    fields = _operand_fields(op, a, b)
    maker.add_op(ops.MatrixMultiply(**fields, accumulator=accumulator, accumulate=accumulate))
    if not adds:
        maker.add_op(ops.ProductWait(span=op.span, pending=0))
        read = maker.add_op(ops.AccumulatorRead(span=op.span, accumulator=accumulator))
        scheduler.values[op.result] = read.result


def _by_threads(scheduler: BlockScheduler, op: ops.Dot) -> None:
    """Multiply what the tensor core does not: other dtypes, other extents."""
    _check(op)
    a, b = _operand(scheduler, op.a, op), _operand(scheduler, op.b, op)
    new = ops.SharedDot(**_operand_fields(op, a, b), dtype=op.dtype)
    scheduler.values[op.result] = scheduler.maker.add_op(new).result


def _operand_fields(op: ops.Dot, a: _Operand, b: _Operand) -> dict[str, Any]:
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


def _check(op: ops.Dot) -> None:
    """Refuse products that neither the tensor core nor the threads do in this version."""
    if op.precision:
        raise UnsupportedFeature(
            f'`precision="{op.precision}"` is not in this version',
            (op.span, "this product"),
            help="leave it out: f32 operands then multiply exactly",
        )


def _operand(scheduler: BlockScheduler, value: Value, op: ops.Dot) -> _Operand:
    if value in scheduler.slots:
        return _Operand(scheduler.slots[value], is_transposed=False)
    maker = scheduler.forms.makers.get(value)
    if isinstance(maker, ops.Transpose) and maker.x in scheduler.slots:
        return _Operand(scheduler.slots[maker.x], is_transposed=True)
    return _Operand(_stored(scheduler, value, op), is_transposed=False)


def _stored(scheduler: BlockScheduler, value: Value, op: ops.Dot) -> Slot:
    """Store an operand that is in registers where the tensor core can read it."""
    tile, maker = value.tile, scheduler.maker
    allocation = ops.AllocSmem(
        span=op.span, shape=tile.shape, dtype=tile.dtype, label="operand of @"
    )
    buffer = scheduler.allocations.add_op(allocation).result
    zeros = tuple(maker.number(0) for _ in tile.shape)
    maker.add_op(ops.BlockBarrier(span=op.span))
    maker.add_op(
        ops.Store(
            span=op.span,
            ref=buffer,
            starts=zeros,
            sizes=tile.shape,
            steps=(1,) * len(tile.shape),
            kept=(True,) * len(tile.shape),
            value=scheduler.value(value),
        )
    )
    maker.add_op(ops.ProxyFence(span=op.span))
    maker.add_op(ops.BlockBarrier(span=op.span))
    return Slot(buffer, ())
