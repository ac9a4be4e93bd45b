"""Reading staged tiles from their slots into registers.

Invariant: a slot is read after the wait for its copy, which whoever stages it has written.
"""

from __future__ import annotations

from astdsl.ir import ops
from astdsl.lowering.schedule.block import BlockScheduler, Slot


def read_slot(scheduler: BlockScheduler, op: ops.Load, slot: Slot) -> None:
    """Write the load of a whole slot in place of the load of the window."""
    maker, shape = scheduler.maker, op.window_type.shape
    zeros = tuple(maker.number(0) for _ in shape)
    new = ops.Load(
        span=op.span,
        ref=slot.buffer,
        starts=(*slot.slot, *zeros),
        sizes=(*(1 for _ in slot.slot), *shape),
        steps=(1,) * (len(slot.slot) + len(shape)),
        kept=(*(False for _ in slot.slot), *(True for _ in shape)),
    )
    new.result.hint = op.result.hint
    scheduler.values[op.result] = maker.add_op(new).result
