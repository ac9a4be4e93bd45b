"""The table of functions: what each gives for each dtype, by arithmetic that shares no code.

A row's `expected` takes arrays of one dtype and returns what a function of tiles must give: by
Python's integers, by fractions, or by float64 (extended precision for f64) rounded once.

Invariant: nothing of the package is used but dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

import astdsl
from astdsl.ir.dtypes import (
    BY_NUMPY,
    DType,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i32,
)
from tests.dtypes import EVERY, INTEGERS, NUMBERS

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
BITS = (*INTEGERS, boolean)


@dataclass(frozen=True)
class Format:
    """Bits of precision, the exponent of the least subnormal, the greatest number."""

    precision: int
    least_exponent: int
    largest: float


FORMATS = {
    f64: Format(53, -1074, float(np.finfo(np.float64).max)),
    f32: Format(24, -149, float(np.finfo(np.float32).max)),
    f16: Format(11, -24, 65504.0),
    bf16: Format(8, -133, float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)),  # type: ignore[no-untyped-call]
}  # fmt: skip


def same(x: Array) -> Array:
    return x


@dataclass(frozen=True)
class Row:
    """A function: how it is written, the dtypes that it takes, and what it must give.

    `units` bounds the error in units of the last place, for each float dtype; 0 is exact.
    """

    name: str
    function: Callable[..., Any] = field(repr=False)
    expected: Callable[..., Array] = field(repr=False)
    dtypes: tuple[DType, ...] = NUMBERS
    units: Mapping[DType, float] = field(default_factory=dict, hash=False, compare=False)
    exact: Callable[[Array], Any] = field(default=same, repr=False)

    @property
    def symbol(self) -> str:
        """How an error names it."""
        if "(" in self.name:
            return self.name.partition("(")[0].removeprefix("x.")
        return "".join(c for c in self.name if c not in "xy ")

    @property
    def refused(self) -> tuple[DType, ...]:
        """The dtypes that it does not take."""
        return tuple(d for d in EVERY if d not in self.dtypes)


# Rounding


def rounded(x: Array, dtype: DType) -> Array:
    """Return float64 or longer numbers as a dtype, rounded once to nearest even."""
    if dtype is f64:
        return np.asarray(x).astype(np.float64)
    form = FORMATS[dtype]
    wide = np.asarray(x).astype(np.float64)
    _, exponent = np.frexp(wide)
    places = np.maximum(exponent - form.precision, form.least_exponent)
    whole = np.ldexp(np.rint(np.ldexp(wide, -places)), places)
    large = np.copysign(np.where(np.abs(whole) > form.largest, np.inf, np.abs(whole)), wide)
    return np.where(np.isfinite(wide), large, wide).astype(dtype.numpy)


def nearest(x: Fraction, dtype: DType) -> float:
    """Return the number of a dtype nearest to a fraction, ties to even."""
    form = FORMATS[dtype]
    if not x:
        return 0.0
    sign = 1.0 if x > 0 else -1.0
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent += abs(x) >= Fraction(2) ** exponent
    place = max(exponent - form.precision, form.least_exponent)
    whole = round(x / Fraction(2) ** place) * Fraction(2) ** place
    if abs(whole) > Fraction(form.largest):
        return sign * math.inf
    return math.copysign(float(whole), sign)


def wide(x: Array) -> Array:
    """Return numbers with room to spare: extended precision for f64, float64 for the others."""
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def dtype_of(x: Array) -> DType:
    return BY_NUMPY[x.dtype]


def floats(function: Callable[..., Any]) -> Callable[..., Array]:
    """Return the function of wide numbers, rounded once; integers become f32 first."""

    def expected(*arrays: Array) -> Array:
        given = [x if dtype_of(x).is_float else x.astype(np.float32) for x in arrays]
        with np.errstate(all="ignore"):
            return rounded(function(*map(wide, given)), dtype_of(given[0]))

    return expected


def own(function: Callable[..., Any]) -> Callable[..., Array]:
    """Return NumPy's function of f64 itself, of wider numbers for the others, rounded once."""

    def expected(*arrays: Array) -> Array:
        given = [x if dtype_of(x).is_float else x.astype(np.float32) for x in arrays]
        with np.errstate(all="ignore"):
            return rounded(function(*(x.astype(np.float64) for x in given)), dtype_of(given[0]))

    return expected


