"""Conversions between element types, each rounded once.

Invariant: a conversion to a narrow float equals rounding the exact value to nearest even; NumPy
and ml_dtypes go through float32 in places, where rounding twice would show. 8-bit floats, and those
of 4 bits, saturate, as the hardware's only conversion does (PTX ISA 9.7.9.21, `.satfinite`): what
is beyond their largest number, infinities too, becomes that; ml_dtypes would give NaN or an
infinity. f4e2m1 has no NaN, which becomes its largest number (`.satfinite` again); f8e8m0 has no
zero, which becomes its least, 2**-127, and no sign: negative numbers become NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from astdsl.ir.dtypes import (
    BOOL,
    DType,
    bf16,
    f4e2m1,
    f8e4m3,
    f8e5m2,
    f8e8m0,
    f16,
    f32,
    f64,
    tf32,
)
from astdsl.ir.evaluate.table import Array

# Mantissa bits of float32 that tf32 drops.
TF32_DROPPED_BITS = 13
LARGEST = {f8e4m3: 448.0, f8e5m2: 57344.0, f4e2m1: 6.0}
# The codes of f8e8m0: powers of two from 2**-127 on, and NaN.
POWERS, NO_POWER = 255, 255


def convert(x: Array, source: DType, target: DType) -> Array:
    """Return `x` as `target`, by the rules of `ops.Cast`."""
    if target is source:
        return x
    if target.kind == BOOL:
        return np.asarray(x != 0)
    if target.is_float:
        return _to_float(x, source, target)
    return _float_to_integer(x, target) if source.is_float else x.astype(target.numpy)


def _to_float(x: Array, source: DType, target: DType) -> Array:
    if target in (f64, f32):
        return x.astype(target.numpy)
    if source.kind == BOOL:
        return narrowed(x, target)
    if source.is_float and source.bits <= f32.bits and target is not tf32:
        return narrowed(x, target)
    if source is f64:
        return round_to(x, target)
    if source.is_float:
        return round_to_tf32(x.astype(np.float32))
    return round_to(_integer_to_odd(x), target)


def round_to(x: Array, target: DType) -> Array:
    """Return float64 numbers as `target`, rounded once."""
    if target in (f64, f32, f16):  # NumPy converts these directly
        return np.asarray(x).astype(target.numpy)
    odd = to_odd_float32(np.asarray(x))
    return round_to_tf32(odd) if target is tf32 else narrowed(odd, target)


def narrowed(x: Any, target: DType) -> Array:
    """Return numbers of up to 32 bits as a narrow float, rounded once; 8-bit floats saturate."""
    number = np.asarray(x)
    if target in LARGEST:
        wide = number.astype(np.float32)
        number = np.clip(wide, -LARGEST[target], LARGEST[target])  # keeps NaN
    if target is f4e2m1:
        number = np.where(np.isnan(number), np.float32(LARGEST[f4e2m1]), number)
    if target is f8e8m0:
        return _power_of_two(number.astype(np.float32))
    return np.asarray(number.astype(target.numpy))


def _power_of_two(x: Array) -> Array:
    """Return float32 as the nearest number of f8e8m0, ties to the even code."""
    powers = 2.0 ** (np.arange(POWERS) - 127.0)
    middles = (powers[1:] + powers[:-1]) / 2
    wide = np.minimum(x.astype(np.float64), powers[-1])
    code = np.searchsorted(middles, wide, side="left")
    is_tie = middles[np.minimum(code, len(middles) - 1)] == wide
    code = np.where(np.isnan(x) | (x < 0), NO_POWER, code + (is_tie & (code % 2 == 1)))
    return np.asarray(code.astype(np.uint8).view(f8e8m0.numpy))


def to_odd_float32(x: Array) -> Array:
    """Return float64 as float32 rounded to odd: rounding again, to less, is then exact.

    S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008.
    """
    near = x.astype(np.float32)
    wide = near.astype(np.float64)
    too_far = np.abs(wide) > np.abs(x)
    cut = np.where(too_far, np.nextafter(near, np.float32(0)), near)
    bits = cut.view(np.uint32) | ((wide != x) & ~np.isnan(x)).astype(np.uint32)
    odd: Array = bits.view(np.float32)
    return odd


def round_to_tf32(x: Array) -> Array:
    """Return float32 rounded to the 10 mantissa bits of tf32, to nearest even."""
    bits = np.asarray(x).view(np.uint32)
    half = np.uint32((1 << (TF32_DROPPED_BITS - 1)) - 1)
    last = (bits >> np.uint32(TF32_DROPPED_BITS)) & np.uint32(1)
    kept = ~np.uint32((1 << TF32_DROPPED_BITS) - 1)
    rounded = ((bits + half + last) & kept).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


def _integer_to_odd(x: Array) -> Array:
    """Return integers as float64, those of over 53 bits with their low bits gathered in one.

    Exact for whoever rounds to 11 bits or fewer afterwards.
    """
    low = 1 << 14
    is_large = (x >= 1 << 40) | (x <= -(1 << 40)) if x.dtype.itemsize == 8 else None
    if is_large is None:
        return x.astype(np.float64)
    mask = x.dtype.type(low - 1)
    sticky = np.where((x & mask) != 0, x.dtype.type(low >> 1), x.dtype.type(0))
    gathered = (x - (x & mask)) | sticky
    return np.where(is_large, gathered, x).astype(np.float64)


def _float_to_integer(x: Array, target: DType) -> Array:
    """Return floats towards zero, saturating, NaN as 0."""
    info = np.iinfo(target.numpy)
    whole = np.trunc(np.asarray(x).astype(np.float64))
    # 2.0**63 is above the largest i64: compared as a float it is exact, the limit itself is not.
    over, under = whole >= float(info.max), whole <= float(info.min)
    inside = np.where(over | under | np.isnan(whole), 0.0, whole).astype(target.numpy)
    return np.where(over, target.numpy.type(info.max),
                    np.where(under, target.numpy.type(info.min), inside))  # fmt: skip


def number(value: float | int | bool, dtype: DType) -> Any:
    """Return a Python number as one element of `dtype`."""
    if dtype.is_float:
        return round_to(np.asarray(value, np.float64), dtype)[()]
    return dtype.numpy.type(value)


def computed_wide(dtype: DType) -> np.dtype[Any]:
    """Return the type in which arithmetic on `dtype` is done, before it is rounded once."""
    return np.dtype(np.float32) if dtype.is_float and dtype.bits < f32.bits else dtype.numpy


def is_narrow_float(dtype: DType) -> bool:
    """Return whether arithmetic is done in float32 and rounded: f16, bf16 and the 8-bit floats."""
    return dtype.is_float and dtype.bits < f32.bits


__all__ = [
    "bf16", "computed_wide", "convert", "is_narrow_float", "narrowed", "number", "round_to",
    "round_to_tf32", "to_odd_float32",
]  # fmt: skip
