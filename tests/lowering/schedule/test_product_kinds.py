"""Products of other dtypes than f16 on the tensor core, and of extents that it pads."""

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
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    i8,
    i32,
    kernel,
    pipeline,
    spec,
    tile,
    u8,
    zeros,
)
from tests.witnesses import TARGETS, agree

Array = np.ndarray[Any, Any]
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


@kernel
def product(a: In["M K"], b: In["K N"], c: Out["M N"], *, bm=64, bn=64, bk=64, S=3, P=None):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), c.dtype)
        with pipeline(cdiv(K, bk), stages=S) as k:
            acc += dot(a[tile(i, bm), tile(k, bk)], b[tile(k, bk), tile(j, bn)], precision=P)
        c[tile(i, bm), tile(j, bn)] = acc


def whole(dtype: Any, *shape: int) -> Array:
    """Return small whole numbers: their products add exactly."""
    least = 0 if np.dtype(dtype) == np.uint8 else -3
    return np.random.default_rng(sum(shape)).integers(least, 4, shape).astype(dtype)


def multiplied(a: Array, b: Array, result: Any, **constants: Any) -> None:
    """Multiply on every witness, and demand the exact product."""
    M, N = a.shape[0], b.shape[1]
    found = agree(product, lambda: (a, b, np.zeros((M, N), result)), **constants)
    np.testing.assert_array_equal(found, a.astype(np.float64) @ b.astype(np.float64))


def ordered(a: Array, b: Array, order: str) -> tuple[Array, Array]:
    return np.asarray(a, order=order[0]), np.asarray(b, order=order[1])  # type: ignore[call-overload]


KINDS = [
    (E4M3, E4M3, np.float32), (E4M3, E5M2, np.float32), (E5M2, E4M3, np.float32),
    (np.int8, np.int8, np.int32), (np.uint8, np.int8, np.int32), (np.uint8, np.uint8, np.int32),
]  # fmt: skip


def name(kind: Any) -> str:
    return "-".join(np.dtype(each).name for each in kind)


@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_operands_of_8_bits_contiguous_along_k(kind: Any) -> None:
    a, b = ordered(whole(kind[0], 72, 144), whole(kind[1], 144, 80), "CF")
    multiplied(a, b, kind[2])


@pytest.mark.parametrize("order", ["CC", "FF", "FC"])
@pytest.mark.parametrize("kind", [KINDS[1], KINDS[4]], ids=name)
def test_operands_of_8_bits_in_any_order(kind: Any, order: str) -> None:
    multiplied(*ordered(whole(kind[0], 80, 144), whole(kind[1], 144, 80), order), kind[2])


def test_explain_says_which_operands_are_stored_anew() -> None:
    def said(a: Any, b: Any, target: str, **constants: Any) -> str:
        arguments = spec((128, 128), a), spec((128, 128), b), spec((128, 128), f32)
        return str(product.lower(*arguments, target=target, **constants).explain())

    turned, padded = "turned to be contiguous along k", "padded with zeros"
    assert turned in said(f8e4m3, f8e4m3, "sm_90a")
    assert turned not in said(f8e4m3, f8e4m3, "sm_100a")
    assert turned not in said(f16, f16, "sm_90a")
    assert padded in said(f16, f16, "sm_90a", bk=24)
    assert "product of f16 and f16 by the tensor core" in said(f16, f16, "sm_90a", bm=24)
    assert "product of f32 and f32 by the threads" in said(f32, f32, "sm_90a", bm=16, bn=16, bk=16)


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize("order", ["CF", "CC"])
def test_f32_on_the_tensor_core(order: str, precision: str) -> None:
    a, b = whole(np.float32, 72, 80), whole(np.float32, 80, 72)
    multiplied(*ordered(a, b, order), np.float32, P=precision, bk=32)


def test_tf32_cuts_the_low_bits_off() -> None:
    x = np.float32(1 + 2**-10 + 2**-11)
    a, b = np.full((64, 32), x), np.zeros((32, 64), np.float32)
    b[0] = x
    found = agree(product, lambda: (a, b, np.zeros((64, 64), np.float32)), P="tf32", bk=32)
    assert (found == np.float32(1 + 2**-10) ** 2).all()


def test_three_products_of_tf32_are_nearly_those_of_f32() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((64, 64), np.float32) for _ in range(2))

    def arguments() -> tuple[Array, ...]:
        return a, b, np.zeros((64, 64), np.float32)

    found = agree(product, arguments, P="tf32x3", bk=32, tolerance=1e-5)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(found - exact).max() < 3e-5
    rough = product.on("reference")(*arguments(), P="tf32", bk=32)
    assert np.abs(rough - exact).max() > 1e-3


