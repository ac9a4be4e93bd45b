"""Which axes of an outermost pipeline become blocks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from astdsl import In, InOut, Out, cdiv, f32, kernel, parallel, pipeline, spec, tile, zeros
from astdsl.errors import ParallelConflict
from astdsl.lowering.schedule.launches import SerialPipeline
from tests.witnesses import agree

SHAPE = spec((64, 64), f32)


def blocks(lowered: Any) -> str:
    """Return the launch's grid as text, one line."""
    grid = lowered.schedule.split("Launch grid {")[1].split("} body")[0]
    return re.sub(r"\s+", " ", grid)


def inner_loops(lowered: Any) -> int:
    return int(lowered.schedule.split("} body(%block")[1].count('name="steady"'))


@kernel
def digits(x: In[f32, "N"], o: Out[f32, "N"], *, b=16, h=4):
    (N,) = x.shape
    with pipeline(cdiv(N, b * h), h) as (i, j):
        o[tile(i * h + j, b)] = x[tile(i * h + j, b)] * 2


def test_two_indices_of_one_axis_are_digits_of_a_number() -> None:
    x = np.arange(200, dtype=np.float32)
    np.testing.assert_array_equal(agree(digits, lambda: (x,), targets=("sm_90a",)), x * 2)
    assert inner_loops(digits.lower(spec((200,), f32))) == 0


@kernel
def row_by_row(x: In[f32, "N"], o: Out[f32, "N"], *, b=16, h=4):
    (N,) = x.shape
    with pipeline(cdiv(N, b * h)) as i:
        for j in range(h):
            o[tile(i * h + j, b)] = x[tile(i * h + j, b)] * 2


def test_the_index_of_a_loop_inside_is_a_digit_too() -> None:
    x = np.arange(200, dtype=np.float32)
    np.testing.assert_array_equal(agree(row_by_row, lambda: (x,), targets=("sm_90a",)), x * 2)
    assert "Yield [%c1]" not in blocks(row_by_row.lower(spec((200,), f32)))


@kernel
def loops_that_meet(o: InOut[f32, "N"], *, h=4):
    (N,) = o.shape
    with pipeline(cdiv(N, h) - 1) as i:
        for j in range(h - i, 2 * h - i):
            o[i * h + j] = o[i * h + j] + 1


def test_a_loop_inside_that_begins_elsewhere_in_every_step_is_no_digit() -> None:
    with pytest.warns(SerialPipeline, match="one block"):
        grid = blocks(loops_that_meet.lower(spec((64,), f32)))
    assert "Yield [%c1]" in grid


@kernel
def first_only(x: In[f32, "M N"], o: Out[f32, "M"], p: Out[f32, "M N"]):
    M, N = x.shape
    with pipeline(cdiv(M, 16), cdiv(N, 16)) as (i, j):
        p[tile(i, 16), tile(j, 16)] = x[tile(i, 16), tile(j, 16)]
        if j == 0:
            o[tile(i, 16)] = x[tile(i, 16), 0]


def test_a_guard_that_holds_in_one_step_counts() -> None:
    assert inner_loops(first_only.lower(SHAPE)) == 0
    x = np.arange(40 * 36, dtype=np.float32).reshape(40, 36)
    o, p = agree(first_only, lambda: (x,), targets=("sm_90a",))
    np.testing.assert_array_equal(o, x[:, 0])
    np.testing.assert_array_equal(p, x)


@kernel
def guarded_first(x: In[f32, "M N"], o: Out[f32, "M"], p: Out[f32, "M N"], *, first):
    M, N = x.shape
    with pipeline(cdiv(M, 16), cdiv(N, 16)) as (i, j):
        p[tile(i, 16), tile(j, 16)] = x[tile(i, 16), tile(j, 16)]
        if first(j, cdiv(N, 16), i):
            o[tile(i, 16)] = x[tile(i, 16), 0]


