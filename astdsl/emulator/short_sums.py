"""The sums of Hopper's FP8 products, which keep fewer bits than the float32 that holds them.

One instruction adds the 32 exact products of its K and the accumulator as the hardware does: all
are shifted to the largest exponent among them and cut below its 13th fraction bit, the sum is cut
to 13 fraction bits. Invariant: every intermediate is exact in float32.
Sources: DeepSeek-V3 technical report 3.5.2 (products are aligned to the largest exponent and keep
14 bits); PyTorch blog, "Some Matrix Multiplication Engines Are Not As Accurate As We Thought" (the
accumulator is e8m13, truncated). Only measurements tell: NVIDIA documents nothing.
"""

from __future__ import annotations

import numpy as np

from astdsl.emulator.matrix import multiply
from astdsl.emulator.scalars import Array

__all__ = ["FP8", "add_products"]

FP8 = frozenset({"e4m3", "e5m2"})
STEP = 32
FRACTION_BITS = 13
_LEAST_EXPONENT = {"e4m3": -6, "e5m2": -14}
# Float32 bits that hold sign, exponent and the fraction bits that are kept.
_KEPT = np.uint32(0xFFFFFFFF) << np.uint32(23 - FRACTION_BITS)
# An exponent below all others: that of a zero, which shifts nobody.
_NONE = np.int32(-400)


def add_products(old: Array, a: Array, b: Array, names: tuple[str, str]) -> Array:
    """Return old + A B^T in float32: [blocks, m, k] x [blocks, n, k], instruction by instruction.

    `old` is [blocks, m, n]; `names` are the types of A and B. NaN and infinity come out as of exact
    sums.
    """
    total = old.astype(np.float32)
    for first in range(0, a.shape[2], STEP):
        part = slice(first, first + STEP)
        total = _add_step(total, a[:, :, part], b[:, :, part], names)
    return total


def _add_step(old: Array, a: Array, b: Array, names: tuple[str, str]) -> Array:
    a_exponents, b_exponents = _exponents(a, names[0]), _exponents(b, names[1])
    # A product is not normalised: its exponent is the sum of those of its factors.
    largest = _exponents(old, None)
    for k in range(a.shape[2]):
        pair = a_exponents[:, :, None, k] + b_exponents[:, None, :, k]
        np.maximum(largest, pair, out=largest)
    largest[largest < _NONE // 2] = 0
    up = np.ldexp(np.float32(1), np.clip(FRACTION_BITS - largest, -126, 127))
    units = np.trunc(old * up)
    for k in range(a.shape[2]):
        product = a[:, :, None, k] * b[:, None, :, k]
        product *= up
        units += np.trunc(product, out=product)
    total = np.asarray(units / up)
    total = (total.view(np.uint32) & _KEPT).view(np.float32)
    exact = old + multiply(a, b)
    return np.where(np.isfinite(exact), total, exact)


def _exponents(values: Array, name: str | None) -> Array:
    """Return the exponents e of values in [2^e, 2^(e+1)); subnormals have the least of a type."""
    exponents = np.frexp(values)[1] - np.int32(1)
    if name is not None:
        np.maximum(exponents, np.int32(_LEAST_EXPONENT[name]), out=exponents)
    exponents[values == 0] = _NONE
    return exponents
