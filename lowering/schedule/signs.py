"""Which index scalars are never below 0, as far as what makes them tells.

Invariant: what is said never to be negative is not, where sums and products of indices do not
overflow; of what is not said, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.lowering.schedule.coverage import Axis, axes_of
from astdsl.lowering.windows import Forms

# Longer chains of operations that are no sums or products are rare: nothing is known of them.
_DEEPEST = 24
_Rule: TypeAlias = Callable[["Signs", Any, int], bool]


class Signs:
    """Answers for the values of some operations, whose `forms` are given.

    `counted` are values from 0 on that no operation makes: the number of a block of threads.
    `warpgroups` is how many a block has.
    """

    def __init__(
        self, body: Block, forms: Forms, counted: Iterable[Value] = (), warpgroups: int = 1
    ) -> None:
        self._forms, self.warpgroups = forms, warpgroups
        self._counted = frozenset(counted)
        self._body = body
        self._known: dict[Value, bool] = {}

    @cached_property
    def _axes(self) -> dict[Value, Axis]:
        return {axis.index: axis for op in walk(self._body) for axis in axes_of(op)}

    def is_nonnegative(self, value: Value, depth: int = _DEEPEST) -> bool:
        """Whether a scalar is never below 0."""
        if value not in self._known:
            if not depth:
                return False
            # A value that is computed from itself, around a loop, proves nothing.
            self._known[value] = False
            self._known[value] = self._is_made_so(value, depth) or self._is_sum(value, depth)
        return self._known[value]

    def _is_made_so(self, value: Value, depth: int) -> bool:
        dtype = value.tile.dtype
        if value in self._counted or (dtype.is_integer and not dtype.is_signed):
            return True
        axis, maker = self._axes.get(value), self._forms.makers.get(value)
        if axis is not None:
            return self._begins_at_0(axis, depth)
        rule = _RULES.get(type(maker)) if maker else None
        return rule is not None and rule(self, maker, depth - 1)

    def _is_sum(self, value: Value, depth: int) -> bool:
        """Whether a value is a sum of products of such values, less what some may be at most."""
        form = self._forms[value]
        if value in form.values():
            return False
        least = form.constant
        for product, factor in form.terms.items():
            most = self.most(product[0]) if len(product) == 1 and factor < 0 else None
            if factor < 0 and most is None:
                return False
            least += factor * (most or 0)
        added = {v for product, factor in form.terms.items() if factor > 0 for v in product}
        return least >= 0 and all(self.is_nonnegative(v, depth - 1) for v in added)

    def most(self, value: Value) -> int | None:
        """Return a number that a scalar is never above, where its maker tells one."""
        maker = self._forms.makers.get(value)
        rule = _MOST.get(type(maker)) if maker else None
        return rule(self, maker) if rule else None

    def constant(self, value: Value) -> int | None:
        """Return the number that a scalar always is, None if there is none."""
        form = self._forms[value]
        return form.constant if form.is_constant else None

    def _begins_at_0(self, axis: Axis, depth: int) -> bool:
        return all(self.is_nonnegative(v, depth - 1) for v in (axis.low, axis.step))


def _always(signs: Signs, op: Op, depth: int) -> bool:
    return True


def _of_all(*names: str) -> _Rule:
    """Return the rule of an operation that is so if all of some operands are."""
    return lambda signs, op, depth: all(
        signs.is_nonnegative(getattr(op, name), depth) for name in names
    )


def _of_any(*names: str) -> _Rule:
    """Return the rule of an operation that is so if one of some operands is."""
    return lambda signs, op, depth: any(
        signs.is_nonnegative(getattr(op, name), depth) for name in names
    )


def _of_branch(signs: Signs, op: ops.If, depth: int) -> bool:
    # Which of its results was asked for is not known here: all have to be so.
    sides = (v for side in (op.then, op.otherwise) for v in ops.yielded(side))
    return all(not v.tile.shape and signs.is_nonnegative(v, depth) for v in sides)


def _of_cast(signs: Signs, op: ops.Cast, depth: int) -> bool:
    return _keeps(op) and signs.is_nonnegative(op.x, depth)


def _keeps(op: ops.Cast) -> bool:
    """Whether every integer stays what it is, or becomes one that is never below 0."""
    old, new = op.x.tile.dtype, op.dtype
    return old.is_integer and new.is_integer and new.bits >= old.bits + (not old.is_signed)


def _below_divisor(signs: Signs, op: ops.Remainder) -> int | None:
    divisor = signs.constant(op.y)
    return divisor - 1 if divisor is not None and divisor > 0 else None


def _of_mask(signs: Signs, op: ops.BitAnd) -> int | None:
    masks = [m for m in map(signs.constant, (op.x, op.y)) if m is not None and m >= 0]
    return min(masks, default=None)


def _of_kept(signs: Signs, op: ops.Cast) -> int | None:
    return signs.most(op.x) if _keeps(op) and op.dtype.is_signed else None


_MOST: dict[type[Op], Callable[[Signs, Any], int | None]] = {
    ops.WarpgroupId: lambda signs, op: signs.warpgroups - 1,
    ops.WarpId: lambda signs, op: 3,
    ops.Remainder: _below_divisor,
    ops.BitAnd: _of_mask,
    ops.Cast: _of_kept,
}
_RULES: dict[type[Op], _Rule] = {
    ops.Dim: _always,
    ops.WarpId: _always,
    ops.WarpgroupId: _always,
    ops.Multiprocessors: _always,
    ops.CounterRead: _always,
    ops.FloorDivide: _of_all("x", "y"),
    # The remainder has the sign of the divisor.
    ops.Remainder: _of_all("y"),
    ops.Minimum: _of_all("x", "y"),
    ops.Select: _of_all("x", "y"),
    ops.ShiftRight: _of_all("x"),
    ops.Maximum: _of_any("x", "y"),
    ops.BitAnd: _of_any("x", "y"),
    ops.Cast: _of_cast,
    ops.If: _of_branch,
}
