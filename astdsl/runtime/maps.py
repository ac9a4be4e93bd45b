"""The fields of a tensor map, from the array that a launch passes.

Invariant: the emulator's maps and the driver's are made from the same fields.
Source: CUDA driver API, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from typing import NamedTuple

from astdsl.ir.launch import MapSlot
from astdsl.runtime.classes import Geometry, launch_strides

# The driver's element types by kernel dtype; types that it does not know are copied as bytes.
TENSOR_TYPES = {
    "f64": "F64", "f32": "F32", "tf32": "F32", "f16": "F16", "bf16": "BF16",
    "i64": "S64", "i32": "S32", "i16": "U16", "i8": "U8",
    "u64": "U64", "u32": "U32", "u16": "U16", "u8": "U8", "bool": "U8",
    "f8e4m3": "U8", "f8e5m2": "U8", "f8e8m0": "U8", "f4e2m1": "U8",
}  # fmt: skip


class MapFields(NamedTuple):
    """What cuTensorMapEncodeTiled takes besides the address; axes are listed fastest first."""

    type: str
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int


def map_fields(slot: MapSlot, geometry: Geometry) -> MapFields:
    """Return the fields of an array's map; the contiguous axis has no stride."""
    strides = launch_strides(geometry)
    return MapFields(
        TENSOR_TYPES[geometry.dtype.name],
        tuple(max(geometry.shape[axis], 1) for axis in slot.order),
        tuple(strides[axis] * geometry.dtype.bytes for axis in slot.order[1:]),
        slot.box,
        slot.swizzle_bytes,
    )
