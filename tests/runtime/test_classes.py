"""The class of an argument, and why it is not a better one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astdsl.ir.dtypes import DType, f16, f32, i8
from astdsl.runtime.classes import (
    Geometry,
    alignment_of,
    classify,
    launch_strides,
    ref_type,
    tell_apart,
)


def geometry(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType = f32, align: int = 16
) -> Geometry:
    return Geometry(shape, strides, dtype, align)


def test_a_row_major_array_is_contiguous_in_its_last_axis_and_takes_tma() -> None:
    found = classify(geometry((64, 32), (32, 1)))
    assert (found.contiguous_axis, found.tma, found.small) == (1, True, True)
    assert found.words() == "axis 1 contiguous; TMA; 32-bit offsets"


def test_a_transposed_array_is_contiguous_in_its_first_axis() -> None:
    assert classify(geometry((32, 64), (1, 32))).contiguous_axis == 0


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (geometry((4, 7), (7, 1)), "axis 0 has a stride of 28 bytes, no multiple of 16"),
        (geometry((4, 8), (8, 1), align=4), "its base is no multiple of 16 bytes"),
        (geometry((4, 8), (0, 1)), "axis 0 has stride 0"),
        (geometry((4, 8), (-8, 1)), "axis 0 runs backwards"),
        (geometry((4, 8), (16, 2)), "no axis is contiguous"),
        (geometry((0, 8), (8, 1)), "it has no elements"),
        (geometry((), ()), "it has no axis"),
        (geometry((2,) * 6, (32, 16, 8, 4, 2, 1)), "it has 6 axes, and a tensor map 5"),
        (geometry((2**33,), (1,), i8), "axis 0 is longer than 2**32"),
        (geometry((2, 8), (2**38, 1)), "axis 0 has a stride over 2**40"),
    ],
)
def test_what_tma_cannot_describe_takes_plain_loads_for_a_reason(
    case: Geometry, reason: str
) -> None:
    found = classify(case)
    assert not found.tma
    assert found.reason == reason
    assert f"plain loads, because {reason}" in found.words()


def test_strides_of_axes_of_extent_1_mean_nothing() -> None:
    plain = classify(geometry((1, 8), (8, 1)))
    assert classify(geometry((1, 8), (-777, 1))) == plain
    assert classify(geometry((1, 8), (0, 1))) == plain


def test_a_launch_gets_strides_that_a_tensor_map_takes_for_axes_of_extent_1() -> None:
    assert launch_strides(geometry((1, 8, 1), (-777, 1, 3), f16)) == (8, 1, 8)


@pytest.mark.parametrize(
    ("shape", "strides", "small"),
    [
        ((2**29,), (1,), True),
        ((2**29 + 1,), (1,), False),
        ((2, 4), (2**29 - 4, 1), True),
        ((2, 4), (2**29, 1), False),
        ((2, 4), (-(2**29), 1), True),
        ((2, 4), (-(2**29) - 1, 1), False),
        ((2**31 - 1, 4), (0, 1), True),
        ((2**31, 4), (0, 1), False),
    ],
)
def test_offsets_fit_32_bits_by_what_is_reached_not_by_elements(
    shape: tuple[int, ...], strides: tuple[int, ...], small: bool
) -> None:
    assert classify(geometry(shape, strides)).small is small


def test_alignment_is_a_power_of_two_up_to_16() -> None:
    assert [alignment_of(a) for a in (0, 16, 48, 8, 4, 6, 7)] == [16, 16, 16, 8, 4, 2, 1]


def test_alignment_below_tma_makes_no_third_class() -> None:
    assert classify(geometry((8,), (1,), align=8)) == classify(geometry((8,), (1,), align=4))


def test_a_base_inside_an_element_is_told() -> None:
    assert classify(geometry((8,), (1,), align=2)).align_bytes == 2


def test_new_sizes_of_the_same_class_have_the_same_type() -> None:
    small = ref_type(geometry((64, 32), (32, 1)), f32, (None, None))
    assert ref_type(geometry((100, 4096), (4096, 1)), f32, (None, None)) == small


def test_an_array_without_elements_is_of_a_class_of_its_own() -> None:
    empty = ref_type(geometry((64, 0), (32, 1)), f32, (None, None))
    misaligned = ref_type(geometry((64, 32), (33, 1)), f32, (None, None))
    assert empty == replace(misaligned, empty=True)
    assert "no elements" in tell_apart(empty, misaligned)[0]


def test_a_type_holds_the_static_dims_and_the_stride_of_1() -> None:
    made = ref_type(geometry((64, 32), (32, 1)), f32, (None, 32))
    assert (made.shape, made.strides) == ((None, 32), (None, 1))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-40, 40)), min_size=1, max_size=5),
    st.sampled_from([i8, f16, f32]),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_tma_is_promised_only_where_the_driver_would_take_the_map(
    axes: list[tuple[int, int]], dtype: DType, align: int
) -> None:
    case = geometry(tuple(d for d, _ in axes), tuple(s for _, s in axes), dtype, align)
    found = classify(case)
    if not found.tma:
        return
    strides = launch_strides(case)
    assert found.contiguous_axis is not None
    assert strides[found.contiguous_axis] == 1
    assert case.align_bytes == 16
    for axis, (extent, stride) in enumerate(zip(case.shape, strides, strict=True)):
        assert extent > 0
        if axis != found.contiguous_axis:
            assert stride > 0
            assert stride * dtype.bytes % 16 == 0
