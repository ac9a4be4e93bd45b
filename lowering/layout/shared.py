"""Shared memory of a block: what stands where, and the layout of each buffer.

A buffer's tile is laid out contiguous axis first, cut into chunks along it; a chunk is all rows of
that many elements, one after the other, XOR-swizzled by `swizzle_bytes` as TMA and the tensor core
do (PTX ISA, 5.5.7). Chunks follow each other. A layout that the kernel states is what it states.

Invariant: offsets are bytes from the block's shared base; a swizzled buffer starts on a multiple
of 1024 bytes, so that the pattern, which hardware anchors to addresses, starts with the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from astdsl.ir.core import Value
from astdsl.ir.dtypes import DType
from astdsl.ir.transforms import PhysicalAxis
from astdsl.lowering.layout.banks import Conflict
from astdsl.lowering.layout.conversion import Conversion, LayoutNote

SWIZZLES_BYTES = (128, 64, 32)
SWIZZLE_PERIOD_BITS = 7  # PTX ISA 5.5.7: address bits 7 and up are XORed into bits 4 and up
SWIZZLE_UNIT_BYTES = 16
BUFFER_ALIGN_BYTES = 1024
PLAIN_ALIGN_BYTES = 128
BARRIER_BYTES = 8
TMA_BOX_LIMIT_ELEMENTS = 256
TMA_ROW_MULTIPLE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Part:
    """A digit of an index: `extent` values of it, each `stride_bytes` further in the slot."""

    extent: int
    stride_bytes: int


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """How one slot of a buffer is laid out, before the swizzle.

    `parts` are for each axis the digits of its index, fastest first. `order` lists the tile's
    axes, contiguous first; `allocated` is the extent that there is room for. `is_stated` says that
    the kernel's author chose it.
    """

    shape: tuple[int, ...]
    dtype: DType
    order: tuple[int, ...]
    parts: tuple[tuple[Part, ...], ...]
    swizzle_bytes: int
    allocated: tuple[int, ...]
    slot_bytes: int
    is_stated: bool = False

    @property
    def row_elements(self) -> int:
        """Elements along the contiguous axis that follow each other."""
        return self.parts[self.order[0]][0].extent

    @property
    def has_rows(self) -> bool:
        """Whether neighbours along the contiguous axis are neighbours in memory."""
        return self.parts[self.order[0]][0].stride_bytes == self.dtype.bytes

    def offset_bytes(self, place: Sequence[int]) -> int:
        """Return the byte of an element in the slot, before the swizzle."""
        total = 0
        for index, parts in zip(place, self.parts, strict=True):
            rest = index
            for part in parts[:-1]:
                rest, digit = divmod(rest, part.extent)
                total += digit * part.stride_bytes
            total += rest * parts[-1].stride_bytes
        return total


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
        shape, order, allocated = (1,), (0,), (1,)
    columns = allocated[order[0]]
    for swizzle_bytes in SWIZZLES_BYTES if swizzled and len(shape) > 1 else ():
        if columns * dtype.bytes % swizzle_bytes == 0:
            chunk = swizzle_bytes // dtype.bytes
            return _in_chunks(shape, dtype, order, chunk, swizzle_bytes, allocated)
    return _in_chunks(shape, dtype, order, _plain_chunk(columns, dtype), 0, allocated)


def _in_chunks(
    shape: tuple[int, ...],
    dtype: DType,
    order: tuple[int, ...],
    chunk: int,
    swizzle_bytes: int,
    allocated: tuple[int, ...],
) -> BufferLayout:
    """Return the layout by chunks: all rows of `chunk` elements, then those of the next ones."""
    parts: list[tuple[Part, ...]] = [() for _ in shape]
    step = chunk * dtype.bytes
    for axis in order[1:]:
        parts[axis] = (Part(allocated[axis], step),)
        step *= allocated[axis]
    chunks = -(-allocated[order[0]] // chunk)
    chunk_bytes = _up(step, PLAIN_ALIGN_BYTES)
    along = (Part(chunk, dtype.bytes), Part(chunks, chunk_bytes))
    parts[order[0]] = along if chunks > 1 else along[:1]
    size = _up(chunks * chunk_bytes, alignment_bytes(swizzle_bytes))
    return BufferLayout(shape, dtype, order, tuple(parts), swizzle_bytes, allocated, size)


def stated_layout(
    shape: tuple[int, ...], dtype: DType, axes: Sequence[PhysicalAxis], swizzle_bytes: int
) -> BufferLayout:
    """Return the layout whose elements follow each other as `axes` say, the last one fastest."""
    digits: list[list[tuple[int, Part]]] = [[] for _ in shape]
    step = dtype.bytes
    for axis in reversed(axes):
        digits[axis.axis].append((axis.divisor, Part(axis.extent, step)))
        step *= axis.extent
    # The digits of an index are read fastest first, wherever they stand in memory.
    parts = tuple(joined([part for _, part in sorted(of, key=lambda d: d[0])]) for of in digits)
    order = tuple(dict.fromkeys(axis.axis for axis in reversed(axes)))
    size = _up(step, alignment_bytes(swizzle_bytes))
    return BufferLayout(shape, dtype, order, parts, swizzle_bytes, shape, size, is_stated=True)


def joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the digits of an index with those joined that are one in memory."""
    found: list[Part] = []
    for part in [p for p in parts if p.extent > 1] or parts[:1]:
        if found and part.stride_bytes == found[-1].stride_bytes * found[-1].extent:
            found[-1] = Part(found[-1].extent * part.extent, found[-1].stride_bytes)
        else:
            found.append(part)
    return tuple(found)


