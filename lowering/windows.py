"""What is known of index scalars without running the kernel: sums of products, and their divisors.

Invariant: a `Form` is exact: the value always equals `constant` plus the sum of its terms, each a
product of values (an empty product never occurs) times a coefficient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk

Product: TypeAlias = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """`constant + sum(coefficient * product)`; `terms` is sorted by the products' identities."""

    constant: int
    terms: tuple[tuple[Product, int], ...] = ()

    def __add__(self, other: Form) -> Form:
        return _form(self.constant + other.constant, (*self.terms, *other.terms))

    def __sub__(self, other: Form) -> Form:
        return self + other.scaled(-1)

    def __mul__(self, other: Form) -> Form:
        crossed = [
            (_product((*p, *q)), a * b) for p, a in self._all() for q, b in other._all() if a * b
        ]
        constant = self.constant * other.constant
        return _form(constant, [(p, c) for p, c in crossed if p])

    def scaled(self, factor: int) -> Form:
        """Return the form times a number."""
        return _form(self.constant * factor, [(p, c * factor) for p, c in self.terms])

    @property
    def is_constant(self) -> bool:
        """Whether the value is known."""
        return not self.terms

    @property
    def divisor(self) -> int:
        """The greatest number known to divide the value; 0 if the value is 0."""
        return math.gcd(self.constant, *(c for _, c in self.terms))

    def values(self) -> set[Value]:
        """Return every value that the form mentions."""
        return {v for product, _ in self.terms for v in product}

    def substituted(self, places: Mapping[Value, Form]) -> Form:
        """Return the form with some values replaced by forms."""
        if not self.values() & places.keys():
            return self
        total = Form(self.constant)
        for product, factor in self.terms:
            part = Form(factor)
            for value in product:
                part = part * places.get(value, Form(0, (((value,), 1),)))
            total = total + part
        return total

    def coefficient(self, value: Value) -> int | None:
        """Return what one more of `value` adds; None if that is not constant."""
        for product, factor in self.terms:
            if product == (value,):
                return (
                    factor if all(value not in p or p == (value,) for p, _ in self.terms) else None
                )
        return None if value in self.values() else 0

    def factor(self, value: Value) -> Form | None:
        """Return what one more of `value` adds, which may hold other values; None if not linear."""
        terms = [(p, c) for p, c in self.terms if value in p]
        if any(p.count(value) > 1 for p, _ in terms):
            return None
        rest = [(tuple(v for v in p if v is not value), c) for p, c in terms]
        return _form(sum(c for p, c in rest if not p), [(p, c) for p, c in rest if p])

    def _all(self) -> Iterable[tuple[Product, int]]:
        return ((), self.constant), *self.terms


def _product(values: tuple[Value, ...]) -> Product:
    return tuple(sorted(values, key=id))


def _form(constant: int, terms: Iterable[tuple[Product, int]]) -> Form:
    total: dict[Product, int] = {}
    for product, factor in terms:
        total[product] = total.get(product, 0) + factor
    kept = [(p, c) for p, c in total.items() if c]
    kept.sort(key=lambda term: [id(v) for v in term[0]])
    return Form(constant, tuple(kept))


_Rule: TypeAlias = Callable[["Forms", Any], Form]
_RULES: dict[type[Op], _Rule] = {
    ops.Constant: lambda forms, op: Form(int(op.value)),
    ops.Add: lambda forms, op: forms[op.x] + forms[op.y],
    ops.Subtract: lambda forms, op: forms[op.x] - forms[op.y],
    ops.Multiply: lambda forms, op: forms[op.x] * forms[op.y],
    ops.Negate: lambda forms, op: forms[op.x].scaled(-1),
}


class Forms:
    """The forms of the index scalars of a kernel, found on demand."""

    def __init__(self, *blocks: Block) -> None:
        self.makers: dict[Value, Op] = {}
        self._known: dict[Value, Form] = {}
        for block in blocks:
            self.learn(block)

    def learn(self, block: Block) -> None:
        """Take in the operations of a block and of its regions."""
        for op in walk(block):
            self.makers.update(dict.fromkeys(op.results, op))

    def __getitem__(self, value: Value) -> Form:
        found = self._known.get(value)
        if found is None:
            maker = self.makers.get(value)
            rule = _RULES.get(type(maker)) if maker else None
            found = rule(self, maker) if rule else Form(0, (((value,), 1),))
            self._known[value] = found
        return found

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
