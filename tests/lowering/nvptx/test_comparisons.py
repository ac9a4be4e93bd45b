"""Comparisons of index tiles take the thread's place off the limit, and decide the same."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import i32
from tests.lowering.nvptx.tiles import Tiles, run

PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")
LEAST, GREATEST = -(2**31), 2**31 - 1
SHAPE = (4, 512)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("limit", [LEAST, -513, -1, 0, 1, 3, 200, 511, 512, GREATEST])
def test_an_index_is_compared_to_any_limit_alike(limit: int, axis: int) -> None:
    def build(tiles: Tiles, scalar: Value) -> None:
        index = tiles.make(ops.Iota, shape=SHAPE, axis=axis, dtype=i32)
        limits = tiles.make(ops.Broadcast, scalar, shape=SHAPE)
        for predicate in PREDICATES:
            for x, y in ((index, limits), (limits, index)):
                tiles.give(tiles.make(ops.Compare, x, y, predicate=predicate))

    run(build, np.array(limit, np.int32), dtypes=[i32]).agree()


def test_limits_of_rows_and_of_elements_are_compared_alike() -> None:
    def build(tiles: Tiles, rows: Value, each: Value) -> None:
        index = tiles.make(ops.Iota, shape=SHAPE, axis=1, dtype=i32)
        columns = tiles.make(ops.Broadcast, rows, shape=SHAPE)
        for limits in (columns, each):
            for predicate in PREDICATES:
                tiles.give(tiles.make(ops.Compare, index, limits, predicate=predicate))

    generator = np.random.default_rng(0)
    rows = np.array([[LEAST], [7], [300], [GREATEST]], np.int32)
    run(build, rows, generator.integers(-9, 600, SHAPE, np.int32), dtypes=[i32, i32]).agree()


def test_a_limit_takes_one_subtraction() -> None:
    def build(tiles: Tiles, scalar: Value) -> None:
        index = tiles.make(ops.Iota, shape=SHAPE, axis=1, dtype=i32)
        limits = tiles.make(ops.Broadcast, scalar, shape=SHAPE)
        tiles.give(tiles.make(ops.Compare, index, limits, predicate="le"))

    ptx = run(build, np.array(9, np.int32), dtypes=[i32]).ptx
    assert ptx.count("sub.s32") == 1
    assert ptx.count("setp.") == 16
