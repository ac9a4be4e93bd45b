"""Sums that many blocks add to: neighbours go together where the whole window is inside."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from astdsl import In, Out, atomic_add, cdiv, f32, kernel, pipeline, spec, tile
from tests.witnesses import agree


@kernel
def column_sums(x: In[f32, "M N"], o: Out[f32, "N", 0], *, bm=16, bn=64):
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        atomic_add(o.at[tile(j, bn)], x[tile(i, bm), tile(j, bn)].sum(axis=0))


@kernel
def total(x: In[f32, "M N"], o: Out[f32, "B N", 0], *, bm=16, bn=64):
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        atomic_add(o.at[tile(0, bm), tile(j, bn)], x[tile(i, bm), tile(j, bn)])


def updates(made: Any, *arguments: Any) -> set[str]:
    return set(re.findall(r"\b(?:red|atom)\.\S+", made.lower(*arguments).ptx))


@pytest.mark.parametrize("columns", [128, 100])
def test_neighbours_are_added_together(columns: int) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (48, columns)).astype(np.float32)
    found = agree(total, lambda: (x, np.zeros((16, columns), np.float32)))
    np.testing.assert_array_equal(found, x.reshape(3, 16, columns).sum(axis=0))
    kinds = updates(total, x, spec((16, columns), f32))
    assert kinds == {"red.relaxed.gpu.global.add.v4.f32", "atom.relaxed.gpu.global.add.f32"}


def test_rows_that_start_anywhere_are_added_one_by_one() -> None:
    x = spec((48, 101), f32)
    assert updates(total, x, spec((16, 101), f32)) == {"atom.relaxed.gpu.global.add.f32"}


def test_a_tile_that_threads_hold_twice_is_added_once() -> None:
    x = np.random.default_rng(0).integers(-9, 9, (40, 100)).astype(np.float32)
    np.testing.assert_array_equal(agree(column_sums, lambda: (x,)), x.sum(axis=0))
