"""Tiles that threads read along their rows are copied by wide boxes, without a swizzle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import In, Out, cdiv, f16, f32, kernel, pipeline, tile, zeros
from astdsl.ir.launch import MapSlot
from tests.witnesses import agree

COPY = "cp.async.bulk.tensor.2d.shared::cta.global"


@kernel
def row_sums(x: In[f32, "M N"], o: Out[f32, "M"], *, bm=4, bn=512):
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        total = zeros(bm, f32)
        with pipeline(cdiv(N, bn), stages=2) as j:
            total += x[tile(i, bm), tile(j, bn)].sum(axis=1)
        o[tile(i, bm)] = total


@kernel
def turned(x: In[f32, "M N"], o: Out[f32, "N M"], *, b=64):
    M, N = x.shape
    with pipeline(cdiv(M, b), cdiv(N, b)) as (i, j):
        o[tile(j, b), tile(i, b)] = x[tile(i, b), tile(j, b)].T


@kernel
def widened(x: In[f16, "M N"], o: Out[f32, "M N"], *, b=64):
    M, N = x.shape
    with pipeline(cdiv(M, b), cdiv(N, b)) as (i, j):
        o[tile(i, b), tile(j, b)] = x[tile(i, b), tile(j, b)].astype(f32)


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)


def swizzles_bytes(made: Any, *arguments: Any) -> set[int]:
    """Return the swizzles of the tensor maps of a kernel."""
    slots = (slot for entry in made.lower(*arguments).plan.entries for slot in entry.slots)
    return {slot.swizzle_bytes for slot in slots if isinstance(slot, MapSlot)}


@pytest.mark.parametrize("shape", [(8, 512), (9, 700)])
def test_a_row_of_512_takes_two_boxes(shape: tuple[int, int]) -> None:
    x = numbers(*shape)
    np.testing.assert_array_equal(agree(row_sums, lambda: (x,)), x.sum(axis=1))
    assert swizzles_bytes(row_sums, x) == {0}
    # In the prologue and in the steady state.
    assert row_sums.lower(x).ptx.count(COPY) == 2 * 2


def test_a_tile_that_is_turned_is_swizzled() -> None:
    x = numbers(64, 64)
    np.testing.assert_array_equal(agree(turned, lambda: (x,)), x.T)
    assert swizzles_bytes(turned, x) == {128}


def test_elements_of_two_widths_are_swizzled() -> None:
    x = numbers(64, 64, dtype=np.float16)
    np.testing.assert_array_equal(agree(widened, lambda: (x,)), x)
    assert swizzles_bytes(widened, x) == {128}
