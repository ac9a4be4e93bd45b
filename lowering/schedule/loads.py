"""Loads: from the slots of rings, from buffers that one copy fills, or straight into registers.

Before
    a = load x[window]
After
    copy_in x[window] -> buffer, full; wait full; a = load buffer[...]

A large window that nothing of the launch writes is copied. Invariant: a buffer is filled again
only after the barrier of the block that follows its last reader.
"""

from __future__ import annotations

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.types import GMEM
from astdsl.lowering.schedule.block import BlockScheduler, Slot, schedules
from astdsl.lowering.schedule.slots import read_slot
from astdsl.lowering.tensor_maps import why_not

# A smaller window is loaded into registers straight away: a copy and its barrier cost more.
LEAST_COPY_BYTES = 2048


@schedules(ops.Load)
def _load(scheduler: BlockScheduler, op: ops.Load) -> None:
    """Read a staged tile from its slot, unless only products use it: they read it there."""
    slot = scheduler.slots.get(op.result)
    only_products = reads_only_in_products(scheduler, op.result)
    if slot is None and is_unchanging(scheduler, op) and (only_products or _is_large(op)):
        wait, slot = stage_once(scheduler, op)
        scheduler.defer(op.result, lambda: _arrived(scheduler, op, wait, slot, only_products))
    elif slot is None:
        scheduler.copy(op)
    elif not only_products:
        read_slot(scheduler, op, slot)


def _is_large(op: ops.Load) -> bool:
    tile = op.window_type
    return tile.elements * tile.dtype.bytes >= LEAST_COPY_BYTES


def _arrived(
    scheduler: BlockScheduler, op: ops.Load, wait: ops.BarrierWait, slot: Slot, in_place: bool
) -> None:
    scheduler.maker.add_op(wait)
    if not in_place:
        read_slot(scheduler, op, slot)


def is_unchanging(scheduler: BlockScheduler, op: ops.Load) -> bool:
    """Whether TMA can read the window, and no write of the launch touches the array."""
    if op.ref.ref.space != GMEM or op.fill != 0 or op.ref in scheduler.written:
        return False
    return not why_not(op.ref.ref, op.sizes, op.steps)


def stage_once(scheduler: BlockScheduler, op: ops.Load) -> tuple[ops.BarrierWait, Slot]:
    """Start copying a window into a buffer of its own; return the wait for it, and the slot."""
    tile, before, span = op.window_type, scheduler.allocations, op.span
    label = f"copy of {op.ref.hint or 'window'}"
    buffer = before.add_op(
        ops.AllocSmem(
            span=span, shape=tile.shape, dtype=tile.dtype, label=label, transforms=op.transforms
        )
    ).result
    full = before.add_op(ops.AllocBarrier(span=span, count=1, arrivals=1, label="full")).result
    counter = before.add_op(ops.Counter(span=span)).result
    buffer.hint, full.hint, counter.hint = f"{op.ref.hint}_copy", "full", "copies"
    maker = scheduler.maker
    if scheduler.loops:  # somebody may still read what the last execution copied
        maker.add_op(ops.BlockBarrier(span=span))
    number = maker.add_op(ops.CounterRead(span=span, counter=counter)).result
    zero = maker.number(0)
    fields = {n: getattr(op, n) for n in ("span", "sizes", "steps", "kept")}
    maker.add_op(
        ops.CopyIn(
            **fields,
            ref=scheduler.value(op.ref),
            starts=scheduler.each(op.starts),
            buffer=buffer,
            barrier=full,
            index=zero,
        )
    )
    parity = maker.remainder(number, maker.number(2))
    maker.add_op(ops.CounterAdd(span=span, counter=counter, amount=maker.number(1)))
    slot = scheduler.slots[op.result] = Slot(buffer, ())
    return ops.BarrierWait(span=span, barrier=full, index=zero, parity=parity), slot


def reads_only_in_products(scheduler: BlockScheduler, value: Value) -> bool:
    """Whether every use of a tile is a product, perhaps of its transpose."""
    users = scheduler.users[value]
    return bool(users) and all(
        isinstance(user, ops.Dot)
        or (isinstance(user, ops.Transpose) and reads_only_in_products(scheduler, user.result))
        for user in users
    )


@schedules(ops.Transpose)
def _transpose(scheduler: BlockScheduler, op: ops.Transpose) -> None:
    """Leave out a transpose that a product does by its descriptor."""
    if op.x in scheduler.slots and reads_only_in_products(scheduler, op.result):
        return
    scheduler.copy(op)
