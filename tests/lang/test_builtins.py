"""What Python's builtins mean in a kernel, and numbers that take the dtype of what they meet."""

from __future__ import annotations

# Annotations of kernels are arrays, which a type checker takes for no types.
import math
from typing import Any

import numpy as np
import pytest

import astdsl
from astdsl import (
    In,
    InOut,
    Out,
    cdiv,
    ds,
    f16,
    f32,
    i32,
    kernel,
    parallel,
    pipeline,
    tile,
    unroll,
    zeros,
)
from astdsl.errors import BadPipeline

X = np.array([7, -9, 5, 4, 2], np.int32)


@kernel
def extremes(x: In[i32, "N"], o: Out[i32, "6"]):
    t = x[...]
    o[0] = min(t)
    o[1] = max(t)
    o[2] = min(t[0], 3)
    o[3] = max(t[1], t[2], 6)
    o[4] = min([t[0], t[2], 9])
    o[5] = min(max(t[1], -3), 3)


def test_min_and_max_reduce_one_tile_and_compare_several_operands() -> None:
    assert extremes.on("reference")(X).tolist() == [-9, 7, 3, 6, 5, -3]


@kernel
def sums(x: In[i32, "N"], o: Out[i32, "4"]):
    t = x[...]
    o[0] = sum(t)
    o[1] = sum([t[0], t[1], 100])
    o[2] = abs(t[1]) + len(t) + len(x)
    o[3] = pow(t[2], 2) + t[3] ** 2


def test_sum_adds_the_elements_of_a_tile_or_the_values_of_a_list() -> None:
    assert sums.on("reference")(X).tolist() == [9, 98, 19, 41]


@kernel
def divided(x: In[i32, "N"], o: Out[i32, "5"]):
    quotient, remainder = divmod(x[1], 4)
    o[0] = quotient
    o[1] = remainder
    o[2] = divmod(23, x[2])[1]
    o[3] = int(x[0] / 2)
    o[4] = int(float(x[1]) / 2) + int(x[2])


def test_divmod_rounds_down_and_int_towards_zero() -> None:
    assert divided.on("reference")(X).tolist() == [-3, 3, 3, 3, 1]


@kernel
def truths(x: In[i32, "N"], o: Out[i32, "5"]):
    t = x[...]
    o[0] = any(t > 6)
    o[1] = all(t > -9)
    o[2] = any([t[0] > 100, t[1] < 0])
    o[3] = all([t[0] > 100, t[1] < 0])
    o[4] = bool(t[0]) & (not bool(t[1] + 9))


def test_any_and_all_take_tiles_and_lists() -> None:
    assert truths.on("reference")(X).tolist() == [1, 0, 1, 0, 1]


@kernel
def same_names(x: In[i32, "N"], o: Out[i32, "8"]):
    t = x[...]
    parts = {"a": t[0], "b": t[1]}
    o[0] = astdsl.sum([t[0], t[1], 100])
    o[1] = astdsl.sum(parts.values(), t[2])
    o[2] = astdsl.any([t[0] > 100, t[1] < 0])
    o[3] = astdsl.all(v > 100 for v in parts.values())
    o[4] = astdsl.max([t[0], t[1]])
    o[5] = any(v < 0 for v in parts.values())
    o[6] = all({1: t[0] > 0}.values())
    o[7] = sum(map(abs, parts.values()), start=t[3])


def test_functions_of_ours_with_the_names_of_builtins_mean_the_same() -> None:
    assert same_names.on("reference")(X).tolist() == [98, 3, 1, 0, 7, 1, 1, 20]


@kernel
def rounded(x: In[f32, "N"], o: Out[f32, "N"]):
    o[...] = round(x[...])


def test_round_goes_to_even() -> None:
    x = np.array([0.5, 1.5, -2.5, 2.4], np.float32)
    assert rounded.on("reference")(x).tolist() == [0, 2, -2, 2]


@kernel
def described(x: In[f32, "N"], o: Out[f32, "N"]):
    t = x[...]
    assert f"{t}" == "f32[4]"
    assert (t.shape, t.ndim, t.size, t.dtype) == ((4,), 1, 4, f32)
    o[...] = t


def test_a_tile_describes_itself_while_tracing() -> None:
    x = np.ones(4, np.float32)
    assert np.array_equal(described.on("reference")(x), x)


@kernel
def ranges(x: In[f32, "N"], o: Out[f32, "N"], start: i32, *, b=2):
    (n,) = x.shape
    for i in range(start, n, b):
        o[i] = x[i]
    with pipeline(range(0, start, 1)) as i:
        o[i] = -1


