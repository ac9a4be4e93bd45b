"""Matrix products in pipelines: layouts, transpositions, extents, ragged edges, stages."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl import In, Out, cdiv, erf, f16, f32, kernel, pipeline, spec, tile, zeros
from tests.arrays import factors, product
from tests.witnesses import TARGETS, agree


@kernel
def matmul(a: In["M K"], b: In["K N"], c: Out[f32, "M N"], *, bm=64, bn=64, bk=32, S=3):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=S) as k:
            acc += a[tile(i, bm), tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]
        c[tile(i, bm), tile(j, bn)] = acc


@kernel
def any_product(a: In["M K"], b: In["K N"], c: Out["M N"], *, bm=32, bn=32, bk=16):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = a[tile(i, bm), 0:bk] @ b[0:bk, tile(j, bn)]
        with pipeline(range(1, cdiv(K, bk)), stages=3) as k:
            acc += a[tile(i, bm), tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]
        c[tile(i, bm), tile(j, bn)] = acc


@kernel
def matmul_tt(a: In["K M"], b: In["N K"], c: Out[f32, "M N"], *, bm=64, bn=64, bk=32):
    K, M = a.shape
    N, _ = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=3) as k:
            acc += a[tile(k, bk), tile(i, bm)].T @ b[tile(j, bn), tile(k, bk)].T
        c[tile(i, bm), tile(j, bn)] = acc


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("order", ["CC", "CF", "FC", "FF"])
def test_every_order_of_the_operands_in_memory(order: str, dtype: Any) -> None:
    a, b = factors(dtype, 72, 80), factors(dtype, 80, 136)
    a, b = np.asarray(a, order=order[0]), np.asarray(b, order=order[1])  # type: ignore[call-overload]
    np.testing.assert_array_equal(agree(matmul, lambda: (a, b)), product(a, b))


@pytest.mark.parametrize("order", ["CC", "FF"])
def test_transposed_tiles_are_multiplied_as_they_are(order: str) -> None:
    a, b = factors(np.float16, 80, 72), factors(np.float16, 136, 80)
    a, b = np.asarray(a, order=order[0]), np.asarray(b, order=order[1])  # type: ignore[call-overload]
    np.testing.assert_array_equal(agree(matmul_tt, lambda: (a, b)), product(a.T, b.T))


EXTENTS = [(16, 16, 16), (64, 48, 96), (128, 96, 32), (48, 80, 112), (32, 256, 64), (256, 64, 32)]


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
def test_extents_are_multiples_of_16(extents: tuple[int, int, int]) -> None:
    bm, bn, bk = extents
    a, b = factors(np.float16, 136, 104), factors(np.float16, 104, 264)
    found = agree(matmul, lambda: (a, b), bm=bm, bn=bn, bk=bk)
    np.testing.assert_array_equal(found, product(a, b))


@pytest.mark.parametrize(
    ("extents", "shape"),
    [((64, 64), "16x256b"), ((48, 96), "16x256b"), ((64, 48), "32x32b"), ((80, 64), "32x32b")],
    ids=str,
)
def test_up_to_64_rows_take_16_lanes_of_each_warp(extents: tuple[int, int], shape: str) -> None:
    """`tcgen05` multiplies 64 rows at a time, so nothing is padded to 128."""
    bm, bn = extents
    arguments = spec((512, 512), f16), spec((512, 512), f16)
    lowered = matmul.lower(*arguments, target="sm_100a", bm=bm, bn=bn, bk=64)
    assert f"tcgen05.ld.sync.aligned.{shape}" in lowered.ptx
    a, b = factors(np.float16, 100, 70), factors(np.float16, 70, 100)
    found = agree(matmul, lambda: (a, b), targets=("sm_100a",), bm=bm, bn=bn, bk=64)
    np.testing.assert_array_equal(found, product(a, b))


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("depth", [0, 1, 32, 65, 128, 200])
def test_every_depth_and_number_of_stages(depth: int, stages: int) -> None:
    a, b = factors(np.float16, 64, depth), factors(np.float16, depth, 72)
    found = agree(matmul, lambda: (a, b), S=stages, targets=TARGETS if stages == 2 else ("sm_90a",))
    np.testing.assert_array_equal(found, product(a, b))


@kernel
def bias_gelu(
    a: In[f16, "M K"], b: In[f16, "K N"], bias: In[f32, "N"], c: Out[f16, "M N"], *, bm=64, bn=64
):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, 32), stages=3) as k:
            acc += a[tile(i, bm), tile(k, 32)] @ b[tile(k, 32), tile(j, bn)]
        x = acc + bias[tile(j, bn)]
        c[tile(i, bm), tile(j, bn)] = 0.5 * x * (1 + erf(x * 0.70710678))


def test_an_epilogue_works_on_the_accumulator() -> None:
    a, b, bias = factors(np.float16, 72, 80), factors(np.float16, 80, 136), factors(np.float32, 136)
    agree(bias_gelu, lambda: (a, b, bias), tolerance=1e-3)


@kernel
def into_output(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, bm=64, bn=64, bk=32):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn), cdiv(K, bk), stages=3) as (i, j, k):
        out = c.at[tile(i, bm), tile(j, bn)]
        if k == 0:
            out[...] = 0
        out[...] += a[tile(i, bm), tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]


def test_an_output_window_is_the_accumulator() -> None:
    a, b = factors(np.float16, 72, 80), factors(np.float16, 80, 136)
    np.testing.assert_array_equal(agree(into_output, lambda: (a, b)), product(a, b))
    schedule = into_output.lower(spec((64, 64), f16), spec((64, 64), f16)).schedule
    assert "ProductWait pending=1" in schedule


@kernel
def stationary(a: In[f16, "M 32"], b: In[f16, "T 32 64"], c: Out[f32, "M 64"], *, how, S=2):
    blocks = cdiv(a.shape[0], 64)

    def multiply(i):
        weights = a[tile(i, 64), :]
        acc = zeros((64, 64), f32)
        with pipeline(b.shape[0], stages=S) as k:
            acc += weights @ b[k]
        c[tile(i, 64), :] = acc

    if how == "loop":
        for i in range(blocks):
            multiply(i)
    else:
        with pipeline(blocks, axes="sequential" if how == "ring" else "auto") as i:
            multiply(i)


@pytest.mark.parametrize("how", ["blocks", "ring", "loop"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_product_of_what_was_staged_before_is_in_flight(how: str, stages: int) -> None:
    a = factors(np.float16, 150, 32)
    shapes = spec((150, 32), f16), spec((3, 32, 64), f16)
    for target in TARGETS:
        text = stationary.lower(*shapes, target=target, how=how, S=stages).schedule
        assert ("ProductWait pending=1" in text) == (stages > 1)

    def check(steps: int) -> None:
        b = factors(np.float16, steps, 32, 64)
        found = agree(stationary, lambda: (a, b), how=how, S=stages, emulate=steps % 2 == 1)
        exact = b.astype(np.float32).sum(axis=0)
        np.testing.assert_array_equal(found, a.astype(np.float32) @ exact)

    for steps in range(2 * stages + 2):
        check(steps)


@kernel
def rescaled(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"]):
    _, K = a.shape
    acc = zeros((64, 64), f32)
    with pipeline(cdiv(K, 32), stages=3) as k:
        acc = acc * 0.5 + a[0:64, tile(k, 32)] @ b[tile(k, 32), 0:64]
    c[0:64, 0:64] = acc


def test_a_rescaled_accumulator_is_a_value() -> None:
    a, b = factors(np.float16, 64, 96), factors(np.float16, 96, 64)
    agree(rescaled, lambda: (a, b))


@kernel
def chain(a: In[f16, "64 32"], b: In[f16, "32 48"], d: In[f16, "48 64"], c: Out[f32, "64 64"]):
    t = a[...] @ b[...]
    c[...] = (t * 0.5).astype(f16) @ d[...]


def test_an_operand_may_be_computed() -> None:
    a, b, d = factors(np.float16, 64, 32), factors(np.float16, 32, 48), factors(np.float16, 48, 64)
    agree(chain, lambda: (a, b, d), tolerance=1e-3)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("extents", [(128, 128), (64, 256), (256, 128), (16, 16)], ids=str)
def test_products_take_no_spills_and_are_not_serialised(
    target: str, extents: tuple[int, int]
) -> None:
    bm, bn = extents
    arguments = spec((512, 512), f16), spec((512, 512), f16)
    resources = matmul.lower(*arguments, target=target, bm=bm, bn=bn, bk=64).resources
    assert (resources.spill_bytes, resources.messages) == (0, ())


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint8])
def test_other_dtypes_are_multiplied_by_the_threads(dtype: Any) -> None:
    a, b = factors(np.int8, 40, 36).astype(dtype), factors(np.int8, 36, 52).astype(dtype)
    found = agree(any_product, lambda: (a, b), targets=("sm_90a",))
    wide = np.int64 if np.dtype(dtype).kind in "iu" else np.float64
    np.testing.assert_array_equal(found, (a.astype(wide) @ b.astype(wide)).astype(found.dtype))


@pytest.mark.parametrize("extents", [(40, 24, 8), (17, 33, 5), (1, 1, 1), (8, 8, 24)], ids=str)
def test_extents_that_the_tensor_core_lacks(extents: tuple[int, int, int]) -> None:
    bm, bn, bk = extents
    m, n, k = min(50, 3 * bm), min(45, 3 * bn), min(40, 5 * bk)
    a, b = factors(np.float16, m, k), factors(np.float16, k, n)
    found = agree(matmul, lambda: (a, b), bm=bm, bn=bn, bk=bk, targets=("sm_90a",))
    np.testing.assert_array_equal(found, product(a, b))


def test_mixed_operands_meet_in_f32() -> None:
    a, b = factors(np.float16, 40, 36), factors(ml_dtypes.bfloat16, 36, 52)
    np.testing.assert_array_equal(
        agree(matmul, lambda: (a, b), targets=("sm_100a",)), product(a, b)
    )


def test_f32_operands_multiply_exactly() -> None:
    x = np.float32(1 + 2**-12)
    a, b = np.full((16, 16), x), np.zeros((16, 16), np.float32)
    b[0] = x
    found = matmul.on("emulator")(a, b, bm=16, bn=16, bk=16)
    assert (found == np.float32(float(x) * float(x))).all()


@pytest.mark.parametrize("target", TARGETS)
def test_an_epilogue_of_elementary_functions_spills_nothing(target: str) -> None:
    arguments = spec((512, 512), f16), spec((512, 512), f16), spec((512,), f32)
    resources = bias_gelu.lower(*arguments, target=target, bm=128, bn=128).resources
    assert (resources.spill_bytes, resources.messages) == (0, ())
