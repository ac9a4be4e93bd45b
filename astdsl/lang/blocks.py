"""Tracing loops and pipelines: bodies become regions, and names are carried from step to step.

Invariant: a body is traced with every name as it would be in any step of the running kernel: names
that steps change are block arguments of settled types (the body is traced again until they are).
After the loop a name holds what it carried; one that was only assigned inside refuses each use.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from astdsl.errors import BadPipeline, TypeMismatch
from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value
from astdsl.ir.dtypes import INT, UINT
from astdsl.lang.branching import (
    as_condition,
    both,
    call_unless,
    trace_branches,
)
from astdsl.lang.carrying import loop_of
from astdsl.lang.indices import index_value, loop_index
from astdsl.lang.names import (
    BlockFunction,
    BlockNames,
    require_usable,
)
from astdsl.lang.operands import Effects
from astdsl.lang.orders import trace_order
from astdsl.lang.tracing import Grid, emit, fault, require_trace
from astdsl.lang.values import Literal, Tile, as_operand

__all__ = [
    "BlockFunction", "BlockNames", "as_condition", "call_unless", "trace_branches", "trace_for",
    "trace_pipeline", "trace_while",
]  # fmt: skip

GO, INDEX_NAME = "__go__", "__index__"
Axis = tuple[object, object, object]


class _MayStop(Exception):
    """A step sets a flag that only the running kernel knows, and that ends the loop."""


def trace_for(low: object, high: object, step: object, body: BlockFunction) -> None:
    """Trace `for index in range(low, high, step): body(index)` as a loop of the kernel.

    One that `break` or `return` may end is a `While`.
    """
    bounds = _bounds((low, high, step), "`range`")
    axis = (_operand(low), _operand(high), _operand(step))

    def run(indices: tuple[Value, ...]) -> None:
        call_unless(body.stopped(), body.bind(loop_index(indices[0], *axis)))
        if isinstance(axis[2], Literal) and type(body.stopped()) is Tile:
            raise _MayStop

    def make(initial: tuple[Value, ...], region: Block) -> Op:
        first, last, stride = bounds
        return emit(ops.For, initial=initial, low=first, high=last, step=stride, body=region)

    loop = loop_of("the loop", [body], run=run, make=make, indices=1)
    try:
        loop.trace()
    except _MayStop:
        loop.watch.require_unchanged()
        _trace_until_stopped(axis, bounds, body)


def _trace_until_stopped(
    axis: tuple[Any, Any, Literal], bounds: tuple[Value, Value, Value], body: BlockFunction
) -> None:
    """Trace a `for` with a constant step whose index, and whether to go on, are carried."""
    first, last, stride = bounds
    predicate = "lt" if axis[2].number > 0 else "gt"

    def in_range(value: Value) -> Tile:
        return Tile(emit(ops.Compare, x=value, y=last, predicate=predicate).result)

    index = types.CellType(Tile(first, weak=True))
    go = types.CellType(in_range(first))

    def run(indices: tuple[Value, ...]) -> None:
        del indices
        value = index.cell_contents.value
        body.call(loop_index(value, *axis))
        after = emit(ops.Add, x=value, y=stride).result
        index.cell_contents = Tile(after, weak=True)
        go.cell_contents = in_range(after) & ~as_condition(body.stopped())

    loop = loop_of("the loop", [body], run=run, make=_make_while)
    loop.cells = {GO: go, INDEX_NAME: index, **loop.cells}
    loop.exposed |= {GO, INDEX_NAME}
    loop.trace()


def _make_while(initial: tuple[Value, ...], region: Block) -> Op:
    """Emit a `While` that goes on as long as its first carried value holds."""
    builder = require_trace("`while`").builder
    with builder.block([v.type for v in region.args]) as condition:
        emit(ops.Yield, values=(condition.args[0],))
    return emit(ops.While, initial=initial, condition=condition.block, body=region)


def trace_pipeline(
    axes: Sequence[Axis],
    body: BlockFunction,
    *,
    is_single: bool,
    placement: Sequence[str],
    names: Sequence[str] = (),
    order: object = None,
    stages: int = 0,
    split: int = 0,
    streams: bool = False,
    schedule: str = "auto",
) -> None:
    """Trace `body(index)` for every index of axes `(low, high, step)`, row-major, as a Pipeline.

    The index is a tuple unless `is_single`. `placement` says of each axis where it may run, `order`
    in which order independent steps begin; `split` is the number of parts that are added up, of all
    steps together if it `streams`.
    Errors: BadPipeline at a `return`, `break` or `continue` that leaves the body.
    """
    bounds = [_bounds(axis, "an axis of a pipeline") for axis in axes]
    ordered = trace_order(order, len(axes))

    def run(indices: tuple[Value, ...]) -> None:
        made = [
            loop_index(value, *map(_operand, axis))
            for value, axis in zip(indices, axes, strict=True)
        ]
        for value, hint in zip(indices, names, strict=False):
            value.hint = hint
        operands = [(_operand(low), _operand(high), _operand(step)) for low, high, step in axes]
        grid = Grid(tuple(names), tuple(made), tuple(operands)) if ops.SPREAD in placement else None
        with require_trace("a pipeline").inside_grid(grid):
            body.call(made[0] if is_single else tuple(made))
        _require_no_exit(body)

    def make(initial: tuple[Value, ...], region: Block) -> Op:
        lows, highs, steps = zip(*bounds, strict=True)
        return emit(
            ops.Pipeline,
            initial=initial,
            lows=lows,
            highs=highs,
            steps=steps,
            body=region,
            order=ordered,
            axes=tuple(placement),
            names=tuple(names),
            stages=stages,
            split=split,
            streams=streams,
            schedule=schedule,
        )

    loop_of("the pipeline", [body], run=run, make=make, indices=len(axes)).trace()


def _require_no_exit(body: BlockFunction) -> None:
    for flag, word, span in body.names.exits:
        if body.get(flag) is not False:
            raise BadPipeline(
                f"`{word}` leaves the body of a pipeline",
                (span, ""),
                (body.span, "every step of this runs"),
                help="guard what follows with `if` instead",
            )


def trace_while(go: object, test: BlockFunction, body: BlockFunction) -> None:
    """Trace `while test(): body()`; `go` is what the first test gave.

    The test runs once a step, at its end; whether to go on is carried.
    """
    cell = types.CellType(go if go is True else as_condition(go))

    def run(indices: tuple[Value, ...]) -> None:
        del indices
        body.call()
        cell.cell_contents = _next_test(test, body)

    loop = loop_of("the loop", [body, test], run=run, make=_make_while)
    loop.cells = {GO: cell, **loop.cells}
    loop.exposed |= {GO}
    loop.trace()


def _next_test(test: BlockFunction, body: BlockFunction) -> Tile:
    stopped = body.stopped()
    if stopped is True:
        return as_condition(False)
    if stopped is False:
        return as_condition(test.call())
    going = ~as_condition(stopped)
    mark, effects = require_trace("`while`").builder.mark(), Effects(test)
    return as_condition(both(going, mark, as_condition(test.call()), effects))


def _bounds(axis: Axis, what: str) -> tuple[Value, Value, Value]:
    low, high, step = (index_value(_integer(x, what)) for x in axis)
    return low, high, step


def _operand(x: object) -> Any:
    return as_operand(x, "`range`")


def _integer(x: object, what: str) -> Any:
    require_usable(x)
    operand = as_operand(x, what)
    if operand.kind not in (INT, UINT) or operand.shape:
        raise fault(
            TypeMismatch,
            f"{what} takes integers, got {operand}",
            help="`x.astype(i32)` converts towards zero; `cdiv(n, b)` counts blocks",
        )
    return operand
