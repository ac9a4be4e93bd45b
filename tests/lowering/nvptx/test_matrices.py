"""Fragments that go to and come from shared memory by `stmatrix` and `ldmatrix`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl import In, Layout, Out, f32, kernel, load
from tests.witnesses import agree


@kernel
def narrowed(a: In["64 64"], b: In["64 64"], c: Out["64 64"]):
    c[...] = (a[...] @ b[...]).astype(c.dtype)


@kernel
def read(x: In["64 64"], y: In["64 64"], o: Out[f32, "64 64"]):
    o[...] = load(x.at[...], layout=Layout.WGMMA).astype(f32) * 2 + y[...].astype(f32)


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
