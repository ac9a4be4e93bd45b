"""Bools beside integers, and comparisons with numbers that a dtype does not hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from astdsl import In, Out, f32, i8, i32, kernel, maximum, minimum, tile, u8
from tests.witnesses import agree

V = np.arange(1, 17)
BYTES = np.arange(16, dtype=np.uint8)


@kernel
def masked(x: In[i8, "N"], o: Out[i8, "N"]):
    v = x[...]
    o[...] = (v > 3) * v + (v < 2)


def test_a_mask_selects_and_counts_in_the_dtype_of_what_it_meets() -> None:
    x = V.astype(np.int8)
    assert np.array_equal(agree(masked, lambda: (x,)), (x > 3) * x + (x < 2))


@kernel
def shifted(x: In[f32, "N"], o: Out[f32, "N"]):
    for i in range(x.shape[0]):
        o[i] = x[i - (i > 3)]


def test_a_bool_in_an_index_is_0_or_1() -> None:
    x = V.astype(np.float32)
    expected = [x[i - (i > 3)] for i in range(16)]
    assert agree(shifted, lambda: (x,)).tolist() == expected


@kernel
def counted(x: In[f32, "N"], o: Out[i32, "2"], *, b=32):
    n = 0
    for i in range(x.shape[0]):
        n += x[i] > 4
    o[0] = n
    # What lies outside of the array does not count.
    o[1] = ((x[tile(0, b)] >= 0) + 1).sum()


def test_bools_are_counted() -> None:
    assert agree(counted, lambda: (V.astype(np.float32),)).tolist() == [12, 32]


@kernel
def bounded(x: In[i32, "N"], o: Out[i32, "N"]):
    v = x[...]
    o[...] = minimum(v, v > 3) + maximum(1, v > 3)


def test_minimum_and_maximum_take_a_bool_beside_an_integer() -> None:
    x = V.astype(np.int32)
    assert np.array_equal(agree(bounded, lambda: (x,)), np.minimum(x, x > 3) + 1)


@kernel
def compared(x: In[u8, "N"], n: i32, o: Out[i32, "5"], *, b=32):
    v = x[tile(0, b)]
    o[0] = (v < 300).sum()
    o[1] = (v > -1).sum()
    o[2] = (v == 256).sum()
    o[3] = 0
    o[4] = (v < n).sum()
    for k in range(600):
        if v.max() == k:
            o[3] += 1


def test_a_comparison_is_that_of_the_numbers() -> None:
    def given(n: int) -> Any:
        return lambda: (BYTES, n)

    assert agree(compared, given(300)).tolist() == [16, 16, 0, 1, 16]
    assert agree(compared, given(-300)).tolist() == [16, 16, 0, 1, 0]
