"""Elements that are loaded as vectors are computed with as vectors, and nothing else changes."""

# Annotations of kernels are arrays, which a type checker takes for no types.

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from astdsl import (
    In,
    Out,
    bf16,
    cdiv,
    f16,
    f32,
    fma,
    kernel,
    maximum,
    minimum,
    pipeline,
    tile,
    zeros,
)
from astdsl.ir.dtypes import DType
from astdsl.lowering.nvptx.pipeline import llvm_version
from astdsl.lowering.nvptx.values import constant
from tests.lowering.nvptx.kernels import begin, element, ptx_of
from tests.lowering.nvptx.numbers import Array, special
from tests.witnesses import agree

FLOATS = (f32, f16, bf16)
ROWS = 128


def pick(dtype: DType, *shape: int, seed: int = 0) -> Array:
    """Numbers around 1 and, one in four, those that arithmetic goes wrong on."""
    random = np.random.default_rng(seed)
    plain = random.standard_normal(shape).astype(dtype.numpy)
    return np.where(random.random(shape) < 0.25, random.choice(special(dtype), shape), plain)


@kernel
def arithmetic(x: In["M N"], y: In["M N"], s: In["M"], o: Out["M N"]):
    M, N = x.shape
    with pipeline(cdiv(M, 64), cdiv(N, 64)) as (i, j):
        a, b = x[tile(i, 64), tile(j, 64)], y[tile(i, 64), tile(j, 64)]
        rows = s[tile(i, 64)][:, None]
        larger = maximum(a, b) * -a + abs(b) - rows
        o[tile(i, 64), tile(j, 64)] = fma(a, rows, minimum(larger, 3.0) * 2)


@kernel
def conversions(x: In["M N"], y: In["M N"], t: f32, o: Out["M N"], p: Out["M N"]):
    M, N = x.shape
    with pipeline(cdiv(M, 64), cdiv(N, 64)) as (i, j):
        here = tile(i, 64), tile(j, 64)
        total = x[here].astype(f32) * t + y[here].astype(f32)
        o[here] = total.astype(o.dtype)
        p[here] = x[here].astype(p.dtype)