def test_ranges_take_kernel_integers() -> None:
    x = np.arange(9, dtype=np.float32)
    o = np.zeros(9, np.float32)
    ranges.on("reference")(x, o, 3)
    assert o.tolist() == [-1, -1, -1, 3, 0, 5, 0, 7, 0]


@kernel
def scaled(x: In["N"], o: Out["N"], alpha: f32 = 2.0, *, beta=0.5):
    (n,) = x.shape
    with pipeline(cdiv(n, 4)) as i:
        t = x[tile(i, 4)]
        assert (t * beta).dtype is t.dtype
        assert (t / n).dtype is t.dtype
        assert (t + i).dtype is t.dtype
        o[tile(i, 4)] = t * beta + alpha


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numbers_constants_dims_and_indices_keep_the_dtype_of_the_tile(dtype: Any) -> None:
    x = np.arange(6).astype(dtype)
    found = scaled.on("reference")(x)
    assert found.dtype == dtype
    assert np.array_equal(found, x / 2 + 2)


@kernel
def accumulated(x: In[f16, "M N"], o: Out[f32, "N"], total: InOut[f32, "1"], *, bm=4):
    m, _ = x.shape
    acc = 0
    count = 0
    with pipeline(cdiv(m, bm)) as i:
        acc = acc + x[tile(i, bm), :].astype(f32).sum(axis=0)
        count += 1
    o[...] = acc / count
    total[0] += count


def test_a_carried_number_takes_the_type_that_the_body_gives_it() -> None:
    x = np.ones((8, 3), np.float16)
    o, total = np.zeros(3, np.float32), np.ones(1, np.float32)
    with pytest.raises(astdsl.KernelError):  # a scalar cannot become a row
        accumulated.on("reference")(x, o, total)


@kernel
def whole(x: In[f32, "M N"], o: Out[f32, "M"]):
    m, n = x.shape
    acc = zeros((m,), f32)
    for k in range(n):
        acc += x[:, k]
    o[...] = acc / math.sqrt(n)


def test_a_dim_that_python_or_a_tile_needs_becomes_a_constant() -> None:
    x = np.random.default_rng(0).random((3, 4)).astype(np.float32)
    np.testing.assert_allclose(whole.on("reference")(x), x.sum(1) / 2, rtol=1e-6)


@kernel
def looked_up(x: In[f32, "M N"], rows: In["K"], o: Out[f32, "K 4"]):
    with pipeline(rows.shape[0]) as k:
        row = rows[k]
        o[k] = x[row, 0:4] + x[row * 2 - row, ds(row - 1, 4)]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.int8])
def test_windows_start_at_integers_loaded_from_memory(dtype: Any) -> None:
    x = np.arange(1, 61, dtype=np.float32).reshape(6, 10)
    rows = np.array([5, 0, 3], dtype)
    found = looked_up.on("reference")(x, rows)
    halo = [np.pad(x, 1)[r + 1, int(r) : int(r) + 4] for r in rows.astype(int)]
    assert np.array_equal(found, x[rows, :4] + np.array(halo))


@kernel
def unrolled(x: In[f32, "N"], o: Out[f32, "N"]):
    (n,) = x.shape
    t = x[...]
    for i in unroll(range(n)):
        o[i] = t[n - 1 - i]


def test_unroll_gives_indices_that_are_constants() -> None:
    x = np.arange(5, dtype=np.float32)
    assert np.array_equal(unrolled.on("reference")(x), x[::-1])


@kernel
def parallel_in_a_loop(x: In[f32, "N"], o: Out[f32, "N"]):
    for _ in range(2):
        with parallel(x.shape[0]) as i:
            o[i] = x[i]


@kernel
def parallel_in_a_branch(x: In[f32, "N"], o: Out[f32, "N"], yes: i32):
    o[...] = 0
    if yes > 0:
        with parallel(x.shape[0]) as i:
            o[i] = x[i]


def test_parallel_is_outermost_in_a_branch_and_not_in_a_loop() -> None:
    x = np.arange(5, dtype=np.float32)
    with pytest.raises(BadPipeline, match="cannot spread"):
        parallel_in_a_loop.on("reference")(x)
    o = np.zeros_like(x)
    parallel_in_a_branch.on("reference")(x, o, 1)
    assert np.array_equal(o, x)


@kernel
def by_dtype(x: In[f32, "N"], o: Out[i32, "N"], p: Out[f16, "1"]):
    o[...] = i32(x[...] * 2)
    p[0] = f16(3) + f16(0.25)


def test_a_dtype_converts_what_it_is_called_with() -> None:
    x = np.array([1.75, -2.5, 3.0, 0.1], np.float32)
    o, p = by_dtype(x)
    np.testing.assert_array_equal(o, (x * 2).astype(np.int32))
    assert p.tolist() == [3.25]
