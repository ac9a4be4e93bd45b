"""Operands of products in registers, what products are added to, and several matrices."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl import (
    In,
    Out,
    cdiv,
    dot,
    exp2,
    f16,
    f32,
    full,
    kernel,
    maximum,
    pipeline,
    spec,
    tile,
    zeros,
)
from tests.arrays import factors, product
from tests.witnesses import TARGETS, agree


@kernel
def attention(
    q: In[f16, "S D"], k: In[f16, "T D"], v: In[f16, "T D"], o: Out[f32, "S D"], *, bq=64
):
    S, D = q.shape
    T, _ = k.shape
    with pipeline(cdiv(S, bq)) as i:
        queries = q[tile(i, bq), 0:D]
        most, total = full((bq,), -1e30, f32), zeros((bq,), f32)
        acc = zeros((bq, D), f32)
        with pipeline(cdiv(T, 64), stages=2) as j:
            scores = (queries @ k[tile(j, 64), 0:D].T) * 0.125
            higher = maximum(most, scores.max(axis=1))
            weights = exp2((scores - higher[:, None]) * 1.44269504)
            shrink = exp2((most - higher) * 1.44269504)
            total = total * shrink + weights.sum(axis=1)
            acc = acc * shrink[:, None] + weights.astype(f16) @ v[tile(j, 64), 0:D]
            most = higher
        o[tile(i, bq), 0:D] = acc / total[:, None]


def test_weights_are_multiplied_from_their_registers() -> None:
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((128, 64)).astype(np.float16) for _ in range(3))
    found = agree(attention, lambda: (q, k, v), tolerance=2e-3)
    scores = product(q, k.T) * 0.125
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = weights / weights.sum(axis=1, keepdims=True) @ v.astype(np.float32)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    schedule = attention.lower(*[spec((128, 64), f16)] * 3, target="sm_90a").schedule
    assert "operand of @" not in schedule


@pytest.mark.parametrize(("bq", "depth"), [(64, 64), (128, 64), (64, 128), (128, 128)])
def test_attention_takes_no_spills_and_is_not_serialised(bq: int, depth: int) -> None:
    arguments = [spec((1024, depth), f16)] * 3
    resources = attention.lower(*arguments, target="sm_90a", bq=bq).resources
    assert (resources.spill_bytes, resources.messages) == (0, ())


@kernel
def computed(a: In["M K"], b: In["K N"], c: Out["M N"], *, bm=64, bk=64):
    _, K = a.shape
    _, N = b.shape
    acc = zeros((bm, N), c.dtype)
    with pipeline(cdiv(K, bk), stages=2) as k:
        acc += (a[0:bm, tile(k, bk)] + a[0:bm, tile(k, bk)]) @ b[tile(k, bk), 0:N]
    c[0:bm, 0:N] = acc


KINDS = [(np.float16, np.float32), (ml_dtypes.float8_e4m3fn, np.float32), (np.int8, np.int32)]


@pytest.mark.parametrize("bk", [64, 20])
@pytest.mark.parametrize("bm", [64, 40])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: np.dtype(kind[0]).name)
def test_an_operand_is_computed_in_every_step(kind: Any, bm: int, bk: int) -> None:
    a, b = factors(kind[0], bm, 144), factors(kind[0], 144, 32)
    found = agree(computed, lambda: (a, b, np.zeros((bm, 32), kind[1])), bm=bm, bk=bk)
    np.testing.assert_array_equal(found, 2 * a.astype(np.float64) @ b.astype(np.float64))


@kernel
def two_summands(
    a: In[f16, "64 32"], b: In[f16, "32 64"], c: Out[f32, "64 64"], d: Out[f32, "64 64"]
):
    x, y = a[...], b[...]
    c[...] = x @ y + x @ y
    sums = x @ y
    d[...] = sums + 1
    if c.shape[0] > 0:
        d[...] = sums * 2


def test_products_are_added_to_each_other() -> None:
    a, b = factors(np.float16, 64, 32), factors(np.float16, 32, 64)
    c, d = agree(two_summands, lambda: (a, b))
    np.testing.assert_array_equal(c, 2 * product(a, b))
    np.testing.assert_array_equal(d, 2 * product(a, b))


@kernel
def in_half(a: In["M K"], b: In["K N"], c: Out[f16, "M N"]):
    _, K = a.shape
    acc = zeros((64, 64), f16)
    with pipeline(cdiv(K, 32), stages=3) as k:
        acc = dot(a[0:64, tile(k, 32)], b[tile(k, 32), 0:64], acc)
    c[0:64, 0:64] = acc


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.float8_e4m3fn])
def test_an_f16_accumulator_sums_in_f16(dtype: Any) -> None:
    a, b = factors(dtype, 64, 96), factors(dtype, 96, 64)
    np.testing.assert_array_equal(agree(in_half, lambda: (a, b)), product(a, b))
    for target in TARGETS:
        lowered = in_half.lower(spec((64, 64), f16), spec((64, 64), f16), target=target)
        assert any("AllocAccumulator" in x and "f16" in x for x in lowered.schedule.splitlines())
        assert (lowered.resources.spill_bytes, lowered.resources.messages) == (0, ())


@kernel
def windows_of_batches(a: In["B M K"], b: In["B K N"], c: Out[f32, "B M N"], *, bm=64, bk=32):
    B, M, K = a.shape
    _, _, N = b.shape
    with pipeline(B, cdiv(M, bm)) as (n, i):
        acc = zeros((bm, N), f32)
        with pipeline(cdiv(K, bk), stages=2) as k:
            acc += a[n, tile(i, bm), tile(k, bk)] @ b[n, tile(k, bk), 0:N]
        c[n, tile(i, bm), 0:N] = acc


@kernel
def tiles_of_batches(a: In["..."], b: In["..."], c: Out[f32, "2 32 32"]):
    c[...] = a[...] @ b[...]


@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_windows_with_an_index_in_front_are_matrices(dtype: Any) -> None:
    a, b = (
        factors(dtype, 3, 72, 48).astype(np.float16),
        factors(dtype, 3, 48, 64).astype(np.float16),
    )
    np.testing.assert_array_equal(agree(windows_of_batches, lambda: (a, b)), product(a, b))


SHAPES = [
    ((2, 32, 16), (2, 16, 32)), ((2, 32, 16), (16, 32)), ((32, 16), (2, 16, 32)),
    ((1, 32, 16), (2, 16, 32)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_leading_axes_are_matrices_side_by_side(shapes: Any) -> None:
    a, b = (factors(np.float16, *shape) for shape in shapes)
    np.testing.assert_array_equal(agree(tiles_of_batches, lambda: (a, b)), product(a, b))
