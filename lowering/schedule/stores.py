"""Stores as asynchronous copies out.

Before
    store out[window], value
After
    wait until the slot has been read; store slot, value; fence; copy_out slot -> window; commit
    (outside of loops nothing has used the slot before, and nothing is waited for)

A large store becomes one. Where its window may begin before the array, which a copy to global
memory may not (PTX ISA 9.7.9.25.5.1), threads store the value whenever it does.

Invariant: copies that may write the same elements twice are not made asynchronous, since their
order would be lost.
"""

from __future__ import annotations

from astdsl.ir import ops
from astdsl.ir.rewrite import clone_op
from astdsl.ir.types import GMEM
from astdsl.lowering.schedule.block import BlockScheduler, schedules
from astdsl.lowering.schedule.copies_out import slots_of
from astdsl.lowering.schedule.independence import separated
from astdsl.lowering.tensor_maps import why_not


@schedules(ops.Store)
def _store(scheduler: BlockScheduler, op: ops.Store) -> None:
    if _is_asynchronous(scheduler, op):
        _copy_out(scheduler, op)
        scheduler.stores_asynchronously = True
    else:
        scheduler.copy(op)


def _is_asynchronous(scheduler: BlockScheduler, op: ops.Store) -> bool:
    if op.ref.ref.space != GMEM or op.ref in scheduler.read:
        return False
    if why_not(op.ref.ref, op.sizes, op.steps):
        return False
    return bool(_slots(scheduler, op)) and writes_once(scheduler, op)


def _slots(scheduler: BlockScheduler, op: ops.Store) -> int:
    return slots_of(op.value.tile, is_in_loop=bool(scheduler.loops))


def writes_once(scheduler: BlockScheduler, op: ops.Store) -> bool:
    """Whether no element is written twice by a block, by this or another store."""
    others = [
        other
        for other in scheduler.users[op.ref]
        if isinstance(other, ops.WRITERS) and other is not op
    ]
    if others or not scheduler.loops:
        return not others
    indices = [frame.index for frame in scheduler.loops]
    changing = set().union(*(frame.inside for frame in scheduler.loops))
    apart = separated(op, op, indices, changing, scheduler.forms)
    return apart >= {index.value for index in indices}


def _copy_out(scheduler: BlockScheduler, op: ops.Store) -> None:
    tile, maker, before = op.value.tile, scheduler.maker, scheduler.allocations
    slots = _slots(scheduler, op)
    shape, label = (slots, *tile.shape), f"copies out of {op.ref.hint or 'tile'}"
    buffer = before.add_op(
        ops.AllocSmem(
            span=op.span, shape=shape, dtype=tile.dtype, label=label, transforms=op.transforms
        )
    ).result
    counter = before.add_op(ops.Counter(span=op.span)).result
    buffer.hint, counter.hint = f"{op.ref.hint}_out", "stores"
    if scheduler.loops:
        maker.add_op(ops.WaitGroup(span=op.span, pending=slots - 1, read_only=True))
    number = maker.add_op(ops.CounterRead(span=op.span, counter=counter)).result
    slot = maker.remainder(number, maker.number(slots))
    zeros = tuple(maker.number(0) for _ in tile.shape)
    maker.add_op(
        ops.Store(
            span=op.span,
            ref=buffer,
            starts=(slot, *zeros),
            sizes=(1, *tile.shape),
            steps=(1,) * len(shape),
            kept=(False, *(True for _ in tile.shape)),
            value=scheduler.value(op.value),
        )
    )
    maker.add_op(ops.ProxyFence(span=op.span))
    maker.add_op(ops.BlockBarrier(span=op.span))
    copy = ops.CopyOut(
        span=op.span,
        ref=scheduler.value(op.ref),
        starts=scheduler.each(op.starts),
        sizes=op.sizes,
        steps=op.steps,
        kept=op.kept,
        buffer=buffer,
        slot=(slot,),
    )
    may_be_outside = [v for v in op.starts if not scheduler.signs.is_nonnegative(v)]
    if may_be_outside:
        stored = clone_op(op, scheduler.values)
        begins_inside = maker.none_is_negative(scheduler.each(may_be_outside))
        maker.when(
            begins_inside, lambda then: then.add_op(copy), lambda other: other.add_op(stored)
        )
    else:
        maker.add_op(copy)
    maker.add_op(ops.CommitGroup(span=op.span))
    maker.add_op(ops.CounterAdd(span=op.span, counter=counter, amount=maker.number(1)))


@schedules(ops.Atomic)
def _atomic(scheduler: BlockScheduler, op: ops.Atomic) -> None:
    """Let what the block has written be in memory before an update that releases it."""
    if op.order in ("release", "acq_rel") and scheduler.written - {op.ref}:
        scheduler.maker.add_op(ops.WaitGroup(span=op.span, pending=0))
    scheduler.copy(op)