@pytest.mark.parametrize(
    "first",
    [
        lambda j, n, i: not j,
        lambda j, n, i: j < 1,
        lambda j, n, i: j <= 0,
        lambda j, n, i: not j > 0,
        lambda j, n, i: not (j > 0 or i > 9),
        lambda j, n, i: i < 5 and j == 0,
        lambda j, n, i: -1 < j < 1,
        lambda j, n, i: j == n - 1,
        lambda j, n, i: j >= n - 1,
        lambda j, n, i: n - j < 2,
        lambda j, n, i: j + 1 == n,
    ],
)
def test_a_guard_that_holds_in_the_first_or_last_step_counts(first) -> None:
    assert inner_loops(guarded_first.lower(SHAPE, first=first)) == 0
    x = np.arange(40 * 36, dtype=np.float32).reshape(40, 36)
    o, _ = agree(guarded_first, lambda: (x,), targets=("sm_90a",), emulate=False, first=first)
    assert np.array_equal(o, x[:, 0])


@pytest.mark.parametrize("first", [lambda j, n, i: j < 2, lambda j, n, i: j >= 0])
def test_a_guard_that_holds_in_more_steps_does_not(first) -> None:
    assert inner_loops(guarded_first.lower(SHAPE, first=first)) == 1


@kernel
def overwritten(x: In[f32, "M N"], o: Out[f32, "M"]):
    M, N = x.shape
    acc = zeros((16,), f32)
    with pipeline(cdiv(M, 16), N) as (i, j):
        if j == 0:
            acc = zeros((16,), f32)
        acc = acc + x[tile(i, 16), j]
        o[tile(i, 16)] = acc


def test_what_the_first_inner_step_overwrites_is_not_carried_over_the_outer_axis() -> None:
    lowered = overwritten.lower(SHAPE)
    assert inner_loops(lowered) == 1
    x = np.arange(40 * 36, dtype=np.float32).reshape(40, 36)
    np.testing.assert_array_equal(agree(overwritten, lambda: (x,), targets=("sm_90a",)), x.sum(1))


