"""Lowering of products that the threads compute themselves, from operands in shared memory.

Each thread runs over K once; at every k it loads the elements of A of its rows and those of B of
its columns, and adds their products to its registers.

Invariant: a product and its addition are rounded once (`fma`), so a product of f32 is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import DType
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.nvptx.access import buffer_address, slot_pointer
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.function import (
    MEMORY_TYPES,
    Emitter,
    as_register,
    llvm_type,
    lowers_tile,
)
from astdsl.lowering.nvptx.rules.casts import converted
from astdsl.lowering.nvptx.values import LV, constant, i32

_Add: TypeAlias = Callable[[Builder, LV, LV, LV], LV]


def _add_float(builder: Builder, total: LV, x: LV, y: LV) -> LV:
    return builder.intrinsic("llvm.fma", x, y, total)


def _add_integer(builder: Builder, total: LV, x: LV, y: LV) -> LV:
    return builder.add(total, builder.mul(x, y))


class _Side:
    """One operand: where its slot begins, and how to reach element (i, k)."""

    def __init__(
        self, emitter: Emitter, buffer: Value, slot: Sequence[Value], k_axis: int, target: DType
    ) -> None:
        builder = emitter.builder
        numbers = [builder.cast("trunc", emitter.scalar(v), "i32") for v in slot]
        self.emitter, self.k_axis, self.target = emitter, k_axis, target
        self.layout = emitter.shared.layouts[buffer]
        self.dtype = buffer.ref.dtype
        self.pointer = slot_pointer(emitter, buffer, numbers)
        self.extent = self.layout.shape[1 - k_axis]

    def load(self, i: LV, k: LV) -> LV:
        """Return element (i, k), converted to what is added up; padding reads the last one."""
        builder = self.emitter.builder
        inside = builder.intrinsic("llvm.umin", i, i32(self.extent - 1))
        places = [k, inside] if self.k_axis == 0 else [inside, k]
        address = buffer_address(self.emitter, self.pointer, self.layout, places)
        found = builder.load(MEMORY_TYPES[self.dtype.name], address, self.dtype.bytes)
        element = as_register(builder, found, self.dtype)
        return converted(self.emitter, self.dtype, self.target, element)


@lowers_tile(ops.SharedDot)
def _shared_dot(emitter: Emitter, op: ops.SharedDot, layout: Layout) -> Sequence[LV]:
    builder = emitter.builder
    depth = op.extents[2]
    a = _Side(emitter, op.a, op.a_slot, 0 if op.a_transposed else 1, op.dtype)
    b = _Side(emitter, op.b, op.b_slot, 1 if op.b_transposed else 0, op.dtype)
    rows, columns = (emitter.coordinates(layout, axis) for axis in (0, 1))
    kind = llvm_type(op.dtype)
    head, body, done = (builder.block(hint) for hint in ("dot", "dot.body", "dot.end"))
    before = builder.current
    builder.br(head)
    builder.position(head)
    k = builder.phi("i32", "k")
    k.add(i32(0), before)
    totals = [builder.phi(kind, "total") for _ in rows]
    for total in totals:
        total.add(constant(kind, 0), before)
    builder.cond_br(builder.icmp("ult", k.value, i32(depth)), body, done)
    builder.position(body)
    left = {place: a.load(place, k.value) for place in dict.fromkeys(rows)}
    right = {place: b.load(place, k.value) for place in dict.fromkeys(columns)}
    add: _Add = _add_float if op.dtype.is_float else _add_integer
    for total, row, column in zip(totals, rows, columns, strict=True):
        total.add(add(builder, total.value, left[row], right[column]), builder.current)
    k.add(builder.add(k.value, i32(1)), builder.current)
    builder.back_br(head)
    builder.position(done)
    return [total.value for total in totals]
