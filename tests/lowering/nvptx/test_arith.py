"""Elementwise arithmetic against the reference, on the numbers that it goes wrong on."""

import numpy as np
import pytest

from astdsl.ir import ops
from astdsl.ir.core import Op, Value
from astdsl.ir.dtypes import DType, boolean
from tests.dtypes import EVERY, FLOATS, INTEGERS, NUMBERS
from tests.lowering.nvptx.numbers import Array, any_bits, pairs, some
from tests.lowering.nvptx.tiles import Compared, Tiles, run

BINARY = [
    *((kind, EVERY) for kind in (ops.Add, ops.Multiply, ops.Minimum, ops.Maximum)),
    (ops.Subtract, NUMBERS),
    (ops.Divide, FLOATS),
    (ops.FloorDivide, NUMBERS),
    (ops.Remainder, NUMBERS),
    *((kind, (*INTEGERS, boolean)) for kind in (ops.BitAnd, ops.BitOr, ops.BitXor)),
    (ops.ShiftLeft, INTEGERS),
    (ops.ShiftRight, INTEGERS),
    (ops.Power, INTEGERS),
]
UNARY = [
    (ops.Negate, NUMBERS),
    (ops.Absolute, NUMBERS),
    (ops.Invert, (*INTEGERS, boolean)),
    *((kind, NUMBERS) for kind in (ops.Floor, ops.Ceil, ops.IsNan, ops.IsInf)),
    (ops.Round, FLOATS),
    (ops.Sqrt, FLOATS),
]


def of_each(
    kind: type[Op], *columns: list[Array], dtypes: tuple[DType, ...], **fields: object
) -> Compared:
    """Run an operation on tiles of several dtypes; a column is an operand for each of them."""
    inputs = [array for row in zip(*columns, strict=True) for array in row]
    kinds = [dtype for dtype in dtypes for _ in columns]

    def build(tiles: Tiles, *values: Value) -> None:
        for start in range(0, len(values), len(columns)):
            tiles.give(tiles.make(kind, *values[start : start + len(columns)], **fields))

    return run(build, *inputs, dtypes=kinds)


@pytest.mark.parametrize(("kind", "dtypes"), BINARY, ids=lambda v: getattr(v, "__name__", ""))
def test_a_binary_operation_equals_the_reference_bit_for_bit(
    kind: type[Op], dtypes: tuple[DType, ...]
) -> None:
    left, right = zip(*map(pairs, dtypes), strict=True)
    of_each(kind, list(left), list(right), dtypes=dtypes).agree()


@pytest.mark.parametrize(("kind", "dtypes"), UNARY, ids=lambda v: getattr(v, "__name__", ""))
def test_a_unary_operation_equals_the_reference_bit_for_bit(
    kind: type[Op], dtypes: tuple[DType, ...]
) -> None:
    of_each(kind, [some(d) for d in dtypes], dtypes=dtypes).agree()


@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_a_comparison_equals_the_reference(predicate: str) -> None:
    left, right = zip(*map(pairs, EVERY), strict=True)
    found = of_each(ops.Compare, list(left), list(right), dtypes=EVERY, predicate=predicate)
    found.agree()


def test_a_fused_product_sum_is_rounded_once() -> None:
    columns = list(zip(*map(_triples, NUMBERS), strict=True))
    of_each(ops.Fma, *map(list, columns), dtypes=NUMBERS).agree()


def _triples(dtype: DType) -> tuple[Array, Array, Array]:
    x, y = pairs(dtype)
    z = np.resize(some(dtype)[::-1], x.size)
    with np.errstate(all="ignore"):
        near = (-x.astype(np.float64) * y.astype(np.float64)).astype(dtype.numpy)
    z = np.where(np.arange(x.size) % 3 == 0, near, z) if dtype.is_float else z
    return x, y, z.astype(dtype.numpy)


def test_a_selection_takes_each_element_from_its_side() -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x, y in zip(values[1::2], values[2::2], strict=True):
            tiles.give(tiles.make(ops.Select, values[0], x, y))

    operands = [any_bits(d, 300, seed) for d in EVERY for seed in (1, 2)]
    dtypes = [boolean, *(d for d in EVERY for _ in range(2))]
    run(build, any_bits(boolean, 300), *operands, dtypes=dtypes).agree()


def test_a_constant_is_one_number_everywhere() -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x in values:
            dtype = x.tile.dtype
            for number in (1, 0.1, -0.0, 1e9) if dtype.is_float else (0, 1, 77):
                tiles.give(tiles.make(ops.BitXor if not dtype.is_float else ops.Add, x,
                                      tiles.constant(number, dtype, x.tile.shape)))  # fmt: skip

    run(build, *(some(d) for d in NUMBERS), dtypes=NUMBERS).agree()


def test_a_product_and_a_sum_are_not_contracted() -> None:
    def build(tiles: Tiles, *values: Value) -> None:
        for x, y in zip(values[::2], values[1::2], strict=True):
            tiles.give(tiles.make(ops.Add, tiles.make(ops.Multiply, x, y), x))

    found = run(
        build, *(x for d in FLOATS for x in pairs(d)), dtypes=[d for d in FLOATS for _ in range(2)]
    )
    found.agree()
    assert "fma" not in found.ptx
