"""Products that add to a carried tile: the tile stays in the tensor core's accumulator.

Before
    pipeline carries acc { d = dot a, b; acc' = acc + d; yield acc' }
After
    write accumulator, acc
    pipeline { multiply accumulator += a @ b }
    wait 0; acc' = read accumulator

Invariant: between the write and the read nothing but products touches the accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.lowering.products import ProductKind, product_kind
from astdsl.lowering.schedule.block import BlockScheduler
from astdsl.lowering.schedule.operands import source_of, stays


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The carried value at `position`, to which the pipeline's every step adds `dot`."""

    position: int
    dot: ops.Dot
    add: ops.Add
    initial: Value
    in_place: frozenset[Value]

    def reads_slots(self, loads: Sequence[ops.Load], resting: Set[Value]) -> bool:
        """Whether it reads nothing but staged loads, where they are.

        A `resting` one was staged outside of the pipeline, and is so as long as it runs.
        """
        staged = {load.result for load in loads}
        return not staged.isdisjoint(self.in_place) and self.in_place <= staged | resting


def accumulations(scheduler: BlockScheduler, op: ops.Pipeline) -> list[Accumulation]:
    """Return the carried values that only products are added to."""
    leaving = ops.yielded(op.body)
    rank = len(op.lows)
    found = [
        _match(scheduler, op, position, op.body.args[rank + position], leaving[position])
        for position in range(len(op.initial))
    ]
    return [each for each in found if each is not None]


def _match(
    scheduler: BlockScheduler, op: ops.Pipeline, position: int, carried: Value, leaving: Value
) -> Accumulation | None:
    add = scheduler.forms.makers.get(leaving)
    if not isinstance(add, ops.Add) or add not in op.body.ops or carried not in add.operands:
        return None
    product = add.y if add.x is carried else add.x
    dot = scheduler.forms.makers.get(product)
    if not isinstance(dot, ops.Dot) or dot not in op.body.ops:
        return None
    kind = product_kind(dot)
    if kind is None:
        return None
    used_once = all(len(scheduler.users[v]) == 1 for v in (carried, product, leaving))
    if not used_once:
        return None
    return Accumulation(position, dot, add, op.initial[position], _in_place(scheduler, dot, kind))


def _in_place(scheduler: BlockScheduler, dot: ops.Dot, kind: ProductKind) -> frozenset[Value]:
    """Return the loads that a product reads in their slots; none if it reads anything else."""
    sources = [source_of(scheduler, dot, side) for side in "ab"]
    if dot.precision == "tf32x3" or not all(stays(scheduler, s, kind) for s in sources):
        return frozenset()
    scales = (dot.a_scale, dot.b_scale) if isinstance(dot, ops.ScaledDot) else ()
    if not all(isinstance(scheduler.forms.makers.get(v), ops.Load) for v in scales):
        return frozenset()
    return frozenset((*(source.value for source in sources), *scales))


def begin(scheduler: BlockScheduler, product: Accumulation) -> None:
    """Allocate the accumulator, once for the block, and give it its first value."""
    accumulator = allocate(scheduler, product.dot)
    scheduler.accumulators[product.dot.result] = accumulator
    scheduler.absorbed.add(product.add)
    maker = scheduler.maker
    initial = scheduler.value(product.initial)
    maker.add_op(
        ops.AccumulatorWrite(span=product.dot.span, accumulator=accumulator, value=initial)
    )


def finish(scheduler: BlockScheduler, products: Sequence[Accumulation]) -> list[Value]:
    """Wait for every product and read the accumulators."""
    maker = scheduler.maker
    if products:
        maker.add_op(ops.ProductWait(span=maker.span, pending=0))
    read = []
    for product in products:
        accumulator = scheduler.accumulators[product.dot.result]
        op = ops.AccumulatorRead(span=product.dot.span, accumulator=accumulator)
        read.append(maker.add_op(op).result)
    return read


def allocate(scheduler: BlockScheduler, dot: ops.Dot) -> Value:
    """Allocate the accumulator of a product at the start of the block."""
    shape = dot.result.tile.shape
    op = ops.AllocAccumulator(span=dot.span, shape=shape, dtype=dot.dtype)
    op.result.hint = "accumulator"
    return scheduler.allocations.add_op(op).result
