"""Moving elements between layouts, shapes and places, against the reference."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import DType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from astdsl.lowering.layout.registers import (
    Layout,
    blocked,
    splat,
    tmem_accumulator,
    wgmma_accumulator,
)
from tests.dtypes import EVERY
from tests.lowering.nvptx.numbers import Array, any_bits
from tests.lowering.nvptx.tiles import THREADS, Tiles, run

# Layouts of a tile of two axes, as products, loads along rows and along columns leave it.
MakeLayout: TypeAlias = Callable[[tuple[int, int]], Layout]
LAYOUTS: dict[str, MakeLayout] = {
    "rows": lambda shape: blocked(shape, THREADS, 2 if shape[1] % 2 == 0 else 1),
    "columns": lambda shape: blocked(shape, THREADS, 1, (0, 1)),
    "wgmma": lambda shape: wgmma_accumulator(shape, THREADS),
    "tmem": lambda shape: tmem_accumulator(shape, THREADS),
    "copies": lambda shape: splat(shape, THREADS),
}
SHAPES = [(16, 8), (1, 7), (13, 5), (70, 3)]


def filled(dtype: DType, shape: tuple[int, ...]) -> Array:
    return any_bits(dtype, int(np.prod(shape)), 7).reshape(shape)


@pytest.fixture(params=LAYOUTS, name="layout")
def _layout(request: pytest.FixtureRequest) -> MakeLayout:
    return LAYOUTS[request.param]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_arrive_from_every_layout_in_every_other(shape: tuple[int, int]) -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x in values:
            tiles.give(tiles.make(ops.BitXor, values[0], x))
            tiles.give(tiles.make(ops.BitXor, x, values[-1]))

    arrays = [filled(i32, shape) + k for k in range(len(LAYOUTS))]
    layouts = [make(shape) for make in LAYOUTS.values()]
    run(build, *arrays, dtypes=[i32] * len(arrays), layouts=layouts).agree()


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_every_dtype_passes_through_shared_memory(dtype: DType) -> None:
    def build(tiles: Tiles, x: Value, y: Value) -> None:
        tiles.give(tiles.make(ops.Select, tiles.make(ops.Compare, y, y, predicate="eq"), x, y))

    shape = (13, 24)
    layouts = [wgmma_accumulator(shape, THREADS), blocked(shape, THREADS, 1, (0, 1))]
    x, y = filled(dtype, shape), np.ones(shape, dtype.numpy)
    run(build, x, y, dtypes=[dtype, dtype], layouts=layouts).agree()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_index_tile_counts_along_its_axis(shape: tuple[int, int], layout: MakeLayout) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        for axis in (0, 1):
            for dtype in (i8, i32, i64, u8, f16, bf16, f32, f64):
                count = tiles.make(ops.Iota, shape=shape, axis=axis, dtype=dtype)
                wide = tiles.make(ops.Cast, count, dtype=i32)
                tiles.give(tiles.make(ops.Add, wide, x))

    run(build, filled(i32, shape), dtypes=[i32], layouts=[layout(shape)]).agree()


def test_an_index_tile_that_nothing_places_is_made_in_the_coalesced_layout() -> None:
    def build(tiles: Tiles, x: Value) -> None:
        del x
        tiles.give(tiles.make(ops.Iota, shape=(5, 300), axis=1, dtype=bf16))

    run(build, filled(i32, (3,)), dtypes=[i32]).agree()


@pytest.mark.parametrize("shape", [(), (6,), (1,), (1, 6), (17, 1), (1, 1), (17, 6)], ids=str)
def test_a_broadcast_repeats_axes_of_extent_one_and_new_ones(
    shape: tuple[int, ...], layout: MakeLayout
) -> None:
    def build(tiles: Tiles, x: Value, y: Value) -> None:
        wide = tiles.make(ops.Broadcast, x, shape=(17, 6))
        tiles.give(tiles.make(ops.Add, y, wide))
        tiles.give(tiles.make(ops.Broadcast, x, shape=(2, 17, 6)))

    arrays = filled(i32, shape), filled(i32, (17, 6))
    run(build, *arrays, dtypes=[i32, i32], layouts=[None, layout((17, 6))]).agree()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_transposed_tile_keeps_its_registers(shape: tuple[int, int], layout: MakeLayout) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(ops.Transpose, x, permutation=(1, 0)))

    found = run(build, filled(i32, shape), dtypes=[i32], layouts=[layout(shape)])
    found.agree()
    assert "bar.sync" not in found.ptx


def test_axes_of_a_tile_are_permuted() -> None:
    def build(tiles: Tiles, x: Value, y: Value) -> None:
        turned = tiles.make(ops.Transpose, x, permutation=(2, 0, 1))
        tiles.give(tiles.make(ops.Add, turned, y))
        free = tiles.make(ops.Iota, shape=(4, 6, 10), axis=1, dtype=i32)
        tiles.give(tiles.make(ops.Add, y, tiles.make(ops.Transpose, free, permutation=(2, 0, 1))))

    run(build, filled(i32, (4, 6, 10)), filled(i32, (10, 4, 6)), dtypes=[i32, i32]).agree()


@pytest.mark.parametrize(
    ("shape", "new"),
    [
        ((12, 10), (120,)),
        ((12, 10), (10, 12)),
        ((12, 10), (1, 12, 1, 10)),
        ((1, 12, 1), (12,)),
        ((1,), ()),
        ((), (1, 1)),
        ((24, 32), (3, 8, 4, 8)),
        ((7, 9), (3, 21)),
        ((1, 40), (40, 1)),
    ],
    ids=str,
)
def test_a_reshape_keeps_the_row_major_order(shape: tuple[int, ...], new: tuple[int, ...]) -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x in values:
            moved = tiles.make(ops.Reshape, x, shape=new)
            tiles.give(moved)
            zeros = tiles.constant(0, x.tile.dtype, new)
            tiles.give(tiles.make(ops.BitOr, zeros, moved))
        free = tiles.constant(7, i32, shape)
        tiles.give(tiles.make(ops.Reshape, free, shape=new))

    dtypes = (i32, i64, boolean)
    run(build, *(filled(d, shape) for d in dtypes), dtypes=dtypes).agree()


def test_a_reshape_of_a_product_with_one_row_drops_its_padding() -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(ops.Reshape, x, shape=(40,)))

    layouts = [wgmma_accumulator((1, 40), THREADS)]
    run(build, filled(i32, (1, 40)), dtypes=[i32], layouts=layouts).agree()


def test_a_reshape_within_each_thread_needs_no_shared_memory() -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(ops.Reshape, x, shape=(128, 2, 4)))

    rows = Layout(
        (128, 8), blocked((128, 8), THREADS, 8).registers, blocked((128,), THREADS).threads
    )
    found = run(build, filled(i32, (128, 8)), dtypes=[i32], layouts=[rows])
    found.agree()


SLICES = [
    ((0, 0), (13, 5), (1, 1)),
    ((3, 1), (4, 3), (1, 1)),
    ((12, 4), (13, 5), (-1, -1)),
    ((1, 0), (6, 3), (2, 2)),
    ((11, 2), (4, 1), (-3, 1)),
]


@pytest.mark.parametrize(("starts", "sizes", "steps"), SLICES, ids=str)
def test_a_slice_takes_every_step_from_its_start(
    starts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...], layout: MakeLayout
) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        fields = {"starts": starts, "sizes": sizes, "steps": steps}
        tiles.give(tiles.make(ops.Slice, x, **fields))
        free = tiles.make(ops.Iota, shape=(13, 5), axis=0, dtype=i32)
        tiles.give(tiles.make(ops.Slice, free, **fields))

    run(build, filled(i32, (13, 5)), dtypes=[i32], layouts=[layout((13, 5))]).agree()


@pytest.mark.parametrize(
    ("size", "starts"),
    [((13, 5), (0, 0)), ((4, 3), (3, 1)), ((1, 1), (12, 4)), ((13, 1), (0, 2)), ((5, 5), (8, 0))],
    ids=str,
)
def test_an_inserted_part_replaces_its_place_alone(
    size: tuple[int, int], starts: tuple[int, int], layout: MakeLayout
) -> None:
    def build(tiles: Tiles, x: Value, part: Value) -> None:
        tiles.give(tiles.make(ops.Insert, x, part, starts=starts))
        free = tiles.constant(9, i32, size)
        tiles.give(tiles.make(ops.Insert, x, free, starts=starts))

    arrays = filled(i32, (13, 5)), filled(i32, size)
    run(build, *arrays, dtypes=[i32, i32], layouts=[layout((13, 5)), layout(size)]).agree()
