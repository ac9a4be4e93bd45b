"""Arithmetic of the host."""

from __future__ import annotations

import math
from typing import Any

import pytest

from astdsl.ir.dtypes import ALL
from astdsl.ir.launch import HOST_OPERATIONS
from astdsl.runtime.host import compile_host, reads_scalars

CDIV = ("floor_divide", ("add", ("dim", 1, 0), 63), 64)


def value(expression: Any, shapes: Any = (), scalars: Any = ()) -> Any:
    return compile_host(expression)(shapes, scalars)


def test_a_grid_is_computed_from_dims() -> None:
    assert value(CDIV, [(1,), (130, 7)]) == 3


def test_scalars_are_read() -> None:
    expression = ("select", ("lt", ("scalar", 1), 0), ("negate", ("scalar", 1)), -5)
    assert [value(expression, (), (None, s)) for s in (-3, 3)] == [3, -5]


def test_infinities_and_nan_are_numbers() -> None:
    assert value(("maximum", float("-inf"), 1.5)) == 1.5
    assert math.isnan(value(float("nan")))


EXPECTED = {
    "add": 13, "subtract": 7, "multiply": 30, "divide": 10 / 3, "floor_divide": 3, "remainder": 1,
    "minimum": 3, "maximum": 10, "negate": -10, "absolute": 10, "eq": False, "ne": True,
    "lt": False, "le": False, "gt": True, "ge": True, "and": 2, "or": 11, "xor": 9,
    "shift_left": 80, "shift_right": 1, "not": False, "select": 3,
    "least": 3, "greatest": 10, **{dtype.name: 10 for dtype in ALL}, "f8e8m0": 8.0, "f4e2m1": 6.0,
    "bool": True,
}  # fmt: skip


@pytest.mark.parametrize("operation", HOST_OPERATIONS)
def test_every_row_computes(operation: str) -> None:
    operands = [10, 3, 4][: 1 + max(map(int, "".join(filter(str.isdigit, _row(operation)))))]
    assert value((operation, *operands)) == EXPECTED[operation]


def _row(operation: str) -> str:
    return HOST_OPERATIONS[operation]


@pytest.mark.parametrize(
    "foreign", [("__import__('os')", 1), ("add", "shapes", 1), ("dim", "0", "x"), (1, 2)]
)
def test_nothing_but_rows_and_numbers_is_compiled(foreign: Any) -> None:
    with pytest.raises((AssertionError, ValueError)):
        compile_host(foreign)


def test_whether_a_value_depends_on_scalars_is_known() -> None:
    assert not reads_scalars(CDIV)
    assert not reads_scalars(3)
    assert reads_scalars(("add", 1, ("negate", ("scalar", 0))))
