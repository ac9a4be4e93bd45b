"""Random gathers, scatters and updates in random views are those of NumPy, on every witness."""

import numpy as np
from hypothesis import given, settings

from astdsl import In, InOut, Out, atomic_add, ds, i32, kernel
from tests.strategies import indexed_cases
from tests.witnesses import agree


@kernel
def gather(x: In[i32, "A B"], ids: In[i32, "N"], at: In[i32, "2"], o: Out[i32, "N S"], *, window):
    o[...] = x.at[at[0] : at[1]][ids[...], ds(*window)]


@kernel
def update(v: In[i32, "N S"], ids: In[i32, "N"], at: In[i32, "2"], x: InOut[i32, "A B"], *, window):
    atomic_add(x.at[at[0] : at[1]].at[ids[...], ds(*window)], v[...])


@kernel
def scatter(
    v: In[i32, "N S"], ids: In[i32, "N"], at: In[i32, "2"], x: InOut[i32, "A B"], *, window
):
    x.at[at[0] : at[1]][ids[...], ds(*window)] = v[...]


def places(shape, ids, bounds, window):
    """Return the row and the column of each element, and whether it takes part."""
    start, size, step = window
    row = bounds[0] + np.array(ids)[:, None]
    column = (start + step * np.arange(size))[None, :]
    low, high = max(bounds[0], 0), min(bounds[1], shape[0])
    inside = (row >= low) & (row < high) & (column >= 0) & (column < shape[1])
    return np.broadcast_arrays(row, column, inside)


def array(shape, is_turned):
    made = np.arange(1, shape[0] * shape[1] + 1, dtype=np.int32)
    return made.reshape(shape[::-1]).T if is_turned else made.reshape(shape)


@settings(max_examples=12)
@given(indexed_cases())
def test_a_gather_is_numpys(case):
    shape, is_turned, ids, bounds, window = case
    row, column, inside = places(shape, ids, bounds, window)
    x = array(shape, is_turned)
    expected = np.where(inside, x[np.clip(row, 0, shape[0] - 1), column.clip(0, shape[1] - 1)], 0)
    arguments = (x, np.array(ids, np.int32), np.array(bounds, np.int32), np.zeros_like(expected))
    found = agree(gather, lambda: arguments, targets=("sm_90a",), window=window)
    assert np.array_equal(found, expected)


@settings(max_examples=12)
@given(indexed_cases())
def test_an_update_is_numpys(case):
    shape, is_turned, ids, bounds, window = case
    row, column, inside = places(shape, ids, bounds, window)
    v = np.arange(row.size, dtype=np.int32).reshape(row.shape) + 1
    expected = array(shape, is_turned).copy()
    np.add.at(expected, (row[inside], column[inside]), v[inside])

    def arguments():
        return v, np.array(ids, np.int32), np.array(bounds, np.int32), array(shape, is_turned)

    found = agree(update, arguments, targets=("sm_90a",), window=window)
    assert np.array_equal(found if inside.any() else expected, expected)


@settings(max_examples=12)
@given(indexed_cases())
def test_a_scatter_is_numpys(case):
    shape, is_turned, ids, bounds, window = case
    unique = list(dict.fromkeys(ids))
    row, column, inside = places(shape, unique, bounds, window)
    v = np.arange(row.size, dtype=np.int32).reshape(row.shape) + 1000
    expected = array(shape, is_turned).copy()
    expected[row[inside], column[inside]] = v[inside]

    def arguments():
        return v, np.array(unique, np.int32), np.array(bounds, np.int32), array(shape, is_turned)

    found = agree(scatter, arguments, targets=("sm_90a",), window=window)
    assert np.array_equal(found if inside.any() else expected, expected)
