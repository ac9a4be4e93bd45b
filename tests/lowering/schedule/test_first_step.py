"""What the first step of the axes that revisit a window decides: what a reader would prove."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from astdsl import In, Out, cdiv, f32, i32, kernel, pipeline, spec, tile, where
from astdsl.errors import UnwrittenRead
from tests.witnesses import agree

X = np.arange(48, dtype=np.float32).reshape(8, 6)
Guard = Callable[[Any, Any, Any, Any], Any]


@kernel
def guarded(x: In[f32, "M K"], n: i32, o: Out[f32, "M"], *, first: Guard):
    with pipeline(cdiv(x.shape[0], 4), x.shape[1], 2) as (i, k, m):
        if first(i, k, m, (n, x.shape[1])):
            o[tile(i, 4)] = 0
        o[tile(i, 4)] += x[tile(i, 4), k]


GUARDS: list[Guard] = [
    lambda i, k, m, n: k == 0 and m == 0,
    lambda i, k, m, n: not (k > 0 or m > 0),
    lambda i, k, m, n: -1 < k < 1 and not m,
    lambda i, k, m, n: k == m == 0,
    lambda i, k, m, n: (first := k + m == 0) and first,
    lambda i, k, m, n: max(k, m) == 0,
    lambda i, k, m, n: k | m == 0,
    lambda i, k, m, n: not (k or m),
    lambda i, k, m, n: k // 3 + k % 3 + abs(m) == 0,
    lambda i, k, m, n: i >= 0 and k == 0 and m == 0,
    lambda i, k, m, n: k == 0 and m == 0 and i >= 0,
    lambda i, k, m, n: k < n[1] and k + m == 0,
    lambda i, k, m, n: k <= n[1] - 1 and m < 2 and k + m <= 0,
    lambda i, k, m, n: not (k + m > 0 or k >= n[1]),
    lambda i, k, m, n: int(k == 0) * int(m == 0) == 1,
    lambda i, k, m, n: where(k == 0, m == 0, False),
    lambda i, k, m, n: (m == 0) if k == 0 else False,
    lambda i, k, m, n: min(k + m, n[0]) == k + m == 0 or k + m == 0,
]


@pytest.mark.parametrize("first", GUARDS)
def test_a_guard_that_holds_in_the_first_step_writes_first(first: Guard) -> None:
    made = agree(guarded, lambda: (X, 1), targets=["sm_90a"], first=first)
    assert np.array_equal(made, 2 * X.sum(1))


@pytest.mark.parametrize(
    "first",
    [
        lambda i, k, m, n: i > 0 and k == 0 and m == 0,
        lambda i, k, m, n: k == 0 and m == 1,
        lambda i, k, m, n: k < n[0] and m == 0,
        lambda i, k, m, n: k % 2 == 1,
        lambda i, k, m, n: max(k, 1) == 0,
        lambda i, k, m, n: k + 1 < n[1] and m == 0,
        lambda i, k, m, n: where(n[0] > 0, k == 0, k > 0),
        lambda i, k, m, n: (k == 0) if n[0] > 0 else False,
    ],
)
def test_a_guard_that_may_not_hold_is_refused(first: Guard) -> None:
    with pytest.raises(UnwrittenRead):
        guarded.lower(spec((8, 6), f32), 1, first=first).schedule
