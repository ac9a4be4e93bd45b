"""Carried tiles that the first step sets: the guard only repeats the tile's initial value.

Before
    pipeline (k) carries acc = 0 { t = if k == low { yield 0 } else { yield acc }; ... t + x ... }
After
    pipeline (k) carries acc = 0 { ... acc + x ... }

What is left is the shape of an accumulator that only products add to. Invariant: the two values
are the same number, so that a pipeline without steps gives what it gave.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.ir import ops
from astdsl.ir.core import Block, Value
from astdsl.ir.rewrite import (
    Emit,
    map_regions,
    replace_fields,
    replace_uses,
    rewrite_block,
    with_ops,
)
from astdsl.lowering.windows import Form, Forms


def drop_first_step_guards(launch: ops.Launch) -> ops.Launch:
    """Return the launch without the guards that repeat a pipeline's initial value."""
    forms = Forms(launch.body)
    repeated: dict[Value, Value] = {}

    def find(block: Block) -> None:
        for op in block.ops:
            if isinstance(op, ops.Pipeline) and len(op.lows) == 1:
                _find_in(op, forms, repeated)
            for region in op.regions:
                find(region)

    find(launch.body)
    if not repeated:
        return launch
    return map_regions(launch, lambda region: _without(region, repeated))


def _find_in(op: ops.Pipeline, forms: Forms, repeated: dict[Value, Value]) -> None:
    """Note each result of a guard that stands for a carried value."""
    initial = dict(zip(op.body.args[1:], op.initial, strict=True))
    guards = (guard for guard in op.body.ops if isinstance(guard, ops.If))
    for guard in guards:
        if _is_first_step(guard, op, forms):
            repeated.update(_repeats(guard, initial, forms))


def _repeats(guard: ops.If, initial: dict[Value, Value], forms: Forms) -> dict[Value, Value]:
    sides = zip(ops.yielded(guard.then), ops.yielded(guard.otherwise), strict=True)
    return {
        result: old
        for result, (new, old) in zip(guard.results, sides, strict=True)
        if old in initial and _same_number(new, initial[old], forms)
    }


def _is_first_step(guard: ops.If, op: ops.Pipeline, forms: Forms) -> bool:
    condition = forms.makers.get(guard.condition)
    if not isinstance(condition, ops.Compare) or condition.predicate != "eq":
        return False
    if not condition.x.tile.dtype.is_integer:
        return False
    first = {op.body.args[0]: forms[op.lows[0]]}
    apart = forms[condition.x] - forms[condition.y]
    moves = apart.coefficient(op.body.args[0])
    return bool(moves) and apart.substituted(first) == Form(0)


def _same_number(x: Value, y: Value, forms: Forms) -> bool:
    a, b = forms.makers.get(x), forms.makers.get(y)
    if not isinstance(a, ops.Constant) or not isinstance(b, ops.Constant):
        return False
    # Not `==` alone: -0.0 equals 0.0, and NaN nothing.
    return a.type == b.type and repr(float(a.value)) == repr(float(b.value))


def _without(region: Block, repeated: dict[Value, Value]) -> Block:
    """Use the carried value in place of the guard's result, and drop the result."""

    def prune(op: ops.If, emit: Emit) -> Sequence[Value] | None:
        kept = [k for k, result in enumerate(op.results) if result not in repeated]
        if len(kept) == len(op.results):
            return None
        sides = {n: _yielding(getattr(op, n), kept) for n in ("then", "otherwise")}
        made = iter(emit(replace_fields(op, **sides)).results)
        return [repeated[r] if r in repeated else next(made) for r in op.results]

    return rewrite_block(replace_uses(region, repeated), {ops.If: prune})


def _yielding(region: Block, kept: Sequence[int]) -> Block:
    end = region.ops[-1]
    values = tuple(ops.yielded(region)[k] for k in kept)
    return with_ops(region, [*region.ops[:-1], replace_fields(end, values=values)])