def alignment_bytes(swizzle_bytes: int) -> int:
    """Return what the start of a slot is a multiple of."""
    return BUFFER_ALIGN_BYTES if swizzle_bytes else PLAIN_ALIGN_BYTES


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
    # Of what several warpgroups have for themselves: which, and the bytes from one's to the next's.
    owners: dict[Value, tuple[int, ...]] = field(default_factory=dict)
    strides: dict[Value, int] = field(default_factory=dict)
    layouts: dict[Value, BufferLayout] = field(default_factory=dict)
    used_bytes: int = 0
    scratch_bytes: int = 0
    # Tiles that change their layout, through the scratch or by shuffles.
    conversions: dict[Conversion, None] = field(default_factory=dict)
    conflicts: dict[Conflict, None] = field(default_factory=dict)
    # What the kernel asked to be told of layouts.
    told: dict[LayoutNote, None] = field(default_factory=dict)
    # Who runs the program: each has a scratch, `scratch_stride_bytes` after the one before.
    runners: int = 1
    scratch_stride_bytes: int = 0
    tensor_address_bytes: int = 0
    # What the block has of tensor memory: columns, a power of two.
    tensor_columns: int = 0
    product_barriers_bytes: int = 0
    product_barriers: int = 0
    # Where the union that is being placed begins, and ends so far.
    _union: list[int] = field(default_factory=list)

    @property
    def scratch_offset_bytes(self) -> int:
        """Where tiles that change their layout pass through."""
        return _up(self.used_bytes, PLAIN_ALIGN_BYTES)

    @property
    def total_bytes(self) -> int:
        """Bytes that the launch asks for."""
        return (
            self.scratch_offset_bytes + self.runners * self.scratch_bytes
            if self.scratch_bytes
            else self.used_bytes
        )

    def place_buffer(
        self, value: Value, layout: BufferLayout, slots: int, *, owners: tuple[int, ...] = ()
    ) -> None:
        """Give a buffer of `slots` slots its place; with `owners`, each of them has one."""
        self.layouts[value] = layout
        align = alignment_bytes(layout.swizzle_bytes)
        self._place(value, slots * layout.slot_bytes, align, owners)

    def place_barriers(self, value: Value, count: int, *, owners: tuple[int, ...] = ()) -> None:
        """Give an array of mbarriers its place; with `owners`, each of them has one."""
        self._place(value, count * BARRIER_BYTES, BARRIER_BYTES, owners)

    def reserve_tensor_memory(self, barriers: int) -> None:
        """Make room for the address of tensor memory, and for `barriers` of its products.

        Each runner has so many, as it counts its own products.
        """
        self.tensor_address_bytes = _up(self.used_bytes, BARRIER_BYTES)
        self.product_barriers_bytes = self.tensor_address_bytes + BARRIER_BYTES
        self.product_barriers = barriers
        self.used_bytes = self.product_barriers_bytes + self.runners * barriers * BARRIER_BYTES

    def require_scratch(self, size_bytes: int) -> None:
        """Make the scratch at least this large."""
        # LLVM widens loads over gaps and ends, as far as the alignment that it knows.
        self.scratch_bytes = max(self.scratch_bytes, _up(size_bytes, PLAIN_ALIGN_BYTES))

    def _place(self, value: Value, size_bytes: int, align: int, owners: tuple[int, ...]) -> None:
        self.offsets[value] = _up(self.used_bytes, align)
        self.sizes[value] = size_bytes
        if owners:
            self.owners[value], self.strides[value] = owners, _up(size_bytes, align)
            size_bytes += (self.count(value) - 1) * self.strides[value]
        self.used_bytes = self.offsets[value] + size_bytes

    def count(self, value: Value) -> int:
        """Return how often there is room for a value: for its owners, and who is between them."""
        return span_of(self.owners.get(value, ()))

    def begin_union(self) -> None:
        """Let groups of buffers that are placed from now on lie over each other."""
        self.used_bytes = _up(self.used_bytes, BUFFER_ALIGN_BYTES)
        self._union = [self.used_bytes, self.used_bytes]

    def end_group(self) -> None:
        """End one group of the union; the next one begins where it began."""
        start, end = self._union
        self._union = [start, max(end, self.used_bytes)]
        self.used_bytes = start

    def end_union(self) -> None:
        """Go on behind the largest group of the union."""
        self.used_bytes = self._union[1]

    def places(self, value: Value) -> list[int]:
        """Return the offset of a value, for each warpgroup that has one."""
        first, stride = self.offsets[value], self.strides.get(value, 0)
        return [first + k * stride for k in range(self.count(value))]


def span_of(owners: tuple[int, ...]) -> int:
    """Return how many warpgroups there are from the first owner to the last, 1 without owners."""
    return owners[-1] - owners[0] + 1 if owners else 1
