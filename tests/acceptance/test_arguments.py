"""Signatures, sizes and layouts of arguments, on every witness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from astdsl import (
    In,
    InOut,
    Out,
    cdiv,
    f32,
    i32,
    kernel,
    pipeline,
    tile,
)
from tests.arrays import whole
from tests.witnesses import agree

ONE = ("sm_90a",)


# signatures


@kernel
def several(x: In[f32, "N"], a: Out[f32, "N"], b: Out[i32, "N"], n: Out[i32, "1"], *, w=32):
    t = x[0:128]
    a[0:128], b[0:128] = t * 2, t.astype(i32)
    n[0] = x.shape[0]


@kernel
def scaled(x: In["M N"], o: Out["M N"], alpha: f32 = 2.0, shift: i32 = 1, *, bm=8):
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        o[tile(i, bm), 0:64] = x[tile(i, bm), 0:64] * alpha + shift


@kernel
def axpy(alpha: f32, x: In[f32, "N"], y: InOut[f32, "N"], *, b=64):
    with pipeline(cdiv(x.shape[0], b)) as i:
        y[tile(i, b)] += alpha * x[tile(i, b)]


@kernel
def padded(x: In[f32, "N"], o: Out[f32, "K"], *, K=64):
    o[...] = x[0:K]


@kernel
def filled(x: In[f32, "N"], o: Out[f32, "N", 7]):
    o[0:16] = x[0:16]


@kernel
def scale_by_root(x: In[f32, "M D"], o: Out[f32, "M D"]):
    M, D = x.shape
    with pipeline(M) as i:
        o[i, :] = x[i, :] / math.sqrt(D)


@kernel
def expression_dims(x: In[f32, "M N"], o: Out[f32, "cdiv(M,4) N"]):
    M, N = x.shape
    with pipeline(o.shape[0]) as i:
        o[i, 0:64] = x[tile(i, 4), 0:64].sum(axis=0)


def test_a_dim_of_an_omitted_output_may_be_computed() -> None:
    x = whole(10, 50)
    expected = np.add.reduceat(x, [0, 4, 8], 0)
    for device in ("reference", "emulator"):
        np.testing.assert_array_equal(expression_dims.on(device)(x), expected)


def test_several_outputs_are_returned_in_order() -> None:
    x = whole(100)
    a, b, n = agree(several, lambda: (x,))
    np.testing.assert_array_equal(a, x * 2)
    np.testing.assert_array_equal(b, x.astype(np.int32))
    assert n == [100]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_scalars_take_the_annotated_dtype(dtype: Any) -> None:
    x = whole(20, 50, dtype=dtype)
    np.testing.assert_array_equal(scaled(x), x * 2 + 1)
    found = agree(scaled, lambda: (x, np.zeros_like(x), 0.5, -3), targets=ONE)
    np.testing.assert_array_equal(found, x * dtype(0.5) - dtype(3))
    np.testing.assert_array_equal(scaled(x, alpha=3, shift=0), x * 3)


def test_an_array_is_updated_in_place() -> None:
    x, y = whole(100), whole(101)[1:]
    np.testing.assert_array_equal(agree(axpy, lambda: (2.5, x, y.copy())), 2.5 * x + y)


@pytest.mark.parametrize("k", [16, 64, 100])
def test_a_constant_is_a_dim(k: int) -> None:
    x = whole(64)
    expected = np.concatenate([x, np.zeros(100, np.float32)])[:k]
    found = agree(padded, lambda: (x, np.zeros(k, np.float32)), targets=ONE, K=k)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(padded(x, K=k), expected)


def test_an_output_starts_filled() -> None:
    x = whole(30)
    found = agree(filled, lambda: (x, np.full(30, 7, np.float32)))
    np.testing.assert_array_equal(found, np.concatenate([x[:16], np.full(14, 7)]))
    np.testing.assert_array_equal(filled.on("emulator")(x), found)


def test_a_dim_becomes_a_constant_where_python_needs_it() -> None:
    x = whole(4, 24)
    found = agree(scale_by_root, lambda: (x,), tolerance=1e-6)
    np.testing.assert_allclose(found, x / np.sqrt(np.float32(24)), 1e-6)


# sizes


@kernel
def add_blocks(x: In["M N"], y: In["M N"], o: Out["M N"], *, bm=8, bn=32):
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        window = tile(i, bm), tile(j, bn)
        o[window] = x[window] + y[window]


@kernel
def total(x: In[f32, "M N"], o: Out[f32, "1"]):
    M, N = x.shape
    acc = 0.0
    with pipeline(cdiv(M, 8), cdiv(N, 32), stages=3, axes="sequential") as (i, j):
        acc += x[tile(i, 8), tile(j, 32)].sum()
    o[0] = acc


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (1, 33), (9, 1)], ids=str)
def test_empty_arrays_and_arrays_of_one(shape: tuple[int, int]) -> None:
    x, y = whole(*shape), whole(*shape)
    np.testing.assert_array_equal(agree(add_blocks, lambda: (x, y)), x + y)
    np.testing.assert_array_equal(agree(total, lambda: (x,), targets=ONE), [x.sum()])


LAYOUTS = {
    "contiguous": lambda a: a,
    "transposed": np.asfortranarray,
    "every second column": lambda a: np.repeat(a, 2, 1)[:, ::2],
    "every second row": lambda a: np.repeat(a, 2, 0)[::2],
    "backwards": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "columns backwards": lambda a: np.ascontiguousarray(a[:, ::-1])[:, ::-1],
    "in a larger array": lambda a: np.pad(a, 3)[3:-3, 3:-3],
    "unaligned": lambda a: np.concatenate([a[:1].ravel()[:1], a.ravel()])[1:].reshape(a.shape),
    "rows of 16 bytes": lambda a: np.pad(a, ((0, 0), (0, -a.shape[1] % 16)))[:, : a.shape[1]],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_in_memory_gives_the_same(layout: str, dtype: Any) -> None:
    x, y = whole(19, 45, dtype=dtype), whole(19, 45, dtype=dtype)
    laid = LAYOUTS[layout](x)
    np.testing.assert_array_equal(laid, x)
    found = agree(add_blocks, lambda: (laid, y), targets=ONE)
    np.testing.assert_array_equal(found, x + y)
    out = LAYOUTS[layout](np.zeros_like(x))
    for device in ("reference", "emulator"):
        out[...] = 0
        add_blocks.on(device)(x, y, out)
        np.testing.assert_array_equal(out, x + y)


def test_a_row_spread_over_all_rows_has_no_stride() -> None:
    x, y = whole(19, 45), whole(45)
    spread = np.broadcast_to(y, (19, 45))
    np.testing.assert_array_equal(agree(add_blocks, lambda: (x, spread)), x + y)
    one = np.broadcast_to(np.float32(3), (19, 45))
    np.testing.assert_array_equal(agree(add_blocks, lambda: (x, one)), x + 3)
