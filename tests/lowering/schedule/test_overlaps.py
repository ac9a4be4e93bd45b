"""Windows of one output in one step: the same, disjoint, or refused."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl import GMEM, In, InOut, Out, cdiv, ds, f32, kernel, pipeline, tile
from astdsl.errors import OverlappingWindows, ScatteredAccumulation, UnwrittenRead
from tests.witnesses import agree

X = np.arange(100, dtype=np.float32)


@kernel
def even_and_odd(x: In[f32, "N"], o: Out[f32, "N"], *, b=16):
    (N,) = x.shape
    with pipeline(cdiv(N, 2 * b)) as i:
        o[i * 2 * b : (i + 1) * 2 * b : 2] = x[ds(i * 2 * b, b, 2)] * 2
        o[ds(i * 2 * b + 1, b, 2)] = -x[ds(i * 2 * b + 1, b, 2)]


def test_windows_with_steps_may_interleave() -> None:
    found = agree(even_and_odd, lambda: (X,))
    np.testing.assert_array_equal(found, np.where(X % 2 == 0, X * 2, -X))


@kernel
def thirds(x: In[f32, "N"], o: InOut[f32, "N"], *, b=16):
    (N,) = x.shape
    with pipeline(cdiv(N, 3 * b)) as i:
        o[ds(i * 3 * b, b, 3)] += x[ds(i * 3 * b + 1, b, 3)]
        o[ds(i * 3 * b + 1, b, 3)] = o[ds(i * 3 * b + 2, b, 3)] * 2


def test_interleaved_windows_are_read_and_written() -> None:
    expected = np.ones(99, np.float32)
    expected[0::3] += X[1:99:3]
    expected[1::3] = 2
    found = agree(thirds, lambda: (X[:99].copy(), np.ones(99, np.float32)))
    np.testing.assert_array_equal(found, expected)


@kernel
def sixths_and_fourths(x: In[f32, "N"], o: Out[f32, "N"], *, first=1):
    with pipeline(1):
        o[ds(0, 8, 6)] = x[tile(0, 8)]
        o[ds(first, 8, 4)] = x[tile(0, 8)]


def test_steps_that_share_a_divisor_interleave_or_not() -> None:
    agree(sixths_and_fourths, lambda: (X, np.zeros(100, np.float32)), first=3)
    with pytest.raises(OverlappingWindows, match="neither the same nor disjoint"):
        sixths_and_fourths.on("reference")(X, first=4)


@kernel
def turned_round(x: In[f32, "N"], o: Out[f32, "N"], *, b=16):
    n = cdiv(x.shape[0], b)
    scratch = GMEM(x.shape, f32)
    with pipeline(1):
        with pipeline(n) as i:
            scratch[tile(i, b)] = x[tile(i, b)]
        with pipeline(n) as i:
            o[tile(i, b)] = scratch[tile(n - 1 - i, b)]


@kernel
def summed_over_the_first_axis(x: In[f32, "M N"], o: Out[f32, "N"], *, b=16):
    M, N = x.shape
    scratch = GMEM((N,), f32)
    with pipeline(M, cdiv(N, b)) as (i, j):
        if i == 0:
            scratch[tile(j, b)] = 0
        scratch[tile(j, b)] += x[i, tile(j, b)]
    with pipeline(cdiv(N, b)) as j:
        o[tile(j, b)] = scratch[tile(j, b)]


def test_the_way_out_for_scratch_is_one_that_scratch_has() -> None:
    with pytest.raises(UnwrittenRead) as unwritten:
        turned_round(X)
    assert [note for _, note in unwritten.value.places] == ["`GMEM` starts unwritten"]
    assert unwritten.value.help.endswith("in an outermost pipeline before this one")
    with pytest.raises(ScatteredAccumulation) as scattered:
        summed_over_the_first_axis(X.reshape(4, 25))
    assert scattered.value.help == "move that axis last, or carry a tile"
