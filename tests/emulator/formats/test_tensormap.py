"""Tests of the tensor map: its constraints and its 128 bytes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.swizzle import Swizzle
from astdsl.emulator.formats.tensormap import (
    MAP_BYTES,
    Interleave,
    OutOfBounds,
    TensorDataType,
    TensorMap,
)

F16 = TensorDataType.F16
PLAIN = TensorMap(F16, 0x1000, (256, 64, 3), (512, 32768), (64, 32, 1), swizzle=Swizzle.B128)


def test_from_bytes_reads_what_to_bytes_made() -> None:
    m = TensorMap(
        F16, 1 << 40, (1 << 32, 7), (1 << 20,), (32, 7), (1, 3),
        out_of_bounds=OutOfBounds.NAN, l2_promotion_bytes=256,
    )  # fmt: skip
    assert TensorMap.from_bytes(m.to_bytes()) == m
    assert len(m.to_bytes()) == MAP_BYTES


def test_other_bytes_are_not_a_tensor_map() -> None:
    with pytest.raises(FormatError, match="not a tensor map"):
        TensorMap.from_bytes(bytes(MAP_BYTES))


def test_damaged_bytes_are_reported() -> None:
    raw = bytearray(PLAIN.to_bytes())
    raw[4] = 77
    with pytest.raises(FormatError, match="damaged"):
        TensorMap.from_bytes(bytes(raw))


def test_a_box_holds_one_element_for_each_stride() -> None:
    m = replace(PLAIN, box=(64, 32, 1), element_strides=(4, 3, 1))
    assert m.box_elements == (64, 11, 1)
    assert m.box_bytes == 64 * 11 * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dims": (), "strides_bytes": (), "box": (), "element_strides": ()}, "rank is 0"),
        ({"strides_bytes": (512,)}, "needs 2 strides_bytes"),
        ({"box": (64, 32)}, "needs 3 box"),
        ({"address": 0x1008}, "16-byte aligned"),
        ({"dims": (256, 0, 3)}, "dim 1 is 0"),
        ({"dims": ((1 << 32) + 1, 64, 3)}, "must be 1 to 2\\*\\*32"),
        ({"strides_bytes": (520, 32768)}, "stride of dim 1 is 520"),
        ({"strides_bytes": (512, 1 << 40)}, "below 2\\*\\*40"),
        ({"box": (64, 257, 1)}, "box dim 1 is 257"),
        ({"element_strides": (1, 9, 1)}, "element stride 9"),
        ({"box": (12, 32, 1)}, "inner 24 bytes are no 16-byte units"),
        ({"box": (128, 32, 1)}, "inner 256 bytes exceed 128, swizzle B128"),
        ({"interleave": Interleave.B32}, "interleave 32B goes with swizzle 32B"),
        ({"l2_promotion_bytes": 32}, "L2 promotion"),
        ({"dtype": TensorDataType.U16, "out_of_bounds": OutOfBounds.NAN}, "needs a float type"),
    ],
)
def test_what_the_driver_refuses_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        replace(PLAIN, **change)


def test_interleaved_maps_have_three_dimensions() -> None:
    with pytest.raises(FormatError, match="rank >= 3"):
        TensorMap(F16, 0, (64, 64), (128,), (16, 16), interleave=Interleave.B16)


def test_wide_alignment_is_asked_for_by_padded_types() -> None:
    with pytest.raises(FormatError, match="32-byte aligned"):
        TensorMap(TensorDataType.U4_ALIGN16B, 16, (128, 8), (64,), (128, 8))


def test_a_map_of_an_array_follows_its_axes_backwards() -> None:
    array = np.zeros((3, 64, 256), np.float16)
    m = TensorMap.of(array, (1, 32, 64), swizzle=Swizzle.B128)
    assert (m.dims, m.strides_bytes, m.box) == ((256, 64, 3), (512, 32768), (64, 32, 1))
    assert m.dtype is F16
    assert m.arrays[0] is array


def test_a_map_needs_a_contiguous_last_axis() -> None:
    with pytest.raises(FormatError, match="contiguous"):
        TensorMap.of(np.zeros((64, 64), np.float16)[:, ::2], (8, 8))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([[1.0]], "an array of NumPy, not a list"),
        (np.float32(1), "an array of NumPy, not a float32"),
        (None, "an array of NumPy, not a NoneType"),
    ],
)
def test_a_map_is_of_an_array(given: Any, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        TensorMap.of(given, (8, 8))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"box": 8}, "box is a list of integers, not a int"),
        ({"box": "88"}, "box is a list of integers, not a str"),
        ({"box": (8.0, 8)}, "box is a list of integers, which a float is not"),
        ({"box": (True, 8)}, "box is a list of integers, which a bool is not"),
        ({"element_strides": None}, "element_strides is a list of integers, not a NoneType"),
        ({"swizzle": 3}, "swizzle is a Swizzle, not a int"),
        ({"swizzle": "128B"}, "swizzle is a Swizzle, not a str"),
        ({"out_of_bounds": 1}, "out_of_bounds is a OutOfBounds, not a int"),
    ],
)
def test_a_map_of_an_array_has_a_box_and_modes(options: dict[str, Any], said: str) -> None:
    array = np.zeros((64, 64), np.float16)
    given = {"box": (8, 8), **options}
    with pytest.raises(FormatError, match=said):
        TensorMap.of(array, **given)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ((7, 0, (64,), (), (8,)), "dtype is a TensorDataType, not a int"),
        ((F16, 0.0, (64,), (), (8,)), "address is an integer, not a float"),
        ((F16, -16, (64,), (), (8,)), "more than 64 bits"),
        ((F16, 1 << 64, (64,), (), (8,)), "more than 64 bits"),
        ((F16, 0, 64, (), (8,)), "dims is a list of integers, not a int"),
        ((F16, 0, (64, 64), (128.0,), (8, 8)), "strides_bytes is a list of integers"),
        ((F16, 0, (64,), (), (8,), (), None), "interleave is a Interleave, not a NoneType"),
    ],
)
def test_fields_of_another_kind_are_refused(fields: Any, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        TensorMap(*fields)


@pytest.mark.parametrize("arrays", [None, (5,), np.zeros(8)])
def test_a_map_keeps_arrays(arrays: Any) -> None:
    with pytest.raises(FormatError, match="arrays is a tuple of arrays of NumPy"):
        TensorMap(F16, 0, (64,), (), (8,), arrays=arrays)


@pytest.mark.parametrize("raw", [None, [1], "x" * 128])
def test_what_is_no_bytes_is_no_map(raw: Any) -> None:
    with pytest.raises(FormatError, match="not a tensor map"):
        TensorMap.from_bytes(raw)
