"""Lowering of block-scaled products of `tcgen05`: scales go to tensor memory, then both multiply.

`tcgen05.cp` and the `tcgen05.mma` after it run in the order in which one thread issues them (PTX
ISA 9.7.16.6.2), so that a product needs no wait for its scales. The columns of scales are those of
the accumulator's last product: its instructions have read them when the next copies are performed.

Invariant: the scale of row r, k-block c is in lane r % 32 of every warp's lanes, in the column of
(c // 4, r // 32), byte c % 4 (PTX ISA 9.7.16.10.7).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import DType
from astdsl.lowering.nvptx import tensor_memory
from astdsl.lowering.nvptx.asm import tcgen05
from astdsl.lowering.nvptx.descriptors import scale_atom, scaled_instruction
from astdsl.lowering.nvptx.function import Emitter, lowers
from astdsl.lowering.nvptx.rules.tensor import MOST_COLUMNS, Side, slot_descriptor
from astdsl.lowering.nvptx.rules.tmem import column_address
from astdsl.lowering.nvptx.values import LV, i1, i32, i64
from astdsl.lowering.products import TCGEN05_ROWS, kind_of_scaled, scale_columns

_ATOM_UNITS = 512 // 16  # of 16 bytes, as addresses in descriptors count
_ROWS_PER_COLUMN = ops.SCALE_LANES


@dataclass(frozen=True, slots=True)
class _Scales:
    """Scales in tensor memory from column `first` on: `blocks` of 128 rows by `groups` of 4."""

    emitter: Emitter
    first: LV
    blocks: int
    groups: int
    dtype: DType

    def place(self, row: int, group: int) -> LV:
        """Return the address of the column of the scales of a row, of a group of 4 along k."""
        column = group * self.blocks * ops.SCALE_COLUMNS + row // _ROWS_PER_COLUMN
        return self.emitter.builder.add(self.first, i32(column))

    def copy(self, source: LV) -> None:
        """Start copying an image, 128 rows of 4 scales at a time; `source` describes the first."""
        builder = self.emitter.builder
        for block, group in itertools.product(range(self.blocks), range(self.groups)):
            units = (block * self.groups + group) * _ATOM_UNITS
            place = self.place(block * TCGEN05_ROWS, group)
            builder.asm(tcgen05.COPY_SCALES, place, builder.add(source, i64(units)))


def _image(emitter: Emitter, image: Value, slot: Sequence[Value]) -> LV:
    """Return the descriptor of the first 512 bytes of an image in shared memory."""
    return slot_descriptor(emitter, image, slot, scale_atom())


def _columns_of_image(emitter: Emitter, image: Value, first: LV) -> _Scales:
    blocks, groups = image.ref.shape[-4:-2]
    assert blocks is not None, "shared memory has static extents"
    assert groups is not None, "shared memory has static extents"
    return _Scales(emitter, first, blocks, groups, image.ref.dtype)


def _buffer(emitter: Emitter, buffer: Value) -> _Scales:
    """Return the scales that a kernel keeps in tensor memory by hand."""
    rows, count = buffer.ref.shape
    assert rows is not None, "tensor memory has static extents"
    assert count is not None, "tensor memory has static extents"
    blocks, groups, *_ = ops.scale_image_shape(rows, count)
    first = tensor_memory.address(emitter, buffer)
    return _Scales(emitter, first, blocks, groups, buffer.ref.dtype)


@lowers(ops.CopyScales)
def _copy_scales(emitter: Emitter, op: ops.CopyScales) -> None:
    scales, source = _buffer(emitter, op.target), _image(emitter, op.source, op.slot)
    with emitter.guarded(emitter.is_first_thread(), "copy"):
        emitter.builder.asm(tcgen05.FENCE_AFTER)
        scales.copy(source)


@lowers(ops.ScaledMultiply)
def _multiply(emitter: Emitter, op: ops.ScaledMultiply) -> None:
    builder = emitter.builder
    first = tensor_memory.scales_address(emitter, op.accumulator)
    second = builder.add(first, i32(scale_columns(op)[0]))
    a_scales = _columns_of_image(emitter, op.a_scale, first)
    b_scales = _columns_of_image(emitter, op.b_scale, second)
    images = (
        _image(emitter, op.a_scale, op.a_scale_slot),
        _image(emitter, op.b_scale, op.b_scale_slot),
    )
    product = _Product(emitter, op, (a_scales, b_scales))
    accumulate = emitter.scalar(op.accumulate)
    address = tensor_memory.address(emitter, op.accumulator)
    with emitter.guarded(emitter.is_first_thread(), "issue"):
        builder.asm(tcgen05.FENCE_AFTER)
        a_scales.copy(images[0])
        b_scales.copy(images[1])
        product.issue(address, accumulate)
        tensor_memory.commit(emitter)
    tensor_memory.count_product(emitter)


@lowers(ops.ScaledTensorMultiply)
def _multiply_by_hand(emitter: Emitter, op: ops.ScaledTensorMultiply) -> None:
    scales = (_buffer(emitter, op.a_scale), _buffer(emitter, op.b_scale))
    product = _Product(emitter, op, scales)
    accumulate = emitter.scalar(op.accumulate)
    place = column_address(emitter, op.accumulator, op.column)
    with emitter.guarded(emitter.is_first_thread(), "issue"):
        emitter.builder.asm(tcgen05.FENCE_AFTER)
        product.issue(place, accumulate)


class _Product:
    """The operands of a product in shared memory, their scales, and the instructions."""

    def __init__(
        self,
        emitter: Emitter,
        op: ops.ScaledMultiply | ops.ScaledTensorMultiply,
        scales: tuple[_Scales, _Scales],
    ) -> None:
        builder, self._scales = emitter.builder, scales
        self._builder, self._kind = builder, kind_of_scaled(op)
        self._dtypes = op.a.ref.dtype, op.b.ref.dtype
        a = Side(emitter, op.a, op.a_slot, op.a_window, 0 if op.a_transposed else 1)
        b = Side(emitter, op.b, op.b_slot, op.b_window, 1 if op.b_transposed else 0)
        a.require_fit(op, "a", self._kind, emitter.target)
        b.require_fit(op, "b", self._kind, emitter.target)
        self._a, self._b = a, b
        self._starts = (a.tcgen05(), b.tcgen05())

    def issue(self, place: LV, accumulate: LV) -> None:
        """Write the instructions; `place` is the address of the accumulator."""
        builder, kind, a, b = self._builder, self._kind, self._a, self._b
        row, (a_scales, b_scales) = tcgen05.scaled_mma(kind.name), self._scales
        transposes = (not a.operand.is_k_major, not b.operand.is_k_major)
        parts = list(b.operand.parts(b.extent, MOST_COLUMNS))
        blocks, steps = range(a.extent // TCGEN05_ROWS), range(0, b.depth, kind.depth)
        for block, (first, width), k in itertools.product(blocks, parts, steps):
            group, byte = divmod(k // kind.depth * kind.count, ops.SCALE_COLUMNS)
            scale, extents = (a_scales.dtype, byte), (TCGEN05_ROWS, width)
            bits = scaled_instruction(kind, self._dtypes, scale, extents, transposes)
            builder.asm(
                row,
                builder.add(place, i32(block * b.extent + first)),
                builder.add(self._starts[0], i64(a.operand.units(block * TCGEN05_ROWS, k))),
                builder.add(self._starts[1], i64(b.operand.units(first, k))),
                i32(bits),
                a_scales.place(block * TCGEN05_ROWS, group),
                b_scales.place(first, group),
                i1(True) if k else accumulate,
            )
