"""On sm_100a what is computed from a product is multiplied from its place in tensor memory."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl import In, Out, cdiv, erf, f32, kernel, maximum, pipeline, spec, tile, unroll, zeros
from astdsl.stdlib.attention import attention
from tests.witnesses import agree

# D and A are addresses in tensor memory.
FROM_TENSOR_MEMORY = re.compile(r"tcgen05\.mma\S* \[%r\d+\], \[%r\d+\]")


@kernel
def twice(a: In["M K"], b: In["K N"], c: In["N P"], o: Out[f32, "M P"], *, bm=128):
    M, _ = a.shape
    with pipeline(cdiv(M, bm)) as i:
        rows = maximum(a[tile(i, bm), :] @ b[...], 0)
        o[tile(i, bm), :] = rows.astype(a.dtype) @ c[...]


@kernel
def by_two(a: In["M K"], b: In["K N"], c: In["N P"], o: Out[f32, "M P"]):
    o[...] = erf(a[...] @ b[...]).astype(a.dtype) @ c[...]


@kernel
def in_steps(a: In["M K"], b: In["K N"], c: In["N P"], o: Out[f32, "M P"], *, decay=0.5, bn=32):
    bm, (M, _) = 128, a.shape
    N, P = c.shape
    with pipeline(cdiv(M, bm)) as i:
        rows, total = a[tile(i, bm), :], zeros((bm, P), f32)
        with pipeline(cdiv(N, bn), stages=2) as j:
            part = maximum(rows @ b[:, tile(j, bn)], 0)
            total = total if decay == 1 else total * decay
            total += part.astype(a.dtype) @ c[tile(j, bn), :]
        o[tile(i, bm), :] = total


@kernel
def turned(a: In["M K"], b: In["K N"], c: In["M P"], o: Out[f32, "N P"]):
    o[...] = (a[...] @ b[...]).astype(a.dtype).T @ c[...]


@kernel
def after_many_steps(a: In["M K"], b: In["K N"], o: Out[f32, "M N"], *, n=600):
    rows = a[...]
    for _ in unroll(range(n)):
        rows = rows * rows + rows
    o[...] = rows @ b[...]


def whole(dtype: Any, *shapes: tuple[int, int]) -> tuple[Any, ...]:
    """Return small whole numbers: their products add exactly, and fit 8 bits of a mantissa."""
    rng = np.random.default_rng(3)
    return tuple(rng.integers(-1, 2, shape).astype(dtype) for shape in shapes)


def operands(dtype: Any, m: int, n: int = 64) -> tuple[Any, ...]:
    return whole(dtype, (m, 32), (32, n), (n, 32))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("m", "constants"), [(128, {}), (300, {}), (256, {"bm": 256})])
def test_a_computed_operand_takes_the_place_of_the_product(
    dtype: Any, m: int, constants: dict[str, Any]
) -> None:
    arguments = operands(dtype, m)
    a, b, c = (np.asarray(x, np.float32) for x in arguments)
    found = agree(twice, lambda: arguments, **constants)
    np.testing.assert_array_equal(found, np.maximum(a @ b, 0) @ c)
    lowered = twice.lower(*arguments, target="sm_100a", **constants)
    assert FROM_TENSOR_MEMORY.search(lowered.ptx)
    assert "operand of @" not in lowered.explain()


def test_several_warpgroups_each_write_some_of_its_columns() -> None:
    arguments = operands(np.float16, 128, 128)
    agree(by_two, lambda: arguments, tolerance=1e-2)
    ptx = by_two.lower(*arguments, target="sm_100a").ptx
    assert ".maxntid 256" in ptx
    assert FROM_TENSOR_MEMORY.search(ptx)


@pytest.mark.parametrize("m", [128, 200])
def test_its_columns_are_free_again_in_the_next_step(m: int) -> None:
    arguments = operands(np.float16, m, 128)
    agree(in_steps, lambda: arguments)
    lowered = in_steps.lower(*arguments, target="sm_100a")
    assert FROM_TENSOR_MEMORY.search(lowered.ptx)
    assert "tensor memory: 64 columns" in lowered.explain()


OTHERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "64 rows are 16 lanes of each warp": (twice, operands(np.float16, 64), {"bm": 64}),
    "a sum's products are in flight": (in_steps, operands(np.float16, 128), {"decay": 1}),
    "its rows would be lanes": (turned, whole(np.float16, (128, 32), (32, 128), (128, 32)), {}),
    "the threads multiply f32": (
        twice, whole(np.float32, (128, 32), (32, 64), (64, 32)), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", OTHERS)
def test_other_operands_go_through_shared_memory(why: str) -> None:
    made, arguments, constants = OTHERS[why]
    agree(made, lambda: arguments, **constants)
    lowered = made.lower(*arguments, target="sm_100a", **constants)
    assert not FROM_TENSOR_MEMORY.search(lowered.ptx)


def test_an_operand_of_many_steps_is_traced_back_once() -> None:
    arguments = spec((128, 64), np.float16), spec((64, 64), np.float16)
    lowered = after_many_steps.lower(*arguments, target="sm_100a")
    assert "operand of @" in lowered.schedule


def test_the_weights_of_attention_stay_in_tensor_memory() -> None:
    heads = spec((1, 2, 256, 64), np.float16)
    lowered = attention.lower(heads, heads, heads, target="sm_100a", bq=128)
    assert len(FROM_TENSOR_MEMORY.findall(lowered.ptx)) == 64 // 16
    assert "operand of @" not in lowered.explain()
    assert "tensor memory: 128 columns" in lowered.explain()
