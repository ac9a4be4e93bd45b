"""Descriptors of shared-memory operands of the tensor core, and of its instructions.

Sources: PTX ISA 9.7.15.5.1.2 (wgmma), 9.7.16.4 (tcgen05). An operand is `i` (M or N) by `k`.
Swizzled K-major: element (i, k) is at `i * W + k * size` of a row of W bytes, groups of 8 rows
SBO apart. Swizzled MN-major: at `(i * size / W) * LBO + (k / 8) * SBO + (k % 8) * W + rest`.

Invariant: a descriptor is a constant part plus the operand's address over 16, so moving within an
operand adds to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from astdsl.ir.dtypes import DType
from astdsl.lowering.layout.shared import BufferLayout

_UNIT_BYTES = 16
_FIELD = 0x3FFF
_LBO_BIT, _SBO_BIT = 16, 32
_WGMMA_SWIZZLE_BIT, _WGMMA_SWIZZLE = 62, {128: 1, 64: 2, 32: 3}
_TCGEN05_SWIZZLE_BIT, _TCGEN05_SWIZZLE = 61, {128: 2, 64: 4, 32: 6}
_TCGEN05_VERSION = 1 << 46
_GROUP_ROWS = 8
_OPERAND_TYPE = {"f16": 0, "bf16": 1}


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand in a slot of `layout`; `k_axis` is the tile's axis that is summed over."""

    layout: BufferLayout
    k_axis: int

    @property
    def is_k_major(self) -> bool:
        """Whether neighbours along k are neighbours in memory."""
        return self.layout.order[0] == self.k_axis

    def offset_bytes(self, i: int, k: int) -> int:
        """Return where element (i, k) is in the slot, before the swizzle."""
        place = [i, i]
        place[self.k_axis] = k
        return self.layout.offset_bytes(place)

    def units(self, i: int, k: int) -> int:
        """Return what moving to element (i, k) adds to a descriptor."""
        return self.offset_bytes(i, k) // _UNIT_BYTES

    def _strides(self) -> int:
        span = self.layout.row_elements
        group = self.units(_GROUP_ROWS, 0) if self.is_k_major else self.units(0, _GROUP_ROWS)
        lead = 1 if self.is_k_major else self.units(span, 0)
        return (lead & _FIELD) << _LBO_BIT | (group & _FIELD) << _SBO_BIT

    def wgmma(self) -> int:
        """Return the constant part of the wgmma descriptor."""
        return self._strides() | self._swizzle(_WGMMA_SWIZZLE) << _WGMMA_SWIZZLE_BIT

    def tcgen05(self) -> int:
        """Return the constant part of the tcgen05 descriptor."""
        swizzle = self._swizzle(_TCGEN05_SWIZZLE) << _TCGEN05_SWIZZLE_BIT
        return self._strides() | _TCGEN05_VERSION | swizzle

    def _swizzle(self, codes: dict[int, int]) -> int:
        assert self.layout.swizzle_bytes in codes, "operands of products are swizzled"
        return codes[self.layout.swizzle_bytes]


def tcgen05_instruction(
    dtype: DType, rows: int, columns: int, *, a_is_k_major: bool, b_is_k_major: bool
) -> int:
    """Return the instruction descriptor of kind f16 with f32 accumulators (PTX ISA, table 42)."""
    kind = _OPERAND_TYPE[dtype.name]
    accumulates_f32 = 1 << 4
    transposes = (not a_is_k_major) << 15 | (not b_is_k_major) << 16
    return (
        accumulates_f32 | kind << 7 | kind << 10 | transposes | columns >> 3 << 17 | rows >> 4 << 24
    )
