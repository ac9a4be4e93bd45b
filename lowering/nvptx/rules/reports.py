"""Lowering of what a running block says: prints, and assertions that fail; layouts are told now.

Each thread takes room in the log for the elements that it owns and writes them there; the host puts
the tiles together. Invariant: no thread waits for another, so a report may stand anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from astdsl.ir import ops
from astdsl.ir.core import Op, Value
from astdsl.ir.launch import ELEMENT_WORDS, NO_ELEMENT, RECORD_HEAD_WORDS
from astdsl.ir.types import SMEM, AccumulatorType, RefType, TileType
from astdsl.lowering.layout.conversion import LayoutNote
from astdsl.lowering.layout.registers import Layout, splat, wgmma_accumulator
from astdsl.lowering.layout.spelling import spelt, spelt_buffer
from astdsl.lowering.nvptx import tensor_memory
from astdsl.lowering.nvptx.asm.memory import TAKE_WORDS
from astdsl.lowering.nvptx.function import (
    MEMORY_TYPES,
    Emitter,
    as_memory,
    lowers,
    row_major_strides,
)
from astdsl.lowering.nvptx.values import LV, bits_of, i32, i64
from astdsl.lowering.target import WGMMA


@lowers(ops.Print)
def _print(emitter: Emitter, op: ops.Print) -> None:
    _write_values(emitter, op, None)


@lowers(ops.DeviceAssert)
def _device_assert(emitter: Emitter, op: ops.DeviceAssert) -> None:
    fails = emitter.builder.xor(emitter.scalar(op.condition), LV("i1", "true"))
    if op.values:
        _write_values(emitter, op, fails)
        return
    first = emitter.is_owner(splat((), emitter.threads))
    with emitter.guarded(emitter.both(first, fails)):
        _write(emitter, op, 0, [])


def _write_values(emitter: Emitter, op: ops.Print | ops.DeviceAssert, where: LV | None) -> None:
    """Write a record of each value, if `where` holds."""
    for number, value in enumerate(op.values):
        layout = emitter.settled(value, emitter.default_layout(value.tile))
        registers = emitter.get(value, layout)
        with emitter.guarded(emitter.both(emitter.is_owner(layout), where)):
            _write(emitter, op, number, _elements(emitter, value, layout, registers))


@lowers(ops.PrintLayout)
def _print_layout(emitter: Emitter, op: ops.PrintLayout) -> None:
    emitter.shared.told[LayoutNote(op.span, str(op.x.type), _layout_of(emitter, op.x))] = None


def _layout_of(emitter: Emitter, x: Value) -> str:
    """Return where the elements of a tile, an accumulator or memory on chip are."""
    if isinstance(x.type, TileType):
        placement = emitter.placements[x]
        if isinstance(placement, Layout):
            return spelt(placement)
        return "made where it is used, in the layout of the use"
    if isinstance(x.type, RefType) and x.type.space == SMEM:
        layout = emitter.shared.layouts[x]
        extents = [n for n in x.type.shape if n is not None]
        return spelt_buffer(layout, math.prod(extents) // math.prod(layout.shape))
    if isinstance(x.type, AccumulatorType) and emitter.target.has(WGMMA):
        rows, columns = x.type.shape
        return spelt(wgmma_accumulator((rows, columns), emitter.threads))
    return tensor_memory.spelt(emitter, x)


def _elements(emitter: Emitter, value: Value, layout: Layout, registers: Sequence[LV]) -> list[LV]:
    """Return the words of a thread's elements: the place in the tile, and the bits."""
    builder, dtype = emitter.builder, value.tile.dtype
    strides = row_major_strides(value.tile.shape)
    words: list[LV] = []
    for number, register in enumerate(registers):
        place = i32(0)
        for axis, stride in enumerate(strides):
            along = emitter.coordinate(layout, axis, number)
            place = builder.add(place, builder.mul(along, i32(stride)))
        inside = emitter.is_inside(layout, number)
        if inside is not None:
            place = builder.select(inside, place, i32(NO_ELEMENT))
        memory_type = MEMORY_TYPES[dtype.name]
        whole = f"i{bits_of(memory_type)}"
        bits = builder.cast("bitcast", as_memory(builder, register, dtype), whole)
        wide = builder.cast("zext", bits, "i64")
        high = builder.cast("trunc", builder.lshr(wide, i64(32)), "i32")
        words += [place, builder.cast("trunc", wide, "i32"), high]
    return words


def _write(emitter: Emitter, op: Op, number: int, elements: Sequence[LV]) -> None:
    """Write one record, if the log has room for it."""
    builder, log = emitter.builder, emitter.log
    assert log is not None, "a launch with reports has a log"
    assert len(elements) % ELEMENT_WORDS == 0, "an element is a place and two words"
    length = i32(RECORD_HEAD_WORDS + len(elements))
    (first,) = builder.asm(TAKE_WORDS, log.pointer, length)
    there_are = builder.load("i32", builder.gep("i32", log.pointer, i32(1)), 4)
    fits = builder.icmp("ule", builder.add(first, length), there_are)
    with emitter.guarded(fits):
        record = builder.gep("i32", log.pointer, builder.cast("zext", first, "i64"))
        block = builder.special_register("ctaid.x")
        crew = builder.sub(emitter.block_crew.thread, emitter.thread)
        head = [length, i32(log.numbers[op]), i32(number), block, crew, emitter.thread]
        for k, word in enumerate([*head, *elements]):
            builder.store(word, builder.gep("i32", record, i32(k)), 4)
