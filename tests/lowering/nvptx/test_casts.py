"""Conversions between all dtypes against the reference, near the borders of each."""

import numpy as np
import pytest

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import (
    DType,
    boolean,
    f4e2m1,
    f8e4m3,
    f8e5m2,
    f8e8m0,
    f16,
    f32,
    f64,
    i32,
    tf32,
)
from tests.dtypes import EVERY
from tests.lowering.nvptx.numbers import Array, some
from tests.lowering.nvptx.tiles import Tiles, run

CONVERTED = (*EVERY, f8e4m3, f8e5m2, f8e8m0, f4e2m1)


def _numbers(source: DType) -> Array:
    """Return numbers near the borders of every other dtype too."""
    if source is boolean:
        return some(source)
    borders: list[float | int] = [0]
    for bits in (7, 8, 11, 12, 15, 16, 24, 25, 31, 32, 53, 54, 63, 64):
        power = 1 << bits
        spread = (0, 1, power >> 8, power >> 9, (power >> 9) + 1, power >> 12, (power >> 11) + 1)
        borders += [power + step for step in spread] + [power - step for step in spread]
    borders += [-n for n in borders]
    if source.is_float:
        fractions = [n + part for n in (0, 1, 2, 127, 128, 255) for part in (0.25, 0.5, 0.75)]
        halves = [sign * x for sign in (1, -1) for x in fractions]
        with np.errstate(all="ignore"):
            extra = np.array([*map(float, borders), *halves]).astype(source.numpy)
    else:
        info = np.iinfo(source.numpy)
        extra = np.array([n for n in borders if info.min <= n <= info.max], source.numpy)
    return np.concatenate([some(source), extra])


@pytest.mark.parametrize("source", CONVERTED, ids=str)
def test_a_cast_to_every_dtype_equals_the_reference_bit_for_bit(source: DType) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        for target in CONVERTED:
            tiles.give(tiles.make(ops.Cast, x, dtype=target))

    run(build, _numbers(source), dtypes=[source]).agree()


@pytest.mark.parametrize("source", [d for d in CONVERTED if d is not boolean], ids=str)
def test_a_bitcast_keeps_the_bits(source: DType) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        for target in CONVERTED:
            if target.bits == source.bits and target is not boolean:
                tiles.give(tiles.make(ops.Bitcast, x, dtype=target))

    found = run(build, some(source), dtypes=[source])
    assert all(
        (a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")).all()
        for a, b in zip(found.emulated, found.expected, strict=True)
    )


def test_a_cast_to_tf32_rounds_once_to_nearest_even() -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x in values:
            short = tiles.make(ops.Cast, x, dtype=tf32)
            tiles.give(short)
            tiles.give(tiles.make(ops.Multiply, short, short))
            tiles.give(tiles.make(ops.Cast, short, dtype=f16))

    sources = (f32, f64, f16, i32)
    run(build, *map(_numbers, sources), dtypes=sources).agree()
