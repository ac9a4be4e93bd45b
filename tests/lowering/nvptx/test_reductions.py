"""Reductions against the reference, over dtypes, layouts and shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import DType, bf16, boolean, f16, f32, f64, i32, i64, u8, u32
from astdsl.ir.types import TileType
from astdsl.lowering.layout.registers import (
    Layout,
    blocked,
    splat,
    tmem_accumulator,
    wgmma_accumulator,
)
from astdsl.lowering.target import SM_90A, SM_100A, TARGETS, Target
from tests.dtypes import EVERY, FLOATS, NUMBERS
from tests.lowering.nvptx.numbers import Array, any_bits, some, without_nan
from tests.lowering.nvptx.tiles import THREADS, Tiles, ptx_of, run

KINDS = ("sum", "prod", "min", "max", "any", "all")


def small(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Return numbers whose sums and products every order of evaluation gives alike."""
    generator = np.random.default_rng(seed)
    if dtype is boolean:
        return generator.integers(0, 2, shape).astype(np.bool_)
    low = -2 if dtype.is_signed else 0
    return generator.integers(low, 3, shape).astype(dtype.numpy)


def ones(dtype: DType, shape: tuple[int, ...]) -> Array:
    """Return ones, and one factor of two: no order overflows."""
    array = np.ones(shape, dtype.numpy)
    array.reshape(-1)[-1] = 2 if dtype is not boolean else 1
    return array


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_a_reduction_of_every_dtype_equals_the_reference(kind: str, axes: tuple[int, ...]) -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x in values:
            tiles.give(tiles.make(ops.Reduce, x, axes=axes, kind=kind))

    make = ones if kind == "prod" else small
    run(build, *(make(d, (23, 12)) for d in EVERY), dtypes=EVERY).agree()


@pytest.mark.parametrize("kind", ["min", "max"])
def test_extremes_are_those_of_special_numbers(kind: str) -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x in values:
            for axes in ((0,), (1,), (0, 1)):
                tiles.give(tiles.make(ops.Reduce, x, axes=axes, kind=kind))

    arrays = [some(d)[:64].reshape(8, 8) for d in NUMBERS]
    numbers = map(without_nan, arrays[: len(FLOATS)])
    run(build, *arrays, *numbers, dtypes=(*NUMBERS, *FLOATS)).agree()


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
@pytest.mark.parametrize("kind", ["sum", "min", "max"])
def test_whole_warps_reduce_any_bits_as_the_reference_does(kind: str, target: Target) -> None:
    """Words by `redux`, where the target has it, others by shuffles; zeros are ordered."""

    def build(tiles: Tiles, *values: Value) -> None:
        for x in values:
            tiles.give(tiles.make(ops.Reduce, x, axes=(1,), kind=kind))

    dtypes = [d for d in NUMBERS if kind != "sum" or not d.is_float]
    arrays = [np.resize(some(d)[:96], (7, 128)) for d in dtypes]
    zeros = [np.where(np.arange(128) % 3 == k, -0.0, 0.0) for k in (0, 1, 3)]
    signed = [np.array(zeros).astype(d.numpy) for d in dtypes if d.is_float]
    floats = [d for d in dtypes if d.is_float]
    run(build, *arrays, *signed, dtypes=[*dtypes, *floats], target=target).agree()


@pytest.mark.parametrize("kind", ["any", "all"])
def test_whole_warps_vote(kind: str) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(ops.Reduce, x, axes=(1,), kind=kind))

    x = np.full((4, 128), kind == "all")
    x[1, 77] = x[2] = kind == "any"
    found = run(build, x, dtypes=[boolean])
    found.agree()
    assert f"vote.sync.{kind}" in found.ptx
    assert "shfl" not in found.ptx