@kernel
def parts(x: In["M N"], o: Out["M N"]):
    """Use some lanes alone: halves of a row, and a row turned round."""
    M, N = x.shape
    with pipeline(cdiv(M, 64)) as i:
        a = x[tile(i, 64), :]
        doubled = a + a
        o[tile(i, 64), : N // 2] = doubled[:, N // 2 :] - 1
        o[tile(i, 64), N // 2 :] = (doubled * a)[:, : N // 2]


# 96 elements of a row can be moved by TMA, 100 halves cannot: their windows branch on the edge.
@pytest.mark.parametrize("columns", [96, 100, 104])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_arithmetic_on_vectors_rounds_as_on_scalars(dtype: DType, columns: int) -> None:
    agree(
        arithmetic,
        lambda: (
            pick(dtype, ROWS, columns),
            pick(dtype, ROWS, columns, seed=1),
            pick(dtype, ROWS, seed=2),
            np.empty((ROWS, columns), dtype.numpy),
        ),
    )


@pytest.mark.parametrize(
    ("x", "y", "o", "p"),
    [(f16, f16, f16, f32), (f16, f32, bf16, bf16), (bf16, f32, f16, f16), (f32, f16, f16, bf16)],
    ids=str,
)
def test_vectors_are_converted_as_scalars_are(x: DType, y: DType, o: DType, p: DType) -> None:
    agree(
        conversions,
        lambda: (
            pick(x, ROWS, 96),
            pick(y, ROWS, 96, seed=1),
            1.5,
            np.empty((ROWS, 96), o.numpy),
            np.empty((ROWS, 96), p.numpy),
        ),
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_lanes_of_a_vector_are_used_alone(dtype: DType) -> None:
    agree(parts, lambda: (pick(dtype, ROWS, 96), np.empty((ROWS, 96), dtype.numpy)))


# LLVM 20 and 21 compute with two f32 one after the other, on every target.
PAIRS_OF_F32 = pytest.mark.skipif(llvm_version()[0] < 22, reason="LLVM 22 has pairs of f32")
PACKED: list[Any] = [
    (arithmetic, (f16, f16, f16, f16), "sm_90a", "f16x2"),
    (arithmetic, (bf16, bf16, bf16, bf16), "sm_90a", "bf16x2"),
    pytest.param(arithmetic, (f32, f32, f32, f32), "sm_100a", "f32x2", marks=PAIRS_OF_F32),
]


@pytest.mark.parametrize(("function", "dtypes", "target", "suffix"), PACKED, ids=str)
def test_packed_instructions_compute_two_elements(
    function: Any, dtypes: tuple[DType, ...], target: str, suffix: str
) -> None:
    shapes = (ROWS, 96), (ROWS, 96), (ROWS,), (ROWS, 96)
    arrays = [np.empty(s, d.numpy) for s, d in zip(shapes, dtypes, strict=True)]
    ptx = function.lower(*arrays, target=target).ptx
    scalar = suffix.removesuffix("x2")
    for name in ("sub", "mul", "fma"):
        assert re.search(rf"\b{name}\.rn\.{suffix}\b", ptx), name
        assert not re.search(rf"\b{name}\.rn\.{scalar}\b", ptx), name


@kernel
def decayed(a: In["M K"], b: In["K N"], o: Out[f32, "M N"]):
    total = zeros((128, 64), f32)
    with pipeline(cdiv(a.shape[1], 64), stages=2) as k:
        total = total * 0.5 + a[:, tile(k, 64)] @ b[tile(k, 64), :]
    o[...] = total


@PAIRS_OF_F32
def test_an_accumulator_is_computed_with_by_pairs_also_across_steps() -> None:
    a, b = (pick(f16, *shape) for shape in ((128, 192), (192, 64)))
    ptx = decayed.lower(a, b, target="sm_100a").ptx
    assert ptx.count("mul.rn.f32x2") == ptx.count("add.rn.f32x2") == 32
    assert not re.search(r"\b(?:mul|add)\.rn\.f32\b", ptx)


@kernel
def extremes_and_sums(x: In["M 2048"], o: Out["M"], p: Out["M"]):
    with pipeline(x.shape[0]) as i:
        row = x[i, :]
        o[i], p[i] = row.max(), row.sum()


@pytest.mark.parametrize(
    ("dtype", "target", "instruction", "count"),
    [(f32, "sm_100a", "add.rn.f32x2", 3 * 2), (f16, "sm_90a", "max.NaN.f16x2", 1 * 4)],
    ids=str,
)
def test_a_fold_takes_vectors_that_were_loaded_together(
    dtype: DType, target: str, instruction: str, count: int
) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (3, 2048)).astype(dtype.numpy)
    most, total = agree(extremes_and_sums, lambda: (x,))
    np.testing.assert_array_equal(most, x.max(axis=1))
    np.testing.assert_array_equal(total, x.sum(axis=1, dtype=np.float32).astype(dtype.numpy))
    # A thread has 16 elements of a row: 4 vectors of f32, 2 of f16.
    assert extremes_and_sums.lower(x, target=target).ptx.count(instruction) == count


Take = Callable[[list[Any]], list[Any]]
TAKEN: list[tuple[Take, int]] = [
    (lambda lanes: lanes, 0),
    (lambda lanes: lanes[::-1], 4),
    (lambda lanes: [lanes[0], lanes[1], lanes[0], lanes[1]], 2),
]


@pytest.mark.parametrize(("take", "extracts"), TAKEN)
def test_lanes_are_taken_out_only_where_they_are_named(take: Take, extracts: int) -> None:
    module, builder = begin()
    lanes = builder.unpack(builder.load("<4 x float>", element(builder, "x", "<4 x float>"), 16))
    builder.store(builder.pack(take(lanes)), element(builder, "y", "<4 x float>"), 16)
    builder.ret()
    assert module.text().count("extractelement") == extracts
    assert "st.global.v4" in ptx_of(module)


def test_two_vectors_are_joined_without_taking_them_apart() -> None:
    module, builder = begin()
    place = element(builder, "x", "<2 x float>")
    lanes = [x for _ in range(2) for x in builder.unpack(builder.load("<2 x float>", place, 8))]
    builder.store(builder.pack(lanes), element(builder, "y", "<4 x float>"), 16)
    builder.ret()
    assert "extractelement" not in module.text()
    assert "st.global.v4" in ptx_of(module)


def test_a_number_is_repeated_without_an_instruction() -> None:
    _, builder = begin()
    two = constant("float", 2.0)
    assert builder.pack([two] * 4) == builder.splat(two, 4) == constant("<4 x float>", 2.0)
