"""The products of the matrix units, cut into tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator.matrix import ONE_THREAD, _tile, multiply


@pytest.mark.parametrize("shape", [(2, 128, 128, 256), (1, 64, 256, 64), (3, 8, 24, 16)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tiles_of_a_product_make_the_product(shape: tuple[int, ...], dtype: type) -> None:
    n, m, columns, k = shape
    random = np.random.default_rng(0)
    a: Any = random.integers(-4, 5, (n, m, k)).astype(dtype)
    b: Any = random.integers(-4, 5, (n, columns, k)).astype(dtype)
    assert np.array_equal(multiply(a, b), np.matmul(a, b.transpose(0, 2, 1)))


def test_a_tile_is_work_for_one_thread() -> None:
    rows, columns = _tile(128, 256, 256)
    assert rows * columns * 256 <= ONE_THREAD
    assert 128 % rows == 256 % columns == 0
    assert _tile(127, 255, 4096) == (127, 255)
