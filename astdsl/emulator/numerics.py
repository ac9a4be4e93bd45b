"""Correctly rounded arithmetic that NumPy lacks: fused multiply-add, directed rounding, bfloat16.

Everything rests on one idea: compute in float64 and *round to odd* (when the result is inexact, of
its two neighbours take the one whose last bit is 1). Rounding that once more, to any format of at
most 51 bits, gives the correctly rounded result of the exact value (S. Boldo, G. Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).

Invariant: functions here take and return float arrays and never warn; NaNs come out as NaNs, made
canonical by `canonical_nan`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from astdsl.emulator.scalars import Array, BoolArray

# How far a float32's last bit lies above a float64's: a float64 whose low 29 bits are 1000...0 is
# halfway between two float32s, the one case where rounding twice may go wrong.
_LOW_BITS = np.uint64((1 << 29) - 1)
_HALFWAY = np.uint64(1 << 28)
_TINY_F32 = 2.0**-125
# Float32 bits: of 0.5, of the least normal float16, of 2^16 (float16 ends below), of infinity.
_F32_HALF, _F32_NORMAL_F16 = np.uint32(0x3F000000), np.uint32(0x38800000)
_F32_OVER_F16, _F32_INFINITY = 0x47800000, 0x7F800000
_SPLITTER = 134217729.0  # 2^27 + 1 (Veltkamp)


def two_sum_error(a: Array, b: Array, s: Array) -> Array:
    """Return the exact error of `s = a + b` in float64 (Knuth)."""
    bb = s - a
    return (a - (s - bb)) + (b - bb)  # type: ignore[no-any-return]


def to_odd(s: Array, error: Array) -> Array:
    """Return `s + error` rounded to odd, `s` being it rounded to nearest."""
    bits = np.array(s, np.float64).view(np.int64)
    inexact = np.isfinite(s) & np.isfinite(error) & (error != 0)
    beyond = inexact & ((error < 0) != (s < 0))
    bits = bits - beyond
    return (bits | inexact).view(np.float64)  # type: ignore[no-any-return]


def fma_to_odd(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c rounded to odd in float64, for operands of at most 24 bits as float64."""
    product = a * b
    s = product + c
    return to_odd(s, two_sum_error(product, c, s))


