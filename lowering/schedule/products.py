"""Matrix products of tiles as asynchronous products of shared-memory operands.

Before
    d = dot a, b
After
    multiply accumulator, a's slot, b's slot; wait 0; d = read accumulator

Invariant: an operand in registers is stored to shared memory, fenced for the asynchronous proxy,
and overwritten only when every product that reads it has been waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

from astdsl.errors import UnsupportedFeature
from astdsl.ir import dtypes, ops
from astdsl.ir.core import Value
from astdsl.ir.types import scalar
from astdsl.lowering.schedule.accumulation import allocate
from astdsl.lowering.schedule.block import BlockScheduler, Slot, schedules

OPERAND_DTYPES = (dtypes.f16, dtypes.bf16)
EXTENT_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class _Operand:
    slot: Slot
    is_transposed: bool


@schedules(ops.Dot)
def _dot(scheduler: BlockScheduler, op: ops.Dot) -> None:
    _check(op)
    a, b = _operand(scheduler, op.a, op), _operand(scheduler, op.b, op)
    adds = op.result in scheduler.accumulators
    accumulator = scheduler.accumulators[op.result] if adds else allocate(scheduler, op)
    maker = scheduler.maker
    accumulate = maker.number(adds, scalar(dtypes.boolean))
    maker.add_op(
        ops.MatrixMultiply(
            span=op.span,
            accumulator=accumulator,
            a=a.slot.buffer,
            b=b.slot.buffer,
            a_slot=a.slot.slot,
            b_slot=b.slot.slot,
            a_transposed=a.is_transposed,
            b_transposed=b.is_transposed,
            accumulate=accumulate,
        )
    )
    if not adds:
        maker.add_op(ops.ProductWait(span=op.span, pending=0))
        read = maker.add_op(ops.AccumulatorRead(span=op.span, accumulator=accumulator))
        scheduler.values[op.result] = read.result


@schedules(ops.Add)
def _add(scheduler: BlockScheduler, op: ops.Add) -> None:
    """Leave out the addition that the accumulator does."""
    if op not in scheduler.absorbed:
        scheduler.copy(op)


def _check(op: ops.Dot) -> None:
    """Refuse products that the tensor core does not do in this version."""
    for operand in (op.a, op.b):
        if operand.tile.dtype not in OPERAND_DTYPES or op.dtype is not dtypes.f32:
            raise UnsupportedFeature(
                f"`@` multiplies f16 and bf16 tiles, got {op.a.type} @ {op.b.type}",
                (op.span, "this product"),
                help="convert the operands: `a.astype(f16) @ b.astype(f16)`",
            )
        if any(extent % EXTENT_MULTIPLE for extent in operand.tile.shape):
            raise UnsupportedFeature(
                f"the extents of `@` are multiples of 16, got {op.a.type} @ {op.b.type}",
                (op.span, "this product"),
                help="choose blocks that are multiples of 16; ragged arrays are fine",
            )
    assert op.a.tile.dtype is op.b.tile.dtype, "operands of different dtypes meet in f32"


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
