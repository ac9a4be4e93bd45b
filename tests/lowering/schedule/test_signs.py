"""Stores whose windows may begin before their array: TMA where they do not, threads where they do.

PTX ISA 9.7.9.25.5.1: a copy to global memory begins at coordinates of 0 or more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    In,
    InOut,
    Out,
    cdiv,
    ds,
    f32,
    i32,
    i64,
    kernel,
    maximum,
    minimum,
    parallel,
    pipeline,
    tile,
    u32,
    warpgroup_id,
    where,
)
from tests.witnesses import agree

X = np.random.default_rng(7).integers(-9, 9, (256, 32)).astype(np.float32)


def copies_out(made: Any, *arguments: Any, **constants: Any) -> tuple[int, int]:
    """Return how many copies out a schedule has, and how many depend on where they begin."""
    lines = str(made.lower(*arguments, **constants).schedule).splitlines()
    copies = [k for k, line in enumerate(lines) if "CopyOut" in line]
    return len(copies), sum(any("If " in line for line in lines[k - 2 : k]) for k in copies)


@kernel
def upwards(x: In[f32, "M 32"], o: InOut[f32, "M 32"], *, rows=8):
    with pipeline(x.shape[0] // 64) as i:
        o[ds(i * 64 - rows, 64), 0:32] = x[tile(i, 64), 0:32]


@kernel
def to_both_sides(x: In[f32, "M 32"], o: InOut[f32, "M 32"], up: i32, left: i32):
    with pipeline(x.shape[0] // 64) as i:
        o[ds(i * 64 - up, 64), ds(4 - left, 32)] = x[tile(i, 64), 0:32]


@kernel
def where_told(x: In[f32, "M 32"], places: In[i32, "N"], o: InOut[f32, "M 32"]):
    with pipeline(1) as _:
        for k in range(places.shape[0]):
            o[ds(places[k], 16), 0:32] = x[tile(k, 16), 0:32]


@pytest.mark.parametrize("rows", [0, 8, 64, 100])
def test_a_store_may_begin_before_its_array(rows: int) -> None:
    found = agree(upwards, lambda: (X, np.zeros_like(X)), rows=rows)
    expected = np.zeros_like(X)
    expected[: len(X) - rows] = X[rows:]
    np.testing.assert_array_equal(found, expected)
    assert copies_out(upwards, X, np.zeros_like(X), rows=rows) == (1, rows > 0)


@pytest.mark.parametrize(("up", "left"), [(8, 0), (0, 8), (8, 8), (-8, -4)])
def test_a_store_may_begin_before_its_array_on_each_axis(up: int, left: int) -> None:
    found = agree(to_both_sides, lambda: (X, np.zeros_like(X), up, left))
    padded = np.zeros((512, 96), np.float32)
    padded[128 - up : 384 - up, 36 - left : 68 - left] = X
    np.testing.assert_array_equal(found, padded[128:384, 32:64])


def test_places_from_memory_may_be_before_the_array() -> None:
    places = np.array([40, -8, 100, 250], np.int32)
    found = agree(where_told, lambda: (X, places, np.zeros_like(X)))
    expected = np.zeros_like(X)
    for k, place in enumerate(places):
        low, high = max(place, 0), min(place + 16, 256)
        expected[low:high] = X[16 * k + low - place : 16 * k + high - place]
    np.testing.assert_array_equal(found, expected)


def backwards(linear: Any, grid: Any) -> Any:
    m, n = grid
    return m - 1 - linear % m, n - 1 - linear // m


@kernel
def in_an_order(x: In[f32, "M N"], o: Out[f32, "M N"], *, b=32):
    M, N = x.shape
    with pipeline(cdiv(M, b), cdiv(N, b), order=backwards) as (i, j):
        o[tile(i, b), tile(j, b)] = x[tile(i, b), tile(j, b)]


@kernel
def by_arithmetic(x: In[f32, "M 32"], o: Out[f32, "M 32"], first: u32, other: i32, *, b=16):
    with pipeline(1) as _:
        row = maximum(other * b - 8, 0) // 2 + (other % 3) * b + minimum(i64(first), 4)
        row = row + where(other > 3, 1, other & 7) + 9 - (other & 7) - other % 3
        o[ds(row, b), 0:32] = x[0:b, 0:32]


@kernel(warpgroups=2)
def by_the_other_warpgroup(x: In[f32, "M 64"], o: Out[f32, "M 64"]):
    with parallel(x.shape[0] // 64) as i:
        other = tile(2 * i + 1 - warpgroup_id(), 32)
        o[other, :] = x[other, :] + 1


def test_what_cannot_be_negative_is_copied_without_a_branch() -> None:
    assert copies_out(in_an_order, X) == (1, 0)
    np.testing.assert_array_equal(agree(in_an_order, lambda: (X,)), X)


def test_signs_follow_arithmetic() -> None:
    assert copies_out(by_arithmetic, X, None, 1, 2) == (1, 0)
    assert copies_out(by_the_other_warpgroup, X.reshape(128, 64)) == (1, 0)
