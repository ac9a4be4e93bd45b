"""Polynomials with integer coefficients over unknown integers: what index arithmetic means.

Invariant: a form is canonical, so two that are equal for every value of their atoms by the rules
of rings are equal objects; atoms are compared by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import TypeAlias

from astdsl.ir.core import Value

Bounds: TypeAlias = tuple[int, int]
ANY_INDEX: Bounds = (-(2**63), 2**63 - 1)
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
    """A polynomial: `terms` gives each product of atoms (sorted by number) its coefficient."""

    __slots__ = ("_key", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}
        self._key = frozenset(self.terms.items())

    @staticmethod
    def of(number: int) -> Form:
        """Return the form of a number."""
        return Form({(): number})

    @staticmethod
    def unknown(atom: Atom) -> Form:
        """Return the form of one atom."""
        return Form({(atom,): 1})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        parts = [f"{c}{''.join(f'*{a}' for a in m)}" for m, c in self.terms.items()]
        return " + ".join(parts) or "0"

    def __add__(self, other: Form) -> Form:
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return Form(terms)

    def __neg__(self) -> Form:
        return self.scaled(-1)

    def __sub__(self, other: Form) -> Form:
        return self + other.scaled(-1)

    def __mul__(self, other: Form) -> Form:
        terms: dict[Monomial, int] = {}
        for (m, c), (n, d) in product(self.terms.items(), other.terms.items()):
            both = tuple(sorted((*m, *n), key=lambda atom: atom.number))
            terms[both] = terms.get(both, 0) + c * d
        return Form(terms)

    def scaled(self, factor: int) -> Form:
        """Return the form times a number."""
        return Form({m: c * factor for m, c in self.terms.items()})

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
        for atom in self.atoms:
            if atom.dims is None:
                return None
            found |= atom.dims
        return found

    @property
    def bounds(self) -> Bounds:
        """Numbers that enclose the form."""
        low = high = 0
        for monomial, coefficient in self.terms.items():
            part = (coefficient, coefficient)
            for atom in monomial:
                part = multiply_bounds(part, atom.bounds)
            low, high = low + part[0], high + part[1]
        return (low, high)

    def is_nonnegative(self, depth: int = 4) -> bool:
        """Whether the form is proved 0 or more.

        Beside the bounds, atoms that occur linearly are replaced by the form that encloses them
        from the side that matters.
        """
        if self.bounds[0] >= 0:
            return True
        return depth > 0 and any(
            (self + change).is_nonnegative(depth - 1) for change in self._worst_cases()
        )

    def _worst_cases(self) -> Iterator[Form]:
        for monomial, coefficient in self.terms.items():
            if len(monomial) != 1 or sum(monomial[0] in m for m in self.terms) != 1:
                continue
            limit = monomial[0].low if coefficient > 0 else monomial[0].high
            if limit is not None:
                yield (limit - Form.unknown(monomial[0])).scaled(coefficient)


def multiply_bounds(x: Bounds, y: Bounds) -> Bounds:
    """Return what encloses the products of two enclosed numbers."""
    corners = [a * b for a in x for b in y]
    return (min(corners), max(corners))
