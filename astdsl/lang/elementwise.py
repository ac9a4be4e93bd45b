"""How operands of an elementwise operation meet: dtypes, shapes, edges, and index forms.

Invariant: every elementwise function of lang is one row of a table given to `binary` or `unary`;
promotion, broadcasting and raggedness are decided here and nowhere else.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

import numpy as np

from astdsl.errors import ShapeMismatch, TypeMismatch
from astdsl.ir import ops
from astdsl.ir.core import Op, Value
from astdsl.ir.dtypes import (
    BOOL,
    FLOAT,
    INT,
    UINT,
    DType,
    boolean,
    f4e2m1,
    f8e4m3,
    f8e5m2,
    f8e8m0,
    f32,
    i32,
    i64,
    promote,
)
from astdsl.ir.types import TileType
from astdsl.lang.indices import (
    atom_of,
    form_of,
    index_constant,
    integer_bounds,
    known_index,
    weak_integer,
)
from astdsl.lang.ragged import NO_EDGES, Edges, StateRule, combine, lost, same
from astdsl.lang.symbolic import ANY_INDEX, Atom, Bounds, Dims, Form
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import (
    SUPPORTED,
    Literal,
    Operand,
    Tile,
    as_operand,
    fits_i32,
    plain_state,
    require_dtype,
)
from astdsl.records import dataclass

NUMERIC = (FLOAT, INT, UINT)
INTEGRAL = (INT, UINT)
FormRule = Callable[[Form, Form], "Form | None"]
BoundsRule = Callable[[Bounds, Bounds], Bounds]


@dataclass(frozen=True, slots=True)
class Binary:
    """A row: the operation, how it is written, the kinds that it takes, and what it does to facts.

    `state` says what elements outside hold; `form` gives that of integer scalars, None where it is
    no polynomial, or too long a one; `bounds` enclose integers; `floats` makes integers f32 first.
    """

    op: type[Op]
    symbol: str
    kinds: tuple[str, ...] = NUMERIC
    state: StateRule = lost
    form: FormRule | None = None
    bounds: BoundsRule | None = None
    floats: bool = False
    attributes: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Unary:
    """A row of a function of one tile; `floats` makes integers f32 first.

    `identity_on_integers` returns integers as they are.
    """

    op: type[Op]
    symbol: str
    kinds: tuple[str, ...] = NUMERIC
    state: StateRule = lost
    form: Callable[[Form], Form] | None = None
    floats: bool = False
    identity_on_integers: bool = False


def rounded(number: bool | int | float, dtype: DType) -> bool | int | float:
    """Return the number as `dtype` holds it, rounded once to nearest even.

    To an integer a float goes towards zero and saturates, NaN gives 0, as in `astype`; floats of
    8 bits and fewer saturate too.
    """
    if dtype.is_float:
        with np.errstate(over="ignore"):
            near = _near(_saturated(_double(number), dtype), dtype)
            return float(np.asarray(near).astype(dtype.numpy))
    if dtype.kind == BOOL:
        return bool(number)
    if isinstance(number, int):
        return number
    if math.isnan(number):
        return 0
    low, high = integer_bounds(dtype)
    return low if number < low else high if number > high else int(number)


def _double(number: bool | int | float) -> float:
    """Return the nearest double, infinity for integers that are too large."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _saturated(number: float, dtype: DType) -> float:
    """Return a number within what a float of 8 bits or fewer holds, by the rules of `astype`."""
    largest = _LARGEST.get(dtype)
    if largest is None:
        return number
    if dtype is f8e8m0:
        least = 2.0**-127
        return math.nan if number < 0 or math.isnan(number) else min(max(number, least), largest)
    if math.isnan(number):
        return largest if dtype is f4e2m1 else number
    return min(max(number, -largest), largest)


# The largest numbers of the floats that saturate (PTX ISA 9.7.9.21).
_LARGEST = {f8e4m3: 448.0, f8e5m2: 57344.0, f8e8m0: 2.0**127, f4e2m1: 6.0}


