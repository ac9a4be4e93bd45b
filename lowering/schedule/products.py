"""Matrix products of tiles as products of shared-memory operands.

Before
    d = dot a, b
After, on the tensor core
    multiply accumulator, a's slot, b's slot; wait 0; d = read accumulator
After, where the tensor core has no such product
    d = shared_dot a's slot, b's slot

With `wgmma`, x + d starts the accumulator as x, and an `a` in registers is multiplied from there.
With `tcgen05.mma`, one that was computed from a product takes that one's place in tensor memory.

Invariant: an accumulator is read when every product into it has been waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from astdsl.ir import dtypes, ops
from astdsl.ir.core import Value
from astdsl.ir.types import TileType, scalar
from astdsl.lowering.products import TCGEN05_ROWS, TF32_BITS, ProductKind, product_kind
from astdsl.lowering.schedule.accumulation import allocate
from astdsl.lowering.schedule.block import BlockScheduler, schedules
from astdsl.lowering.schedule.operands import (
    Operand,
    in_shared_memory,
    scale_slot,
    source_of,
    stored,
    tile_of,
)
from astdsl.lowering.target import WGMMA

REGISTER_BYTES = 4
WGMMA_THREADS = 128
# What A may take of a thread's registers, beside the accumulator; more goes to shared memory.
MOST_FRAGMENT_REGISTERS = 64


@schedules(ops.Dot)
def _dot(scheduler: BlockScheduler, op: ops.Dot) -> None:
    kind = product_kind(op)
    if kind is None:
        _by_threads(scheduler, op)
        return
    if op.result in scheduler.accumulators:
        _multiply(scheduler, op, kind, scheduler.accumulators[op.result], adds=True)
    elif scheduler.target.has(WGMMA) and isinstance(scheduler.only_user(op.result), ops.Add):
        scheduler.late_products[op.result] = op
    else:
        scheduler.values[op.result] = _computed(scheduler, op, None)


def _computed(scheduler: BlockScheduler, op: ops.Dot, initial: Value | None) -> Value:
    """Write a product, added to `initial` if there is one, and return it as a tile."""
    kind, maker, span = product_kind(op), scheduler.maker, op.span
    assert kind is not None, "a product of the tensor core"
    accumulator = scheduler.computed[op.result] = allocate(scheduler, op)
    if initial is not None:
        maker.add_op(ops.AccumulatorWrite(span=span, accumulator=accumulator, value=initial))
    _multiply(scheduler, op, kind, accumulator, adds=initial is not None)
    maker.add_op(ops.ProductWait(span=span, pending=0))
    return maker.add_op(ops.AccumulatorRead(span=span, accumulator=accumulator)).result


def _multiply(
    scheduler: BlockScheduler, op: ops.Dot, kind: ProductKind, accumulator: Value, *, adds: bool
) -> None:
    maker = scheduler.maker
    if isinstance(op, ops.ScaledDot):
        _multiply_scaled(scheduler, op, kind, accumulator, adds=adds)
        return
    for a, b in _pairs(scheduler, op, kind):
        scale = maker.number(adds, scalar(dtypes.boolean))
        fields = _operand_fields(op, a, b)
        if isinstance(a, Value):
            fields["lender"] = _lenders(scheduler, op, kind)
        maker.add_op(ops.MatrixMultiply(**fields, accumulator=accumulator, accumulate=scale))
        adds = True


@schedules(ops.ScaledDot)
def _scaled_dot(scheduler: BlockScheduler, op: ops.ScaledDot) -> None:
    _dot(scheduler, op)


def _multiply_scaled(
    scheduler: BlockScheduler,
    op: ops.ScaledDot,
    kind: ProductKind,
    accumulator: Value,
    *,
    adds: bool,
) -> None:
    maker = scheduler.maker
    a, b = (in_shared_memory(scheduler, op, side, kind) for side in "ab")
    fields = _operand_fields(op, a, b)
    for side in "ab":
        slot = scale_slot(scheduler, op, side)
        fields[f"{side}_scale"], fields[f"{side}_scale_slot"] = slot.buffer, slot.slot
    accumulate = maker.number(adds, scalar(dtypes.boolean))
    maker.add_op(
        ops.ScaledMultiply(
            **fields,
            accumulator=accumulator,
            accumulate=accumulate,
            block=op.block,
            packed=op.packed,
        )
    )


def _pairs(
    scheduler: BlockScheduler, op: ops.Dot, kind: ProductKind
) -> Iterator[tuple[Operand | Value, Operand]]:
    """Yield the operands of each product: one, or three that leave only the rests' product out."""
    if _is_fragment(scheduler, op, kind):
        yield scheduler.value(op.a), in_shared_memory(scheduler, op, "b", kind)
        return
    a, b = (in_shared_memory(scheduler, op, side, kind) for side in "ab")
    if op.precision == "tf32x3":
        a_rest, b_rest = (_rest(scheduler, op, side, kind) for side in "ab")
        yield a_rest, b
        yield a, b_rest
    yield a, b


