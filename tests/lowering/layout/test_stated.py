"""Layouts of shared memory that a kernel states: where each element is, and the boxes of TMA."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import f32
from astdsl.ir.transforms import SWIZZLE, TILING, TRANSPOSE, Transform, physical_axes
from astdsl.ir.types import GMEM, INDEX, SMEM, RefType
from astdsl.lowering.layout.offsets import plain_offsets, split_offsets
from astdsl.lowering.layout.registers import blocked
from astdsl.lowering.layout.shared import BufferLayout, stated_layout
from astdsl.lowering.tensor_maps import Split, pieces
from astdsl.source import NOWHERE

SHAPE = (16, 64)
TILED: tuple[Transform, ...] = ((TILING, (8, 32)),)
BY_COLUMNS: tuple[Transform, ...] = (*TILED, (TRANSPOSE, (1, 0, 2, 3)))


def layout_of(transforms: tuple[Transform, ...], swizzle_bytes: int = 0) -> BufferLayout:
    return stated_layout(SHAPE, f32, physical_axes(SHAPE, transforms), swizzle_bytes)


def test_elements_of_a_tile_follow_each_other() -> None:
    layout = layout_of(TILED)
    for i, j in itertools.product(*map(range, SHAPE)):
        number = (i // 8 * 2 + j // 32) * 256 + i % 8 * 32 + j % 32
        assert layout.offset_bytes((i, j)) == 4 * number


def test_a_transpose_after_a_tiling_stores_tiles_by_columns() -> None:
    layout = layout_of(BY_COLUMNS)
    for i, j in itertools.product(*map(range, SHAPE)):
        number = (j // 32 * 2 + i // 8) * 256 + i % 8 * 32 + j % 32
        assert layout.offset_bytes((i, j)) == 4 * number


@pytest.mark.parametrize("transforms", [TILED, BY_COLUMNS, ((TRANSPOSE, (1, 0)),), ()])
def test_every_element_has_a_place_of_its_own(transforms: tuple[Transform, ...]) -> None:
    layout = layout_of(transforms)
    places = np.array(list(itertools.product(*map(range, SHAPE))))
    offsets = plain_offsets(layout, places)
    assert sorted(offsets) == list(range(0, 4 * len(places), 4))
    assert [layout.offset_bytes(p) for p in places.tolist()] == offsets.tolist()


def test_a_split_place_of_a_tiled_layout_is_where_the_element_is() -> None:
    layout = layout_of(TILED)
    held = blocked(SHAPE, 128, 4)
    threads, registers = held.bases, np.array(held.offsets)
    split = split_offsets(layout, threads, registers)
    assert split is not None
    for thread, (register, (flip, move)) in itertools.product(
        threads, zip(registers, split, strict=True)
    ):
        own = layout.offset_bytes(thread.tolist())
        assert (own ^ flip) + move == layout.offset_bytes((thread + register).tolist())


def split_of(transforms: tuple[Transform, ...], swizzle_bytes: int) -> Split:
    array = Value(RefType(SHAPE, f32, GMEM, strides=(64, 1), tma=True, align_bytes=16))
    buffer = Value(RefType(SHAPE, f32, SMEM))
    copy = ops.CopyOut(
        span=NOWHERE,
        ref=array,
        starts=(Value(INDEX), Value(INDEX)),
        sizes=SHAPE,
        steps=(1, 1),
        kept=(True, True),
        buffer=buffer,
    )
    return pieces(copy, layout_of(transforms, swizzle_bytes))


@pytest.mark.parametrize("swizzle", [128, 0])
def test_a_box_of_tma_is_a_tile_with_the_swizzle_that_is_stated(swizzle: int) -> None:
    split = split_of(TILED, swizzle)
    assert split.key == ((1, 0), (32, 8), swizzle)
    assert [(p.moves, p.offset_bytes) for p in split.pieces] == [
        ((0, 0), 0),
        ((0, 8), 2048),
        ((32, 0), 1024),
        ((32, 8), 3072),
    ]


def test_tiles_that_follow_each_other_down_the_rows_are_one_box() -> None:
    split = split_of((*BY_COLUMNS, (SWIZZLE, (128,))), 128)
    assert split.key == ((1, 0), (32, 16), 128)
    assert [(p.moves, p.offset_bytes) for p in split.pieces] == [((0, 0), 0), ((32, 0), 2048)]
