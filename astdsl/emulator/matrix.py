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

from astdsl.emulator.native import copies

__all__ = [
    "ELEMENT_BYTES", "INTEGERS", "PACKED", "accumulate", "contain", "multiply", "used_bytes",
    "widen",
]  # fmt: skip

ELEMENT_BYTES = {
    "f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1, "e2m1x2": 1,
    "e2m1": 1, "e2m3": 1, "e3m2": 1,
}  # fmt: skip
# Bits of what lies packed in shared memory, 16 elements in 16 bytes (PTX ISA 9.7.16.10.4.4), and in
# bytes of its own elsewhere.
PACKED = {"e2m1": 4, "e2m3": 6, "e3m2": 6}
_PACK = 16
INTEGERS = frozenset({"s8", "u8"})
_BYTE_TYPES: dict[str, Any] = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
    "ue4m3": ml_dtypes.float8_e4m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
}
# tf32 keeps 10 bits of mantissa: the hardware ignores the low 13 bits of the register.
_TF32_MASK = np.uint32(0xFFFFE000)

# OpenBLAS multiplies in one thread up to this many products (SMP_THRESHOLD_MIN, times four).
ONE_THREAD = 1 << 18

Array = NDArray[Any]


@lru_cache(maxsize=8)
def _byte_table(name: str) -> Array:
    wide = np.float64 if name in INTEGERS else np.float32
    bits = np.arange(256, dtype=np.uint8)
    if name == "ue4m3":
        bits &= np.uint8(0x7F)
    if name in PACKED:
        bits = bits >> np.uint8(_place(PACKED[name])) & np.uint8((1 << PACKED[name]) - 1)
    table: Array = bits.view(_BYTE_TYPES[name]).astype(wide)
    return table


def _place(bits: int) -> int:
    """Return where the element begins in its byte: 4 bits stand in the middle of it."""
    return 2 if bits == 4 else 0


def used_bytes(name: str) -> int:
    """Return how many of each 16 bytes of an operand of a type are not padding."""
    return _PACK * PACKED[name] // 8 if name in PACKED else _PACK


def contain(packed: Array, bits: int) -> Array:
    """Return rows [..., 16 n] bytes of 16 packed elements each as bytes (PTX ISA 9.7.16.9.1).

    The elements follow each other from the lowest bit on; the bytes behind them are padding.
    """
    rows = packed.reshape(*packed.shape[:-1], -1, _PACK)
    stream = np.unpackbits(rows, axis=-1, bitorder="little")[..., : _PACK * bits]
    elements = stream.reshape(*rows.shape, bits)
    weights = 1 << np.arange(bits, dtype=np.uint8)
    values: Array = (elements * weights).sum(axis=-1, dtype=np.uint8) << np.uint8(_place(bits))
    return values.astype(np.uint8).reshape(packed.shape)


@lru_cache(maxsize=1)
def _pair_table() -> Array:
    """Return the two e2m1 values of every byte, low nibble first."""
    bits = np.arange(256, dtype=np.uint8)
    pairs = np.stack([bits & 15, bits >> 4], axis=1).view(ml_dtypes.float4_e2m1fn)
    table: Array = pairs.astype(np.float32)
    return table


def widen(raw: Array, name: str) -> Array:
    """Return the values of an operand, exactly.

    `raw` is a uint8 array whose last axis is contiguous; the result has that axis shortened to
    elements: float32, float64 for the integer types.
    """
    if name in _BYTE_TYPES:
        return np.take(_byte_table(name), raw)
    if name == "e2m1x2":
        return _pair_table()[raw].reshape(*raw.shape[:-1], -1)
    if name == "f16":
        wide = copies.widen_f16(raw)
        return raw.view(np.float16).astype(np.float32) if wide is None else wide
    if name == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name == "tf32":
        return (raw.view(np.uint32) & _TF32_MASK).view(np.float32)
    raise AssertionError(f"no matrix operand type {name}")


def multiply(a: Array, b: Array, out: Array | None = None) -> Array:
    """Return A B^T for every block: [n, m, k] x [n, columns, k] -> [n, m, columns], `out` if given.

    In tiles that a BLAS does in one thread: its threads wait for each other in a loop, which costs
    a hundred times the product on a machine that has other work.
    """
    n, m, k = a.shape
    rows, columns = _tile(m, b.shape[1], k)
    product = np.empty((n, m, b.shape[1]), a.dtype) if out is None else out
    tiles = product.reshape(n, m // rows, rows, b.shape[1] // columns, columns)
    np.matmul(
        a.reshape(n, m // rows, 1, rows, k),
        b.reshape(n, 1, b.shape[1] // columns, columns, k).transpose(0, 1, 2, 4, 3),
        out=tiles.transpose(0, 1, 3, 2, 4),
    )
    return product


@lru_cache(maxsize=64)
def _tile(m: int, columns: int, k: int) -> tuple[int, int]:
    """Return the extents of tiles that have at most as much work as one thread gets."""
    while m * columns * k > ONE_THREAD:
        if m >= columns and m % 2 == 0:
            m //= 2
        elif columns % 2 == 0:
            columns //= 2
        else:
            break
    return m, columns


def accumulate(old: Array | None, product: Array, dtype: np.dtype[Any], saturate: bool) -> Array:
    """Return old + product in the accumulator's type: float32, float16 or int32.

    float16 is added in float32 and rounded once; int32 wraps, or saturates.
    """
    if dtype.kind == "f":
        total = product if old is None else old.astype(np.float32) + product
        return total.astype(dtype)
    whole = product.astype(np.int64)
    if old is not None:
        whole += old
    if saturate:
        limits = np.iinfo(np.int32)
        whole = np.clip(whole, limits.min, limits.max)
    return whole.astype(dtype)
