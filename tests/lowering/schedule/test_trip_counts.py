"""Pipelines of every short length, for every number of stages: CASES 1, 2, 3, 6."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from astdsl import In, InOut, Out, cdiv, f32, kernel, pipeline, tile, zeros
from tests.arrays import whole
from tests.witnesses import agree

STAGES = range(1, 9)


@kernel
def column_sums(x: In[f32, "R N"], o: Out[f32, "N"], *, S=2, bn=64):
    R, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        acc = zeros((bn,), f32)
        with pipeline(R, stages=S) as r:
            acc += x[r, tile(j, bn)]
        o[tile(j, bn)] = acc


def lengths(stages: int) -> list[int]:
    return sorted({0, 1, stages - 1, stages, stages + 1, 2 * stages, 2 * stages + 1})


@pytest.mark.parametrize("stages", STAGES)
def test_every_length_gives_the_sum(stages: int) -> None:
    for length in lengths(stages):
        x = whole(length, 100)
        # Every length is evaluated; the emulator runs those around the number of stages.
        emulate = length in (0, 1, stages, stages + 1)
        found = agree(
            column_sums, partial(tuple, [x]), S=stages, emulate=emulate, targets=("sm_90a",)
        )
        np.testing.assert_array_equal(found, x.sum(0))


@kernel
def add_one(x: In[f32, "M N"], o: Out[f32, "M N"], *, S=2, bm=16, bn=64):
    M, N = x.shape
    with pipeline(1) as _:
        with pipeline(cdiv(M, bm), cdiv(N, bn), stages=S) as (i, j):
            o[tile(i, bm), tile(j, bn)] = x[tile(i, bm), tile(j, bn)] + 1


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_a_block_that_copies_in_and_out_keeps_every_tile(stages: int) -> None:
    x = whole(40, 136)
    found = agree(add_one, lambda: (x,), S=stages)
    np.testing.assert_array_equal(found, x + 1)


@kernel
def alternating(x: In[f32, "R N"], o: Out[f32, "N"], *, bn=64):
    R, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        acc = zeros((bn,), f32)
        with pipeline(R, stages=3) as r:
            t = x[r, tile(j, bn)]
            if r % 2 == 0:
                acc += t
            else:
                acc -= 2 * t
        o[tile(j, bn)] = acc


@kernel
def every_second(x: In[f32, "R N"], o: Out[f32, "N"], *, bn=64):
    R, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        acc = zeros((bn,), f32)
        with pipeline(R, stages=3) as r:
            if r % 2 == 0:
                acc += x[r, tile(j, bn)]
        o[tile(j, bn)] = acc


@kernel
def thrice(x: In[f32, "R N"], o: Out[f32, "N"], *, bn=64):
    R, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        acc = zeros((bn,), f32)
        for t in range(3):
            with pipeline(R, stages=3) as r:
                acc += x[r, tile(j, bn)] * (t + 1)
        o[tile(j, bn)] = acc


@kernel
def in_while_and_if(x: In[f32, "R N"], o: Out[f32, "N"], *, bn=64):
    R, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        acc = zeros((bn,), f32)
        t = 0
        while t < 2:
            if t >= 0:
                with pipeline(R, stages=2) as r:
                    acc += x[r, tile(j, bn)]
            t += 1
        o[tile(j, bn)] = acc


@kernel
def odd_rows(x: In[f32, "R N"], o: Out[f32, "N"], *, bn=64):
    R, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        acc = zeros((bn,), f32)
        with pipeline(range(1, R, 2), stages=2) as r:
            acc += x[r, tile(j, bn)]
        o[tile(j, bn)] = acc


PLACES = {
    alternating: lambda x: x[::2].sum(0) - 2 * x[1::2].sum(0),
    every_second: lambda x: x[::2].sum(0),
    thrice: lambda x: 6 * x.sum(0),
    in_while_and_if: lambda x: 2 * x.sum(0),
    odd_rows: lambda x: x[1::2].sum(0),
}


@pytest.mark.parametrize("shape", [(0, 64), (1, 68), (4, 101), (7, 100)])
@pytest.mark.parametrize("place", PLACES, ids=lambda k: k.__name__)
def test_a_pipeline_may_stand_anywhere(place: Any, shape: tuple[int, int]) -> None:
    x = whole(*shape)
    found = agree(place, lambda: (x,), targets=("sm_90a",))
    np.testing.assert_array_equal(found, PLACES[place](x))


@kernel
def nested(x: In[f32, "A B N"], y: In[f32, "A N"], o: Out[f32, "A N"], *, bn=64):
    A, B, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        with pipeline(A, stages=2) as a:
            acc = y[a, tile(j, bn)]
            with pipeline(B, stages=3) as b:
                acc += x[a, b, tile(j, bn)]
            o[a, tile(j, bn)] = acc


def test_a_pipeline_in_a_pipeline_keeps_its_count() -> None:
    x, y = whole(3, 5, 100), whole(3, 100)
    np.testing.assert_array_equal(agree(nested, lambda: (x, y)), y + x.sum(1))


@kernel
def accumulate(x: In[f32, "R N"], o: InOut[f32, "N"], *, bn=64):
    R, N = x.shape
    with pipeline(cdiv(N, bn), R) as (j, r):
        o[tile(j, bn)] += x[r, tile(j, bn)]


def test_an_updated_window_starts_from_memory() -> None:
    x, o = whole(5, 100), whole(100)
    np.testing.assert_array_equal(agree(accumulate, lambda: (x, o.copy())), o + x.sum(0))


@kernel
def running_sums(o: InOut[f32, "R N"], *, bn=64):
    R, N = o.shape
    with pipeline(cdiv(N, bn)) as j:
        with pipeline(R - 1, stages=3) as r:
            o[r + 1, tile(j, bn)] = o[r, tile(j, bn)] + o[r + 1, tile(j, bn)]


def test_a_step_reads_what_the_step_before_wrote() -> None:
    o = whole(6, 100)
    np.testing.assert_array_equal(agree(running_sums, lambda: (o.copy(),)), np.cumsum(o, 0))


@kernel
def swapped(x: In[f32, "R N"], y: In[f32, "R N"], o: Out[f32, "N"], *, bn=64, first=True):
    R, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        p = zeros((bn,), f32)
        q = zeros((bn,), f32)
        with pipeline(R, stages=3) as r:
            if first:
                p += x[r, tile(j, bn)]
                q += y[r, tile(j, bn)]
            else:
                q += y[r, tile(j, bn)]
                p += x[r, tile(j, bn)]
        o[tile(j, bn)] = p - q


def test_swapping_independent_statements_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 9, 64), np.float32)
    one = agree(swapped, lambda: (x, y), first=True)
    two = agree(swapped, lambda: (x, y), first=False)
    np.testing.assert_array_equal(one, two)
