"""8-bit floats as tiles: moved as they are, computed with in f32, rounded once, saturating."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl import (
    In,
    Out,
    cdiv,
    exp,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    kernel,
    pipeline,
    tile,
    where,
    zeros,
)
from astdsl.lowering.small_floats import small_float_bits
from tests.witnesses import agree

Array = np.ndarray[Any, Any]
DTYPES = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


def every_code(dtype: Any, *shape: int) -> Array:
    """Return codes of all kinds: subnormals, NaNs, infinities."""
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8).view(dtype)


@kernel
def computed(
    x: In["M N"], o: Out["M N"], p: Out["M"], q: Out["M N"], w: Out[f32, "M N"], *, bm=16, bn=64
):
    M, _ = x.shape
    with pipeline(cdiv(M, bm), stages=2) as i:
        t = x[tile(i, bm), 0:bn]
        o[tile(i, bm), 0:bn] = t * 1.5 + 3
        p[tile(i, bm)] = t.sum(axis=1)
        q[tile(i, bm), 0:bn] = where(t > 1, -t, exp(t)) + zeros((bm, bn), x.dtype)
        w[tile(i, bm), 0:bn] = t


@pytest.mark.parametrize("columns", [64, 51])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic_is_done_in_f32_and_rounded_once(dtype: Any, columns: int) -> None:
    x = every_code(dtype, 35, columns)
    *_, wide = agree(computed, lambda: (x,))
    np.testing.assert_array_equal(wide, x.astype(np.float32))


@kernel
def narrowed(x: In["N"], a: Out[f8e4m3, "N"], b: Out[f8e5m2, "N"]):
    t = x[0:128]
    a[0:128] = t
    b[0:128] = t.astype(f16)


def test_what_is_too_large_becomes_the_largest_number() -> None:
    x = np.zeros(128, np.float32)
    x[:6] = 464, -465, np.inf, -1e30, np.nan, 70000
    a, b = (found.astype(np.float32) for found in agree(narrowed, lambda: (x,)))
    np.testing.assert_array_equal(a[:6], [448, -448, 448, -448, np.nan, 448])
    np.testing.assert_array_equal(b[:6], [448, -448, 57344, -57344, np.nan, 57344])


@pytest.mark.parametrize("dtype", [f8e4m3, f8e5m2], ids=str)
def test_the_bits_of_a_constant_are_those_of_the_nearest_number(dtype: Any) -> None:
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(dtype.numpy).astype(np.float64)
    finite = np.isfinite(numbers)
    found = [small_float_bits(dtype, float(x)) for x in numbers[finite]]
    assert found == codes[finite].tolist()
    between = (1.0 + 2.0**-dtype.numpy.itemsize) / 2
    assert small_float_bits(dtype, between) == np.array(between).astype(dtype.numpy).view(np.uint8)
