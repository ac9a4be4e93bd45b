"""What windows mean: loads, stores, allocations and asynchronous copies.

Invariant: every access to memory goes through `read` and `write`, which check marks: unwritten
elements, copies in flight, conflicts between the steps of a spread pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from astdsl.errors import BadWindow, DeviceError, ProtocolError, UnwrittenRead
from astdsl.ir import ops
from astdsl.ir.core import Op
from astdsl.ir.evaluate.races import arrive, note_access
from astdsl.ir.evaluate.rounding import number
from astdsl.ir.evaluate.state import (
    VISIBLE,
    Barrier,
    Frame,
    Landing,
    Memory,
    Place,
    Reading,
    fenced_mark,
    is_stored,
    note_read,
    note_warpgroup,
    note_write,
    stored_mark,
)
from astdsl.ir.evaluate.table import Array, evaluates
from astdsl.ir.types import GMEM


@evaluates(ops.Dim)
def _dim(op: ops.Dim, ref: Memory) -> Any:
    return np.int64(ref.data.shape[op.axis])


def _axis(start: int, size: int, step: int, extent: int) -> tuple[slice, slice]:
    """Return where a window's elements inside the array are: in memory, and in the window."""
    if step < 0:
        first = max(0, -((extent - 1 - start) // -step)) if start > extent - 1 else 0
        last = min(size, start // -step + 1) if start >= 0 else 0
    else:
        first = max(0, -(start // step))
        last = min(size, -((start - extent) // step))
    if first >= last:
        return slice(0, 0), slice(0, 0)
    low, high = start + first * step, start + (last - 1) * step
    stop = high + (1 if step > 0 else -1)
    return slice(low, stop if stop >= 0 else None, step), slice(first, last)


def window(op: ops.Window, memory: Memory, frame: Frame) -> tuple[Place, Place]:
    """Return the window's elements that are inside: places in memory and in the whole window."""
    starts = frame.numbers(op.starts)
    pairs = [
        _axis(start, size, step, extent)
        for start, size, step, extent in zip(
            starts, op.sizes, op.steps, memory.data.shape, strict=True
        )
    ]
    return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)


def _is_whole(op: ops.Window, inside: Place) -> bool:
    return all(s.stop - s.start == n for s, n in zip(inside, op.sizes, strict=True))


def _require_inside(op: ops.Window, memory: Memory, frame: Frame, inside: Place) -> None:
    if op.ref.ref.space != GMEM and not _is_whole(op, inside):
        raise BadWindow(
            f"a window at {frame.numbers(op.starts)} of sizes {op.sizes} crosses the edge of "
            f"on-chip memory {memory.data.shape}",
            (op.span, "this window"),
            (memory.span, "this memory"),
            help="only windows of global memory may cross an edge",
        )


def read(op: Op, memory: Memory, place: Place, frame: Frame, *, is_update: bool = False) -> Array:
    """Return elements of memory, which must be written; atomics keep their own account."""
    if memory.written is not None and not memory.written[place].all():
        raise _unwritten(op, memory, place)
    if memory.writers is not None and memory.writers[place].any():
        raise _not_arrived(op, memory, frame)
    if frame.step is not None and memory.shadow is not None and not is_update:
        note_read(memory, place, frame.step, op)
    if not is_update:
        note_access(op, memory, place, frame, is_write=False)
    found: Array = memory.data[place]
    return found


def _not_arrived(op: Op, memory: Memory, frame: Frame) -> Exception:
    issuers = frame.block.issuers
    copies = [c for x in issuers for c in (*(c for group in x.groups for c in group), *x.copies)]
    to_here = [c for c in copies if c.target is not None and c.target[0] is memory]
    return ProtocolError(
        f"{memory.name} is read before the copy out to it was waited for",
        (op.span, "reads"),
        *((copy.span, "the copy") for copy in to_here[-1:]),
        help="wait for the copy's group to be complete, not only to have read its source",
    )


def _unwritten(op: Op, memory: Memory, place: Place) -> Exception:
    landing = _landing_on(memory, place)
    if landing is not None:
        return ProtocolError(
            f"{memory.name} is read before the copy into it was waited for",
            (op.span, "reads"),
            (landing.span, "the copy"),
            help="`barrier_wait` on the copy's barrier first",
        )
    is_shared = memory.private is not None
    return UnwrittenRead(
        f"{memory.name} is read before it is written",
        (op.span, "reads unwritten elements"),
        (memory.span, "this memory"),
        help="write it first, or `barrier_wait` for the copy that fills it"
        if is_shared
        else "write it first, or give it an initial value",
    )


def write(
    op: Op, memory: Memory, place: Place, value: Array, frame: Frame, *, is_update: bool = False
) -> None:
    """Set elements of memory; nothing asynchronous may still use them."""
    _require_free(op, memory, place, frame)
    for other in memory.overlapping:
        whole = tuple(slice(0, n) for n in other.data.shape)
        _require_free(op, other, whole, frame)
        assert other.written is not None, "shared memory has marks"
        other.written[...] = False
    if frame.step is not None and memory.shadow is not None and not is_update:
        note_write(memory, place, frame.step, op)
        note_warpgroup(memory, place, frame, op)
    if not is_update:
        note_access(op, memory, place, frame, is_write=True)
    memory.data[place] = value
    if memory.written is not None:
        memory.written[place] = True


def _require_free(op: Op, memory: Memory, place: Place, frame: Frame) -> None:
    if memory.readers is None:
        return
    if memory.readers[place].any():
        using = next(r for r in frame.block.readings() if r.touches(memory, place))
        raise ProtocolError(
            f"{memory.name} is overwritten while an asynchronous read of it is in flight",
            (op.span, "writes"),
            (using.span, "reads"),
            help=f"{using.way_out} first",
        )
    landing = _landing_on(memory, place)
    if landing is not None:
        raise ProtocolError(
            f"{memory.name} is overwritten while a copy into it is in flight",
            (op.span, "writes"),
            (landing.span, "the copy"),
            help="`barrier_wait` on the copy's barrier first",
        )


def _landing_on(memory: Memory, place: Place) -> Landing | None:
    """Return a copy in flight that writes any of these elements."""
    return next((x for x in memory.landing if _meet(memory, x.place, place)), None)


def load_window(op: ops.Window, fill: Any, frame: Frame) -> Array:
    """Return the window as a tile, `fill` where it is outside."""
    memory: Memory = frame[op.ref]
    place, inside = window(op, memory, frame)
    _require_inside(op, memory, frame, inside)
    found = read(op, memory, place, frame)
    shape = op.window_type.shape
    if _is_whole(op, inside):
        return np.array(found).reshape(shape)
    whole = np.full(op.sizes, number(fill, op.ref.ref.dtype), memory.data.dtype)
    whole[inside] = found
    return whole.reshape(shape)


def store_window(op: ops.Window, value: Array, frame: Frame) -> None:
    """Write a tile to the window, elements outside dropped."""
    memory: Memory = frame[op.ref]
    place, inside = window(op, memory, frame)
    _require_inside(op, memory, frame, inside)
    write(op, memory, place, np.reshape(value, op.sizes)[inside], frame)
    mark_stored(op, memory, place, frame)


def mark_stored(op: Op, memory: Memory, place: Place, frame: Frame) -> None:
    """Remember that asynchronous readers do not see a store to shared memory yet."""
    if memory.private is not None:
        memory.private[place] = stored_mark(frame.warpgroup)
        memory.stores.pop(op.span, None)
        memory.stores[op.span] = place


@evaluates(ops.Load)
def _load(op: ops.Load, frame: Frame) -> Array:
    return load_window(op, op.fill, frame)


@evaluates(ops.Prefetch)
def _prefetch(op: ops.Prefetch, frame: Frame) -> None:
    """Do nothing: there is no cache here."""
    del op, frame


@evaluates(ops.Store)
def _store(op: ops.Store, frame: Frame) -> None:
    store_window(op, frame[op.value], frame)


@evaluates(ops.AllocGmem)
def _alloc_gmem(op: ops.AllocGmem, frame: Frame) -> Any:
    return frame.allocated(op, lambda: _new_global(op, frame))


@contextmanager
def _enough_memory(op: Op, what: str, shape: tuple[int, ...]) -> Iterator[None]:
    """Refuse an allocation that this machine has no memory for."""
    try:
        yield
    except (MemoryError, ValueError):  # more than there is, or than NumPy counts
        raise DeviceError(
            f"this machine has no memory for `{what}` of {shape}",
            (op.span, ""),
            help="allocate less, or go through it in parts",
        ) from None


def _new_global(op: ops.AllocGmem, frame: Frame) -> Memory:
    runtime = iter(frame.numbers(op.dims))
    shape = tuple(max(0, next(runtime)) if n is None else n for n in op.shape)
    with _enough_memory(op, "GMEM", shape):
        memory = Memory(
            data=np.zeros(shape, op.dtype.numpy),
            name=op.label or "scratch",
            span=op.span,
            written=np.zeros(shape, np.bool_),
        )
    frame.memories.append(memory)
    return memory


@evaluates(ops.AllocSmem)
def _alloc_smem(op: ops.AllocSmem, frame: Frame) -> Any:
    return frame.allocated(op, lambda: _new_shared(op, frame))


def _new_shared(op: ops.AllocSmem, frame: Frame) -> Memory:
    with _enough_memory(op, "SMEM", op.shape):
        memory = Memory(
            data=np.zeros(op.shape, op.dtype.numpy),
            name=op.label or op.result.hint or "shared memory",
            span=op.span,
            written=np.zeros(op.shape, np.bool_),
            readers=np.zeros(op.shape, np.int16),
            private=np.zeros(op.shape, np.uint8),
        )
    frame.block.memories.append(memory)
    return memory


@evaluates(ops.StateLayout)
def _state_layout(op: ops.StateLayout, frame: Frame) -> None:
    """Do nothing: where elements are in memory does not change what they are."""


@evaluates(ops.Overlap)
def _overlap(op: ops.Overlap, frame: Frame) -> None:
    groups = [[frame[v] for v in group] for group in op.groups()]
    for group in groups:
        others = [memory for other in groups if other is not group for memory in other]
        for memory in group:
            memory.overlapping = others


def slot_place(op: Op, memory: Memory, slot: tuple[int, ...]) -> Place:
    """Return the place of a slot: whole, in the axes that `slot` does not index."""
    rest = memory.data.shape[len(slot) :]
    for index, extent in zip(slot, memory.data.shape, strict=False):
        if not 0 <= index < extent:
            raise BadWindow(
                f"slot {index} of {memory.name}, which has {extent}",
                (op.span, ""),
                (memory.span, "made here"),
                help=f"slots go from 0 to {extent - 1}",
            )
    return (*(slice(i, i + 1) for i in slot), *(slice(0, n) for n in rest))


def require_visible(op: Op, memory: Memory, place: Place) -> None:
    """Refuse an asynchronous read of stores that are not fenced, or not joined by a barrier."""
    assert memory.private is not None, "shared memory has marks"
    marks = memory.private[place]
    if not marks.any():
        return
    missing = "proxy fence" if is_stored(marks) else "block barrier"
    stores = [span for span, where in memory.stores.items() if _meet(memory, where, place)]
    raise ProtocolError(
        f"{memory.name} is read asynchronously without a {missing} after the store to it",
        (op.span, "reads"),
        *((span, "the store") for span in stores[-1:]),
        (memory.span, "this memory"),
        help="after the store: `commit_smem()`, a proxy fence and a barrier",
    )


def _meet(memory: Memory, place: Place, other: Place) -> bool:
    """Whether two places have an element in common."""
    mark = np.zeros(memory.data.shape, np.bool_)
    mark[place] = True
    return bool(mark[other].any())


def fence(frame: Frame) -> None:
    """Make the threads' own stores to shared memory visible to asynchronous readers."""
    _mark(frame, stored_mark(frame.warpgroup), fenced_mark(frame.warpgroup))


def join(frame: Frame) -> None:
    """Make fenced stores of every thread visible to whoever issues asynchronous reads."""
    _mark(frame, fenced_mark(frame.warpgroup), VISIBLE)


def _mark(frame: Frame, old: int, new: int) -> None:
    for memory in frame.block.memories:
        if memory.private is not None:
            memory.private[memory.private == old] = new


def barrier_of(op: Any, frame: Frame) -> Barrier:
    """Return the barrier that an operation names. Raises ProtocolError where there is none."""
    barriers: list[Barrier] = frame[op.barrier]
    index = frame.number(op.index)
    if not 0 <= index < len(barriers):
        raise ProtocolError(
            f"barrier {index} of an array of {len(barriers)}",
            (op.span, ""),
            (barriers[0].span, "made here"),
            help=f"indices go from 0 to {len(barriers) - 1}",
        )
    return barriers[index]


def _is_predicated_off(op: ops.Copy, frame: Frame) -> bool:
    return any(not frame[p] for p in op.predicate)


@evaluates(ops.CopyIn)
def _copy_in(op: ops.CopyIn, frame: Frame) -> None:
    barrier = barrier_of(op, frame)
    if not _is_predicated_off(op, frame):
        memory: Memory = frame[op.buffer]
        place = slot_place(op, memory, frame.numbers(op.slot))
        tile = load_window(op, 0, frame)
        shape = memory.data[place].shape
        write(op, memory, place, np.reshape(tile, shape), frame)
        assert memory.written is not None, "shared memory has marks"
        assert memory.private is not None, "shared memory has marks"
        memory.written[place] = False
        memory.private[place] = VISIBLE
        landing = Landing(memory, place, op.span, barrier.phase)
        memory.landing.append(landing)
        barrier.landings.append(landing)
    arrive(barrier, op, frame)


@evaluates(ops.CopyOut)
def _copy_out(op: ops.CopyOut, frame: Frame) -> None:
    if _is_predicated_off(op, frame):
        return
    memory: Memory = frame[op.buffer]
    place = slot_place(op, memory, frame.numbers(op.slot))
    tile = np.array(read(op, memory, place, frame))
    require_visible(op, memory, place)
    store_window(op, tile.reshape(op.window_type.shape), frame)
    array: Memory = frame[op.ref]
    target = (array, window(op, array, frame)[0])
    reading = Reading(op.span, [(memory, place)], target=target)
    reading.begin()
    frame.issuer.copies.append(reading)


@evaluates(ops.CommitGroup)
def _commit_group(op: ops.CommitGroup, frame: Frame) -> None:
    del op
    frame.issuer.groups.append(frame.issuer.copies)
    frame.issuer.copies = []


@evaluates(ops.WaitGroup)
def _wait_group(op: ops.WaitGroup, frame: Frame) -> None:
    groups = frame.issuer.groups
    for group in list(groups)[: len(groups) - op.pending]:
        for copy in group:
            if op.read_only:
                copy.end_reading()
            else:
                copy.end()
        if not op.read_only:
            groups.popleft()
