"""Lowering of what a running block says: prints, and assertions that fail.

Each thread takes room in the log for the elements that it owns and writes them there; the host puts
the tiles together. Invariant: no thread waits for another, so a report may stand anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.ir import ops
from astdsl.ir.core import Op, Value
from astdsl.ir.launch import ELEMENT_WORDS, NO_ELEMENT, RECORD_HEAD_WORDS
from astdsl.lowering.layout.registers import Layout, splat
from astdsl.lowering.nvptx.asm.memory import TAKE_WORDS
from astdsl.lowering.nvptx.function import (
    MEMORY_TYPES,
    Emitter,
    as_memory,
    lowers,
    row_major_strides,
)
from astdsl.lowering.nvptx.values import LV, bits_of, i32, i64


@lowers(ops.Print)
def _print(emitter: Emitter, op: ops.Print) -> None:
    for number, value in enumerate(op.values):
        layout = emitter.settled(value, emitter.default_layout(value.tile))
        registers = emitter.get(value, layout)
        with emitter.guarded(emitter.is_owner(layout)):
            _write(emitter, op, number, _elements(emitter, value, layout, registers))


@lowers(ops.DeviceAssert)
def _device_assert(emitter: Emitter, op: ops.DeviceAssert) -> None:
    fails = emitter.builder.xor(emitter.scalar(op.condition), LV("i1", "true"))
    first = emitter.is_owner(splat((), emitter.threads))
    with emitter.guarded(emitter.both(first, fails)):
        _write(emitter, op, 0, [])


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
