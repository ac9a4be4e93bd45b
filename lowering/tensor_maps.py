"""How an asynchronous copy of a window is cut into TMA boxes.

A box is one chunk of the buffer (`layout.shared`), at most 256 along every axis. What TMA cannot
describe is told by `why_not`, and takes another path.

Invariant: the pieces of a copy have one box, so one tensor map; together they write each element
of the slot that the window covers once. (CUDA driver API, cuTensorMapEncodeTiled; PTX ISA 5.5.)
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from astdsl.errors import UnsupportedFeature, in_words
from astdsl.ir import ops
from astdsl.ir.types import RefType
from astdsl.lowering.layout.shared import (
    PLAIN_ALIGN_BYTES,
    TMA_BOX_LIMIT_ELEMENTS,
    TMA_ROW_MULTIPLE_BYTES,
    BufferLayout,
    buffer_layout,
)

MAX_RANK = 5
MOST_PIECES = 64
# Of memory whose layout the kernel states, as small tiles.
MOST_STATED_PIECES = 256


@dataclass(frozen=True, slots=True)
class Piece:
    """One box: how far its start is moved along each axis of the map, and where it goes."""

    moves: tuple[int, ...]
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class Split:
    """The boxes of a copy. `key` is the map's axis order, box and swizzle."""

    key: tuple[tuple[int, ...], tuple[int, ...], int]
    pieces: tuple[Piece, ...]
    total_bytes: int


def why_not(ref: RefType, sizes: tuple[int, ...], steps: tuple[int, ...]) -> str:
    """Return why TMA cannot copy such windows of a ref; empty where it can."""
    if not ref.tma:
        return "its strides or base are not multiples of 16 bytes"
    if ref.rank > MAX_RANK:
        return f"it has {in_words(ref.rank, 'axis')}, TMA has {MAX_RANK}"
    if any(step != 1 for step in steps):
        return "the window has steps"
    if 0 in sizes:
        return "the window has no elements"
    if ref.dtype.bits % 8:
        return f"{ref.dtype.name} has no whole byte size"
    contiguous = contiguous_axis(ref)
    if sizes[contiguous] * ref.dtype.bytes % TMA_ROW_MULTIPLE_BYTES:
        return "a row of the window is not a multiple of 16 bytes"
    return _too_many_boxes(ref, sizes, contiguous)


def why_no_map(op: ops.Copy) -> str:
    """Return why TMA cannot do a copy, into whatever buffer; empty where that may decide."""
    ref = op.ref.ref
    if ref.empty:
        return "the array has no elements"
    if 1 not in ref.strides:
        return "it has no contiguous axis"
    contiguous = contiguous_axis(ref)
    if not op.kept[contiguous] and any(op.kept):
        return "its windows lie across the contiguous axis"
    row = (1,) * contiguous + (op.sizes[contiguous],)
    few = tuple(row[k] if k < len(row) else 1 for k in range(ref.rank))
    return why_not(ref, few, op.steps)


