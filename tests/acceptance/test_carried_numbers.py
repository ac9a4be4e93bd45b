"""Numbers of Python and NumPy, and members of an `IntEnum`, are carried and chosen alike."""

from __future__ import annotations

import enum

import ml_dtypes
import numpy as np
import pytest

from astdsl import In, Out, bf16, f32, i32, kernel, maximum, pipeline
from astdsl.errors import BadWindow
from tests.witnesses import agree

X = np.arange(-3, 4, dtype=np.float32)


class Mode(enum.IntEnum):
    """Two members that are numbers."""

    SLOW = 1
    FAST = 7


@kernel
def carried(x: In[f32, "N"], n: i32, o: Out[f32, "N"]):
    largest, limit = np.float32(-np.inf), np.finfo(np.float32).min
    count, positive, pair = np.int64(0), np.bool_(False), (np.float32(1), x[...])
    for i in range(n):
        largest, limit = maximum(largest, x[i]), max(limit, x[i])
        count, positive = count + 1, positive or x[i] > 0
        pair = pair[0] * 2, pair[1]
    o[...] = pair[0] * pair[1] + largest + limit + count + (100 if positive else 0)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_numbers_of_numpy_are_carried(n: int) -> None:
    found = agree(carried, lambda: (X, n))
    largest = X[:n].max()
    expected = 2**n * X + 2 * largest + n + (100 if largest > 0 else 0)
    np.testing.assert_array_equal(found, expected)


@kernel
def summed(x: In[bf16, "N"], n: i32, o: Out[bf16, "1"]):
    total = ml_dtypes.bfloat16(0)
    for i in range(n):
        total = total + x[i]
    o[0] = total


def test_a_number_of_a_small_float_takes_the_dtype_that_steps_give() -> None:
    assert agree(summed, lambda: (X.astype(ml_dtypes.bfloat16), 3)).tolist() == [-6]


@kernel
def chosen(x: In[f32, "N"], n: i32, o: Out[f32, "N"]):
    def factor(k):
        if k > 2:
            return np.float32(2.5)
        return np.int32(3)

    mode = Mode.FAST if n > 2 else Mode.SLOW
    offset = np.float32(0.5)
    if n > 2:
        offset = Mode.FAST
    o[...] = x[...] * factor(n) + mode + offset * (1 if mode == Mode.FAST else 2)


@pytest.mark.parametrize(("n", "factor", "offset"), [(1, 3, 2), (3, 2.5, 14)])
def test_branches_may_leave_different_numbers(n: int, factor: float, offset: float) -> None:
    found = agree(chosen, lambda: (X, n))
    np.testing.assert_array_equal(found, X * np.float32(factor) + np.float32(offset))


@kernel
def before_the_start(x: In[f32, "N"], n: i32, o: Out[f32, "3"]):
    w, total = 0, 0.0
    while w < n:
        total += x[w - 1]
        w += 1
    o[0] = total
    k, total = 0, 0.0
    with pipeline(n):
        total += x[k - 1]
        k += 1
    o[1] = total
    j, step, total = 0, 2, 0.0
    for i in range(n):
        if i >= 0:
            total += x[j - step]
            j += 1
    o[2] = total


def test_a_number_that_is_counted_up_is_no_constant_in_the_first_step():
    x = np.arange(1, 7, dtype=np.float32)
    assert np.array_equal(agree(before_the_start, lambda: (x, 3)), [3, 3, 1])


def test_a_number_that_no_step_changes_stays_a_constant():
    @kernel
    def wrong(x: In[f32, "N"], n: i32, o: Out[f32, "1"]):
        w, total = 0, 0.0
        for _ in range(n):
            total += x[w - 1]
        o[0] = total

    with pytest.raises(BadWindow, match="constant -1 as an index"):
        wrong.on("reference")(np.zeros(4, np.float32), 3)
