"""Tests of the units of a box, against element-by-element loops."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from astdsl.emulator.formats.boxes import box_units, fill_pattern, require_plain, shared_units
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.swizzle import Swizzle, swizzle
from astdsl.emulator.formats.tensormap import Interleave, OutOfBounds, TensorDataType, TensorMap
from tests.strategies import tensor_boxes

U16 = TensorDataType.U16


def gathered(m: TensorMap, memory: NDArray[Any], corner: tuple[int, ...]) -> NDArray[Any]:
    """Copy a box by units, as the emulator does."""
    units = box_units(m, np.array([corner], np.int64))
    view = memory.view(f"u{units.unit_bytes}" if units.unit_bytes <= 8 else "c16")
    offsets = (units.corners_bytes[0] + units.relative_bytes) // units.unit_bytes
    if units.inside is None:
        return np.ascontiguousarray(view[offsets]).view(np.uint16)
    inside = units.inside[0]
    return np.where(inside, view[np.where(inside, offsets, 0)], 0).view(np.uint16)


def expected(m: TensorMap, array: NDArray[Any], corner: tuple[int, ...]) -> NDArray[Any]:
    """Copy a box element by element, by the formula of PTX ISA 5.5.3."""
    steps = (1, *m.element_strides[1:])
    out = []
    for place in itertools.product(*(range(n) for n in reversed(m.box_elements))):
        position = [c + b * s for c, b, s in zip(corner, reversed(place), steps, strict=True)]
        ok = all(0 <= p < d for p, d in zip(position, m.dims, strict=True))
        out.append(array[tuple(reversed(position))] if ok else 0)
    return np.array(out, np.uint16)


@pytest.mark.parametrize(
    "corner", [(0, 0, 0), (8, 2, 1), (3, 0, 0), (-5, 1, 0), (40, -2, 2), (0, 5, -1), (90, 90, 90)]
)
@pytest.mark.parametrize("steps", [(1, 1, 1), (2, 3, 1)])
def test_a_box_holds_the_elements_of_the_formula(corner: tuple[int, ...], steps: Any) -> None:
    array = np.arange(1, 3 * 6 * 48 + 1, dtype=np.uint16).reshape(3, 6, 48)
    m = TensorMap(U16, 0, (48, 6, 3), (96, 576), (16, 4, 2), steps)
    assert np.array_equal(gathered(m, array.reshape(-1), corner), expected(m, array, corner))


@given(tensor_boxes())
def test_any_box_holds_the_elements_of_the_formula(drawn: Any) -> None:
    m, array, corner = drawn
    placed = replace(m, address=0)
    assert np.array_equal(gathered(placed, array.reshape(-1), corner), expected(m, array, corner))


def test_units_are_16_bytes_when_no_edge_cuts_one() -> None:
    m = TensorMap(U16, 0, (64, 8), (128,), (16, 4))
    corners = np.array([[16, 0], [48, 6]], np.int64)
    units = box_units(m, corners)
    assert units.unit_bytes == 16
    assert units.inside is not None
    assert units.inside.tolist() == [[True] * 8, [True] * 4 + [False] * 4]


def test_units_are_elements_when_a_box_begins_inside_one() -> None:
    m = TensorMap(U16, 0, (64, 8), (128,), (16, 4))
    assert box_units(m, np.array([[1, 0]], np.int64)).unit_bytes == 2


@pytest.mark.parametrize("mode", list(Swizzle))
def test_shared_units_are_the_swizzled_bytes(mode: Swizzle) -> None:
    unit = 8 if mode is Swizzle.B128_ATOM_32B_FLIP_8B else 16
    units = shared_units(2048, 1024, unit, mode)
    each_byte = swizzle(np.arange(2048, 3072, dtype=np.int64), mode)
    assert np.array_equal((units[:, None] * unit + np.arange(unit)).reshape(-1), each_byte)


def test_outside_is_zero_or_a_quiet_nan() -> None:
    m = TensorMap(TensorDataType.F16, 0, (64, 8), (128,), (16, 4))
    assert fill_pattern(m) == 0
    nan = TensorMap(TensorDataType.F16, 0, (64, 8), (128,), (16, 4), out_of_bounds=OutOfBounds.NAN)
    assert np.isnan(np.array(fill_pattern(nan), np.uint16).view(np.float16))


def test_interleaved_maps_are_refused_by_name() -> None:
    m = TensorMap(
        TensorDataType.F16, 0, (128, 8, 8), (256, 2048), (8, 4, 4), interleave=Interleave.B16
    )
    with pytest.raises(FormatError, match="interleave B16"):
        require_plain(m)
