"""`split="stream"`: the steps of all tiles in equal parts, added in order."""

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
    zeros,
)
from astdsl.errors import BadPipeline
from tests.witnesses import agree

MULTIPROCESSORS = {"sm_90a": 132, "sm_100a": 148}


@kernel
def row_sums(x: In[i32, "M K"], o: Out[i32, "M"], *, bm=4, bk=8, first=0):
    M, K = x.shape
    with pipeline(cdiv(M, bm)) as i:
        total = zeros(bm, i32) + first
        with pipeline(cdiv(K, bk), split="stream") as k:
            total += x[tile(i, bm), tile(k, bk)].sum(1)
        o[tile(i, bm)] = total * 2


@pytest.mark.parametrize("shape", [(9, 11), (40, 200), (4, 8), (1, 5), (33, 0), (530, 8)])
def test_the_parts_of_all_tiles_add_up(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).integers(-99, 99, shape, dtype=np.int32)
    found = agree(row_sums, lambda: (x,), first=5)
    np.testing.assert_array_equal(found, (x.sum(1, dtype=np.int32) + 5) * 2)


def test_there_is_a_block_a_multiprocessor_and_no_more_than_steps() -> None:
    for target, most in MULTIPROCESSORS.items():
        for shape, steps in ((8, 16), 4), ((400, 80), most):
            report = row_sums.lower(np.zeros(shape, np.int32), target=target).explain()
            assert f"blocks: {steps} of " in report
            assert "stages automatic, streamed" in report


@kernel
def streamed(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, b_=64, bk=16, stages=3):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, b_), cdiv(N, b_)) as (i, j):
        acc = zeros((b_, b_), f32)
        with pipeline(cdiv(K, bk), split="stream", stages=stages) as k:
            acc += a[tile(i, b_), tile(k, bk)] @ b[tile(k, bk), tile(j, b_)]
        c[tile(i, b_), tile(j, b_)] = acc


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("shape", [(70, 700, 100), (64, 64, 64)])
def test_products_are_streamed(shape: tuple[int, int, int], stages: int) -> None:
    M, K, N = shape
    random = np.random.default_rng(1)
    a = random.integers(-4, 4, (M, K)).astype(np.float16)
    b = random.integers(-4, 4, (K, N)).astype(np.float16)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(agree(streamed, lambda: (a, b), stages=stages), expected)


@kernel
def floats(x: In[f32, "M K"], o: Out[f32, "M"]):
    M, K = x.shape
    with pipeline(range(2, M, 3)) as i:
        total = f32(0.5)
        with pipeline(range(K - 1, -1, -1), split="stream") as k:
            total += x[i, k]
        o[i] = total


@pytest.mark.parametrize("target", MULTIPROCESSORS)
def test_the_result_depends_on_shapes_and_target_alone(target: str) -> None:
    x = np.random.default_rng(2).random((11, 70), dtype=np.float32)
    expected, steps = np.zeros(11, np.float32), np.arange(3 * 70).reshape(3, 70)
    # The part that has each step of all.
    parts = ((steps + 1) * MULTIPROCESSORS[target] - 1) // (3 * 70)
    for tile_number, i in enumerate(range(2, 11, 3)):
        total = np.float32(0.5)
        for part in np.unique(parts[tile_number]):
            partial = np.float32(0)
            for value in x[i, ::-1][parts[tile_number] == part]:
                partial += value
            total += partial
        expected[i] = total
    for device in ("reference", "emulator"):
        o = np.zeros(11, np.float32)
        floats.on(device, target=target)(x, o)
        np.testing.assert_array_equal(o, expected)


@kernel
def two_sums(x: In[i32, "M N K"], o: Out[i32, "M N"], p: Out[i32, "M N"]):
    M, N, K = x.shape
    with parallel(M, N) as (i, j):
        a, b = i32(0), i32(1)
        with pipeline(K, split="stream") as k:
            a += x[i, j, k]
            b = x[i, j, k] * 2 + b
        with pipeline(range(1, K), split="stream") as k:
            a += x[i, j, k] * b
        with pipeline(K, split=2) as k:
            a += x[i, j, k]
        o[i, j] = a
        p[i, j] = b


def test_several_sums_and_several_streams_on_two_axes() -> None:
    x = np.random.default_rng(3).integers(-9, 9, (5, 7, 6), dtype=np.int32)
    o, p = agree(two_sums, lambda: (x,))
    b = x.sum(2, dtype=np.int32) * 2 + 1
    np.testing.assert_array_equal(p, b)
    rest = x[..., 1:].sum(2, dtype=np.int32)
    np.testing.assert_array_equal(o, x.sum(2, dtype=np.int32) * 2 + rest * b)


@kernel
def in_order(x: In[f32, "M K"], o: InOut[f32, "1"]):
    M, K = x.shape
    with pipeline(M, axes="sequential") as i:
        total = f32(0)
        with pipeline(K, split="stream") as k:
            total += x[i, k]
        o[0] = o[0] * 2 + total


def test_tiles_that_run_in_order_are_summed_by_blocks_of_their_own() -> None:
    x = np.random.default_rng(4).integers(-9, 9, (6, 5)).astype(np.float32)
    found = agree(in_order, lambda: (x, np.ones(1, np.float32)))
    expected = np.float32(1)
    for row in x:
        expected = expected * 2 + row.sum()
    np.testing.assert_array_equal(found, [expected])


def kernels_that_are_refused() -> list[tuple[Any, str]]:
    @kernel
    def triangle(x: In[f32, "M K"], o: Out[f32, "M"]):
        M, _ = x.shape
        with pipeline(M) as i:
            total = f32(0)
            with pipeline(i + 1, split="stream") as k:
                total += x[i, k]
            o[i] = total

    @kernel
    def from_memory(x: In[f32, "M K"], o: Out[f32, "M"]):
        M, _ = x.shape
        count = x[0, 0].astype(i32)
        with pipeline(M) as i:
            total = f32(0)
            with pipeline(count, split="stream") as k:
                total += x[i, k]
            o[i] = total

    @kernel
    def tiles_from_memory(x: In[f32, "M K"], o: InOut[f32, "M"]):
        _, K = x.shape
        with pipeline(x[0, 0].astype(i32)) as i:
            total = f32(0)
            with pipeline(K, split="stream") as k:
                total += x[i, k]
            o[i] = total

    return [
        (triangle, "number is not known"),
        (from_memory, "number is not known"),
        (tiles_from_memory, "number is not known"),
    ]


@pytest.mark.parametrize("device", ["reference", "emulator"])
@pytest.mark.parametrize(("refused", "message"), kernels_that_are_refused())
def test_what_cannot_be_streamed_is_refused(refused: Any, message: str, device: str) -> None:
    given: list[Any] = [np.ones((4, 8), np.float32)]
    if refused.__name__ == "tiles_from_memory":
        given.append(np.ones(4, np.float32))
    with pytest.raises(BadPipeline, match=message) as caught:
        refused.on(device)(*given)
    assert caught.value.places
    assert caught.value.help
