"""Numbers that arithmetic goes wrong on, for every dtype."""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from astdsl.ir.dtypes import (
    BOOL,
    DType,
    f4e2m1,
)

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def special(dtype: DType) -> Array:
    """Return the special values of a dtype."""
    if dtype.kind == BOOL:
        return np.array([False, True])
    return _special_floats(dtype) if dtype.is_float else _special_integers(dtype)


def _special_floats(dtype: DType) -> Array:
    info: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    tiny, normal, most = (
        float(info.smallest_subnormal), float(info.smallest_normal), float(info.max),
    )  # fmt: skip
    positive = [
        0.0, tiny, 3 * tiny, normal - tiny, normal, 1 / 3, 0.5, 1.0, 1.0 + float(info.eps), 1.5,
        2.0, 2.5, 3.0, 7.75, 127.5, 255.5, 32768.0, most / 2, most, np.inf,
    ]  # fmt: skip
    values = np.array([*positive, *(-x for x in positive), np.nan])
    return values.astype(dtype.numpy)


def _special_integers(dtype: DType) -> Array:
    info = np.iinfo(dtype.numpy)
    low, high = int(info.min), int(info.max)
    values = {0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 100, high, high - 1, high // 2}
    values |= {low, low + 1, low // 2, high // 3}
    if dtype.is_signed:
        values |= {-v for v in values if -v >= low}
    return np.array([v for v in sorted(values) if low <= v <= high], dtype.numpy)


def any_bits(dtype: DType, count: int, seed: int = 0) -> Array:
    """Return numbers of random bits."""
    generator = np.random.default_rng(seed)
    if dtype.kind == BOOL:
        return generator.integers(0, 2, count).astype(np.bool_)
    raw = generator.integers(0, 256, count * dtype.bytes, dtype=np.uint8)
    return (raw & 15 if dtype is f4e2m1 else raw).view(dtype.numpy)


def pairs(dtype: DType) -> tuple[Array, Array]:
    """Return all pairs of special values, then pairs of random bits."""
    values = special(dtype)
    left, right = (x.reshape(-1) for x in np.meshgrid(values, values, indexing="ij"))
    return (
        np.concatenate([left, any_bits(dtype, 99, 1)]),
        np.concatenate([right, any_bits(dtype, 99, 2)]),
    )


def without_nan(x: Array) -> Array:
    """Return an array with zeros in place of NaNs."""
    return np.where(is_nan(x), np.zeros_like(x), x)


def is_nan(x: Array) -> Array:
    """Return which elements are NaN, of any dtype."""
    with np.errstate(invalid="ignore"):  # ml_dtypes warns of them
        return np.isnan(x) if x.dtype.kind not in "biu" else np.zeros(x.shape, np.bool_)


def some(dtype: DType) -> Array:
    """Return the special values, then random bits."""
    return np.concatenate([special(dtype), any_bits(dtype, 99, 3)])
