"""Block-scaled products: by the tensor core of sm_100a, elsewhere of operands that are scaled."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl import (
    In,
    Out,
    abs,
    bitcast,
    cdiv,
    dot,
    exp2,
    f4e2m1,
    f8e4m3,
    f8e5m2,
    f8e8m0,
    f32,
    i32,
    kernel,
    max,
    pipeline,
    tile,
    warpgroup_id,
    zeros,
)
from tests.witnesses import agree

E4M3, E5M2, E8M0, E2M1 = (
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu,
    ml_dtypes.float4_e2m1fn,
)  # fmt: skip
Array = np.ndarray[Any, np.dtype[Any]]


def numbers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 2).astype(dtype)


def scales(dtype: Any, *shape: int, seed: int = 0) -> Array:
    generator = np.random.default_rng(seed)
    if dtype is E8M0:
        return generator.integers(118, 136, shape).astype(np.uint8).view(E8M0)
    return generator.uniform(0.1, 4, shape).astype(dtype)


def packed(x: Array) -> Array:
    codes = x.view(np.uint8)
    return np.asarray(codes[..., ::2] | codes[..., 1::2] << 4)


def image(x: Array) -> Array:
    """Return scales (rows, count) as atoms of 128 rows by 4 scales."""
    rows, count = (-(-n // each) for n, each in zip(x.shape, (128, 4), strict=True))
    whole = np.zeros((rows * 128, count * 4), x.dtype)
    whole[: x.shape[0], : x.shape[1]] = x
    atoms = whole.reshape(rows, 4, 32, count, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(atoms).reshape(rows, count, 32, 16)


def wanted(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Array:
    """Return the exact product of a (m, k) and b (n, k), each scaled along k."""
    wide = [np.asarray(x, np.float64) for x in (a, b, a_scale, b_scale)]
    block = a.shape[1] // a_scale.shape[1]
    left, right = (x * np.repeat(s, block, axis=1) for x, s in zip(wide[:2], wide[2:], strict=True))
    return np.asarray(left @ right.T)


def require_close(found: Array, exact: Array) -> None:
    assert np.abs(found - exact).max() <= 1e-6 * np.abs(exact).max()


@kernel
def product(
    a: In[f8e4m3 | f8e5m2 | f4e2m1, "M K"],
    b: In[f8e4m3 | f8e5m2 | f4e2m1, "N K"],
    a_scale: In[f8e8m0 | f8e4m3, "M G"],
    b_scale: In[f8e8m0 | f8e4m3, "N G"],
    c: Out[f32, "M N"],
    *,
    bm=128,
    bn=64,
    bk=128,
    block=32,
):
    M, K = a.shape
    N, _ = b.shape
    g = bk // block
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=2) as k:
            acc = dot(
                a[tile(i, bm), tile(k, bk)],
                b[tile(j, bn), tile(k, bk)].T,
                acc,
                a_scale=a_scale[tile(i, bm), tile(k, g)],
                b_scale=b_scale[tile(j, bn), tile(k, g)],
            )
        c[tile(i, bm), tile(j, bn)] = acc


FORMATS = {
    "mxfp8": (E4M3, E4M3, E8M0, 32),
    "mxfp8 of two formats": (E5M2, E4M3, E8M0, 32),
    "mxfp4": (E2M1, E2M1, E8M0, 32),
    "mxfp4 by mxfp8": (E2M1, E4M3, E8M0, 32),
    "nvfp4": (E2M1, E2M1, E4M3, 16),
    "8 bits by 16": (E4M3, E5M2, E4M3, 16),
}
ON_THE_TENSOR_CORE = ("mxfp8", "mxfp8 of two formats", "mxfp4", "mxfp4 by mxfp8", "nvfp4")


def operands(name: str, m: int, n: int, k: int) -> tuple[Array, Array, Array, Array]:
    a_dtype, b_dtype, scale, block = FORMATS[name]
    a, b = numbers(a_dtype, m, k, seed=1), numbers(b_dtype, n, k, seed=2)
    return a, b, scales(scale, m, k // block, seed=3), scales(scale, n, k // block, seed=4)


@pytest.mark.parametrize("name", FORMATS)
def test_every_witness_scales_blocks_along_k(name: str) -> None:
    given, block = operands(name, 130, 72, 320), FORMATS[name][3]
    exact = wanted(*given)
    tolerance = 1e-6 * float(np.abs(exact).max())
    found = agree(product, lambda: given, tolerance=tolerance, block=block)
    require_close(found, exact)


def test_packed_operands_are_multiplied_as_they_are() -> None:
    a, b, *both = operands("nvfp4", 128, 64, 256)
    exact = wanted(a, b, *both)
    tolerance = 1e-6 * float(np.abs(exact).max())
    found = agree(
        product, lambda: (packed(a), packed(b), *both), tolerance=tolerance, block=16, bk=128
    )
    require_close(found, exact)


@pytest.mark.parametrize("name", FORMATS)
def test_the_tensor_core_scales_what_it_can(name: str) -> None:
    given, block = operands(name, 128, 64, 256), FORMATS[name][3]
    lowered = product.lower(*given, target="sm_100a", block=block)
    assert ("block_scale" in lowered.ptx) == (name in ON_THE_TENSOR_CORE)
    assert "block_scale" not in product.lower(*given, target="sm_90a", block=block).ptx


def test_explain_says_by_what_a_product_is_scaled() -> None:
    given = operands("nvfp4", 128, 64, 256)
    text = product.lower(*given, target="sm_100a", block=16).explain()
    assert "product of f4e2m1 and f4e2m1, scaled by f8e4m3 for each 16 along k, by the t" in text


@kernel
def imaged(
    a: In[f8e4m3 | f4e2m1, "M K"],
    b: In[f8e4m3 | f4e2m1, "N K"],
    a_scale: In["R G 32 16"],
    b_scale: In["S G 32 16"],
    c: Out[f32, "M N"],
    *,
    bm=128,
    bn=128,
    bk=256,
    block=32,
    stages=3,
):
    M, K = a.shape
    N, _ = b.shape
    g = bk // block // 4
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=stages) as k:
            acc = dot(
                a[tile(i, bm), tile(k, bk)],
                b[tile(j, bn), tile(k, bk)].T,
                acc,
                a_scale=a_scale[tile(i, bm // 128), tile(k, g)],
                b_scale=b_scale[tile(j, bn // 128), tile(k, g)],
            )
        c[tile(i, bm), tile(j, bn)] = acc


IMAGED = [
    ("nvfp4", 256, 128, 768, {}),
    ("mxfp4", 200, 256, 1024, {"bn": 256, "bk": 512, "stages": 1}),
    ("mxfp8", 256, 256, 384, {"bm": 256, "bn": 128, "bk": 128, "stages": 2}),
    ("mxfp8", 128, 128, 640, {"bk": 128, "stages": 4}),
]


@pytest.mark.parametrize(("name", "m", "n", "k", "sizes"), IMAGED)
def test_images_of_scales_go_from_their_slots_to_tensor_memory(
    name: str, m: int, n: int, k: int, sizes: dict[str, Any]
) -> None:
    a, b, *both = operands(name, m, n, k)
    exact, block = wanted(a, b, *both), FORMATS[name][3]
    pack = packed if a.dtype == E2M1 else np.asarray
    given = (pack(a), pack(b), *map(image, both))
    tolerance = 1e-6 * float(np.abs(exact).max())
    found = agree(
        imaged, lambda: given, tolerance=tolerance, targets=("sm_100a",), block=block, **sizes
    )
    require_close(found, exact)


def test_products_of_staged_operands_and_images_overlap() -> None:
    a, b, *both = operands("nvfp4", 128, 128, 768)
    given = (packed(a), packed(b), *map(image, both))
    text = str(imaged.lower(*given, target="sm_100a", block=16).schedule)
    steady = text[text.index('name="steady"') : text.index('name="epilogue"')]
    assert "ScaledMultiply" in steady
    assert "ProductWait pending=1" in steady
    assert " Load " not in steady


@pytest.mark.parametrize("axes", ["4", "5"])
def test_images_are_put_in_order_where_the_operands_are_scaled(axes: str) -> None:
    a, b, *both = operands("mxfp8", 128, 64, 256)
    exact = wanted(a, b, *both)
    images = [image(x) for x in both]
    if axes == "5":
        images = [x.reshape(*x.shape[:3], 4, 4) for x in images]
    whole = whole_images if axes == "4" else whole_images_of_5
    tolerance = 1e-6 * float(np.abs(exact).max())
    require_close(agree(whole, lambda: (a, b, *images), tolerance=tolerance), exact)


@kernel
def whole_images(
    a: In[f8e4m3, "128 256"],
    b: In[f8e4m3, "64 256"],
    a_scale: In[f8e8m0, "1 2 32 16"],
    b_scale: In[f8e8m0, "1 2 32 16"],
    c: Out[f32, "128 64"],
):
    c[...] = dot(a[...], b.T[...], a_scale=a_scale[...], b_scale=b_scale[...])


@kernel
def whole_images_of_5(
    a: In[f8e4m3, "128 256"],
    b: In[f8e4m3, "64 256"],
    a_scale: In[f8e8m0, "1 2 32 4 4"],
    b_scale: In[f8e8m0, "1 2 32 4 4"],
    c: Out[f32, "128 64"],
):
    c[...] = dot(a[...], b.T[...], a_scale=a_scale[...], b_scale=b_scale[...])


@kernel
def one_side(
    a: In[f8e4m3, "M K"],
    b: In[f8e4m3, "K N"],
    a_scale: In[f8e8m0, "M G"],
    c: Out[f32, "M N"],
    *,
    m=128,
    n=64,
    k=128,
):
    c[...] = dot(
        a[0:m, 0:k], b[0:k, 0:n], zeros((m, n), f32) + 1, a_scale=a_scale[0:m, 0 : k // 32]
    )


@pytest.mark.parametrize("m", [128, 64, 48])
def test_an_operand_without_scales_is_taken_as_it_is_along_either_axis(m: int) -> None:
    a, b, a_scale, _ = operands("mxfp8", m, 64, 128)
    exact = wanted(a, b, a_scale, np.ones((64, 4), E8M0)) + 1
    turned = np.ascontiguousarray(b.T)
    tolerance = 1e-6 * float(np.abs(exact).max())
    found = agree(one_side, lambda: (a, turned, a_scale), tolerance=tolerance, m=m)
    require_close(found, exact)


def test_the_sign_of_a_scale_is_ignored_and_nan_spreads_along_its_row() -> None:
    a, b, a_scale, b_scale = operands("nvfp4", 128, 64, 128)
    exact = wanted(a, b, a_scale, b_scale)
    negative = -a_scale
    negative[5, 2] = np.nan
    tolerance = 1e-6 * float(np.abs(exact).max())
    found = agree(product, lambda: (a, b, negative, b_scale), tolerance=tolerance, block=16)
    assert np.isnan(found[5]).all()
    rest = np.arange(128) != 5
    require_close(found[rest], exact[rest])


def test_the_last_block_along_k_may_be_shorter() -> None:
    a, b = numbers(E4M3, 130, 80, seed=1), numbers(E4M3, 40, 80, seed=2)
    both = scales(E8M0, 130, 3, seed=3), scales(E8M0, 40, 3, seed=4)
    padded = [np.pad(x, ((0, 0), (0, 16))) for x in (a, b)]
    exact = wanted(padded[0], padded[1], *both)
    tolerance = 1e-6 * float(np.abs(exact).max())
    require_close(agree(product, lambda: (a, b, *both), tolerance=tolerance, bn=32), exact)


@kernel
def grouped(
    a: In[f4e2m1, "M K"],
    a_scale: In[f8e8m0, "M G"],
    ends: In[i32, "E1"],
    b: In[f4e2m1, "E N K"],
    b_scale: In[f8e8m0, "E N G"],
    c: Out[f32, "M N"],
    *,
    bm=128,
    bn=32,
    bk=128,
):
    E, N, K = b.shape
    g = bk // 32
    with pipeline(E, cdiv(N, bn)) as (e, j):
        rows, theirs, to = (x.at[ends[e] : ends[e + 1]] for x in (a, a_scale, c))
        with pipeline(cdiv(rows.shape[0], bm)) as i:
            acc = zeros((bm, bn), f32)
            with pipeline(cdiv(K, bk)) as k:
                acc = dot(
                    rows[tile(i, bm), tile(k, bk)],
                    b[e, tile(j, bn), tile(k, bk)].T,
                    acc,
                    a_scale=theirs[tile(i, bm), tile(k, g)],
                    b_scale=b_scale[e, tile(j, bn), tile(k, g)],
                )
            to[tile(i, bm), tile(j, bn)] = acc


def test_groups_of_rows_are_multiplied_by_matrices_of_their_own() -> None:
    ends = np.array([0, 50, 190], np.int32)
    a, b = numbers(E2M1, 190, 256, seed=1), numbers(E2M1, 2, 32, 256, seed=2)
    a_scale, b_scale = scales(E8M0, 190, 8, seed=3), scales(E8M0, 2, 32, 8, seed=4)
    parts = [slice(low, high) for low, high in itertools.pairwise(ends)]
    exact = np.concatenate(
        [wanted(a[p], b[e], a_scale[p], b_scale[e]) for e, p in enumerate(parts)]
    )
    given = (packed(a), a_scale, ends, packed(b), b_scale)
    tolerance = 1e-6 * float(np.abs(exact).max())
    found = agree(grouped, lambda: (*given, np.zeros((190, 32), np.float32)), tolerance=tolerance)
    require_close(found, exact)


@kernel(warpgroups=2)
def two_warpgroups(
    a: In[f8e4m3, "256 128"],
    b: In[f8e4m3, "64 128"],
    a_scale: In[f8e8m0, "256 4"],
    b_scale: In[f8e8m0, "64 4"],
    c: Out[f32, "256 64"],
):
    mine = tile(warpgroup_id(), 128)
    c[mine, :] = dot(a[mine, :], b[...].T, a_scale=a_scale[mine, :], b_scale=b_scale[...])


def test_each_warpgroup_has_scales_of_its_own() -> None:
    given = operands("mxfp8", 256, 64, 128)
    exact = wanted(*given)
    tolerance = 1e-6 * float(np.abs(exact).max())
    require_close(agree(two_warpgroups, lambda: given, tolerance=tolerance), exact)


@kernel
def quantised(
    x: In[f32, "128 K"],
    w: In[f4e2m1, "64 K"],
    w_scale: In[f8e8m0, "64 G"],
    c: Out[f32, "128 64"],
    *,
    bk=128,
):
    _, K = x.shape
    acc = zeros((128, 64), f32)
    with pipeline(cdiv(K, bk)) as k:
        t = x[:, tile(k, bk)].reshape(128, bk // 32, 32)
        scale = (max(abs(t), axis=2) / 4).astype(f8e8m0)
        q = (t / scale.astype(f32)[:, :, None]).astype(f4e2m1).reshape(128, bk)
        weights, theirs = w[:, tile(k, bk)], w_scale[:, tile(k, bk // 32)]
        acc += dot(q, weights.T, a_scale=scale, b_scale=theirs)
    c[...] = acc


def test_operands_and_scales_may_be_computed() -> None:
    x = numbers(np.float32, 128, 256)
    _, w, _, w_scale = operands("mxfp4", 1, 64, 256)
    blocks = x.reshape(128, 8, 32)
    powers = (np.abs(blocks).max(axis=2) / np.float32(4)).astype(E8M0)
    q = (blocks / powers.astype(np.float32)[:, :, None]).astype(E2M1).reshape(128, 256)
    exact = wanted(q, w, powers, w_scale)
    tolerance = 1e-6 * float(np.abs(exact).max())
    found = agree(quantised, lambda: (x, packed(w), w_scale), tolerance=tolerance)
    require_close(found, exact)


@kernel
def from_bytes(
    a: In[f8e4m3, "128 128"],
    b: In[f8e4m3, "64 128"],
    a_scale: In["128 4"],
    b_scale: In["64 4"],
    c: Out[f32, "128 64"],
):
    left, right = bitcast(a_scale[...], f8e8m0), bitcast(b_scale[...], f8e8m0)
    c[...] = dot(a[...], b.T[...], a_scale=left, b_scale=right) * exp2(0.0)


def test_bytes_are_read_as_powers_of_two_by_bitcast() -> None:
    a, b, *both = operands("mxfp8", 128, 64, 128)
    exact = wanted(a, b, *both)
    given = (a, b, *(x.view(np.uint8) for x in both))
    tolerance = 1e-6 * float(np.abs(exact).max())
    require_close(agree(from_bytes, lambda: given, tolerance=tolerance), exact)
