"""Outputs that are read where an earlier store, or the steps of a loop, wrote all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import GMEM, In, Out, cdiv, ds, f32, i32, kernel, pipeline, tile, zeros
from astdsl.errors import ScatteredAccumulation, UnwrittenRead
from tests.frontend.tracing import text
from tests.witnesses import agree

X = np.random.default_rng(5).integers(-9, 9, (32, 16)).astype(np.float32)
TIMES = 3


@kernel
def stored_whole_in_a_loop(x: In[f32, "32 16"], o: Out[f32, "32 16"], p: Out[f32, "8 16"]):
    for t in range(TIMES):
        o[...] = x[...] * t
        acc = zeros((8, 16), f32)
        with pipeline(4, stages=2) as i:
            acc += o[tile(i, 8)]
        p[...] = acc


@kernel
def stored_whole_before(x: In[f32, "32 16"], o: Out[f32, "32 16"], p: Out[f32, "8 16"]):
    with pipeline(1) as _:
        o[...] = x[...] * (TIMES - 1)
        for _ in range(TIMES):
            acc = zeros((8, 16), f32)
            with pipeline(4, stages=3) as i:
                acc += o[tile(i, 8)]
            p[...] = acc


@kernel
def tile_by_tile(x: In[f32, "M N"], o: Out[f32, "M N"], p: Out[f32, "8 16"], *, b=8):
    for t in range(TIMES):
        with pipeline(cdiv(x.shape[0], b), stages=2) as i:
            o[tile(i, b), 0:16] = x[tile(i, b), 0:16] * t
        acc = zeros((b, 16), f32)
        with pipeline(cdiv(x.shape[0], b), stages=2) as i:
            acc += o[tile(i, b), 0:16]
        p[...] = acc


@kernel
def in_other_tiles(x: In[f32, "32 16"], o: Out[f32, "32 16"], p: Out[f32, "8 16"]):
    for t in range(TIMES):
        with pipeline(2, range(0, 32, 16)) as (j, i):
            o[ds(i, 16), tile(j, 8)] = x[ds(i, 16), tile(j, 8)] * t
        acc = zeros((8, 16), f32)
        with pipeline(4) as i:
            acc += o[tile(i, 8)]
        p[...] = acc


SUMMED = [stored_whole_in_a_loop, stored_whole_before, tile_by_tile, in_other_tiles]


@pytest.mark.parametrize("summed", SUMMED, ids=lambda summed: summed.__name__)
def test_what_was_written_in_full_may_be_read_in_a_pipeline(summed: Any) -> None:
    o, p = agree(summed, lambda: (X,))
    assert np.array_equal(o, X * (TIMES - 1))
    assert np.array_equal(p, o.reshape(4, 8, 16).sum(0))


@kernel
def updated_in_place(x: In[f32, "M N"], o: Out[f32, "M N"], *, b=8):
    with pipeline(1) as _:
        for i in range(cdiv(x.shape[0], b)):
            o[tile(i, b), 0:16] = x[tile(i, b), 0:16]
        for _ in range(TIMES):
            with pipeline(cdiv(x.shape[0], b)) as k:
                o[tile(k, b), 0:16] += 1


@pytest.mark.parametrize("rows", [1, 8, 30, 32])
def test_an_output_is_updated_after_a_loop_that_wrote_it(rows: int) -> None:
    assert np.array_equal(agree(updated_in_place, lambda: (X[:rows],)), X[:rows] + TIMES)


@kernel
def through_scratch(x: In[f32, "32 16"], o: Out[f32, "32 16"]):
    half = GMEM((32, 16), f32)
    with pipeline(1) as _:
        for t in range(TIMES):
            with pipeline(4, stages=2) as i:
                half[tile(i, 8)] = x[tile(i, 8)] + t
            with pipeline(4, stages=2) as i:
                o[tile(i, 8)] = half[tile(i, 8)] * 2


def test_scratch_is_read_after_a_pipeline_that_wrote_it() -> None:
    assert np.array_equal(agree(through_scratch, lambda: (X,)), (X + TIMES - 1) * 2)


@kernel
def updated(x: In[f32, "32 16"], n: i32, o: Out[f32, "32 16"], *, write):
    for _ in range(TIMES):
        write(x, n, o)
        with pipeline(4) as i:
            o[tile(i, 8)] += 1


def all_rows(x, n, o):
    with pipeline(4) as i:
        o[tile(i, 8)] = x[tile(i, 8)]


def all_quarters(x, n, o):
    with pipeline(2, 2) as (i, j):
        o[tile(i, 16), tile(j, 8)] = x[tile(i, 16), tile(j, 8)]


def too_few(x, n, o):
    with pipeline(3) as i:
        o[tile(i, 8)] = x[tile(i, 8)]


def with_gaps(x, n, o):
    with pipeline(5) as i:  # the last window reaches the end
        o[ds(8 * i, 7)] = x[ds(8 * i, 7)]


def guarded(x, n, o):
    with pipeline(4) as i:
        if i != 2:
            o[tile(i, 8)] = x[tile(i, 8)]


def perhaps_never(x, n, o):
    with pipeline(n, 4) as (_, i):
        o[tile(i, 8)] = x[tile(i, 8)]


def diagonal(x, n, o):
    with pipeline(2) as i:
        o[tile(i, 16), tile(i, 8)] = x[tile(i, 16), tile(i, 8)]


def from_the_second(x, n, o):
    with pipeline(range(1, 5)) as i:  # the last window reaches the end
        o[tile(i, 8)] = x[tile(i, 8)]


def from_another_start(x, n, o):
    with pipeline(range(n, 4)) as i:
        o[tile(i, 8)] = x[tile(i, 8)]


@pytest.mark.parametrize("write", [all_rows, all_quarters], ids=lambda write: write.__name__)
def test_what_each_step_writes_in_full_is_updated(write: Any) -> None:
    assert np.array_equal(agree(updated, lambda: (X, 1), write=write), X + 1)


WRONG = [
    too_few, with_gaps, guarded, perhaps_never, diagonal, from_the_second, from_another_start,
]  # fmt: skip


@pytest.mark.parametrize("write", WRONG, ids=lambda write: write.__name__)
def test_what_is_not_proved_written_in_full_is_refused(write: Any) -> None:
    with pytest.raises(UnwrittenRead) as caught:
        updated(X, 1, write=write)
    assert text(caught.value.places[0][0]) == "o[tile(i, 8)]"


@kernel
def only_the_step_before(x: In[f32, "32 16"], o: Out[f32, "32 16"]):
    for t in range(TIMES):
        if t > 0:
            with pipeline(4) as i:
                o[tile(i, 8)] += 1
        with pipeline(4) as i:
            o[tile(i, 8)] = x[tile(i, 8)]


def test_what_the_step_before_wrote_is_no_start() -> None:
    with pytest.raises(ScatteredAccumulation) as caught:
        only_the_step_before(X)
    assert text(caught.value.places[0][0]) == "o[tile(i, 8)]"
