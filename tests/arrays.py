"""Arrays that tests pass to kernels: drawn by the sum of their extents, the same in every run."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


def whole(*shape: int, dtype: Any = np.float32, low: int = -9, high: int = 10) -> Array:
    """Return small whole numbers, from `low` up to `high`, whose sums f32 holds exactly."""
    return np.random.default_rng(sum(shape)).integers(low, high, shape).astype(dtype)


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    """Return numbers drawn from the normal distribution."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def factors(dtype: Any, *shape: int) -> Array:
    """Return whole numbers so small that f32 adds the products of them exactly."""
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


def product(a: Array, b: Array) -> Array:
    """Return the matrix product of two arrays in f32."""
    return a.astype(np.float32) @ b.astype(np.float32)
