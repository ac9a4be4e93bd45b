"""Grids whose arithmetic Python knows otherwise: the host counts what the kernel would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from astdsl import (
    In,
    Out,
    cdiv,
    f32,
    i32,
    kernel,
    maximum,
    minimum,
    parallel,
    pipeline,
    tile,
    where,
)
from astdsl.errors import FailedAssertion
from tests.witnesses import agree

X = np.arange(16, dtype=np.float32)
DEVICES = ("reference", "emulator")
Count = Callable[[Any, Any, Any], Any]


@kernel
def counted(x: In[f32, "N"], n: i32, s: f32, o: Out[f32, "N", 0], *, count: Count):
    with pipeline(count(x.shape[0], n, s)) as i:
        o[tile(i, 4)] = x[tile(i, 4)]


@pytest.mark.parametrize(
    ("count", "n", "s", "steps"),
    [
        (lambda length, n, s: minimum(n * n * n, 3), 1 << 30, 0, 0),  # i32 wraps
        (lambda length, n, s: minimum(abs(n) - 1, 3), -(2**31), 0, 3),
        (lambda length, n, s: (4 >> n) + 1, -1, 0, 1),
        (lambda length, n, s: (1 << n) + 2, 40, 0, 2),
        (lambda length, n, s: (n >> 99) + 3, -5, 0, 2),
        (lambda length, n, s: 7 & ~n, 4, 0, 3),
        (lambda length, n, s: int(s) & 3, 0, float("nan"), 0),
        (lambda length, n, s: int(s) & 3, 0, float("inf"), 3),
        (lambda length, n, s: int(s) & 3, 0, -1e30, 0),
        (lambda length, n, s: int(length / s) & 3, 0, 0, 3),
        (lambda length, n, s: int(s // 0.0) & 3, 0, 1, 3),
        (lambda length, n, s: int(s % 0.0) + 1, 0, 1, 1),
        (lambda length, n, s: int(s + 16777216.0) - 16777216, 0, 1, 0),  # f32 rounds
        (lambda length, n, s: int(maximum(1.0, s)), 0, float("nan"), 0),
        (lambda length, n, s: where(n == 0, 3, cdiv(length, n)), 0, 0, 3),
        (lambda length, n, s: minimum(cdiv(length, maximum(n, 1)), 2), 0, 0, 2),
    ],
)
def test_the_host_counts_as_the_kernel_would(count: Count, n: int, s: float, steps: int) -> None:
    made = agree(counted, lambda: (X, n, s), targets=["sm_90a"], count=count)
    assert np.array_equal(made, np.where(steps > X // 4, X, 0))


@kernel
def in_order(x: In[f32, "N"], n: i32, o: Out[f32, "N", 0]):
    with pipeline(x.shape[0] % n, axes="sequential") as i:
        o[tile(i, 4)] = x[tile(i, 4)]


@kernel
def side_by_side(x: In[f32, "N"], n: i32, o: Out[f32, "N", 0]):
    with parallel(minimum(cdiv(x.shape[0], n), 4)) as i:
        o[tile(i, 4)] = x[tile(i, 4)]


@pytest.mark.parametrize("divided", [in_order, side_by_side])
@pytest.mark.parametrize("device", DEVICES)
def test_a_number_of_steps_that_divides_by_zero_is_refused(divided: Any, device: str) -> None:
    with pytest.raises(FailedAssertion, match="the number of steps is not divided by 0"):
        divided.on(device)(X, n=0)
    assert divided.on(device)(X, n=5)[1] == 1


@kernel
def required(x: In[f32, "N"], o: Out[f32, "N"], n: i32):
    assert x.shape[0] // n > 1, "two blocks"
    o[...] = x[...]


@pytest.mark.parametrize("device", DEVICES)
def test_an_assertion_that_divides_by_zero_is_judged_as_the_language_says(device: str) -> None:
    with pytest.raises(FailedAssertion, match="two blocks"):
        required.on(device)(X, n=0)


@kernel
def guarded(x: In[f32, "N"], n: i32, o: Out[f32, "N", 0]):
    if n > 0:
        with pipeline(cdiv(x.shape[0], n)) as i:
            o[tile(i, 4)] = x[tile(i, 4)]
    with pipeline(2) as j, pipeline(x.shape[0] // n) as k:  # the inner one has no steps
        o[tile(j, 4)] = k


def test_a_guarded_grid_that_divides_by_zero_has_no_blocks() -> None:
    made = agree(guarded, lambda: (X, 0))
    assert np.array_equal(made, np.zeros(16))
