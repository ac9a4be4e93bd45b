"""Operations on the places of a tile, and reductions."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from astdsl.ir import ops
from astdsl.ir.dtypes import i32
from tests.ir.evaluate.test_arith import apply, same

NAN = math.nan
TILE = np.arange(24, dtype=np.int32).reshape(2, 3, 4)


def test_iota_counts_along_its_axis() -> None:
    got = apply(ops.Iota, shape=(2, 3), axis=1, dtype=i32)
    assert got.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_broadcast_repeats_axes_of_extent_one_and_adds_axes_in_front() -> None:
    got = apply(ops.Broadcast, TILE[0, :, :1], shape=(2, 3, 4))
    assert (got == np.broadcast_to(TILE[0, :, :1], (2, 3, 4))).all()


def test_reshape_is_row_major() -> None:
    assert (apply(ops.Reshape, TILE, shape=(4, 6)) == TILE.reshape(4, 6)).all()
    assert (apply(ops.Reshape, TILE[:1, :1, :1], shape=()) == 0).all()


def test_transpose_permutes_axes() -> None:
    got = apply(ops.Transpose, TILE, permutation=(2, 0, 1))
    assert (got == TILE.transpose(2, 0, 1)).all()


def test_slice_takes_steps_that_may_be_negative() -> None:
    got = apply(ops.Slice, TILE, starts=(1, 2, 0), sizes=(1, 2, 2), steps=(1, -2, 3))
    assert (got == TILE[1:2, 2::-2, ::3]).all()


def test_insert_leaves_its_operand_as_it_was() -> None:
    before = TILE.copy()
    got = apply(ops.Insert, TILE, TILE[:1, :1, :2], starts=(1, 2, 1))
    want = TILE.copy()
    want[1:2, 2:3, 1:3] = TILE[:1, :1, :2]
    assert (got == want).all()
    assert (before == TILE).all()


@pytest.mark.parametrize("kind", ["sum", "prod", "min", "max"])
def test_reductions_of_integers_keep_the_type_and_wrap(kind: str) -> None:
    x = np.array([[100, 100, -3], [1, 2, 3]], np.int8)
    function = getattr(np, kind)
    want = function(x.astype(np.int64), axis=1).astype(np.int8)
    assert same(apply(ops.Reduce, x, axes=(1,), kind=kind), want)


def test_any_and_all_reduce_bools() -> None:
    x = np.array([[True, False], [True, True]])
    assert apply(ops.Reduce, x, axes=(1,), kind="any").tolist() == [True, True]
    assert apply(ops.Reduce, x, axes=(1,), kind="all").tolist() == [False, True]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_are_summed_in_f32(dtype: Any) -> None:
    x = np.array([2048.0] + [1.0] * 1024).astype(dtype)
    assert same(apply(ops.Reduce, x, axes=(0,), kind="sum"), np.array(3072.0).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_min_and_max_keep_nan_and_order_zeros(dtype: Any) -> None:
    x = np.array([[0.0, -0.0], [-0.0, 0.0], [1.0, NAN], [NAN, 1.0], [-0.0, -0.0]]).astype(dtype)
    least = np.array([-0.0, -0.0, NAN, NAN, -0.0]).astype(dtype)
    most = np.array([0.0, 0.0, NAN, NAN, -0.0]).astype(dtype)
    assert same(apply(ops.Reduce, x, axes=(1,), kind="min"), least)
    assert same(apply(ops.Reduce, x, axes=(1,), kind="max"), most)


def first_index(x: list[float], valid: list[bool], kind: str) -> int:
    """Find the index from the definition, one element after the other."""
    places = [i for i, v in enumerate(valid) if v]
    nan = [i for i in places if math.isnan(x[i])]
    if nan:
        return nan[0]
    if not places:
        return 0
    best = (min if kind == "min" else max)(x[i] for i in places)
    return next(i for i in places if x[i] == best)


@pytest.mark.parametrize("kind", ["min", "max"])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_])
@given(data=st.data())
def test_arg_reduce_finds_the_first_among_the_valid(
    kind: str, dtype: type, data: st.DataObject
) -> None:
    x = data.draw(hnp.arrays(dtype, 5))
    valid = data.draw(hnp.arrays(np.bool_, 5))
    want = first_index(x.tolist(), valid.tolist(), kind)
    assert same(apply(ops.ArgReduce, x, valid, axis=0, kind=kind), np.array(want, np.int32))
    assert same(apply(ops.ArgReduce, x, axis=0, kind=kind),
                np.array(first_index(x.tolist(), [True] * 5, kind), np.int32))  # fmt: skip
