"""Windows of views of inputs, as windows of the array with what lies beyond the view masked.

Before
    t = gather x[start] limits=[low, high]
After
    t = select(low <= start + i < high, load x[start], 0)

The load can be staged like any other. Elements beyond a view are those of its neighbours, which
only an input may show: nothing writes it, and all of it is there.

Invariant: the tile has the same elements.
"""

from __future__ import annotations

from collections.abc import Callable

from astdsl.ir import ops
from astdsl.ir.core import IN, Module, Op, Value
from astdsl.ir.dtypes import i32
from astdsl.ir.rewrite import replace_body, rewrite_block
from astdsl.ir.types import TileType
from astdsl.lowering.schedule.build import Maker


def open_view_windows(module: Module) -> Module:
    """Return the module with masks in place of the limits of reads, where it may look beyond."""
    inputs = {p.value for p in module.params if p.role == IN}

    def opened(op: ops.Gather, emit: Callable[[Op], Op]) -> tuple[Value] | None:
        if op.ref not in inputs or not _is_plain(op):
            return None
        maker = Maker(op.span)
        result = _masked(maker, op)
        for made in maker.ops:
            emit(made)
        return (result,)

    return replace_body(module, rewrite_block(module.body, {ops.Gather: opened}))


def _is_plain(op: ops.Gather) -> bool:
    """Whether a read is a window, in the order of the array, without steps where it is limited."""
    in_order = op.along == tuple(range(len(op.shape)))
    steps = {op.steps[axis] for axis in op.limited}
    return in_order and not op.indices and not op.mask and steps <= {1} and op.fill == 0


def _masked(maker: Maker, op: ops.Gather) -> Value:
    names = ("span", "ref", "starts", "sizes", "steps", "kept", "stages")
    whole = maker.add_op(ops.Load(**{n: getattr(op, n) for n in names})).result
    inside: Value | None = None
    for k, axis in enumerate(op.limited):
        for bound, predicate in zip(op.limits[2 * k : 2 * k + 2], ("ge", "lt"), strict=True):
            holds = _holds(maker, op, axis, bound, predicate)
            inside = holds if inside is None else maker.binary(ops.BitAnd, inside, holds)
    assert inside is not None, "a window of a view is limited"
    nothing = maker.number(0, op.window_type)
    return maker.add_op(ops.Select(span=op.span, condition=inside, x=whole, y=nothing)).result


def _holds(maker: Maker, op: ops.Gather, axis: int, bound: Value, predicate: str) -> Value:
    """Write whether each element is on one side of a place along an axis of the array."""
    away = maker.subtract(bound, op.starts[axis])
    if not op.kept[axis]:
        return _spread(maker, maker.compare(predicate, maker.number(0), away), op)
    least = maker.maximum(away, maker.number(-1))
    near = maker.to_i32(maker.minimum(least, maker.number(op.sizes[axis] + 1)))
    place = sum(op.kept[:axis])
    kind = TileType(op.shape, i32)
    number = maker.add_op(ops.Iota(span=op.span, shape=kind.shape, axis=place, dtype=i32)).result
    return maker.compare(predicate, number, _spread(maker, near, op))


def _spread(maker: Maker, value: Value, op: ops.Gather) -> Value:
    if not op.shape:
        return value
    return maker.add_op(ops.Broadcast(span=op.span, x=value, shape=op.shape)).result
