"""Lists of constants in the brackets of refs and of tiles, by NumPy's rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import In, InOut, Out, atomic_add, cdiv, f32, i32, kernel, pipeline, tile
from astdsl.errors import BadWindow, KernelError, ShapeMismatch, TypeMismatch
from tests.witnesses import agree

X = np.random.default_rng(0).integers(-9, 10, (8, 16)).astype(np.float32)
ROWS = np.array([6, 0, 3], np.int16)


@kernel
def rows_of_a_ref(x: In[f32, "M N"], o: Out[f32, "5 N"]):
    with pipeline(cdiv(x.shape[1], 8)) as j:
        o[0:2, tile(j, 8)] = x[[1, 5], tile(j, 8)]
        o[2:5, tile(j, 8)] = x[ROWS, tile(j, 8)]


def test_rows_of_a_ref() -> None:
    assert np.array_equal(agree(rows_of_a_ref, lambda: (X,)), X[[1, 5, 6, 0, 3]])


PICKS: dict[str, Any] = {
    "one list": (lambda a: a[[1, 2, 3, 7]], (4, 16)),
    "a list of lists": (lambda a: a[[[1, 2], [5, 0]]], (2, 2, 16)),
    "along the last axis": (lambda a: a[:, [3, 0, 0]], (8, 3)),
    "two lists": (lambda a: a[[1, 2, 5], [0, 3, 4]], (3,)),
    "broadcast": (lambda a: a[[[1], [2]], [0, 3, 4]], (2, 3)),
    "a range": (lambda a: a[range(6, 0, -2)], (3, 16)),
    "a tuple beside a slice": (lambda a: a[(2, 4), :], (2, 16)),
    "an array": (lambda a: a[ROWS], (3, 16)),
    "an integer and a list": (lambda a: a[3, [0, 15]], (2,)),
}
ONLY_OF_TILES: dict[str, Any] = {
    "negative": (lambda a: a[[-1, 0, -8]], (3, 16)),
    "a new axis": (lambda a: a[None, [0, 1]], (1, 2, 16)),
    "apart": (lambda a: a[[0, 1], None, [2, 3]], (2, 1)),
    "nothing": (lambda a: a[[], :].sum() + a[0, 0:1], (1,)),
}


@pytest.mark.parametrize("name", [*PICKS, *ONLY_OF_TILES])
def test_a_tile_is_indexed_as_numpy_does(name: str) -> None:
    pick, shape = {**PICKS, **ONLY_OF_TILES}[name]

    @kernel
    def of_a_tile(x: In[f32, "8 16"], o: InOut[f32, "..."]):
        o[...] = pick(x[...])

    assert np.array_equal(agree(of_a_tile, lambda: (X, np.zeros(shape, np.float32))), pick(X))


@pytest.mark.parametrize("name", PICKS)
def test_a_ref_is_indexed_as_numpy_does(name: str) -> None:
    pick, shape = PICKS[name]

    @kernel
    def of_a_ref(x: In[f32, "8 16"], o: InOut[f32, "..."]):
        o[...] = pick(x)

    assert np.array_equal(agree(of_a_ref, lambda: (X, np.zeros(shape, np.float32))), pick(X))


@kernel
def stored(x: In[f32, "M N"], o: InOut[f32, "M N"]):
    o[[1, 3]] = x[[0, 5]] + o[[1, 3]]
    atomic_add(o.at[[0, 2], [4, 4]], 10)


def test_a_list_scatters() -> None:
    expected = np.ones_like(X)
    expected[[1, 3]] += X[[0, 5]]
    expected[[0, 2], 4] += 10
    assert np.array_equal(agree(stored, lambda: (X, np.ones_like(X))), expected)


@kernel
def neighbours(x: In[f32, "M N"], at: In[i32, "K"], o: Out[f32, "K 2 N"]):
    with pipeline(at.shape[0]) as k:
        i = at[k]
        o[k] = x[[i, i + 1]]


def test_a_list_of_kernel_integers_gathers() -> None:
    at = np.array([4, 0, 6], np.int32)
    expected = np.stack([X[[i, i + 1]] for i in at])
    assert np.array_equal(agree(neighbours, lambda: (X, at)), expected)


MISTAKES: dict[str, tuple[Any, type[KernelError], str]] = {
    "outside": (lambda x: x[...][[0, 8]], BadWindow, "index 8 is outside axis 0"),
    "outside together": (lambda x: x[...][[0, 1], [0, 16]], BadWindow, "index 16 is outside"),
    "bools": (lambda x: x[...][[True, False]], TypeMismatch, "takes integers"),
    "bools of a ref": (lambda x: x[[True, False]], TypeMismatch, "holds integers"),
    "floats of a ref": (lambda x: x[[1.5]], TypeMismatch, "holds integers"),
    "negative of a ref": (lambda x: x[[0, -1]], BadWindow, "-1 as an index of `x` is ambiguous"),
    "uneven": (lambda x: x[...][[[0, 1], [2]]], ShapeMismatch, "lists of one length"),
    "no broadcast": (lambda x: x[...][[0, 1], [0, 1, 2]], ShapeMismatch, "cannot broadcast"),
    "text": (lambda x: x[["a"]], TypeMismatch, "takes tiles and numbers"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_list_is_refused_with_a_way_out(name: str) -> None:
    wrong, kind, said = MISTAKES[name]

    @kernel
    def refused(x: In[f32, "8 16"], o: Out[f32, "1"]):
        o[0] = wrong(x).sum()

    with pytest.raises(kind, match=said) as caught:
        refused.on("reference")(X)
    assert caught.value.help
    assert caught.value.places
