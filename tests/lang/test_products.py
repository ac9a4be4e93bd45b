"""Accumulators and products by hand: what is refused while tracing, with a way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from astdsl import (
    ACC,
    GMEM,
    SMEM,
    KernelError,
    WGMMAAccumulatorRef,
    bf16,
    f16,
    f32,
    i32,
    wgmma,
    wgmma_accumulator_load,
    wgmma_wait,
    zeros,
)
from astdsl.ir import ops
from tests.lang.harness import a_trace

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "one axis": (lambda: ACC((64,)), "has two axes, rows and columns, got (64,)"),
    "odd rows": (lambda: ACC((48, 64)), "a multiple of 64 rows and of 8 columns, got 48 and 64"),
    "odd columns": (lambda: ACC((64, 4)), "got 64 and 4"),
    "another sum": (lambda: ACC((64, 64), bf16), "is of f32 or f16 or i32, got bf16"),
    "no accumulator": (
        lambda: wgmma(zeros((64, 64)), smem(64, 64), smem(64, 64)),
        "`acc` of `wgmma` is an accumulator",
    ),
    "b as a tile": (
        lambda: wgmma(ACC((64, 64)), smem(64, 64), zeros((64, 64), f16)),
        "`b` of `wgmma` is in shared memory, got",
    ),
    "b in global memory": (
        lambda: wgmma(ACC((64, 64)), smem(64, 64), GMEM((64, 64), f16)),
        "got gmem memory",
    ),
    "a ring": (lambda: wgmma(ACC((64, 64)), smem(2, 64, 64), smem(64, 64)), "has two axes"),
    "other extents": (
        lambda: wgmma(ACC((64, 128)), smem(64, 64), smem(64, 64)),
        "adds (m, k) @ (k, n) to (m, n), got (64, 64) @ (64, 64) to (64, 128)",
    ),
    "a short k": (
        lambda: wgmma(ACC((64, 64)), smem(64, 8), smem(8, 64)),
        "contracts a multiple of 16 elements, got 8",
    ),
    "another dtype": (
        lambda: wgmma(ACC((64, 64)), SMEM((64, 64), i32), SMEM((64, 64), i32)),
        "`wgmma` of i32 @ i32 is not in this version",
    ),
    "a part with steps": (lambda: ACC((64, 64)).at[:, ::2], "constant ends and no steps"),
    "a part outside": (lambda: ACC((64, 64)).at[:, 32:96], "lie outside an accumulator's axis"),
    "a part of few rows": (lambda: ACC((128, 64)).at[32:96], "a part of an accumulator begins"),
    "an assignment": (lambda: ACC((64, 64)).__setitem__(..., 1), "is not assigned"),
    "an unknown attribute": (lambda: ACC((64, 64)).sum, "has no attribute `sum`"),
    "a negative wait": (lambda: wgmma_wait(-1), "a constant number of products from 0 on"),
    "a load of a tile": (lambda: wgmma_accumulator_load(zeros((64, 64))), "is an accumulator, got"),
}


def smem(*shape: int) -> Any:
    return SMEM(shape, f16)


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_is_refused_with_a_way_out(what: str) -> None:
    call, message = WRONG[what]
    with a_trace(), pytest.raises(KernelError) as caught:
        call()
    assert message in str(caught.value)
    assert caught.value.help


def test_an_accumulator_starts_with_zeros_and_is_read_after_a_wait() -> None:
    with a_trace() as (trace,):
        acc = ACC((64, 128))
        assert (acc.shape, acc.dtype, acc.ndim) == ((64, 128), f32, 2)
        assert acc[...].shape == (64, 128)
        kinds = [type(op) for op in trace.builder.finish().ops]
    assert kinds[:2] == [ops.Constant, ops.AllocAccumulator] or ops.AccumulatorWrite in kinds
    assert kinds[-2:] == [ops.ProductWait, ops.AccumulatorRead]


def test_a_part_of_a_part_is_a_part_of_the_whole() -> None:
    with a_trace():
        part = ACC((64, 128)).at[:, 32:128].at[:, 32:64]
        assert part.window == ((0, 64), (64, 32))
        assert part.shape == (64, 32)


def test_pallas_name_is_the_same() -> None:
    assert WGMMAAccumulatorRef is ACC
