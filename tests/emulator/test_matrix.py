"""Tests of exact widening and of the product."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl.emulator import matrix

DTYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8,
}  # fmt: skip


@pytest.mark.parametrize("name", list(DTYPES))
@pytest.mark.filterwarnings("ignore:invalid value")
def test_every_bit_pattern_widens_exactly(name: str) -> None:
    size = np.dtype(DTYPES[name]).itemsize
    bits = np.arange(1 << (8 * size)).astype(f"u{size}")
    values = matrix.widen(bits.view(np.uint8), name)
    expected = bits.view(DTYPES[name]).astype(np.float64)
    assert np.array_equal(values.astype(np.float64), expected, equal_nan=True)


def test_tf32_ignores_the_low_13_bits() -> None:
    bits = np.array([0x3F801FFF, 0x3F802000], np.uint32)
    assert matrix.widen(bits.view(np.uint8), "tf32").tolist() == [1.0, 1.0009765625]


@pytest.mark.parametrize(
    ("old", "dtype", "saturate", "expected"),
    [
        (None, np.float32, False, [1.0, 2049.0]),
        ([1, 1], np.float32, False, [2.0, 2050.0]),
        ([0, 0], np.float16, False, [1.0, 2048.0]),
        ([2**31 - 1, -5], np.int32, False, [-(2**31), 2044]),
        ([2**31 - 1, -5], np.int32, True, [2**31 - 1, 2044]),
    ],
)
def test_products_are_added_in_the_type_of_the_accumulator(
    old: list[int] | None, dtype: Any, saturate: bool, expected: list[float]
) -> None:
    before = None if old is None else np.array(old, dtype)
    total = matrix.accumulate(before, np.array([1.0, 2049.0]), np.dtype(dtype), saturate)
    assert total.tolist() == expected


def test_a_product_is_a_times_b_transposed() -> None:
    a = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    b = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    assert np.array_equal(matrix.multiply(a, b), np.einsum("bmk,bnk->bmn", a, b))
