"""Windows of refs: what they read and write, against NumPy slices of padded arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

import astdsl
from astdsl.errors import (
    BadWindow,
    NotConstant,
    ShapeMismatch,
    TypeMismatch,
    UnknownName,
    WrittenInput,
)
from astdsl.ir.dtypes import f32, i32
from astdsl.ir.types import GMEM, RefType, TileType
from astdsl.lang.refs import Ref
from astdsl.lang.tracing import NeedsConstant
from tests.lang.harness import a_trace, an_index, given, run, traced, written
from tests.strategies import inner_items, windows

DATA = np.arange(1, 61, dtype=np.float32).reshape(6, 10)
MATRIX = RefType((None, None), f32, GMEM, strides=(None, 1), small=True)
PAD = 40


def padded(x: Any) -> Any:
    return np.pad(x, PAD)


def read(window: Any, data: Any = DATA, static: bool = True) -> Any:
    """Return what `window(ref)` reads of an array."""
    source = given(data, "M", "N", static=static)
    with a_trace(source.type, dims=[("M", "N")]) as (_, ref):
        tile = window(ref)

    def body(x: Ref, o: Ref) -> None:
        o[...] = window(x)

    return run(body, source, written(tile.shape, tile.dtype.numpy, static=True))


@settings(max_examples=60)
@for_all(windows(), windows(), st.booleans())
def test_a_window_reads_zeros_outside(row: Any, column: Any, static: bool) -> None:
    wanted = padded(DATA)[tuple(slice(PAD + s, PAD + s + n * k, k) for s, n, k in (row, column))]
    key = tuple(astdsl.ds(*w) for w in (row, column))
    assert np.array_equal(read(lambda x: x[key], static=static), wanted)


@settings(max_examples=40)
@for_all(windows(), windows())
def test_a_window_drops_what_is_outside_on_store(row: Any, column: Any) -> None:
    target = padded(np.zeros_like(DATA))
    target[tuple(slice(PAD + s, PAD + s + n * k, k) for s, n, k in (row, column))] = 7
    wanted = target[PAD:-PAD, PAD:-PAD]

    def body(o: Ref) -> None:
        o[astdsl.ds(*row), astdsl.ds(*column)] = 7

    assert np.array_equal(run(body, written(DATA.shape, np.float32)), wanted)


@settings(max_examples=60)
@for_all(st.data())
def test_a_view_of_a_view_is_numpys(data: st.DataObject) -> None:
    shown, keys = DATA, []
    for _ in range(data.draw(st.integers(1, 3))):
        key = tuple(data.draw(inner_items(extent)) for extent in shown.shape)
        keys.append(key)
        shown = shown[key]

    def window(x: Ref) -> Any:
        for key in keys:
            x = x.at[key]
        return x[...]

    assert np.array_equal(read(window), shown)


@pytest.mark.parametrize(
    "window",
    [
        lambda x: x[1:4, 2:8:2], lambda x: x[2], lambda x: x[2, 3], lambda x: x[:, 4],
        lambda x: x[...], lambda x: x[..., 1], lambda x: x[:4], lambda x: x[2:], lambda x: x.T[3],
        lambda x: x.T[2:7, 1:3],
        lambda x: x.at[1:5].T[3:6, 1], lambda x: x.at[:, 2:9].at[3][1:4],
    ],
)  # fmt: skip
def test_windows_inside_are_numpys(window: Any) -> None:
    def of(x: Any) -> Any:
        return window(Views(x))

    assert np.array_equal(read(window), of(DATA))


class Views:
    """An array with `at`, as refs have it."""

    def __init__(self, data: Any) -> None:
        self.data = data

    @property
    def at(self) -> Any:
        data = self.data

        class At:
            def __getitem__(self, key: Any) -> Any:
                return Views(data[key])

        return At()

    @property
    def T(self) -> Views:  # noqa: N802
        return Views(self.data.T)

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]


def test_a_block_is_a_tile_of_an_index() -> None:
    found = read(lambda x: x.blocks(4, 4)[1, 2])
    assert np.array_equal(found, padded(DATA)[PAD + 4 : PAD + 8, PAD + 8 : PAD + 12])


def test_a_block_is_written() -> None:
    def body(o: Ref) -> None:
        o.blocks(2, 5)[1, 1] = 3
        o.blocks(2, 5).at[0, 0][...] = 4

    found = run(body, written((6, 10), np.float32))
    assert found[2:4, 5:].min() == 3
    assert found[:2, :5].min() == 4
    assert found.sum() == 10 * 7


def test_extents_are_found_symbolically() -> None:
    with a_trace(MATRIX) as (_, x), an_index(9) as i:
        b, rows = 16, x.shape[0]
        assert x[i * b : (i + 1) * b, 0].shape == (16,)
        assert x[i * b : i * b + 8, 0].shape == (8,)
        assert x[rows - 3 : rows, 0].shape == (3,)
        assert x[2 * i + 1 : (i + 1) * 2 + 4 : 2, 0].shape == (3,)
        assert x[i // 4 : i // 4 + 5, 0].shape == (5,)


def test_a_runtime_extent_is_refused_with_a_way_out() -> None:
    with (
        a_trace(MATRIX) as (_, x),
        an_index(9) as i,
        pytest.raises(BadWindow, match="not a compile-time constant"),
    ):
        x[i : 2 * i]


def test_an_extent_that_is_a_dim_asks_for_it() -> None:
    with a_trace(MATRIX, dims=[("M", "N")]) as (_, x):
        for ref, window in ((x, astdsl.ds(0, 2)), (x, 0), (x.T.at[:, 0:1].T, 0)):
            with pytest.raises(NeedsConstant) as caught:
                ref[window]
            assert caught.value.wanted == {("a", 1)}


def test_dims_of_one_name_are_asked_for_together() -> None:
    with a_trace(MATRIX, MATRIX, dims=[("M", "N"), ("N", "K")]) as (_, x, y):
        with pytest.raises(NeedsConstant) as caught:
            astdsl.zeros((x.shape[1],), f32)
        assert caught.value.wanted == {("a", 1), ("b", 0)}
        assert (x.shape[1] - y.shape[0]).form.constant == 0


def test_a_dim_in_python_arithmetic_asks_for_it() -> None:
    with a_trace(MATRIX) as (_, x):
        with pytest.raises(NeedsConstant) as caught:
            float(x.shape[0] * 2)
        assert caught.value.wanted == {("a", 0)}


def test_a_static_dim_is_a_python_integer() -> None:
    with a_trace(RefType((6, None), f32, GMEM, strides=(None, 1))) as (_, x):
        assert x.shape[0] == 6
        assert x.ndim == 2
        assert len(x) == 6


def test_a_strong_index_does_not_wrap() -> None:
    def window(x: Ref) -> Any:
        row = x[0, 0].astype(i32) * 0 + 2**30
        return x[astdsl.tile(row, 8), 0]

    # 2**33 is far outside; wrapped to i32 it would be 0.
    assert np.array_equal(read(window), np.zeros(8))


@pytest.mark.parametrize(
    "window",
    [lambda x: x[-1], lambda x: x[-8:], lambda x: x[:-1], lambda x: x[0, -2], lambda x: x.T[-1]],
)
def test_negative_constants_are_refused(window: Any) -> None:
    with a_trace(MATRIX) as (_, x), pytest.raises(BadWindow, match="ambiguous"):
        window(x)


@pytest.mark.parametrize("step", [0, -1])
def test_a_step_is_positive(step: int) -> None:
    with a_trace(MATRIX) as (_, x):
        with pytest.raises(BadWindow, match="step of a window"):
            x[0:8:step]
        with pytest.raises(BadWindow, match="step of a window"):
            astdsl.ds(0, 4, step)


def test_a_float_is_no_index() -> None:
    with a_trace(MATRIX, TileType((), f32)) as (_, x, t), pytest.raises(TypeMismatch, match="f32"):
        x[t]


def test_none_is_no_window() -> None:
    with a_trace(MATRIX) as (_, x), pytest.raises(BadWindow, match="adds an axis"):
        x[None, 0]


def test_a_window_ends_where_its_view_ends() -> None:
    found = read(lambda x: x.at[1:3][astdsl.ds(-1, 5), 0])
    inside = padded(DATA)[PAD + 1 : PAD + 3, PAD]
    assert found.tolist() == [0, *inside.tolist(), 0, 0]


def test_windows_of_shared_memory_lie_inside() -> None:
    with a_trace() as _:
        buffer = astdsl.SMEM((2, 8), f32)
        assert buffer[1, 2:6].shape == (4,)
        with pytest.raises(BadWindow, match="outside"):
            buffer[2]
        with pytest.raises(BadWindow, match="outside"):
            buffer[0, astdsl.tile(1, 8)]


def test_an_input_is_not_written() -> None:
    with a_trace(MATRIX) as (_, x), pytest.raises(WrittenInput, match="`a` is an `In`"):
        x[0, 0] = 1


@pytest.mark.parametrize("number", [1, True, 2.5])
def test_a_number_is_stored_everywhere(number: Any) -> None:
    def body(o: Ref) -> None:
        o[...] = number

    assert (run(body, written((2, 3), np.float32, static=True)) == number).all()


def test_a_store_converts_and_broadcasts() -> None:
    def body(x: Ref, o: Ref) -> None:
        o[...] = x[0:1, 0:4] + 0.1

    found = run(body, given(DATA), written((3, 4), np.float16, static=True))
    row = (DATA[0, :4] + np.float32(0.1)).astype(np.float16)
    assert np.array_equal(found, np.broadcast_to(row, (3, 4)))


def test_a_store_of_a_float_into_integers_is_written_out() -> None:
    def bare(x: Ref, o: Ref) -> None:
        o[...] = x[0:2, 0]

    def written_out(x: Ref, o: Ref) -> None:
        o[...] = x[0:2, 0].astype(i32)

    arguments = (given(DATA), written((2,), np.int32, static=True))
    with pytest.raises(TypeMismatch, match="drop fractions"):
        traced(bare, *arguments)
    assert np.array_equal(run(written_out, *arguments), DATA[:2, 0])


def test_a_store_does_not_shrink() -> None:
    def body(x: Ref, o: Ref) -> None:
        o[0] = x[0:2, 0]

    with pytest.raises(ShapeMismatch, match="does not fit"):
        traced(body, given(DATA), written((4,), np.float32))


def test_a_store_through_a_transposed_view_turns_the_tile() -> None:
    def body(x: Ref, o: Ref) -> None:
        o.T[...] = x[...]

    found = run(body, given(DATA, static=True), written((10, 6), np.float32, static=True))
    assert np.array_equal(found, DATA.T)


def test_augmented_stores_read_and_write() -> None:
    def body(o: Ref) -> None:
        o[0:2] += 3
        o[0:2] *= 2

    assert run(body, written((4,), np.float32)).tolist() == [6, 6, 0, 0]


def test_a_load_with_a_fill_makes_the_outside_ordinary() -> None:
    def window(x: Ref) -> Any:
        return astdsl.load(x.at[astdsl.ds(4, 4), astdsl.ds(-1, 3)], fill=9)

    wanted = np.pad(DATA, PAD, constant_values=9)[PAD + 4 : PAD + 8, PAD - 1 : PAD + 2]
    assert np.array_equal(read(window), wanted)


@pytest.mark.parametrize("use", [
    lambda x: x + 1, lambda x: 1 + x[0, 0] * x, lambda x: -x, lambda x: x < 1, lambda x: x @ x,
    bool, astdsl.exp,
])  # fmt: skip
def test_a_ref_is_no_value(use: Any) -> None:
    with a_trace(MATRIX) as (_, x), pytest.raises(TypeMismatch, match=r"ref|Ref"):
        use(x)


def test_a_ref_is_not_iterated_over() -> None:
    with a_trace(MATRIX) as (_, x), pytest.raises(NotConstant, match="iterated"):
        list(x)


MISSPELT = [("shap", "shape"), ("block", "blocks"), ("sum", "tile")]


@pytest.mark.parametrize(("name", "hint"), MISSPELT)
def test_a_misspelt_attribute_of_a_ref_says_what_was_meant(name: str, hint: str) -> None:
    with a_trace(MATRIX) as (_, x):
        with pytest.raises(UnknownName) as caught:
            getattr(x, name)
        assert hint in caught.value.help
        assert not hasattr(x, name)


def test_an_index_that_is_the_same_in_every_step_is_a_constant() -> None:
    with a_trace(MATRIX) as (_, x), an_index(9) as i:
        assert x[astdsl.ds(i, (i + 1) * 4 - i * 4), 0].shape == (4,)


def test_an_index_is_computed_once() -> None:
    with a_trace(MATRIX) as (now, x), an_index(9) as i:
        x[astdsl.tile(i, 8), 0]
        before = now.builder.mark()
        x[i * 8 : (i + 1) * 8, 0]
        made = [type(op).__name__ for op in now.builder.current.ops[before:]]
        assert made.count("Multiply") <= 1


def test_an_element_of_arange_is_an_index() -> None:
    assert np.array_equal(read(lambda x: x[astdsl.arange(8)[2], 0:4]), DATA[2, :4])
