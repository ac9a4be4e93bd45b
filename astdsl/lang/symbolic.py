"""Polynomials with integer coefficients over unknown integers: what index arithmetic means.

Invariant: a form is canonical, so two that are equal for every value of their atoms by the rules
of rings are equal objects; atoms are compared by identity. What the limits below leave out is not
proved; nothing is proved that does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import TypeAlias

from astdsl.ir.core import Value

Bounds: TypeAlias = tuple[int, int]
ANY_INDEX: Bounds = (-(2**63), 2**63 - 1)
# Products of sums have as many terms as the powers of what is written: one that would have more, or
# a product of more atoms, is an unknown of its own.
MOST_TERMS, MOST_FACTORS = 64, 16
# Cases that one proof looks at: they grow as the subsets of the atoms.
MOST_CASES = 64
# The dims that a number is computed from, if from nothing else.
Dims: TypeAlias = "frozenset[tuple[str, int]] | None"


class Atom:
    """An unknown integer: a dim, an index, a number loaded from memory.

    `values` are IR values that hold it, `rebuild` makes one anywhere in the kernel (of dims, and of
    numbers that are the same everywhere);
    `bounds` enclose it, and so do the forms `low` and `high` where they are known; `dims` are the
    dims that it is computed from if from nothing else.
    """

    __slots__ = ("bounds", "dims", "high", "low", "number", "rebuild", "values")

    def __init__(
        self,
        number: int,
        value: Value | None,
        bounds: Bounds = ANY_INDEX,
        dims: Dims = None,
        rebuild: Callable[[], Value] | None = None,
    ) -> None:
        self.number = number
        self.low: Form | None = None
        self.high: Form | None = None
        self.values = [] if value is None else [value]
        self.bounds = bounds
        self.dims = dims
        self.rebuild = rebuild

    def __repr__(self) -> str:
        return f"a{self.number}"


Monomial: TypeAlias = tuple[Atom, ...]


class Form:
    """A polynomial: `terms` gives products of atoms (sorted by number) their coefficients, no 0."""

    __slots__ = ("_bounds", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = terms
        self._bounds: Bounds | None = None

    @staticmethod
    def of(number: int) -> Form:
        """Return the form of a number."""
        return Form({(): number} if number else {})

    @staticmethod
    def unknown(atom: Atom) -> Form:
        """Return the form of one atom."""
        return Form({(atom,): 1})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __repr__(self) -> str:
        parts = [f"{c}{''.join(f'*{a}' for a in m)}" for m, c in self.terms.items()]
        return " + ".join(parts) or "0"

    def __add__(self, other: Form) -> Form:
        return self.plus(other, 1)

    def __neg__(self) -> Form:
        return self.scaled(-1)

    def __sub__(self, other: Form) -> Form:
        return self.plus(other, -1)

    def plus(self, other: Form, factor: int) -> Form:
        """Return the form plus another one times a number other than 0."""
        if not other.terms:
            return self
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            total = terms.get(monomial, 0) + coefficient * factor
            if total:
                terms[monomial] = total
            else:
                del terms[monomial]
        return Form(terms)

    def __mul__(self, other: Form) -> Form:
        terms: dict[Monomial, int] = {}
        for (m, c), (n, d) in product(self.terms.items(), other.terms.items()):
            both = tuple(sorted((*m, *n), key=lambda atom: atom.number))
            terms[both] = terms.get(both, 0) + c * d
        return Form({m: c for m, c in terms.items() if c})

    def scaled(self, factor: int) -> Form:
        """Return the form times a number."""
        return Form({m: c * factor for m, c in self.terms.items()} if factor else {})

    @property
    def degree(self) -> int:
        """The number of atoms in its longest product."""
        return max(map(len, self.terms), default=0)

    @property
    def constant(self) -> int | None:
        """The number that the form is, None if it depends on an atom."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def atoms(self) -> frozenset[Atom]:
        """The atoms that occur."""
        return frozenset(atom for monomial in self.terms for atom in monomial)

    @property
    def dims(self) -> Dims:
        """The dims that the form is computed from, None if from anything else too."""
        found: frozenset[tuple[str, int]] = frozenset()
        for monomial in self.terms:
            for atom in monomial:
                if atom.dims is None:
                    return None
                found |= atom.dims
        return found

    @property
    def bounds(self) -> Bounds:
        """Numbers that enclose the form."""
        if self._bounds is None:
            low = high = 0
            for monomial, coefficient in self.terms.items():
                part = (coefficient, coefficient)
                for atom in monomial:
                    part = multiply_bounds(part, atom.bounds)
                low, high = low + part[0], high + part[1]
            self._bounds = (low, high)
        return self._bounds

    def is_nonnegative(self) -> bool:
        """Whether the form is proved 0 or more.

        Beside the bounds, atoms that occur linearly are replaced by the form that encloses them
        from the side that matters.
        """
        pending, seen = [self], set[Form]()
        while pending:
            case = pending.pop()
            if case.bounds[0] >= 0:
                return True
            if len(seen) < MOST_CASES:
                fresh = [worse for worse in case._worst_cases() if worse not in seen]
                seen.update(fresh)
                pending.extend(fresh)
        return False

    def _worst_cases(self) -> Iterator[Form]:
        for monomial, coefficient in self.terms.items():
            if len(monomial) != 1:
                continue
            limit = monomial[0].low if coefficient > 0 else monomial[0].high
            if limit is not None and sum(monomial[0] in m for m in self.terms) == 1:
                rest = {m: c for m, c in self.terms.items() if m != monomial}
                yield Form(rest).plus(limit, coefficient)


def multiply_bounds(x: Bounds, y: Bounds) -> Bounds:
    """Return what encloses the products of two enclosed numbers."""
    (a, b), (c, d) = x, y
    corners = (a * c, a * d, b * c, b * d)
    return (min(corners), max(corners))
