"""Every function on every dtype, on special numbers: the table, the reference, the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from astdsl import In, Out, bitcast, kernel, pipeline, tile, u64
from astdsl.errors import KernelError
from astdsl.ir.dtypes import DType, boolean
from astdsl.ir.types import TileType
from astdsl.lang.parts import WORDS
from tests.dtypes import EVERY
from tests.functions import BINARY, ELEMENTARY, MOVES, ORDERS, SUMS, UNARY, Array, Row, dtype_of
from tests.lang.harness import a_trace
from tests.lowering.nvptx.numbers import any_bits, pairs, some
from tests.lowering.nvptx.tiles import distance

BLOCK = 128
PLACES = ("reference", "sm_90a", "sm_100a")


def as_word(x: Any) -> Any:
    """Return the bits of each element as u64."""
    if x.dtype is boolean:
        return x.astype(u64)
    return bitcast(x, WORDS[x.dtype.bits]).astype(u64)


@kernel
def of_one(x: In["N"], o: Out[u64, "F N"], *, rows: Any) -> None:
    with pipeline(x.shape[0] // BLOCK) as i:
        at = tile(i, BLOCK)
        for k, row in enumerate(rows):
            o[k, at] = as_word(row.function(x[at]))


@kernel
def of_two(x: In["N"], y: In["N"], o: Out[u64, "F N"], *, rows: Any) -> None:
    with pipeline(x.shape[0] // BLOCK) as i:
        at = tile(i, BLOCK)
        for k, row in enumerate(rows):
            o[k, at] = as_word(row.function(x[at], y[at]))


def padded(x: Array, dtype: DType, seed: int) -> Array:
    return np.concatenate([x, any_bits(dtype, -len(x) % BLOCK, seed)])


def operands(dtype: DType, arity: int) -> list[Array]:
    given = pairs(dtype) if arity == 2 else (some(dtype),)
    return [padded(x, dtype, 5 + k) for k, x in enumerate(given)]


@cache
def computed(rows: tuple[Row, ...], arity: int, dtype: DType, place: str) -> Array:
    """Return the bits of every row's results."""
    function = of_one if arity == 1 else of_two
    own = tuple(row for row in rows if dtype in row.dtypes)
    placed = function.on(place) if place == "reference" else function.on("emulator", target=place)
    given = operands(dtype, arity)
    o = np.zeros((len(own), len(given[0])), np.uint64)
    placed(*given, o, rows=own)
    return o


def results(rows: tuple[Row, ...], row: Row, dtype: DType, place: str) -> tuple[Array, Array]:
    """Return what a row gives, and what it must."""
    arity = 2 if rows is BINARY else 1
    number = [r.name for r in rows if dtype in r.dtypes].index(row.name)
    words = computed(rows, arity, dtype, place)[number]
    with np.errstate(all="ignore"):
        wanted = row.expected(*operands(dtype, arity))
    return of_words(words, wanted.dtype), wanted


def of_words(words: Array, kind: np.dtype[Any]) -> Array:
    """Return numbers from their bits in u64."""
    return words.astype(f"u{kind.itemsize}").view(kind) if kind != np.bool_ else words != 0


def cases(rows: Sequence[Row]) -> list[Any]:
    return [pytest.param(r, d, id=f"{r.name}-{d}") for r in rows for d in EVERY if d in r.dtypes]


def check(rows: tuple[Row, ...], row: Row, dtype: DType) -> None:
    for place in PLACES:
        found, wanted = results(rows, row, dtype, place)
        equal = agrees(found, wanted, row.units.get(dtype_of(wanted), 0))
        bad = np.flatnonzero(~equal)[:4]
        arity = 2 if rows is BINARY else 1
        given = [x[bad].tolist() for x in operands(dtype, arity)]
        assert equal.all(), f"{place}: of {given} {found[bad].tolist()}, not {wanted[bad].tolist()}"


def agrees(found: Array, wanted: Array, units: float) -> Array:
    """Return where numbers are the same, signs of zeros too and NaNs alike, or close enough."""
    if not dtype_of(wanted).is_float:
        return np.asarray(found == wanted)
    with np.errstate(invalid="ignore"):  # NaNs that signal, of random bits
        a, b = found.astype(np.float64), wanted.astype(np.float64)
    same = ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))
    if not units:
        return np.asarray(same)
    with np.errstate(invalid="ignore"):
        return np.asarray(same | (distance(found, wanted) <= units))


