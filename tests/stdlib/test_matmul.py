"""Products of matrices: plain, batched, of quantised weights, by a vector."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl.stdlib import matmul
from tests.witnesses import agree


def whole(*shape: int, dtype: Any = np.float16, seed: int = 0) -> Any:
    """Return small whole numbers, whose products and sums are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_blocks_along_a_snake_make_the_product(dtype: Any) -> None:
    a, b = whole(300, 100, dtype=dtype), whole(100, 200, dtype=dtype, seed=1)
    c = np.empty((300, 200), np.float32)
    found = agree(matmul.matmul, lambda: (a, b, c.copy()), bm=64, bn=64, stages=2)
    np.testing.assert_array_equal(found, a.astype(np.float32) @ b.astype(np.float32))


def test_a_batch_of_products() -> None:
    a, b = whole(3, 70, 100), whole(3, 100, 80, seed=1)
    c = np.empty((3, 70, 80), np.float32)
    found = agree(matmul.batched_matmul, lambda: (a, b, c.copy()))
    np.testing.assert_array_equal(found, a.astype(np.float32) @ b.astype(np.float32))


def test_rows_are_quantised_to_their_largest() -> None:
    x = np.random.default_rng(0).standard_normal((9, 100), dtype=np.float32)
    x[3] = 0
    q, scale = agree(matmul.quantise_rows, lambda: (x,), bk=128)
    assert (np.abs(q.astype(int)).max(axis=1)[[0, 1, 2, 4]] == 127).all()
    np.testing.assert_allclose(q * scale[:, None], x, atol=scale.max() / 2)


def test_weights_of_8_bits() -> None:
    a, q = whole(70, 100), whole(100, 80, dtype=np.int8, seed=1)
    scale = np.exp2(np.random.default_rng(2).integers(-3, 3, 80)).astype(np.float32)
    c = np.empty((70, 80), np.float32)
    found = agree(matmul.matmul_dequantised, lambda: (a, q, scale, c.copy()))
    np.testing.assert_array_equal(found, a.astype(np.float32) @ (q * scale))


@pytest.mark.parametrize("parts", [1, 4])
def test_a_matrix_by_a_vector(parts: int) -> None:
    a, x = whole(70, 1000), whole(1000, seed=1)
    y = np.empty(70, np.float32)
    found = agree(matmul.matvec, lambda: (a, x, y.copy()), parts=parts)
    np.testing.assert_array_equal(found, a.astype(np.float32) @ x.astype(np.float32))
