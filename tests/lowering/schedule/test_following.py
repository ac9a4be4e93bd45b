"""Rings that stay full across the steps of the pipeline around."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    In,
    InOut,
    Out,
    cdiv,
    f16,
    f32,
    i32,
    kernel,
    load,
    parallel,
    pipeline,
    tile,
    zeros,
)
from tests.witnesses import agree


@kernel
def prefixes(x: In[f32, "T K 64"], o: Out[f32, "T 64"], *, first=1, more=1, stages=3):
    T, K, _ = x.shape
    with pipeline(T, axes="sequential") as t:
        total = zeros(64, f32)
        with pipeline(min(K, max(0, first + t * more)), stages=stages) as k:
            total += x[t, k]
        o[t] = total


def sums_of_prefixes(x: Any, first: int, more: int) -> Any:
    counts = [max(0, first + t * more) for t in range(len(x))]
    return np.stack([x[t, :n].sum(0) for t, n in enumerate(counts)])


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("more", [-2, -1, 0, 1, 3])
def test_every_number_of_steps_follows_every_other(more: int, stages: int) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (5, 6, 64)).astype(np.float32)
    for first in range(7):
        options: dict[str, Any] = {
            "first": first,
            "more": more,
            "stages": stages,
            "emulate": first == 3,
        }
        found = agree(prefixes, lambda: (x,), targets=("sm_90a",), **options)
        np.testing.assert_array_equal(found, sums_of_prefixes(x, first, more))


@kernel
def row_of_products(
    a: In[f16, "T 64 K"], b: In[f16, "K 64"], c: Out[f32, "T 64 64"], *, first=0, more=1, stages=3
):
    T, _, K = a.shape
    with pipeline(T, axes="sequential") as t:
        acc = zeros((64, 64), f32)
        with pipeline(min(cdiv(K, 16), max(0, first + t * more)), stages=stages) as k:
            left = load(a.at[t, :, tile(k, 16)], stages=2)
            acc += left @ b[tile(k, 16)]
        c[t] = acc


@pytest.mark.parametrize(("first", "more"), [(0, 1), (3, -1), (2, 0)])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_products_follow_each_other(first: int, more: int, stages: int) -> None:
    random = np.random.default_rng(1)
    a = random.integers(-4, 4, (4, 64, 40)).astype(np.float16)
    b = random.integers(-4, 4, (40, 64)).astype(np.float16)
    found = agree(row_of_products, lambda: (a, b), first=first, more=more, stages=stages)
    widths = [min(3, max(0, first + t * more)) * 16 for t in range(4)]
    left, right = a.astype(np.float32), b.astype(np.float32)
    expected = [left[t, :, :n] @ right[:n] for t, n in enumerate(widths)]
    np.testing.assert_array_equal(found, np.stack(expected))


@kernel
def two_inside(x: In[f32, "T K 64"], o: Out[f32, "T 64"]):
    T, K, _ = x.shape
    with parallel(1), pipeline(T) as t:
        total = zeros(64, f32)
        with pipeline(K, stages=3) as k:
            total += x[t, k]
        with pipeline(range(1, K), stages=2) as k:
            total *= 2
            total += x[t, k]
        o[t] = total


def test_several_pipelines_of_one_step_have_rings_of_their_own() -> None:
    x = np.random.default_rng(2).integers(-3, 3, (4, 5, 64)).astype(np.float32)
    expected = x.sum(1)
    for k in range(1, 5):
        expected = expected * 2 + x[:, k]
    np.testing.assert_array_equal(agree(two_inside, lambda: (x,)), expected)


def kernels_that_drain() -> list[Any]:
    @kernel
    def from_memory(x: In[f32, "T K 64"], counts: In[i32, "T"], o: Out[f32, "T 64"]):
        with pipeline(x.shape[0], axes="sequential") as t:
            total = zeros(64, f32)
            with pipeline(counts[t], stages=3) as k:
                total += x[t, k]
            o[t] = total

    @kernel
    def in_a_branch(x: In[f32, "T K 64"], counts: In[i32, "T"], o: Out[f32, "T 64"]):
        with pipeline(x.shape[0], axes="sequential") as t:
            total = zeros(64, f32)
            if counts[t] > 1:
                with pipeline(x.shape[1], stages=3) as k:
                    total += x[t, k]
            o[t] = total

    @kernel
    def written(x: InOut[f32, "T K 64"], counts: In[i32, "T"], o: Out[f32, "T 64"]):
        with pipeline(x.shape[0], axes="sequential") as t:
            total = zeros(64, f32)
            with pipeline(x.shape[1], stages=3) as k:
                total += x[t, k] * counts[t]
            o[t] = total
            x[t, 0] = total

    return [from_memory, in_a_branch, written]


@pytest.mark.parametrize("drained", kernels_that_drain())
def test_what_is_not_known_ahead_is_loaded_in_its_execution(drained: Any) -> None:
    x = np.random.default_rng(3).integers(-3, 3, (4, 5, 64)).astype(np.float32)
    counts = np.array([2, 0, 5, 1], np.int32)
    agree(drained, lambda: (x.copy(), counts))
    assert "issued" not in drained.lower(x, counts).schedule
    assert "issued" in prefixes.lower(x).schedule
