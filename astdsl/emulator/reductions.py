"""What bulk reductions do to the elements of global memory.

Invariant: every function takes (old, new) arrays of one dtype; half types are combined in float32
and rounded once.  Source: PTX ISA 9.7.9.25.4.2 (cp.reduce.async.bulk), 9.7.9.25.5.3 (tensor).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from astdsl.emulator.formats.tensormap import TensorDataType
from astdsl.emulator.rounded import ROUNDED, Change
from astdsl.emulator.scalars import Array

__all__ = ["BULK_TYPES", "OPERATIONS", "combiner", "map_dtype"]

Combine = Callable[[Array, Array], Array]

_T = TensorDataType
_BF16 = np.dtype(ml_dtypes.bfloat16)
_MAP_DTYPES: dict[TensorDataType, np.dtype[Any]] = {
    _T.U32: np.dtype(np.uint32), _T.S32: np.dtype(np.int32), _T.U64: np.dtype(np.uint64),
    _T.S64: np.dtype(np.int64), _T.F16: np.dtype(np.float16), _T.BF16: _BF16,
    _T.F32: np.dtype(np.float32), _T.F64: np.dtype(np.float64),
    **dict.fromkeys(ROUNDED, np.dtype(np.float32)),
}  # fmt: skip
BULK_TYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16), "bf16": _BF16, "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64), "u32": np.dtype(np.uint32), "s32": np.dtype(np.int32),
    "u64": np.dtype(np.uint64), "s64": np.dtype(np.int64), "b32": np.dtype(np.uint32),
    "b64": np.dtype(np.uint64),
}  # fmt: skip


def _increment(old: Array, new: Array) -> Array:
    raised: Array = np.where(old >= new, old.dtype.type(0), old + old.dtype.type(1))
    return raised


def _decrement(old: Array, new: Array) -> Array:
    lowered: Array = np.where((old == 0) | (old > new), new, old - old.dtype.type(1))
    return lowered


OPERATIONS: dict[str, Combine] = {
    "add": np.add, "min": np.fmin, "max": np.fmax, "inc": _increment, "dec": _decrement,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
_BITWISE = ("and", "or", "xor", "inc", "dec")


def map_dtype(dtype: TensorDataType, operation: str) -> np.dtype[Any] | None:
    """Return the elements of a tensor reduction, None where the operation has no such type."""
    found = _MAP_DTYPES.get(dtype)
    if found is None or (operation in _BITWISE and found.kind not in "ui"):
        return None
    return found


def combiner(operation: str, dtype: np.dtype[Any], change: Change | None = None) -> Combine:
    """Return what combines old and new elements of a dtype; `change` rounds them and the result."""
    function = OPERATIONS[operation]
    if change is not None:
        return lambda old, new: change(function(change(old), change(new)))
    if dtype not in (_BF16, np.dtype(np.float16)):
        return function
    return lambda old, new: function(old.astype(np.float32), new.astype(np.float32))
