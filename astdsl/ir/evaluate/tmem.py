"""What tensor memory by hand means.

Invariant: products take effect when they are issued, and hold their sources and their target until
a barrier that they were committed to was waited for; loads hold their source until waited for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from astdsl.errors import ProtocolError
from astdsl.ir import ops
from astdsl.ir.core import Op, Value
from astdsl.ir.evaluate.memory import (
    barrier_of,
    read,
    require_visible,
    slot_place,
    window,
    write,
)
from astdsl.ir.evaluate.races import arrive
from astdsl.ir.evaluate.state import VISIBLE, Frame, Memory, Place, Reading, stored_mark
from astdsl.ir.evaluate.table import Array, evaluates
from astdsl.ir.evaluate.tensor import (
    operand,
    operand_place,
    scale_table,
    scaled_product,
    tensor_core_product,
)
from astdsl.ir.types import TMEM


@evaluates(ops.AllocTmem)
def _alloc(op: ops.AllocTmem, frame: Frame) -> Any:
    return frame.allocated(op, lambda: _new(op, frame))


def _new(op: ops.AllocTmem, frame: Frame) -> Memory:
    memory = Memory(
        data=np.zeros(op.shape, op.dtype.numpy),
        name=op.label or "tensor memory",
        span=op.span,
        written=np.zeros(op.shape, np.bool_),
        readers=np.zeros(op.shape, np.int16),
        private=np.zeros(op.shape, np.uint8),
        writers=np.zeros(op.shape, np.int16),
    )
    frame.block.memories.append(memory)
    return memory


def _require_idle(op: Op, memory: Memory, place: Place, frame: Frame) -> None:
    """Refuse to use what a product in flight writes, or a store that is not committed wrote."""
    assert memory.writers is not None, "tensor memory has marks"
    assert memory.private is not None, "tensor memory has marks"
    if memory.writers[place].any():
        started = [r for r in frame.block.readings() if r.target is not None]
        into = [r for r in started if r.target is not None and r.target[0] is memory]
        raise ProtocolError(
            "tensor memory is used while a product into it is in flight",
            (op.span, "uses it"),
            *((r.span, "the product") for r in into[-1:]),
            help="`tcgen05_mma(..., barrier)`, or `tcgen05_commit_arrive(barrier)` after it, and "
            "`barrier_wait(barrier)` before",
        )
    if memory.private[place].any():
        raise ProtocolError(
            "tensor memory is used before the store to it is known to be done",
            (op.span, "uses it"),
            (memory.span, "this memory"),
            help="`commit_tmem()` after the store",
        )


@evaluates(ops.TmemLoad)
def _load(op: ops.TmemLoad, frame: Frame) -> Array:
    memory: Memory = frame[op.ref]
    tile = load_place(op, frame)
    return np.array(memory.data[tile]).reshape(op.window_type.shape)


def load_place(op: ops.TmemLoad, frame: Frame) -> Place:
    """Begin a load; return the place that it reads."""
    memory: Memory = frame[op.ref]
    place, _ = window(op, memory, frame)
    assert memory.writers is not None, "tensor memory has marks"
    _require_idle(op, memory, place, frame)
    read(op, memory, place, frame)
    way_out = "`wait_load_tmem()` waits for the loads of tensor memory: wait"
    reading = Reading(op.span, [(memory, place)], way_out=way_out)
    reading.begin()
    frame.issuer.tensor_loads.append(reading)
    return place


@evaluates(ops.TmemStore)
def _store(op: ops.TmemStore, frame: Frame) -> None:
    store_place(op, np.asarray(frame[op.value]), frame)


def store_place(op: ops.TmemStore, value: Array, frame: Frame) -> None:
    """Write columns of tensor memory, not committed."""
    memory: Memory = frame[op.ref]
    place, _ = window(op, memory, frame)
    assert memory.writers is not None, "tensor memory has marks"
    assert memory.private is not None, "tensor memory has marks"
    if memory.writers[place].any():
        _require_idle(op, memory, place, frame)
    _take_turn(op, memory, frame)
    write(op, memory, place, value, frame)
    memory.private[place] = stored_mark(frame.warpgroup)


@evaluates(ops.TmemWaitLoad)
def _wait_load(op: ops.TmemWaitLoad, frame: Frame) -> None:
    del op
    for reading in frame.issuer.tensor_loads:
        reading.end()
    frame.issuer.tensor_loads.clear()


@evaluates(ops.TmemCommit)
def _commit(op: ops.TmemCommit, frame: Frame) -> None:
    del op
    mine = stored_mark(frame.warpgroup)
    for memory in frame.block.memories:
        if memory.writers is not None and memory.private is not None:
            memory.private[memory.private == mine] = VISIBLE


def product_places(
    op: ops.TensorMultiply, frame: Frame
) -> tuple[Place, list[tuple[Value, Memory, Place, bool]]]:
    """Return the accumulator's place, and (value, memory, place, transposed) of both operands."""
    accumulator: Memory = frame[op.accumulator]
    rows = slice(0, accumulator.data.shape[0])
    first = frame.number(op.column)
    found = []
    for value, slot, part, turned in (
        (op.a, op.a_slot, op.a_window, op.a_transposed),
        (op.b, op.b_slot, op.b_window, op.b_transposed),
    ):
        memory: Memory = frame[value]
        if value.ref.space == TMEM:
            low = frame.number(op.a_column[0])
            place: Place = (slice(0, memory.data.shape[0]), slice(low, low + _depth(op)))
        else:
            place = operand_place(op, memory, frame.numbers(slot), part)
        found.append((value, memory, place, turned))
    return (rows, slice(first, first + op.columns)), found


