"""Index arithmetic: integer scalars as forms, and forms as IR values.

Invariant: what is computed from a form is computed in i64 from its atoms, so it never wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from astdsl.errors import TypeMismatch
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import INT, UINT, DType, i64
from astdsl.ir.types import INDEX
from astdsl.lang.symbolic import ANY_INDEX, Atom, Bounds, Form
from astdsl.lang.tracing import emit, fault, require_trace
from astdsl.lang.values import Literal, Operand, Tile, as_operand


def atom_of(key: object, make: Callable[[int], Atom]) -> Atom:
    """Return the unknown that `key` stands for in this trace, made at its first use."""
    atoms = require_trace("index arithmetic").atoms
    if key not in atoms:
        atoms[key] = make(len(atoms))
    return atoms[key]


def form_of(x: Operand) -> Form:
    """Return the form of an integer scalar; a value that no arithmetic made is its own unknown."""
    if x.form is not None:
        return x.form
    assert isinstance(x, Tile), f"no form of {x}"
    value = x.value
    bounds = x.bounds if x.weak else integer_bounds(value.tile.dtype)
    return Form.unknown(atom_of(value, lambda number: Atom(number, value, bounds, x.dims)))


DIVISIONS = ("`//`", "`%`")


def possible_zeros(form: Form) -> Iterator[Form]:
    """Yield what a form, or a part of it, is divided by and may be 0; of a `where` nothing."""
    keys = list(require_trace("index arithmetic").atoms)  # an atom's number is its place there
    pending, seen = list(form.atoms), set[Atom]()
    while pending:
        atom = pending.pop()
        key = keys[atom.number]
        if atom in seen or not isinstance(key, tuple):
            continue
        seen.add(atom)
        parts = [part for part in key if isinstance(part, Form)]
        if key[0] in DIVISIONS and parts[1].bounds[0] <= 0 <= parts[1].bounds[1]:
            yield parts[1]
        pending.extend(part for form in parts for part in form.atoms)


def integer_bounds(dtype: DType) -> Bounds:
    """Return the least and greatest value of an integer dtype."""
    info = np.iinfo(dtype.numpy)
    return (int(info.min), int(info.max))


def known_index(key: object, make: Callable[[], Tile]) -> Tile:
    """Return the index that `key` (a form, say) stands for, made if none is visible here."""
    trace = require_trace("index arithmetic")
    found = trace.known.get(key)
    if isinstance(found, Tile) and trace.builder.visible(found.value):
        return found
    made = make()
    trace.known[key] = made
    return made


def index_constant(number: int) -> Value:
    """Return an i64 scalar of a number."""
    form = Form.of(number)

    def make() -> Tile:
        value = emit(ops.Constant, value=number, type=INDEX).result
        return weak_integer(value, form)

    return known_index(form, make).value


def is_visible(form: Form) -> bool:
    """Whether every atom of a form can be had at this place of the kernel."""
    builder = require_trace("index arithmetic").builder
    return all(a.rebuild or any(map(builder.visible, a.values)) for a in form.atoms)


def index_value(x: Operand | Form | int) -> Value:
    """Return an i64 scalar: of a weak number its value, else one computed without wrapping."""
    if isinstance(x, Tile) and x.weak and x.value.type == INDEX:
        return x.value
    if isinstance(x, int):
        return index_constant(x)
    form = x if isinstance(x, Form) else form_of(x)
    total: Value | None = None
    for monomial, coefficient in form.terms.items():
        part = _monomial_value(monomial, coefficient)
        total = part if total is None else emit(ops.Add, x=total, y=part).result
    return index_constant(0) if total is None else total


def _monomial_value(monomial: tuple[Atom, ...], coefficient: int) -> Value:
    factors = [_atom_value(atom) for atom in monomial]
    if coefficient != 1 or not factors:
        factors.append(index_constant(coefficient))
    product = factors[0]
    for factor in factors[1:]:
        product = emit(ops.Multiply, x=product, y=factor).result
    return product


def _atom_value(atom: Atom) -> Value:
    builder = require_trace("index arithmetic").builder
    for value in atom.values:
        if builder.visible(value):
            return value if value.type == INDEX else emit(ops.Cast, x=value, dtype=i64).result
    assert atom.rebuild is not None, f"{atom} is not visible here"
    value = atom.rebuild()
    atom.values.append(value)
    return value


def loop_index(value: Value, low: Operand, high: Operand, step: Operand) -> Tile:
    """Return the index of a loop over `range(low, high, step)` held by `value` (i64)."""
    first, stop, stride = form_of(low), form_of(high), form_of(step).constant
    if stride is None:
        bounds = ANY_INDEX
    elif stride > 0:
        bounds = (first.bounds[0], max(first.bounds[0], stop.bounds[1] - 1))
    else:
        bounds = (min(first.bounds[1], stop.bounds[0] + 1), first.bounds[1])
    atom = atom_of(value, lambda number: Atom(number, value, bounds))
    if stride is not None:
        last = stop - Form.of(1 if stride > 0 else -1)
        atom.low, atom.high = (first, last) if stride > 0 else (last, first)
    return Tile(value, weak=True, form=Form.unknown(atom), bounds=bounds)


def weak_integer(value: Value, form: Form) -> Tile:
    """Return a weak integer scalar held by `value` (i64)."""
    return Tile(value, weak=True, form=form, bounds=form.bounds, dims=form.dims)


def as_index(x: object, what: str) -> Operand:
    """Return an integer scalar that never wraps; refuse anything else."""
    operand = as_operand(x, what)
    if operand.kind not in (INT, UINT) or operand.shape:
        raise fault(
            TypeMismatch,
            f"{what} is an integer, got {operand}",
            *([(operand.value, "it comes from here")] if isinstance(operand, Tile) else []),
            help="`x.astype(i32)` converts a float towards zero; an index is one scalar",
        )
    if isinstance(operand, Literal) or operand.weak:
        return operand
    form = form_of(operand)
    return known_index(form, lambda: weak_integer(index_value(form), form))


def plus(x: Operand, y: Operand) -> Operand:
    """Return the sum of two indices; 0 adds no operation."""
    if isinstance(x, Literal) and isinstance(y, Literal):
        return Literal(x.number + y.number)
    if isinstance(x, Literal):
        x, y = y, x
    if isinstance(y, Literal) and y.number == 0:
        return x
    form = form_of(x) + form_of(y)

    def make() -> Tile:
        return weak_integer(emit(ops.Add, x=index_value(x), y=index_value(y)).result, form)

    return known_index(form, make)


def times(x: Operand, factor: int) -> Operand:
    """Return an index times a constant; 1 multiplies nothing."""
    if isinstance(x, Literal):
        return Literal(x.number * factor)
    if factor == 1:
        return x
    form = form_of(x).scaled(factor)

    def make() -> Tile:
        product = emit(ops.Multiply, x=index_value(x), y=index_constant(factor)).result
        return weak_integer(product, form)

    return known_index(form, make)
