"""Lowering of operations that move elements between places of a tile.

Invariant: nothing moves between threads but through `Scratch`, whose barriers every thread of the
block reaches.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import i32 as index_type
from astdsl.lowering.layout.conversion import part_moves, register_moves, slice_moves
from astdsl.lowering.layout.inference import broadcast_axes, broadcast_from, coalesced
from astdsl.lowering.layout.registers import Layout, normalised
from astdsl.lowering.layout.reshaping import reshaped
from astdsl.lowering.nvptx.function import (
    Emitter,
    Registers,
    Scratch,
    as_register,
    lowers_tile,
    padding,
    row_major_strides,
)
from astdsl.lowering.nvptx.rules.casts import converted
from astdsl.lowering.nvptx.values import LV, constant, i32


@lowers_tile(ops.Iota)
def _iota(emitter: Emitter, op: ops.Iota, layout: Layout) -> Sequence[LV]:
    places = emitter.coordinates(layout, op.axis)
    made = {
        place: converted(emitter, index_type, op.dtype, place) for place in dict.fromkeys(places)
    }
    return [made[place] for place in places]


@lowers_tile(ops.Broadcast)
def _broadcast(emitter: Emitter, op: ops.Broadcast, layout: Layout) -> Sequence[LV]:
    new, repeated = broadcast_axes(op)
    registers = emitter.get(op.x, broadcast_from(layout, op))
    return [registers[k] for k in layout.kept_registers((*range(new), *repeated))]


@lowers_tile(ops.LayoutCast)
def _layout_cast(emitter: Emitter, op: ops.LayoutCast, layout: Layout) -> Sequence[LV]:
    return emitter.get(op.x, layout)


@lowers_tile(ops.Transpose)
def _transpose(emitter: Emitter, op: ops.Transpose, layout: Layout) -> Sequence[LV]:
    inverse = sorted(range(len(op.permutation)), key=op.permutation.__getitem__)
    return emitter.get(op.x, layout.permuted(inverse))


@lowers_tile(ops.Reshape)
def _reshape(emitter: Emitter, op: ops.Reshape, layout: Layout) -> Sequence[LV]:
    moved = reshaped(layout, op.x.tile.shape)
    if moved:
        registers = emitter.get(op.x, moved)
        ones = [axis for axis, extent in enumerate(op.shape) if extent == 1]
        return [registers[k] for k in layout.kept_registers(ones)]
    source, registers = _held(emitter, op.x)
    moves = register_moves(source, normalised(layout))
    if moves:
        return emitter.moved(registers, op.x.tile, moves)
    emitter.note_scratch(op.x.tile, source, layout)
    scratch = Scratch(emitter, op.x.tile)
    scratch.write(registers, source)
    return scratch.read_reshaped(layout)


@lowers_tile(ops.Slice)
def _slice(emitter: Emitter, op: ops.Slice, layout: Layout) -> Sequence[LV]:
    source, registers = _held(emitter, op.x)
    moves = slice_moves(source, normalised(layout), op.starts, op.steps)
    if moves:
        return emitter.moved(registers, op.x.tile, moves)
    emitter.note_scratch(op.x.tile, source, layout)
    scratch = Scratch(emitter, op.x.tile)
    scratch.write(registers, source)
    return scratch.read(layout, op.starts, op.steps)


@lowers_tile(ops.UnpackNibbles)
def _unpack_nibbles(emitter: Emitter, op: ops.UnpackNibbles, layout: Layout) -> Sequence[LV]:
    """Take bytes apart; in what `doubled` makes, the two halves are neighbouring registers."""
    builder, packed = emitter.builder, layout.halved(op.axis)
    assert packed is not None, f"{layout} parts the halves of bytes"
    found: list[LV] = []
    for byte in emitter.get(op.x, packed):
        found.append(builder.and_(byte, constant("i8", 15)))
        found.append(builder.lshr(byte, constant("i8", 4)))
    return found


@lowers_tile(ops.PackNibbles)
def _pack_nibbles(emitter: Emitter, op: ops.PackNibbles, layout: Layout) -> Sequence[LV]:
    builder = emitter.builder
    halves = emitter.get(op.x, layout.doubled(op.axis))
    four = constant("i8", 4)
    pairs = zip(halves[::2], halves[1::2], strict=True)
    return [builder.or_(low, builder.shl(high, four)) for low, high in pairs]


@lowers_tile(ops.Insert)
def _insert(emitter: Emitter, op: ops.Insert, layout: Layout) -> Sequence[LV]:
    whole = emitter.get(op.x, layout)
    source, part = _held(emitter, op.part)
    moves = part_moves(source, normalised(layout), op.starts)
    if moves:
        placed: Sequence[LV] = emitter.moved(part, op.part.tile, moves)
    else:
        emitter.note_scratch(op.part.tile, source, layout)
        scratch = Scratch(emitter, op.part.tile)
        scratch.write(part, source)
        placed = scratch.read(layout, tuple(-start for start in op.starts))
    return [
        _chosen(emitter, op, layout, register, (old, new))
        for register, (old, new) in enumerate(zip(whole, placed, strict=True))
    ]


def _chosen(
    emitter: Emitter, op: ops.Insert, layout: Layout, register: int, values: tuple[LV, LV]
) -> LV:
    """Return the new value where the register is inside the part, else the old one."""
    old, new = values
    builder, inside = emitter.builder, None
    for axis, (start, extent) in enumerate(zip(op.starts, op.part.tile.shape, strict=True)):
        low = layout.offsets[register][axis]
        high = low + layout.reach[axis]
        if high < start or low >= start + extent:
            return old
        if low < start or high >= start + extent:
            place = builder.sub(emitter.coordinate(layout, axis, register), i32(start))
            inside = emitter.both(inside, builder.icmp("ult", place, i32(extent)))
    return new if inside is None else builder.select(inside, new, old)


def _held(emitter: Emitter, value: Value) -> tuple[Layout, Registers]:
    """Return the layout that holds a value, the coalesced one if it is FREE, and its registers."""
    layout = emitter.settled(value, coalesced(value.tile, emitter.threads))
    return layout, emitter.get(value, layout)


@lowers_tile(ops.Take)
def _take(emitter: Emitter, op: ops.Take, layout: Layout) -> Sequence[LV]:
    """Put x in shared memory, and pick from there; what is outside is picked and dropped."""
    builder, dtype = emitter.builder, op.x.tile.dtype
    indices = emitter.get(op.indices, layout)
    source, registers = _held(emitter, op.x)
    scratch = Scratch(emitter, op.x.tile)
    scratch.write(registers, source)
    strides, extent = row_major_strides(op.x.tile.shape), op.x.tile.shape[op.axis]
    others = [axis for axis in range(len(op.x.tile.shape)) if axis != op.axis]
    nothing, found = padding(dtype), []
    for register, index in enumerate(indices):
        limit = constant(index.type, extent)
        inside = builder.icmp("ult", index, limit)
        near = builder.intrinsic("llvm.umin", index, constant(index.type, max(extent - 1, 0)))
        place = builder.mul(builder.cast("trunc", near, "i32"), i32(strides[op.axis]))
        for axis, seen in zip(others, op.along, strict=True):
            coordinate = emitter.coordinate(layout, seen, register)
            last = i32(op.x.tile.shape[axis] - 1)
            bounded = builder.intrinsic("llvm.umin", coordinate, last)
            place = builder.add(place, builder.mul(bounded, i32(strides[axis])))
        loaded = builder.load(
            scratch.type, builder.gep(scratch.type, scratch.pointer, place), dtype.bytes
        )
        found.append(builder.select(inside, as_register(builder, loaded, dtype), nothing))
    return found