def _depth(op: ops.TensorMultiply) -> int:
    """Return the extent that a product contracts, from b."""
    axis = 1 if op.b_transposed else 0
    if op.b_window:
        return op.b_window[axis][1]
    extent = op.b.ref.shape[len(op.b_slot) :][axis]
    assert extent is not None, "shared memory has static extents"
    return extent


def start_product(
    op: ops.TensorMultiply, frame: Frame, accumulate: bool
) -> tuple[Memory, Place, list[Array]]:
    """Begin a product; return its accumulator, the place in it, and the operands."""
    accumulator: Memory = frame[op.accumulator]
    place, sides = product_places(op, frame)
    tiles = []
    for value, memory, where, turned in sides:
        if value.ref.space == TMEM:
            _require_idle(op, memory, where, frame)
            tiles.append(read(op, memory, where, frame))
        else:
            tiles.append(operand(op, memory, where, frame, is_transposed=turned))
    assert accumulator.readers is not None, "tensor memory has marks"
    assert accumulator.private is not None, "tensor memory has marks"
    assert accumulator.written is not None, "tensor memory has marks"
    if accumulate:
        if accumulator.private[place].any():
            _require_idle(op, accumulator, place, frame)
        _require_written(op, accumulator, place, frame)
    _require_unread(op, accumulator, place, frame)
    _take_turn(op, accumulator, frame)
    accumulator.written[place] = True
    accumulator.private[place] = VISIBLE
    way_out = "`tcgen05_commit_arrive(barrier)` after the product, and `barrier_wait(barrier)`"
    sources = [(m, p) for _, m, p, _ in sides]
    reading = Reading(op.span, sources, target=(accumulator, place), way_out=way_out)
    reading.begin()
    frame.issuer.tensor_products.append(reading)
    return accumulator, place, tiles


def _take_turn(op: Op, memory: Memory, frame: Frame) -> None:
    """Lose what other buffers of the same region hold; nothing may still use them."""
    for other in memory.overlapping:
        whole = tuple(slice(0, n) for n in other.data.shape)
        assert other.writers is not None, "tensor memory has marks"
        assert other.written is not None, "tensor memory has marks"
        if other.writers.any():
            _require_idle(op, other, whole, frame)
        _require_unread(op, other, whole, frame)
        other.written[...] = False


def _require_written(op: Op, memory: Memory, place: Place, frame: Frame) -> None:
    """Read the place as if no product into it were in flight: they run in order."""
    writers, memory.writers = memory.writers, None
    try:
        read(op, memory, place, frame)
    finally:
        memory.writers = writers


def _require_unread(op: Op, memory: Memory, place: Place, frame: Frame) -> None:
    assert memory.readers is not None, "tensor memory has marks"
    if memory.readers[place].any():
        using = next(r for r in frame.block.readings() if r.touches(memory, place))
        raise ProtocolError(
            "tensor memory is written while it is still being read",
            (op.span, "writes"),
            (using.span, "reads"),
            help="`wait_load_tmem()` after the loads; for a product, wait on its barrier",
        )


@evaluates(ops.TensorMultiply)
def _multiply(op: ops.TensorMultiply, frame: Frame) -> None:
    adds = bool(frame[op.accumulate])
    accumulator, place, (a, b) = start_product(op, frame, adds)
    target = op.accumulator.ref.dtype
    product = tensor_core_product(a, b, op.a.ref.dtype, target)
    accumulator.data[place] = accumulator.data[place] + product if adds else product


@evaluates(ops.ScaledTensorMultiply)
def _scaled_multiply(op: ops.ScaledTensorMultiply, frame: Frame) -> None:
    adds = bool(frame[op.accumulate])
    scales = [_read_scales(op, frame[value], frame) for value in (op.a_scale, op.b_scale)]
    accumulator, place, (a, b) = start_product(op, frame, adds)
    product = scaled_product(op, a, b, (scales[0], scales[1]))
    accumulator.data[place] = accumulator.data[place] + product if adds else product


def _read_scales(op: Op, memory: Memory, frame: Frame) -> Array:
    """Return the scales that a product reads: copies to them are done before it, in order."""
    whole = tuple(slice(0, n) for n in memory.data.shape)
    _require_written(op, memory, whole, frame)
    return np.array(memory.data)


@evaluates(ops.CopyScales)
def _copy_scales(op: ops.CopyScales, frame: Frame) -> None:
    target, image = start_copy(op, frame)
    rows, count = target.data.shape
    target.data[...] = scale_table(image)[:rows, :count]


def start_copy(op: ops.CopyScales, frame: Frame) -> tuple[Memory, Array]:
    """Begin a copy of scales; return where they go, and their image."""
    source: Memory = frame[op.source]
    target: Memory = frame[op.target]
    place = slot_place(op, source, frame.numbers(op.slot))
    image = read(op, source, place, frame)
    require_visible(op, source, place)
    _take_turn(op, target, frame)
    assert target.written is not None, "tensor memory has marks"
    target.written[...] = True
    way_out = "`tcgen05_commit_arrive(barrier)` after the copy, and `barrier_wait(barrier)`"
    reading = Reading(op.span, [(source, place)], way_out=way_out)
    reading.begin()
    frame.issuer.tensor_products.append(reading)
    return target, image.reshape(image.shape[len(op.slot) :])


@evaluates(ops.TensorCommit)
def _commit_products(op: ops.TensorCommit, frame: Frame) -> None:
    barrier = barrier_of(op, frame)
    issuer = frame.issuer
    waiting = [
        (barrier.phase, reading) for reading in issuer.tensor_products if not reading.is_read
    ]
    barrier.products += waiting
    arrive(barrier, op, frame)