def _near(number: float, dtype: DType) -> float | np.float32:
    """Round a double to odd in f32 for types that ml_dtypes rounds by way of f32."""
    single = np.float32(number)
    if dtype.numpy.isbuiltin == 1 or not np.isfinite(single) or float(single) == number:
        return number
    if single.view(np.uint32) & 1:
        return single
    towards = np.float32(np.inf if number > float(single) else -np.inf)
    return np.float32(np.nextafter(single, towards))


def constant(number: bool | int | float, shape: tuple[int, ...], dtype: DType) -> Value:
    """Return a tile value with one number everywhere, rounded to `dtype`."""
    require_fits(number, dtype)
    return emit(ops.Constant, value=rounded(number, dtype), type=TileType(shape, dtype)).result


def require_fits(number: bool | int | float, dtype: DType) -> None:
    """Refuse a whole number that an integer dtype does not hold. Errors: TypeMismatch."""
    if dtype.is_integer and isinstance(number, int):
        low, high = integer_bounds(dtype)
        if not low <= number <= high:
            raise fault(
                TypeMismatch,
                f"{number} does not fit {dtype}",
                help=f"{dtype} holds {low} to {high}; `x.astype(i64)` has room for more",
            )


def convert(x: Operand, dtype: DType) -> Value:
    """Return the operand's value in `dtype`; of a Python number, a scalar constant."""
    if isinstance(x, Literal):
        if dtype is i64 and isinstance(x.number, int):
            return index_constant(x.number)
        return constant(x.number, (), dtype)
    if x.value.tile.dtype is dtype:
        return x.value
    return emit(ops.Cast, x=x.value, dtype=dtype).result


def expand(value: Value, shape: tuple[int, ...]) -> Value:
    """Return the value broadcast to `shape`."""
    if value.tile.shape == shape:
        return value
    return emit(ops.Broadcast, x=value, shape=shape).result


def placed(x: Operand, dtype: DType, shape: tuple[int, ...]) -> Value:
    """Return the operand's value in `dtype`, broadcast to `shape`."""
    if isinstance(x, Literal):
        return constant(x.number, shape, dtype)
    return expand(convert(x, dtype), shape)


def as_tile(x: object, what: str = "this") -> Tile:
    """Return a tile: a tile itself, a Python number as a weak constant (bools are not weak)."""
    operand = as_operand(x, what)
    if isinstance(operand, Tile):
        return operand
    if operand.kind == INT:
        assert operand.form is not None, "integers have a form"
        return weak_integer(convert(operand, i64), operand.form)
    dtype = f32 if operand.kind == FLOAT else boolean
    return Tile(convert(operand, dtype), weak=operand.weak, dims=operand.dims)


def settle(x: object, what: str) -> Tile:
    """Return a tile that is not weak: weak numbers take the dtype of their own."""
    operand = as_operand(x, what)
    if isinstance(operand, Tile) and not operand.weak:
        return operand
    return Tile(convert(operand, operand.dtype), dims=operand.dims, edges=operand.edges)


def sources(*operands: Operand) -> list[tuple[Value, str]]:
    """Pair each tile with what an error says of the place that made it."""
    return [(x.value, f"{x} comes from here") for x in operands if isinstance(x, Tile)]


def broadcast_shape(symbol: str, *operands: Operand) -> tuple[int, ...]:
    """Return the shape that operands are broadcast to, by NumPy's rule."""
    rank = max(len(x.shape) for x in operands)
    padded = [(1,) * (rank - len(x.shape)) + x.shape for x in operands]
    axes = zip(*padded, strict=True)
    shape = tuple(next((extent for extent in axis if extent != 1), 1) for axis in axes)
    if any(extent not in (1, s) for p in padded for extent, s in zip(p, shape, strict=True)):
        raise fault(
            ShapeMismatch,
            f"{symbol} cannot broadcast {_shapes(operands)}",
            *sources(*operands),
            note=", ".join(map(repr, operands)),
            help="axes match from the last one on, and are equal or 1; `x[:, None]` adds an axis",
        )
    return shape


