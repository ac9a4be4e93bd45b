"""Elements outside the array: remembered, left out, filled; an error where they are lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

import astdsl
from astdsl.errors import OutsideLost
from astdsl.ir import ops
from astdsl.ir.core import walk
from astdsl.ir.dtypes import f32
from astdsl.ir.printer import print_module
from astdsl.ir.types import GMEM, RefType
from astdsl.lang.ragged import KEPT, LOST, ZERO
from astdsl.lang.refs import Ref
from tests.lang.harness import a_trace, an_index, given, run, traced, written
from tests.strategies import overhanging_windows

VECTOR = RefType((None,), f32, GMEM, strides=(1,), small=True)
DATA = np.random.default_rng(3).normal(size=(6, 10)).astype(np.float32)

PLAIN = partial(astdsl.ones, (8,))


def states(tile: Any) -> list[str]:
    return sorted(tile.edges.outside.values())


def output(function: Callable[[Ref], Any], source: Any, static: bool = False) -> Any:
    """Return what a function of a ref gives."""
    argument = given(source, *"MNKL"[: np.ndim(source)], static=static)
    with a_trace(argument.type, dims=[argument.dims]) as (_, ref):
        tile = function(ref)

    def body(x: Ref, o: Ref) -> None:
        o[...] = function(x)

    return run(body, argument, written(tile.shape, tile.dtype.numpy, static=True))


def numpys_part(window: tuple[int, int, int], extent: int) -> list[int]:
    start, size, step = window
    return [i for i in range(start, start + size * step, step) if 0 <= i < extent]


REDUCED = ["sum", "prod", "max", "min", "mean"]


@pytest.mark.parametrize("name", REDUCED)
@settings(max_examples=25)
@for_all(
    overhanging_windows(6),
    overhanging_windows(10),
    st.sampled_from([0, 1, None]),
    st.booleans(),
)
def test_reductions_leave_the_outside_out(
    name: str, row: Any, column: Any, axis: Any, static: bool
) -> None:
    part = DATA[np.ix_(numpys_part(row, 6), numpys_part(column, 10))]
    wanted = getattr(np, name)(part, axis=axis)

    def function(x: Ref) -> Any:
        found = getattr(x[astdsl.ds(*row), astdsl.ds(*column)], name)(axis=axis)
        return found.filled(0) if axis is not None else found

    found = output(function, DATA, static)
    kept = found if axis is None else found[found != 0]
    expected = np.ravel(wanted) if axis is not None else wanted
    np.testing.assert_allclose(kept, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@settings(max_examples=25)
@for_all(overhanging_windows(10))
def test_the_place_of_an_extreme_is_inside(name: str, window: Any) -> None:
    x = np.abs(DATA[0]) + 1 if name == "argmin" else -np.abs(DATA[0]) - 1
    found = output(lambda r: getattr(r[astdsl.ds(*window)], name)(), x)
    start, _, step = window
    inside = numpys_part(window, 10)
    assert start + int(found) * step == inside[getattr(np, name)(x[inside])]


def test_a_ragged_softmax_needs_no_mask() -> None:
    def softmax(x: Ref) -> Any:
        row = x[0:2, 0:16]
        e = astdsl.exp(row - row.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    found = output(softmax, DATA)[:, :10]
    e = np.exp(DATA[:2] - DATA[:2].max(axis=1, keepdims=True))
    np.testing.assert_allclose(found, e / e.sum(axis=1, keepdims=True), rtol=1e-5)


def test_all_and_any_leave_the_outside_out() -> None:
    x = np.ones(5, np.float32)
    assert output(lambda r: (r[0:8] > 0).all(), x)
    assert not output(lambda r: (r[0:8] < 1).any(), x)
    assert not output(lambda r: (r[0:8] == 0).any(), x)


@settings(max_examples=25)
@for_all(overhanging_windows(10), overhanging_windows(10))
def test_what_two_windows_share_is_inside(first: Any, second: Any) -> None:
    size = min(first[1], second[1])
    x = np.abs(DATA[0]) + 1

    def function(r: Ref) -> Any:
        a, b = (r[astdsl.ds(w[0], size, w[2])] for w in (first, second))
        return (a * b).min()

    places = [(first[0] + k * first[2], second[0] + k * second[2]) for k in range(size)]
    both = [x[i] * x[j] for i, j in places if 0 <= i < 10 and 0 <= j < 10]
    found = output(function, x)
    assert found == (np.float32(min(both)) if both else np.inf)


def test_a_transposed_or_sliced_tile_remembers() -> None:
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    assert output(lambda r: r[0:4, 0:4].T.min(), x) == 1
    assert output(lambda r: r[0:4, 0:4][1:, ::-1].min(), x) == 4
    assert output(lambda r: r[0:4, 0:4][:, None].min(), x) == 1
    assert output(lambda r: astdsl.broadcast_to(r[0, 0:4], (3, 4)).min(), x) == 1


def test_a_row_outside_decides_about_what_it_is_broadcast_to() -> None:
    x = np.ones((2, 3), np.float32)
    assert output(lambda r: (r[1:2, 0:3] + astdsl.zeros((4, 3))).filled(-1).sum(), x) == 12
    assert output(lambda r: (r[2:3, 0:3] + astdsl.zeros((4, 3))).filled(-1).sum(), x) == -12


def test_filled_makes_the_outside_ordinary() -> None:
    x = np.ones(5, np.float32)
    assert output(lambda r: r[0:8].filled(2).sum(), x) == 11
    found = output(lambda r: astdsl.exp(r[0:8]).filled(0).min(), x)
    assert found == 0


def test_a_fill_at_the_load_takes_part() -> None:
    assert output(lambda r: astdsl.load(r.at[0:8], fill=2).sum(), np.ones(5, np.float32)) == 11


def test_products_leave_the_outside_out() -> None:
    a = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    b = np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)
    b[0, 0] = np.inf

    def body(x: Ref, y: Ref, o: Ref) -> None:
        o[...] = astdsl.exp(x[0:4, 0:8]) @ y[0:8, 0:8]

    arguments = (given(a, "M", "K"), given(b, "K", "N"), written((4, 8), np.float32, static=True))
    found = run(body, *arguments)[:, :6]
    np.testing.assert_allclose(found, np.exp(a) @ b, rtol=1e-5)


def test_a_product_of_windows_as_they_were_read_has_no_mask() -> None:
    def body(x: Ref, y: Ref, o: Ref) -> None:
        o[...] = x[0:16, 0:16] @ y[0:16, 0:16]

    a = np.zeros((5, 7), np.float32)
    arguments = (given(a, "M", "K"), given(a.T, "K", "N"), written((16, 16), "f4", static=True))
    kinds = {type(op) for op in walk(traced(body, *arguments).body)}
    assert ops.Select not in kinds
    assert ops.Dot in kinds


def test_a_product_of_dims_of_two_names_masks_what_may_differ() -> None:
    def body(x: Ref, y: Ref, o: Ref) -> None:
        o[...] = x[0:8, 0:8] @ y[0:8, 0:8]

    a = np.full((8, 8), 2, np.float32)
    b = np.full((5, 8), np.inf, np.float32)
    a[:, 5:] = np.nan
    arguments = (given(a), given(b), written((8, 8), "f4", static=True))
    assert (run(body, *arguments) == np.inf).all()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_windows_proved_inside_are_not_ragged(size: int) -> None:
    with a_trace(RefType((10,), f32, GMEM, strides=(1,))) as (_, x), an_index(10 // size) as i:
        assert not x[astdsl.tile(i, size)].edges


def test_the_last_block_is_ragged_where_it_may_overhang() -> None:
    with a_trace(RefType((10,), f32, GMEM, strides=(1,))) as (_, x), an_index(4) as i:
        assert states(x[astdsl.tile(i, 3)]) == [ZERO]


def test_an_index_below_a_dim_is_proved_inside() -> None:
    with a_trace(VECTOR) as (_, x), an_index(x.shape[0]) as i:
        assert not x[i].edges
        assert states(x[i + 1]) == [ZERO]
        assert states(x[i - 1]) == [ZERO]


@pytest.mark.parametrize(
    ("function", "state"),
    [
        (lambda x: x + x, ZERO), (lambda x: -x, ZERO), (lambda x: x * 2, ZERO),
        (lambda x: x * x, ZERO), (lambda x: x / 2, ZERO), (abs, ZERO),
        (lambda x: x + 1, LOST), (lambda x: 1 - x, LOST), (lambda x: x - 1, LOST),
        (lambda x: x + 0, ZERO), (lambda x: PLAIN() + x, KEPT), (lambda x: PLAIN() - x, KEPT),
        (lambda x: x - PLAIN(), LOST), (lambda x: x * PLAIN(), LOST),
        (astdsl.exp, LOST), (lambda x: x * np.inf, LOST), (lambda x: x / x, LOST),
        (astdsl.tanh, ZERO), (lambda x: astdsl.where(x > 0, x, 0 * x), ZERO),
        (lambda x: astdsl.maximum(x, 1), LOST), (lambda x: x.astype(astdsl.f16), ZERO),
        (lambda x: (PLAIN() + x) + x, KEPT), (lambda x: (PLAIN() + x) * 2, LOST),
        (lambda x: 1 / x, LOST), (lambda x: x / 0, LOST),
    ],
)  # fmt: skip
def test_what_the_outside_holds(function: Callable[..., Any], state: str) -> None:
    with a_trace(VECTOR) as (_, x):
        assert states(function(x[0:8])) == [state]


def test_a_reshape_that_merges_a_ragged_axis_needs_zeros() -> None:
    with a_trace(VECTOR) as (_, x):
        assert not x[0:8].reshape(2, 4).edges
        assert states(x[0:8].reshape(8, 1)) == [ZERO]
        with pytest.raises(OutsideLost, match="axis 0") as caught:
            astdsl.exp(x[0:8]).reshape(2, 4)
        assert "filled" in caught.value.help
        assert not astdsl.exp(x[0:8]).filled(0).reshape(2, 4).edges


def test_shared_memory_does_not_remember() -> None:
    with a_trace(VECTOR) as (_, x):
        buffer = astdsl.SMEM((8,), f32)
        buffer[...] = x[0:8]
        assert not buffer[...].edges
        with pytest.raises(OutsideLost, match="storing into"):
            buffer[...] = astdsl.exp(x[0:8])


def test_an_axis_that_an_integer_dropped_may_be_forgotten() -> None:
    x = np.arange(1, 5, dtype=np.float32)
    assert output(lambda r: r[4].filled(7) + r[3].filled(7), x) == 11
    assert output(lambda r: astdsl.exp(r[4]).reshape(1), x) == 1


def test_a_row_outside_that_was_repeated_is_left_out() -> None:
    x = np.ones((2, 3), np.float32)
    assert output(lambda r: (r[2:3, 0:3] + astdsl.ones((4, 3))).sum(), x) == 0
    assert output(lambda r: (r[1:2, 0:3] + astdsl.ones((4, 3))).sum(), x) == 24


def test_masks_come_in_the_order_of_the_operands() -> None:
    def body(x: Ref, y: Ref, o: Ref) -> None:
        both = x[astdsl.ds(-1, 8), astdsl.ds(-1, 8)] * y[astdsl.ds(-2, 8), astdsl.ds(-2, 8)]
        o[...] = both.max(axis=(0, 1))

    arguments = (given(DATA), given(DATA), written((), np.float32, static=True))
    texts = {print_module(traced(body, *arguments)) for _ in range(8)}
    assert len(texts) == 1
