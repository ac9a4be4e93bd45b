"""Windows over edges, unwritten memory, and steps that depend on each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astdsl.errors import BadWindow, FailedAssertion, ParallelConflict, UnwrittenRead
from astdsl.ir import ops
from astdsl.ir.core import IN, INOUT, OUT, Module
from astdsl.ir.dtypes import DType, bf16, f16, f32, i32
from astdsl.ir.equality import structurally_equal
from astdsl.ir.evaluate import evaluate
from astdsl.ir.parser import parse_module
from astdsl.ir.printer import print_module
from astdsl.ir.types import CONDITION, INDEX, TileType
from tests.building import Maker, add_module, gmem, matmul_module

LINE = gmem(i32, None)


@given(
    start=st.integers(-12, 24),
    size=st.integers(1, 8),
    step=st.sampled_from([1, 2, 3, -1, -2]),
    extent=st.integers(0, 12),
)
def test_a_window_reads_fill_outside_and_drops_what_it_stores_there(
    start: int, size: int, step: int, extent: int
) -> None:
    m = Maker(("x", IN, LINE), ("o", INOUT, LINE), ("copy", OUT, gmem(i32, size)))
    at = (m.index(start),)
    window = {"starts": at, "sizes": (size,), "steps": (step,), "kept": (True,)}
    tile = m.make(ops.Load, ref=m["x"], fill=-7, **window)
    m.op(ops.Store, ref=m["o"], value=tile, **window)
    m.store(m["copy"], (0,), tile)
    x = np.arange(100, 100 + extent, dtype=np.int32)
    o, copy = np.zeros(extent, np.int32), np.zeros(size, np.int32)
    evaluate(m.module(), [x, o, copy])
    places = [start + i * step for i in range(size)]
    assert copy.tolist() == [x[p] if 0 <= p < extent else -7 for p in places]
    assert o.tolist() == [x[p] if p in places else 0 for p in range(extent)]


def test_a_dropped_axis_is_no_axis_of_the_tile() -> None:
    m = Maker(("x", IN, gmem(i32, 3, 4)), ("o", OUT, gmem(i32, 4)))
    starts = (m.index(2), m.index(0))
    row = m.make(ops.Load, ref=m["x"], starts=starts, sizes=(1, 4), steps=(1, 1),
                 kept=(False, True))  # fmt: skip
    m.store(m["o"], (0,), row)
    x, o = np.arange(12, dtype=np.int32).reshape(3, 4), np.zeros(4, np.int32)
    evaluate(m.module(), [x, o])
    assert (o == x[2]).all()


def test_a_loaded_tile_does_not_change_with_its_memory() -> None:
    m = Maker(("x", INOUT, gmem(i32, 4)))
    old = m.load(m["x"], (0,), (4,))
    m.store(m["x"], (0,), m.full(5, i32, 4))
    m.store(m["x"], (0,), old)
    x = np.arange(4, dtype=np.int32)
    evaluate(m.module(), [x])
    assert x.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [f32, f16, bf16, i32])
def test_add_takes_any_shape_and_strides(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-50, 50, (201, 70)).astype(dtype.numpy)[::2]
    y = rng.integers(-50, 50, (70, 101)).astype(dtype.numpy).T
    o = np.zeros((101, 140), dtype.numpy)[:, ::2]
    evaluate(add_module(dtype, (32, 16)), [x, y, o])
    assert (o == x + y).all()


@pytest.mark.parametrize("shape", [(64, 48, 96), (33, 17, 50), (1, 1, 1), (16, 16, 0)])
def test_matmul_takes_any_shape(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    rng = np.random.default_rng(0)
    a = rng.integers(-8, 8, (rows, depth)).astype(np.float16)
    b = rng.integers(-8, 8, (depth, columns)).astype(np.float16)
    c = np.zeros((rows, columns), np.float32)
    evaluate(matmul_module(f16, f32, (16, 32, 16)), [a, b, c])
    assert (c == a.astype(np.float32) @ b.astype(np.float32)).all()


def test_reading_a_plain_output_is_reported_where_it_happens() -> None:
    m = Maker(("o", OUT, gmem(i32, 4)))
    m.store(m["o"], (0,), m.full(1, i32, 3))
    tile = m.load(m["o"], (0,), (4,))
    m.store(m["o"], (0,), tile)
    module = m.module()
    with pytest.raises(UnwrittenRead) as caught:
        evaluate(module, [np.zeros(4, np.int32)])
    reader = next(op for op in module.body.ops if tile in op.results)
    assert caught.value.span == reader.span


def test_an_output_with_an_initial_value_starts_with_it() -> None:
    m = Maker(("o", OUT, gmem(i32, 4)), o=3)
    tile = m.load(m["o"], (0,), (4,))
    m.store(m["o"], (0,), m.make(ops.Add, tile, tile))
    o = np.zeros(4, np.int32)
    evaluate(m.module(), [o])
    assert o.tolist() == [6] * 4


def test_elements_that_nobody_writes_stay_as_they_were() -> None:
    m = Maker(("o", OUT, gmem(i32, 4)))
    m.store(m["o"], (1,), m.full(1, i32, 2))
    o = np.full(4, 9, np.int32)
    evaluate(m.module(), [o])
    assert o.tolist() == [9, 1, 1, 9]


def test_a_window_of_shared_memory_must_lie_inside() -> None:
    m = Maker(("o", OUT, gmem(i32, 4)))
    buffer = m.make(ops.AllocSmem, shape=(4,), dtype=i32)
    m.store(buffer, (2,), m.full(1, i32, 4))
    with pytest.raises(BadWindow):
        evaluate(m.module(), [np.zeros(4, np.int32)])


def test_reading_unwritten_shared_memory_is_reported() -> None:
    m = Maker(("o", OUT, gmem(i32, 4)))
    buffer = m.make(ops.AllocSmem, shape=(4,), dtype=i32, label="buffer")
    m.store(m["o"], (0,), m.load(buffer, (0,), (4,)))
    with pytest.raises(UnwrittenRead, match="buffer"):
        evaluate(m.module(), [np.zeros(4, np.int32)])


@contextmanager
def one_block(m: Maker) -> Iterator[None]:
    """Append a launch of one block around what is made inside."""
    with m.region(INDEX) as body:
        yield
        m.yields()
    with m.region() as grid:
        m.yields(m.index(1))
    m.op(ops.Launch, grid=grid.block, body=body.block)


def scratch_module(written: int) -> Module:
    """Return a launch that writes elements of scratch, and one that reads two of them."""
    m = Maker(("x", IN, gmem(i32, None)), ("o", OUT, gmem(i32, 2)))
    extent = m.make(ops.Dim, ref=m["x"], axis=0)
    kept = m.make(ops.AllocGmem, dims=(extent,), shape=(None,), dtype=i32, label="kept")
    with one_block(m):
        m.store(kept, (0,), m.full(5, i32, written))
    with one_block(m):
        m.store(m["o"], (0,), m.load(kept, (0,), (2,)))
    return m.module()


def test_scratch_hands_on_what_a_launch_wrote() -> None:
    o = np.zeros(2, np.int32)
    evaluate(scratch_module(2), [np.zeros(4, np.int32), o])
    assert o.tolist() == [5, 5]


def test_reading_what_no_launch_wrote_to_scratch_is_reported() -> None:
    with pytest.raises(UnwrittenRead, match="kept"):
        evaluate(scratch_module(1), [np.zeros(4, np.int32), np.zeros(2, np.int32)])


def test_scratch_prints_and_parses_back() -> None:
    module = scratch_module(2)
    assert structurally_equal(parse_module(print_module(module)), module)


def spread_module(write: str, read: str | None = None, axes: str = "spread") -> Module:
    """Return a pipeline of 4 steps that read and write at i or at a constant."""
    m = Maker(("x", INOUT, gmem(i32, 8)), ("o", OUT, gmem(i32, 8)))
    with m.pipeline(4, axes=axes) as (i,):
        following = m.make(ops.Add, i, m.index(1))
        places = {"own": i, "same": m.index(0), "next": following}
        tile = m.load(m["x"], (places[read],), (1,)) if read else m.full(1, i32, 1)
        m.store(m["x" if read else "o"], (places[write],), tile)
    return m.module()


@pytest.mark.parametrize(("write", "read"), [("same", None), ("own", "next"), ("next", "own")])
def test_steps_of_a_spread_pipeline_that_depend_on_each_other_are_reported(
    write: str, read: str | None
) -> None:
    arrays = [np.zeros(8, np.int32), np.zeros(8, np.int32)]
    with pytest.raises(ParallelConflict):
        evaluate(spread_module(write, read), arrays)
    evaluate(spread_module(write, read, axes="sequential"), arrays)


def test_independent_steps_of_a_spread_pipeline_are_silent() -> None:
    evaluate(spread_module("own", "own"), [np.zeros(8, np.int32), np.zeros(8, np.int32)])


def test_an_assertion_that_fails_says_its_message() -> None:
    m = Maker()
    m.op(ops.Assert, condition=m.flag(False), pieces=("M is even",))
    with pytest.raises(FailedAssertion, match="M is even"):
        evaluate(m.module(), [])


def test_if_runs_one_of_its_regions() -> None:
    m = Maker(("o", OUT, gmem(i32, 2)), ("flag", "scalar", CONDITION))
    kind = TileType((1,), i32)
    sides = []
    for value in (1, 2):
        with m.region() as side:
            m.yields(m.full(value, i32, 1))
        sides.append(side.block)
    chosen = m.make(ops.If, condition=m["flag"], then=sides[0], otherwise=sides[1])
    assert chosen.type == kind
    m.store(m["o"], (0,), chosen)
    module, o = m.module(), np.zeros(2, np.int32)
    for flag, want in ((True, 1), (False, 2)):
        evaluate(module, [o, flag])
        assert o[0] == want


def loop_total(kind: type, bounds: tuple[int, int, int]) -> int:
    """Sum a loop's indices into a carried scalar, by `For` or by `While`."""
    m = Maker(("o", OUT, gmem(i32, 1)))
    low, high, step = (m.index(b) for b in bounds)
    zero = m.index(0)
    if kind is ops.For:
        with m.region(INDEX, INDEX) as body:
            m.yields(m.make(ops.Add, *body.args))
        total = m.make(ops.For, initial=(zero,), low=low, high=high, step=step, body=body.block)
    else:
        with m.region(INDEX, INDEX) as condition:
            m.yields(m.make(ops.Compare, condition.args[0], high, predicate="lt"))
        with m.region(INDEX, INDEX) as body:
            index, total = body.args
            m.yields(m.make(ops.Add, index, step), m.make(ops.Add, total, index))
        loop = m.op(ops.While, initial=(low, zero), condition=condition.block, body=body.block)
        total = loop.results[1]
    narrow = m.make(ops.Cast, total, dtype=i32)
    m.store(m["o"], (0,), m.make(ops.Reshape, narrow, shape=(1,)))
    o = np.zeros(1, np.int32)
    evaluate(m.module(), [o])
    return int(o[0])


