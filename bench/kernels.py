"""The kernels that are measured, as plain functions: each measurement makes its own `Kernel`."""

# Annotations of kernels are arrays, which a type checker takes for no types.

from __future__ import annotations

import math

from astdsl import In, Out, cdiv, dot, erf, exp, f16, f32, pipeline, tile, zeros


def add(x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"], *, bm=64, bn=64):
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        o[tile(i, bm), tile(j, bn)] = x[tile(i, bm), tile(j, bn)] + y[tile(i, bm), tile(j, bn)]


def matmul(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, bm=128, bn=128, bk=64):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=4) as k:
            acc += a[tile(i, bm), tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]
        c[tile(i, bm), tile(j, bn)] = acc


def matmul_of_rows(
    a: In["M K"], b: In["N K"], c: Out["M N"], *, bm=128, bn=128, bk=64, stages=4, precision=None
):
    M, K = a.shape
    N, _ = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), c.dtype)
        with pipeline(cdiv(K, bk), stages=stages) as k:
            x, y = a[tile(i, bm), tile(k, bk)], b[tile(j, bn), tile(k, bk)].T
            acc = dot(x, y, acc, precision=precision)
        c[tile(i, bm), tile(j, bn)] = acc


def matmul_gelu(
    a: In["M K"], b: In["N K"], bias: In[f32, "N"], c: Out[f16, "M N"], *, bm=128, bn=128, bk=64
):
    M, K = a.shape
    N, _ = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=4) as k:
            acc += a[tile(i, bm), tile(k, bk)] @ b[tile(j, bn), tile(k, bk)].T
        x = acc + bias[tile(j, bn)]
        c[tile(i, bm), tile(j, bn)] = 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def matmul_streamed(a: In["M K"], b: In["K N"], c: Out[f16, "M N"], *, bm=128, bn=128, bk=64):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), split="stream") as k:
            acc += a[tile(i, bm), tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]
        c[tile(i, bm), tile(j, bn)] = acc


def softmax(x: In[f32, "M N"], o: Out[f32, "M N"], *, bm=4, bn=1024):
    M, N = x.shape
    assert bn >= N, "a tile holds a whole row"
    with pipeline(cdiv(M, bm)) as i:
        rows = x[tile(i, bm), tile(0, bn)]
        e = exp(rows - rows.max(axis=1, keepdims=True))
        o[tile(i, bm), tile(0, bn)] = e * (1 / e.sum(axis=1, keepdims=True))


def row_sums(x: In[f32, "M N"], o: Out[f32, "M"], *, bm=8, bn=1024):
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        total = zeros(bm, f32)
        with pipeline(cdiv(N, bn)) as j:
            total += x[tile(i, bm), tile(j, bn)].sum(axis=1)
        o[tile(i, bm)] = total


def column_sums(x: In[f32, "M N"], o: Out[f32, "N"], *, bm=64, bn=128):
    M, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        total = zeros(bn, f32)
        with pipeline(cdiv(M, bm)) as i:
            total += x[tile(i, bm), tile(j, bn)].sum(axis=0)
        o[tile(j, bn)] = total
