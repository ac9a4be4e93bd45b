"""Faults that users reported, cases 17 and 18: rows, strides and sizes of arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from astdsl import In, InOut, KernelError, Out, cdiv, f16, f32, i32, kernel, pipeline, tile, zeros
from tests.arrays import Array, whole
from tests.witnesses import TARGETS, agree

ONE = ("sm_90a",)


@kernel
def product(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, S=3):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, 64), cdiv(N, 32)) as (i, j):
        total = zeros((64, 32), f32)
        with pipeline(cdiv(K, 32), stages=S) as k:
            total += a[tile(i, 64), tile(k, 32)] @ b[tile(k, 32), tile(j, 32)]
        c[tile(i, 64), tile(j, 32)] = total


@kernel
def gathered(x: In["M N"], at: In[i32, "R"], o: Out["R N"]):
    (R,) = at.shape
    with pipeline(cdiv(R, 8)) as i:
        o[tile(i, 8), 0:32] = x[at[tile(i, 8)], 0:32]


@kernel
def summed(x: In["M N"], o: Out["M"], *, S=2):
    M, N = x.shape
    with pipeline(cdiv(M, 16)) as i:
        total = zeros((16,), f32)
        with pipeline(cdiv(N, 16), stages=S) as j:
            total += x[tile(i, 16), tile(j, 16)].sum(axis=1)
        o[tile(i, 16)] = total


@kernel
def accumulated(x: In[f32, "M N"], o: InOut[f32, "M N"]):
    M, N = x.shape
    with pipeline(cdiv(M, 8), cdiv(N, 32)) as (i, j):
        o[tile(i, 8), tile(j, 32)] += x[tile(i, 8), tile(j, 32)]


@kernel
def in_three_dims(x: In["A B C"], o: Out["A B C"], *, S=3):
    A, B, C = x.shape
    with pipeline(cdiv(B, 4)) as j:
        with pipeline(A, stages=S) as i:
            o[i, tile(j, 4), 0:16] = x[i, tile(j, 4), 0:16] * 2


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "transposed": np.asfortranarray,
    "rows backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "columns backwards": lambda a: np.ascontiguousarray(a[:, ::-1])[:, ::-1],
    "backwards and transposed": lambda a: np.asfortranarray(a[::-1, ::-1])[::-1, ::-1],
    "every second column": lambda a: np.repeat(a, 2, 1)[:, ::2],
    "every third row": lambda a: np.repeat(a, 3, 0)[::3],
    "in a larger array": lambda a: np.pad(a, 3)[3:-3, 3:-3],
    "at a multiple of 16 bytes": lambda a: np.pad(a, 8)[8:-8, 8:-8],
    "unaligned": lambda a: np.concatenate([a[:1].ravel()[:1], a.ravel()])[1:].reshape(a.shape),
}


# 17. rows that are no multiple of 16 bytes, along every axis


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float64])
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 3, 16), (4, 4, 1), (1, 6, 12)], ids=str)
def test_17_inner_dims_of_any_number_of_bytes(shape: tuple[int, int, int], dtype: Any) -> None:
    x = whole(*shape, dtype=dtype)
    np.testing.assert_array_equal(agree(in_three_dims, lambda: (x,), targets=ONE), x * 2)


@pytest.mark.parametrize("shape", [(3, 1, 5), (65, 33, 17), (64, 7, 250)], ids=str)
def test_17_products_of_rows_of_any_number_of_bytes(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = whole(m, k, dtype=np.float16), whole(k, n, dtype=np.float16)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    for p, q in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
        for target in TARGETS:
            np.testing.assert_array_equal(product.on("emulator", target=target)(p, q), expected)


# 18. strides of every kind


@pytest.mark.parametrize("layout", LAYOUTS)
def test_18_products_of_every_layout_in_memory(layout: str) -> None:
    a, b = whole(65, 40, dtype=np.float16), whole(40, 24, dtype=np.float16)
    p, q = LAYOUTS[layout](a), LAYOUTS[layout](b)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    for device in ("reference", "emulator"):
        for target in TARGETS:
            out = LAYOUTS[layout](np.zeros((65, 24), np.float32))
            product.on(device, target=target)(p, q, out)
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_18_sums_gathers_and_updates_of_every_layout_in_memory(layout: str) -> None:
    x, at = whole(19, 30), np.array([3, 0, 18, 3, 7], np.int32)
    laid, backwards = LAYOUTS[layout](x), at[::-1].copy()[::-1]
    for device in ("reference", "emulator"):
        np.testing.assert_array_equal(summed.on(device)(laid), x.sum(1))
        np.testing.assert_array_equal(gathered.on(device)(laid, backwards), x[at])
        out = LAYOUTS[layout](x)
        accumulated.on(device)(laid, out)
        np.testing.assert_array_equal(out, x + x)


def test_18_operands_that_repeat_one_row_column_or_number() -> None:
    a, b = whole(65, 40, dtype=np.float16), whole(40, 24, dtype=np.float16)
    number = np.float16(3)
    for p, q in (
        (np.broadcast_to(a[:1], a.shape), b),
        (a, np.broadcast_to(b[:, :1], b.shape)),
        (np.broadcast_to(a[:, :1], a.shape), np.broadcast_to(b[:1], b.shape)),
        (np.broadcast_to(number, a.shape), b),
    ):
        expected = p.astype(np.float32) @ q.astype(np.float32)
        for target in TARGETS:
            np.testing.assert_array_equal(product.on("emulator", target=target)(p, q), expected)
        np.testing.assert_array_equal(summed.on("emulator")(p), p.sum(1))
    for out in (np.broadcast_to(np.zeros((1, 24), np.float32), (65, 24)),):
        out.flags.writeable = True
        with pytest.raises(KernelError, match="share"):
            product(a, b, out)


NONSENSE = [0, -4, 12, 13, 1 << 40]


@pytest.mark.parametrize("stride", NONSENSE)
def test_18_strides_of_dims_of_size_one_and_of_empty_arrays_mean_nothing(stride: int) -> None:
    def odd(array: Array) -> Array:
        none = 0 in array.shape
        strides = (stride if n == 1 or none else s for n, s in zip(array.shape, array.strides))  # noqa: B905
        return as_strided(array, array.shape, tuple(strides))

    for m, k, n in ((1, 40, 24), (64, 1, 24), (64, 40, 1), (1, 1, 1), (0, 40, 24), (64, 0, 24)):
        a, b = whole(m, k, dtype=np.float16), whole(k, n, dtype=np.float16)
        expected = a.astype(np.float32) @ b.astype(np.float32)
        for device in ("reference", "emulator"):
            out = np.full((m, n), 7, np.float32)
            product.on(device)(odd(a), odd(b), odd(out))
            np.testing.assert_array_equal(out, expected)
    x = whole(1, 5, 1)
    found = agree(in_three_dims, lambda: (odd(x),), targets=ONE)
    np.testing.assert_array_equal(found, x * 2)


@pytest.mark.parametrize("target", TARGETS)
def test_18_arrays_without_elements(target: str) -> None:
    for device in ("reference", "emulator"):
        for m, k, n in ((0, 40, 24), (64, 0, 24), (64, 40, 0), (0, 0, 0)):
            a, b = np.zeros((m, k), np.float16), np.zeros((k, n), np.float16)
            found = product.on(device, target=target)(a, b)
            np.testing.assert_array_equal(found, np.zeros((m, n), np.float32))
        np.testing.assert_array_equal(summed.on(device)(np.zeros((3, 0), np.float32)), [0] * 3)
        assert summed.on(device)(np.zeros((0, 3), np.float32)).shape == (0,)
        nobody, x = np.zeros(0, np.int32), whole(3, 4)
        assert gathered.on(device)(x, nobody).shape == (0, 4)
        nowhere = gathered.on(device)(np.zeros((0, 4), np.float32), np.zeros(2, np.int32))
        np.testing.assert_array_equal(nowhere, np.zeros((2, 4)))
        for shape in ((0, 5, 7), (5, 0, 7), (5, 7, 0)):
            assert in_three_dims.on(device)(np.zeros(shape, np.float32)).shape == shape
        empty = np.zeros((0, 4), np.float32)
        accumulated.on(device)(empty, empty.copy())
