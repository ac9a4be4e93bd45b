"""The machine code of the library's kernels: nothing spilled, no message of the assembler."""

from __future__ import annotations

from typing import Any

import pytest

from astdsl import f16, f32, i8, i32, spec
from astdsl.stdlib import attention, elementwise, matmul, normalisation, softmax

TARGETS = ("sm_90a", "sm_100a")


def half(*shape: int) -> Any:
    return spec(shape, f16)


def single(*shape: int) -> Any:
    return spec(shape, f32)


def heads(d: int) -> Any:
    """Return queries, keys and values; two heads of queries share one of keys and values."""
    return half(2, 4, 1000, d), half(2, 2, 1000, d), half(2, 2, 1000, d)


def gradients(d: int) -> Any:
    q, k, v = heads(d)
    return q, k, v, q, single(2, 4, 1000), q


SQUARE = half(1000, 1000)
ROWS = single(1000, 1000)
ROW = single(1000)
PRODUCTS = [
    (attention.attention, heads(64), {}),
    (attention.attention, heads(64), {"causal": True}),
    (attention.attention, heads(128), {"bq": 128}),
    (attention.attention_backward, gradients(64), {"causal": True}),
    (matmul.matmul, (SQUARE, SQUARE, ROWS), {}),
    (matmul.matmul_dequantised, (SQUARE, spec((1000, 1000), i8), ROW, ROWS), {}),
]
# Nothing in these depends on the target.
OTHERS = [
    (matmul.quantise_rows, (ROWS,), {}),
    (matmul.matvec, (SQUARE, half(1000), ROW), {"parts": 4}),
    (softmax.softmax, (ROWS, ROWS), {}),
    (softmax.cross_entropy, (ROWS, spec((1000,), i32)), {}),
    (normalisation.layer_norm, (ROWS, ROW, ROW), {}),
    (normalisation.layer_norm_backward, (ROWS, ROW, ROW, ROW, ROWS), {}),
    (normalisation.rms_norm, (ROWS, ROW), {}),
    (elementwise.dropout, (ROWS, 7), {}),
    (elementwise.transpose, (ROWS,), {}),
    (elementwise.swiglu, (ROWS, ROWS), {}),
]
CASES = [(*case, target) for case in PRODUCTS for target in TARGETS]
CASES += [(*case, "sm_90a") for case in OTHERS]


def _name(part: Any) -> str | None:
    if isinstance(part, dict):
        return ",".join(f"{name}={value}" for name, value in part.items()) or "defaults"
    return getattr(part, "__name__", None)


@pytest.mark.parametrize(("kernel", "arguments", "constants", "target"), CASES, ids=_name)
def test_a_kernel_of_the_library_keeps_to_its_registers(
    kernel: Any, arguments: Any, constants: dict[str, Any], target: str
) -> None:
    resources = kernel.lower(*arguments, target=target, **constants).resources
    assert (resources.spill_bytes, resources.messages) == (0, ())
