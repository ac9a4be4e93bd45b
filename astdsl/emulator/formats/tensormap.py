"""The tensor map: every field of cuTensorMapEncodeTiled, checked, and 128 bytes of our own.

NVIDIA's 128-byte object is opaque, so the emulator stores all fields in an encoding of its own;
whatever copies those bytes (parameters, constants, global memory) carries the map along.
Invariant: a `TensorMap` that exists satisfies the driver's constraints, and
`TensorMap.from_bytes(m.to_bytes()) == m`.
Source: CUDA driver API, "Tensor Map Object Management", cuTensorMapEncodeTiled.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.swizzle import Swizzle, span_bytes

__all__ = [
    "LAYOUT",
    "MAGIC",
    "MAP_BYTES",
    "Interleave",
    "OutOfBounds",
    "TensorDataType",
    "TensorMap",
]

MAP_BYTES = 128
MAGIC = b"aMAP"
LAYOUT = struct.Struct("<4s6BxxQ5Q4Q5H5B")
_MAX_DIM = 1 << 32
_MAX_STRIDE_BYTES = 1 << 40
_MAX_BOX = 256
_MAX_ELEMENT_STRIDE = 8


class TensorDataType(IntEnum):
    """Name the element types by the driver's codes (CUtensorMapDataType)."""

    U8 = 0
    U16 = 1
    U32 = 2
    S32 = 3
    U64 = 4
    S64 = 5
    F16 = 6
    F32 = 7
    F64 = 8
    BF16 = 9
    F32_FTZ = 10
    TF32 = 11
    TF32_FTZ = 12
    U4_ALIGN8B = 13
    U4_ALIGN16B = 14
    U6_ALIGN16B = 15


class Interleave(IntEnum):
    """Name the interleaved layouts (CUtensorMapInterleave)."""

    NONE = 0
    B16 = 1
    B32 = 2


class OutOfBounds(IntEnum):
    """Name what elements outside the tensor read as (CUtensorMapFloatOOBfill)."""

    ZERO = 0
    NAN = 1


_T = TensorDataType
ELEMENT_BITS = {
    _T.U8: 8, _T.U16: 16, _T.U32: 32, _T.S32: 32, _T.U64: 64, _T.S64: 64, _T.F16: 16, _T.F32: 32,
    _T.F64: 64, _T.BF16: 16, _T.F32_FTZ: 32, _T.TF32: 32, _T.TF32_FTZ: 32,
    _T.U4_ALIGN8B: 4, _T.U4_ALIGN16B: 4, _T.U6_ALIGN16B: 6,
}  # fmt: skip
FLOAT_TYPES = frozenset({_T.F16, _T.F32, _T.F64, _T.BF16, _T.F32_FTZ, _T.TF32, _T.TF32_FTZ})
_DTYPES = {
    np.dtype(np.uint8): _T.U8, np.dtype(np.int8): _T.U8, np.dtype(np.uint16): _T.U16,
    np.dtype(np.int16): _T.U16, np.dtype(np.uint32): _T.U32, np.dtype(np.int32): _T.S32,
    np.dtype(np.uint64): _T.U64, np.dtype(np.int64): _T.S64, np.dtype(np.float16): _T.F16,
    np.dtype(np.float32): _T.F32, np.dtype(np.float64): _T.F64,
    np.dtype(ml_dtypes.bfloat16): _T.BF16, np.dtype(ml_dtypes.float8_e4m3fn): _T.U8,
    np.dtype(ml_dtypes.float8_e5m2): _T.U8,
}  # fmt: skip
_ENUMS: dict[str, type[IntEnum]] = {
    "dtype": TensorDataType, "interleave": Interleave, "swizzle": Swizzle,
    "out_of_bounds": OutOfBounds,
}  # fmt: skip
# Types of which 16 elements take 16 bytes of shared memory -> their words in global memory.
PADDED_WORDS = {_T.U4_ALIGN16B: 2, _T.U6_ALIGN16B: 3}
_PADDED_SWIZZLES = (Swizzle.NONE, Swizzle.B128, Swizzle.B128_ATOM_32B, Swizzle.B128_ATOM_64B)