def _is_fragment(scheduler: BlockScheduler, op: ops.Dot, kind: ProductKind) -> bool:
    """Whether A is read where it is computed: from registers or from tensor memory.

    By `wgmma` (PTX ISA 9.7.15.5.1.1), by `tcgen05.mma` in the place of what it is computed from.
    """
    tile, source = op.a.tile, source_of(scheduler, op, "a")
    if not scheduler.target.has(WGMMA):
        return bool(_lenders(scheduler, op, kind))
    if source.value in scheduler.slots or op.precision:
        return False
    words = tile.elements * tile.dtype.bytes // (REGISTER_BYTES * WGMMA_THREADS)
    return tile.shape[1] % kind.depth == 0 and words <= MOST_FRAGMENT_REGISTERS


def _lenders(scheduler: BlockScheduler, op: ops.Dot, kind: ProductKind) -> tuple[Value, ...]:
    """Return the accumulator whose columns of tensor memory A may take, if there is one.

    A is computed from it element by element, so it was read, and its next product waits for this
    one, which is waited for where it stands. Rows are lanes, 16-bit neighbours share 32 bits (PTX
    ISA 9.7.16.10.5).
    """
    tile, is_waited_for = op.a.tile, op.result in scheduler.computed
    whole = tile.shape[0] % TCGEN05_ROWS == 0 and tile.shape[1] % kind.depth == 0
    if scheduler.target.has(WGMMA) or not is_waited_for or tile.dtype.bits != 16 or not whole:
        return ()
    accumulator = _computed_from(scheduler, op.a)
    return () if accumulator is None else (accumulator,)


def _computed_from(scheduler: BlockScheduler, value: Value) -> Value | None:
    """Return the accumulator that a tile is computed from element by element."""
    left, seen = [value], set[Value]()
    while left:
        each = left.pop()
        if each in scheduler.computed:
            return scheduler.computed[each]
        if each not in seen:
            seen.add(each)
            left += reversed(_elements_of(scheduler, each))
    return None


def _elements_of(scheduler: BlockScheduler, value: Value) -> tuple[Value, ...]:
    """Return the tiles of whose elements one by one a tile is made, none if it is not."""
    maker = scheduler.forms.makers.get(value)
    if isinstance(maker, ops.If):
        return (ops.yielded(maker.then)[maker.results.index(value)],)
    return maker.operands if isinstance(maker, ops.Elementwise) else ()


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


def _operand_fields(op: ops.Dot, a: Operand | Value, b: Operand) -> dict[str, Any]:
    fields: dict[str, Any] = {"span": op.span}
    for side, operand in (("a", a), ("b", b)):
        if isinstance(operand, Value):
            fields[side] = operand
            continue
        fields[side], fields[f"{side}_slot"] = operand.slot.buffer, operand.slot.slot
        fields[f"{side}_transposed"] = operand.is_transposed
    return fields


@schedules(ops.Add)
def _add(scheduler: BlockScheduler, op: ops.Add) -> None:
    """Leave out the addition that an accumulator does."""
    if op in scheduler.absorbed:
        return
    late = [v for v in op.operands if v in scheduler.late_products]
    if not late:
        scheduler.copy(op)
        return
    product = scheduler.late_products.pop(late[-1])
    other = op.x if late[-1] is op.y else op.y
    if other in scheduler.late_products:
        first = scheduler.late_products.pop(other)
        scheduler.values[other] = _computed(scheduler, first, None)
    scheduler.values[op.result] = _computed(scheduler, product, scheduler.value(other))