@kernel
def shifted(o: InOut[f32, "N"], *, b=16):
    (N,) = o.shape
    with pipeline(N // b - 1) as i:
        o[tile(i + 1, b)] = o[tile(i + 1, b)] + o[tile(i, b)]


def test_a_step_that_reads_its_neighbour_runs_in_order_and_says_so() -> None:
    lowered = shifted.lower(spec((64,), f32))
    with pytest.warns(SerialPipeline, match="one block"):
        grid = blocks(lowered)
    assert "Yield [%c1]" in grid


@kernel
def trusted(x: In[f32, "M N"], o: Out[f32, "M N"]):
    M, _ = x.shape
    with parallel(M) as i:
        o[0, tile(i, 16)] = x[i, tile(0, 16)]


def test_the_word_of_the_author_is_taken_where_nothing_disproves_it() -> None:
    assert inner_loops(trusted.lower(SHAPE)) == 0


@kernel
def conflicting(x: In[f32, "M N"], o: Out[f32, "M N"]):
    M, _ = x.shape
    with parallel(M) as i:
        o[0, 0:16] = x[i, 0:16]


@kernel
def conflicting_in_a_loop(x: In[f32, "M N"], o: Out[f32, "M N"], *, h=2):
    M, _ = x.shape
    with parallel(cdiv(M, h)) as i:
        for j in range(h):
            o[j, 0:16] = x[i * h + j, 0:16]


@kernel
def conflicting_in_a_pipeline(x: In[f32, "M N"], o: Out[f32, "M N"], *, h=2):
    M, _ = x.shape
    with parallel(cdiv(M, h)) as i:
        with pipeline(h) as j:
            o[j, 0:16] = x[i * h + j, 0:16]


@pytest.mark.parametrize("conflict", [conflicting_in_a_loop, conflicting_in_a_pipeline])
def test_a_conflict_of_loops_that_take_the_same_steps_is_proved(conflict: Any) -> None:
    with pytest.raises(ParallelConflict, match="every step along axis 0"):
        conflict.lower(SHAPE).ptx


@kernel
def guarded_in_a_loop(x: In[f32, "M N"], o: InOut[f32, "M N"], *, h=2):
    M, _ = x.shape
    with parallel(cdiv(M, h)) as i:
        for j in range(i * h, i * h + h):
            o[j, 0:16] = x[j, 0:16]
        for j in range(h):
            if i == 0:
                o[j, 16:32] = x[j, 0:16]


def test_a_loop_that_begins_elsewhere_or_asks_proves_no_conflict() -> None:
    x = np.ones((64, 64), np.float32)
    assert (
        agree(guarded_in_a_loop, lambda: (x, np.zeros_like(x)), targets=("sm_90a",)).sum() == 1056
    )


def test_a_proved_conflict_is_refused_with_both_lines() -> None:
    with pytest.raises(ParallelConflict) as caught:
        conflicting.lower(SHAPE).ptx
    assert [span.line for span, _ in caught.value.places] == sorted(
        (span.line for span, _ in caught.value.places), reverse=True
    )


@kernel
def carrying(x: In[f32, "M N"], o: Out[f32, "M N"], *, axes=("parallel", "parallel")):
    M, N = x.shape
    total = x[0, 0]
    with pipeline(M, cdiv(N, 16), axes=axes) as (i, j):
        total = x[i, 0] if j == 0 else total + x[i, j]
        o[i, tile(j, 16)] = x[i, tile(j, 16)] + total


@pytest.mark.parametrize("axes", [("parallel", "parallel"), ("sequential", "parallel")])
def test_a_name_carried_over_parallel_steps_is_a_conflict(axes: Any) -> None:
    with pytest.raises(ParallelConflict, match="`total` is carried over axis 1"):
        carrying.lower(SHAPE, axes=axes).ptx


def test_a_name_that_the_first_step_of_the_inner_axis_sets_is_carried_over_that_one_only() -> None:
    x = np.arange(3 * 40, dtype=np.float32).reshape(3, 40)
    agree(carrying, lambda: (x,), targets=("sm_90a",), axes=("parallel", "sequential"))


@kernel
def chunks(x: In[f32, "N"], o: Out[f32, "N"], *, parts=3, b=16):
    (N,) = x.shape
    each = cdiv(cdiv(N, b), parts)
    with pipeline(parts) as p, pipeline(each) as k:
        o[tile(p * each + k, b)] = x[tile(p * each + k, b)] * 2


@pytest.mark.parametrize("size", [0, 1, 40, 200])
def test_a_digit_may_have_a_number_of_values_known_only_at_the_launch(size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    np.testing.assert_array_equal(agree(chunks, lambda: (x,), targets=("sm_90a",)), x * 2)
    assert "Yield [%c1]" not in blocks(chunks.lower(spec((200,), f32)))


@kernel
def chunks_that_overlap(x: In[f32, "N"], o: InOut[f32, "N"], *, parts=3, b=16):
    (N,) = x.shape
    each = cdiv(cdiv(N, b), parts)
    with pipeline(parts) as p, pipeline(each + 1) as k:
        o[tile(p * each + k, b)] += x[tile(p * each + k, b)] * 2


def test_a_digit_that_goes_one_too_far_is_no_digit() -> None:
    lowered = chunks_that_overlap.lower(spec((200,), f32), spec((200,), f32))
    with pytest.warns(SerialPipeline):
        assert "Yield [%c1]" in blocks(lowered)


@kernel
def triangle(o: InOut[f32, "N"], *, b=16):
    (N,) = o.shape
    with pipeline(cdiv(N, b)) as p, pipeline(p + 1) as k:
        o[tile(p * (p + 1) + k, b)] += 1


def test_a_number_of_values_that_changes_with_the_step_counts_no_digit() -> None:
    lowered = triangle.lower(spec((200,), f32))
    with pytest.warns(SerialPipeline):
        assert "Yield [%c1]" in blocks(lowered)