def fma_f32(a: Any, b: Any, c: Any) -> Array:
    """Return a * b + c in float32, rounded once to nearest even (PTX ISA 9.7.3.6)."""
    product = np.multiply(a, b, dtype=np.float64)
    s = np.asarray(np.add(product, c, dtype=np.float64))
    result = s.astype(np.float32)
    doubtful = (s.view(np.uint64) & _LOW_BITS) == _HALFWAY
    if float(np.abs(result).min(initial=1.0)) < _TINY_F32:
        doubtful |= (np.abs(s) < _TINY_F32) & (s != 0)
    if doubtful.any():
        product, c = np.broadcast_to(product, s.shape), np.broadcast_to(c, s.shape)
        s, product, c = s[doubtful], product[doubtful], c[doubtful].astype(np.float64)
        odd = to_odd(s, two_sum_error(product, c, s))
        result[doubtful] = odd.astype(np.float32)
    return np.asarray(result)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a * b and its exact error in float64 (Dekker), free of over- and underflow."""
    product = a * b
    big = a * _SPLITTER
    a_high = big - (big - a)
    big = b * _SPLITTER
    b_high = big - (big - b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def fma_f64(a: Any, b: Any, c: Any) -> Array:
    """Return a * b + c in float64, rounded once to nearest even."""
    a, b, c = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (a, b, c)))
    high, low = two_product(a, b)
    t_high = c + low
    t_low = two_sum_error(c, low, t_high)
    v_high = high + t_high
    v_low = two_sum_error(high, t_high, v_high)
    z = t_low + v_low
    z = to_odd(z, two_sum_error(t_low, v_low, z))
    result = v_high + z
    finite = np.isfinite(a) & np.isfinite(b)
    # A product that overflows float64 is finite all the same.
    plain = np.where(finite & np.isinf(c), c, a * b + c)
    special = ~finite | ~np.isfinite(c) | (a == 0) | (b == 0)
    result = np.asarray(np.where(special, plain, result))
    unsafe = ~special & ~(_moderate(a) & _moderate(b) & ((c == 0) | _moderate(c)))
    for at in np.argwhere(unsafe):
        place = tuple(at)
        exact = Fraction(float(a[place])) * Fraction(float(b[place])) + Fraction(float(c[place]))
        result[place] = _nearest_f64(exact, float(plain[place]))
    fused: Array = result
    return fused


def _moderate(x: Array) -> BoolArray:
    """Say which magnitudes are far from over- and underflow in products of two and their errors."""
    size = np.abs(x)
    return (size > 2.0**-400) & (size < 2.0**400)


def _nearest_f64(exact: Fraction, hint: float) -> float:
    """Return the float64 nearest to an exact value; `hint` gives the sign of a zero."""
    if exact == 0:
        return hint if hint == 0 else 0.0
    try:
        # Python rounds a quotient of integers correctly, subnormal results included.
        return exact.numerator / exact.denominator
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


# Rounding a float64 (exact, or rounded to odd) to a narrower format.


def round_f32(x: Array, mode: str) -> Array:
    """Return float64 values as float32, rounded by `rn`, `rz`, `rm` (down) or `rp` (up)."""
    return _directed(x, x.astype(np.float32), mode)


def round_f16(x: Array, mode: str) -> Array:
    """Return float64 values as float16."""
    return _directed(x, x.astype(np.float16), mode)


def _directed(x: Array, nearest: Array, mode: str) -> Array:
    if mode == "rn":
        return nearest
    got = nearest.astype(np.float64)
    up, down = got < x, got > x
    zero, infinity = nearest.dtype.type(0), nearest.dtype.type(np.inf)
    if mode == "rz":
        return np.where(np.abs(got) > np.abs(x), np.nextafter(nearest, zero), nearest)
    if mode == "rp":
        return np.where(up, np.nextafter(nearest, infinity), nearest)
    return np.where(down, np.nextafter(nearest, -infinity), nearest)


def to_f16(x: Array) -> Array:
    """Return float32 or float64 values as float16, rounded to nearest even, NaNs canonical.

    As `astype`, which raises a flag of the host's for each value that underflows: that costs a
    hundred times the conversion.
    """
    if x.dtype != np.float32 or not x.ndim:
        narrow = np.asarray(x.astype(np.float16))
        if narrow.ndim:
            canonical_nan(narrow)
        return narrow
    bits = np.ascontiguousarray(x).view(np.uint32)
    size = bits & np.uint32(0x7FFFFFFF)
    largest = int(size.max(initial=0))
    # Rebias the exponent and round the 13 bits that go; what is too large becomes infinity.
    result = size >> np.uint32(13)
    result &= np.uint32(1)
    result += size
    result += np.uint32(0xC8000FFF)
    result >>= np.uint32(13)
    if largest >= _F32_OVER_F16:
        np.minimum(result, np.uint32(0x7C00), out=result)
    small = size < _F32_NORMAL_F16
    if small.any():
        # The last bit of 0.5 + x is the last bit of a subnormal float16.
        shifted = size.view(np.float32) + np.float32(0.5)
        np.copyto(result, shifted.view(np.uint32) - _F32_HALF, where=small)
    sign = bits >> np.uint32(16)
    sign &= np.uint32(0x8000)
    result |= sign
    if largest > _F32_INFINITY:
        result[size > _F32_INFINITY] = 0x7FFF
    return result.astype(np.uint16).view(np.float16)


def bf16_to_f32(bits: Any) -> Array:
    """Return bfloat16 bits (uint16) as float32, exactly."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(x: Array, mode: str = "rn") -> Array:
    """Return float32 values as bfloat16 bits (uint16)."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    low = bits & np.uint32(0xFFFF)
    if mode == "rn":
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    elif mode == "rz":
        rounded = bits
    else:
        negative = (bits >> np.uint32(31)).astype(np.bool_)
        away = (low != 0) & (negative if mode == "rm" else ~negative)
        rounded = bits + away * np.uint32(0x10000)
    result = (rounded >> np.uint32(16)).astype(np.uint16)
    nan = np.isnan(x)
    if nan.any():
        result = np.where(nan, np.uint16(0x7FFF), result)
    return result.reshape(np.shape(x))


def f64_to_bf16(x: Array, mode: str = "rn") -> Array:
    """Return float64 values (exact, or rounded to odd) as bfloat16 bits, rounded once."""
    narrow = np.asarray(x.astype(np.float32))
    # Make the float32 odd where it is inexact, so that the second rounding is the only one.
    toward = round_f32(x, "rz")
    odd = (toward.view(np.uint32) | np.uint32(1)).view(np.float32)
    inexact = (narrow.astype(np.float64) != x) & ~np.isnan(x)
    return f32_to_bf16(np.where(inexact, odd, narrow), mode)


# NaN and subnormal conventions.

CANONICAL: dict[np.dtype[Any], tuple[type[np.unsignedinteger[Any]], int]] = {
    np.dtype(np.float32): (np.uint32, 0x7FFFFFFF),
    np.dtype(np.float16): (np.uint16, 0x7FFF),
}


def f32_to_tf32(x: Array, mode: str = "rn") -> Array:
    """Return float32 values with 10 bits of mantissa; `rna` rounds ties away from zero."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).reshape(np.shape(x))
    if mode == "rna":
        rounded = bits + np.uint32(0x1000)
    elif mode == "rn":
        rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    else:
        rounded = bits
    kept = (rounded & np.uint32(0xFFFFE000)).view(np.float32)
    nan = np.uint32(0x7FFFFFFF).view(np.float32)
    return np.where(np.isnan(x), nan, np.where(np.isinf(x), x, kept))


def canonical_nan(x: Array) -> None:
    """Make every NaN of a float32 or float16 array the canonical one, in place (PTX ISA 5.2.3)."""
    found = CANONICAL.get(x.dtype)
    if found is None or _surely_no_nan(x):
        return
    nan = np.isnan(x)
    if nan.any():
        x.view(found[0])[nan] = found[1]


def _surely_no_nan(x: Array) -> bool:
    if x.dtype != np.float32 or x.ndim != 1:
        return False
    return bool(np.isfinite(np.dot(x, x)))


def flush(x: Any) -> Array:
    """Return float16 or float32 values with subnormals made zero of the same sign (`.ftz`)."""
    array = np.asarray(x)
    least = 2.0**-14 if array.dtype == np.float16 else 2.0**-126
    tiny = np.abs(array) < array.dtype.type(least)
    if not tiny.any():
        return array
    return np.where(tiny, np.copysign(array.dtype.type(0), array), array)


def saturate(x: Array) -> Array:
    """Return values clamped to [0, 1], NaN as +0 (`.sat`)."""
    one, zero = x.dtype.type(1), x.dtype.type(0)
    clamped: Array = np.where(x > 0, np.minimum(x, one), zero)
    return clamped
