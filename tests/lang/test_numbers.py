"""Python numbers that meet a dtype which does not hold them."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl import In, KernelError, Out, f16, f32, full, i8, i32, kernel, load, tile, u8, where
from tests.witnesses import agree


@kernel
def filled_at_the_edge(x: In["N"], o: Out[i32, "1"], *, v=0, b=16):
    o[0] = load(x.at[tile(0, b)], fill=v).sum()


@pytest.mark.parametrize(("dtype", "value"), [(np.int8, 128), (np.int8, -129), (np.uint8, -1)])
def test_a_fill_that_the_dtype_does_not_hold_is_refused(dtype: type, value: int) -> None:
    with pytest.raises(KernelError, match=f"{value} does not fit"):
        filled_at_the_edge(np.ones(10, dtype), v=value)


def test_the_largest_fill_is_an_ordinary_number() -> None:
    found = agree(filled_at_the_edge, lambda: (np.ones(10, np.int8),), v=127)
    assert found[0] == 10 + 6 * 127


@kernel
def filled_tile(o: Out["N"], *, v=0, dtype=i8):
    o[...] = full(o.shape, v, dtype)


@pytest.mark.parametrize("value", [1.5, float("nan"), float("inf")])
def test_full_of_integers_drops_no_fraction(value: float) -> None:
    with pytest.raises(KernelError, match="would drop fractions silently"):
        filled_tile(np.empty(4, np.int8), v=value)
    assert (filled_tile(np.empty(4, np.int8), v=2.0) == 2).all()


@kernel
def converted(o: Out[i32, "5"]):
    o[0] = i8(float("nan")).astype(i32)
    o[1] = i8(1e9).astype(i32)
    o[2] = u8(float("-inf")).astype(i32)
    o[3] = i32(-2.7)
    o[4] = i32(3e9)


def test_numbers_are_converted_as_tiles_are() -> None:
    found = agree(converted, lambda: ())
    assert found.tolist() == [0, 127, 0, -2, 2**31 - 1]


@kernel
def beyond_every_double(x: In["N"], o: Out["N"]):
    o[...] = x[...] - 2**2000


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_integer_beyond_the_floats_is_infinite(dtype: type) -> None:
    found = agree(beyond_every_double, lambda: (np.ones(4, dtype),))
    assert np.isneginf(found).all()


@kernel
def ragged_beyond(x: In["N"], o: Out["N"]):
    t = x[tile(0, 8)]
    o[tile(0, 8)] = where(t < 2**70, t + 1, t)


@pytest.mark.parametrize("dtype", [np.uint64, np.int8, np.float32])
def test_a_ragged_tile_meets_an_integer_beyond_every_integer(dtype: type) -> None:
    x = np.arange(5).astype(dtype)
    np.testing.assert_array_equal(agree(ragged_beyond, lambda: (x,)), x + 1)


@kernel
def of_sixteen_bits(h: f16, o: Out[f32, "2"]):
    o[0] = h
    o[1] = h * 2


def test_a_scalar_of_sixteen_bits_reaches_every_device() -> None:
    np.testing.assert_array_equal(
        agree(of_sixteen_bits, lambda: (1.1,)), np.array([1.1, 2.2], np.float16).astype(np.float32)
    )
