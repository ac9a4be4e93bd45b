"""What `dot` refuses of scales, and what it takes."""

from __future__ import annotations

from typing import Any

import pytest

import astdsl
from astdsl.errors import KernelError, ShapeMismatch, TypeMismatch, UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.dtypes import DType, f4e2m1, f8e4m3, f8e5m2, f8e8m0, f16, f32, u8
from astdsl.ir.types import TileType
from tests.lang.harness import a_trace

A = TileType((128, 64), f8e4m3)
B = TileType((64, 32), f8e4m3)


def tile(dtype: DType, *shape: int) -> TileType:
    return TileType(shape, dtype)


REFUSED: dict[str, tuple[list[TileType], dict[str, Any], type[KernelError], str]] = {
    "scales of b turned": (
        [A, B, tile(f8e8m0, 2, 32)],
        {"b_scale": 2},
        ShapeMismatch,
        r"`b_scale` of `dot` has the shape \(2, 32\); .* it is \(32, 2\) or \(32, 4\)",
    ),
    "no whole blocks": (
        [A, B, tile(f8e8m0, 128, 3)],
        {"a_scale": 2},
        ShapeMismatch,
        r"it is \(128, 2\) or \(128, 4\)",
    ),
    "a vector of scales": (
        [A, B, tile(f8e8m0, 128)],
        {"a_scale": 2},
        ShapeMismatch,
        r"has the shape \(128,\)",
    ),
    "two lengths of blocks": (
        [A, B, tile(f8e8m0, 128, 2), tile(f8e8m0, 32, 4)],
        {"a_scale": 2, "b_scale": 3},
        ShapeMismatch,
        "scaled by blocks of 32 and 16",
    ),
    "two dtypes of scales": (
        [A, B, tile(f8e8m0, 128, 2), tile(f8e4m3, 32, 2)],
        {"a_scale": 2, "b_scale": 3},
        TypeMismatch,
        "the scales of `dot` are of one dtype",
    ),
    "bytes": ([A, B, tile(u8, 128, 2)], {"a_scale": 2}, TypeMismatch, "f8e8m0 or f8e4m3, got u8"),
    "f32": ([A, B, tile(f32, 128, 2)], {"a_scale": 2}, TypeMismatch, "f8e8m0 or f8e4m3, got f32"),
    "operands of 16 bits": (
        [tile(f16, 128, 64), B, tile(f8e8m0, 128, 2)],
        {"a_scale": 2},
        TypeMismatch,
        "scales f8e4m3, f8e5m2, f4e2m1 by blocks",
    ),
    "several matrices": (
        [tile(f8e4m3, 2, 128, 64), B, tile(f8e8m0, 128, 2)],
        {"a_scale": 2},
        UnsupportedFeature,
        r"multiplies \(m, k\) by \(k, n\)",
    ),
    "depths that differ": (
        [A, tile(f8e4m3, 32, 32), tile(f8e8m0, 128, 2)],
        {"a_scale": 2},
        ShapeMismatch,
        "contracts 64 with 32",
    ),
    "an image of fewer rows": (
        [tile(f8e4m3, 256, 256), tile(f8e4m3, 256, 32), tile(f8e8m0, 1, 2, 32, 16)],
        {"a_scale": 2},
        ShapeMismatch,
        r"the image of \(256, 8\) scales is \(2, 2, 32, 16\)",
    ),
}


@pytest.mark.parametrize(("types", "given", "error", "said"), REFUSED.values(), ids=REFUSED)
def test_scales_that_do_not_fit_are_refused(
    types: list[TileType], given: dict[str, int], error: type[KernelError], said: str
) -> None:
    with a_trace(*types) as (_, *tiles):
        scales = {name: tiles[number] for name, number in given.items()}
        with pytest.raises(error, match=said) as caught:
            astdsl.dot(tiles[0], tiles[1], **scales)
    assert caught.value.help


def test_the_help_of_turned_scales_turns_them() -> None:
    with a_trace(A, B, tile(f8e8m0, 2, 32)) as (_, a, b, scale):
        with pytest.raises(ShapeMismatch) as caught:
            astdsl.dot(a, b, b_scale=scale)
        assert caught.value.help == "pass `b_scale.T`"
        assert astdsl.dot(a, b, b_scale=scale.T).shape == (128, 32)


def test_a_precision_is_not_given_beside_scales() -> None:
    with a_trace(A, B, tile(f8e8m0, 128, 2)) as (_, a, b, scale):
        with pytest.raises(TypeMismatch, match="precision"):
            astdsl.dot(a, b, precision="tf32", a_scale=scale)


def test_an_accumulator_of_another_dtype_is_refused() -> None:
    with a_trace(A, B, tile(f8e8m0, 128, 2), tile(f16, 128, 32)) as (_, a, b, scale, acc):
        with pytest.raises(TypeMismatch, match="`acc` of `dot` is what the product is"):
            astdsl.dot(a, b, acc, a_scale=scale)


@pytest.mark.parametrize("dtypes", [(f8e4m3, f8e5m2), (f4e2m1, f4e2m1), (f4e2m1, f8e4m3)])
@pytest.mark.parametrize("count", [2, 4])
def test_scaled_products_are_traced_as_they_are(dtypes: tuple[DType, DType], count: int) -> None:
    types = (tile(dtypes[0], 128, 64), tile(dtypes[1], 64, 32))
    scales = (tile(f8e8m0, 128, count), tile(f8e8m0, 32, count))
    with a_trace(*types, *scales) as (trace, a, b, a_scale, b_scale):
        found = astdsl.dot(a, b, a_scale=a_scale, b_scale=b_scale)
        (made,) = [op for op in trace.builder.current.ops if isinstance(op, ops.ScaledDot)]
    assert (found.shape, found.dtype) == ((128, 32), f32)
    assert (made.block, made.packed) == (64 // count, False)


def test_a_product_of_no_elements_is_zeros() -> None:
    types = (tile(f8e4m3, 0, 64), B, tile(f8e8m0, 0, 2))
    with a_trace(*types) as (_, a, b, scale):
        assert astdsl.dot(a, b, a_scale=scale).shape == (0, 32)
