"""Pipelines as functions: what their suite's kernels do, written with `emit_pipeline`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from astdsl import (
    BlockSpec,
    Element,
    In,
    InOut,
    NDLoopInfo,
    Out,
    Squeezed,
    axis_index,
    emit_pipeline,
    f32,
    i32,
    kernel,
    nd_loop,
    num_programs,
    parallel,
    program_id,
    when,
    zeros,
)
from astdsl.errors import (
    BadPipeline,
    KernelError,
    ShapeMismatch,
    TypeMismatch,
)
from tests.witnesses import agree

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape, np.float32)


@kernel
def in_four_steps(x: In[f32, "64 256"], o: Out[f32, "64 256"], *, stages=2, repeats=1):
    def body(_, x_block, o_block):
        o_block[...] = x_block[...] + 1

    spec = BlockSpec((64, 64), lambda i: (0, i))
    run = emit_pipeline(
        body, grid=(4,), in_specs=[spec], out_specs=[spec], max_concurrent_steps=stages
    )
    for _ in range(repeats):
        run(x, o)


@pytest.mark.parametrize(("stages", "repeats"), [(1, 1), (2, 1), (4, 2)])
def test_blocks_come_and_go(stages: int, repeats: int) -> None:
    x = normal(64, 256)
    found = agree(in_four_steps, lambda: [x], stages=stages, repeats=repeats)
    assert np.array_equal(found, x + 1)


@kernel
def output_held(x: In[f32, "128 64"], o: Out[f32, "32 64"]):
    def body(_, x_block, o_block):
        o_block[:, 0:16] = x_block[:, 0:16] + 1

    spec = BlockSpec((32, 64), lambda i: (i, 0))
    held = BlockSpec((32, 64), lambda i: (0, 0))
    emit_pipeline(body, grid=(4,), in_specs=[spec], out_specs=[held])(x, o)


def test_an_output_that_every_step_writes_holds_the_last() -> None:
    x, o = normal(128, 64), np.zeros((32, 64), np.float32)
    output_held.on("reference")(x, o)
    assert np.array_equal(o[:, :16], x[96:, :16] + 1)


@kernel
def in_a_grid(x: In[f32, "128 80"], o: Out[f32, "128 80"]):
    with parallel(4, names=("m",)) as i:

        def body(indices, x_block, o_block):
            assert len(indices) == 1
            o_block[...] = x_block[...] + 1

        spec = BlockSpec((32, 16), lambda k: (i, k))
        emit_pipeline(body, grid=(5,), in_specs=[spec], out_specs=[spec])(x, o)


def test_a_pipeline_stands_in_a_grid() -> None:
    x = normal(128, 80)
    assert np.array_equal(agree(in_a_grid, lambda: [x]), x + 1)


@kernel
def traced_grid(x: In[f32, "M 16"], m: i32, n: i32, o: InOut[f32, "M 16"]):
    def body(_, x_block, o_block):
        o_block[...] = x_block[...] + 1

    spec = BlockSpec((8, 16), lambda i, j: (i * 2 + j, 0))
    run = emit_pipeline(
        body, grid=(m, n), in_specs=[spec], out_specs=[spec], max_concurrent_steps=2
    )
    run(x, o)
    run(x, o)


@pytest.mark.parametrize(("m", "n"), [(0, 2), (1, 1), (2, 2)])
def test_a_grid_is_known_only_at_run_time(m: int, n: int) -> None:
    x, o = normal(32, 16), np.zeros((32, 16), np.float32)
    rows = {8 * (2 * i + j) + r for i in range(m) for j in range(n) for r in range(8)}
    agree(traced_grid, lambda: [x, m, n, o.copy()])
    traced_grid.on("reference")(x, m, n, o)
    expected = np.where(np.isin(np.arange(32), list(rows))[:, None], x + 1, 0)
    assert np.array_equal(o, expected)


@kernel
def carried(o: Out[i32, "64 256"]):
    def body(indices, o_block, carry):
        o_block[...] = zeros((64, 64), i32) + carry
        return carry + 1

    spec = BlockSpec((64, 64), lambda i: (0, i))
    last = emit_pipeline(body, grid=(4,), out_specs=[spec], init_carry=0)(o)
    assert last.shape == ()


def test_a_carry_goes_from_step_to_step() -> None:
    assert np.array_equal(agree(carried, list), np.repeat(np.arange(4), 64)[None].repeat(64, 0))


@kernel
def squeezed(x: In[i32, "16 256"], o: Out[i32, "16 256"]):
    def body(_, row, o_row):
        o_row[...] = row[...] + 1

    one = BlockSpec((None, 256), lambda i: (i, 0))
    other = BlockSpec((Squeezed, 256), lambda i: (i, 0))
    emit_pipeline(body, grid=(16,), in_specs=[one], out_specs=[other])(x, o)


def test_an_axis_is_dropped() -> None:
    x = np.arange(16 * 256, dtype=np.int32).reshape(16, 256)
    assert np.array_equal(agree(squeezed, lambda: [x]), x + 1)


@kernel
def by_elements(x: InOut[f32, "64 32"]):
    def body(_, block):
        block[...] = block[...] + 1

    spec = BlockSpec((Element(8), 32), lambda i: (10 * i + 1, 0))
    emit_pipeline(body, grid=(4,), out_specs=[spec])(x)


def test_blocks_begin_at_any_element() -> None:
    x = normal(64, 32)
    rows = [10 * i + 1 + r for i in range(4) for r in range(8)]
    expected = x.copy()
    expected[rows] += 1
    assert np.array_equal(agree(by_elements, lambda: [x.copy()]), expected)


@kernel
def revisited(o: Out[f32, "2 64"], *, stages=2):
    def body(indices, o_block):
        _, j = indices

        @when(j == 0)
        def first():
            o_block[...] = zeros((1, 64), f32)

        o_block[...] = o_block[...] + 1

    spec = BlockSpec((1, 64), lambda i, j: (i, 0))
    emit_pipeline(body, grid=(2, 4), out_specs=[spec], max_concurrent_steps=stages)(o)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_an_output_is_stored_after_its_last_visit(stages: int) -> None:
    assert np.array_equal(agree(revisited, list, stages=stages), np.full((2, 64), 4))


@kernel(warpgroups=2)
def by_warpgroups(x: In[f32, "128 64"], o: Out[f32, "128 64"]):
    def body(_, x_block, o_block):
        o_block[...] = x_block[...] * 2

    w = axis_index("wg")
    spec = BlockSpec((16, 64), lambda k: (2 * k + w, 0))
    emit_pipeline(body, grid=(4,), in_specs=[spec], out_specs=[spec])(x, o)


def test_each_warpgroup_runs_a_pipeline() -> None:
    x = normal(128, 64)
    assert np.array_equal(agree(by_warpgroups, lambda: [x]), x * 2)


GRIDS = [(5,), (2, 3), (2, 3, 2), (2, 1, 3, 2), (2, 2, 1, 2, 3)]


@kernel
def counted(o: Out[i32, "4 24 5"], *, grid=(5,)):
    with parallel(4, names=("sm",)):
        b = axis_index("sm")
        for info in nd_loop(grid, collective_axes="sm"):
            for k in unroll_axes(grid):
                o[b, info.local_index, k] = info.index[k] + 1


def unroll_axes(grid: tuple[int, ...]) -> list[int]:
    return list(range(len(grid)))


@pytest.mark.parametrize("grid", GRIDS)
def test_a_shared_loop_meets_every_index_once(grid: tuple[int, ...]) -> None:
    o = np.zeros((4, 24, 5), np.int32)
    counted.on("emulator")(o, grid=grid)
    steps = [tuple(row[: len(grid)] - 1) for row in o.reshape(-1, 5) if row[0]]
    assert sorted(steps) == list(itertools.product(*map(range, grid)))
    assert tuple(o[1, 0, : len(grid)] - 1) == list(itertools.product(*map(range, grid)))[1]


TILED = [
    ((5,), (2,)),
    ((4, 6), (2, 3)),
    ((5, 4), (2, 3)),
    ((2, 3, 4), (2, 2, 3)),
    ((2, 1, 3, 2), (1, 4, 2, 2)),
    ((2, 2, 1, 2, 3), (2, 1, 1, 2, 2)),
]


def by_tiles(grid: tuple[int, ...], tile: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return every index, by the tile that it is in, then row-major."""
    steps = itertools.product(*map(range, grid))
    return sorted(steps, key=lambda s: ([n // t for n, t in zip(s, tile, strict=True)], s))


@kernel
def counted_by_tiles(m: i32, o: Out[i32, "4 24 5"], *, grid=(5,), tile=(2,), is_traced=False):
    with parallel(4, names=("sm",)):
        b = axis_index("sm")
        for info in nd_loop(
            (m, *grid[1:]) if is_traced else grid, collective_axes="sm", tiling=tile
        ):
            for k in unroll_axes(grid):
                o[b, info.local_index, k] = info.index[k] + 1


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize(("grid", "tile"), TILED)
def test_a_loop_by_tiles_meets_every_index_once_tile_by_tile(
    grid: tuple[int, ...], tile: tuple[int, ...], is_traced: bool
) -> None:
    o = np.zeros((4, 24, 5), np.int32)
    placed = counted_by_tiles.on("emulator")
    placed(grid[0], o, grid=grid, tile=tile, is_traced=is_traced)
    waves = o.transpose(1, 0, 2).reshape(-1, 5)
    steps = [tuple(row[: len(grid)] - 1) for row in waves if row[0]]
    assert steps == by_tiles(grid, tile)


@kernel
def decorated(o: Out[i32, "2"]):
    with parallel(2):

        @nd_loop((3, 3), init_carry=0)
        def total(info: NDLoopInfo, carry):
            return carry + info.index[0] * 3 + info.index[1] + info.num_local_steps

        o[program_id(0)] = total + num_programs(0)


def test_a_loop_that_decorates_carries() -> None:
    assert agree(decorated, list).tolist() == [36 + 81 + 2] * 2


@kernel
def wrong_count(x: In[f32, "64"], o: Out[f32, "64"]):
    emit_pipeline(lambda i, a, b: None, grid=(1,), in_specs=[BlockSpec()])(x, o)


@kernel
def wrong_axes(x: In[f32, "64"], o: Out[f32, "64"]):
    spec = BlockSpec((8, 8), lambda i: (i, 0))
    emit_pipeline(lambda i, a: None, grid=(1,), in_specs=[spec])(x)


@kernel
def with_transforms(x: In[f32, "64"], o: Out[f32, "64"]):
    spec = BlockSpec((8,), lambda i: (i,), transforms=["swizzle"])
    emit_pipeline(lambda i, a: None, grid=(8,), in_specs=[spec])(x)


@kernel
def wrong_tile(x: In[f32, "64"], o: Out[f32, "64"]):
    for info in nd_loop((4, 4), tiling=(2,)):
        o[info.local_index] = x[0]


@kernel
def no_grid(x: In[f32, "64"], o: Out[f32, "64"]):
    for info in nd_loop(()):
        o[info.local_index] = x[0]


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        (wrong_count, TypeMismatch, "takes 1 ref,"),
        (wrong_axes, TypeMismatch, "2 axes at 2 indices"),
        (with_transforms, TypeMismatch, "`transforms` takes `TilingTransform`"),
        (no_grid, BadPipeline, "one axis or more"),
        (wrong_tile, ShapeMismatch, "2 extents of 1 or more"),
    ],
)
def test_a_mistake_is_refused(wrong: Any, kind: type[KernelError], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        wrong.on("reference")(normal(64))
    assert caught.value.help
    assert caught.value.places
