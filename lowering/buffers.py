"""Placing a kernel's barriers and buffers in shared memory, and choosing each buffer's layout.

Invariant: a buffer's layout follows from its uses: the contiguous axis of the arrays that it is
copied from or to, and what a product that reads it needs.
"""

from __future__ import annotations

import math

from astdsl.errors import OutOfSharedMemory, UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import Block, Value, walk
from astdsl.lowering.layout.inference import fastest_first
from astdsl.lowering.layout.shared import BufferLayout, SharedPlan, buffer_layout
from astdsl.lowering.products import padded_operand, product_barriers
from astdsl.lowering.target import TCGEN05, Target
from astdsl.source import Span

# How the labels of the buffers begin that have `stages` slots.
RING_LABEL = "ring of"


def plan_shared(body: Block, target: Target) -> SharedPlan:
    """Place every barrier and buffer of a kernel's body; refuse what does not fit."""
    plan = SharedPlan()
    allocations = [op for op in walk(body) if isinstance(op, ops.AllocSmem)]
    for op in walk(body):
        if isinstance(op, ops.AllocBarrier):
            plan.place_barriers(op.result, op.count)
    if target.has(TCGEN05) and any(isinstance(op, ops.MatrixMultiply) for op in walk(body)):
        plan.reserve_tensor_memory(product_barriers(body))
    for allocation in allocations:
        layout = _layout(allocation, body, target)
        plan.place_buffer(allocation.result, layout, _slots(allocation, layout))
    check_budget(plan, allocations, target)
    return plan


def check_budget(plan: SharedPlan, allocations: list[ops.AllocSmem], target: Target) -> None:
    """Refuse buffers that exceed the block's shared memory, naming each with its line."""
    limit = target.shared_bytes_per_block
    if plan.total_bytes <= limit:
        return
    places = [(op.span, _buffer_note(op, plan)) for op in allocations]
    raise OutOfSharedMemory(
        f"the buffers take {plan.total_bytes} bytes of shared memory, a block of {target.name} "
        f"has {limit}",
        *places,
        help=_way_out(plan, allocations, limit),
    )


def _buffer_note(op: ops.AllocSmem, plan: SharedPlan) -> str:
    layout = plan.layouts[op.result]
    slots = _slots(op, layout)
    each = f"{slots} x {layout.slot_bytes}" if slots > 1 else f"{layout.slot_bytes}"
    return f"{op.label or 'buffer'}: {each} bytes"


def _way_out(plan: SharedPlan, allocations: list[ops.AllocSmem], limit: int) -> str:
    """Name the largest stage count that fits."""
    # Copies out have as many slots whatever `stages` says.
    rings = [op for op in allocations if op.label.startswith(RING_LABEL)]
    if not rings:
        return "smaller blocks take less"
    stages = max(_slots(op, plan.layouts[op.result]) for op in rings)
    per_stage = sum(plan.layouts[op.result].slot_bytes for op in rings)
    others = plan.total_bytes - sum(
        _slots(op, plan.layouts[op.result]) * plan.layouts[op.result].slot_bytes for op in rings
    )
    fits = min(stages - 1, (limit - others) // per_stage)
    return f"`stages={fits}` fits" if fits > 0 else "not even one stage fits: take smaller blocks"


def _slots(op: ops.AllocSmem, layout: BufferLayout) -> int:
    lead = len(op.shape) - (len(layout.shape) if op.shape else 0)
    return math.prod(op.shape[:lead])


def _layout(op: ops.AllocSmem, body: Block, target: Target) -> BufferLayout:
    copies = [c for c in walk(body) if isinstance(c, ops.Copy) and c.buffer is op.result]
    lead = _slot_axes(op.result, body)
    shape = op.shape[lead:]
    if not shape:
        return buffer_layout((1,), op.dtype, (0,))
    order = _order(copies, len(shape))
    allocated = padded_operand(op.result, shape, body, target)
    return buffer_layout(shape, op.dtype, order, allocated=allocated)


def _slot_axes(buffer: Value, body: Block) -> int:
    """Return how many leading axes count slots: what its uses index first."""
    for op in walk(body):
        if isinstance(op, ops.Copy) and op.buffer is buffer:
            return len(op.slot)
        if isinstance(op, ops.MatrixMultiply):
            if op.a is buffer:
                return len(op.a_slot)
            if op.b is buffer:
                return len(op.b_slot)
    return 0


def _order(copies: list[ops.Copy], rank: int) -> tuple[int, ...]:
    """Return the tile's axes, contiguous first, as the arrays it is copied from or to want."""
    found: dict[tuple[int, ...], Span] = {}
    for copy in copies:
        kept = [a for a, k in enumerate(copy.kept) if k]
        order = tuple(kept.index(a) for a in fastest_first(copy.ref.ref) if a in kept)
        found.setdefault(order, copy.span)
    if len(found) > 1:
        raise UnsupportedFeature(
            "one shared buffer is copied from or to arrays with different contiguous axes",
            *((span, f"contiguous axis {order[0]}") for order, span in found.items()),
            help="use a buffer for each, and transpose the tile between them",
        )
    return next(iter(found), tuple(reversed(range(rank))))
