"""What is known of index scalars without running the kernel: sums of products, and their divisors.

Invariant: a `Form` is exact: the value always equals `constant` plus the sum of its terms, each a
product of values (an empty product never occurs) times a coefficient other than 0. What would have
more terms than the limits below allow is a value of its own, of which less is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value

Product: TypeAlias = tuple[Value, ...]
# Products of sums have as many terms as the powers of what is written, and as many again where
# other forms stand for their factors.
MOST_TERMS, MOST_FACTORS = 64, 8


class Form:
    """`constant + sum(coefficient * product)`; products are sorted by their factors' identities."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: int, terms: Mapping[Product, int] | None = None) -> None:
        self.constant = constant
        self.terms: Mapping[Product, int] = terms or {}

    @staticmethod
    def unknown(value: Value) -> Form:
        """Return the form of a value of which nothing is known."""
        return Form(0, {(value,): 1})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Form):
            return False
        return self.constant == other.constant and self.terms == other.terms

    def __hash__(self) -> int:
        return hash((self.constant, frozenset(self.terms.items())))

    def __repr__(self) -> str:
        return " + ".join([str(self.constant), *(f"{c}*{p}" for p, c in self.terms.items())])

    def __add__(self, other: Form) -> Form:
        return self.plus(other, 1)

    def __sub__(self, other: Form) -> Form:
        return self.plus(other, -1)

    def plus(self, other: Form, factor: int) -> Form:
        """Return the form plus another one times a number."""
        constant = self.constant + factor * other.constant
        if not other.terms:
            return Form(constant, self.terms)
        return _form(constant, self.terms, ((p, factor * c) for p, c in other.terms.items()))

    def __mul__(self, other: Form) -> Form:
        own = [((), self.constant), *self.terms.items()]
        crossed = [(_product((*p, *q)), a * b) for q, b in other.terms.items() for p, a in own]
        scaled = self.scaled(other.constant)
        return _form(scaled.constant, scaled.terms, crossed)

    def scaled(self, factor: int) -> Form:
        """Return the form times a number."""
        if not factor:
            return Form(0)
        return Form(self.constant * factor, {p: c * factor for p, c in self.terms.items()})

    @property
    def degree(self) -> int:
        """The number of values in its longest product."""
        return max(map(len, self.terms), default=0)

    @property
    def is_constant(self) -> bool:
        """Whether the value is known."""
        return not self.terms

    @property
    def divisor(self) -> int:
        """The greatest number known to divide the value; 0 if the value is 0."""
        return math.gcd(self.constant, *self.terms.values())

    def values(self) -> set[Value]:
        """Return every value that the form mentions."""
        return set().union(*self.terms)

    def substituted(self, places: Mapping[Value, Form]) -> Form:
        """Return the form with some values replaced by forms."""
        if not self.values() & places.keys():
            return self
        total = Form(self.constant)
        for product, factor in self.terms.items():
            part = Form(factor)
            for value in product:
                part = part * (places.get(value) or Form.unknown(value))
            total = total + part
        return total

    def coefficient(self, value: Value) -> int | None:
        """Return what one more of `value` adds; None if that is not constant."""
        holding = [p for p in self.terms if value in p]
        if not holding:
            return 0
        return self.terms[holding[0]] if holding == [(value,)] else None

    def factor(self, value: Value) -> Form | None:
        """Return what one more of `value` adds, which may hold other values; None if not linear."""
        terms = [(p, c) for p, c in self.terms.items() if value in p]
        if any(p.count(value) > 1 for p, _ in terms):
            return None
        rest = {tuple(v for v in p if v is not value): c for p, c in terms}
        return Form(rest.pop((), 0), rest)


def _product(values: tuple[Value, ...]) -> Product:
    return tuple(sorted(values, key=id))


def _form(constant: int, terms: Mapping[Product, int], more: Iterable[tuple[Product, int]]) -> Form:
    total = dict(terms)
    for product, factor in more:
        total[product] = total.get(product, 0) + factor
    return Form(constant, {p: c for p, c in total.items() if c})


def _multiplied(forms: Forms, op: ops.Multiply) -> Form | None:
    x, y = forms[op.x], forms[op.y]
    if len(x.terms) * len(y.terms) > MOST_TERMS or x.degree + y.degree > MOST_FACTORS:
        return None
    return x * y


_Rule: TypeAlias = Callable[["Forms", Any], "Form | None"]
_RULES: dict[type[Op], _Rule] = {
    ops.Constant: lambda forms, op: Form(int(op.value)),
    ops.Add: lambda forms, op: forms[op.x] + forms[op.y],
    ops.Subtract: lambda forms, op: forms[op.x] - forms[op.y],
    ops.Multiply: _multiplied,
    ops.Negate: lambda forms, op: forms[op.x].scaled(-1),
}


class Forms:
    """The forms of the index scalars of a kernel, found on demand."""

    def __init__(self, *blocks: Block) -> None:
        self._blocks = blocks
        self._known: dict[Value, Form] = {}

    @cached_property
    def makers(self) -> dict[Value, Op]:
        """The operation that makes each value."""
        return {v: op for block in self._blocks for v, op in block.definitions.items()}

    def learn(self, block: Block) -> None:
        """Take in the operations of one more block and of its regions."""
        self.makers.update(block.definitions)

    def __getitem__(self, value: Value) -> Form:
        if value not in self._known:
            self._find(value)
        return self._known[value]

    def _find(self, value: Value) -> None:
        """Find a form, after those of what it is computed from, however long the chain."""
        pending = [value]
        while pending:
            maker = self.makers.get(pending[-1])
            rule = _RULES.get(type(maker)) if maker else None
            missing = [v for v in maker.operands if v not in self._known] if maker and rule else []
            if missing:
                pending += missing
                continue
            current = pending.pop()
            found = rule(self, maker) if rule else None
            if found is None or len(found.terms) > MOST_TERMS:
                found = Form.unknown(current)
            self._known[current] = found

    def sources(self, value: Value) -> set[Value]:
        """Return the values without a pure scalar maker that this one is computed from."""
        found: set[Value] = set()
        pending, seen = [value], set()
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            maker = self.makers.get(current)
            if maker and is_index_arithmetic(maker):
                pending.extend(maker.operands)
            else:
                found.add(current)
        return found


def is_index_arithmetic(op: Op) -> bool:
    """Whether an operation only computes a scalar from scalars and dims."""
    if isinstance(op, (ops.Constant, ops.Dim)):
        return op.result.type.shape == ()  # type: ignore[union-attr]
    return isinstance(op, ops.Elementwise) and op.result.tile.shape == ()
