"""`async_prefetch`: lines of a window are touched, and nothing else changes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from astdsl import (
    SMEM,
    In,
    Out,
    async_prefetch,
    cdiv,
    f16,
    f32,
    kernel,
    parallel,
    tile,
    warp_id,
    warpgroup_id,
)
from astdsl.errors import TypeMismatch, UnsupportedFeature
from tests.witnesses import agree

X = np.random.default_rng(5).standard_normal((100, 96)).astype(np.float32)


@kernel
def ahead(x: In[f32, "M N"], o: Out[f32, "M N"], *, b=32):
    m, n = x.shape
    with parallel(cdiv(m, b)) as i:
        for k in range(cdiv(n, b)):
            async_prefetch(x.at[tile(i, b), tile(k + 1, b)])
            o[tile(i, b), tile(k, b)] = x[tile(i, b), tile(k, b)] + 1


def test_windows_that_cross_the_edge_are_prefetched_as_far_as_they_go() -> None:
    assert np.array_equal(agree(ahead, lambda: [X]), X + 1)
    assert np.array_equal(agree(ahead, lambda: [X[:, :90]]), X[:, :90] + 1)


@kernel
def once(x: In[f16, "8 256"], y: In[f16, "64 64"], o: Out[f16, "8"]):
    async_prefetch(x)
    async_prefetch(y.T)
    async_prefetch(y.at[0:8, 3])
    o[...] = x[0:8, 0]


def test_a_line_of_128_bytes_is_touched_once() -> None:
    x, y = np.ones((8, 256), np.float16), np.ones((64, 64), np.float16)
    agree(once, lambda: [x, y])
    ptx = once.lower(x, y, target="sm_90a").ptx
    # x: 4 lines and an end a row, of 8 rows; y: a line and an end, 64 rows; a column.
    assert len(re.findall(r"prefetch\.global\.L2 \[%rd\d+\];", ptx)) == 5


@kernel(warpgroups=2)
def by_one_warp(x: In[f32, "M N"], o: Out[f32, "32"]):
    if warpgroup_id() == 1:
        if warp_id() == 2:
            async_prefetch(x.at[0:32, 0:64])
    else:
        o[...] = x[0:32, 0]


def test_one_warp_may_prefetch() -> None:
    assert np.array_equal(agree(by_one_warp, lambda: [X]), X[:32, 0])


def test_only_windows_of_global_memory_are_prefetched() -> None:
    def of_a_tile(x: In[f32, "64 64"], o: Out[f32, "64 64"]) -> None:
        async_prefetch(x[...])
        o[...] = x[...]

    def on_chip(x: In[f32, "64 64"], o: Out[f32, "64 64"]) -> None:
        async_prefetch(SMEM((64, 64), f32))
        o[...] = x[...]

    def together(x: In[f32, "64 64"], o: Out[f32, "64 64"]) -> None:
        async_prefetch(x, collective_axes="x")
        o[...] = x[...]

    x = np.ones((64, 64), np.float32)
    for wrong in (of_a_tile, on_chip):
        with pytest.raises(TypeMismatch, match="a ref to global memory"):
            kernel(wrong).on("reference")(x)
    with pytest.raises(UnsupportedFeature, match="collective_axes"):
        kernel(together).on("reference")(x)
