"""What elementwise operations mean.

Invariant: floats under 32 bits are computed in float32 and rounded once, elementary functions in
float64 and rounded once; everything else is the NumPy operation on the type itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from astdsl.errors import UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import Op
from astdsl.ir.dtypes import BOOL, DType, f64, tf32
from astdsl.ir.evaluate.rounding import (
    convert,
    is_narrow_float,
    narrowed,
    number,
    round_to,
    round_to_tf32,
)
from astdsl.ir.evaluate.state import Frame
from astdsl.ir.evaluate.table import Array, evaluates, full


def _dtype(op: Op) -> DType:
    return op.operands[0].tile.dtype


def compute(function: Callable[..., Any], dtype: DType, *operands: Array) -> Array:
    """Apply a NumPy function to operands of `dtype`, in float32 where the dtype is narrower."""
    if is_narrow_float(dtype):
        return narrowed(function(*(np.asarray(x).astype(np.float32) for x in operands)), dtype)
    made: Array = function(*operands)
    return round_to_tf32(made) if dtype is tf32 else made


@evaluates(ops.Constant)
def _constant(op: ops.Constant) -> Array:
    return full(op.type.shape, number(op.value, op.type.dtype), op.type.dtype.numpy)


_PLAIN: dict[type[Op], Callable[..., Any]] = {
    ops.Add: np.add,
    ops.Subtract: np.subtract,
    ops.Multiply: np.multiply,
    ops.Divide: np.true_divide,
    ops.FloorDivide: np.floor_divide,
    ops.Remainder: np.remainder,
    ops.BitAnd: np.bitwise_and,
    ops.BitOr: np.bitwise_or,
    ops.BitXor: np.bitwise_xor,
    ops.Negate: np.negative,
    ops.Absolute: np.absolute,
    ops.Invert: np.invert,
    ops.Sqrt: np.sqrt,
    ops.Floor: np.floor,
    ops.Ceil: np.ceil,
    ops.Round: np.rint,
}


@evaluates(*_PLAIN)
def _plain(op: Op, *operands: Array) -> Array:
    return compute(_PLAIN[type(op)], _dtype(op), *operands)


@np.errstate(all="ignore")
def _power_of_integers(x: Array, y: Array) -> Array:
    one, result = x.dtype.type(1), np.ones_like(x)
    base, exponent = np.asarray(x).copy(), np.where(y < 0, y.dtype.type(0), y)
    while np.any(exponent):
        result = np.where(exponent & one, result * base, result)
        base, exponent = base * base, exponent >> one
    minus_one = np.where(y & one, -one, one) if x.dtype.kind == "i" else np.zeros_like(x)
    inverse = np.where(x == 1, one, np.where(x == -1, minus_one, x.dtype.type(0)))
    return np.where(y < 0, inverse, result)


@evaluates(ops.Power)
def _power(op: ops.Power, x: Array, y: Array) -> Array:
    dtype = _dtype(op)
    if not dtype.is_float:
        return _power_of_integers(x, y)
    return round_to(np.power(_wide(x), _wide(y)), dtype)


def minimum(x: Array, y: Array) -> Array:
    """Return the smaller; NaN if either is; -0 before +0."""
    ties = np.where(np.signbit(x), x, y)
    return np.where(x == y, ties, np.minimum(x, y))


def maximum(x: Array, y: Array) -> Array:
    """Return the larger; NaN if either is; +0 before -0."""
    ties = np.where(np.signbit(x), y, x)
    return np.where(x == y, ties, np.maximum(x, y))


@evaluates(ops.Minimum)
def _minimum(op: ops.Minimum, x: Array, y: Array) -> Array:
    dtype = _dtype(op)
    return compute(minimum if dtype.is_float else np.minimum, dtype, x, y)


@evaluates(ops.Maximum)
def _maximum(op: ops.Maximum, x: Array, y: Array) -> Array:
    dtype = _dtype(op)
    return compute(maximum if dtype.is_float else np.maximum, dtype, x, y)


def _counts(op: Op, y: Array) -> tuple[Array, Array]:
    """Return which counts are within the width, and the counts with the others as 0."""
    bits = _dtype(op).bits
    inside = (y >= 0) & (y < bits)
    return inside, np.where(inside, y, y.dtype.type(0))


@evaluates(ops.ShiftLeft)
def _shift_left(op: ops.ShiftLeft, x: Array, y: Array) -> Array:
    inside, count = _counts(op, y)
    return np.where(inside, np.left_shift(x, count), x.dtype.type(0))


@evaluates(ops.ShiftRight)
def _shift_right(op: ops.ShiftRight, x: Array, y: Array) -> Array:
    inside, count = _counts(op, y)
    beyond = np.where(x < 0, x.dtype.type(-1), x.dtype.type(0)) if _dtype(op).is_signed else 0
    return np.where(inside, np.right_shift(x, count), beyond).astype(x.dtype)


def _wide(x: Array) -> Array:
    return np.asarray(x).astype(np.float64)


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), dtype=np.float64)


def _rsqrt(x: Array) -> Array:
    return np.asarray(np.divide(1.0, np.sqrt(x)))


_ELEMENTARY: dict[type[Op], Callable[..., Any]] = {
    ops.Rsqrt: _rsqrt,
    ops.Exp: np.exp,
    ops.Exp2: np.exp2,
    ops.Log: np.log,
    ops.Log2: np.log2,
    ops.Tanh: np.tanh,
    ops.Erf: _erf,
    ops.Sin: np.sin,
    ops.Cos: np.cos,
}


@evaluates(*_ELEMENTARY)
def _elementary(op: Op, x: Array) -> Array:
    return round_to(_ELEMENTARY[type(op)](_wide(x)), _dtype(op))


@evaluates(ops.IsNan)
def _is_nan(op: ops.IsNan, x: Array) -> Array:
    return np.asarray(np.isnan(x) if _dtype(op).is_float else np.zeros(np.shape(x), np.bool_))


@evaluates(ops.IsInf)
def _is_inf(op: ops.IsInf, x: Array) -> Array:
    return np.asarray(np.isinf(x) if _dtype(op).is_float else np.zeros(np.shape(x), np.bool_))


@evaluates(ops.Fma)
def _fma(op: ops.Fma, x: Array, y: Array, z: Array) -> Array:
    dtype = _dtype(op)
    if not dtype.is_float:
        return np.asarray(x * y + z)
    if dtype is f64:
        return _fma_exact(x, y, z)
    return round_to(_odd_sum(_wide(x) * _wide(y), _wide(z)), dtype)


def _odd_sum(a: Array, b: Array) -> Array:
    """Return `a + b` in float64, rounded to odd; a product of two float32 is exact there."""
    total = np.asarray(a + b)
    part = total - a
    error = (a - (total - part)) + (b - part)
    is_inexact = np.isfinite(total) & np.isfinite(error) & (error != 0)
    is_even = (total.view(np.int64) & 1) == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where(is_inexact & is_even, np.nextafter(total, towards), total)


def _fma_exact(x: Array, y: Array, z: Array) -> Array:
    """Return the fused product-sum of float64, each element by exact fractions."""
    plain = np.asarray(x * y + z)
    is_finite = np.isfinite(x) & np.isfinite(y)
    is_exact = is_finite & np.isfinite(z) & (x != 0) & (y != 0)
    # A product that is only too large to be rounded is finite beside an infinity.
    result = np.array(np.where(is_finite & np.isinf(z), z, plain))
    for at in zip(*np.nonzero(np.atleast_1d(is_exact)), strict=True):
        where = at if plain.ndim else ()
        exact = Fraction(float(x[where])) * Fraction(float(y[where])) + Fraction(float(z[where]))
        result[where] = _nearest_float(exact)
    return result


def _nearest_float(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


_PREDICATES: dict[str, Callable[[Array, Array], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@evaluates(ops.Compare)
def _compare(op: ops.Compare, x: Array, y: Array) -> Array:
    return np.asarray(_PREDICATES[op.predicate](x, y))


@evaluates(ops.Select)
def _select(op: ops.Select, condition: Array, x: Array, y: Array) -> Array:
    del op
    return np.where(condition, x, y)


@evaluates(ops.Cast)
def _cast(op: ops.Cast, x: Array) -> Array:
    return convert(np.asarray(x), op.x.tile.dtype, op.dtype)


@evaluates(ops.Bitcast)
def _bitcast(op: ops.Bitcast, x: Array) -> Array:
    return np.ascontiguousarray(x).reshape(np.shape(x)).view(op.dtype.numpy)


@evaluates(ops.InlinePtx)
def _inline_ptx(op: ops.InlinePtx, frame: Frame) -> Any:
    found = tuple(np.asarray(frame[v]) for v in op.meaning)
    if len(found) < len(op.dtypes):
        raise UnsupportedFeature(
            "`inline_ptx` is run without PTX, and what it means is not stated",
            (op.span, "this text"),
            help='the device "emulator" runs PTX; or state it: `meaning=lambda x: exp2(x)`',
        )
    return found[0] if len(found) == 1 else found or None


__all__ = ["BOOL", "compute", "maximum", "minimum"]