# Integers


def wrapped(number: int, dtype: DType) -> int:
    """Return an integer modulo 2**bits, as a dtype holds it."""
    if dtype is boolean:
        return int(bool(number))
    kept = number % (1 << dtype.bits)
    return kept - (1 << dtype.bits) if dtype.is_signed and kept >> (dtype.bits - 1) else kept


def integers(function: Callable[..., int], result: DType | None = None) -> Callable[..., Array]:
    """Return the function of Python's integers, wrapped."""

    def expected(*arrays: Array) -> Array:
        dtype = result or dtype_of(arrays[0])
        rows = zip(*(x.tolist() for x in arrays), strict=True)
        numbers = [wrapped(int(function(*row)), dtype) for row in rows]
        return np.array(numbers, dtype.numpy)

    return expected


def by_kind(
    of_floats: Callable[..., Array], of_integers: Callable[..., Array]
) -> Callable[..., Array]:
    """Return a function that is one of two, by the dtype of its operand."""

    def expected(*arrays: Array) -> Array:
        is_float = dtype_of(arrays[0]).is_float
        return (of_floats if is_float else of_integers)(*arrays)

    return expected


def shifted_left(x: int, count: int, bits: int) -> int:
    return x << count if 0 <= count < bits else 0


def shifted_right(x: int, count: int, bits: int) -> int:
    return x >> (count if 0 <= count < bits else bits)


def shift(function: Callable[[int, int, int], int]) -> Callable[..., Array]:
    def expected(x: Array, y: Array) -> Array:
        bits = dtype_of(x).bits
        return integers(lambda a, b: function(a, b, bits))(x, y)

    return expected


def power(x: Array, y: Array) -> Array:
    """Return powers of integers modulo 2**bits; a negative one is the reciprocal cut off."""
    modulus = 1 << dtype_of(x).bits

    def one(a: int, b: int) -> int:
        if b < 0:
            return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)
        return pow(a, b, modulus)

    return integers(one)(x, y)


def extreme(*, greatest: bool) -> Callable[..., Array]:
    """Return the lesser or greater of two: NaN if either is, -0 before +0."""

    def one(x: float, y: float) -> float:
        if math.isnan(x) or math.isnan(y):
            return math.nan
        first = max if greatest else min
        return first(x, y, key=lambda v: (v, math.copysign(1, v)))

    def of_floats(x: Array, y: Array) -> Array:
        pairs = zip(x.astype(np.float64).tolist(), y.astype(np.float64).tolist(), strict=True)
        return np.array([one(a, b) for a, b in pairs]).astype(x.dtype)

    return by_kind(of_floats, integers(max if greatest else min))


def fused(x: Array, y: Array, z: Array) -> Array:
    """Return `x * y + z` by fractions, rounded once."""
    dtype = dtype_of(x)
    rows = zip(*(v.astype(np.float64).tolist() for v in (x, y, z)), strict=True)

    def one(a: float, b: float, c: float) -> float:
        if not all(map(math.isfinite, (a, b, c))):
            return float(np.float64(a) * np.float64(b) + np.float64(c))
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        sign = math.copysign(1.0, a) * math.copysign(1.0, b)
        return nearest(exact, dtype) if exact else math.copysign(0.0, sign) + c if not c else 0.0

    with np.errstate(all="ignore"):
        return np.array([one(*row) for row in rows]).astype(dtype.numpy)