@pytest.mark.parametrize(
    ("dtype", "kind", "target", "instruction"),
    [
        (i32, "sum", SM_90A, "redux.sync.add.s32"),
        (u8, "max", SM_90A, "redux.sync.max.u32"),
        (f32, "max", SM_100A, "redux.sync.max.NaN.f32"),
        (f16, "min", SM_100A, "redux.sync.min.NaN.f32"),
    ],
    ids=str,
)
def test_a_warp_reduces_words_by_one_instruction(
    dtype: DType, kind: str, target: Target, instruction: str
) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(ops.Reduce, x, axes=(1,), kind=kind))

    ptx, _ = ptx_of(build, TileType((1, 128), dtype), target=target)
    assert ptx.count(instruction) == 1
    assert "shfl" not in ptx


@pytest.mark.parametrize("folds", [1, 2, 3])
def test_warps_meet_once_for_an_exchange(folds: int) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        for _ in range(folds):
            total = tiles.make(ops.Reduce, x, axes=(1,), kind="sum")
            x = tiles.make(ops.Add, x, tiles.make(ops.Broadcast, total, shape=(1, 256)))
            tiles.give(x)

    found = run(build, small(f32, (1, 256)), dtypes=[f32])
    found.agree()
    assert found.ptx.count("bar.sync") == folds


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_sum_of_negative_zeros_is_a_zero(dtype: DType) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(ops.Reduce, x, axes=(0, 1), kind="sum"))

    run(build, np.full((9, 5), -0.0, dtype.numpy), dtypes=[dtype]).agree()


@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_spreads_through_a_reduction(kind: str, value: float) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(ops.Reduce, x, axes=(0,), kind=kind))

    x = np.ones((37, 40), np.float32)
    x[5, 7] = value
    x[30, 8] = -value
    run(build, x, dtypes=[f32]).agree()


def test_narrow_floats_are_summed_in_f32_and_rounded_once() -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x in values:
            tiles.give(tiles.make(ops.Reduce, x, axes=(0,), kind="sum"))

    x = np.full((300, 2), 1.0)
    x[0] = 2048
    run(build, x.astype(f16.numpy), x.astype(bf16.numpy), dtypes=(f16, bf16)).agree()


def test_a_sum_of_f32_is_close_to_that_of_f64() -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(ops.Reduce, x, axes=(0,), kind="sum"))

    x = np.random.default_rng(3).random((500, 3), np.float32)
    (found,) = run(build, x, dtypes=[f32]).emulated
    np.testing.assert_allclose(found, x.sum(axis=0, dtype=np.float64), rtol=1e-6)


def layouts_of(shape: tuple[int, ...]) -> list[Layout]:
    """Return layouts of a tile, one of each kind that fits its rank."""
    fastest_last = blocked(shape, THREADS)
    fastest_first = blocked(shape, THREADS, 1, tuple(range(len(shape))))
    found = [fastest_last, fastest_first]
    if len(shape) == 2:
        rows, columns = shape
        found += [make((rows, columns), THREADS) for make in (wgmma_accumulator, tmem_accumulator)]
    if np.prod(shape) <= 64:
        found.append(splat(shape, THREADS))
    return found


@st.composite
def reductions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], str, Layout]:
    """Draw a shape, axes of it, a kind, and a layout."""
    shape = tuple(draw(st.lists(st.integers(1, 20), min_size=1, max_size=3)))
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    layout = draw(st.sampled_from(layouts_of(shape)))
    return shape, tuple(sorted(axes)), draw(st.sampled_from(KINDS)), layout


@settings(max_examples=60, deadline=None)
@given(case=reductions(), dtype=st.sampled_from([f32, bf16, i64, boolean]))
def test_a_reduction_in_any_layout_equals_the_reference(
    case: tuple[tuple[int, ...], tuple[int, ...], str, Layout], dtype: DType
) -> None:
    shape, axes, kind, layout = case

    def build(tiles: Tiles, x: Value) -> None:
        found = tiles.make(ops.Reduce, x, axes=axes, kind=kind)
        tiles.give(found)
        tiles.give(tiles.make(ops.Broadcast, found, shape=(2, *found.tile.shape)))

    x = ones(dtype, shape) if kind == "prod" else small(dtype, shape)
    run(build, x, dtypes=[dtype], layouts=[layout]).agree()


