"""Placing a kernel's barriers and buffers in shared memory, and choosing each buffer's layout.

Invariant: a buffer's layout is what the kernel states, else it follows from its uses: the
contiguous axis of the arrays that it is copied from or to, and what a product that reads it needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from astdsl.errors import OutOfSharedMemory, UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.transforms import physical_axes, swizzle_of
from astdsl.ir.types import SMEM
from astdsl.lowering.layout.inference import fastest_first
from astdsl.lowering.layout.shared import BufferLayout, SharedPlan, buffer_layout, stated_layout
from astdsl.lowering.products import padded_operand, product_barriers
from astdsl.lowering.target import TCGEN05, Target
from astdsl.records import replace
from astdsl.source import Span

# How the labels of the buffers begin that have `stages` slots.
RING_LABEL = "ring of"


def plan_shared(body: Block, target: Target, runners: int = 1) -> SharedPlan:
    """Place every barrier and buffer of a kernel's body; refuse what does not fit.

    `runners` is the number of warpgroups that run the body, each for itself.
    """
    plan = SharedPlan(runners=runners)
    program = walk(body)
    for op in program:
        if isinstance(op, ops.AllocBarrier):
            plan.place_barriers(op.result, op.count, owners=op.owners)
    tensor_memory = (ops.MatrixMultiply, ops.AllocTmem)
    if target.has(TCGEN05) and any(isinstance(op, tensor_memory) for op in program):
        plan.reserve_tensor_memory(product_barriers(body))
    unions = [op for op in program if isinstance(op, ops.Overlap) and op.refs[0].ref.space == SMEM]
    shared = {v for union in unions for v in union.refs}
    uses = _Uses(program)
    for allocation in uses.allocations:
        if allocation.result not in shared:
            _place(plan, allocation, uses, target)
    by_value = {op.result: op for op in uses.allocations}
    for union in unions:
        plan.begin_union()
        for group in union.groups():
            for value in group:
                _place(plan, by_value[value], uses, target)
                _require_unpadded(plan, by_value[value])
            plan.end_group()
        plan.end_union()
    check_budget(plan, uses.allocations, target)
    return plan


class _Uses:
    """What a program does with each of its buffers.

    With `in_rows` threads reach copied buffers only along their rows, all as wide: then nothing
    meets in a bank without a swizzle either, and boxes are as wide as TMA copies.
    """

    def __init__(self, program: Iterable[Op]) -> None:
        self.allocations: list[ops.AllocSmem] = []
        self.of: dict[Value, list[Op]] = {}
        copies: list[ops.Copy] = []
        self.in_rows = True
        for op in program:
            if isinstance(op, ops.AllocSmem):
                self.allocations.append(op)
                self.of[op.result] = []
            elif isinstance(op, ops.Copy):
                copies.append(op)
            elif isinstance(op, _ACROSS_ROWS):
                self.in_rows = False
            for value in op.operands:
                if value in self.of:
                    self.of[value].append(op)
        self.in_rows &= len({c.buffer.ref.dtype.bits for c in copies}) == 1
        self.in_rows = self.in_rows and all(_kept_order(c) == _rows(sum(c.kept)) for c in copies)


def _place(plan: SharedPlan, op: ops.AllocSmem, uses: _Uses, target: Target) -> None:
    layout = _layout(op, uses, target)
    plan.place_buffer(op.result, layout, _slots(op, layout), owners=op.owners)


def _require_unpadded(plan: SharedPlan, op: ops.AllocSmem) -> None:
    """Refuse a buffer with room for more rows, which must hold zeros all the time."""
    layout = plan.layouts[op.result]
    if layout.allocated != layout.shape:
        raise UnsupportedFeature(
            f"a product reads this buffer as {layout.allocated}, and it shares its memory",
            (op.span, f"{layout.shape}"),
            help="leave it out of `RefUnion`, or take extents that the tensor core has",
        )


def check_budget(plan: SharedPlan, allocations: list[ops.AllocSmem], target: Target) -> None:
    """Refuse buffers that exceed the block's shared memory, naming each with its line."""
    limit = target.shared_bytes_per_block
    if plan.total_bytes <= limit:
        return
    places = [(op.span, _buffer_note(op, plan)) for op in allocations]
    scratch = plan.runners * plan.scratch_bytes
    moved = f", {scratch} of them for tiles that change their layout" if scratch else ""
    raise OutOfSharedMemory(
        f"the buffers take {plan.total_bytes} bytes of shared memory{moved}, a block of "
        f"{target.name} has {limit}",
        *places,
        help=_way_out(plan, allocations, limit),
    )


def _buffer_note(op: ops.AllocSmem, plan: SharedPlan) -> str:
    layout = plan.layouts[op.result]
    slots = _slots(op, layout)
    each = f"{slots} x {layout.slot_bytes}" if slots > 1 else f"{layout.slot_bytes}"
    count = plan.count(op.result)
    several = f", for each of {count} warpgroups" if count > 1 else ""
    return f"{op.label or 'buffer'}: {each} bytes{several}"


