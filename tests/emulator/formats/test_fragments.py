"""Tests that fragments are bijections and stand where the ISA's figures put them."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.fragments import (
    TMEM_SHAPES,
    accumulator_lanes,
    tmem_access,
    wgmma_a_fragment,
    wgmma_d_fragment,
)


def places(row: NDArray[Any], column: NDArray[Any], width: int) -> list[int]:
    return sorted((np.broadcast_to(row, column.shape) * width + column).reshape(-1).tolist())


@pytest.mark.parametrize("n", [8, 64, 256])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_accumulator_fragment_covers_the_tile_once(n: int, parts: int) -> None:
    fragment = wgmma_d_fragment(n, parts)
    assert fragment.row.shape == (n // 2 // parts, 128, parts)
    assert places(fragment.row, fragment.column, n) == list(range(64 * n))


def test_accumulator_registers_follow_the_figure() -> None:
    fragment = wgmma_d_fragment(16, 1)
    thread = 37  # warp 1, lane 5: row 16 + 1, columns from 2
    assert fragment.row[:, thread, 0].tolist() == [17, 17, 25, 25, 17, 17, 25, 25]
    assert fragment.column[:, thread, 0].tolist() == [2, 3, 2, 3, 10, 11, 10, 11]


@pytest.mark.parametrize(("bits", "depth"), [(32, 8), (16, 16), (8, 32)])
def test_the_a_fragment_covers_the_tile_once(bits: int, depth: int) -> None:
    fragment = wgmma_a_fragment(bits)
    assert places(fragment.row, fragment.column, depth) == list(range(64 * depth))


@pytest.mark.parametrize("shape", list(TMEM_SHAPES))
def test_loads_of_tensor_memory_touch_every_cell_once(shape: str) -> None:
    repeat = 4
    access = tmem_access(shape, repeat, half_split=repeat)
    columns = int(access.column.max()) + 1
    rows = int(access.lane.max()) + 1
    assert places(access.lane, access.column, columns) == list(range(rows * columns))


def test_two_rows_of_registers_of_16x256b_follow_the_figure() -> None:
    access = tmem_access("16x256b", 1)
    assert access.lane[:, 5].tolist() == [1, 1, 9, 9]
    assert access.column[:, 5].tolist() == [2, 3, 2, 3]


@pytest.mark.parametrize(("shape", "repeat"), [("32x32b", 3), ("16x256b", 64), ("8x8b", 1)])
def test_shapes_that_do_not_exist_are_refused(shape: str, repeat: int) -> None:
    with pytest.raises(FormatError):
        tmem_access(shape, repeat)


def test_64_rows_take_every_other_sixteen_lanes() -> None:
    lanes = accumulator_lanes(64, 16)
    assert lanes[[0, 15, 16, 63]].tolist() == [16, 31, 48, 127]


def test_a_tile_of_128_rows_begins_in_lane_0() -> None:
    with pytest.raises(FormatError, match="lane 0"):
        accumulator_lanes(128, 16)
