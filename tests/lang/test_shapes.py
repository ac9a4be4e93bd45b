"""Creating, reshaping and indexing tiles, and the reductions: against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings

import astdsl
from astdsl.errors import BadWindow, KernelError, ShapeMismatch, TypeMismatch, UnsupportedFeature
from astdsl.ir.dtypes import DType, bf16, boolean, f16, f32, f64, i8, i32, u8
from astdsl.ir.types import TileType
from astdsl.lang.values import Tile
from tests.lang.harness import a_trace, computed
from tests.strategies import tile_indices

DATA = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@settings(max_examples=60)
@for_all(tile_indices(DATA.shape))
def test_indexing_by_constants_is_numpys(key: tuple[Any, ...]) -> None:
    assert np.array_equal(computed(lambda t: t[key], DATA), DATA[key])


def test_an_index_after_an_ellipsis_counts_from_the_last_axis() -> None:
    assert np.array_equal(computed(lambda t: t[..., 1:3], DATA), DATA[..., 1:3])


@pytest.mark.parametrize("key", [2, (0, 3), (0, 0, 4), slice(0, 3), (0, slice(-4, None))])
def test_an_index_outside_a_tile_is_refused(key: Any) -> None:
    with a_trace(TileType(DATA.shape, f32)) as (_, x), pytest.raises(BadWindow):
        x[key]


def test_too_many_indices_are_refused() -> None:
    with a_trace(TileType((4,), f32)) as (_, x), pytest.raises(BadWindow, match="1 axis"):
        x[0, 0]


def test_a_tile_is_not_indexed_by_kernel_values() -> None:
    with (
        a_trace(TileType((4,), f32), TileType((), i32)) as (_, x, i),
        pytest.raises(UnsupportedFeature, match="compile-time constants"),
    ):
        x[i]


def test_the_elements_of_a_tile_are_not_assigned() -> None:
    with a_trace(TileType((4,), f32)) as (_, x), pytest.raises(TypeMismatch, match="never changes"):
        x[0] = 1


@pytest.mark.parametrize("axes", [None, (0, 1, 2), (1, 2, 0), (2, 0, 1), (-1, 0, 1)])
def test_transpose_permutes_axes(axes: Any) -> None:
    found = computed(lambda t: astdsl.transpose(t, axes), DATA)
    assert np.array_equal(found, np.transpose(DATA, axes))


def test_the_transpose_attribute_reverses_axes() -> None:
    assert np.array_equal(computed(lambda t: t.T, DATA), DATA.T)


@pytest.mark.parametrize("shape", [(24,), (6, 4), (-1, 2), (2, 1, 12), (4, 3, 2)])
def test_reshape_keeps_row_major_order(shape: tuple[int, ...]) -> None:
    assert np.array_equal(computed(lambda t: t.reshape(shape), DATA), DATA.reshape(shape))
    assert np.array_equal(computed(lambda t: t.reshape(*shape), DATA), DATA.reshape(shape))


@pytest.mark.parametrize("shape", [(5,), (-1, 7), (-1, -1), (25,)])
def test_reshape_keeps_the_number_of_elements(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeMismatch, match="24 elements"):
        computed(lambda t: t.reshape(shape), DATA)


def test_expand_and_squeeze_undo_each_other() -> None:
    for axis in (0, 1, 3, -1):
        grown = computed(lambda t, a=axis: astdsl.expand_dims(t, a), DATA)
        assert np.array_equal(grown, np.expand_dims(DATA, axis))
        assert np.array_equal(computed(lambda t, a=axis: astdsl.squeeze(t, a), grown), DATA)


def test_squeeze_drops_extents_of_one_only() -> None:
    with pytest.raises(ShapeMismatch, match="extent 2"):
        computed(lambda t: astdsl.squeeze(t, 0), DATA)


def test_broadcast_to_repeats() -> None:
    row = DATA[0, :1]
    found = computed(lambda t: astdsl.broadcast_to(t, (5, 3, 4)), row)
    assert np.array_equal(found, np.broadcast_to(row, (5, 3, 4)))


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    with (
        a_trace(TileType((3,), f32), TileType((4,), f32)) as (_, x, y),
        pytest.raises(ShapeMismatch, match="cannot broadcast"),
    ):
        x + y


@pytest.mark.parametrize("call", [(5,), (2, 9), (1, 10, 3), (5, 0, -2)])
def test_arange_counts_as_numpy_does(call: tuple[int, ...]) -> None:
    found = computed(lambda t: astdsl.arange(*call, dtype=i32) + 0 * t[0, 0, 0].astype(i32), DATA)
    assert np.array_equal(found, np.arange(*call))


def test_broadcasted_iota_is_iota_of_a_dtype() -> None:
    found = computed(lambda t: astdsl.broadcasted_iota(f16, (2, 3), 1) + t[:, :, 0] * 0, DATA)
    np.testing.assert_array_equal(found, np.broadcast_to(np.arange(3), (2, 3)))


def test_iota_counts_along_one_axis() -> None:
    found = computed(lambda t: astdsl.iota((2, 3), 1) + t[:, :, 0] * 0, DATA)
    assert np.array_equal(found, np.broadcast_to(np.arange(3), (2, 3)))


def test_full_converts_its_value() -> None:
    found = computed(lambda t: astdsl.full((2,), t[0, 0, 1] + 0.7, i32), DATA)
    assert found.tolist() == [1, 1]


@pytest.mark.parametrize("make", [astdsl.zeros, astdsl.ones])
def test_zeros_and_ones_are_f32_unless_said_otherwise(make: Callable[..., Tile]) -> None:
    with a_trace() as _:
        assert make((2, 3)).dtype is f32
        assert make(4, f16).dtype is f16
        assert make((4,), bool).dtype is boolean


def test_a_dtype_that_is_none_is_refused_with_the_ones_that_work() -> None:
    with a_trace() as _, pytest.raises(TypeMismatch, match="takes a dtype"):
        astdsl.zeros((2,), "f32")


def test_a_dtype_of_a_later_version_is_refused_by_name() -> None:
    with a_trace() as _, pytest.raises(UnsupportedFeature, match="tf32"):
        astdsl.zeros((2,), astdsl.tf32)


AXES = [None, 0, 1, 2, -1, (0, 1), (0, 2), (1, 2), (0, 1, 2)]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "any", "all"])
def test_reductions_agree_with_numpy(name: str, axis: Any, keepdims: bool) -> None:
    x = (DATA - 11.5) / 7 if name != "all" else DATA
    found = computed(lambda t: getattr(t, name)(axis=axis, keepdims=keepdims), x)
    wanted = getattr(np, name)(x, axis=axis, keepdims=keepdims)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_place_of_an_extreme_is_numpys(name: str, axis: Any, keepdims: bool) -> None:
    x = (DATA * 7) % 10
    found = computed(lambda t: getattr(astdsl, name)(t, axis=axis, keepdims=keepdims), x)
    assert found.dtype == np.int32
    assert np.array_equal(found, getattr(np, name)(x, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize(
    ("dtype", "summed"), [(boolean, i32), (i8, i32), (u8, i32), (i32, i32), (f16, f16)]
)
def test_sums_of_narrow_integers_are_i32(dtype: DType, summed: DType) -> None:
    with a_trace(TileType((4,), dtype)) as (_, x):
        assert x.sum().dtype is summed
        assert x.prod().dtype is summed


def test_the_mean_of_integers_is_f32() -> None:
    assert computed(lambda t: t.mean(), np.array([1, 2, 4], np.int32)) == np.float32(7 / 3)


def test_the_mean_of_f16_does_not_overflow() -> None:
    x = np.full(64, 60000, np.float16)
    assert computed(lambda t: t.mean(), x) == np.float16(60000)


def test_extremes_of_bools_are_any_and_all() -> None:
    x = np.array([True, False])
    assert computed(lambda t: t.max(), x)
    assert not computed(lambda t: t.min(), x)


def test_min_and_max_of_several_operands_are_elementwise() -> None:
    x, y = DATA, DATA[::-1].copy()
    largest = computed(lambda a, b: astdsl.max(a, b, 15), x, y)
    assert np.array_equal(largest, np.maximum(np.maximum(x, y), 15))
    assert np.array_equal(computed(lambda a, b: astdsl.min([a, b]), x, y), np.minimum(x, y))


EMPTY = {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf, "any": False, "all": True}


@pytest.mark.parametrize("name", [*EMPTY, "argmax"])
def test_a_reduction_of_no_elements_is_its_neutral_element(name: str) -> None:
    found = computed(lambda t: getattr(t[:, :, 0:0], name)(axis=2), DATA)
    assert np.array_equal(found, np.full((2, 3), EMPTY.get(name, 0)))
    kept = computed(lambda t: getattr(t[:, 0:0], name)(axis=1, keepdims=True), DATA)
    assert kept.shape == (2, 1, 4)


@pytest.mark.parametrize("axis", [3, -4, (0, 0), "x"])
def test_axes_that_are_not_there_are_refused(axis: Any) -> None:
    with pytest.raises(KernelError):
        computed(lambda t: t.sum(axis=axis), DATA)


@pytest.mark.parametrize(
    ("a", "b"), [((4, 3), (3, 5)), ((3,), (3, 5)), ((4, 3), (3,)), ((3,), (3,))]
)
def test_products_are_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = np.random.default_rng(0).random(a), np.random.default_rng(1).random(b)
    np.testing.assert_allclose(computed(lambda s, t: s @ t, x, y), x @ y, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "summed"),
    [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64),
     (np.int8, np.int32), (np.uint8, np.int32)],
)  # fmt: skip
def test_the_dtype_of_a_product(dtype: Any, summed: Any) -> None:
    x = np.eye(4).astype(dtype)
    found = computed(lambda s, t: s @ t, x, x)
    assert found.dtype == summed
    assert np.array_equal(found, np.eye(4))


def test_8_bit_integers_of_both_signs_multiply() -> None:
    x, y = np.full((2, 3), -1, np.int8), np.full((3, 2), 200, np.uint8)
    assert np.array_equal(computed(lambda s, t: s @ t, x, y), np.full((2, 2), -600))


def test_products_of_unequal_extents_are_refused() -> None:
    with (
        a_trace(TileType((4, 3), f32), TileType((4, 3), f32)) as (_, x, y),
        pytest.raises(ShapeMismatch, match="contracts 3 with 4"),
    ):
        x @ y


def test_products_of_integers_that_no_unit_multiplies_are_refused() -> None:
    with a_trace(TileType((4, 4), i32)) as (_, x), pytest.raises(TypeMismatch, match="i32"):
        x @ x


@pytest.mark.parametrize(("dtype", "precision"), [(f32, "tf16"), (f32, 3), (f64, "tf32")])
def test_a_precision_is_one_of_two_and_for_f32(dtype: DType, precision: object) -> None:
    with a_trace(TileType((4, 4), dtype)) as (_, x), pytest.raises(TypeMismatch, match="precision"):
        astdsl.dot(x, x, precision=precision)


def test_windows_of_a_tile_are_slices() -> None:
    found = computed(lambda t: t[0, astdsl.ds(1, 2), astdsl.ds(0, 2, 3)], DATA)
    assert np.array_equal(found, DATA[0, 1:3, 0:4:3])
    assert np.array_equal(computed(lambda t: t[astdsl.tile(1, 1)], DATA), DATA[1:2])


@pytest.mark.parametrize("start", [-1, 3])
def test_a_window_of_a_tile_lies_inside(start: int) -> None:
    with a_trace(TileType((4,), f32)) as (_, x), pytest.raises(BadWindow):
        x[astdsl.ds(start, 2)]


def test_dot_adds_to_an_accumulator() -> None:
    x = DATA[0]
    found = computed(lambda t: astdsl.dot(t, t.T, acc=astdsl.ones((3, 3), f32)), x)
    assert np.array_equal(found, x @ x.T + 1)
    with a_trace(TileType((4, 4), bf16)) as (_, t):
        with pytest.raises(TypeMismatch, match=r"`acc` .* f32\[4x4\], got bf16"):
            astdsl.dot(t, t, t)
        with pytest.raises(ShapeMismatch, match="`acc`"):
            astdsl.dot(t, t, astdsl.zeros((4,), f32))
