"""Tiles whose extents the threads do not divide: registers beyond them read and write nothing."""

from __future__ import annotations

# Annotations of kernels are arrays, which a type checker takes for no types.
from typing import Any

import numpy as np
import pytest

from astdsl import In, Out, cdiv, f32, kernel, pipeline, tile, zeros

Array = np.ndarray[Any, Any]


@kernel
def running(x: In[f32, "M N"], o: Out[f32, "M N"], *, bm, bn):
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        s = zeros((bm, bn), f32)
        with pipeline(cdiv(N, bn), stages=2) as j:
            t = x[tile(i, bm), tile(j, bn)]
            o[tile(i, bm), tile(j, bn)] = t * 2 + s
            s = s + t


@pytest.mark.parametrize(("bm", "bn"), [(16, 96), (8, 48), (12, 20), (64, 24), (5, 36), (32, 160)])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_tile_of_any_extent_goes_through_shared_memory(target: str, bm: int, bn: int) -> None:
    x: Array = np.random.default_rng(0).standard_normal((50, 2 * bn + 4), dtype=np.float32)
    expected = running.on("reference")(x, bm=bm, bn=bn)
    found = running.on("emulator", target=target)(x, bm=bm, bn=bn)
    np.testing.assert_array_equal(found, expected)
