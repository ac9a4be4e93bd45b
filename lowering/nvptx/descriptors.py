"""Descriptors of shared-memory operands of the tensor core, and of its instructions.

Sources: PTX ISA 9.7.15.5.1.2 (wgmma), 9.7.16.4 (tcgen05). An operand is `i` (M or N) by `k`.
Swizzled K-major: element (i, k) is at `i * W + k * size` of a row of W bytes, groups of 8 rows
SBO apart. Swizzled MN-major: at `(i * size / W) * LBO + (k / 8) * SBO + (k % 8) * W + rest`.

Invariant: a descriptor is a constant part plus the operand's address over 16, so moving within an
operand adds to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from astdsl.ir.dtypes import DType
from astdsl.lowering.layout.offsets import plain_offsets
from astdsl.lowering.layout.shared import BufferLayout
from astdsl.lowering.products import Product, ScaledKind

UNIT_BYTES = 16
_FIELD = 0x3FFF
_LBO_BIT, _SBO_BIT = 16, 32
_WGMMA_SWIZZLE_BIT, _WGMMA_SWIZZLE = 62, {128: 1, 64: 2, 32: 3}
_TCGEN05_SWIZZLE_BIT, _TCGEN05_SWIZZLE = 61, {128: 2, 64: 4, 32: 6}
_TCGEN05_VERSION = 1 << 46
_GROUP_ROWS = 8


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand in a slot of `layout`; `k_axis` is the tile's axis that is summed over.

    `origin` is the element of the slot, (i, k), where the operand begins.
    """

    layout: BufferLayout
    k_axis: int
    origin: tuple[int, int] = (0, 0)

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
        """Return what moving to element (i, k) of the operand adds to the address of the slot."""
        return self.offset_bytes(self.origin[0] + i, self.origin[1] + k) // UNIT_BYTES

    def _strides(self) -> int:
        next_group = (_GROUP_ROWS, 0) if self.is_k_major else (0, _GROUP_ROWS)
        group = self.offset_bytes(*next_group) // UNIT_BYTES
        row = self.layout.row_elements
        lead = 1 if self.is_k_major else self.offset_bytes(row, 0) // UNIT_BYTES
        return (lead & _FIELD) << _LBO_BIT | (group & _FIELD) << _SBO_BIT

    def wgmma(self) -> int:
        """Return the constant part of the wgmma descriptor."""
        return self._strides() | self._swizzle(_WGMMA_SWIZZLE) << _WGMMA_SWIZZLE_BIT

    def tcgen05(self) -> int:
        """Return the constant part of the tcgen05 descriptor."""
        swizzle = self._swizzle(_TCGEN05_SWIZZLE) << _TCGEN05_SWIZZLE_BIT
        return self._strides() | _TCGEN05_VERSION | swizzle

    def fits(self, extent: int, depth: int) -> bool:
        """Return whether products can read (extent, depth) of it: it is laid out as said above.

        It begins where a group of rows does, and 16 bytes.
        """
        layout, row = self.layout, self.layout.row_elements
        if not layout.swizzle_bytes or row * layout.dtype.bytes != layout.swizzle_bytes:
            return False
        if not layout.has_rows or any(n % _GROUP_ROWS for n in self.origin):
            return False
        i, k = (
            n.ravel() + first
            for n, first in zip(np.indices((extent, depth)), self.origin, strict=True)
        )
        along, across = (k, i) if self.is_k_major else (i, k)
        chunk, group = ((row, 0), (0, _GROUP_ROWS))
        if self.is_k_major:
            chunk, group = chunk[::-1], group[::-1]
        wanted = along // row * self.offset_bytes(*chunk) + along % row * layout.dtype.bytes
        wanted += across // _GROUP_ROWS * self.offset_bytes(*group)
        wanted += across % _GROUP_ROWS * layout.swizzle_bytes
        places = np.empty((i.size, 2), np.int64)
        places[:, self.k_axis], places[:, 1 - self.k_axis] = k, i
        return bool((plain_offsets(layout, places) == wanted).all())

    def parts(self, extent: int, most: int) -> Iterator[tuple[int, int]]:
        """Yield (first, extent) of what one instruction reads along M or N.

        Neighbours along it that begin inside a row of the swizzle are read as far as the row goes.
        """
        row, first = self.layout.row_elements, 0
        starts_inside = not self.is_k_major and self.origin[0] % row
        while first < extent:
            left = row - (self.origin[0] + first) % row if starts_inside else most
            size = min(extent - first, most, left)
            yield first, size
            first += size

    def _swizzle(self, codes: dict[int, int]) -> int:
        assert self.layout.swizzle_bytes in codes, "operands of products are swizzled"
        return codes[self.layout.swizzle_bytes]


def scale_atom() -> int:
    """Return the constant part of the descriptor of 512 bytes of scales: rows of 16, no swizzle."""
    rows_bytes = _GROUP_ROWS * UNIT_BYTES
    return 1 << _LBO_BIT | rows_bytes // UNIT_BYTES << _SBO_BIT | _TCGEN05_VERSION


def scaled_instruction(
    kind: ScaledKind,
    operands: tuple[DType, DType],
    scale: tuple[DType, int],
    extents: tuple[int, int],
    transposes: tuple[bool, bool],
) -> int:
    """Return the instruction descriptor of a block-scaled product (PTX ISA, tables 43 and 44).

    `scale` is the dtype of the scales, and in which byte of its cell the first one lies.
    """
    types = kind.operands[operands[0]] << 7 | kind.operands[operands[1]] << 10
    bits = types | transposes[0] << 15 | transposes[1] << 16
    rows, columns = extents
    bits |= columns >> 3 << 17 | kind.scales[scale[0]] << 23 | rows >> 7 << 27
    return bits | scale[1] << 4 | scale[1] << 29


def tcgen05_instruction(
    product: Product, rows: int, columns: int, *, a_is_k_major: bool, b_is_k_major: bool
) -> int:
    """Return the instruction descriptor of a product (PTX ISA, table 42)."""
    kind = product.kind
    types = kind.accumulators[product.result] << 4
    types |= kind.operands[product.a] << 7 | kind.operands[product.b] << 10
    transposes = (not a_is_k_major) << 15 | (not b_is_k_major) << 16
    return types | transposes | columns >> 3 << 17 | rows >> 4 << 24