def _way_out(plan: SharedPlan, allocations: list[ops.AllocSmem], limit: int) -> str:
    """Name the largest stage count that fits, of all rings that have as many slots or more."""
    # Copies out have as many slots whatever `stages` says.
    rings = [(o, plan.layouts[o.result]) for o in allocations if o.label.startswith(RING_LABEL)]
    if not rings:
        return "smaller blocks take less"
    sizes = [
        (_slots(op, layout), plan.count(op.result) * layout.slot_bytes) for op, layout in rings
    ]
    others = plan.total_bytes - sum(slots * each for slots, each in sizes)
    for stages in range(max(slots for slots, _ in sizes) - 1, 0, -1):
        if others + sum(min(slots, stages) * each for slots, each in sizes) <= limit:
            return f"`stages={stages}` fits"
    return "not even one stage fits: take smaller blocks"


def _slots(op: ops.AllocSmem, layout: BufferLayout) -> int:
    lead = len(op.shape) - (len(layout.shape) if op.shape else 0)
    return math.prod(op.shape[:lead])


def _layout(op: ops.AllocSmem, uses: _Uses, target: Target) -> BufferLayout:
    used = uses.of[op.result]
    copies = [c for c in used if isinstance(c, ops.Copy) and c.buffer is op.result]
    lead = _slot_axes(op.result, used)
    shape = op.shape[lead:]
    stated = _stated(op, lead, used)
    if stated:
        return stated
    if not shape:
        return buffer_layout((1,), op.dtype, (0,))
    order = _order(copies, len(shape))
    allocated = padded_operand(op.result, shape, order, used, target)
    swizzled = order[0] != len(shape) - 1 or not (copies and uses.in_rows)
    return buffer_layout(shape, op.dtype, order, swizzled=swizzled, allocated=allocated)


# What reads or writes tiles in other layouts than that of their rows.
_ACROSS_ROWS = (
    ops.MatrixMultiply,
    ops.ScaledMultiply,
    ops.SharedDot,
    ops.TensorMultiply,
    ops.Transpose,
    ops.LayoutCast,
)


def _stated(op: ops.AllocSmem, lead: int, used: Sequence[Op]) -> BufferLayout | None:
    """Return the layout of one slot, as stated of the whole buffer; None where nothing is."""
    statements: list[ops.AllocSmem | ops.StateLayout] = [op] if op.transforms else []
    statements += [s for s in used if isinstance(s, ops.StateLayout)]
    if not statements:
        return None
    longest = max(statements, key=lambda s: len(s.transforms))
    for one in statements:
        if longest.transforms[: len(one.transforms)] != one.transforms:
            raise UnsupportedFeature(
                "two physical layouts are stated of one shared buffer",
                (one.span, "one"),
                (longest.span, "the other"),
                help="state it once, where the buffer is made: `SMEM(..., transforms=)`",
            )
    axes = physical_axes(op.shape, longest.transforms)
    slots, rest = axes[:lead], axes[lead:]
    if [a.axis for a in slots] != list(range(lead)) or any(a.axis < lead for a in rest):
        raise UnsupportedFeature(
            "the stated layout takes the slots of a buffer apart, and copies fill whole slots",
            (longest.span, "stated here"),
            help="tile and transpose the last axes only: slots are the first ones",
        )
    moved = [replace(a, axis=a.axis - lead) for a in rest]
    return stated_layout(op.shape[lead:], op.dtype, moved, swizzle_of(longest.transforms))


def _slot_axes(buffer: Value, used: Sequence[Op]) -> int:
    """Return how many leading axes count slots: what all of its uses index first."""
    found: dict[int, Span] = {}
    for op in used:
        for slot in _slots_used(op, buffer):
            found.setdefault(len(slot), op.span)
    if len(found) > 1:
        raise UnsupportedFeature(
            "one shared buffer is taken apart into slots in two ways",
            *((span, f"axes that are indexed: {axes}") for axes, span in found.items()),
            help="copy and multiply slots with the same indices, for example each `buffer.at[i]`",
        )
    return next(iter(found), 0)


def _slots_used(op: Op, buffer: Value) -> list[tuple[Value, ...]]:
    """Return the indices of the slots of a buffer that an asynchronous operation uses."""
    if isinstance(op, ops.Copy):
        return [op.slot] if op.buffer is buffer else []
    if isinstance(op, ops.CopyScales):
        return [op.slot] if op.source is buffer else []
    if isinstance(op, (ops.MatrixMultiply, ops.TensorMultiply)):
        return [s for ref, s in ((op.a, op.a_slot), (op.b, op.b_slot)) if ref is buffer]
    return []


def _kept_order(copy: ops.Copy) -> tuple[int, ...]:
    """Return the axes of a copied tile, the one first along which the array is contiguous."""
    kept = [axis for axis, is_kept in enumerate(copy.kept) if is_kept]
    return tuple(kept.index(a) for a in fastest_first(copy.ref.ref) if a in kept)


def _order(copies: list[ops.Copy], rank: int) -> tuple[int, ...]:
    """Return the tile's axes, contiguous first, as the arrays it is copied from or to want."""
    found: dict[tuple[int, ...], Span] = {}
    for copy in copies:
        found.setdefault(_kept_order(copy), copy.span)
    if len(found) > 1:
        raise UnsupportedFeature(
            "one shared buffer is copied from or to arrays with different contiguous axes",
            *((span, f"contiguous axis {order[0]}") for order, span in found.items()),
            help="use a buffer for each, and transpose the tile between them",
        )
    return next(iter(found), _rows(rank))


def _rows(rank: int) -> tuple[int, ...]:
    """Return the axes of an array that is contiguous along its last one."""
    return tuple(reversed(range(rank)))
