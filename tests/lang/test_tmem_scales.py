"""What is refused of scales in tensor memory, and of products by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from astdsl import (
    SMEM,
    TMEM,
    TMEMLayout,
    async_copy_scales_to_tmem,
    async_load_tmem,
    ds,
    tcgen05_mma,
)
from astdsl.errors import KernelError
from astdsl.ir import ops
from astdsl.ir.dtypes import f4e2m1, f8e4m3, f8e5m2, f8e8m0, f16, f32
from tests.lang.harness import a_trace


def scales(rows: int, count: int, dtype: Any = f8e8m0) -> Any:
    return TMEM((rows, count), dtype, layout=TMEMLayout.SCALES)


def multiply(**changes: Any) -> None:
    """Start a product that is right but for what is changed."""
    given: dict[str, Any] = {
        "acc": TMEM((128, 64), f32),
        "a": SMEM((128, 128), f8e4m3),
        "b": SMEM((64, 128), f8e5m2).T,
        "a_scale": scales(128, 4),
        "b_scale": scales(64, 4),
    }
    given |= changes
    tcgen05_mma(given["acc"], given["a"], given["b"], a_scale=given["a_scale"],
                b_scale=given["b_scale"])  # fmt: skip


def copy(source: Any, target: Any = None) -> None:
    async_copy_scales_to_tmem(source, scales(128, 8) if target is None else target)


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "another layout": (
        lambda: TMEM((128, 4), f8e8m0, layout=TMEMLayout.SPARSE_METADATA),
        "`TMEM` of sparse metadata is not in this version",
    ),
    "scales of f16": (lambda: scales(128, 4, f16), "is of f8e8m0 or f8e4m3, got f16"),
    "a row of scales": (
        lambda: TMEM((128,), f8e8m0, layout=TMEMLayout.SCALES),
        "has rows, and scales along k",
    ),
    "loading scales": (lambda: async_load_tmem(scales(128, 4)), "is no memory for scales"),
    "a tile as image": (lambda: copy(3), "`src` of .* is in shared memory, got 3"),
    "another image": (
        lambda: copy(SMEM((1, 1, 32, 16), f8e8m0)),
        r"is the image \(1, 2, 32, 16\) of \(128, 8\) scales",
    ),
    "a part of an image": (
        lambda: copy(SMEM((2, 2, 32, 16), f8e8m0).at[0:1]),
        r"is the image \(1, 2, 32, 16\)",
    ),
    "an image of another dtype": (
        lambda: copy(SMEM((1, 2, 32, 16), f8e4m3)),
        "copies without converting",
    ),
    "a copy to an accumulator": (
        lambda: copy(SMEM((1, 2, 32, 16), f8e8m0), TMEM((128, 64), f32)),
        "`dst` of .* is tensor memory for scales",
    ),
    "a part of scales": (
        lambda: multiply(a_scale=scales(128, 8).at[:, ds(0, 4)]),
        "`a_scale` of `tcgen05_mma` is a whole buffer of scales",
    ),
    "one side": (lambda: multiply(b_scale=None), "`b_scale` of `tcgen05_mma` is tensor memory"),
    "64 rows": (
        lambda: multiply(acc=TMEM((64, 64), f32), a=SMEM((64, 128), f8e4m3)),
        r"adds \(128, k\) @ \(k, n\) to \(128, n\)",
    ),
    "sums in f16": (lambda: multiply(acc=TMEM((128, 64), f16)), "sums scaled products in f32"),
    "operands of 16 bits": (
        lambda: multiply(a=SMEM((128, 128), f16), b=SMEM((128, 64), f16)),
        "is not in this version",
    ),
    "4 bits by 8": (lambda: multiply(a=SMEM((128, 128), f4e2m1)), "is not in this version"),
    "blocks of 16 of 8 bits": (
        lambda: multiply(a_scale=scales(128, 8), b_scale=scales(64, 8)),
        "is not in this version",
    ),
    "scales of other rows": (
        lambda: multiply(b_scale=scales(128, 4)),
        r"takes scales of the shapes \(128, 4\) and \(64, 4\)",
    ),
    "half a byte": (
        lambda: multiply(a=SMEM((128, 130), f4e2m1).at[:, 1:129], b=SMEM((64, 128), f4e2m1).T),
        "is whole bytes of f4e2m1",
    ),
}


@pytest.mark.parametrize(("write", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_refused_with_a_way_out(write: Callable[[], object], said: str) -> None:
    with a_trace(), pytest.raises(KernelError, match=said) as caught:
        write()
    assert caught.value.help


def test_parts_of_packed_operands_count_bytes() -> None:
    with a_trace() as (trace,):
        multiply(a=SMEM((128, 256), f4e2m1).at[:, 128:256], b=SMEM((64, 128), f4e2m1).T)
        (made,) = [
            op for op in trace.builder.current.ops if isinstance(op, ops.ScaledTensorMultiply)
        ]
    assert (made.packed, made.block, made.a_window) == (True, 32, ((0, 128), (64, 64)))
