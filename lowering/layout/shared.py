"""Shared memory of a block: what stands where, and the layout of each buffer.

A buffer's tile is laid out contiguous axis first, cut into chunks of `chunk_elements` along it;
a chunk is all rows of that many elements, one after the other, XOR-swizzled by `swizzle_bytes`
as TMA and the tensor core do (PTX ISA, 5.5.7). Chunks follow each other.

Invariant: offsets are bytes from the block's shared base; a swizzled buffer starts on a multiple
of 1024 bytes, so that the pattern, which hardware anchors to addresses, starts with the buffer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from astdsl.ir.core import Value
from astdsl.ir.dtypes import DType

SWIZZLES_BYTES = (128, 64, 32)
SWIZZLE_PERIOD_BITS = 7  # PTX ISA 5.5.7: address bits 7 and up are XORed into bits 4 and up
SWIZZLE_UNIT_BYTES = 16
BUFFER_ALIGN_BYTES = 1024
PLAIN_ALIGN_BYTES = 128
BARRIER_BYTES = 8
TMA_BOX_LIMIT_ELEMENTS = 256
TMA_ROW_MULTIPLE_BYTES = 16


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """How one slot of a buffer is laid out: `order` lists the tile's axes, contiguous first.

    `rows` is the allocated extent of everything but the contiguous axis, as one number;
    `columns` the allocated extent along the contiguous axis.
    """

    shape: tuple[int, ...]
    dtype: DType
    order: tuple[int, ...]
    chunk_elements: int
    swizzle_bytes: int
    allocated: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a chunk."""
        return self.chunk_elements * self.dtype.bytes

    @property
    def rows(self) -> int:
        """Rows of a chunk."""
        return math.prod(self.allocated[a] for a in self.order[1:])

    @property
    def chunk_bytes(self) -> int:
        """Bytes from one chunk to the next."""
        return _up(self.rows * self.row_bytes, PLAIN_ALIGN_BYTES)

    @property
    def chunks(self) -> int:
        """Number of chunks along the contiguous axis."""
        return -(-self.allocated[self.order[0]] // self.chunk_elements)

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot of the ring to the next."""
        align = BUFFER_ALIGN_BYTES if self.swizzle_bytes else PLAIN_ALIGN_BYTES
        return _up(self.chunks * self.chunk_bytes, align)

    @property
    def row_strides(self) -> dict[int, int]:
        """For each axis but the contiguous one, rows from one index to the next."""
        strides, step = {}, 1
        for axis in self.order[1:]:
            strides[axis] = step
            step *= self.allocated[axis]
        return strides


def buffer_layout(
    shape: tuple[int, ...],
    dtype: DType,
    order: tuple[int, ...],
    *,
    swizzled: bool = True,
    allocated: tuple[int, ...] = (),
) -> BufferLayout:
    """Choose a buffer's layout: the widest swizzle that divides its rows, none if none does."""
    allocated = allocated or shape
    if not shape:
        return BufferLayout((1,), dtype, (0,), 1, 0, (1,))
    columns = allocated[order[0]]
    for swizzle_bytes in SWIZZLES_BYTES if swizzled and len(shape) > 1 else ():
        if columns * dtype.bytes % swizzle_bytes == 0:
            chunk = swizzle_bytes // dtype.bytes
            return BufferLayout(shape, dtype, order, chunk, swizzle_bytes, allocated)
    return BufferLayout(shape, dtype, order, _plain_chunk(columns, dtype), 0, allocated)


def _plain_chunk(columns: int, dtype: DType) -> int:
    """Return the longest part of a row that one TMA box can have, if the row is too long."""
    if columns <= TMA_BOX_LIMIT_ELEMENTS:
        return columns
    fits = [
        n
        for n in range(1, TMA_BOX_LIMIT_ELEMENTS + 1)
        if columns % n == 0 and n * dtype.bytes % TMA_ROW_MULTIPLE_BYTES == 0
    ]
    return max(fits, default=columns)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(slots=True)
class SharedPlan:
    """Where everything in shared memory stands: barriers, buffers, then scratch."""

    offsets: dict[Value, int] = field(default_factory=dict)
    sizes: dict[Value, int] = field(default_factory=dict)
    layouts: dict[Value, BufferLayout] = field(default_factory=dict)
    used_bytes: int = 0
    scratch_bytes: int = 0
    tensor_address_bytes: int = 0
    product_barriers_bytes: int = 0
    product_barriers: int = 0

    @property
    def scratch_offset_bytes(self) -> int:
        """Where tiles that change their layout pass through."""
        return _up(self.used_bytes, PLAIN_ALIGN_BYTES)

    @property
    def total_bytes(self) -> int:
        """Bytes that the launch asks for."""
        return (
            self.scratch_offset_bytes + self.scratch_bytes
            if self.scratch_bytes
            else self.used_bytes
        )

    def place_buffer(self, value: Value, layout: BufferLayout, slots: int) -> None:
        """Give a buffer of `slots` slots its place."""
        align = BUFFER_ALIGN_BYTES if layout.swizzle_bytes else PLAIN_ALIGN_BYTES
        self.layouts[value] = layout
        self._place(value, slots * layout.slot_bytes, align)

    def place_barriers(self, value: Value, count: int) -> None:
        """Give an array of mbarriers its place."""
        self._place(value, count * BARRIER_BYTES, BARRIER_BYTES)

    def reserve_tensor_memory(self, barriers: int) -> None:
        """Make room for the address of tensor memory, and for `barriers` of its products."""
        self.tensor_address_bytes = _up(self.used_bytes, BARRIER_BYTES)
        self.product_barriers_bytes = self.tensor_address_bytes + BARRIER_BYTES
        self.product_barriers = barriers
        self.used_bytes = self.product_barriers_bytes + barriers * BARRIER_BYTES

    def require_scratch(self, size_bytes: int) -> None:
        """Make the scratch at least this large."""
        # LLVM widens loads over gaps and ends, as far as the alignment that it knows.
        self.scratch_bytes = max(self.scratch_bytes, _up(size_bytes, PLAIN_ALIGN_BYTES))

    def _place(self, value: Value, size_bytes: int, align: int) -> None:
        self.offsets[value] = _up(self.used_bytes, align)
        self.sizes[value] = size_bytes
        self.used_bytes = self.offsets[value] + size_bytes
