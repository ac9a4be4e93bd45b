"""Loops that Python runs while tracing: bounded, so that a slip does not compile for minutes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import astdsl.lang.tracing
from astdsl import In, Out, f32, kernel, unroll
from astdsl.errors import UnsupportedFeature

X = np.ones(8, np.float32)


@kernel
def unrolled(x: In[f32, "8"], o: Out[f32, "8"], *, n):
    t = x[...]
    for i in unroll(range(n)):
        t = t + i
    o[...] = t


@kernel
def endless(x: In[f32, "8"], o: Out[f32, "8"]):
    t = x[...]
    for i in itertools.count():
        t = t + i
    o[...] = t


def test_a_loop_is_unrolled() -> None:
    np.testing.assert_array_equal(unrolled.on("reference")(X, n=4), X + 6)


def test_too_long_a_loop_is_not_unrolled() -> None:
    with pytest.raises(UnsupportedFeature, match="more than 30,000 times") as caught:
        unrolled(X, n=10**12)
    assert caught.value.places
    assert "`for i in range(n):`" in caught.value.help


def test_a_trace_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(astdsl.lang.tracing, "MOST_OPERATIONS", 500)
    with pytest.raises(UnsupportedFeature, match="more than 500 operations") as caught:
        endless(X)
    assert caught.value.places[0][0].file == __file__
