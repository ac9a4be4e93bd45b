"""What a body does in a step in which some indices have their first value.

A guard such as `if r == 0:` decides there, so what the taken side overwrites is not read from the
step before. Invariant: a condition that cannot be decided may go either way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value
from astdsl.lowering.windows import Form, Forms

Truth: TypeAlias = bool | None
_Rule: TypeAlias = Callable[["Decider", Any], Truth]


class Decider:
    """Decides conditions where `fixed` values are replaced by forms."""

    def __init__(self, forms: Forms, fixed: Mapping[Value, Form]) -> None:
        self.forms = forms
        self.fixed = fixed

    def decide(self, condition: Value) -> Truth:
        """Return whether the condition holds, None if that is not known."""
        maker = self.forms.makers.get(condition)
        rule = _DECIDE.get(type(maker)) if maker else None
        return rule(self, maker) if rule else None

    def difference(self, x: Value, y: Value) -> Form:
        """Return `x - y`."""
        return (self.forms[x] - self.forms[y]).substituted(self.fixed)


def _decide_compare(decider: Decider, op: ops.Compare) -> Truth:
    if not op.x.tile.dtype.is_integer:
        return None
    apart = decider.difference(op.x, op.y)
    if not apart.is_constant:
        return None
    # Predicates have the names of Python's operators.
    return bool(getattr(operator, op.predicate)(apart.constant, 0))


def _decide_and(decider: Decider, op: ops.BitAnd) -> Truth:
    sides = decider.decide(op.x), decider.decide(op.y)
    if False in sides:
        return False
    return True if sides == (True, True) else None


def _decide_or(decider: Decider, op: ops.BitOr) -> Truth:
    sides = decider.decide(op.x), decider.decide(op.y)
    if True in sides:
        return True
    return False if sides == (False, False) else None


def _decide_not(decider: Decider, op: ops.Invert) -> Truth:
    inner = decider.decide(op.x)
    return None if inner is None else not inner


_DECIDE: dict[type[Op], _Rule] = {
    ops.Constant: lambda decider, op: bool(op.value),
    ops.Compare: _decide_compare,
    ops.BitAnd: _decide_and,
    ops.BitOr: _decide_or,
    ops.Invert: _decide_not,
}


def first_values(pipeline: ops.Pipeline, first_axis: int, forms: Forms) -> dict[Value, Form]:
    """Return the indices of the axes from `first_axis` on, each with its low end."""
    rank = len(pipeline.lows)
    axes = range(first_axis, rank)
    return {pipeline.body.args[a]: forms[pipeline.lows[a]] for a in axes}


def reads_carried(pipeline: ops.Pipeline, first_axis: int, carried: int, forms: Forms) -> bool:
    """Whether the first step of the axes from `first_axis` on uses a carried value.

    Passing it on unchanged is a use.
    """
    decider = Decider(forms, first_values(pipeline, first_axis, forms))
    value = pipeline.body.args[len(pipeline.lows) + carried]
    return _Search(decider).uses(pipeline.body, {value})


class _Search:
    """Looks for a use of a value, or of what a branch passes on as that value."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider

    def uses(self, block: Block, aliases: set[Value]) -> bool:
        for op in block.ops:
            if isinstance(op, ops.If):
                if op.condition in aliases or self._branch_uses(op, aliases):
                    return True
            elif aliases.intersection(op.operands) or self._regions_use(op, aliases):
                return True
        return False

    def _branch_uses(self, op: ops.If, aliases: set[Value]) -> bool:
        truth = self.decider.decide(op.condition)
        taken = [s for s, t in ((op.then, True), (op.otherwise, False)) if truth in (t, None)]
        for side in taken:
            inner = Block(args=side.args, ops=side.ops[:-1])
            if self.uses(inner, aliases):
                return True
            passed = zip(op.results, ops.yielded(side), strict=True)
            aliases.update(result for result, value in passed if value in aliases)
        return False

    def _regions_use(self, op: Op, aliases: set[Value]) -> bool:
        return any(self.uses(region, aliases) for region in op.regions)
