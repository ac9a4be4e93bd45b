"""Faults that users reported, cases 16, 19 and 21: far addresses, guard zones, short sums."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from astdsl import (
    In,
    InOut,
    Out,
    atomic_add,
    cdiv,
    ds,
    f8e4m3,
    f16,
    f32,
    i32,
    i64,
    kernel,
    ones,
    pipeline,
    tile,
    zeros,
)
from tests.arrays import Array, whole
from tests.witnesses import TARGETS, agree

# 16. small arrays whose rows are far apart: pages that nobody touches are not there

RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # Linux: MAP_NORESERVE


def far_apart(rows: Array, stride_bytes: int) -> Array:
    """Return a copy of an array whose rows are so many bytes apart."""
    count, row_bytes = len(rows), rows[0].nbytes
    size = (count - 1) * abs(stride_bytes) + row_bytes
    memory = np.frombuffer(mmap.mmap(-1, size, flags=RESERVED), np.uint8)
    start = memory[max(0, -stride_bytes) * (count - 1) :][:row_bytes].view(rows.dtype)
    far = as_strided(start, rows.shape, (stride_bytes, rows.itemsize))
    far[...] = rows
    return far


@kernel
def doubled(x: In["R N"], o: Out["R N"], *, S=3):
    R, N = x.shape
    with pipeline(1):
        with pipeline(R, stages=S) as r:
            o[r, 0:64] = x[r, 0:64] * 2


@kernel
def in_columns(x: In["N R"], o: Out["R N"]):
    R, N = o.shape
    with pipeline(R) as r:
        o[r, 0:64] = x.T[r, 0:64] * 2


@kernel
def of_a_view(ends: In[i32, "2"], x: In["R N"], o: Out[f32, "N"]):
    rows = x.at[ends[0] : ends[1]]
    total = zeros((64,), f32)
    with pipeline(rows.shape[0], stages=2) as r:
        total += rows[r, 0:64]
    o[0:64] = total


@kernel
def added_at(at: In[i32, "G"], x: InOut["R N"]):
    x[at[...], 0:16] = x[at[...], 0:16] + 1


@kernel
def counted_at(at: In[i32, "4"], x: InOut["R N"]):
    atomic_add(x.at[at[...], 0:16], ones((4, 16), f32))


@kernel
def multiplied(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"]):
    M, K = a.shape
    with pipeline(cdiv(M, 64)) as i:
        total = zeros((64, 16), f32)
        with pipeline(cdiv(K, 32), stages=2) as k:
            total += a[tile(i, 64), tile(k, 32)] @ b[tile(k, 32), 0:16]
        c[tile(i, 64), 0:16] = total


# Past 2**31 elements, and bytes, for TMA and for plain loads, downwards too.
FAR_BYTES = [2**33, 2**31 + 64, 2**31 + 4, -(2**33)]


@pytest.mark.parametrize("stride", FAR_BYTES)
def test_16_rows_that_are_far_apart_are_read(stride: int) -> None:
    x = whole(6, 64)
    far = far_apart(x, stride)
    for target in TARGETS:
        np.testing.assert_array_equal(doubled.on("emulator", target=target)(far), x * 2)
    np.testing.assert_array_equal(agree(in_columns, lambda: (far.T,), targets=TARGETS[:1]), x * 2)
    ends = np.array([1, 5], np.int32)
    found = of_a_view.on("emulator", target="sm_90a")(ends, far, np.zeros(64, np.float32))
    np.testing.assert_array_equal(found, x[1:5].sum(0))
    if abs(stride) < 2**33:
        out = far_apart(np.zeros_like(x), stride)
        doubled.on("emulator")(x, out)
        np.testing.assert_array_equal(out, x * 2)


@pytest.mark.parametrize("stride", FAR_BYTES)
def test_16_rows_that_are_far_apart_are_updated(stride: int) -> None:
    x, at = whole(6, 64), np.array([5, 2, 0, 3], np.int32)
    for device in ("reference", "emulator"):
        for program in (added_at, counted_at):
            far, expected = far_apart(x, stride), x.copy()
            program.on(device)(at, far)
            expected[at, :16] += 1
            np.testing.assert_array_equal(far, expected)


def test_16_products_of_rows_that_are_far_apart() -> None:
    a, b = whole(70, 40, dtype=np.float16), whole(40, 16, dtype=np.float16)
    far = far_apart(a, 2**31 + 64), far_apart(b, 2**32)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    for target in TARGETS:
        np.testing.assert_array_equal(multiplied.on("emulator", target=target)(*far), expected)


@kernel
def at_products(x: In[f32, "N"], i: i32, o: Out[i64, "1"], p: Out[f32, "4"]):
    o[0] = i.astype(i64) * 70_000
    p[...] = x[ds(i * x.shape[0], 4)] + x[tile(i * 4096, 4096)][:4]


def test_16_starts_are_computed_in_64_bits() -> None:
    x = np.ones(70_000, np.float32)
    for device in ("reference", "emulator"):
        number, window = at_products.on(device)(x, 61_357)
        assert number == [61_357 * 70_000]
        # Modulo 2**32 both windows are inside the array.
        np.testing.assert_array_equal(window, [0] * 4)
        assert (61_357 * 70_000) % 2**32 < 70_000
        np.testing.assert_array_equal(at_products.on(device)(x, 1 << 20)[1], [0] * 4)


# 19. guard zones around what every kind of store writes


@kernel
def by_products(a: In[f16, "M K"], b: In[f16, "K N"], o: Out[f32, "M N"]):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, 64), cdiv(N, 16)) as (i, j):
        total = zeros((64, 16), f32)
        with pipeline(cdiv(K, 16)) as k:
            total += a[tile(i, 64), tile(k, 16)] @ b[tile(k, 16), tile(j, 16)]
        o[tile(i, 64), tile(j, 16)] = total


@kernel
def by_halo(x: In[f32, "M N"], o: Out[f32, "M N", 0]):
    M, N = x.shape
    with pipeline(cdiv(M + 2, 8)) as i:
        o[ds(i * 8 - 1, 8), ds(-3, 64)] = x[ds(i * 8 - 1, 8), ds(-3, 64)] + 1


@kernel
def by_steps(x: In[f32, "M N"], o: Out[f32, "M N", 0]):
    M, N = x.shape
    with pipeline(cdiv(N, 16)) as j:
        o[ds(0, 32, step=2), tile(j, 16)] = x[ds(0, 32, step=2), tile(j, 16)]
        o[ds(1, 32, step=2), tile(j, 16)] = x[ds(1, 32, step=2), tile(j, 16)]


@kernel
def by_indices(x: In[f32, "M N"], at: In[i32, "R"], o: Out[f32, "M N", 0]):
    with pipeline(1):
        o[at[...], ds(0, 64)] = x[at[...], ds(0, 64)]


@kernel
def by_atomics(x: In[f32, "M N"], o: Out[f32, "M N", 0]):
    M, _ = x.shape
    with pipeline(cdiv(M, 16)) as i:
        atomic_add(o.at[tile(i, 16), ds(-2, 64)], x[tile(i, 16), ds(-2, 64)])


@kernel
def by_turning(x: In[f32, "M N"], o: Out[f32, "N M"]):
    M, N = x.shape
    with pipeline(cdiv(M, 16), cdiv(N, 32)) as (i, j):
        o[tile(j, 32), tile(i, 16)] = x[tile(i, 16), tile(j, 32)].T


@kernel
def by_sums(x: In[f32, "M N"], o: Out[f32, "M N"]):
    M, N = x.shape
    with pipeline(cdiv(N, 16)) as j:
        with pipeline(M, stages=3) as r:
            o[r, tile(j, 16)] = x[r, tile(j, 16)] + 1
        with pipeline(2) as _:
            o[0, tile(j, 16)] = x[0, tile(j, 16)]


def _products(shape: tuple[int, int]) -> tuple[Array, ...]:
    a, b = whole(shape[0], 20, dtype=np.float16), whole(20, shape[1], dtype=np.float16)
    return a, b


def _rows(shape: tuple[int, int]) -> tuple[Array, ...]:
    at = np.random.default_rng(1).permutation(40)[:32].astype(np.int32) - 3
    return whole(*shape), at


STORES: dict[Any, Callable[[tuple[int, int]], tuple[Array, ...]]] = {
    by_products: _products,
    by_halo: lambda s: (whole(*s),),
    by_steps: lambda s: (whole(*s),),
    by_indices: _rows,
    by_atomics: lambda s: (whole(*s),),
    by_turning: lambda s: (whole(*s[::-1]),),
    by_sums: lambda s: (whole(*s),),
}
BEYOND = 77.25


def surrounded(shape: tuple[int, int], how: str) -> tuple[Array, Array]:
    """Return memory full of one number, and an array in the middle of it."""
    m, n = shape
    if how == "before and after":
        memory = np.full(m * n + 64, BEYOND, np.float32)
        return memory, memory[32:-32].reshape(m, n)
    memory = np.full((m + 4, n + 8), BEYOND, np.float32)
    if how == "turned":
        memory = np.full((n + 8, m + 4), BEYOND, np.float32).T
    return memory, memory[2:-2, 4:-4]


@pytest.mark.parametrize("how", ["before and after", "on every side", "turned"])
@pytest.mark.parametrize("program", STORES, ids=lambda k: k.__name__)
def test_19_nothing_is_written_beyond_an_output(program: Any, how: str) -> None:
    for shape in ((21, 13), (64, 48)):
        arguments = STORES[program](shape)
        expected = program.on("reference")(*arguments)
        for target in TARGETS:
            memory, out = surrounded(shape, how)
            program.on("emulator", target=target)(*arguments, out)
            np.testing.assert_array_equal(out, expected)
            out[...] = BEYOND
            assert (memory == BEYOND).all()


# 21. sums of FP8 products


@kernel
def added_up(a: In[f8e4m3, "64 K"], b: In[f8e4m3, "8 K"], c: Out[f32, "64 8"], *, steps=1, bk=256):
    _, K = a.shape
    total = zeros((64, 8), f32)
    with pipeline(1):
        with pipeline(cdiv(K, bk * steps), stages=2) as k:
            if steps == 1:
                total += a[:, tile(k, bk)] @ b[:, tile(k, bk)].T
            else:
                part = zeros((64, 8), f32)
                with pipeline(steps) as q:
                    part += a[:, tile(k * steps + q, bk)] @ b[:, tile(k * steps + q, bk)].T
                total += part
        c[...] = total


def test_21_long_sums_of_fp8_products_are_promoted_by_a_pipeline_of_their_own() -> None:
    depth = 16384
    a = np.ones((64, depth), ml_dtypes.float8_e4m3fn)
    a[:, 1::2] = 1 / 16
    b = np.ones((8, depth), a.dtype)
    expected = depth / 2 * (1 + 1 / 16)
    hopper = added_up.on("emulator", target="sm_90a", fp8_accumulate="hardware")
    assert (hopper(a, b) < expected).all(), "small products are lost beside a large sum"
    assert (hopper(a, b, steps=4) == expected).all()
    exact = added_up.on("emulator", target="sm_90a", fp8_accumulate="exact")
    assert (exact(a, b) == expected).all()
    blackwell = added_up.on("emulator", target="sm_100a", fp8_accumulate="hardware")
    assert (blackwell(a, b) == expected).all()