@pytest.mark.parametrize(("row", "dtype"), cases(BINARY))
def test_a_function_of_two_gives_what_the_table_says(row: Row, dtype: DType) -> None:
    check(BINARY, row, dtype)


@pytest.mark.parametrize(("row", "dtype"), cases(UNARY))
def test_a_function_of_one_gives_what_the_table_says(row: Row, dtype: DType) -> None:
    check(UNARY, row, dtype)


@pytest.mark.parametrize(("row", "dtype"), cases(ELEMENTARY))
def test_an_elementary_function_is_as_close_as_the_table_says(row: Row, dtype: DType) -> None:
    check(ELEMENTARY, row, dtype)


REFUSED = [
    pytest.param(rows, r, d, id=f"{r.name}-{d}")
    for rows in (BINARY, UNARY, ELEMENTARY)
    for r in rows
    for d in r.refused
]


@pytest.mark.parametrize(("rows", "row", "dtype"), REFUSED)
def test_what_makes_no_sense_is_refused_by_name(rows: Any, row: Row, dtype: DType) -> None:
    kinds = [TileType((4,), dtype)] * (2 if rows is BINARY else 1)
    with a_trace(*kinds) as (_, *tiles), pytest.raises(KernelError) as caught:
        row.function(*tiles)
    assert f"`{row.symbol}`" in str(caught.value)
    assert str(dtype) in str(caught.value)
    assert caught.value.help


@pytest.mark.parametrize("rows", [BINARY, UNARY, ELEMENTARY], ids=["two", "one", "elementary"])
@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_results_have_the_dtype_of_the_table(rows: tuple[Row, ...], dtype: DType) -> None:
    arity = 2 if rows is BINARY else 1
    data = [x[:4] for x in operands(dtype, arity)]
    with np.errstate(all="ignore"), a_trace(*[TileType((4,), dtype)] * arity) as (_, *tiles):
        for row in rows:
            if dtype in row.dtypes:
                assert row.function(*tiles).dtype is dtype_of(row.expected(*data)), row.name


@kernel
def of_rows(x: In["8 24"], o: Out[u64, "F 8 24"], *, rows: Any) -> None:
    for k, row in enumerate(rows):
        o[k] = as_word(row.function(x[...]))


SHAPE = (8, 24)


def table_of(rows: tuple[Row, ...], dtype: DType) -> Array:
    """Return rows of numbers: small ones where a row sums, else special ones and a NaN or two."""
    if rows is not SUMS:
        return np.resize(some(dtype)[::-1], SHAPE)
    if dtype.kind == "bool":
        return np.asarray(np.arange(192).reshape(SHAPE) % 3 == 0)
    numbers = np.ones(SHAPE)
    numbers[np.arange(8), np.arange(8) * 3] = [2, 4, 0, 2, 4, 2, 1, 2]
    if dtype.is_signed:
        numbers[:, 5::7] *= -1
    return numbers.astype(dtype.numpy)


@cache
def combined(rows: tuple[Row, ...], dtype: DType, place: str) -> Array:
    placed = of_rows.on(place) if place == "reference" else of_rows.on("emulator", target=place)
    o = np.zeros((len(rows), *SHAPE), np.uint64)
    placed(table_of(rows, dtype), o, rows=rows)
    return o


ALONG = [
    pytest.param(rows, r, d, id=f"{r.name}-{d}")
    for rows in (SUMS, ORDERS, MOVES)
    for r in rows
    for d in EVERY
]


@pytest.mark.parametrize(("rows", "row", "dtype"), ALONG)
def test_a_function_along_an_axis_gives_what_the_table_says(
    rows: tuple[Row, ...], row: Row, dtype: DType
) -> None:
    x = table_of(rows, dtype)
    wanted = np.broadcast_to(row.expected(x), SHAPE)
    with a_trace(TileType(SHAPE, dtype)) as (_, t):
        assert row.function(t).dtype is dtype_of(wanted)
    for place in PLACES:
        words = combined(rows, dtype, place)[rows.index(row)]
        found = of_words(words, wanted.dtype)
        bad = np.argwhere(~agrees(found, wanted, 0))[:3]
        assert not bad.size, f"{place}: {[(found[*at], wanted[*at]) for at in bad]} at {bad}"