@dataclass(frozen=True)
class TensorMap:
    """Describe a tensor in global memory and the box of it that one copy moves.

    Dimensions run fastest first.  `strides_bytes` has one entry fewer than `dims`: the innermost
    dimension is contiguous.  `box` counts elements of the tensor; with an element stride `s` a
    dimension of the box holds `ceil(box / s)` elements.  Raises `FormatError` where the driver
    would refuse.
    """

    dtype: TensorDataType
    address: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    interleave: Interleave = Interleave.NONE
    swizzle: Swizzle = Swizzle.NONE
    out_of_bounds: OutOfBounds = OutOfBounds.ZERO
    l2_promotion_bytes: int = 0
    # What the address points at, for a launch that must map it; no part of the 128 bytes.
    arrays: tuple[NDArray[Any], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_types(self)
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.dims))
        for check in _CHECKS:
            check(self)

    @classmethod
    def of(
        cls,
        array: NDArray[Any],
        box: Sequence[int],
        *,
        swizzle: Swizzle = Swizzle.NONE,
        out_of_bounds: OutOfBounds = OutOfBounds.ZERO,
        element_strides: Sequence[int] = (),
    ) -> TensorMap:
        """Describe a NumPy array; `box` and `element_strides` follow its axes, slowest first."""
        _require(isinstance(array, np.ndarray), f"it is of an array of NumPy, not {_kind(array)}")
        dtype = _DTYPES.get(array.dtype)
        if dtype is None:
            raise FormatError(f"tensor map: no type for arrays of {array.dtype}")
        if array.ndim and array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
            raise FormatError("tensor map: the last axis of the array must be contiguous")
        for name, extents in (("box", box), ("element_strides", element_strides)):
            _require_integers(name, extents)
        return cls(
            dtype, int(array.ctypes.data), array.shape[::-1], array.strides[-2::-1],
            tuple(box)[::-1], tuple(element_strides)[::-1], swizzle=swizzle,
            out_of_bounds=out_of_bounds, arrays=(array,),
        )  # fmt: skip

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return len(self.dims)

    @property
    def element_bits(self) -> int:
        """Return the bits of one element in global memory."""
        return ELEMENT_BITS[self.dtype]

    @property
    def element_bytes(self) -> int:
        """Return the bytes of one element; only whole bytes have one."""
        return self.element_bits // 8

    @cached_property
    def box_elements(self) -> tuple[int, ...]:
        """Return the elements that a copy moves along each dimension: ceil(box / stride)."""
        steps = self._steps()
        return tuple(-(-extent // step) for extent, step in zip(self.box, steps, strict=True))

    @cached_property
    def box_bytes(self) -> int:
        """Return the bytes of one box in global memory, which complete_tx counts."""
        return prod(self.box_elements) * self.element_bits // 8

    @cached_property
    def shared_bytes(self) -> int:
        """Return the bytes of shared memory that one box occupies."""
        return prod(self.box_elements) if self.dtype in PADDED_WORDS else self.box_bytes

    def _steps(self) -> tuple[int, ...]:
        """Return the element strides in force: dimension 0 has none without interleave."""
        if self.interleave is Interleave.NONE:
            return (1, *self.element_strides[1:])
        return self.element_strides

    @cached_property
    def whole(self) -> TensorMap:
        """Return the map of the same global memory, of elements that are whole bytes.

        Pairs of 4-bit elements are bytes; elements that are padded on their way, which come in
        128s, are words of 4 bytes. Source: PTX ISA 5.5.1.1, "Sub-byte types".
        """
        if self.element_bits >= 8:
            return self
        dtype = _T.U32 if self.dtype in PADDED_WORDS else _T.U8
        dims, box = (
            (extents[0] * self.element_bits // ELEMENT_BITS[dtype], *extents[1:])
            for extents in (self.dims, self.box)
        )
        return replace(self, dtype=dtype, dims=dims, box=box)

    def to_bytes(self) -> bytes:
        """Pack all fields into 128 bytes."""
        pad = (0,) * (5 - self.rank)
        packed = LAYOUT.pack(
            MAGIC, self.dtype, self.rank, self.interleave, self.swizzle, self.out_of_bounds,
            self.l2_promotion_bytes // 64, self.address, *self.dims, *pad,
            *self.strides_bytes, *pad, *self.box, *pad, *self.element_strides, *pad,
        )  # fmt: skip
        return packed.ljust(MAP_BYTES, b"\0")

    @classmethod
    def from_bytes(cls, raw: bytes) -> TensorMap:
        """Read 128 bytes that `to_bytes` made.  Raises `FormatError` on anything else."""
        is_raw = isinstance(raw, bytes | bytearray)
        if not is_raw or len(raw) != MAP_BYTES or raw[:4] != MAGIC:
            raise FormatError("these 128 bytes are not a tensor map")
        fields = LAYOUT.unpack_from(raw)
        _, dtype, rank, interleave, mode, out_of_bounds, promotion, address = fields[:8]
        dims, strides, box, steps = fields[8:13], fields[13:17], fields[17:22], fields[22:27]
        try:
            return cls(
                TensorDataType(dtype), address, dims[:rank], strides[: rank - 1], box[:rank],
                steps[:rank], Interleave(interleave), Swizzle(mode), OutOfBounds(out_of_bounds),
                promotion * 64,
            )  # fmt: skip
        except ValueError as error:
            raise FormatError(f"damaged tensor map: {error}") from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise FormatError(f"tensor map: {message}")


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _require_integers(name: str, values: object) -> None:
    """Refuse what is no list of integers."""
    is_list = isinstance(values, tuple | list | np.ndarray)
    _require(is_list, f"{name} is a list of integers, not {_kind(values)}")
    for each in np.asarray(values, object).reshape(-1).tolist():
        _require(_is_integer(each), f"{name} is a list of integers, which {_kind(each)} is not")


def _check_types(m: TensorMap) -> None:
    for name in ("dims", "strides_bytes", "box", "element_strides"):
        _require_integers(name, getattr(m, name))
    for name, kind in _ENUMS.items():
        value = getattr(m, name)
        _require(isinstance(value, kind), f"{name} is a {kind.__name__}, not {_kind(value)}")
    for name in ("address", "l2_promotion_bytes"):
        value = getattr(m, name)
        _require(_is_integer(value), f"{name} is an integer, not {_kind(value)}")
    arrays: Any = m.arrays
    is_kept = isinstance(arrays, tuple) and all(isinstance(x, np.ndarray) for x in arrays)
    _require(is_kept, "arrays is a tuple of arrays of NumPy")


def _is_wide(m: TensorMap) -> bool:
    """Return whether addresses and strides need 32 bytes of alignment instead of 16."""
    return m.interleave is Interleave.B32 or m.dtype in PADDED_WORDS


def _check_rank(m: TensorMap) -> None:
    _require(1 <= m.rank <= 5, f"rank is {m.rank}, must be 1 to 5")
    lengths = {"strides_bytes": m.rank - 1, "box": m.rank, "element_strides": m.rank}
    for name, expected in lengths.items():
        got = len(getattr(m, name))
        _require(got == expected, f"rank {m.rank} needs {expected} {name}, got {got}")
    _require(m.interleave is Interleave.NONE or m.rank >= 3, "an interleaved map has rank >= 3")


def _check_global(m: TensorMap) -> None:
    alignment = 32 if _is_wide(m) else 16
    _require(0 <= m.address < 1 << 64, f"address {m.address:#x} has more than 64 bits")
    _require(m.address % alignment == 0, f"address {m.address:#x} is not {alignment}-byte aligned")
    for axis, extent in enumerate(m.dims):
        _require(1 <= extent <= _MAX_DIM, f"dim {axis} is {extent}, must be 1 to 2**32")
    for axis, stride in enumerate(m.strides_bytes, start=1):
        _require(
            stride % alignment == 0 and 0 <= stride < _MAX_STRIDE_BYTES,
            f"stride of dim {axis} is {stride} bytes, not a multiple of {alignment} below 2**40",
        )


def _check_box(m: TensorMap) -> None:
    for axis, (extent, step) in enumerate(zip(m.box, m.element_strides, strict=True)):
        _require(1 <= extent <= _MAX_BOX, f"box dim {axis} is {extent}, must be 1 to 256")
        _require(1 <= step <= _MAX_ELEMENT_STRIDE, f"element stride {step} is not 1 to 8")
    if m.interleave is not Interleave.NONE:
        return
    inner_bits = m.box[0] * m.element_bits
    _require(inner_bits % 128 == 0, f"the box's inner {inner_bits // 8} bytes are no 16-byte units")
    if m.swizzle is not Swizzle.NONE:
        span = span_bytes(m.swizzle)
        _require(
            inner_bits <= span * 8,
            f"the box's inner {inner_bits // 8} bytes exceed {span}, swizzle {m.swizzle.name}",
        )


def _check_modes(m: TensorMap) -> None:
    _require(
        m.interleave is not Interleave.B32 or m.swizzle is Swizzle.B32,
        "interleave 32B goes with swizzle 32B",
    )
    if m.dtype in PADDED_WORDS:
        _require(m.dims[0] % 128 == 0 and m.box[0] == 128, "ALIGN16B: dim 0 % 128 == 0, box 128")
        allowed = m.swizzle in _PADDED_SWIZZLES
        _require(allowed, f"ALIGN16B: no swizzle or one of 128 bytes, not {m.swizzle.name}")
    if m.dtype is _T.U4_ALIGN8B:
        _require(m.dims[0] % 2 == 0, "ALIGN8B: dim 0 % 2 == 0")
    _require(
        m.out_of_bounds is OutOfBounds.ZERO or m.dtype in FLOAT_TYPES,
        f"out-of-bounds fill NaN needs a float type, not {m.dtype.name}",
    )
    _require(m.l2_promotion_bytes in (0, 64, 128, 256), "L2 promotion is 0, 64, 128 or 256 bytes")


_CHECKS = (_check_rank, _check_global, _check_box, _check_modes)
