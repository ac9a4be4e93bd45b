"""Tiles that are held alike have one layout, in which a fold along rows stays within a warp."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astdsl import (
    In,
    Out,
    cdiv,
    cumsum,
    f16,
    f32,
    kernel,
    pipeline,
    reshape,
    spec,
    tile,
    zeros,
)  # fmt: skip
from astdsl.lowering.layout.levels import Holder, thread_levels
from astdsl.lowering.layout.registers import REPLICATED, Layout, blocked, folded_in_warps
from astdsl.stdlib.normalisation import layer_norm_backward
from tests.witnesses import agree


@kernel
def shares(x: In["M N"], o: Out[f32, "M N"], *, bm=4, bn=1024):
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        rows = abs(x[tile(i, bm), tile(0, bn)].astype(f32)) + 1
        o[tile(i, bm), tile(0, bn)] = rows / rows.sum(axis=1, keepdims=True)


@kernel
def scaled(x: In[f32, "M N"], w: In[f32, "N"], s: In[f32, "M"], o: Out[f32, "M"], *, bm=4, bn=512):
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        total = zeros(bm, f32)
        with pipeline(cdiv(N, bn), stages=2) as j:
            columns, rows = tile(j, bn), tile(i, bm)
            total += (x[rows, columns] * w[columns] * s[rows][:, None]).sum(axis=1)
        o[tile(i, bm)] = total


def exchanges(made: Any, *arguments: Any, **constants: Any) -> int:
    """Return how many words warps leave for each other in shared memory."""
    text: str = made.lower(*arguments, **constants).ptx
    return text.count("st.shared.b32")


@pytest.mark.parametrize("shape", [(8, 1024), (7, 1000), (1, 3)])
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
def test_rows_are_summed_within_warps(shape: tuple[int, int], dtype: Any) -> None:
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype.numpy)
    found = agree(shares, lambda: (x,))
    rows = abs(x.astype(np.float32)) + 1
    np.testing.assert_allclose(found, rows / rows.sum(axis=1, keepdims=True), rtol=1e-6)


def test_warps_that_hold_whole_rows_leave_nothing_for_each_other() -> None:
    # One row is held by all warps, four by one warp each.
    assert exchanges(shares, spec((64, 1024), f32)) == 0
    assert exchanges(shares, spec((64, 1024), f32), bm=1) > 0


@kernel
def rows_by_all(x: In[f32, "M N"], o: Out[f32, "M"], *, bn=512):
    M, N = x.shape
    with pipeline(M) as i:
        total = zeros((), f32)
        with pipeline(cdiv(N, bn), stages=2) as j:
            part = x[i, tile(j, bn)]
            if j % 2 == 0:
                total += part.max() * part.sum()
        o[i] = total


@pytest.mark.parametrize("columns", [1, 512, 4000])
def test_warps_that_share_a_row_meet_between_steps(columns: int) -> None:
    x = np.random.default_rng(0).integers(-3, 9, (2, columns)).astype(np.float32)
    parts = [x[:, k : k + 512] for k in range(0, columns, 1024)]
    expected = sum(part.max(axis=1) * part.sum(axis=1) for part in parts)
    np.testing.assert_array_equal(agree(rows_by_all, lambda: (x,)), expected)


@kernel
def in_turns(x: In[f32, "M 512"], o: Out[f32, "M 512"], *, steps=2):
    M, _ = x.shape
    with pipeline(cdiv(M, steps)) as i:
        for k in range(steps):
            row = x[i * steps + k, :]
            below = row.max() - row
            turned = reshape(reshape(cumsum(below, 0), (16, 32)).T, 512)
            o[i * steps + k, :] = turned - turned.min() + below.sum() - row.min()


def test_folds_scans_and_conversions_take_turns_in_shared_memory() -> None:
    x = np.random.default_rng(0).integers(-3, 9, (4, 512)).astype(np.float32)
    below = x.max(axis=1, keepdims=True) - x
    turned = np.cumsum(below, axis=1).reshape(4, 16, 32).transpose(0, 2, 1).reshape(4, 512)
    others = below.sum(axis=1) - x.min(axis=1) - turned.min(axis=1)
    np.testing.assert_array_equal(agree(in_turns, lambda: (x,)), turned + others[:, None])


@pytest.mark.parametrize("shape", [(8, 1024), (5, 700)])
def test_what_is_broadcast_is_loaded_where_it_is_needed(shape: tuple[int, int]) -> None:
    x, w, s = (
        np.random.default_rng(0).integers(-3, 4, n).astype(np.float32)
        for n in (shape, shape[1:], shape[:1])
    )
    found = agree(scaled, lambda: (x, w, s))
    np.testing.assert_array_equal(found, (x * w * s[:, None]).sum(axis=1))
    assert "conversion" not in scaled.lower(x, w, s).explain()


def test_tiles_that_are_folded_along_every_axis_are_held_as_they_are_loaded() -> None:
    row = spec((1024,), f32)
    rows = spec((64, 1024), f32)
    few = spec((64,), f32)
    text = layer_norm_backward.lower(rows, row, few, few, rows).ptx
    # Sums of rows cross warps, sums of columns then do not.
    assert text.count("bar.sync") <= 14


def warps_along(layout: Layout, axis: int) -> int:
    """Return how many warps hold parts of a row along an axis."""
    levels = thread_levels(layout)
    return math.prod(v.extent for v in levels if (v.axis, v.holder) == (axis, Holder.WARPS))


@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 2000),
    vector=st.sampled_from([1, 2, 4, 8]),
    warps=st.sampled_from([1, 2, 4, 8]),
    folded=st.integers(0, 1),
)
def test_a_layout_for_folds_holds_every_element_once(
    rows: int, columns: int, vector: int, warps: int, folded: int
) -> None:
    shape, threads = (rows, columns), 32 * warps
    found = folded_in_warps(shape, threads, vector, (), frozenset({folded}))
    usual = blocked(shape, threads, vector)
    assert found.thread_count == threads
    assert found.register_count <= usual.register_count
    places = found.bases[found.owners][:, None, :] + np.array(found.offsets)[None, :, :]
    inside = places[(places < shape).all(axis=2)]
    assert len(inside) == len(np.unique(inside, axis=0)) == rows * columns
    if found != usual:
        assert warps_along(found, folded) <= warps_along(usual, folded)
        assert all(v.axis != REPLICATED for v in thread_levels(found))
