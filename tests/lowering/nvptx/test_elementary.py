"""Elementary functions against the reference, within the error of libdevice."""

import numpy as np
import pytest

from astdsl.ir import ops
from astdsl.ir.core import Op, Value
from astdsl.ir.dtypes import DType, f32, f64
from tests.dtypes import FLOATS, INTEGERS
from tests.lowering.nvptx.numbers import Array, pairs, some
from tests.lowering.nvptx.tiles import Tiles, run

# Units in the last place of the result: libdevice's documented error and the last rounding.
FUNCTIONS = [
    (ops.Rsqrt, 2),
    (ops.Exp, 2),
    (ops.Exp2, 2.5),
    (ops.Log, 1.5),
    (ops.Log2, 1.5),
    (ops.Tanh, 2),
    (ops.Erf, 2.5),
    (ops.Sin, 2.5),
    (ops.Cos, 2.5),
]


def _arguments(dtype: DType) -> Array:
    plain = np.linspace(-8, 8, 201).astype(dtype.numpy)
    return np.concatenate([some(dtype), plain])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("kind", "units"), FUNCTIONS, ids=lambda v: getattr(v, "__name__", ""))
def test_an_elementary_function_is_as_close_as_libdevice_says(
    kind: type[Op], units: float, dtype: DType
) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(kind, x))

    run(build, _arguments(dtype), dtypes=[dtype]).agree_within(units)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_power_of_floats_is_as_close_as_libdevice_says(dtype: DType) -> None:
    def build(tiles: Tiles, x: Value, y: Value) -> None:
        tiles.give(tiles.make(ops.Power, x, y))

    run(build, *pairs(dtype), dtypes=[dtype, dtype]).agree_within(5)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 10, 33])
def test_a_power_with_a_constant_exponent_needs_no_loop(exponent: int) -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x in values:
            power = tiles.constant(exponent, x.tile.dtype, ())
            power = tiles.make(ops.Broadcast, power, shape=x.tile.shape)
            tiles.give(tiles.make(ops.Power, x, power))

    found = run(build, *map(some, INTEGERS), dtypes=INTEGERS)
    found.agree()
    assert "nounroll" not in found.ptx


def test_a_square_of_floats_is_a_product() -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x in values:
            two = tiles.constant(2, x.tile.dtype, x.tile.shape)
            tiles.give(tiles.make(ops.Power, x, two))

    found = run(build, *map(some, FLOATS), dtypes=FLOATS)
    found.agree()
    assert "ex2" not in found.ptx


@pytest.mark.parametrize(
    ("kind", "instruction"),
    [
        (ops.Exp, "ex2.approx.f32"),
        (ops.Exp2, "ex2.approx.f32"),
        (ops.Log, "lg2.approx.f32"),
        (ops.Log2, "lg2.approx.f32"),
        (ops.Tanh, "tanh.approx.f32"),
        (ops.Sqrt, "sqrt.approx.f32"),
        (ops.Rsqrt, "rsqrt.approx.f32"),
        (ops.Sin, "sin.approx.f32"),
        (ops.Cos, "cos.approx.f32"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_approximate_mathematics_takes_one_instruction(kind: type[Op], instruction: str) -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(kind, x))

    x = np.linspace(0.25, 1.5, 64, dtype=np.float32)
    found = run(build, x, dtypes=[f32], approx_math=True)
    assert instruction in found.ptx
    np.testing.assert_allclose(found.emulated[0], found.expected[0], rtol=1e-3)


def test_approximate_division_takes_one_instruction() -> None:
    def build(tiles: Tiles, x: Value, y: Value) -> None:
        tiles.give(tiles.make(ops.Divide, x, y))

    x, y = np.linspace(-4, 4, 64, dtype=np.float32), np.linspace(1, 3, 64, dtype=np.float32)
    found = run(build, x, y, dtypes=[f32, f32], approx_math=True)
    assert "div.full.f32" in found.ptx
    found.agree_within(2)


def test_approximate_mathematics_leaves_f64_exact() -> None:
    def build(tiles: Tiles, x: Value) -> None:
        tiles.give(tiles.make(ops.Sqrt, x))

    run(build, some(f64), dtypes=[f64], approx_math=True).agree()
