"""`split=n`: parts of a sum on blocks of their own, added in order."""

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
    parallel,
    pipeline,
    tile,
    warpgroup_id,
    zeros,
)
from astdsl.errors import BadPipeline
from tests.witnesses import agree


@kernel
def row_sums(x: In[i32, "M K"], o: Out[i32, "M"], *, bm=16, bk=32, n=3, first=0):
    M, K = x.shape
    with pipeline(cdiv(M, bm)) as i:
        total = zeros(bm, i32) + first
        with pipeline(cdiv(K, bk), split=n) as k:
            total += x[tile(i, bm), tile(k, bk)].sum(1)
        o[tile(i, bm)] = total * 2


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(40, 200), (16, 32), (1, 5), (33, 0)])
def test_the_parts_of_a_sum_add_up(n: int, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).integers(-99, 99, shape, dtype=np.int32)
    found = agree(row_sums, lambda: (x,), n=n, first=5)
    np.testing.assert_array_equal(found, (x.sum(1, dtype=np.int32) + 5) * 2)


def test_every_part_is_a_block_of_its_own() -> None:
    x = np.zeros((64, 256), np.int32)
    lowered = row_sums.lower(x, n=4)
    assert lowered.schedule.count("Launch ") == 2
    assert row_sums.lower(x, n=1).schedule.count("Launch ") == 1


@kernel
def split_k(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, b_=64, bk=32, n=4):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, b_), cdiv(N, b_)) as (i, j):
        acc = zeros((b_, b_), f32)
        with pipeline(cdiv(K, bk), split=n, stages=3) as k:
            acc += a[tile(i, b_), tile(k, bk)] @ b[tile(k, bk), tile(j, b_)]
        c[tile(i, b_), tile(j, b_)] = acc


@pytest.mark.parametrize("shape", [(70, 300, 100), (64, 64, 64)])
def test_a_product_is_split_along_its_sum(shape: tuple[int, int, int]) -> None:
    M, K, N = shape
    random = np.random.default_rng(1)
    a = random.integers(-4, 4, (M, K)).astype(np.float16)
    b = random.integers(-4, 4, (K, N)).astype(np.float16)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(agree(split_k, lambda: (a, b)), expected)


@kernel
def floats(x: In[f32, "M K"], o: Out[f32, "M"], *, n=4):
    M, K = x.shape
    with pipeline(range(2, M, 3)) as i:
        total = f32(0.5)
        with pipeline(range(K - 1, -1, -1), split=n) as k:
            total += x[i, k]
        o[i] = total


def test_the_result_depends_on_the_number_of_parts_alone() -> None:
    x = np.random.default_rng(2).random((11, 37), dtype=np.float32)
    o = np.zeros(11, np.float32)
    floats(x, o)
    expected = np.zeros(11, np.float32)
    for i in range(2, 11, 3):
        backwards, total = x[i, ::-1], np.float32(0.5)
        for part in range(4):
            partial = np.float32(0)
            for value in backwards[37 * part // 4 : 37 * (part + 1) // 4]:
                partial += value
            total += partial
        expected[i] = total
    np.testing.assert_array_equal(o, expected)
    by_reference = np.zeros(11, np.float32)
    floats.on("reference")(x, by_reference)
    np.testing.assert_array_equal(by_reference, expected)


@kernel
def two_sums(x: In[i32, "M K"], o: Out[i32, "M"], p: Out[i32, "M"]):
    M, K = x.shape
    with parallel(M) as i:
        a, b = i32(0), i32(1)
        with pipeline(K, split=2) as k:
            a += x[i, k]
            b = x[i, k] * 2 + b
        with pipeline(K, split=3) as k:
            a += x[i, k] * b
        o[i] = a
        p[i] = b


def test_several_sums_and_several_split_pipelines() -> None:
    x = np.random.default_rng(3).integers(-9, 9, (6, 17), dtype=np.int32)
    o, p = agree(two_sums, lambda: (x,))
    b = x.sum(1, dtype=np.int32) * 2 + 1
    np.testing.assert_array_equal(p, b)
    np.testing.assert_array_equal(o, x.sum(1, dtype=np.int32) * (1 + b))


@kernel(warpgroups=2)
def of_warpgroups(x: In[f32, "M K"], o: Out[f32, "M"], *, n):
    M, K = x.shape
    with parallel(M) as i:
        if warpgroup_id() == 0:
            total = f32(0)
            with pipeline(K, split=n) as k:
                total += x[i, k]
            o[i] = total


def kernels_that_are_refused() -> list[tuple[Any, str]]:
    @kernel
    def largest(x: In[f32, "M K"], o: Out[f32, "M"], *, n):
        M, K = x.shape
        with pipeline(M) as i:
            best = f32(0)
            with pipeline(K, split=n) as k:
                best = max(best, x[i, k])
            o[i] = best

    @kernel
    def outermost(x: In[f32, "M K"], o: Out[f32, "1"], *, n):
        M, _ = x.shape
        total = f32(0)
        with pipeline(M, split=n) as i:
            total += x[i, 0]
        o[0] = total

    @kernel
    def two_axes(x: In[f32, "M K"], o: Out[f32, "M"], *, n):
        M, K = x.shape
        with pipeline(M) as i:
            total = f32(0)
            with pipeline(K, 2, split=n) as (k, _):
                total += x[i, k]
            o[i] = total

    @kernel
    def in_a_loop(x: In[f32, "M K"], o: Out[f32, "M"], *, n):
        M, K = x.shape
        with pipeline(M) as i:
            total = f32(0)
            for _ in range(M):
                with pipeline(K, split=n) as k:
                    total += x[i, k]
            o[i] = total

    @kernel
    def storing(x: In[f32, "M K"], o: Out[f32, "M K"], *, n):
        M, K = x.shape
        with pipeline(M) as i, pipeline(K, split=n) as k:
            o[i, k] = x[i, k]

    @kernel
    def reading_what_it_writes(x: InOut[f32, "M K"], *, n):
        M, K = x.shape
        with pipeline(M) as i:
            total = f32(0)
            with pipeline(K, split=n) as k:
                total += x[i, k]
            x[i, 0] = total

    @kernel
    def carrying(x: In[f32, "M K"], o: Out[f32, "M"], *, n):
        M, K = x.shape
        total = f32(0)
        with pipeline(M) as i:
            with pipeline(K, split=n) as k:
                total += x[i, k]
            o[i] = total

    return [
        (of_warpgroups, "written for warpgroups"),
        (largest, "not only added to"),
        (outermost, "outermost pipeline"),
        (two_axes, "one axis"),
        (in_a_loop, "inside a branch or loop"),
        (storing, "changes memory"),
        (reading_what_it_writes, "which its step writes"),
        (carrying, "carries values"),
    ]


@pytest.mark.parametrize("n", [2, "stream"])
@pytest.mark.parametrize("device", ["reference", "emulator"])
@pytest.mark.parametrize(("refused", "message"), kernels_that_are_refused())
def test_what_cannot_be_split_is_refused(
    refused: Any, message: str, device: str, n: int | str
) -> None:
    with pytest.raises(BadPipeline, match=message) as caught:
        refused.on(device)(np.ones((4, 8), np.float32), n=n)
    assert caught.value.places
    assert caught.value.help


@pytest.mark.parametrize("n", [0, "many"])
def test_split_is_a_number_of_parts(n: object) -> None:
    with pytest.raises(BadPipeline, match="`split"):
        row_sums(np.ones((4, 8), np.int32), n=n)
