"""What a body does in a step in which some indices have their first value.

A guard such as `if r == 0:` decides there, so what the taken side overwrites is not read from the
step before. That a step runs tells of its indices that they lie between the ends of their axes.
Invariant: a condition that cannot be decided may go either way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value
from astdsl.ir.dtypes import BOOL
from astdsl.lowering.schedule.coverage import Axis, axes_of
from astdsl.lowering.windows import Form, Forms

Truth: TypeAlias = bool | None
Known = TypeVar("Known", bool, int)
_Rule: TypeAlias = Callable[["Decider", Any], Truth]


class Decider:
    """Decides conditions where `fixed` values are replaced by forms, in a step of the `axes`."""

    def __init__(
        self, forms: Forms, fixed: Mapping[Value, Form], axes: Iterable[Axis] = ()
    ) -> None:
        self.forms = forms
        self.fixed = fixed
        self.axes = tuple(axes)

    def decide(self, condition: Value) -> Truth:
        """Return whether the condition holds, None if that is not known."""
        maker = self.forms.makers.get(condition)
        if isinstance(maker, ops.If):
            return self._left_by(maker, condition, self.decide)
        rule = _DECIDE.get(type(maker)) if maker else None
        return rule(self, maker) if rule else None

    def _left_by(
        self, branch: ops.If, result: Value, ask: Callable[[Value], Known | None]
    ) -> Known | None:
        """Return what `ask` says of what a branch leaves, None if its sides differ."""
        place, truth = branch.results.index(result), self.decide(branch.condition)
        sides = [branch.then] * (truth is not False) + [branch.otherwise] * (truth is not True)
        found = {ask(ops.yielded(side)[place]) for side in sides}
        return found.pop() if len(found) == 1 else None

    def form(self, value: Value) -> Form:
        """Return the form of an integer, where operations on known numbers are numbers."""
        form = self.forms[value]
        known = ((v, self._computed(v)) for v in form.values() - self.fixed.keys())
        numbers = {v: Form(number) for v, number in known if number is not None}
        return form.substituted({**self.fixed, **numbers})

    def _computed(self, value: Value) -> int | None:
        """Return what an operation that makes no polynomial computes of known numbers."""
        maker = self.forms.makers.get(value)
        if isinstance(maker, ops.If):
            return self._left_by(maker, value, self.number)
        rule = _COMPUTE.get(type(maker)) if maker else None
        if rule is None or maker is None or not value.tile.dtype.is_integer:
            return None
        operands = [self.number(v) for v in maker.operands]
        made = None if None in operands else rule(*operands)
        limits = np.iinfo(value.tile.dtype.numpy)
        return made if made is not None and limits.min <= made <= limits.max else None

    def number(self, value: Value) -> int | None:
        """Return the number that an integer or a bool is, None if that is not known."""
        if value.tile.shape:
            return None
        if value.tile.dtype.kind == BOOL:
            truth = self.decide(value)
            return None if truth is None else int(truth)
        form = self.form(value) if value.tile.dtype.is_integer else None
        return form.constant if form and form.is_constant else None

    def is_nonnegative(self, form: Form) -> bool:
        """Whether the form is 0 or more, perhaps since the step runs."""
        return any(
            rest.is_constant and rest.constant >= 0
            for rest in (form, *(form - fact for fact in self._facts()))
        )

    def _facts(self) -> Iterator[Form]:
        """Yield forms that are 0 or more where the step runs."""
        for axis in self.axes:
            low, high, step = axis.bounds(self.forms)
            if step.is_constant and step.constant > 0:
                index, last = self.forms[axis.index], high - Form(1)
                facts = (index - low, last - index, last - low)
                yield from (fact.substituted(self.fixed) for fact in facts)


def _decide_compare(decider: Decider, op: ops.Compare) -> Truth:
    if not op.x.tile.dtype.is_integer or op.x.tile.shape:
        return None
    apart = decider.form(op.x) - decider.form(op.y)
    # Predicates have the names of Python's operators.
    predicate = getattr(operator, op.predicate)
    if apart.is_constant:
        return bool(predicate(apart.constant, 0))
    # Of what lies on one side of 0 any number there tells.
    for sign in (1, -1):
        if decider.is_nonnegative(apart.scaled(sign) - Form(1)):
            return bool(predicate(sign, 0))
        if decider.is_nonnegative(apart.scaled(sign)) and predicate(sign, 0) == predicate(0, 0):
            return bool(predicate(0, 0))
    return None


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


def _decide_select(decider: Decider, op: ops.Select) -> Truth:
    truth = decider.decide(op.condition)
    if truth is not None:
        return decider.decide(op.x if truth else op.y)
    both = decider.decide(op.x), decider.decide(op.y)
    return both[0] if both[0] == both[1] else None


# What numbers make of numbers, where that fits the dtype.
_COMPUTE: dict[type[Op], Callable[..., int]] = {
    ops.FloorDivide: lambda x, y: x // y if y else 0,
    ops.Remainder: lambda x, y: x % y if y else 0,
    ops.Minimum: min,
    ops.Maximum: max,
    ops.Absolute: abs,
    ops.BitAnd: operator.and_,
    ops.BitOr: operator.or_,
    ops.BitXor: operator.xor,
    ops.Select: lambda condition, x, y: x if condition else y,
    ops.Cast: int,
}
_DECIDE: dict[type[Op], _Rule] = {
    ops.Constant: lambda decider, op: bool(op.value),
    ops.Compare: _decide_compare,
    ops.BitAnd: _decide_and,
    ops.BitOr: _decide_or,
    ops.Invert: _decide_not,
    ops.Select: _decide_select,
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
    decider = Decider(forms, first_values(pipeline, first_axis, forms), axes_of(pipeline))
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
