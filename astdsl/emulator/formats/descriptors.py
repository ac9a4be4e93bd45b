"""Shared-memory matrix descriptors of wgmma and tcgen05, and the layouts they describe.

A descriptor names a start address, two byte strides and a swizzle; together with the operand's
shape and major-ness they say which 16-byte chunk of shared memory holds which part of a row.
Invariant: `operand_chunks` is exact: it lists every chunk that the matrix unit reads, no more.
Source: PTX ISA, "Shared Memory Matrix Layout" and "Matrix Descriptor" of wgmma (9.7.15.5.1) and
tcgen05 (9.7.16.4.1); CuTe `make_gmma_desc`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.swizzle import Swizzle, span_bytes, swizzle

__all__ = [
    "CHUNK_BYTES",
    "MatrixDescriptor",
    "OperandShape",
    "decode_tcgen05_descriptor",
    "decode_wgmma_descriptor",
    "encode_tcgen05_descriptor",
    "encode_wgmma_descriptor",
    "operand_chunks",
]

CHUNK_BYTES = 16
_FIELD_MASK = 0x3FFF
_WGMMA_SWIZZLES = {0: Swizzle.NONE, 1: Swizzle.B128, 2: Swizzle.B64, 3: Swizzle.B32}
_TCGEN05_SWIZZLES = {
    0: Swizzle.NONE, 1: Swizzle.B128_ATOM_32B, 2: Swizzle.B128, 4: Swizzle.B64, 6: Swizzle.B32,
}  # fmt: skip
_TCGEN05_VERSION = 0b001


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """Say where an operand lies in shared memory: start, two strides (bytes) and the swizzle."""

    start_bytes: int
    leading_bytes: int
    stride_bytes: int
    swizzle: Swizzle


@dataclass(frozen=True, slots=True)
class OperandShape:
    """Give the extents of one operand: `rows` along M or N, `depth` along K, in elements."""

    rows: int
    depth: int
    element_bytes: int
    mn_major: bool = False


def _field(bits: int, shift: int) -> int:
    """Decode a 14-bit field of 16-byte units at `shift`."""
    return ((bits >> shift) & _FIELD_MASK) << 4


def _encode_field(value_bytes: int, shift: int) -> int:
    if value_bytes % CHUNK_BYTES:
        raise FormatError(f"{value_bytes} bytes in a matrix descriptor is not a multiple of 16")
    return ((value_bytes & 0x3FFFF) >> 4) << shift


def _decode_common(bits: int, mode: Swizzle | None, code: int) -> MatrixDescriptor:
    if mode is None:
        raise FormatError(f"matrix descriptor has the invalid swizzle code {code}")
    if (bits >> 49) & 7:
        raise FormatError(
            "matrix descriptor has a base offset; the emulator models base offset 0, "
            "with the swizzle anchored to absolute addresses"
        )
    return MatrixDescriptor(_field(bits, 0), _field(bits, 16), _field(bits, 32), mode)


def decode_wgmma_descriptor(bits: int) -> MatrixDescriptor:
    """Decode the 64 bits of a wgmma descriptor (PTX ISA 9.7.15.5.1.2.2).

    Start >> 4 in bits 0-13, leading stride in 16-29, stride in 32-45, swizzle in 62-63.
    """
    code = bits >> 62
    return _decode_common(bits, _WGMMA_SWIZZLES.get(code), code)


def decode_tcgen05_descriptor(bits: int) -> MatrixDescriptor:
    """Decode the 64 bits of a tcgen05 descriptor (PTX ISA 9.7.16.4.1).

    As wgmma's, with the constant 0b001 in bits 46-48 and the swizzle in 61-63.
    """
    version = (bits >> 46) & 7
    if version != _TCGEN05_VERSION:
        raise FormatError(f"bits 46-48 of a tcgen05 descriptor are {version:#05b}, not 0b001")
    if (bits >> 52) & 1:
        raise FormatError("absolute leading addresses (descriptor bit 52) exist on sm_103 only")
    code = bits >> 61
    return _decode_common(bits, _TCGEN05_SWIZZLES.get(code), code)


def _encode_common(d: MatrixDescriptor) -> int:
    return (
        _encode_field(d.start_bytes, 0)
        | _encode_field(d.leading_bytes, 16)
        | _encode_field(d.stride_bytes, 32)
    )


def _swizzle_code(table: dict[int, Swizzle], mode: Swizzle) -> int:
    for code, known in table.items():
        if known is mode:
            return code
    raise FormatError(f"swizzle {mode.name} has no code in this kind of matrix descriptor")


def encode_wgmma_descriptor(d: MatrixDescriptor) -> int:
    """Encode a descriptor for wgmma; inverse of `decode_wgmma_descriptor`."""
    return _encode_common(d) | _swizzle_code(_WGMMA_SWIZZLES, d.swizzle) << 62


def encode_tcgen05_descriptor(d: MatrixDescriptor) -> int:
    """Encode a descriptor for tcgen05; inverse of `decode_tcgen05_descriptor`."""
    code = _swizzle_code(_TCGEN05_SWIZZLES, d.swizzle)
    return _encode_common(d) | _TCGEN05_VERSION << 46 | code << 61


def _k_major_offsets(d: MatrixDescriptor, shape: OperandShape) -> NDArray[np.int64]:
    """Return byte offsets [rows, chunks along K] before the swizzle."""
    row = np.arange(shape.rows, dtype=np.int64)[:, None]
    chunk = np.arange(shape.depth * shape.element_bytes // CHUNK_BYTES, dtype=np.int64)[None, :]
    if d.swizzle is Swizzle.NONE:
        # Core matrices of 8 rows x 16 bytes: stride steps over 8 rows, leading over 16 bytes of K.
        return (row // 8) * d.stride_bytes + (row % 8) * CHUNK_BYTES + chunk * d.leading_bytes
    span = span_bytes(d.swizzle)
    return (row // 8) * d.stride_bytes + (row % 8) * span + chunk * CHUNK_BYTES


def _mn_major_offsets(d: MatrixDescriptor, shape: OperandShape) -> NDArray[np.int64]:
    """Return byte offsets [depth, chunks along MN] before the swizzle."""
    depth = np.arange(shape.depth, dtype=np.int64)[:, None]
    chunks = shape.rows * shape.element_bytes // CHUNK_BYTES
    inner = np.arange(chunks, dtype=np.int64)[None, :] * CHUNK_BYTES
    if d.swizzle is Swizzle.NONE:
        # Without a swizzle the two strides change their roles.
        along_mn = (inner // CHUNK_BYTES) * d.stride_bytes
        return along_mn + (depth // 8) * d.leading_bytes + (depth % 8) * CHUNK_BYTES
    span = span_bytes(d.swizzle)
    along_mn = (inner // span) * d.leading_bytes + inner % span
    # The 32-byte atom (tf32 transposed) is 4 rows of K deep, all others 8.
    atom_depth = 4 if d.swizzle is Swizzle.B128_ATOM_32B else 8
    return along_mn + (depth // atom_depth) * d.stride_bytes + (depth % atom_depth) * span


@lru_cache(maxsize=4096)
def operand_chunks(d: MatrixDescriptor, shape: OperandShape) -> NDArray[np.intp]:
    """Return the indices of the 16-byte chunks of shared memory that hold an operand.

    Shape [rows, depth * element_bytes / 16] when K-major, [depth, rows * element_bytes / 16] when
    MN-major (the caller transposes).  The swizzle is applied to absolute addresses.
    """
    offsets = _mn_major_offsets(d, shape) if shape.mn_major else _k_major_offsets(d, shape)
    chunks = (swizzle(d.start_bytes + offsets, d.swizzle) // CHUNK_BYTES).astype(np.intp)
    chunks.flags.writeable = False
    return chunks
