"""What tensor copies do to elements on their way: round, flush, and take padding out.

Elements of other types are copied as they are.  Invariant: a function takes the units of a copy, of
any width, and returns as many of the same type.
Source: PTX ISA 5.5.1 (elements are "rounded to nearest even") and 5.5.1.1 (sub-byte types).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from astdsl.emulator.formats.tensormap import TensorDataType
from astdsl.emulator.numerics import f32_to_tf32, flush
from astdsl.emulator.scalars import Array

__all__ = ["ROUNDED", "STORED", "Change"]

Change = Callable[[Array], Array]

_T = TensorDataType
_BITS = 6
_GROUP_BYTES = 16


def _of_floats(function: Change) -> Change:
    """Return a function of units that applies one of float32 values."""

    def change(units: Array) -> Array:
        values = np.ascontiguousarray(units).view(np.float32)
        return np.asarray(function(values), np.float32).view(units.dtype)

    return change


def _pack(units: Array) -> Array:
    """Return words whose first three of four hold the low six bits of their sixteen bytes."""
    groups = np.ascontiguousarray(units).view(np.uint8).reshape(len(units), -1, _GROUP_BYTES)
    bits = np.unpackbits(groups, axis=-1, bitorder="little").reshape(*groups.shape, 8)
    packed = np.zeros_like(groups)
    kept = bits[..., :_BITS].reshape(*groups.shape[:2], -1)
    packed[..., : kept.shape[-1] // 8] = np.packbits(kept, axis=-1, bitorder="little")
    return packed.reshape(len(units), -1).view(units.dtype)


ROUNDED: dict[TensorDataType, Change] = {
    _T.F32_FTZ: _of_floats(flush),
    _T.TF32: _of_floats(f32_to_tf32),
    _T.TF32_FTZ: _of_floats(lambda values: f32_to_tf32(flush(values))),
}
STORED: dict[TensorDataType, Change] = ROUNDED | {_T.U6_ALIGN16B: _pack}
