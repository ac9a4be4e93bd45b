"""Lowering of block-scaled products of `tcgen05`: scales go to tensor memory, then both multiply.

`tcgen05.cp` and the `tcgen05.mma` after it run in the order in which one thread issues them (PTX
ISA 9.7.16.6.2), so that a product needs no wait for its scales. The columns of scales are those of
the accumulator's last product: its instructions have read them when the next copies are performed.

Invariant: the scale of row r, k-block c is in lane r % 32 of every warp's lanes, in the column of
(c // 4, r // 32), byte c % 4 (PTX ISA 9.7.16.10.7).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.lowering.nvptx import tensor_memory
from astdsl.lowering.nvptx.asm import tcgen05
from astdsl.lowering.nvptx.descriptors import scale_atom, scaled_instruction
from astdsl.lowering.nvptx.function import Emitter, lowers
from astdsl.lowering.nvptx.rules.tensor import MOST_COLUMNS, Side, slot_address
from astdsl.lowering.nvptx.values import LV, i1, i32, i64
from astdsl.lowering.products import TCGEN05_ROWS, kind_of_scaled, scale_columns

_ATOM_UNITS = 512 // 16  # of 16 bytes, as addresses in descriptors count
_ROWS_PER_COLUMN = ops.SCALE_LANES


class _Scales:
    """The scales of one operand: their image in shared memory, their columns of tensor memory."""

    def __init__(self, emitter: Emitter, image: Value, slot: Sequence[Value], first: LV) -> None:
        self._builder, self._first = emitter.builder, first
        rows, groups = image.ref.shape[-4:-2]
        assert rows is not None, "shared memory has static extents"
        assert groups is not None, "shared memory has static extents"
        self._rows, self._groups = rows, groups
        self._source = self._builder.add(slot_address(emitter, image, slot), i64(scale_atom()))

    def place(self, row: int, group: int) -> LV:
        """Return the address of the column of the scales of a row, of a group of 4 along k."""
        column = group * self._rows * ops.SCALE_COLUMNS + row // _ROWS_PER_COLUMN
        return self._builder.add(self._first, i32(column))

    def copy(self) -> None:
        """Start copying the image, 128 rows of 4 scales at a time."""
        for row, group in itertools.product(range(self._rows), range(self._groups)):
            units = (row * self._groups + group) * _ATOM_UNITS
            source = self._builder.add(self._source, i64(units))
            self._builder.asm(tcgen05.COPY_SCALES, self.place(row * TCGEN05_ROWS, group), source)


def _scales(emitter: Emitter, op: ops.ScaledMultiply) -> tuple[_Scales, _Scales]:
    first = tensor_memory.scales_address(emitter, op.accumulator)
    second = emitter.builder.add(first, i32(scale_columns(op)[0]))
    return (
        _Scales(emitter, op.a_scale, op.a_scale_slot, first),
        _Scales(emitter, op.b_scale, op.b_scale_slot, second),
    )


@lowers(ops.ScaledMultiply)
def _multiply(emitter: Emitter, op: ops.ScaledMultiply) -> None:
    builder, kind = emitter.builder, kind_of_scaled(op)
    a = Side(emitter, op.a, op.a_slot, op.a_window, 0 if op.a_transposed else 1)
    b = Side(emitter, op.b, op.b_slot, op.b_window, 1 if op.b_transposed else 0)
    a.require_fit(op, "a", kind, emitter.target)
    b.require_fit(op, "b", kind, emitter.target)
    accumulate = emitter.scalar(op.accumulate)
    address = tensor_memory.address(emitter, op.accumulator)
    a_start = builder.add(a.address, i64(a.operand.tcgen05()))
    b_start = builder.add(b.address, i64(b.operand.tcgen05()))
    a_scales, b_scales = _scales(emitter, op)
    row, dtypes = tcgen05.scaled_mma(kind.name), (op.a.ref.dtype, op.b.ref.dtype)
    transposes = (not a.operand.is_k_major, not b.operand.is_k_major)
    with emitter.guarded(emitter.is_first_thread(), "issue"):
        builder.asm(tcgen05.FENCE_AFTER)
        a_scales.copy()
        b_scales.copy()
        for block, (first, width), k in _instructions(a, b, kind.depth):
            group, byte = divmod(k // kind.depth * kind.count, ops.SCALE_COLUMNS)
            scale = (op.a_scale.ref.dtype, byte)
            extents = (TCGEN05_ROWS, width)
            builder.asm(
                row,
                builder.add(address, i32(block * b.extent + first)),
                builder.add(a_start, i64(a.operand.units(block * TCGEN05_ROWS, k))),
                builder.add(b_start, i64(b.operand.units(first, k))),
                i32(scaled_instruction(kind, dtypes, scale, extents, transposes)),
                a_scales.place(block * TCGEN05_ROWS, group),
                b_scales.place(first, group),
                i1(True) if k else accumulate,
            )
        tensor_memory.commit(emitter)
    tensor_memory.count_product(emitter)


def _instructions(a: Side, b: Side, depth: int) -> Iterator[tuple[int, tuple[int, int], int]]:
    """Yield (block of rows, (first column, columns), first k) of each instruction."""
    parts = list(b.operand.parts(b.extent, MOST_COLUMNS))
    blocks, steps = range(a.extent // TCGEN05_ROWS), range(0, b.depth, depth)
    yield from itertools.product(blocks, parts, steps)
