"""Small kernels of the kind that people write, on every witness, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import astdsl
from astdsl import (
    In,
    InOut,
    Out,
    argmax,
    argmin,
    bf16,
    broadcast_to,
    cdiv,
    ds,
    exp,
    f16,
    f32,
    f64,
    full,
    i32,
    iota,
    kernel,
    load,
    maximum,
    mean,
    minimum,
    pipeline,
    rsqrt,
    sqrt,
    tile,
    unroll,
    where,
    zeros,
)
from tests.arrays import Array, normal, whole
from tests.witnesses import agree

ONE = ("sm_90a",)


# rows


@kernel
def softmax(x: In[f32, "M N"], o: Out[f32, "M N"], *, bm=4, bn=128):
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        t = x[tile(i, bm), 0:bn]
        e = exp(t - t.max(axis=1, keepdims=True))
        o[tile(i, bm), 0:bn] = e / e.sum(axis=1, keepdims=True)


@kernel
def layer_norm(x: In[f32, "M N"], g: In[f32, "N"], b: In[f32, "N"], o: Out[f32, "M N"], *, bm=4):
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        t = x[tile(i, bm), 0:128]
        mu = mean(t, axis=1, keepdims=True)
        d = t - mu
        var = (d * d).sum(axis=1, keepdims=True) / N
        o[tile(i, bm), 0:128] = d * rsqrt(var + 1e-5) * g[0:128] + b[0:128]


@kernel
def rms_norm(x: In[f32, "M N"], o: Out[f32, "M N"]):
    M, N = x.shape
    with pipeline(M) as i:
        row = x[i, :]
        o[i, :] = row / sqrt((row * row).mean() + 1e-6)


@kernel
def online_softmax(x: In[f32, "M N"], o: Out[f32, "M N"], *, bn=32):
    M, N = x.shape
    with pipeline(M) as i:
        high = full((), -math.inf, f32)
        total = 0.0
        with pipeline(cdiv(N, bn), stages=2) as j:
            t = x[i, tile(j, bn)]
            new = maximum(high, t.max())
            total = total * exp(high - new) + exp(t - new).sum()
            high = new
        with pipeline(cdiv(N, bn), stages=2) as j:
            o[i, tile(j, bn)] = exp(x[i, tile(j, bn)] - high) / total


def softmaxed(x: Array) -> Array:
    e: Array = np.exp(x - x.max(1, keepdims=True))
    e /= e.sum(1, keepdims=True)
    return e


def normed(x: Array, g: Array, b: Array) -> Array:
    d: Array = x - x.mean(1, keepdims=True)
    d /= np.sqrt((d * d).mean(1, keepdims=True) + 1e-5)
    d *= g
    d += b
    return d


@pytest.mark.parametrize("shape", [(1, 1), (5, 100), (8, 128)], ids=str)
def test_softmax_of_rows(shape: tuple[int, int]) -> None:
    x = normal(*shape)
    np.testing.assert_allclose(agree(softmax, lambda: (x,), tolerance=1e-6), softmaxed(x), 1e-5)
    found = agree(online_softmax, lambda: (x,), tolerance=1e-6, targets=ONE)
    np.testing.assert_allclose(found, softmaxed(x), 1e-5)


@pytest.mark.parametrize("shape", [(1, 8), (5, 100), (8, 128)], ids=str)
def test_normalised_rows(shape: tuple[int, int]) -> None:
    x, g, b = normal(*shape), normal(shape[1]), normal(shape[1] + 1)[1:]
    found = agree(layer_norm, lambda: (x, g, b), tolerance=1e-5)
    np.testing.assert_allclose(found, normed(x, g, b), 1e-4, 1e-5)
    found = agree(rms_norm, lambda: (x,), tolerance=1e-5, targets=ONE)
    np.testing.assert_allclose(found, x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6), 1e-4)


# reductions


@kernel
def reductions(
    x: In[f32, "M N"],
    rows: Out[f32, "M"],
    columns: Out[f32, "N"],
    where_most: Out[i32, "M"],
    where_least: Out[i32, "N"],
    most: Out[f32, "M"],
    least: Out[f32, "N"],
    everything: Out[f32, "1"],
):
    t = x[0:32, 0:64]
    rows[0:32] = t.sum(axis=1)
    columns[0:64] = t.sum(axis=0)
    where_most[0:32] = argmax(t, axis=1)
    where_least[0:64] = argmin(t, axis=0)
    most[0:32] = t.max(axis=1)
    least[0:64] = t.min(axis=0)
    everything[0] = t.sum()


@pytest.mark.parametrize("shape", [(1, 1), (7, 61), (32, 64), (31, 5)], ids=str)
def test_reductions_leave_out_what_is_outside(shape: tuple[int, int]) -> None:
    x = whole(*shape, low=1, high=1000)
    found = agree(reductions, lambda: (x,))
    expected = (x.sum(1), x.sum(0), x.argmax(1), x.argmin(0), x.max(1), x.min(0), [x.sum()])
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(f, e)


@kernel
def products_and_truths(x: In[f32, "M N"], p: Out[f32, "M"], a: Out[bool, "M"], e: Out[bool, "M"]):
    t = x[0:16, 0:32]
    p[0:16] = astdsl.prod(t, axis=1)
    a[0:16] = astdsl.all(t > 1, axis=1)
    e[0:16] = astdsl.any(t > 2, axis=1)


@pytest.mark.parametrize("shape", [(3, 5), (16, 8)], ids=str)
def test_prod_all_and_any_leave_out_what_is_outside(shape: tuple[int, int]) -> None:
    x = whole(*shape, low=1, high=4)
    p, a, e = agree(products_and_truths, lambda: (x,))
    np.testing.assert_array_equal(p, x.prod(1))
    np.testing.assert_array_equal(a, (x > 1).all(1))
    np.testing.assert_array_equal(e, (x > 2).any(1))


@kernel
def column_maxima(x: In[f32, "M N"], o: Out[f32, "N"], *, bm=8, bn=32):
    M, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        high = full((bn,), -math.inf, f32)
        with pipeline(cdiv(M, bm), stages=3) as i:
            high = maximum(high, x[tile(i, bm), tile(j, bn)].max(axis=0))
        o[tile(j, bn)] = high


@pytest.mark.parametrize("shape", [(1, 1), (8, 32), (19, 45)], ids=str)
def test_maxima_of_ragged_columns(shape: tuple[int, int]) -> None:
    x = -np.abs(normal(*shape)) - 1
    np.testing.assert_array_equal(agree(column_maxima, lambda: (x,)), x.max(0))


@kernel
def best_column(x: In[f32, "M N"], where_: Out[i32, "M"], *, bn=32):
    M, N = x.shape
    with pipeline(M) as i:
        best = full((), -math.inf, f32)
        at = 0
        with pipeline(cdiv(N, bn), stages=2) as j:
            t = x[i, tile(j, bn)]
            most = t.max()
            if most > best:
                best = most
                at = j * bn + argmax(t, axis=0)
        where_[i] = at


def test_argmax_over_blocks_of_columns() -> None:
    x = normal(5, 77)
    np.testing.assert_array_equal(agree(best_column, lambda: (x,)), x.argmax(1))


# elementwise, broadcasting, dtypes


@kernel
def outer(a: In[f32, "M"], b: In[f32, "N"], o: Out[f32, "M N"], *, bm=16, bn=32):
    M, N = o.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        o[tile(i, bm), tile(j, bn)] = a[tile(i, bm)][:, None] * b[tile(j, bn)] - b[tile(j, bn)]


@kernel
def lower_triangle(x: In[f32, "M N"], o: Out[f32, "M N"], *, bm=16, bn=32):
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        rows = i * bm + iota((bm, bn), 0)
        columns = j * bn + iota((bm, bn), 1)
        o[tile(i, bm), tile(j, bn)] = where(rows >= columns, x[tile(i, bm), tile(j, bn)], 0)


@kernel
def bits(x: In[i32, "N"], y: In[i32, "N"], o: Out[i32, "N"], *, b=64):
    with pipeline(cdiv(x.shape[0], b)) as i:
        p, q = x[tile(i, b)], y[tile(i, b)]
        o[tile(i, b)] = ((p & q) | (p ^ 7)) + (p << 2) - (q >> 1) + ~p


@kernel
def divisions(x: In[i32, "N"], y: In[i32, "N"], q: Out[i32, "N"], r: Out[i32, "N"], *, b=64):
    with pipeline(cdiv(x.shape[0], b)) as i:
        q[tile(i, b)] = x[tile(i, b)] // y[tile(i, b)]
        r[tile(i, b)] = x[tile(i, b)] % y[tile(i, b)]


@kernel
def masks(m: In[bool, "N"], x: In[f32, "N"], n: Out[bool, "N"], o: Out[f32, "N"], c: Out[i32, "1"]):
    t, inside = x[0:128], m[0:128]
    n[0:128] = ~inside | (t > 0)
    o[0:128] = where(inside & (t < 1), t, -1)
    c[0] = inside.sum()


@kernel
def in_dtype(x: In["N"], y: In["N"], o: Out["N"], *, b=64):
    with pipeline(cdiv(x.shape[0], b)) as i:
        p, q = x[tile(i, b)], y[tile(i, b)]
        o[tile(i, b)] = (p + q) * p - q / 3 + 1.5


@kernel
def in_integers(x: In["N"], y: In["N"], o: Out["N"], *, b=64):
    with pipeline(cdiv(x.shape[0], b)) as i:
        p, q = x[tile(i, b)], y[tile(i, b)]
        o[tile(i, b)] = minimum((p + q) * p - q, p) + maximum(p, 3)


@kernel
def converted(
    x: In[f32, "N"], h: Out[f16, "N"], b: Out[bf16, "N"], d: Out[f64, "N"], n: Out[i32, "N"]
):
    t = x[0:256]
    h[0:256] = t.astype(f16)
    b[0:256] = t
    d[0:256] = t.astype(f64) * 3
    n[0:256] = t.astype(i32)


def test_broadcasting_of_rows_and_columns() -> None:
    a, b = normal(19), normal(70)
    np.testing.assert_array_equal(agree(outer, lambda: (a, b)), a[:, None] * b - b)


def test_a_triangle_by_iotas() -> None:
    x = normal(40, 70)
    np.testing.assert_array_equal(agree(lower_triangle, lambda: (x,)), np.tril(x))


def test_bits_of_integers() -> None:
    x, y = whole(100, dtype=np.int32, low=-1000, high=1000), whole(101, dtype=np.int32)[1:]
    expected = ((x & y) | (x ^ 7)) + (x << 2) - (y >> 1) + ~x
    np.testing.assert_array_equal(agree(bits, lambda: (x, y)), expected)


def test_integer_division_floors() -> None:
    x, y = whole(100, dtype=np.int32, low=-1000, high=1000), whole(100, dtype=np.int32, low=1)
    y[::2] *= -1
    q, r = agree(divisions, lambda: (x, y))
    np.testing.assert_array_equal(q, x // y)
    np.testing.assert_array_equal(r, x % y)


def test_masks_are_tiles_of_bool() -> None:
    x, m = normal(100), whole(100, low=0, high=2).astype(bool)
    n, o, c = agree(masks, lambda: (m, x))
    np.testing.assert_array_equal(n, ~m | (x > 0))
    np.testing.assert_array_equal(o, np.where(m & (x < 1), x, -1).astype(np.float32))
    assert c == [m.sum()]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_arithmetic_keeps_the_dtype_of_its_tiles(dtype: Any) -> None:
    x, y = normal(100, dtype=dtype), normal(100, dtype=dtype)
    expected = (x + y) * x - y / dtype(3) + dtype(1.5)
    np.testing.assert_array_equal(agree(in_dtype, lambda: (x, y)), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_integer_arithmetic_wraps_as_in_numpy(dtype: Any) -> None:
    x, y = (whole(n, dtype=np.int64, low=-2000, high=2000).astype(dtype) for n in (100, 100))
    expected = np.minimum((x + y) * x - y, x) + np.maximum(x, dtype(3))
    np.testing.assert_array_equal(agree(in_integers, lambda: (x, y)), expected)


def test_conversions() -> None:
    x = normal(200) * 50
    h, b, d, n = agree(converted, lambda: (x,))
    np.testing.assert_array_equal(h, x.astype(np.float16))
    np.testing.assert_array_equal(b, x.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(d, x.astype(np.float64) * 3)
    np.testing.assert_array_equal(n, x.astype(np.int32))


# shapes


@kernel
def slices(x: In[f32, "16 32"], o: Out[f32, "16 32"]):
    t = x[...]
    o[0:8, :] = t[8:16, :] * 2
    o[8:16, 0:16] = t[0:8, 16:32]
    o[8:16, 16:32] = t[::2, 0:32:2]


@kernel
def shapes(x: In[f32, "16 32"], a: Out[f32, "32 16"], b: Out[f32, "8 64"], c: Out[f32, "16 4 32"]):
    t = x[...]
    a[...] = t.T
    b[...] = t.reshape(8, 64) + 1
    c[...] = broadcast_to(t[:, None, :], (16, 4, 32))


@kernel
def transposed_blocks(x: In[f32, "M N"], o: Out[f32, "N M"], *, bm=16, bn=32):
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        o[tile(j, bn), tile(i, bm)] = x[tile(i, bm), tile(j, bn)].T


@kernel
def through_a_view(x: In[f32, "M N"], o: Out[f32, "N M"]):
    with pipeline(cdiv(x.shape[0], 16)) as i:
        o[:, tile(i, 16)] = x.T[:, tile(i, 16)]


@kernel
def by_blocks(x: In[f32, "M N"], o: Out[f32, "M N"]):
    M, N = x.shape
    xs, os = x.blocks(16, 32), o.blocks(16, 32)
    with pipeline(cdiv(M, 16), cdiv(N, 32)) as (i, j):
        os[i, j] = xs[i, j] * 2


def test_slices_of_tiles() -> None:
    x = normal(16, 32)
    found = agree(slices, lambda: (x,))
    corner = np.concatenate([x[:8, 16:], x[::2, ::2]], 1)
    np.testing.assert_array_equal(found, np.concatenate([x[8:] * 2, corner]))


def test_reshape_transpose_and_broadcast() -> None:
    x = normal(16, 32)
    a, b, c = agree(shapes, lambda: (x,))
    np.testing.assert_array_equal(a, x.T)
    np.testing.assert_array_equal(b, x.reshape(8, 64) + 1)
    np.testing.assert_array_equal(c, np.repeat(x[:, None], 4, 1))


@pytest.mark.parametrize("transpose", [transposed_blocks, through_a_view], ids=["tiles", "view"])
@pytest.mark.parametrize("shape", [(16, 32), (37, 50), (1, 3)], ids=str)
def test_a_transpose_of_ragged_blocks(transpose: Any, shape: tuple[int, int]) -> None:
    x = normal(*shape)
    np.testing.assert_array_equal(agree(transpose, lambda: (x,)), x.T)


def test_blocks_are_a_view() -> None:
    x = normal(37, 50)
    np.testing.assert_array_equal(agree(by_blocks, lambda: (x,)), x * 2)


# windows


@kernel
def halo(x: In[f32, "N"], o: Out[f32, "N"], *, b=32):
    with pipeline(cdiv(x.shape[0], b)) as i:
        left, right = x[ds(i * b - 1, b)], x[ds(i * b + 1, b)]
        o[tile(i, b)] = left + 2 * x[tile(i, b)] + right


@kernel
def halo_2d(x: In[f32, "M N"], o: Out[f32, "M N"], *, b=16):
    M, N = x.shape
    with pipeline(cdiv(M, b), cdiv(N, b)) as (i, j):
        acc = zeros((b, b), f32)
        for di in unroll(range(-1, 2)):
            for dj in unroll(range(-1, 2)):
                acc += x[ds(i * b + di, b), ds(j * b + dj, b)]
        o[tile(i, b), tile(j, b)] = acc


@kernel
def edge_ones(x: In[f32, "N"], o: Out[f32, "N"], *, b=32):
    with pipeline(cdiv(x.shape[0], b)) as i:
        o[tile(i, b)] = load(x.at[ds(i * b - 3, b)], fill=1) * 2


@kernel
def every_third(x: In[f32, "N"], o: Out[f32, "cdiv(N,3)"], *, b=16):
    with pipeline(cdiv(o.shape[0], b)) as i:
        o[tile(i, b)] = x[ds(i * b * 3, b, 3)]


@kernel
def interleaved(x: In[f32, "N"], o: InOut[f32, "M"], *, b=16):
    with pipeline(cdiv(x.shape[0], b)) as i:
        o[ds(i * b * 2 + 1, b, step=2)] = x[tile(i, b)]


@kernel
def middles(x: In[f32, "A B C"], p: Out[f32, "A C"], *, b=8):
    A, B, C = x.shape
    with pipeline(cdiv(A, b)) as i:
        acc = zeros((b, 32), f32)
        with pipeline(B, stages=2) as j:
            acc += x[tile(i, b), j, 0:32]
        p[tile(i, b), 0:32] = acc


@kernel
def sums_of_planes(x: In[f32, "A B C"], o: Out[f32, "B C"], *, b=16):
    A, B, C = x.shape
    with pipeline(cdiv(B, b)) as j:
        acc = zeros((b, 32), f32)
        with pipeline(A, stages=2) as a:
            acc += x[a, tile(j, b), 0:32]
        o[tile(j, b), 0:32] = acc


@kernel
def rows_from_memory(x: In[f32, "M N"], at: In[i32, "R"], o: Out[f32, "R N"], *, bn=32):
    M, N = x.shape
    with pipeline(at.shape[0], cdiv(N, bn)) as (r, j):
        row = at[r]
        o[r, tile(j, bn)] = x[row, tile(j, bn)]


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
def test_halo_reads_see_zeros_outside(n: int) -> None:
    x = whole(n)
    p = np.pad(x, 1)
    np.testing.assert_array_equal(agree(halo, lambda: (x,)), p[:-2] + 2 * x + p[2:])


def test_halo_reads_in_two_dims() -> None:
    x = whole(20, 37)
    p = np.pad(x, 1)
    expected = sum(p[1 + a : 21 + a, 1 + b : 38 + b] for a in (-1, 0, 1) for b in (-1, 0, 1))
    np.testing.assert_array_equal(agree(halo_2d, lambda: (x,), targets=ONE), expected)


def test_a_fill_replaces_what_is_outside() -> None:
    x = whole(70)
    padded = np.concatenate([np.ones(3, np.float32), x])[:70]
    np.testing.assert_array_equal(agree(edge_ones, lambda: (x,)), padded * 2)


@pytest.mark.parametrize("n", [1, 48, 50])
def test_windows_with_steps(n: int) -> None:
    x = whole(n)
    made = agree(every_third, lambda: (x, np.zeros(-(-n // 3), np.float32)))
    np.testing.assert_array_equal(made, x[::3])
    expected = np.zeros(2 * n, np.float32)
    expected[1::2] = x
    found = agree(interleaved, lambda: (x, np.zeros(2 * n, np.float32)))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(3, 20, 30), (9, 16, 32), (1, 1, 1)], ids=str)
def test_windows_of_three_dims_drop_axes(shape: tuple[int, int, int]) -> None:
    x = whole(*shape)
    np.testing.assert_array_equal(agree(sums_of_planes, lambda: (x,)), x.sum(0))
    np.testing.assert_array_equal(agree(middles, lambda: (x,)), x.sum(1))


def test_starts_may_come_from_memory() -> None:
    x, at = normal(9, 50), np.array([3, 0, 8, 3, 5], np.int32)
    np.testing.assert_array_equal(agree(rows_from_memory, lambda: (x, at)), x[at])