def _shapes(operands: Sequence[Operand]) -> str:
    texts = [str(x.shape) for x in operands]
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def meet(symbol: str, *operands: Operand) -> tuple[DType, bool]:
    """Return the dtype in which operands meet, and whether it is weak.

    Weak numbers take the dtype of the others; a float beside integers alone is f32.
    """
    strong = [x.dtype for x in operands if not x.weak]
    if {d.kind == BOOL for d in strong} == {True} and len(strong) == len(operands):
        return boolean, False
    if any(d.kind == BOOL for d in strong):
        raise _no_common_kind(symbol, operands)
    has_float = any(x.kind == FLOAT for x in operands)
    if not strong:
        return (f32 if has_float else i64), True
    dtype = strong[0]
    for other in strong[1:]:
        dtype = _promoted(symbol, dtype, other, operands)
    if has_float and not dtype.is_float:
        dtype = f32
    return dtype, False


def _promoted(symbol: str, x: DType, y: DType, operands: Sequence[Operand]) -> DType:
    dtype = promote(x, y)
    if dtype in SUPPORTED:
        return dtype
    raise fault(
        TypeMismatch,
        f"{symbol} has no dtype in which {x} and {y} meet",
        *sources(*operands),
        note=" and ".join(map(repr, operands)),
        help="convert one of them: `x.astype(f32)`",
    )


def _no_common_kind(symbol: str, operands: Sequence[Operand]) -> TypeMismatch:
    dtypes = " and ".join(str(x.dtype) for x in operands)
    mask = next(x for x in operands if x.kind == BOOL)
    order = sorted(operands, key=lambda x: x is not mask)
    other = next(x for x in operands if x.kind != BOOL)
    error = fault(
        TypeMismatch,
        f"{symbol} takes one dtype kind, got {dtypes}",
        *sources(*order),
        note=" and ".join(map(repr, operands)),
        help=f"`where(mask, x, 0)` selects; `mask.astype({other.dtype})` counts",
    )
    assert isinstance(error, TypeMismatch), "fault returns what it is asked for"
    return error


def require_kind(symbol: str, kinds: Sequence[str], *operands: Operand) -> None:
    """Refuse operands of other kinds than `kinds`."""
    for x in operands:
        if x.kind not in kinds:
            raise fault(
                TypeMismatch,
                f"{symbol} does not take {x.dtype}",
                *sources(x),
                note=" and ".join(map(repr, operands)),
                help=_kind_help(kinds, x),
            )


def _kind_help(kinds: Sequence[str], x: Operand) -> str:
    if x.kind == BOOL:
        return "`&`, `|`, `^` and `~` combine bools; `mask.astype(i32)` counts"
    if FLOAT not in kinds:
        return "it takes integers (and bools): `x.astype(i32)` converts towards zero"
    return f"it takes {', '.join(kinds)}: `x.astype(f32)` converts"


def all_dims(*operands: Operand) -> Dims:
    """Return the dims that operands are computed from, None if from anything else too."""
    found: frozenset[tuple[str, int]] = frozenset()
    for x in operands:
        if x.dims is None:
            return None
        found |= x.dims
    return found


def joint_edges(rule: StateRule, shape: tuple[int, ...], *operands: Operand) -> Edges:
    """Return the edges of an elementwise result."""
    if not any(x.edges for x in operands):
        return NO_EDGES
    return combine(
        rule, *((x.edges.broadcast(x.shape, shape), plain_state(x, shape)) for x in operands)
    )


def counted(*operands: Operand) -> Sequence[Operand]:
    """Return operands with each bool that stands beside integers as the weak number 0 or 1."""
    kinds = {x.kind for x in operands}
    if BOOL not in kinds or FLOAT in kinds or kinds == {BOOL}:
        return operands
    return [_count(x) if x.kind == BOOL else x for x in operands]


