"""Schedules that are easily wrong, and numbers at their edges, on every witness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from astdsl import (
    In,
    InOut,
    Out,
    bf16,
    cdiv,
    ceil,
    ds,
    exp,
    f16,
    f32,
    f64,
    floor,
    full,
    i32,
    i64,
    isinf,
    isnan,
    kernel,
    maximum,
    minimum,
    pipeline,
    sqrt,
    tanh,
    tile,
    u8,
    where,
    zeros,
)
from tests.witnesses import agree

Array = np.ndarray[Any, Any]


def w(*shape: int, d: Any = np.float32) -> Array:
    """Return small whole numbers, the same for each shape."""
    return np.random.default_rng(0).integers(-9, 10, shape).astype(d)


@kernel
def write_two(x: In[f32, "R N"], o: InOut[f32, "R N"], *, S=3):
    R, N = x.shape
    with pipeline(1):
        with pipeline(range(0, R - 1, 2), stages=S) as r:
            o[r, 0:64] = x[r, 0:64]
            o[r + 1, 0:64] = x[r + 1, 0:64] * 2


@kernel
def revisit_guarded(x: In[f32, "R N"], o: Out[f32, "N"]):
    R, N = x.shape
    with pipeline(cdiv(N, 16), R, stages=2) as (j, r):
        out = o.at[tile(j, 16)]
        if r == 0:
            out[...] = zeros((16,), f32)
        if r % 2 == 0:
            out[...] += x[r, tile(j, 16)]


@kernel
def revisit_max(x: In[f32, "R N"], o: Out[f32, "N", -1000]):
    R, N = x.shape
    with pipeline(cdiv(N, 16), R, stages=2) as (j, r):
        o[tile(j, 16)] = maximum(o[tile(j, 16)], x[r, tile(j, 16)])


@kernel
def carry_index(x: In[f32, "R N"], o: Out[f32, "R N"], p: Out[i32, "R"]):
    R, N = x.shape
    with pipeline(1):
        pos = 0
        with pipeline(R, stages=3) as r:
            o[pos, 0:64] = x[r, 0:64]
            p[r] = pos
            pos = (pos + 1) % R


@kernel
def carried_window(x: In[f32, "R N"], o: Out[f32, "R N"]):
    R, N = x.shape
    with pipeline(1):
        pos = R - 1
        with pipeline(R, stages=3) as r:
            o[r, 0:64] = x[pos, 0:64]
            pos -= 1


@kernel
def prefetch_by_hand(x: In[f32, "R N"], o: Out[f32, "R N"]):
    R, N = x.shape
    with pipeline(1):
        nxt = x[0, 0:64]
        with pipeline(R, stages=2) as r:
            cur = nxt
            nxt = x[r + 1, 0:64]
            o[r, 0:64] = cur + nxt


@kernel
def three_level(x: In[f32, "R N"], o: Out[f32, "R N"]):
    R, N = x.shape
    with pipeline(cdiv(N, 32)) as j:
        with pipeline(cdiv(R, 4), stages=2) as a:
            t = x[tile(a, 4), tile(j, 32)]
            with pipeline(4, stages=2) as b:
                t = t + x[b, tile(j, 32)]
            o[tile(a, 4), tile(j, 32)] = t


@kernel
def matmul_loop(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"]):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, 32)) as i:
        for j in range(cdiv(N, 32)):
            acc = zeros((32, 32), f32)
            with pipeline(cdiv(K, 16), stages=2) as k:
                acc += a[tile(i, 32), tile(k, 16)] @ b[tile(k, 16), tile(j, 32)]
            o[tile(i, 32), tile(j, 32)] = acc


@kernel
def attention(q: In[f16, "64 64"], o: Out[f32, "64 64"]):
    s = q[...] @ q[...].T
    s = s * 0.01
    e = exp(s - s.max(axis=1, keepdims=True))
    p = (e / e.sum(axis=1, keepdims=True)).astype(f16)
    o[...] = p @ q[...]


@kernel
def flash(q: In[f16, "M 64"], o: Out[f32, "M 64"]):
    M, _ = q.shape
    with pipeline(cdiv(M, 64)) as i:
        qi = q[tile(i, 64), :]
        m = full((64, 1), -1e30, f32)
        den = zeros((64, 1), f32)
        acc = zeros((64, 64), f32)
        with pipeline(cdiv(M, 32), stages=2) as j:
            kj = q[tile(j, 32), :]
            s = (qi @ kj.T) * 0.01
            mn = maximum(m, s.max(axis=1, keepdims=True))
            p = exp(s - mn)
            c = exp(m - mn)
            den = den * c + p.sum(axis=1, keepdims=True)
            acc = acc * c + p.astype(f16) @ kj
            m = mn
        o[tile(i, 64), :] = acc / den


@kernel
def special(
    x: In[f32, "N"],
    a: Out[f16, "N"],
    b: Out[bf16, "N"],
    c: Out[f32, "N"],
    d: Out[bool, "N"],
    e: Out[f32, "N"],
    g: Out[f32, "N"],
):
    t = x[0:16]
    a[0:16] = t
    b[0:16] = t
    c[0:16] = minimum(t, 0.0) + maximum(-t, -0.0)
    d[0:16] = isnan(t) | isinf(t)
    e[0:16] = sqrt(t)
    g[0:16] = t.astype(f16).astype(f32) * t


@kernel
def rounding(
    x: In[f32, "N"], a: Out[f32, "N"], b: Out[f32, "N"], c: Out[f32, "N"], d: Out[i64, "N"]
):
    t = x[0:8]
    a[0:8] = round(t)
    b[0:8] = floor(t)
    c[0:8] = ceil(t)
    d[0:8] = t.astype(i64)


@kernel
def int_edges(
    x: In[i32, "N"],
    y: In[i32, "N"],
    a: Out[i32, "N"],
    b: Out[i32, "N"],
    c: Out[i32, "N"],
    d: Out[i32, "N"],
):
    p, q = x[0:4], y[0:4]
    a[0:4] = p // q
    b[0:4] = p % q
    c[0:4] = abs(p)
    d[0:4] = p * q


@kernel
def i64s(x: In[i64, "N"], a: Out[i64, "N"], b: Out[i32, "N"], c: Out[f32, "N"], d: Out[f64, "N"]):
    p = x[0:4]
    a[0:4] = p * 3 + (p >> 5)
    b[0:4] = p.astype(i32)
    c[0:4] = p.astype(f32)
    d[0:4] = p.astype(f64)


@kernel
def u8s(x: In[u8, "N"], a: Out[u8, "N"], b: Out[i32, "N"], c: Out[f32, "N"], d: Out[u8, "N"]):
    p = x[0:256]
    a[0:256] = p * 3 - 7
    b[0:256] = p.astype(i32) - 200
    c[0:256] = p / 3
    d[0:256] = (p >> 3) | (p << 2)


@kernel
def reduce_two_axes(x: In[f32, "A B C"], o: Out[f32, "B"]):
    o[0:8] = x[0:8, 0:8, 0:16].sum(axis=(0, 2))


@kernel
def two_outputs_two_windows(
    x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"], p: Out[f32, "N M"]
):
    M, N = x.shape
    with pipeline(cdiv(M, 16), cdiv(N, 8)) as (i, j):
        t = x[tile(i, 16), tile(j, 8)]
        o[tile(i, 16), tile(j, 8)] = t + y[tile(i, 16), tile(j, 8)]
        p[tile(j, 8), tile(i, 16)] = t.T


@kernel
def same_array_twice(x: In[f32, "M M"], o: Out[f32, "M M"]):
    M, _ = x.shape
    with pipeline(cdiv(M, 16), cdiv(M, 16)) as (i, j):
        o[tile(i, 16), tile(j, 16)] = x[tile(i, 16), tile(j, 16)] + x[tile(j, 16), tile(i, 16)].T


@kernel
def tree(x: In[f32, "N"], o: Out[f32, "1"]):
    t = x[0:128].filled(-1000)
    n = 64
    while n >= 1:
        t = maximum(t[:n], t[n : 2 * n])
        n //= 2
    o[0] = t[0]


@kernel
def runtime_rows(x: In[f32, "M N"], rows: i32, o: Out[f32, "N"]):
    M, N = x.shape
    with pipeline(cdiv(N, 16)) as j:
        acc = zeros((16,), f32)
        with pipeline(min(rows, M), stages=3) as r:
            acc += x[r, tile(j, 16)]
        o[tile(j, 16)] = acc


@kernel
def gathered_rows(x: In[f32, "M N"], at: In[i32, "R"], o: Out[f32, "N"]):
    M, N = x.shape
    (R,) = at.shape
    with pipeline(cdiv(N, 32)) as j:
        acc = zeros((32,), f32)
        with pipeline(R, stages=2) as r:
            acc += x[at[r], tile(j, 32)]
        o[tile(j, 32)] = acc


@kernel
def gelu(x: In[f32, "M N"], o: Out[f32, "M N"]):
    M, N = x.shape
    with pipeline(cdiv(M, 8)) as i:
        t = x[tile(i, 8), 0:64]
        o[tile(i, 8), 0:64] = 0.5 * t * (1 + tanh(0.79788456 * (t + 0.044715 * t**3)))


@kernel
def game_of_life(x: In[f32, "M N"], o: Out[f32, "M N"], *, b=16):
    M, N = x.shape
    with pipeline(cdiv(M, b), cdiv(N, b)) as (i, j):
        alive = x[tile(i, b), tile(j, b)] > 0
        n = sum(
            (x[ds(i * b + a, b), ds(j * b + c, b)] > 0).astype(i32)
            for a in (-1, 0, 1)
            for c in (-1, 0, 1)
            if (a, c) != (0, 0)
        )
        o[tile(i, b), tile(j, b)] = where((n == 3) | (alive & (n == 2)), 1, 0)


CASES: dict[Any, tuple[Callable[[], tuple[Any, ...]], Any, float]] = {
    write_two: (
        lambda: (
            w(12, 64),
            np.zeros((12, 64), np.float32),
        ),
        lambda: None,
        0.0,
    ),
    revisit_guarded: (lambda: (w(6, 64),), lambda: w(6, 64)[::2].sum(0), 0.0),
    revisit_max: (lambda: (w(6, 64),), lambda: w(6, 64).max(0), 0.0),
    carry_index: (lambda: (w(6, 64),), lambda: None, 0.0),
    carried_window: (lambda: (w(6, 64),), lambda: w(6, 64)[np.arange(6)[::-1]], 0.0),
    prefetch_by_hand: (lambda: (w(8, 64),), lambda: None, 0.0),
    three_level: (lambda: (w(8, 64),), lambda: None, 0.0),
    matmul_loop: (
        lambda: (
            w(64, 64, d=np.float16),
            w(64, 64, d=np.float16),
        ),
        lambda: None,
        0.0,
    ),
    attention: (lambda: (w(64, 64, d=np.float16),), lambda: None, 1e-2),
    flash: (lambda: (w(70, 64, d=np.float16),), lambda: None, 1e-2),
    special: (
        lambda: (
            np.array(
                [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 65504, 65520, 2049, 2051], np.float32
            ),
        ),
        lambda: None,
        0.0,
    ),
    rounding: (
        lambda: (np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e10, 3.49999], np.float32),),
        lambda: None,
        0.0,
    ),
    int_edges: (
        lambda: (
            np.array([-(2**31), 2**31 - 1, -7, 7], np.int32),
            np.array([-1, -1, 2, -2], np.int32),
        ),
        lambda: None,
        0.0,
    ),
    i64s: (lambda: (np.array([2**63 - 1, -(2**63), 5, 1 << 40], np.int64),), lambda: None, 0.0),
    u8s: (lambda: (np.arange(256, dtype=np.uint8),), lambda: None, 0.0),
    reduce_two_axes: (lambda: (w(5, 7, 9),), lambda: w(5, 7, 9).sum((0, 2)), 0.0),
    two_outputs_two_windows: (
        lambda: (
            w(40, 24),
            w(40, 24),
        ),
        lambda: None,
        0.0,
    ),
    same_array_twice: (lambda: (w(64, 64),), lambda: w(64, 64) + w(64, 64).T, 0.0),
    tree: (lambda: (w(100),), lambda: w(100).max() * np.ones(1), 0.0),
    runtime_rows: (
        lambda: (
            w(20, 40),
            7,
        ),
        lambda: w(20, 40)[:7].sum(0),
        0.0,
    ),
    gathered_rows: (
        lambda: (
            w(4, 64),
            np.array([3, 0, 2], np.int32),
        ),
        lambda: w(4, 64)[[3, 0, 2]].sum(0),
        0.0,
    ),
    gelu: (lambda: (w(64, 64),), lambda: None, 1e-5),
    game_of_life: (lambda: (w(30, 30),), lambda: None, 0.0),
}


@pytest.mark.parametrize("program", CASES, ids=lambda k: k.__name__)
def test_all_witnesses_agree(program: Any) -> None:
    arguments, expected, tolerance = CASES[program]
    found = agree(program, arguments, tolerance=tolerance)
    if expected() is not None:
        np.testing.assert_allclose(found, expected(), rtol=1e-6)