def predicate(function: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    def expected(x: Array, y: Array) -> Array:
        if dtype_of(x).is_float:
            x, y = x.astype(np.float64), y.astype(np.float64)
        return np.asarray(function(x, y))

    return expected


def tested(function: Callable[[Array], Any]) -> Callable[..., Array]:
    """Return a predicate of floats; integers satisfy none."""
    nothing = integers(lambda _: 0, boolean)
    return by_kind(lambda x: np.asarray(function(x.astype(np.float64))), nothing)


def quotient(x: Array, y: Array) -> Array:
    """Return `x / y`: floats rounded once, integers as f32."""
    a, b = (v if dtype_of(v).is_float else v.astype(np.float32) for v in (x, y))
    with np.errstate(all="ignore"):
        return rounded(a.astype(np.float64) / b.astype(np.float64), dtype_of(a))


def converted(target: DType) -> Callable[..., Array]:
    """Return what `astype(target)` gives."""

    def expected(x: Array) -> Array:
        source = dtype_of(x)
        if target is boolean:
            return np.asarray(x != 0)
        if source.is_float:
            numbers = x.astype(np.float64)
            return rounded(numbers, target) if target.is_float else cut_off(numbers, target)
        whole = [int(v) for v in x.tolist()]
        if not target.is_float:
            return np.array([wrapped(v, target) for v in whole], target.numpy)
        exact = [nearest(Fraction(v), target) for v in whole]
        return np.array(exact).astype(target.numpy)

    return expected


def cut_off(x: Array, target: DType) -> Array:
    """Return floats towards zero, saturating, NaN as 0."""
    info = np.iinfo(target.numpy)

    def one(v: float) -> int:
        if math.isnan(v):
            return 0
        if math.isinf(v):
            return int(info.max if v > 0 else info.min)
        return min(max(int(v), int(info.min)), int(info.max))

    return np.array([one(v) for v in x.tolist()], target.numpy)


def error_function(x: Array) -> Array:
    return np.array([math.erf(float(v)) for v in x])


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def chosen(x: Array, y: Array) -> Array:
    return np.where(predicate(np.equal)(x, y), x, y)


def clipped(x: Array, y: Array) -> Array:
    return extreme(greatest=False)(extreme(greatest=True)(x, np.ones_like(x)), y)


BINARY = (
    Row("x + y", lambda x, y: x + y, by_kind(own(np.add), integers(lambda a, b: a + b))),
    Row("x - y", lambda x, y: x - y, by_kind(own(np.subtract), integers(lambda a, b: a - b))),
    Row("x * y", lambda x, y: x * y, by_kind(own(np.multiply), integers(lambda a, b: a * b))),
    Row("x / y", lambda x, y: x / y, quotient),
    Row(
        "x // y",
        lambda x, y: x // y,
        by_kind(own(np.floor_divide), integers(lambda a, b: a // b if b else 0)),
        units=dict.fromkeys((f32, f16, bf16), 1),
    ),
    Row(
        "x % y",
        lambda x, y: x % y,
        by_kind(own(np.remainder), integers(lambda a, b: a % b if b else 0)),
        units=dict.fromkeys((f32, f16, bf16), 1),
    ),
    Row(
        "x ** y",
        lambda x, y: x**y,
        by_kind(floats(np.power), power),
        units={f64: 2, f32: 4, f16: 1, bf16: 1},
    ),
    Row("x == y", lambda x, y: x == y, predicate(np.equal), EVERY),
    Row("x != y", lambda x, y: x != y, predicate(np.not_equal), EVERY),
    Row("x < y", lambda x, y: x < y, predicate(np.less), EVERY),
    Row("x <= y", lambda x, y: x <= y, predicate(np.less_equal), EVERY),
    Row("x > y", lambda x, y: x > y, predicate(np.greater), EVERY),
    Row("x >= y", lambda x, y: x >= y, predicate(np.greater_equal), EVERY),
    Row("x & y", lambda x, y: x & y, integers(lambda a, b: a & b), BITS),
    Row("x | y", lambda x, y: x | y, integers(lambda a, b: a | b), BITS),
    Row("x ^ y", lambda x, y: x ^ y, integers(lambda a, b: a ^ b), BITS),
    Row("x << y", lambda x, y: x << y, shift(shifted_left), INTEGERS),
    Row("x >> y", lambda x, y: x >> y, shift(shifted_right), INTEGERS),
    Row("where(x == y, x, y)", lambda x, y: astdsl.where(x == y, x, y), chosen, EVERY),
    Row("minimum(x, y)", astdsl.minimum, extreme(greatest=False)),
    Row("maximum(x, y)", astdsl.maximum, extreme(greatest=True)),
    Row("clip(x, 1, y)", lambda x, y: astdsl.clip(x, 1, y), clipped),
    Row(
        "fma(x, y, x)",
        lambda x, y: astdsl.fma(x, y, x),
        by_kind(lambda x, y: fused(x, y, x), integers(lambda a, b: a * b + a)),
    ),
    Row("cdiv(x, y)", astdsl.cdiv, integers(lambda a, b: -(-a // b) if b else 0), INTEGERS),
)  # fmt: skip


def elementary(name: str, function: Any, exact: Callable[[Array], Any], *units: float) -> Row:
    """Return the row of a function of floats with its errors in f64, f32, and narrower floats."""
    bounds = dict(zip((f64, f32, f16, bf16), (*units, units[-1]), strict=True)) if units else {}
    expected = floats(exact) if units else own(exact)
    return Row(name, function, expected, units=bounds, exact=exact)


ELEMENTARY = (
    elementary("exp(x)", astdsl.exp, np.exp, 1, 2, 0.6),
    elementary("exp2(x)", astdsl.exp2, np.exp2, 1, 2, 0.6),
    elementary("log(x)", astdsl.log, np.log, 1, 1, 0.6),
    elementary("log2(x)", astdsl.log2, np.log2, 2, 1, 0.6),
    elementary("sqrt(x)", astdsl.sqrt, np.sqrt),
    elementary("rsqrt(x)", astdsl.rsqrt, lambda x: 1 / np.sqrt(x), 2, 2, 0.6),
    elementary("tanh(x)", astdsl.tanh, np.tanh, 2, 2, 0.6),
    elementary("erf(x)", astdsl.erf, error_function, 2, 2, 0.6),
    elementary("sin(x)", astdsl.sin, np.sin, 2, 2, 0.6),
    elementary("cos(x)", astdsl.cos, np.cos, 2, 2, 0.6),
    elementary("sigmoid(x)", astdsl.sigmoid, sigmoid, 3, 4, 0.6),
)


UNARY = (
    Row("-x", lambda x: -x, by_kind(lambda x: -x, integers(lambda a: -a))),
    Row("~x", lambda x: ~x, integers(lambda a: not a if isinstance(a, bool) else ~a), BITS),
    Row("abs(x)", astdsl.abs, by_kind(np.abs, integers(abs))),
    Row("floor(x)", astdsl.floor, by_kind(own(np.floor), same)),
    Row("ceil(x)", astdsl.ceil, by_kind(own(np.ceil), same)),
    Row("round(x)", astdsl.round, by_kind(own(np.rint), same)),
    Row("isnan(x)", astdsl.isnan, tested(np.isnan)),
    Row("isinf(x)", astdsl.isinf, tested(np.isinf)),
    *(Row(f"x.astype({d})", lambda x, d=d: x.astype(d), converted(d), EVERY) for d in EVERY),
)  # fmt: skip


# Along an axis: of tiles of (rows, columns) the columns are combined, and kept with extent 1.


def total_dtype(dtype: DType) -> DType:
    """Return the dtype of sums: bools and integers under 32 bits become i32."""
    return i32 if not dtype.is_float and dtype.bits < i32.bits else dtype


def along(function: Callable[[list[Any]], Any], result: DType | None = None) -> Any:
    """Return the function of each row; floats are exact numbers of float64."""

    def expected(x: Array) -> Array:
        dtype = result or total_dtype(dtype_of(x))
        rows = [[v.item() if dtype_of(x).is_float else int(v) for v in row] for row in floats_of(x)]
        numbers = [function(row) for row in rows]
        return column(numbers, dtype)

    return expected


def floats_of(x: Array) -> Array:
    return x.astype(np.float64) if dtype_of(x).is_float else x


def column(numbers: list[Any], dtype: DType) -> Array:
    if dtype.is_float:
        return np.array(numbers, np.float64).astype(dtype.numpy)[:, None]
    return np.array([wrapped(int(n), dtype) for n in numbers], dtype.numpy)[:, None]


def extremes(*, greatest: bool) -> Callable[[Array], Array]:
    """Return the least or greatest element of each row, by pairs."""

    def expected(x: Array) -> Array:
        found = x[:, 0]
        for k in range(1, x.shape[1]):
            found = extreme(greatest=greatest)(found, x[:, k])
        return found[:, None]

    return expected


def first_place(*, greatest: bool) -> Callable[[Array], Array]:
    """Return the first place of the least or greatest element, the first NaN if there is one."""

    def place(row: list[Any]) -> int:
        nans = [k for k, v in enumerate(row) if math.isnan(v)]
        return nans[0] if nans else row.index(max(row) if greatest else min(row))

    def expected(x: Array) -> Array:
        return column([place(row.tolist()) for row in floats_of(x)], i32)

    return expected


def averaged(x: Array) -> Array:
    dtype = dtype_of(x) if dtype_of(x).is_float else f32
    return np.array([math.fsum(row) / len(row) for row in x.tolist()]).astype(dtype.numpy)[:, None]


def running(x: Array) -> Array:
    dtype = total_dtype(dtype_of(x))
    sums = [np.cumsum(np.array(row, object)).tolist() for row in floats_of(x).tolist()]
    if dtype.is_float:
        return np.array(sums, np.float64).astype(dtype.numpy)
    return np.array([[wrapped(int(v), dtype) for v in row] for row in sums], dtype.numpy)


def kept(function: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda x: function(x, axis=1, keepdims=True)


# Of numbers whose sums and products are exact in any order.
SUMS = (
    Row("sum(x)", kept(astdsl.sum), along(math.fsum), EVERY),
    Row("prod(x)", kept(astdsl.prod), along(math.prod), EVERY),
    Row("mean(x)", kept(astdsl.mean), averaged, EVERY),
    Row("cumsum(x)", lambda x: astdsl.cumsum(x, 1), running, EVERY),
)
# Of any numbers.
ORDERS = (
    Row("min(x)", kept(astdsl.min), extremes(greatest=False), EVERY),
    Row("max(x)", kept(astdsl.max), extremes(greatest=True), EVERY),
    Row("any(x)", kept(astdsl.any), along(lambda r: any(v != 0 for v in r), boolean), EVERY),
    Row("all(x)", kept(astdsl.all), along(lambda r: all(v != 0 for v in r), boolean), EVERY),
    Row("argmin(x)", kept(astdsl.argmin), first_place(greatest=False), EVERY),
    Row("argmax(x)", kept(astdsl.argmax), first_place(greatest=True), EVERY),
)
PLACES = [5, 0, 0, 23, 1, 2, 3, 7, 9, 11, 20, 18, 16, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 6]


def swapped(x: Array) -> Array:
    return np.hstack(np.split(x, 3, 1)[::-1])


def unzipped(x: Array) -> Array:
    return np.hstack((x[:, ::2], x[:, 1::2]))


# Of tiles of 24 columns: the same bits in other places.
MOVES = (
    Row("concat", lambda x: astdsl.concat((x[:, 5:], x[:, :5]), 1), lambda x: np.roll(x, -5, 1)),
    Row("stack", lambda x: astdsl.stack((x, x[::-1]), 1)[:, 1], lambda x: x[::-1]),
    Row("split", lambda x: astdsl.concat(astdsl.split(x, 3, 1)[::-1], 1), swapped),
    Row("take", lambda x: astdsl.take(x, PLACES, 1), lambda x: x[:, PLACES]),
    Row("slice", lambda x: astdsl.concat((x[:, ::2], x[:, 1::2]), 1), unzipped),
    Row("transpose", lambda x: astdsl.reshape(x.T, x.shape), lambda x: x.T.reshape(x.shape)),
    Row("broadcast_to", lambda x: astdsl.broadcast_to(x[:1, 3:4], x.shape), lambda x: x[:1, 3:4]),
    Row("scan", lambda x: astdsl.scan(x, 1, lambda a, b: a), lambda x: x[:, :1]),
    Row(
        "reduce",
        lambda x: astdsl.reduce(x, 1, lambda a, b: b, keepdims=True),
        lambda x: x[:, -1:],
    ),
)
