"""The types of IR values.

Invariant: types are immutable and compared by value; a scalar is a tile of shape `()`.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from astdsl.ir.dtypes import DType, boolean, i64
from astdsl.records import dataclass

GMEM, SMEM, TMEM = "gmem", "smem", "tmem"
# What a tensor map describes (CUDA driver API, cuTensorMapEncodeTiled).
TMA_ALIGN_BYTES = 16
TMA_MAX_RANK = 5


def _dims(shape: tuple[int | None, ...]) -> str:
    return "x".join("?" if d is None else str(d) for d in shape)


@dataclass(frozen=True, slots=True)
class TileType:
    """A value of static shape; `()` is a scalar."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.name}{f'[{_dims(self.shape)}]' if self.shape else ''}"


@dataclass(frozen=True, slots=True)
class RefType:
    """Memory: `shape` (None for a runtime dim), `dtype`, `space` (gmem, smem, tmem).

    Of global memory the argument's class is part of the type: `strides` in elements (None where
    known only at run time), whether TMA can describe it (`tma`), the alignment of its base in
    bytes, whether every offset fits 32 bits (`small`), and whether it has no elements (`empty`).
    """

    shape: tuple[int | None, ...]
    dtype: DType
    space: str
    strides: tuple[int | None, ...] = ()
    tma: bool = False
    align_bytes: int = 1
    small: bool = False
    empty: bool = False

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.space}<{self.dtype.name}[{_dims(self.shape)}]{self._class_text()}>"

    def _class_text(self) -> str:
        if self.space != GMEM:
            return ""
        flags = [f" {name}" for name in ("tma", "small", "empty") if getattr(self, name)]
        return f" strides={_dims(self.strides)} align={self.align_bytes}{''.join(flags)}"


@dataclass(frozen=True, slots=True)
class BarrierType:
    """An array of `count` mbarriers, each completed by `arrivals` arrivals."""

    count: int
    arrivals: int

    def __str__(self) -> str:
        return f"barrier<{self.count} arrivals={self.arrivals}>"


@dataclass(frozen=True, slots=True)
class CounterType:
    """A number that a block counts up, never reset: the step number of a ring."""

    def __str__(self) -> str:
        return "counter"


@dataclass(frozen=True, slots=True)
class AccumulatorType:
    """An accumulator of the tensor core, written by products in flight (registers or TMEM)."""

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"acc<{self.dtype.name}[{_dims(self.shape)}]>"


Type: TypeAlias = TileType | RefType | BarrierType | CounterType | AccumulatorType

INDEX = TileType((), i64)
CONDITION = TileType((), boolean)


def scalar(dtype: DType) -> TileType:
    """Return the type of one element."""
    return TileType((), dtype)
