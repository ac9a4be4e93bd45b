"""What the matrix units compute: exact widening of operands, products summed in float32.

Invariant: products are exact (float32, or float64 for integers) and sums are taken in one batched
`matmul` over all blocks, so the order within a product is NumPy's; the hardware's is unspecified.
Source: PTX ISA 9.7.15.5 (wgmma) and 9.7.16.10 (tcgen05.mma), "Semantics".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["ELEMENT_BYTES", "gather_operand", "multiply", "widen"]

ELEMENT_BYTES = {
    "f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1,
}  # fmt: skip
_BYTE_TYPES: dict[str, Any] = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
}
# tf32 keeps 10 bits of mantissa: the hardware ignores the low 13 bits of the register.
_TF32_MASK = np.uint32(0xFFFFE000)

Array = NDArray[Any]


@lru_cache(maxsize=8)
def _byte_table(name: str) -> Array:
    wide = np.float64 if name in ("s8", "u8") else np.float32
    return np.arange(256, dtype=np.uint8).view(_BYTE_TYPES[name]).astype(wide)


def widen(raw: Array, name: str) -> Array:
    """Return the values of an operand, exactly.

    `raw` is a uint8 array whose last axis is contiguous; the result has that axis shortened to
    elements: float32, float64 for the integer types.
    """
    if name in _BYTE_TYPES:
        return np.take(_byte_table(name), raw)
    if name == "f16":
        return raw.view(np.float16).astype(np.float32)
    if name == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name == "tf32":
        return (raw.view(np.uint32) & _TF32_MASK).view(np.float32)
    raise AssertionError(f"no matrix operand type {name}")


def gather_operand(
    chunks: Array, blocks: NDArray[np.intp] | slice, index: NDArray[np.intp], name: str
) -> Array:
    """Read an operand of every block: [n, outer, elements of the inner axis].

    `chunks` is shared memory as [blocks, 16-byte items], `index` from `operand_chunks`.
    """
    if isinstance(blocks, slice):
        raw = np.take(chunks[blocks], index, axis=1)
    else:
        raw = chunks[blocks[:, None, None], index]
    return widen(raw.view(np.uint8), name)


def multiply(a: Array, b: Array) -> Array:
    """Return A B^T for every block: [n, m, k] x [n, columns, k] -> [n, m, columns]."""
    return np.matmul(a, b.transpose(0, 2, 1))
