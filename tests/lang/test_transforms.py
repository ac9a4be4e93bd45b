"""Stating physical layouts of shared memory: what is refused, and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from astdsl import (
    SMEM,
    KernelError,
    SwizzleTransform,
    TilingTransform,
    TransposeTransform,
    f16,
    f32,
    find_swizzle,
    transform_ref,
    transpose_ref,
)
from astdsl.ir import ops
from astdsl.ir.core import walk
from tests.lang.harness import a_trace

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a swizzle of 16": (lambda: SwizzleTransform(16), "takes 32, 64 or 128 bytes, got 16"),
    "a tile of zeros": (lambda: TilingTransform((0, 8)), "takes extents of 1 or more"),
    "an axis twice": (lambda: TransposeTransform((0, 0)), "takes each of 0 to n - 1 once"),
    "a tile that does not divide": (
        lambda: SMEM((60, 64), f32, transforms=(TilingTransform((8, 32)),)),
        "tiles of (8, 32) do not divide the extents (60, 64)",
    ),
    "a tile of too many axes": (
        lambda: SMEM((64,), f32, transforms=(TilingTransform((8, 32)),)),
        "a tile of 2 axes cuts 1 axis",
    ),
    "a permutation of too many axes": (
        lambda: SMEM((64, 8), f32, transforms=(TransposeTransform((2, 0, 1)),)),
        "a permutation of 3 axes is of 2 axes",
    ),
    "rows that a swizzle does not have": (
        lambda: SMEM((64, 64), f32, transforms=(SwizzleTransform(128),)),
        "a swizzle of 128 bytes is of rows of 32 f32, and the rows have 64",
    ),
    "a tiling after a swizzle": (
        lambda: SMEM((8, 32), f32, transforms=(SwizzleTransform(128), TilingTransform((8, 8)))),
        "nothing follows a swizzle",
    ),
    "no transform": (lambda: SMEM((8, 32), f32, transforms=128), "`transforms` takes"),
    "a layout of a part": (
        lambda: transform_ref(SMEM((2, 8, 32), f32).at[0], SwizzleTransform(128)),
        "is a whole buffer, got a part of it",
    ),
    "a layout of no ref": (lambda: transform_ref(3, SwizzleTransform(128)), "got 3"),
    "a transpose of no ref": (lambda: transpose_ref(3, (1, 0)), "is a ref, got 3"),
    "a transpose of other axes": (
        lambda: transpose_ref(SMEM((2, 8, 32), f32), (1, 0)),
        "permutes 3 axes",
    ),
    "a row without a swizzle": (
        lambda: find_swizzle(100, "lhs"),
        "divides a row of 100 bits of lhs",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_layout_is_refused_where_it_is_stated_with_a_way_out(what: str) -> None:
    state, message = WRONG[what]
    with a_trace(), pytest.raises(KernelError) as caught:
        state()
    assert message in str(caught.value)
    assert caught.value.help


@pytest.mark.parametrize(("bits", "swizzle"), [(2048, 128), (512, 64), (768, 32), (1280, 32)])
def test_find_swizzle_is_the_largest_that_divides_a_row(bits: int, swizzle: int) -> None:
    assert find_swizzle(bits) == swizzle


def test_what_is_stated_later_comes_after_what_was_stated_before() -> None:
    with a_trace() as (trace,):
        first = SMEM((8, 64), f16, transforms=(TilingTransform((8, 32)),))
        second = transform_ref(first, SwizzleTransform(64))
        assert second.shape == first.shape
    stated = [op for op in walk(trace.builder.finish()) if isinstance(op, ops.StateLayout)]
    assert [op.transforms for op in stated] == [(("tiling", (8, 32)), ("swizzle", (64,)))]


def test_a_transposed_ref_reads_as_the_tile_transposed() -> None:
    with a_trace():
        ref = transpose_ref(SMEM((2, 8, 32), f32), (2, 0, 1))
        assert ref.shape == (32, 2, 8)


def test_equal_transforms_are_equal_constants() -> None:
    assert TilingTransform((8, 32)) == TilingTransform((8, 32))
    assert hash(SwizzleTransform(64)) == hash(SwizzleTransform(64))
    assert SwizzleTransform(64) != SwizzleTransform(32)