@pytest.mark.parametrize("bounds", [(0, 5, 1), (3, 20, 4), (5, 5, 1), (6, 5, 1), (9, 0, -2)])
def test_for_runs_like_range(bounds: tuple[int, int, int]) -> None:
    assert loop_total(ops.For, bounds) == sum(range(*bounds))


@pytest.mark.parametrize("bounds", [(0, 5, 1), (3, 20, 4), (5, 5, 1)])
def test_while_runs_as_long_as_its_condition(bounds: tuple[int, int, int]) -> None:
    assert loop_total(ops.While, bounds) == sum(range(*bounds))


def test_a_pipeline_runs_in_row_major_order_with_its_last_axis_fastest() -> None:
    m = Maker(("o", OUT, gmem(i32, 6)))
    zero, one = m.index(0), m.index(1)
    highs, steps = (m.index(2), m.index(7)), (one, m.index(3))
    with m.region(INDEX, INDEX, INDEX) as body:
        i, j, count = body.args
        code = m.make(ops.Add, m.make(ops.Multiply, i, m.index(10)), j)
        code = m.make(ops.Reshape, m.make(ops.Cast, code, dtype=i32), shape=(1,))
        m.store(m["o"], (count,), code)
        m.yields(m.make(ops.Add, count, one))
    m.op(ops.Pipeline, initial=(zero,), lows=(zero, zero), highs=highs, steps=steps,
         body=body.block, axes=("sequential",) * 2)  # fmt: skip
    o = np.zeros(6, np.int32)
    evaluate(m.module(), [o])
    assert o.tolist() == [0, 3, 6, 10, 13, 16]
