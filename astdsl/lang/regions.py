"""Regions that a function of scalars becomes: elementwise operations, closed by their arguments.

Before
    x = If c { Yield a } { Yield b }
After
    x = Select c, a, b

Invariant: afterwards there is no control flow, and nothing made outside is used but arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.errors import UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value
from astdsl.ir.rewrite import Emit, replace_uses, rewrite_block
from astdsl.lang.tracing import fault

_ALLOWED = (ops.Constant, ops.Elementwise, ops.Yield)


def flattened(block: Block, what: str) -> Block:
    """Return the region with both sides of its branches computed, and one chosen.

    Refuses what is no operation on elements: loops, memory, whole tiles.
    """
    flat = rewrite_block(block, {ops.If: _as_choice})
    odd = [op for op in flat.ops if not isinstance(op, _ALLOWED)]
    if odd:
        raise fault(
            UnsupportedFeature,
            f"the function of {what} does more than compute with elements",
            *((v, "this is made in it") for v in odd[0].results),
            help="load, reduce and loop before, and use scalars of that in the function",
        )
    return flat


def _as_choice(op: ops.If, emit: Emit) -> Sequence[Value]:
    """Move both sides before the operation; without effect it matters not that both run."""
    for region in (op.then, op.otherwise):
        for inner in region.ops[:-1]:
            emit(inner)
    sides = zip(ops.yielded(op.then), ops.yielded(op.otherwise), strict=True)
    return [_chosen(op, x, y, emit) for x, y in sides]


def _chosen(op: Op, x: Value, y: Value, emit: Emit) -> Value:
    (condition,) = op.operands
    chosen: Value = emit(ops.Select(span=op.span, condition=condition, x=x, y=y)).result
    return chosen


def with_arguments(block: Block, captured: Sequence[Value]) -> Block:
    """Return the region with what it uses of its surroundings as further arguments."""
    added = {v: Value(v.type, v.hint) for v in captured}
    closed = replace_uses(block, added)
    return Block(args=(*block.args, *added.values()), ops=closed.ops)
