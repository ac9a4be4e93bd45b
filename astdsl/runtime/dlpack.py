"""Reading a DLPack capsule: NumPy's own reader knows neither bf16 nor the 8-bit floats.

Invariant: the capsule is never consumed; whoever holds `owner` keeps the memory, and the
capsule's destructor gives it back.
Source: DLPack 1.1, dlpack.h.
"""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

from astdsl.ir.dtypes import (
    DType,
    bf16,
    boolean,
    f8e4m3,
    f8e5m2,
    f8e8m0,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from astdsl.records import dataclass

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
# Memory that code on the host reads; the rest of what is known is on a GPU.
ON_HOST = (CPU, CUDA_HOST)
DEVICE_NAMES = {4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI", 15: "WebGPU"}
READ_ONLY = 1

# (DLDataTypeCode, bits) -> the kernel's dtype.
DTYPES: dict[tuple[int, int], DType] = {
    (0, 8): i8, (0, 16): i16, (0, 32): i32, (0, 64): i64,
    (1, 8): u8, (1, 16): u16, (1, 32): u32, (1, 64): u64,
    (2, 16): f16, (2, 32): f32, (2, 64): f64, (4, 16): bf16, (6, 8): boolean,
    (10, 8): f8e4m3, (12, 8): f8e5m2, (14, 8): f8e8m0,
}  # fmt: skip


class NotReadable(Exception):
    """The array lives on another kind of device, which the message names."""


class NotExported(Exception):
    """The array's library refused, or exported what no kernel type describes."""


class _Tensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a capsule says of an array; strides in elements; `device` is a GPU's number."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    writeable: bool
    owner: object
    device: int | None = None


def read(value: Any) -> Tensor:
    """Read an array's DLPack capsule. Raises NotReadable and NotExported."""
    if hasattr(value, "__dlpack_device__"):
        _require_readable(int(value.__dlpack_device__()[0]))
    capsule = _export(value)
    tensor, flags = _open(capsule)
    _require_readable(tensor.device_type)
    dtype = DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        kind = f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise NotExported(f"no kernel type holds its elements ({kind})")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else _row_major(shape)
    address = (tensor.data or 0) + tensor.byte_offset
    device = None if tensor.device_type in ON_HOST else int(tensor.device_id)
    writeable = not flags & READ_ONLY
    return Tensor(address, shape, strides, dtype, writeable, (capsule, value), device)


def _require_readable(device: int) -> None:
    if device not in (*ON_HOST, CUDA, CUDA_MANAGED):
        raise NotReadable(DEVICE_NAMES.get(device, f"DLPack device {device}"))


def _export(value: Any) -> Any:
    try:
        return value.__dlpack__(max_version=(1, 1))
    except TypeError:
        pass  # libraries from before DLPack 1.0 take no version
    except (BufferError, RuntimeError, ValueError) as error:
        raise NotExported(str(error)) from None
    try:
        return value.__dlpack__()
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise NotExported(str(error)) from None


def _open(capsule: Any) -> tuple[_Tensor, int]:
    if _is_named(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise NotExported(f"its DLPack version is {versioned.major}.{versioned.minor}")
        return versioned.tensor, versioned.flags
    if _is_named(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer(capsule, b"dltensor")), 0
    raise NotExported("`__dlpack__` returned no DLPack capsule")


def _is_named(capsule: Any, name: bytes) -> bool:
    is_valid = ctypes.pythonapi.PyCapsule_IsValid
    is_valid.restype, is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
    return bool(is_valid(capsule, name))


def _pointer(capsule: Any, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, name))


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
