"""Element types, and which one two of them meet in.

Invariant: a `DType` is one of the rows below, compared by identity.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from astdsl.records import dataclass

FLOAT, INT, UINT, BOOL = "float", "int", "uint", "bool"


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type: `name`, `kind` (float, int, uint, bool), `bits` of storage.

    `numpy` is the NumPy type that the reference computes in (tf32 is stored as float32).
    """

    name: str
    kind: str
    bits: int
    numpy: np.dtype[Any]

    def __repr__(self) -> str:
        return self.name

    def __or__(self, other: DType | tuple[DType, ...]) -> tuple[DType, ...]:
        return (self, *other) if isinstance(other, tuple) else (self, other)

    def __ror__(self, other: tuple[DType, ...]) -> tuple[DType, ...]:
        return (*other, self)

    def __reduce__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        """Whether values are floating point."""
        return self.kind == FLOAT

    @property
    def is_integer(self) -> bool:
        """Whether values are signed or unsigned integers (bool is neither)."""
        return self.kind in (INT, UINT)

    @property
    def is_signed(self) -> bool:
        """Whether negative values exist."""
        return self.kind in (FLOAT, INT)

    @property
    def bytes(self) -> int:
        """Bytes of one element by itself; two of 4 bits share a byte only where they are packed."""
        return -(-self.bits // 8)


def _row(name: str, kind: str, bits: int, numpy: Any) -> DType:
    return DType(name, kind, bits, np.dtype(numpy))


f64 = _row("f64", FLOAT, 64, np.float64)
f32 = _row("f32", FLOAT, 32, np.float32)
tf32 = _row("tf32", FLOAT, 32, np.float32)
f16 = _row("f16", FLOAT, 16, np.float16)
bf16 = _row("bf16", FLOAT, 16, ml_dtypes.bfloat16)
f8e4m3 = _row("f8e4m3", FLOAT, 8, ml_dtypes.float8_e4m3fn)
f8e5m2 = _row("f8e5m2", FLOAT, 8, ml_dtypes.float8_e5m2)
f8e8m0 = _row("f8e8m0", FLOAT, 8, ml_dtypes.float8_e8m0fnu)
f4e2m1 = _row("f4e2m1", FLOAT, 4, ml_dtypes.float4_e2m1fn)
i64 = _row("i64", INT, 64, np.int64)
i32 = _row("i32", INT, 32, np.int32)
i16 = _row("i16", INT, 16, np.int16)
i8 = _row("i8", INT, 8, np.int8)
u64 = _row("u64", UINT, 64, np.uint64)
u32 = _row("u32", UINT, 32, np.uint32)
u16 = _row("u16", UINT, 16, np.uint16)
u8 = _row("u8", UINT, 8, np.uint8)
boolean = _row("bool", BOOL, 8, np.bool_)

ALL = (
    f64, f32, tf32, f16, bf16, f8e4m3, f8e5m2, f8e8m0, f4e2m1,
    i64, i32, i16, i8, u64, u32, u16, u8, boolean,
)  # fmt: skip
BY_NAME = {d.name: d for d in ALL}
BY_NUMPY = {d.numpy: d for d in ALL if d is not tf32}
BY_PYTHON: dict[type, DType] = {bool: boolean, int: i32, float: f32}


def named_dtype(x: object) -> DType | None:
    """Return the dtype that `x` names, one of ours, NumPy's or Python's; None for anything else."""
    if isinstance(x, DType):
        return x
    if isinstance(x, type) and x in BY_PYTHON:
        return BY_PYTHON[x]
    if isinstance(x, np.dtype) or (isinstance(x, type) and issubclass(x, np.generic)):
        return BY_NUMPY.get(np.dtype(x))
    return None


def promote(a: DType, b: DType) -> DType | None:
    """Return the dtype in which `a` and `b` meet, None where they do not.

    NumPy's rule within a kind; an integer or bool beside a float takes the float's dtype; types
    that no third one holds (f16 with bf16 is f32; any two 8-bit floats) meet in f32.
    """
    if a is b:
        return a
    if BOOL in (a.kind, b.kind):
        return b if a.kind == BOOL else a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    return _promote_floats(a, b) if a.is_float else _promote_integers(a, b)


def _promote_floats(a: DType, b: DType) -> DType | None:
    if f8e8m0 in (a, b) or f4e2m1 in (a, b):
        return None
    if f64 in (a, b):
        return f64
    if f32 in (a, b) or tf32 in (a, b) or a.bits == b.bits:
        return f32
    return a if a.bits > b.bits else b


def _promote_integers(a: DType, b: DType) -> DType | None:
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == INT else (b, a)
    bits = max(signed.bits, 2 * unsigned.bits)
    # NumPy goes to float64 for i64 with u64; f64 never appears uninvited here.
    return BY_NAME[f"i{bits}"] if bits <= i64.bits else None


def smallest_value(dtype: DType) -> float | int | bool:
    """Return the least value of a dtype: the identity of `maximum`."""
    return _extreme(dtype, largest=False)


def largest_value(dtype: DType) -> float | int | bool:
    """Return the greatest value of a dtype: the identity of `minimum`."""
    return _extreme(dtype, largest=True)


def _extreme(dtype: DType, *, largest: bool) -> float | int | bool:
    if dtype.kind == BOOL:
        return largest
    if dtype is f8e8m0:  # powers of two: it holds neither a sign nor an infinity
        return 2.0 ** (127 if largest else -127)
    if dtype.is_float:
        return float("inf") if largest else float("-inf")
    info = np.iinfo(dtype.numpy)
    return int(info.max if largest else info.min)
