"""What indexed accesses mean: gathers, scatters, atomic updates.

Invariant: elements are taken in row-major order of the tile; those left out touch no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from astdsl.errors import RepeatedIndex
from astdsl.ir import ops
from astdsl.ir.dtypes import DType
from astdsl.ir.evaluate.arith import compute, maximum, minimum
from astdsl.ir.evaluate.memory import mark_stored, read, write
from astdsl.ir.evaluate.rounding import number
from astdsl.ir.evaluate.state import Frame, Memory, note_update
from astdsl.ir.evaluate.table import Array, evaluates

Places: TypeAlias = tuple[Array, ...]
_WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def _coordinates(op: ops.Indexed, frame: Frame) -> list[Array]:
    """Return where the tile's elements are along each axis of the ref, each broadcastable."""
    rank = len(op.shape)
    tiles = dict(zip(op.indexed, op.indices, strict=True))
    along = iter(op.along)
    found = []
    for axis, (start, step) in enumerate(zip(frame.numbers(op.starts), op.steps, strict=True)):
        count: Any = 0
        if axis in tiles:
            count = np.asarray(frame[tiles[axis]]).astype(np.int64)
        elif op.kept[axis]:
            ones = [1] * rank
            ones[next(along)] = -1
            count = np.arange(op.sizes[axis]).reshape(ones)
        found.append(np.asarray(start + step * count, np.int64))
    return found


def _touched(op: ops.Indexed, memory: Memory, frame: Frame) -> tuple[Array, Places]:
    """Return which elements of the tile take part, and where those are in memory."""
    limits = frame.numbers(op.limits)
    bounds = {a: limits[2 * k : 2 * k + 2] for k, a in enumerate(op.limited)}
    alive = np.ones(op.shape, np.bool_)
    places = _coordinates(op, frame)
    for axis, (place, extent) in enumerate(zip(places, memory.data.shape, strict=True)):
        low, high = bounds.get(axis, (0, extent))
        alive &= (place >= max(low, 0)) & (place < min(high, extent))
    for mask in op.mask:
        alive &= frame[mask]
    return alive, tuple(np.broadcast_to(p, op.shape)[alive] for p in places)


@evaluates(ops.Gather)
def _gather(op: ops.Gather, frame: Frame) -> Array:
    memory: Memory = frame[op.ref]
    alive, places = _touched(op, memory, frame)
    found = np.full(op.shape, number(op.fill, op.ref.ref.dtype), memory.data.dtype)
    found[alive] = read(op, memory, places, frame)
    return found


@evaluates(ops.Scatter)
def _scatter(op: ops.Scatter, frame: Frame) -> None:
    memory: Memory = frame[op.ref]
    alive, places = _touched(op, memory, frame)
    values = np.asarray(frame[op.value])[alive]
    _require_one_value_a_place(op, memory, places, values)
    write(op, memory, places, values, frame)
    mark_stored(op, memory, places, frame)


def _require_one_value_a_place(
    op: ops.Scatter, memory: Memory, places: Places, values: Array
) -> None:
    """Refuse two different values for one element: which of them stays is not defined."""
    if not places or not op.indexed:
        return
    numbers = np.ravel_multi_index(places, memory.data.shape)
    order = np.argsort(numbers, kind="stable")
    bits = _bits(values)[order]
    same_place = numbers[order][1:] == numbers[order][:-1]
    clash = np.flatnonzero(same_place & (bits[1:] != bits[:-1]))
    if clash.size:
        where = tuple(int(p[order[clash[0]]]) for p in places)
        raise RepeatedIndex(
            f"two different values are stored at {where} of {memory.name}",
            (op.span, "an index occurs twice"),
            help="`atomic_add`, `atomic_max` or another one combines them; equal values are fine",
        )


def _bits(values: Array) -> Array:
    flat = np.ascontiguousarray(values)
    return flat.view(_WORDS[8 * flat.dtype.itemsize])


Update: TypeAlias = Callable[[DType, Array, Array, Array | None], Array]


def _in_dtype(function: Callable[..., Any]) -> Update:
    return lambda dtype, old, value, other: compute(function, dtype, old, value)


def _extreme(of_floats: Callable[..., Any], of_integers: Callable[..., Any]) -> Update:
    return lambda dtype, old, value, other: compute(
        of_floats if dtype.is_float else of_integers, dtype, old, value
    )


def _swapped(dtype: DType, old: Array, value: Array, other: Array | None) -> Array:
    assert other is not None, "cas compares"
    return np.where(_bits(old) == _bits(other), value, old)


_UPDATES: dict[str, Update] = {
    "add": _in_dtype(np.add),
    "max": _extreme(maximum, np.maximum),
    "min": _extreme(minimum, np.minimum),
    "and": _in_dtype(np.bitwise_and),
    "or": _in_dtype(np.bitwise_or),
    "xor": _in_dtype(np.bitwise_xor),
    "exchange": lambda dtype, old, value, other: value,
    "cas": _swapped,
}


@evaluates(ops.Atomic)
def _atomic(op: ops.Atomic, frame: Frame) -> Array:
    memory: Memory = frame[op.ref]
    alive, places = _touched(op, memory, frame)
    values = np.asarray(frame[op.value])[alive]
    others = [np.asarray(frame[v])[alive] for v in op.compare]
    before = np.zeros_like(values)
    update = _UPDATES[op.kind]
    if frame.step is not None and memory.shadow is not None:
        note_update(memory, places, frame.step, op)
    for turn in _turns(places, memory):
        some = tuple(p[turn] for p in places)
        old = read(op, memory, some, frame, is_update=True)
        before[turn] = old
        other = others[0][turn] if others else None
        new = update(op.ref.ref.dtype, old, values[turn], other)
        write(op, memory, some, new, frame, is_update=True)
    mark_stored(op, memory, places, frame)
    found = np.zeros(op.shape, memory.data.dtype)
    found[alive] = before
    return found


def _turns(places: Places, memory: Memory) -> Iterator[Any]:
    """Yield sets of elements, in order, none with one place twice."""
    if not places:
        yield from range(1)
        return
    numbers = np.ravel_multi_index(places, memory.data.shape)
    left = np.arange(len(numbers))
    while left.size:
        _, first = np.unique(numbers[left], return_index=True)
        yield left[np.sort(first)]
        left = np.delete(left, first)