def _count(x: Operand) -> Operand:
    if isinstance(x, Literal):
        return Literal(int(x.number))
    if x.shape:
        number = cast(x, i32)
        return Tile(number.value, weak=True, bounds=(0, 1), dims=x.dims, edges=number.edges)
    value = convert(x, i64)
    return weak_integer(
        value, Form.unknown(atom_of(value, lambda number: Atom(number, value, (0, 1), x.dims)))
    )


def binary(row: Binary, x: object, y: object) -> Tile:
    """Trace a row of two operands."""
    a, b = counted(as_operand(x, row.symbol), as_operand(y, row.symbol))
    if row.op is ops.Compare:
        settled = _compared(row, a, b)
        if settled is not None:
            return settled
        a, b = _with_room(a, b), _with_room(b, a)
    dtype, weak = meet(row.symbol, a, b)
    require_kind(row.symbol, row.kinds, a, b)
    if row.floats and not dtype.is_float:
        dtype = f32
    shape = broadcast_shape(row.symbol, a, b)
    if weak and dtype is i64 and not shape and row.bounds:
        return _index(row, a, b)
    bounds = ANY_INDEX
    if weak and dtype is i64:
        bounds = row.bounds(a.bounds, b.bounds) if row.bounds else ANY_INDEX
        dtype = _weak_storage(shape, bounds, a, b)
    left, right = (placed(v, dtype, shape) for v in (a, b))
    value = emit(row.op, x=left, y=right, **dict(row.attributes)).result
    is_integer = value.tile.dtype.is_integer
    form = None
    if row.bounds and is_integer and not shape:
        forms = form_of(a), form_of(b)
        form = _form(row, *forms) or _unknown(row, *forms, value)
    return Tile(
        value,
        weak=weak and value.tile.dtype is not boolean,
        form=form,
        bounds=bounds,
        dims=all_dims(a, b),
        edges=joint_edges(row.state, shape, a, b),
    )


def _index(row: Binary, a: Operand, b: Operand) -> Tile:
    """Trace index arithmetic: what the kernel has computed already is used again."""
    x, y = form_of(a), form_of(b)
    form = _form(row, x, y)
    if form is not None and form.constant is not None:
        return weak_integer(index_constant(form.constant), form)

    def make() -> Tile:
        left, right = convert(a, i64), convert(b, i64)
        value = emit(row.op, x=left, y=right).result
        return weak_integer(value, _unknown(row, x, y, value) if form is None else form)

    return known_index((row.symbol, x, y) if form is None else form, make)


def _form(row: Binary, x: Form, y: Form) -> Form | None:
    """Return the form of a result, None where it is no polynomial, or one that is not kept."""
    return row.form(x, y) if row.form else None


def _unknown(row: Binary, x: Form, y: Form, value: Value) -> Form:
    """Return the form of a result that is an unknown, the same one wherever it is made.

    What may wrap is another unknown than what does not, and anything that its dtype holds.
    """
    assert row.bounds, f"{row.symbol} encloses its results"
    dtype = value.tile.dtype
    key: tuple[object, ...] = (row.symbol, x, y)
    bounds, held = row.bounds(x.bounds, y.bounds), integer_bounds(dtype)
    if not _encloses(held, bounds):
        key, bounds = (*key, dtype), held
    dims = None if x.dims is None or y.dims is None else x.dims | y.dims
    atom = atom_of(key, lambda number: Atom(number, value, bounds, dims))
    if value not in atom.values:
        atom.values.append(value)
    return Form.unknown(atom)


def _weak_storage(shape: tuple[int, ...], bounds: Bounds, *operands: Operand) -> DType:
    """Return i64 for scalars, and i32 for tiles of weak integers where everything fits."""
    small = all(fits_i32(x.bounds) for x in operands) and fits_i32(bounds)
    return i32 if shape and small else i64


