"""Windows that stand still while others move are copied once, and written once."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl import In, InOut, Out, f32, kernel, pipeline, spec, tile, zeros
from tests.arrays import whole
from tests.witnesses import agree


@kernel
def stationary(x: In[f32, "A B N"], y: In[f32, "A N"], o: Out[f32, "A B N"], *, S=2):
    A, B, _ = x.shape
    with pipeline(1) as _:
        with pipeline(A, B, stages=S) as (a, b):
            o[a, b, 0:64] = x[a, b, 0:64] * y[a, 0:64]


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_an_input_that_stands_still_is_copied_when_its_index_moves(stages: int) -> None:
    x, y = whole(3, 4, 64), whole(3, 64)
    found = agree(stationary, lambda: (x, y), S=stages, targets=("sm_90a",))
    np.testing.assert_array_equal(found, x * y[:, None])
    schedule = stationary.lower(spec((3, 4, 64), f32), spec((3, 64), f32), S=stages).schedule
    inner = schedule[schedule.index("y_copy" if "y_copy" in schedule else "ref=%y") :]
    assert inner.index("ref=%y") < inner.index("ref=%x")


@kernel
def probe(o: Out[f32, "M N"], *, S=2):
    with pipeline(1) as _:
        with pipeline(2, 4, stages=S) as (i, j):
            out = o.at[tile(i, 8), 0:16]
            if j == 0:
                out[...] = 0
            out[...] += 1


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_an_output_is_written_after_its_last_visit(stages: int) -> None:
    found = agree(probe, lambda: (np.full((16, 16), np.nan, np.float32),), S=stages)
    np.testing.assert_array_equal(found, np.full((16, 16), 4))


@kernel
def invariant(x: In[f32, "R N"], y: In[f32, "N"], o: Out[f32, "N"]):
    R, _ = x.shape
    acc = zeros((64,), f32)
    with pipeline(R, stages=2) as r:
        acc += x[r, 0:64] * y[0:64]
    o[0:64] = acc


def test_what_no_index_moves_is_loaded_in_front() -> None:
    x, y = whole(5, 64), whole(64)
    np.testing.assert_array_equal(agree(invariant, lambda: (x, y)), (x * y).sum(0))
    schedule = invariant.lower(spec((5, 64), f32), spec((64,), f32)).schedule
    assert schedule.index("Load %y") < schedule.index('Phase name="steady"')


@kernel
def carried_over_both(
    x: In[f32, "A B N"], y: In[f32, "A N"], o: InOut[f32, "A N"], t: Out[f32, "N"]
):
    A, B, _ = x.shape
    total = zeros((64,), f32)
    with pipeline(A, B, stages=3) as (a, b):
        o[a, 0:64] += x[a, b, 0:64] - y[a, 0:64]
        total = total + x[a, b, 0:64]
    t[0:64] = total


def test_what_is_carried_goes_through_the_split() -> None:
    x, y, o = whole(3, 4, 64), whole(3, 64), whole(3, 64)
    total, updated = agree(carried_over_both, lambda: (x, y, o.copy()))
    np.testing.assert_array_equal(total, x.sum((0, 1)))
    np.testing.assert_array_equal(updated, o + x.sum(1) - 4 * y)


@kernel
def two_held(x: In[f32, "R N"], o: Out[f32, "N"], p: Out[f32, "N"]):
    R, _ = x.shape
    with pipeline(R, axes="sequential") as r:
        if r == 0:
            o[0:32] = 0
            p[0:32] = 0
        o[0:32] += x[r, 0:32]
        p[0:32] += x[r, 0:32] * 2


def test_two_outputs_are_held_by_one_block() -> None:
    x = whole(5, 32)
    o, p = agree(two_held, lambda: (x,))
    np.testing.assert_array_equal(o, x.sum(0))
    np.testing.assert_array_equal(p, x.sum(0) * 2)
