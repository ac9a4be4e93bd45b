"""Scans and folds by a function against the reference, over dtypes, layouts and shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value
from astdsl.ir.dtypes import DType, boolean, f32, i32, i64
from astdsl.ir.types import TileType
from astdsl.lowering.layout.levels import levels_along
from astdsl.lowering.layout.registers import Digit, Layout, blocked
from tests.dtypes import EVERY
from tests.lowering.nvptx.test_reductions import layouts_of, small
from tests.lowering.nvptx.tiles import THREADS, Tiles, run

KINDS = (ops.Scan, ops.Fold)


def combination(tiles: Tiles, op: type[Op], *dtypes: DType) -> Block:
    """Return a region that combines each scalar of a state with its other one."""
    state = [TileType((), d) for d in dtypes]
    with tiles.builder.block([*state, *state]) as region:
        pairs = zip(region.args[: len(state)], region.args[len(state) :], strict=True)
        tiles.make_all(ops.Yield, values=tuple(tiles.make(op, x, y) for x, y in pairs))
    return region.block


def picking(tiles: Tiles, dtype: DType) -> Block:
    """Return a region that is associative and not commutative: the last number that is not 0."""
    number = TileType((), dtype)
    with tiles.builder.block([number, number]) as region:
        left, right = region.args
        zero = tiles.constant(0, dtype, ())
        is_zero = tiles.make(ops.Compare, right, zero, predicate="eq")
        tiles.make_all(ops.Yield, values=(tiles.make(ops.Select, is_zero, left, right),))
    return region.block


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [0, 1])
def test_every_dtype_equals_the_reference(kind: type[ops.Combining], axis: int) -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x in values:
            block = picking(tiles, x.tile.dtype)
            tiles.give(tiles.make(kind, xs=(x,), axis=axis, combine=block))

    run(build, *(small(d, (23, 12)) for d in EVERY), dtypes=EVERY).agree()


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], int, Layout]:
    """Draw a shape, an axis of it, and a layout."""
    shape = tuple(draw(st.lists(st.integers(1, 20), min_size=1, max_size=3)))
    axis = draw(st.integers(0, len(shape) - 1))
    return shape, axis, draw(st.sampled_from(layouts_of(shape)))


@settings(max_examples=50, deadline=None)
@given(case=cases(), kind=st.sampled_from(KINDS), dtype=st.sampled_from([f32, i64, boolean]))
def test_any_layout_keeps_the_order(
    case: tuple[tuple[int, ...], int, Layout], kind: type[ops.Combining], dtype: DType
) -> None:
    shape, axis, layout = case

    def build(tiles: Tiles, x: Value) -> None:
        block = picking(tiles, dtype)
        tiles.give(tiles.make(kind, xs=(x,), axis=axis, combine=block))

    run(build, small(dtype, shape, 3), dtypes=[dtype], layouts=[layout]).agree()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [128, 384])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_state_of_several_dtypes_goes_through_lanes_and_warps(
    kind: type[ops.Combining], threads: int, axis: int
) -> None:
    dtypes = (boolean, i64, f32)

    def build(tiles: Tiles, *xs: Value) -> None:
        block = combination(tiles, ops.Maximum, *dtypes)
        for value in tiles.make_all(kind, xs=xs, axis=axis, combine=block):
            tiles.give(value)

    shape = (300, 7)
    run(build, *(small(d, shape) for d in dtypes), dtypes=dtypes, threads=threads).agree()


def test_an_axis_whose_runs_interleave_is_moved_first() -> None:
    # Neighbours are two registers apart, and elements 8 apart stand between them.
    layout = Layout((16,), (Digit(2, 0, 1), Digit(2, 0, 1)), (Digit(8, 0, 2), Digit(16, -1, 0)))
    assert levels_along(layout, 0) is None

    def build(tiles: Tiles, x: Value) -> None:
        block = picking(tiles, i32)
        tiles.give(tiles.make(ops.Scan, xs=(x,), axis=0, combine=block))

    run(build, small(i32, (16,)), dtypes=[i32], layouts=[layout]).agree()


def test_a_captured_scalar_is_an_argument() -> None:
    def build(tiles: Tiles, x: Value, s: Value) -> None:
        number = TileType((), f32)
        with tiles.builder.block([number, number, number]) as region:
            left, right, scale = region.args
            total = tiles.make(ops.Add, tiles.make(ops.Multiply, left, scale), right)
            tiles.make_all(ops.Yield, values=(total,))
        fields = {"xs": (x,), "captured": (s,), "axis": 0, "combine": region.block}
        tiles.give(tiles.make(ops.Scan, **fields))

    one = np.ones((), np.float32)
    run(build, small(f32, (70,)), one, dtypes=[f32, f32]).agree()


def test_lanes_do_not_use_shared_memory() -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(ops.Scan, xs=(x,), axis=1, combine=combination(tiles, ops.Add, f32)))

    layout = blocked((64, 128), THREADS, 4)
    found = run(build, small(f32, (64, 128)), dtypes=[f32], layouts=[layout])
    found.agree()
    assert "shfl.sync.up" in found.ptx
    assert "st.shared" not in found.ptx