def _compared(row: Binary, a: Operand, b: Operand) -> Tile | None:
    """Return what a comparison with a Python number is that the other's dtype does not hold."""
    if not (_is_beyond(a, b) or _is_beyond(b, a)):
        return None
    # Every number of the dtype lies on one side of it.
    x, y = (v.number if isinstance(v, Literal) else integer_bounds(v.dtype)[0] for v in (a, b))
    predicate = str(dict(row.attributes)["predicate"])
    shape = broadcast_shape(row.symbol, a, b)
    value = constant(getattr(operator, predicate)(x, y), shape, boolean)
    return Tile(value, dims=all_dims(a, b), edges=joint_edges(row.state, shape, a, b))


def _is_beyond(number: Operand, x: Operand) -> bool:
    if not isinstance(number, Literal) or number.kind != INT or not _is_typed_integer(x):
        return False
    return not _encloses(integer_bounds(x.dtype), number.bounds)


def _is_typed_integer(x: Operand) -> bool:
    return not x.weak and x.kind in INTEGRAL


def _encloses(outer: Bounds, inner: Bounds) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _with_room(x: Operand, other: Operand) -> Operand:
    """Return a typed integer in a dtype that holds the weak integer that it is compared with."""
    if not _is_typed_integer(x) or not other.weak or other.kind != INT:
        return x
    if x.dtype.bits == i64.bits or _encloses(integer_bounds(x.dtype), other.bounds):
        return x
    return cast(x, i32 if fits_i32(other.bounds) and x.dtype.bits < i32.bits else i64)


def unary(row: Unary, x: object) -> Tile:
    """Trace a row of one operand."""
    a = as_operand(x, row.symbol)
    require_kind(row.symbol, row.kinds, a)
    if row.identity_on_integers and a.kind in INTEGRAL:
        return as_tile(a.number if isinstance(a, Literal) else a)
    dtype = f32 if row.floats and a.kind != FLOAT else _storage(a)
    value = emit(row.op, x=convert(a, dtype)).result
    is_integer = value.tile.dtype.is_integer
    form = row.form(form_of(a)) if row.form and is_integer and not a.shape else None
    return Tile(
        value,
        weak=a.weak and value.tile.dtype.kind != BOOL,
        form=form,
        bounds=form.bounds if form is not None and a.weak else ANY_INDEX,
        dims=a.dims,
        edges=joint_edges(row.state, a.shape, a),
    )


def _storage(x: Operand) -> DType:
    if isinstance(x, Tile):
        return x.value.tile.dtype
    return i64 if x.kind == INT else x.dtype


def cast(x: object, dtype: object, what: str = "`astype`") -> Tile:
    """Return the operand converted to `dtype`; conversions of its own dtype are none."""
    a = as_operand(x, what)
    wanted = require_dtype(dtype, what)
    form = a.form if wanted.is_integer and not a.shape else None
    if wanted.is_integer and wanted.bits < i32.bits:
        form = None
    return Tile(convert(a, wanted), form=form, dims=a.dims, edges=joint_edges(same, a.shape, a))


def converted_to_target(x: object, shape: tuple[int, ...], dtype: DType, what: str) -> Value:
    """Return the value that a store into a target of `shape` and `dtype` writes.

    It is broadcast and converted as `astype` does; a float into an integer must be written out.
    """
    a = as_operand(x, what)
    if a.kind == FLOAT and not dtype.is_float:
        raise fault(
            TypeMismatch,
            f"{what} of {a} into {dtype} would drop fractions silently",
            *sources(a),
            help=f"write `.astype({dtype})` (towards zero), or `round`, `floor`, `ceil` first",
        )
    if broadcast_shape(what, a, _Shape(shape)) != shape:
        raise fault(
            ShapeMismatch,
            f"{what} does not fit: {a} into {dtype}[{'x'.join(map(str, shape))}]",
            *sources(a),
            help="the value is broadcast to the target, never the other way round",
        )
    return placed(a, dtype, shape)


class _Shape(Literal):
    """The shape of a target, to broadcast with."""

    __slots__ = ()

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(0)
        self.shape = shape

    def __repr__(self) -> str:
        return f"a target of shape {self.shape}"
