"""PTX's fundamental and packed types as rows of data (PTX ISA 5.2).

Invariant: `TYPES[name].bits` is the width of the whole value, `element_bits` of one packed element;
bfloat16, tf32 and the 8-bit and narrower floats are carried as unsigned integers of their width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BoolArray = NDArray[np.bool_]

UNSIGNED: dict[int, np.dtype[Any]] = {
    8: np.dtype(np.uint8),
    16: np.dtype(np.uint16),
    32: np.dtype(np.uint32),
    64: np.dtype(np.uint64),
}
SIGNED: dict[int, np.dtype[Any]] = {
    8: np.dtype(np.int8),
    16: np.dtype(np.int16),
    32: np.dtype(np.int32),
    64: np.dtype(np.int64),
}
FLOATS: dict[int, np.dtype[Any]] = {
    16: np.dtype(np.float16),
    32: np.dtype(np.float32),
    64: np.dtype(np.float64),
}


@dataclass(frozen=True, slots=True)
class Scalar:
    """One PTX type: `kind` is one of u s b f bf tf pred; `count` elements are packed in `bits`."""

    name: str
    kind: str
    element_bits: int
    count: int
    dtype: np.dtype[Any]

    @property
    def bits(self) -> int:
        """Return the width of the whole value in bits (predicates: 1)."""
        return self.element_bits * self.count

    @property
    def bytes(self) -> int:
        """Return the size in memory in bytes."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Say whether the elements are floating-point numbers."""
        return self.kind in ("f", "bf", "tf")


def _rows() -> list[Scalar]:
    rows = [Scalar("pred", "pred", 1, 1, np.dtype(np.bool_))]
    for bits in (8, 16, 32, 64):
        rows.append(Scalar(f"b{bits}", "b", bits, 1, UNSIGNED[bits]))
        rows.append(Scalar(f"u{bits}", "u", bits, 1, UNSIGNED[bits]))
        rows.append(Scalar(f"s{bits}", "s", bits, 1, SIGNED[bits]))
    rows += [Scalar(f"f{bits}", "f", bits, 1, dtype) for bits, dtype in FLOATS.items()]
    rows += [
        Scalar("b128", "b", 64, 2, UNSIGNED[64]),
        Scalar("bf16", "bf", 16, 1, UNSIGNED[16]),
        Scalar("tf32", "tf", 32, 1, FLOATS[32]),
        Scalar("f16x2", "f", 16, 2, FLOATS[16]),
        Scalar("bf16x2", "bf", 16, 2, UNSIGNED[16]),
        Scalar("f32x2", "f", 32, 2, FLOATS[32]),
        Scalar("u16x2", "u", 16, 2, UNSIGNED[16]),
        Scalar("s16x2", "s", 16, 2, SIGNED[16]),
    ]
    return rows


TYPES: dict[str, Scalar] = {row.name: row for row in _rows()}


def one_a_lane(value: Any, n: int) -> Array:
    """Return a value as an array with one entry for each of `n` lanes (no copy)."""
    if isinstance(value, np.ndarray) and value.shape == (n,):
        return value
    return np.broadcast_to(value, n)


def any_of(mask: Any) -> bool:
    """Say whether an entry of a mask is true; `any()` takes three times as long for a short one."""
    return bool(np.count_nonzero(mask))


def first_of(mask: BoolArray, *values: Any) -> tuple[int, ...]:
    """Return the place of the first true entry of a mask, [n], and what values have there.

    The values are integers, one for all or one each.
    """
    at = int(np.argmax(mask))
    return at, *(int(np.broadcast_to(each, len(mask))[at]) for each in values)


def all_of(mask: Any) -> bool:
    """Say whether all entries of a mask are true; see `any_of`."""
    return bool(np.count_nonzero(mask) == mask.size)
