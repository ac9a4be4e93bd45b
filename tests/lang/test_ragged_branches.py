"""Ragged tiles that one branch alone makes: stored where inside, never masked by a guess."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl import In, Out, f16, f32, kernel, ones, tile, zeros
from astdsl.errors import OutsideLost
from tests.witnesses import agree

RANDOM = np.random.default_rng(11)
X = RANDOM.integers(-3, 4, (60, 32)).astype(np.float16)
Y = RANDOM.integers(-3, 4, (32, 60)).astype(np.float16)


@kernel
def sums_products_under_a_condition(
    x: In[f16, "M K"], y: In[f16, "K N"], o: Out[f32, "M N"], *, b=64
):
    acc = zeros((b, b), f32)
    for k in range(2):
        if k % 2 == 1:
            acc += x[0:b, tile(k, 16)] @ y[tile(k, 16), 0:b]
    o[0:b, 0:b] = acc


def test_a_ragged_product_may_be_added_under_a_condition_as_it_may_in_a_loop() -> None:
    found = agree(sums_products_under_a_condition, lambda: (X, Y))
    expected = X[:, 16:].astype(np.float32) @ Y[16:].astype(np.float32)
    np.testing.assert_array_equal(found, expected)


@kernel
def sums_what_one_branch_made(x: In[f32, "N"], n: f32, o: Out[f32, "1"], *, b=8):
    t = ones(b)
    if n > 0:
        t = x[0:b] + 1
    o[0] = t.sum()


def test_a_sum_over_elements_that_only_one_branch_has_is_refused() -> None:
    with pytest.raises(OutsideLost, match="depends on the branch taken") as caught:
        sums_what_one_branch_made(np.ones(5, np.float32), 1.0)
    assert [span.line for span, _ in caught.value.places] == [_line_of("t.sum()")]
    assert "filled" in caught.value.help


def _line_of(text: str) -> int:
    lines = sums_what_one_branch_made.__wrapped__.__code__.co_filename
    with open(lines, encoding="utf-8") as file:  # noqa: PTH123
        return next(n for n, line in enumerate(file, 1) if text in line)


@kernel
def sums_with_the_outside_filled(x: In[f32, "N"], n: f32, o: Out[f32, "1"], *, b=8):
    t = ones(b)
    if n > 0:
        t = (x[0:b] + 1).filled(0)
    o[0] = t.sum()


@pytest.mark.parametrize(("n", "expected"), [(1.0, 10), (0.0, 8)])
def test_filling_the_outside_in_the_branch_is_a_way_out(n: float, expected: float) -> None:
    x = np.ones(5, np.float32)
    found = agree(sums_with_the_outside_filled, lambda: (x, n))
    np.testing.assert_array_equal(found, [expected])


@kernel
def joins_one_edge(x: In[f32, "N"], n: f32, o: Out[f32, "1"], *, b=8):
    t = x[0:b] + 1
    if n > 0:
        t = t * 2
    o[0] = t.sum()


@pytest.mark.parametrize(("n", "expected"), [(1.0, 20), (0.0, 10)])
def test_both_branches_with_one_edge_are_summed_inside_it(n: float, expected: float) -> None:
    x = np.ones(5, np.float32)
    np.testing.assert_array_equal(agree(joins_one_edge, lambda: (x, n)), [expected])
