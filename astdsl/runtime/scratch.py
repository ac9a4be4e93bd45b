"""Scratch of a call: global memory that its launches share, unwritten at first.

Invariant: as `ir.launch.Scratch` promises, rows are padded to 16 bytes and the base is aligned, so
that TMA can describe every scratch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from astdsl.errors import DeviceError
from astdsl.ir.core import SCRATCH
from astdsl.ir.launch import Scratch
from astdsl.ir.types import TMA_ALIGN_BYTES
from astdsl.runtime.arrays import Where
from astdsl.runtime.classes import Geometry
from astdsl.runtime.launch import Argument

# The position of scratch among a call's objects: it is none of them.
NOT_PASSED = -1


def scratch_argument(scratch: Scratch, shape: tuple[int, ...]) -> Argument:
    """Return scratch of some shape as one more argument of the kernel."""
    unit = max(1, TMA_ALIGN_BYTES // scratch.dtype.bytes)
    geometry = Geometry(shape, _padded_strides(shape, unit), scratch.dtype, TMA_ALIGN_BYTES)
    where = Where(scratch.name, scratch.span)
    return Argument(where, NOT_PASSED, SCRATCH, scratch.dtype, geometry)


def _padded_strides(shape: tuple[int, ...], unit: int) -> tuple[int, ...]:
    """Return row-major strides in elements, rows padded to a multiple of `unit`."""
    strides, step = [], 1
    for extent in reversed(_stored(shape)):
        strides.append(step)
        step *= extent if len(strides) > 1 else -(-extent // unit) * unit
    return tuple(reversed(strides))


def _stored(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the extents that take memory: a tensor map has no axis without elements."""
    return tuple(max(extent, 1) for extent in shape)


def scratch_array(argument: Argument) -> np.ndarray[Any, Any]:
    """Allocate the memory of scratch as a NumPy array with its padded strides."""
    geometry = argument.geometry
    assert geometry is not None, "scratch is an array"
    shape, item = _stored(geometry.shape), geometry.dtype.bytes
    try:
        memory = np.empty(scratch_reach_bytes(argument) // item, geometry.dtype.numpy)
    except (MemoryError, ValueError):  # more than there is, or than NumPy counts
        raise DeviceError(
            f"this machine has no memory for `GMEM` of {geometry.shape}",
            (argument.where.span, ""),
            help="allocate less, or go through it in parts",
        ) from None
    strides = tuple(stride * item for stride in geometry.strides)
    return np.ndarray(shape, memory.dtype, memory, strides=strides)


def scratch_reach_bytes(argument: Argument) -> int:
    """Return the bytes that scratch takes."""
    geometry = argument.geometry
    assert geometry is not None, "scratch is an array"
    ends = zip(_stored(geometry.shape), geometry.strides, strict=True)
    return (1 + sum((extent - 1) * stride for extent, stride in ends)) * geometry.dtype.bytes
