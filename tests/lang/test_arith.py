"""Elementwise functions and operators: dtypes, values, and what they refuse."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

import astdsl
from astdsl.errors import KernelError, NotConstant, ShapeMismatch, TypeMismatch, UnknownName
from astdsl.ir.dtypes import (
    BY_NUMPY,
    DType,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u64,
)
from astdsl.ir.types import TileType
from astdsl.lang.values import SUPPORTED, Tile
from tests.dtypes import FLOATS, INTEGERS
from tests.lang.harness import a_trace, computed

NUMBERS = (*FLOATS, *INTEGERS)


def dtype_of(function: Callable[..., Any], *dtypes: DType) -> DType:
    with a_trace(*(TileType((4,), d) for d in dtypes)) as (_, *tiles):
        found: DType = function(*tiles).dtype
        return found


# LANGUAGE.md §2: NumPy's within a kind, an integer beside a float takes the float's dtype.
@pytest.mark.parametrize(
    ("x", "y", "met"),
    [
        (f16, f32, f32), (f16, bf16, f32), (bf16, f32, f32), (f64, f16, f64), (bf16, f64, f64),
        (i8, i32, i32), (i32, i64, i64), (u8, i32, i32), (u8, i64, i64),
        (i64, f16, f16), (i32, bf16, bf16), (u8, f32, f32), (i64, f32, f32), (i8, f64, f64),
    ],
)  # fmt: skip
def test_two_dtypes_meet_in(x: DType, y: DType, met: DType) -> None:
    assert dtype_of(operator.add, x, y) is met
    assert dtype_of(operator.mul, y, x) is met


@pytest.mark.parametrize("dtype", NUMBERS)
def test_a_python_integer_takes_the_dtype_of_the_tile(dtype: DType) -> None:
    assert dtype_of(lambda x: x + 3, dtype) is dtype
    assert dtype_of(lambda x: 3 - x, dtype) is dtype


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_python_float_takes_the_dtype_of_a_float_tile(dtype: DType) -> None:
    assert dtype_of(lambda x: x * 0.5, dtype) is dtype


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_python_float_beside_an_integer_tile_is_f32(dtype: DType) -> None:
    assert dtype_of(lambda x: x * 0.5, dtype) is f32


@pytest.mark.parametrize("number", [np.float64(0.5), np.int64(3), np.float32(2)])
def test_a_numpy_scalar_is_weak_too(number: Any) -> None:
    assert dtype_of(lambda x: x * number, f16) is f16
    assert dtype_of(lambda x: number * x, f16) is f16


@pytest.mark.parametrize("dtype", INTEGERS)
def test_true_division_of_integers_is_f32(dtype: DType) -> None:
    assert dtype_of(operator.truediv, dtype, dtype) is f32


@pytest.mark.parametrize("dtype", NUMBERS)
def test_arange_is_weak(dtype: DType) -> None:
    assert dtype_of(lambda x: x + astdsl.arange(4), dtype) is dtype


def test_weak_to_the_end_is_i32_or_f32() -> None:
    with a_trace() as _:
        assert astdsl.arange(4).dtype is i32
        assert (astdsl.arange(4) / 2).dtype is f32
        assert (astdsl.arange(4) * 0.5).dtype is f32
        assert (astdsl.arange(4) * 2**31).dtype is i64


@pytest.mark.parametrize("dtype", FLOATS)
def test_bools_do_not_mix_with_floats(dtype: DType) -> None:
    with pytest.raises(TypeMismatch, match="one dtype kind"):
        dtype_of(operator.add, dtype, boolean)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("operation", [operator.add, operator.mul, operator.and_])
def test_a_bool_beside_an_integer_is_the_weak_number_0_or_1(operation: Any, dtype: DType) -> None:
    assert dtype_of(operation, dtype, boolean) is dtype
    assert dtype_of(operation, boolean, dtype) is dtype


def test_bools_beside_python_integers_are_i32() -> None:
    assert dtype_of(lambda m: m + 1, boolean) is i32
    assert dtype_of(lambda m: astdsl.where(m, m, 2), boolean) is i32
    assert dtype_of(lambda m: m == 1, boolean) is boolean


def test_two_bools_have_no_arithmetic() -> None:
    with pytest.raises(TypeMismatch, match="`\\+` does not take bool") as caught:
        dtype_of(operator.add, boolean, boolean)
    assert "`mask.astype(i32)` counts" in caught.value.help


def test_signed_and_unsigned_meet_only_where_a_dtype_holds_both() -> None:
    with pytest.raises(TypeMismatch, match="no dtype in which"):
        dtype_of(operator.add, i64, u64)
    assert dtype_of(operator.add, i8, u8) is i16


@for_all(st.sampled_from(SUPPORTED), st.sampled_from(SUPPORTED))
def test_meeting_is_symmetric(x: DType, y: DType) -> None:
    results: list[DType | None] = []
    for pair in ((x, y), (y, x)):
        try:
            results.append(dtype_of(operator.mul, *pair))
        except TypeMismatch:
            results.append(None)
    assert results[0] is results[1]


COMPARISONS = [operator.lt, operator.le, operator.eq, operator.ne, operator.ge, operator.gt]


@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize(("dtype", "number"), [(np.uint8, 300), (np.uint8, -1), (np.int8, -129),
                                               (np.int32, 2**31), (np.uint64, -1),
                                               (np.int64, 2**70)])  # fmt: skip
def test_numbers_are_compared_that_a_dtype_does_not_hold(
    compare: Callable[..., Any], dtype: Any, number: int
) -> None:
    x = np.array([0, 1, 100], dtype)
    assert computed(lambda t: compare(t, number), x).tolist() == [compare(0, number)] * 3
    assert computed(lambda t: compare(number, t), x).tolist() == [compare(number, 0)] * 3


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint32])
def test_integers_of_the_kernel_are_compared_that_a_dtype_does_not_hold(dtype: Any) -> None:
    x = np.array([44, 255, 1, 0]).astype(dtype)
    found = computed(lambda t: t == astdsl.arange(4) * 300 - 256, x)
    assert found.tolist() == [False] * 4


def test_integers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeMismatch, match="300 does not fit u8"):
        dtype_of(lambda x: x + 300, u8)


@pytest.mark.parametrize("constant", [0.1, 1 / 3, 65504.0, 1e-8, 3.14159, 1 + 2**-8 + 2**-40])
@pytest.mark.parametrize("dtype", FLOATS)
def test_constants_convert_as_the_array_does(constant: float, dtype: DType) -> None:
    zero = np.zeros(1, dtype.numpy)
    found = computed(lambda x: x + constant, zero)
    wide = np.array([constant])
    assert found[0] == wide.astype(dtype.numpy)[0] or dtype is bf16
    if dtype is bf16:
        assert abs(float(found[0]) - constant) <= abs(constant) * 2**-8


def test_a_constant_is_rounded_once_to_bf16() -> None:
    # Just above a tie of bf16 that f32 cannot tell from the tie.
    found = computed(lambda x: x + (1 + 2**-8 + 2**-40), np.zeros(1, ml_dtypes.bfloat16))
    assert float(found[0]) == 1 + 2**-7


BINARY = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "%": operator.mod,
}  # fmt: skip


@pytest.mark.parametrize("symbol", BINARY)
@settings(max_examples=20)
@for_all(
    st.lists(st.integers(-100, 100), min_size=4, max_size=4),
    st.lists(st.integers(1, 50), min_size=4, max_size=4),
)
def test_integer_operators_agree_with_numpy(symbol: str, x: list[int], y: list[int]) -> None:
    a, b = np.array(x, np.int32), np.array(y, np.int32)
    assert np.array_equal(computed(BINARY[symbol], a, b), BINARY[symbol](a, b))


COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("compare", COMPARISONS)
def test_comparisons_agree_with_numpy(compare: Callable[..., Any]) -> None:
    x = np.array([1, 2, 3, np.nan], np.float32)
    y = np.array([3, 2, 1, np.nan], np.float32)
    assert np.array_equal(computed(compare, x, y), compare(x, y))
    assert np.array_equal(computed(lambda t: compare(t, 2), x), compare(x, 2))
    assert np.array_equal(computed(lambda t: compare(2, t), x), compare(2, x))


@pytest.mark.parametrize("bits", [operator.and_, operator.or_, operator.xor])
def test_bit_operators_take_integers_and_bools(bits: Callable[..., Any]) -> None:
    x, y = np.array([1, 6, -1], np.int32), np.array([3, 3, 3], np.int32)
    assert np.array_equal(computed(bits, x, y), bits(x, y))
    assert np.array_equal(computed(bits, x > 0, y > 5), bits(x > 0, y > 5))


def test_bit_operators_refuse_floats() -> None:
    with pytest.raises(TypeMismatch, match="does not take f32"):
        dtype_of(operator.and_, f32, f32)


def test_a_square_is_a_product() -> None:
    x = np.array([1.1, -3.0], np.float32)
    assert np.array_equal(computed(lambda t: t**2, x), x * x)


def test_where_chooses_and_broadcasts() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = computed(lambda t: astdsl.where(t[0] > 1, t, -1), x)
    assert np.array_equal(found, np.where(x[0] > 1, x, -1))


def test_where_needs_a_bool() -> None:
    with pytest.raises(TypeMismatch, match="is bool"):
        dtype_of(lambda x: astdsl.where(x, x, 0), f32)


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2", "sqrt", "tanh", "sin", "cos"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elementary_functions_agree_with_numpy(name: str, dtype: Any) -> None:
    x = np.array([0.1, 0.5, 1.0, 3.0], dtype)
    found = computed(getattr(astdsl, name), x)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, getattr(np, name)(x), rtol=1e-6)


@pytest.mark.parametrize("name", ["exp", "sqrt", "sigmoid", "tanh"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_elementary_functions_of_integers_are_f32(name: str, dtype: DType) -> None:
    assert dtype_of(getattr(astdsl, name), dtype) is f32


@pytest.mark.parametrize("name", ["floor", "ceil", "round"])
def test_rounding_leaves_integers_alone(name: str) -> None:
    x = np.array([2**31 - 1, -5], np.int32)
    assert np.array_equal(computed(getattr(astdsl, name), x), x)


def test_sigmoid_of_f16_is_rounded_once() -> None:
    x = np.linspace(-8, 8, 64).astype(np.float16)
    exact = (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float16)
    found = computed(astdsl.sigmoid, x)
    assert np.mean(found == exact) > 0.95
    np.testing.assert_allclose(found, exact, rtol=1e-3)


def test_nan_wins_in_minimum_and_maximum() -> None:
    x = np.array([np.nan, 1, 2], np.float32)
    y = np.array([1, np.nan, 3], np.float32)
    for name in ("minimum", "maximum"):
        found = computed(getattr(astdsl, name), x, y)
        assert np.array_equal(found, getattr(np, name)(x, y), equal_nan=True)


def test_clip_is_bounded_on_both_sides() -> None:
    x = np.arange(-4, 5, dtype=np.int32)
    assert np.array_equal(computed(lambda t: astdsl.clip(t, -2, 2), x), np.clip(x, -2, 2))


def test_fma_rounds_once() -> None:
    x = np.array([1 + 2**-12], np.float32)
    y = np.array([-(1 + 2**-11)], np.float32)
    found = computed(lambda a, b: astdsl.fma(a, a, b), x, y)
    assert found[0] == np.float32(float(x[0]) ** 2 + float(y[0]))


@for_all(st.integers(0, 10**6), st.integers(1, 1000))
def test_cdiv_of_python_integers_is_a_python_integer(x: int, y: int) -> None:
    found = astdsl.cdiv(x, y)
    assert isinstance(found, int)
    assert (found - 1) * y < x <= found * y or found == x == 0


@pytest.mark.parametrize("x", [5, None])
def test_cdiv_by_a_known_0_is_refused_in_a_kernel(x: int | None) -> None:
    with a_trace(TileType((), i32)) as (_, n), pytest.raises(TypeMismatch, match="divides by 0"):
        astdsl.cdiv(n if x is None else x, 0)


def test_cdiv_by_0_outside_of_kernels_is_pythons_error() -> None:
    with pytest.raises(ZeroDivisionError):
        astdsl.cdiv(5, 0)


def test_python_numbers_stay_python_numbers() -> None:
    assert astdsl.minimum(3, 4) == 3
    assert astdsl.maximum(3, 4) == 4
    assert abs(astdsl.abs(-2)) == 2


def test_augmented_assignment_keeps_the_dtype() -> None:
    def body(x: Tile, y: Tile) -> Tile:
        x += y
        return x

    assert dtype_of(body, f16, f32) is f16
    assert dtype_of(body, i8, i32) is i8


def test_augmented_assignment_refuses_a_float_into_an_integer() -> None:
    def body(x: Tile) -> Tile:
        x /= 2
        return x

    with pytest.raises(TypeMismatch, match="would drop fractions"):
        dtype_of(body, i32)


def added_to(x: Tile, y: Tile) -> Tile:
    x += y
    return x


def test_augmented_assignment_keeps_the_shape() -> None:
    with a_trace(TileType((4,), f32), TileType((3, 4), f32)) as (_, row, tile):
        with pytest.raises(ShapeMismatch):
            added_to(row, tile)
        assert added_to(tile, row).shape == (3, 4)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("summ", "did you mean `sum`"), ("exp", "`exp(t)` is a function"), ("to", "astype"),
        ("view", "reshape"), ("quux", "it has shape"),
    ],
)  # fmt: skip
def test_an_unknown_attribute_of_a_tile_says_what_to_write(name: str, hint: str) -> None:
    with a_trace(TileType((4,), f32)) as (_, x):
        with pytest.raises(UnknownName) as caught:
            getattr(x, name)
        assert hint in caught.value.help
        assert not hasattr(x, name)


@pytest.mark.parametrize("convert", [bool, int, float, operator.index, list])
def test_a_tile_is_no_python_number(convert: Callable[..., Any]) -> None:
    with a_trace(TileType((), f32)) as (_, x), pytest.raises(NotConstant):
        convert(x)


@pytest.mark.parametrize("function", [np.exp, np.sum, np.maximum, np.asarray])
def test_numpy_functions_name_ours(function: Callable[..., Any]) -> None:
    arguments = 2 if function is np.maximum else 1
    with a_trace(TileType((4,), f32)) as (_, x), pytest.raises(KernelError, match="astdsl"):
        function(*[x] * arguments)


def test_casts_saturate_and_go_towards_zero() -> None:
    x = np.array([1.9, -1.9, 300, -300, np.nan], np.float32)
    assert computed(lambda t: t.astype(i8), x).tolist() == [1, -1, 127, -128, 0]


def test_every_supported_dtype_has_a_numpy_type() -> None:
    assert all(BY_NUMPY[d.numpy] is d for d in SUPPORTED)
