"""A loop whose step fails is traced again with numbers as kernel values, and loses nothing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from astdsl import In, Out, emit_pipeline, f32, i32, kernel, pipeline
from astdsl.errors import BadWindow, HiddenMutation
from tests.witnesses import agree

X = np.arange(1, 7, dtype=np.float32)


@kernel
def makes_a_pipeline(x: In[f32, "N"], n: i32, o: Out[f32, "2"]):
    total = 0.0

    def add(i):
        nonlocal total
        total += 1

    outer = emit_pipeline(add, grid=2)
    w = 0
    while w < n:
        outer()
        inner = pipeline(2)
        v = x[w - 1]
        with inner:
            total += v
        w += 1
    o[0] = total


def test_what_the_step_that_failed_made_need_not_be_used():
    assert agree(makes_a_pipeline, lambda: (X, 3))[0] == 2 * (1 + 2) + 3 * 2


@kernel
def changes_a_list(x: In[f32, "N"], n: i32, o: Out[f32, "1"]):
    w, total, seen = 0, 0.0, []
    while w < n:
        seen.append(w)
        total += x[w - 1]
        w += 1
        seen.pop()
    o[0] = total + len(seen)


def test_a_step_that_changed_an_object_before_it_failed_is_not_traced_again():
    with pytest.raises(BadWindow, match="constant -1 as an index"):
        changes_a_list.on("reference")(X, 3)


def factorial(k):
    return 1 if k == 0 else k * factorial(k - 1)


@kernel
def recurses(x: In[f32, "N"], n: i32, o: Out[f32, "1"]):
    w, k, total = 0, 3, 0.0
    for _ in range(n):
        total += x[w - 1] * factorial(k)
        w, k = w + 1, 3
    o[0] = total


def test_an_error_is_told_where_a_recursion_needs_another_number_of_the_loop():
    with pytest.raises(BadWindow, match="constant -1 as an index"):
        recurses.on("reference")(X, 3)


@kernel
def marks_and_stops(x: In[f32, "N"], n: i32, o: Out[f32, "1"]):
    state, total = SimpleNamespace(mark=0), 0.0
    for i in range(n):
        state.mark = 5
        total += x[i]
        if total > 3:
            break
    o[0] = total + state.mark


def test_an_object_that_each_step_changes_alike_is_seen_in_a_loop_that_may_stop():
    with pytest.raises(HiddenMutation, match=r"`state\.mark` is changed"):
        marks_and_stops.on("reference")(X, 3)
