"""Joining, cutting and picking: against NumPy, on every witness."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import astdsl
from astdsl import (
    In,
    Out,
    arange,
    cdiv,
    concat,
    f32,
    i32,
    kernel,
    pipeline,
    split,
    stack,
    take,
    tile,
)
from astdsl.errors import (
    BadWindow,
    KernelError,
    OutsideLost,
    ShapeMismatch,
    TypeMismatch,
)
from astdsl.ir.dtypes import f16
from astdsl.ir.types import TileType
from tests.lang.harness import a_trace, computed
from tests.witnesses import agree

DATA = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
OTHER = 100 + np.arange(12, dtype=np.float32).reshape(2, 3, 2)


def test_concat_is_numpys() -> None:
    found = computed(lambda x, y: concat([x, y, x], 2), DATA, OTHER)
    assert np.array_equal(found, np.concatenate([DATA, OTHER, DATA], 2))


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_stack_is_numpys(axis: int) -> None:
    found = computed(lambda x: stack((x, -x, x * 2), axis), DATA)
    assert np.array_equal(found, np.stack([DATA, -DATA, DATA * 2], axis))


@pytest.mark.parametrize(("parts", "axis"), [(2, 2), ((1, 3), 2), ((0, 1, 1), 1), (1, 0)])
def test_split_is_numpys(parts: Any, axis: int) -> None:
    wanted = np.split(DATA, parts, axis)
    for k, part in enumerate(wanted):
        found = computed(lambda x, k=k: split(x, parts, axis)[k], DATA)
        assert np.array_equal(found, part)


TAKEN: list[Any] = [
    0,
    -1,
    [0, 2, 1],
    [2, 1, 0],
    [0, 0, 1, 1],
    (-1,),
    [],
    [[0, 1], [2, 0]],
    range(2),
]


@pytest.mark.parametrize("indices", TAKEN, ids=str)
def test_take_at_constants_is_numpys(indices: Any) -> None:
    wanted = np.take(DATA, np.array(indices, int), 1)
    assert np.array_equal(computed(lambda x: take(x, indices, 1), DATA), wanted)


def test_take_without_an_axis_is_of_the_flat_tile() -> None:
    assert np.array_equal(computed(lambda x: take(x, [1, 23]), DATA), [1, 23])


def test_concat_meets_as_an_addition_does() -> None:
    with a_trace(TileType((4,), f16), TileType((4,), f32)) as (_, x, y):
        assert concat([x, y]).dtype is f32
        assert concat([astdsl.arange(4), x]).dtype is f16
        assert concat([astdsl.arange(4), astdsl.arange(2)]).weak
        assert concat([x > 0, y > 0]).dtype.name == "bool"
        with pytest.raises(TypeMismatch, match="one dtype kind"):
            concat([x, y > 0])


def swapped(x: In[f32, "M N"], o: Out[f32, "M N"], *, b: int) -> None:
    with pipeline(cdiv(x.shape[0], 8)) as i:
        left, right = split(x[tile(i, 8), 0:b], 2, axis=1)
        o[tile(i, 8), 0:b] = concat([right, left], axis=1)


@pytest.mark.parametrize("b", [2, 6, 32])
def test_halves_are_swapped_on_every_witness(b: int) -> None:
    x = np.arange(20 * b, dtype=np.float32).reshape(20, b)
    found = agree(kernel(swapped), lambda: (x,), b=b)
    assert np.array_equal(found, np.concatenate(np.split(x, 2, 1)[::-1], 1))


def picked(x: In["M N"], n: i32, o: Out["M"], p: Out["3 N"]) -> None:
    o[...] = take(x[...], n, 1)
    p[...] = take(x[...], (2, 0, -1), 0)


DTYPES = (np.float32, np.float16, np.float64, np.int8, np.uint32, np.int64, np.bool_)


@pytest.mark.parametrize("n", [0, 3, 6])
@pytest.mark.parametrize("dtype", DTYPES)
def test_take_at_run_time_gives_the_very_bits(dtype: Any, n: int) -> None:
    x = (np.arange(5 * 7).reshape(5, 7) % 3 - 1).astype(dtype)
    if x.dtype.kind == "f":
        x[:, 3] = [-0.0, 0.0, np.inf, np.nan, -np.inf]
    column, rows = agree(kernel(picked), lambda: (x, n))
    assert column.tobytes() == x[:, n].tobytes()
    assert rows.tobytes() == x[[2, 0, -1]].tobytes()


def looked_up(x: In["M N"], n: In[i32, "A B"], o: Out["M A B"], p: Out["A B N"]) -> None:
    o[...] = take(x[...], n[...], 1)
    p[...] = take(x[...], n[...], 0)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.bool_])
def test_a_tile_of_kernel_integers_looks_up_a_short_axis(dtype: Any) -> None:
    x = (np.arange(3 * 4) % 5).reshape(3, 4).astype(dtype)
    n = np.array([[0, 2, 1, 0, 2], [1, 1, 0, 2, 0]], np.int32)
    along, across = agree(kernel(looked_up), lambda: (x, n))
    assert np.array_equal(along, np.take(x, n, 1))
    assert np.array_equal(across, np.take(x, n, 0))


def computed_indices(x: In["M N"], o: Out["M 3"], p: Out["M N"]) -> None:
    N = x.shape[1]
    o[...] = take(x[...], arange(3) * 5 - 5, 1)
    p[...] = take(x[...], N - 1 - arange(N), 1)


def test_a_tile_made_of_constants_and_dims_looks_up_too() -> None:
    x = np.arange(1, 25, dtype=np.float16).reshape(4, 6)
    found, backwards = agree(kernel(computed_indices), lambda: (x,))
    assert np.array_equal(found, np.stack([x[:, 0] * 0, x[:, 0], x[:, 5]], 1))
    assert np.array_equal(backwards, x[:, ::-1])


def listed(x: In["M N"], n: In[i32, "2"], o: Out["M 3"], p: Out["2 2 N"]) -> None:
    o[...] = take(x[...], [n[0], -1, n[1]], 1)
    p[...] = take(x[...], [[n[0], n[1]], (1, -2)], 0)


def test_a_list_may_hold_kernel_integers() -> None:
    x, n = np.arange(12, dtype=np.int16).reshape(3, 4), np.array([2, 0], np.int32)
    found, rows = agree(kernel(listed), lambda: (x, n))
    assert np.array_equal(found, x[:, [2, -1, 0]])
    assert np.array_equal(rows, x[[[2, 0], [1, -2]]])


def in_small_floats(x: In["M N"], n: In["4"], o: Out["M 4"], p: Out["M"]) -> None:
    o[...] = take(x[...], n[...], 1)
    p[...] = take(x[...], n[1], 1)


SMALL = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn")


@pytest.mark.parametrize("dtype", SMALL)
def test_small_floats_are_looked_up_and_0_bits_stand_for_what_is_outside(dtype: str) -> None:
    x = np.array([[1, 2, 4], [0.5, 1, 2]], np.float32).astype(getattr(ml_dtypes, dtype))
    n = np.array([2, 0, -1, 3], np.int16)
    found, column = agree(kernel(in_small_floats), lambda: (x, n))
    nothing = np.zeros((2, 1), x.dtype)
    wanted = np.concatenate([x[:, 2:], x[:, :1], nothing, nothing], 1)
    assert found.tobytes() == wanted.tobytes()
    assert column.tobytes() == x[:, 0].tobytes()


def ragged_pair(x: In[f32, "M 8"], o: Out[f32, "M"]) -> None:
    with pipeline(cdiv(x.shape[0], 16)) as i:
        rows = x[tile(i, 16), 0:8] + 1
        o[tile(i, 16)] = concat([rows, rows], axis=1).sum(axis=1)


def test_what_lies_outside_along_another_axis_is_still_known() -> None:
    x = np.arange(20 * 8, dtype=np.float32).reshape(20, 8)
    found = agree(kernel(ragged_pair), lambda: (x,))
    assert np.array_equal(found, 2 * (x + 1).sum(axis=1))


def lost_edge(x: In[f32, "M 8"], o: Out[f32, "M"]) -> None:
    with pipeline(cdiv(x.shape[0], 16)) as i:
        rows = x[tile(i, 16), 0:8] + 1
        o[tile(i, 16)] = concat([rows, rows], axis=0)[0:16, 0]


def test_an_edge_along_the_joined_axis_must_be_as_it_was_read() -> None:
    with pytest.raises(OutsideLost, match="axis 0"):
        kernel(lost_edge).on("reference")(np.zeros((20, 8), np.float32))


MISTAKES: list[tuple[Any, type[KernelError], str]] = [
    (concat, TypeMismatch, "a list or a tuple"),
    (lambda x: concat([]), ShapeMismatch, "no tiles"),
    (lambda x: concat([x, x[0]]), ShapeMismatch, "one rank"),
    (lambda x: concat([x, x[:, 0:2]], 0), ShapeMismatch, "equal extents"),
    (lambda x: concat([x, x], 3), ShapeMismatch, "axis 3"),
    (lambda x: stack([x, x[0]]), ShapeMismatch, "one shape"),
    (lambda x: split(x, 2, 1), ShapeMismatch, "equal parts"),
    (lambda x: split(x, (2, 1), 1), BadWindow, "at"),
    (lambda x: split(x, 0, 1), ShapeMismatch, "0 equal parts"),
    (lambda x: take(x, 3, 1), BadWindow, "3"),
    (lambda x: take(x, [0, 5], 1), BadWindow, "index 5"),
    (lambda x: take(x, [[0], [1, 2]], 1), ShapeMismatch, "uneven"),
    (lambda x: take(x, 1.5, 1), TypeMismatch, "integers"),
    (lambda x: take(x, x, 1), TypeMismatch, "f32"),
    (lambda x: take(x, [x.argmax(0)[0], 5], 1), BadWindow, "index 5"),
    (lambda x: take(x, [x.argmax(0)[0], 1.5], 1), TypeMismatch, "integers"),
    (lambda x: take(x, [x.argmax(0)[0], [1, 0]], 1), ShapeMismatch, "one shape"),
]


@pytest.mark.parametrize(("wrong", "kind", "said"), MISTAKES)
def test_a_mistake_says_what_to_do(wrong: Any, kind: type[KernelError], said: str) -> None:
    with a_trace(TileType((2, 3), f32)) as (_, x), pytest.raises(kind, match=said) as caught:
        wrong(x)
    assert caught.value.help