def _too_many_boxes(ref: RefType, sizes: tuple[int, ...], contiguous: int) -> str:
    axes = (contiguous, *(a for a in reversed(range(ref.rank)) if a != contiguous))
    extents = tuple(sizes[a] for a in axes)
    order = tuple(range(ref.rank))
    layout = buffer_layout(extents, ref.dtype, order)
    box = _box(list(extents), layout, ref.rank)
    if max(box) > TMA_BOX_LIMIT_ELEMENTS:
        return "a row of the window cannot be cut into boxes"
    counts = (-(-extent // side) for extent, side in zip(extents, box, strict=True))
    return "the window takes too many boxes" if math.prod(counts) > MOST_PIECES else ""


def contiguous_axis(ref: RefType) -> int:
    """Return the axis with stride 1, the last one if there are several."""
    assert 1 in ref.strides, f"{ref} has no contiguous axis"
    return ref.rank - 1 - ref.strides[::-1].index(1)


# What to do about memory that TMA cannot fill: where its layout is stated, and where it is ours.
OTHER_LAYOUT = (
    "leave the layout to the compiler, or take tiles of 8 rows of 128 bytes; taller ones take "
    "fewer boxes"
)
OTHER_WINDOW = (
    "a row runs along the axis of the array that is contiguous: take more of it, or let tiles do "
    "it, `buffer[...] = x[window]`"
)


def pieces(op: ops.Copy, layout: BufferLayout) -> Split:
    """Cut the copy of a window from or to a slot of `layout` into boxes."""
    kept = [a for a, k in enumerate(op.kept) if k]
    order = [kept[tile_axis] for tile_axis in layout.order] if kept else []
    axes = (*order, *(a for a in reversed(range(op.ref.ref.rank)) if a not in order))
    extents = [op.sizes[a] for a in axes]
    box = _box(extents, layout, len(order))
    counts = [-(-extent // b) for extent, b in zip(extents, box, strict=True)]
    _check_boxes(op, layout, box, math.prod(counts))
    found: list[Piece] = []
    for numbers in itertools.product(*map(range, counts)):
        moves = tuple(n * b for n, b in zip(numbers, box, strict=True))
        place = dict(zip(layout.order, moves, strict=False))
        offset = layout.offset_bytes([place.get(a, 0) for a in range(len(layout.shape))])
        found.append(Piece(moves, offset))
    _check_places(op, found)
    bytes_each = math.prod(box) * layout.dtype.bytes
    key = (tuple(axes), tuple(box), layout.swizzle_bytes)
    return Split(key, tuple(found), bytes_each * len(found))


def _check_boxes(op: ops.Copy, layout: BufferLayout, box: list[int], count: int) -> None:
    """Refuse memory that TMA cannot fill."""
    row_bytes = box[0] * layout.dtype.bytes
    most = MOST_STATED_PIECES if layout.is_stated else MOST_PIECES
    wrong = {
        f"its rows are of {row_bytes} bytes, and TMA copies multiples of {TMA_ROW_MULTIPLE_BYTES}":
        row_bytes % TMA_ROW_MULTIPLE_BYTES or not layout.has_rows,
        f"it takes {count} boxes of {box}, {most} is the most": count > most,
    }  # fmt: skip
    for said, holds in wrong.items():
        if holds:
            raise _unsuited(op, said, OTHER_LAYOUT if layout.is_stated else OTHER_WINDOW)


def _check_places(op: ops.Copy, boxes: list[Piece]) -> None:
    """Refuse memory in which a box would stand where TMA does not write."""
    wrong = next((b.offset_bytes for b in boxes if b.offset_bytes % PLAIN_ALIGN_BYTES), 0)
    if wrong:
        said = f"a part begins at byte {wrong}, and TMA writes at multiples of {PLAIN_ALIGN_BYTES}"
        raise _unsuited(op, said, OTHER_LAYOUT)


def _unsuited(op: ops.Copy, said: str, way_out: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"a copy cannot fill or empty this memory: {said}", (op.span, "the copy"), help=way_out
    )


def _box(extents: list[int], layout: BufferLayout, kept: int) -> list[int]:
    """Return the box: a row wide, and as many rows as stand densely in the slot."""
    box = [_side(layout.row_elements)]
    dense = box[0] == layout.row_elements
    for k in range(1, len(extents)):
        part = layout.parts[layout.order[k]][0] if k < kept else None
        span = math.prod(box) * layout.dtype.bytes
        follows = part is None or part.extent == 1 or part.stride_bytes == span
        room = extents[k] if part is None else part.extent
        side = _rows(min(extents[k], room), layout.row_elements * layout.dtype.bytes)
        box.append(side if dense and follows else 1)
        dense = dense and follows and side == room
    return box


def _side(row: int) -> int:
    """Return how many of a row's elements one box can have."""
    if row <= TMA_BOX_LIMIT_ELEMENTS:
        return row
    return max(n for n in range(1, TMA_BOX_LIMIT_ELEMENTS + 1) if row % n == 0)


def _rows(extent: int, row_bytes: int) -> int:
    """Return the most rows that a box can have, so that the next one starts aligned."""
    if extent <= TMA_BOX_LIMIT_ELEMENTS:
        return extent
    fits = (
        n
        for n in range(TMA_BOX_LIMIT_ELEMENTS, 0, -1)
        if extent % n == 0 and n * row_bytes % PLAIN_ALIGN_BYTES == 0
    )
    return next(fits, 1)
