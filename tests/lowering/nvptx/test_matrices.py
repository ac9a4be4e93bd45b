"""Fragments that go to and come from shared memory by `stmatrix` and `ldmatrix`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl import In, Layout, Out, cdiv, f32, kernel, load, pipeline, tile, zeros
from tests.witnesses import agree


@kernel
def narrowed(a: In["64 64"], b: In["64 64"], c: Out["64 64"]):
    c[...] = (a[...] @ b[...]).astype(c.dtype)


@kernel
def read(x: In["64 64"], y: In["64 64"], o: Out[f32, "64 64"]):
    o[...] = load(x.at[...], layout=Layout.WGMMA).astype(f32) * 2 + y[...].astype(f32)


@kernel
def scaled(a: In["M K"], s: In["K"], b: In["K N"], o: Out[f32, "M N"], *, bk=64):
    M, K = a.shape
    N = b.shape[1]
    total = zeros((M, N), f32)
    with pipeline(cdiv(K, bk), stages=2) as k:
        at = tile(k, bk)
        total += (a[:, at] * s[at]) @ b[at, :]
    o[...] = total


def whole(dtype: Any, order: Any = "C") -> Any:
    values = np.random.default_rng(7).integers(-3, 4, (64, 64)).astype(dtype)
    return np.asarray(values, order=order)


def ptx_of(made: Any, *arguments: Any) -> str:
    text = made.lower(*arguments, target="sm_90a")
    assert "bank conflicts" not in text.explain()
    found: str = text.ptx
    return found


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("order", "suffix"), [("C", ""), ("F", ".trans")])
def test_a_product_in_16_bits_is_stored_four_matrices_at_a_time(
    dtype: Any, order: Any, suffix: str
) -> None:
    arguments = whole(dtype), whole(dtype)
    agree(narrowed, lambda: (*arguments, whole(dtype, order)))
    ptx = ptx_of(narrowed, *arguments, whole(dtype, order))
    assert ptx.count(f"stmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16") == 4
    assert "\tst.shared" not in ptx


def test_a_product_that_is_wide_in_memory_keeps_its_registers() -> None:
    arguments = whole(np.float16), whole(np.float16), whole(np.float32)
    assert "stmatrix" not in narrowed.lower(*arguments, target="sm_90a").ptx


@pytest.mark.parametrize(("order", "suffix"), [("C", ""), ("F", ".trans")])
def test_a_fragment_is_loaded_four_matrices_at_a_time(order: Any, suffix: str) -> None:
    def arguments() -> Any:
        return whole(np.float16, order), whole(np.float16)

    agree(read, arguments)
    ptx = read.lower(*arguments(), target="sm_90a").ptx
    assert ptx.count(f"ldmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16") == 4


@pytest.mark.parametrize(("order", "suffix"), [("C", ""), ("F", ".trans")])
def test_an_operand_that_is_computed_from_loads_is_loaded_as_a_fragment(
    order: Any, suffix: str
) -> None:
    a = np.asarray(np.tile(whole(np.float16), 3), order=order)
    s, b = np.tile(np.array([1, 2, -1, 0], np.float16), 48), np.tile(whole(np.float16).T, 3).T
    found = agree(scaled, lambda: (a, s, b))
    np.testing.assert_array_equal(found, (a * s).astype(np.float32) @ b.astype(np.float32))
    lowered = scaled.lower(a, s, b, target="sm_90a")
    assert lowered.ptx.count(f"ldmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16") == 4
    assert "conversion of f16[64x64]" not in lowered.explain()
