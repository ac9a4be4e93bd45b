"""Tensor memory by hand: what is refused while tracing, with a way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from astdsl import (
    SMEM,
    TMEM,
    Barrier,
    KernelError,
    Layout,
    TMEMLayout,
    async_load_tmem,
    async_store_tmem,
    ds,
    f8e4m3,
    f16,
    f32,
    i32,
    tcgen05_commit_arrive,
    tcgen05_mma,
    zeros,
)
from astdsl.ir import ops
from tests.lang.harness import a_trace


def smem(*shape: int) -> Any:
    return SMEM(shape, f16)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "other rows": (lambda: TMEM((96, 64)), "has 64 or 128 rows, and columns, got (96, 64)"),
    "three axes": (lambda: TMEM((2, 128, 64)), "has 64 or 128 rows"),
    "too many columns": (lambda: TMEM((128, 1024)), "takes 1024 columns, 512 is all"),
    "odd columns": (lambda: TMEM((64, 12)), "a multiple of 8 columns, got 12"),
    "f32 packed": (lambda: TMEM((128, 64), f32, packed=True), "of f32, packed, is not"),
    "another dtype": (lambda: TMEM((128, 64), f8e4m3), "of f8e4m3 is not in this version"),
    "packed as a number": (lambda: TMEM((128, 64), f16, packed=1), "is True or False, got 1"),
    "collective": (lambda: TMEM((128, 64), collective=True), "collective=)` is not in this"),
    "of two blocks": (
        lambda: TMEM((64, 64), layout=TMEMLayout.M64_COLLECTIVE),
        "of accumulators of 64 rows of two blocks is not in this version",
    ),
    "of metadata": (
        lambda: TMEM((64, 64), layout=TMEMLayout.SPARSE_METADATA),
        "of sparse metadata is not in this version",
    ),
    "a layout of registers": (
        lambda: TMEM((128, 64), layout=Layout.TCGEN05),
        "is one of `TMEMLayout`, got Layout.TCGEN05",
    ),
    "read as a ref": (lambda: TMEM((128, 64))[...], "is tensor memory, which is not indexed"),
    "written as a ref": (lambda: TMEM((128, 64)).__setitem__(..., 0), "is not indexed"),
    "a load of a tile": (lambda: async_load_tmem(zeros((128, 64))), "is in tensor memory, got"),
    "a load of some rows": (lambda: async_load_tmem(TMEM((128, 64)).at[0:32]), "of all rows"),
    "a load with steps": (lambda: async_load_tmem(TMEM((128, 64)).at[:, ::2]), "of all rows"),
    "a load inside of a cell": (
        lambda: async_load_tmem(TMEM((128, 64), f16, packed=True).at[:, 1:33]),
        "begins at a multiple of 2",
    ),
    "a sum": (lambda: async_load_tmem(TMEM((128, 64)), reduce="sum"), 'is "min" or "max", got'),
    "a list": (lambda: async_load_tmem(TMEM((128, 64)), reduce=3), 'is "min" or "max", got 3'),
    "no layout": (lambda: async_load_tmem(TMEM((128, 64)), layout=1), "got 1"),
    "a store of another shape": (
        lambda: async_store_tmem(TMEM((128, 64)), zeros((64, 64))),
        "(64, 64)",
    ),
    "acc in shared memory": (
        lambda: tcgen05_mma(SMEM((128, 64), f32), smem(128, 64), smem(64, 64)),
        "`acc` of `tcgen05_mma` is in tensor memory, got smem memory",
    ),
    "b in tensor memory": (
        lambda: tcgen05_mma(TMEM((128, 64)), smem(128, 64), TMEM((128, 64), f16, packed=True)),
        "`b` of `tcgen05_mma` is in shared memory, got tmem memory",
    ),
    "a not packed": (
        lambda: tcgen05_mma(TMEM((128, 64)), TMEM((128, 64), f16), smem(64, 64)),
        "is packed where it is in tensor memory",
    ),
    "other extents": (
        lambda: tcgen05_mma(TMEM((128, 64)), smem(128, 32), smem(64, 64)),
        "adds (m, k) @ (k, n) to (m, n)",
    ),
    "eight columns of 128 rows": (
        lambda: tcgen05_mma(TMEM((128, 8)), smem(128, 64), smem(64, 8)),
        "of 128 rows has a multiple of 16 columns, got 8",
    ),
    "another kind": (
        lambda: tcgen05_mma(TMEM((128, 64), i32), smem(128, 64), smem(64, 64)),
        "sums f16 @ f16 in f32 or f16, and `acc` is of i32",
    ),
    "a barrier that does not order": (
        lambda: tcgen05_mma(TMEM((128, 64)), smem(128, 64), smem(64, 64), Barrier()),
        "does not order the tensor core",
    ),
    "no barrier": (lambda: tcgen05_commit_arrive(3), "`barrier` of `tcgen05_commit_arrive` is a"),
    "scales": (
        lambda: tcgen05_mma(TMEM((128, 64)), smem(128, 64), smem(64, 64), a_scale=1),
        "`a_scale` of `tcgen05_mma` is tensor memory for scales, got 1",
    ),
    "an order that is no bool": (
        lambda: Barrier(orders_tensor_core=2),
        "`orders_tensor_core` of `Barrier` is True or False, got 2",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_is_refused_with_a_way_out(what: str) -> None:
    call, message = WRONG[what]
    with a_trace(), pytest.raises(KernelError) as caught:
        call()
    assert message in str(caught.value)
    assert caught.value.help


def test_a_product_with_a_barrier_is_committed_to_it() -> None:
    with a_trace() as (trace,):
        done = Barrier(orders_tensor_core=True)
        tcgen05_mma(TMEM((128, 64)), smem(128, 64), smem(64, 64), done)
        kinds = [type(op) for op in trace.builder.finish().ops]
    assert [k for k in kinds if k in (ops.TensorMultiply, ops.TensorCommit)] == [
        ops.TensorMultiply,
        ops.TensorCommit,
    ]


def test_a_part_of_tensor_memory_is_columns() -> None:
    with a_trace():
        part = TMEM((128, 64)).at[:, ds(32, 16)]
        assert part.shape == (128, 16)
        assert async_load_tmem(part).shape == (128, 16)