@pytest.mark.parametrize("threads", [256, 384, 512])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_more_warpgroups_reduce_alike(threads: int, axes: tuple[int, ...]) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(ops.Reduce, x, axes=axes, kind="sum"))

    for shape in ((64, 9), (3, 300)):
        layouts = [blocked(shape, threads), blocked(shape, threads, 1, (0, 1))]
        for layout in (*layouts, wgmma_accumulator(shape, threads)):
            x = small(i32, shape)
            run(build, x, dtypes=[i32], layouts=[layout], threads=threads).agree()


def test_a_reduction_of_what_nothing_holds_is_that_of_its_elements() -> None:
    def build(tiles: Tiles, x: Value) -> None:
        count = tiles.make(ops.Iota, shape=(7, 30), axis=1, dtype=f32)
        tiles.give(tiles.make(ops.Add, x, tiles.make(ops.Reduce, count, axes=(1,), kind="sum")))

    run(build, small(f32, (7,)), dtypes=[f32]).agree()


def test_reductions_in_a_row_do_not_meet_in_shared_memory() -> None:
    def build(tiles: Tiles, x: Value) -> None:
        for _ in range(3):
            total = tiles.make(ops.Reduce, x, axes=(0,), kind="max")
            x = tiles.make(ops.Subtract, x, tiles.make(ops.Broadcast, total, shape=x.tile.shape))
            most = tiles.make(ops.Reduce, x, axes=(1,), kind="sum")
            most = tiles.make(ops.Reshape, most, shape=(x.tile.shape[0], 1))
            x = tiles.make(ops.Add, x, tiles.make(ops.Broadcast, most, shape=x.tile.shape))
        tiles.give(x)

    run(build, small(i32, (70, 9)), dtypes=[i32]).agree()


def test_a_reduction_within_a_warp_needs_no_barrier() -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(ops.Reduce, x, axes=(1,), kind="sum"))

    shape = (64, 32)
    layouts = [wgmma_accumulator(shape, THREADS)]
    found = run(build, small(f32, shape), dtypes=[f32], layouts=layouts)
    found.agree()
    assert "bar.sync" not in found.ptx


@pytest.mark.parametrize("kind", ["min", "max"])
@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_the_first_extreme_is_found_in_special_numbers(kind: str, dtype: DType) -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x in values:
            for axis in (0, 1):
                tiles.give(tiles.make(ops.ArgReduce, x, axis=axis, kind=kind))

    x = np.resize(some(dtype), 120).reshape(10, 12)
    ties = np.resize(some(dtype)[:3], 120).reshape(12, 10)
    run(build, x, ties, without_nan(x), dtypes=[dtype] * 3).agree()


@settings(max_examples=40, deadline=None)
@given(
    case=reductions(),
    dtype=st.sampled_from([f32, f64, f16, i64, u32, u8, boolean]),
    seed=st.integers(0, 5),
)
def test_the_first_extreme_among_valid_elements_is_found_in_any_layout(
    case: tuple[tuple[int, ...], tuple[int, ...], str, Layout], dtype: DType, seed: int
) -> None:
    shape, axes, kind, layout = case

    def build(tiles: Tiles, x: Value, valid: Value) -> None:
        named = "min" if kind in ("min", "all", "sum") else "max"
        for axis in axes:
            masked = {"axis": axis, "kind": named, "valid": (valid,)}
            tiles.give(tiles.make(ops.ArgReduce, x, **masked))
            tiles.give(tiles.make(ops.ArgReduce, x, axis=axis, kind=named))

    size = int(np.prod(shape))
    x = np.resize(np.random.default_rng(seed).permutation(some(dtype)), size).reshape(shape)
    valid = any_bits(boolean, size, seed).reshape(shape)
    run(build, x, valid, dtypes=[dtype, boolean], layouts=[layout, None]).agree()


def test_where_no_element_is_valid_the_index_is_zero() -> None:
    def build(tiles: Tiles, x: Value, valid: Value) -> None:
        tiles.give(tiles.make(ops.ArgReduce, x, axis=0, kind="max", valid=(valid,)))

    x, valid = small(f32, (9, 4)), np.zeros((9, 4), np.bool_)
    run(build, x, valid, dtypes=[f32, boolean]).agree()
