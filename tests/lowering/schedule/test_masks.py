"""Masks are left out of the blocks and steps in which they hold everywhere."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from astdsl import In, Out, cdiv, f16, f32, i32, iota, kernel, pipeline, spec, tile, where, zeros
from astdsl.stdlib.attention import attention
from tests.witnesses import agree


@kernel
def largest(x: In[f32, "M N"], o: Out[f32, "M"], *, bm=16, bn=64):
    M, N = x.shape
    with pipeline(cdiv(M, bm)) as i:
        best = zeros(bm, f32)
        with pipeline(cdiv(N, bn), stages=2) as j:
            best = best + x[tile(i, bm), tile(j, bn)].max(axis=1)
        o[tile(i, bm)] = best


@kernel
def below_diagonal(x: In[f32, "M N"], o: Out[f32, "M N"], *, b=32):
    M, N = x.shape
    with pipeline(cdiv(M, b)) as i:
        with pipeline(cdiv(N, b)) as j:
            sees = iota((b, b), 0) + i * b >= iota((b, b), 1) + j * b
            o[tile(i, b), tile(j, b)] = where(sees, x[tile(i, b), tile(j, b)], 0)


@kernel
def near_the_end(x: In[f32, "M N"], first: i32, o: Out[f32, "M N"]):
    M, N = x.shape
    with pipeline(M) as i:
        with pipeline(cdiv(N, 1024)) as j:
            sees = iota(1024, 0, dtype=i32) + first >= 0
            o[i, tile(j, 1024)] = where(sees, x[i, tile(j, 1024)], 0)


@kernel
def largest_at_once(x: In[f32, "M N"], o: Out[f32, "M"], *, bm=4, bn=256):
    M, N = x.shape
    assert bn >= N
    with pipeline(cdiv(M, bm)) as i:
        o[tile(i, bm)] = x[tile(i, bm), tile(0, bn)].max(axis=1)


def branches(made: Any, *arguments: Any, **constants: Any) -> int:
    """Return how many branches give a value."""
    schedule = str(made.lower(*arguments, **constants).schedule)
    return sum(" = If " in line for line in schedule.splitlines())


def random(*shape: int) -> Any:
    return np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)


@pytest.mark.parametrize("columns", [64, 100, 128, 130])
def test_what_is_reduced_is_masked_in_the_last_step(columns: int) -> None:
    x = random(20, columns)
    found = agree(largest, lambda: (x,))
    parts = [x[:, k : k + 64].max(axis=1) for k in range(0, columns, 64)]
    np.testing.assert_array_equal(found, sum(parts))
    assert branches(largest, x) == 1


@pytest.mark.parametrize("columns", [256, 255, 1])
def test_what_is_reduced_outside_of_loops_is_masked_if_it_is_ragged(columns: int) -> None:
    x = random(6, columns) - 20
    np.testing.assert_array_equal(agree(largest_at_once, lambda: (x,)), x.max(axis=1))
    assert branches(largest_at_once, x) == 1


def test_what_is_masked_to_be_reduced_is_masked_in_its_branch_alone() -> None:
    text = str(largest_at_once.lower(random(6, 255)).schedule)
    before, branch = text.split(" = If ")
    assert "Select" not in before
    assert branch.count("Select") == 1
    assert "is_likely=True" in branch


@pytest.mark.parametrize(("target", "columns"), [("sm_90a", 16), ("sm_100a", 64)])
def test_a_mask_that_two_branches_need_is_compared_in_both(target: str, columns: int) -> None:
    heads = spec((1, 1, 256, 64), f16)
    ptx = attention.lower(heads, heads, heads, target=target, bq=128).ptx
    # Most steps go past them. LLVM would write once, ahead of both, what is as likely as not.
    assert len(re.findall(r"setp\.gt\.s(?:32|64)", ptx)) > 1.5 * columns


def test_a_mask_of_few_elements_has_no_branch() -> None:
    assert branches(largest, spec((20, 100), f32), bm=4) == 0


@pytest.mark.parametrize("shape", [(64, 64), (50, 70)])
def test_blocks_below_the_diagonal_are_not_masked(shape: tuple[int, int]) -> None:
    x = random(*shape)
    found = agree(below_diagonal, lambda: (x,))
    np.testing.assert_array_equal(found, np.tril(x))
    assert branches(below_diagonal, x) == 1


@pytest.mark.parametrize("first", [0, -1, 2**31 - 1024, 2**31 - 1023, 2**31 - 1])
def test_sums_that_wrap_are_compared_as_they_are(first: int) -> None:
    x = random(2, 2048)
    found = agree(near_the_end, lambda: (x, first))
    with np.errstate(over="ignore"):
        sees = np.arange(1024, dtype=np.int32) + np.int32(first) >= 0
    np.testing.assert_array_equal(found, np.where(np.tile(sees, (2, 2)), x, 0))
    assert branches(near_the_end, x, first) == 1