EXTENTS = [(80, 24, 48), (40, 40, 24), (96, 72, 40), (20, 12, 20), (48, 96, 80), (130, 56, 32)]


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
def test_extents_of_no_instruction_are_padded(extents: tuple[int, int, int]) -> None:
    bm, bn, bk = extents
    a, b = whole(np.float16, 136, 104), whole(np.float16, 104, 144)
    multiplied(a, b, np.float32, bm=bm, bn=bn, bk=bk)
    lowered = product.lower(spec((136, 104), f16), spec((104, 144), f16), spec((136, 144), f32),
                            bm=bm, bn=bn, bk=bk)  # fmt: skip
    assert "MatrixMultiply" in lowered.schedule


@pytest.mark.parametrize("kind", [KINDS[1], KINDS[4]], ids=name)
def test_extents_of_8_bits_are_padded_too(kind: Any) -> None:
    a, b = ordered(whole(kind[0], 80, 144), whole(kind[1], 144, 80), "CF")
    multiplied(a, b, kind[2], bm=24, bn=40, bk=48)


@kernel
def two_products(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], d: Out[f32, "N N"]):
    _, K = a.shape
    left, right = zeros((64, 64), f32), zeros((64, 64), f32)
    with pipeline(cdiv(K, 32), stages=3) as k:
        x, y = a[0:64, tile(k, 32)], b[tile(k, 32), 0:64]
        left += x @ y
        right += y.T @ y
    c[0:64, 0:64], d[0:64, 0:64] = left, right


@pytest.mark.parametrize("depth", [32, 96, 200])
def test_several_products_of_a_step(depth: int) -> None:
    a, b = whole(np.float16, 64, depth), whole(np.float16, depth, 64)
    left, right = agree(two_products, lambda: (a, b))
    np.testing.assert_array_equal(left, a.astype(np.float32) @ b.astype(np.float32))
    np.testing.assert_array_equal(right, b.astype(np.float32).T @ b.astype(np.float32))


@kernel
def of_rows(a: In["M K"], b: In["N K"], c: Out["M N"], *, bm=128, bn=128, bk=128, P=None):
    M, K = a.shape
    N, _ = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), c.dtype)
        with pipeline(cdiv(K, bk), stages=2) as k:
            acc += dot(a[tile(i, bm), tile(k, bk)], b[tile(j, bn), tile(k, bk)].T, precision=P)
        c[tile(i, bm), tile(j, bn)] = acc


OPTIONS = [
    (f8e4m3, f8e5m2, f32, None), (i8, u8, i32, None), (f32, f32, f32, "tf32"),
    (f32, f32, f32, "tf32x3"),
]  # fmt: skip


@kernel
def scaled(
    a: In[f8e4m3, "64 K"],
    a_scale: In[f32, "64 B"],
    b: In[f8e4m3, "K 64"],
    b_scale: In[f32, "B 64"],
    c: Out[f32, "64 64"],
):
    acc = zeros((64, 64), f32)
    with pipeline(cdiv(a.shape[1], 32), stages=2) as k:
        product = a[:, tile(k, 32)] @ b[tile(k, 32), :]
        acc += product * a_scale[:, k][:, None] * b_scale[k]
    c[...] = acc


def test_scales_of_blocks_along_k_multiply_their_products() -> None:
    random = np.random.default_rng(0)
    a, b = whole(ml_dtypes.float8_e4m3fn, 64, 96), whole(ml_dtypes.float8_e4m3fn, 96, 64)
    s, t = (np.exp2(random.integers(-2, 3, n)).astype(np.float32) for n in ((64, 3), (3, 64)))
    found = agree(scaled, lambda: (a, s, b, t))
    left, right = a.astype(np.float64), b.astype(np.float64)
    exact = (left * np.repeat(s, 32, axis=1)) @ (right * np.repeat(t, 32, axis=0))
    np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", OPTIONS, ids=str)
def test_products_take_no_spills_and_are_not_serialised(kind: Any, target: str) -> None:
    a, b, c, precision = kind
    arguments = spec((512, 512), a), spec((512, 512), b), spec((512, 512), c)
    bk = 32 if precision else 128
    resources = of_rows.lower(*arguments, target=target, bk=bk, P=precision).resources
    assert (resources.spill_bytes, resources.messages) == (0, ())
