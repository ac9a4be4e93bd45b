"""`order=` of a pipeline: blocks in another order, the same result; and the curve of Pallas."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from astdsl import In, InOut, Out, cdiv, f32, kernel, parallel, pipeline, planar_snake, tile, where
from astdsl.errors import BadPipeline
from tests.witnesses import agree

SNAKE = partial(planar_snake, minor_dim=1, tile_width=2)


@kernel
def doubled(x: In[f32, "M N"], o: Out[f32, "M N"], *, order=None, bm=16, bn=32):
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn), order=order) as (i, j):
        o[tile(i, bm), tile(j, bn)] = x[tile(i, bm), tile(j, bn)] * 2


def by_diagonals(linear: Any, grid: Any) -> Any:
    rows, _ = grid
    i = linear % rows
    j = linear // rows
    if i == 1:
        j = j + 0
    return i, j


@pytest.mark.parametrize(
    "order",
    [
        SNAKE,
        partial(planar_snake, minor_dim=0, tile_width=3),
        by_diagonals,
        lambda linear, grid: (grid[0] - 1 - linear // grid[1], linear % grid[1]),
    ],
)
@pytest.mark.parametrize("shape", [(50, 130), (16, 32), (64, 200), (0, 5)])
def test_an_order_of_blocks_does_not_change_the_result(order: Any, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).random(shape, dtype=np.float32)
    np.testing.assert_array_equal(agree(doubled, lambda: (x,), order=order), x * 2)


def test_the_order_decides_which_block_does_which_step() -> None:
    x = np.zeros((64, 128), np.float32)
    plain = doubled.lower(x).ptx
    assert doubled.lower(x, order=SNAKE).ptx != plain


@kernel
def numbered(o: Out[f32, "N"], *, order=None):
    (N,) = o.shape
    with parallel(N, order=order) as i:
        o[i] = i


def test_an_order_of_one_axis_gives_one_index() -> None:
    o = np.empty(9, np.float32)
    agree(numbered, lambda: (o.copy(),), order=lambda linear, grid: grid[0] - 1 - linear)


@kernel
def twice_by_blocks(x: InOut[f32, "N"], *, order=None):
    (N,) = x.shape
    with pipeline(2, cdiv(N, 16), order=order) as (_, i):
        x[tile(i, 16)] *= 2


def test_an_order_of_steps_that_depend_on_each_other_is_refused() -> None:
    x = np.ones(64, np.float32)
    with pytest.raises(BadPipeline, match="those along axis 0 run in order"):
        twice_by_blocks.on("emulator")(x, order=SNAKE)


@kernel
def summed(x: In[f32, "N"], o: Out[f32, "1"], *, order=None):
    (N,) = x.shape
    total = f32(0)
    with pipeline(cdiv(N, 16), order=order) as i:
        total += x[tile(i, 16)].sum()
    o[0] = total


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_an_order_of_steps_that_carry_a_value_is_refused(device: str) -> None:
    with pytest.raises(BadPipeline, match="those along axis 0 run in order"):
        summed.on(device)(np.ones(64, np.float32), order=lambda linear, grid: linear)


@kernel
def inside(x: In[f32, "N"], o: Out[f32, "N"]):
    (N,) = x.shape
    for _ in range(2):
        with pipeline(cdiv(N, 16), order=lambda linear, grid: linear) as i:
            o[tile(i, 16)] = x[tile(i, 16)]


def test_an_order_inside_a_loop_is_refused() -> None:
    with pytest.raises(BadPipeline, match="inside a loop or pipeline"):
        inside(np.ones(64, np.float32))


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_what_is_no_permutation_is_refused(device: str) -> None:
    x = np.ones((64, 128), np.float32)
    with pytest.raises(BadPipeline, match=r"for step 1 it returns \(0, 0\), also for 0"):
        doubled.on(device)(x, order=lambda linear, grid: (linear * 0, linear * 0))
    with pytest.raises(BadPipeline, match="outside"):
        doubled.on(device)(x, order=lambda linear, grid: (linear, linear * 0))


def by_rows_at_first(linear: Any, grid: Any) -> Any:
    return where(linear < 100, linear // grid[1], 0), linear % grid[1]


def test_the_reference_tries_the_grid_of_the_call() -> None:
    # Right for every grid that is tried before a launch, which all have fewer than 100 steps.
    x = np.ones((16 * 20, 32 * 20), np.float32)
    with pytest.raises(BadPipeline, match="for step 100"):
        doubled.on("reference")(x, order=by_rows_at_first)


@pytest.mark.parametrize("order", [3, "snake"])
def test_an_order_is_a_function(order: object) -> None:
    with pytest.raises(BadPipeline, match="`order` is a function"):
        doubled(np.ones((16, 32), np.float32), order=order)


def test_an_order_returns_an_index_of_every_axis() -> None:
    with pytest.raises(BadPipeline, match="returns an index of 2 axes, got 1"):
        doubled(np.ones((16, 32), np.float32), order=lambda linear, grid: linear)


@pytest.mark.parametrize(
    ("shape", "widths"), [((8, 8), (2, 1, 8)), ((5, 5), (3, 5)), ((3, 7), (2,))]
)
@pytest.mark.parametrize("minor_dim", [0, 1])
def test_the_snake_visits_every_place_once_and_moves_to_neighbours(
    shape: tuple[int, int], widths: tuple[int, ...], minor_dim: int
) -> None:
    for width in widths:
        places = [planar_snake(i, shape, minor_dim, width) for i in range(shape[0] * shape[1])]
        assert sorted(places) == [(i, j) for i in range(shape[0]) for j in range(shape[1])]
        majors = [place[1 - minor_dim] for place in places]
        assert all(abs(a - b) <= 1 for a, b in pairwise(majors))
        assert all(isinstance(i, int) for place in places for i in place)


def test_the_snake_takes_arrays() -> None:
    rows, columns = planar_snake(np.arange(25), (5, 5), 1, 3)
    expected = [planar_snake(i, (5, 5), 1, 3) for i in range(25)]
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, (2, 2, 2), 1, 2), "two axes"),
        ((0, (2, 2), 2, 2), "`minor_dim` is 0 or 1"),
        ((0, (2, 2), 1, 0), "1 or more"),
    ],
)
def test_the_snake_refuses_what_is_no_plane(arguments: Any, message: str) -> None:
    with pytest.raises(BadPipeline, match=message):
        planar_snake(*arguments)
