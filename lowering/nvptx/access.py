"""Where the elements of a window are: addresses and predicates, register by register.

Invariant: an access is either `vector` elements wide for every register of the layout, or one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from astdsl.ir import ops
from astdsl.lowering.layout.banks import Conflict, conflicts_of
from astdsl.lowering.layout.offsets import split_offsets, swizzled_offsets
from astdsl.lowering.layout.registers import WARP_THREADS, WIDEST_ACCESS_BYTES, Layout
from astdsl.lowering.layout.shared import SWIZZLE_PERIOD_BITS, SWIZZLE_UNIT_BYTES, BufferLayout
from astdsl.lowering.nvptx.function import MEMORY_TYPES, Emitter
from astdsl.lowering.nvptx.values import LV, i32, i64


def vector_elements(layout: Layout, axis: int, element_bytes: int) -> int:
    """Return how many neighbouring registers are neighbours along `axis` and start aligned."""
    first = layout.registers[0] if layout.registers else None
    if first is None or first.axis != axis or first.stride != 1:
        return 1
    others = [d.stride for d in (*layout.registers[1:], *layout.threads) if d.axis == axis]
    width = WIDEST_ACCESS_BYTES // element_bytes
    while width > 1 and (first.extent % width or any(s % width for s in others)):
        width //= 2
    return max(1, width)


def fast_first(layout: Layout, axis: int) -> tuple[Layout, tuple[int, ...]]:
    """Return the layout whose neighbouring registers are neighbours along `axis`, if any are.

    And for each of its registers the number of the same one in `layout`.
    """
    digits = list(layout.registers)
    found = next((k for k, d in enumerate(digits) if (d.axis, d.stride) == (axis, 1)), 0)
    order = [found, *(k for k in range(len(digits)) if k != found)]
    steps = [math.prod(d.extent for d in digits[:k]) for k in range(len(digits))]
    numbers = [0]
    for k in order if digits else ():
        numbers = [n + d * steps[k] for d in range(digits[k].extent) for n in numbers]
    registers = tuple(digits[k] for k in order if digits)
    return Layout(layout.shape, registers, layout.threads), tuple(numbers)


class GlobalWindow:
    """A window of a global array, as the threads of a layout reach it."""

    def __init__(self, emitter: Emitter, op: ops.Window, layout: Layout) -> None:
        self.emitter, self.builder = emitter, emitter.builder
        self.op, self.layout = op, layout
        self.argument = emitter.arguments[op.ref]
        self.dtype = op.ref.ref.dtype
        self.type = MEMORY_TYPES[self.dtype.name]
        self.starts = [emitter.scalar(v) for v in op.starts]
        kept = [a for a, k in enumerate(op.kept) if k]
        self.tile_axis = {ref_axis: k for k, ref_axis in enumerate(kept)}
        self._base: LV | None = None
        self._moves: dict[tuple[int, int], LV] = {}
        self._insides: dict[tuple[int, int], LV | None] = {}

    @property
    def vector(self) -> int:
        """Elements of one access where the whole window is inside; 1 if they may not be joined."""
        ref, op = self.op.ref.ref, self.op
        if not ref.tma or 1 not in ref.strides or not self.layout.is_exact:
            return 1
        contiguous = len(ref.strides) - 1 - ref.strides[::-1].index(1)
        if not op.kept[contiguous] or op.steps[contiguous] != 1:
            return 1
        tile_axis = self.tile_axis[contiguous]
        width = vector_elements(self.layout, tile_axis, self.dtype.bytes)
        start = self.emitter.forms[op.starts[contiguous]].divisor
        while width > 1 and start % width:
            width //= 2
        return width

    def address(self, register: int) -> LV:
        """Return the address of a register's element."""
        index = self.base()
        for ref_axis, tile_axis in self.tile_axis.items():
            offset = self.layout.offsets[register][tile_axis]
            if offset:
                index = self.builder.add(index, self._move(ref_axis, offset))
        return self.builder.gep(self.type, self.argument.pointer, index)

    def base(self) -> LV:
        """Return the element number of the thread's register 0, i64."""
        if self._base is None:
            total = i64(0)
            for axis, start in enumerate(self.starts):
                place = start
                if axis in self.tile_axis:
                    place = self.builder.add(place, self._thread_part(axis))
                stride = self.argument.strides[axis]
                total = self.builder.add(total, self.builder.mul(place, stride))
            self._base = total
        return self._base

    def inside(self, register: int) -> LV | None:
        """Return whether a register's element exists; None: always."""
        result = self.emitter.is_inside(self.layout, register)
        for axis in range(len(self.starts)):
            tile_axis = self.tile_axis.get(axis)
            offset = 0 if tile_axis is None else self.layout.offsets[register][tile_axis]
            result = self.emitter.both(result, self._inside_axis(axis, offset))
        return result

    def all_inside(self) -> LV | None:
        """Return whether the whole window is inside, the same in every thread; None: always."""
        result: LV | None = None
        for axis, start in enumerate(self.starts):
            if self._is_static(axis):
                continue
            reach = (self.op.sizes[axis] - 1) * self.op.steps[axis]
            last = self.builder.add(start, i64(reach))
            low = self.builder.icmp("sge", start, i64(0))
            high = self.builder.icmp("slt", last, self.argument.dims[axis])
            result = self.emitter.both(result, self.builder.and_(low, high))
        return result

    def _is_static(self, axis: int) -> bool:
        """Whether the window is known to be inside along an axis."""
        extent = self.op.ref.ref.shape[axis]
        start = self.emitter.forms[self.op.starts[axis]]
        if extent is None or not start.is_constant:
            return False
        last = start.constant + (self.op.sizes[axis] - 1) * self.op.steps[axis]
        return min(start.constant, last) >= 0 and max(start.constant, last) < extent

    def _thread_part(self, axis: int) -> LV:
        base = self.emitter.coordinate_base(self.layout, self.tile_axis[axis])
        wide = self.builder.cast("sext", base, "i64")
        return self.builder.mul(wide, i64(self.op.steps[axis]))

    def _move(self, axis: int, offset: int) -> LV:
        key = (axis, offset)
        if key not in self._moves:
            count = i64(offset * self.op.steps[axis])
            self._moves[key] = self.builder.mul(count, self.argument.strides[axis])
        return self._moves[key]

    def _inside_axis(self, axis: int, offset: int) -> LV | None:
        key = (axis, offset)
        if key not in self._insides:
            self._insides[key] = None if self._is_static(axis) else self._compare(axis, offset)
        return self._insides[key]

    def _compare(self, axis: int, offset: int) -> LV:
        place = self.starts[axis]
        if axis in self.tile_axis:
            place = self.builder.add(place, self._thread_part(axis))
            place = self.builder.add(place, i64(offset * self.op.steps[axis]))
        return self.builder.icmp("ult", place, self.argument.dims[axis])


class SharedWindow:
    """A window of a shared-memory buffer, as the threads of a layout reach it."""

    def __init__(self, emitter: Emitter, op: ops.Window, layout: Layout) -> None:
        self.emitter, self.builder = emitter, emitter.builder
        self.op, self.layout = op, layout
        self.buffer = emitter.shared.layouts[op.ref]
        self.dtype = op.ref.ref.dtype
        self.type = MEMORY_TYPES[self.dtype.name]
        self.slot_axes = _slot_axes(op, self.buffer)
        starts = [self.builder.cast("trunc", emitter.scalar(v), "i32") for v in op.starts]
        self.starts = starts[self.slot_axes :]
        self.pointer = slot_pointer(emitter, op.ref, starts[: self.slot_axes])
        kept = [a for a in range(len(op.kept)) if op.kept[a]]
        self.tile_axis = {axis - self.slot_axes: k for k, axis in enumerate(kept)}
        self._bases: dict[int, LV] = {}

    @cached_property
    def vector(self) -> int:
        """Elements of one access."""
        return shared_vector(self.emitter, self.op, self.layout)

    def note_conflicts(self) -> None:
        """Write down in how many passes a warp's access is served, if in more than one.

        It is counted for the first warp, from the start of a slot.
        """
        lanes = min(WARP_THREADS, self.layout.thread_count)
        places = np.zeros((lanes, len(self.buffer.shape)), np.int64)
        for axis, tile_axis in self.tile_axis.items():
            own = self.layout.bases[:lanes, tile_axis] * self._step(axis)
            places[:, axis] = np.clip(own, 0, self.buffer.shape[axis] - 1)
        addresses = swizzled_offsets(self.buffer, places)
        passes = conflicts_of(addresses, self.vector * self.dtype.bytes)
        if passes > 1:
            found = Conflict(self.op.span, self.op.window_type, passes)
            self.emitter.shared.conflicts[found] = None

    def address(self, register: int) -> LV:
        """Return the address of a register's element."""
        if self._split is None:
            places = [self._place(axis, register) for axis in range(len(self.buffer.shape))]
            return buffer_address(self.emitter, self.pointer, self.buffer, places)
        flip, move = self._split[register]
        return self.builder.gep("i8", self._flipped(flip), i32(move))

    @cached_property
    def _split(self) -> list[tuple[int, int]] | None:
        """How registers' addresses differ by constants, None where they do not."""
        starts = [self.emitter.forms[v] for v in self.op.starts[self.slot_axes :]]
        if not self.layout.is_exact or not all(s.is_constant for s in starts):
            return None
        kept = list(self.tile_axis)
        steps = [self._step(axis) for axis in kept]
        threads = np.zeros((self.layout.thread_count, len(self.buffer.shape)), np.int64)
        threads[:, kept] = self.layout.bases * steps
        registers = np.zeros((self.layout.register_count, len(self.buffer.shape)), np.int64)
        registers += np.array([start.constant for start in starts], np.int64)
        offsets = np.array(self.layout.offsets, np.int64).reshape(registers[:, kept].shape)
        registers[:, kept] += offsets * np.array(steps, np.int64)
        return split_offsets(self.buffer, threads, registers)

    def _step(self, axis: int) -> int:
        return self.op.steps[axis + self.slot_axes]

    def _flipped(self, flip: int) -> LV:
        """Return the thread's address with some bits flipped; made once for each `flip`."""
        if flip not in self._bases:
            places = [i32(0) for _ in self.buffer.shape]
            for axis, tile_axis in self.tile_axis.items():
                coordinate = self.emitter.coordinate_base(self.layout, tile_axis)
                places[axis] = self.builder.mul(coordinate, i32(self._step(axis)))
            offset = buffer_offset(self.emitter, self.buffer, places)
            self._bases[flip] = self.builder.gep(
                "i8", self.pointer, self.builder.xor(offset, i32(flip))
            )
        return self._bases[flip]

    def _place(self, axis: int, register: int) -> LV:
        start = self.starts[axis] if self.starts else i32(0)
        tile_axis = self.tile_axis.get(axis)
        if tile_axis is None:
            return start
        coordinate = self.emitter.coordinate(self.layout, tile_axis, register)
        if self.layout.padded[tile_axis] > self.layout.shape[tile_axis]:
            last = self._last_place(axis, self.layout.offsets[register][tile_axis])
            coordinate = self.builder.intrinsic("llvm.umin", coordinate, i32(last))
        return self.builder.add(start, self.builder.mul(coordinate, i32(self._step(axis))))

    def _last_place(self, axis: int, offset: int) -> int:
        """Return where registers beyond the tile reach: as aligned as those inside."""
        extent = self.layout.shape[self.tile_axis[axis]]
        width = self.vector if axis == self.buffer.order[0] else 1
        return min((extent - 1) // width * width + offset % width, extent - 1)


def shared_vector(emitter: Emitter, op: ops.Window, layout: Layout) -> int:
    """Return how many elements of a window of shared memory a thread reaches at once."""
    fast = fast_axis(emitter, op)
    if fast is None:
        return 1
    buffer, dtype = emitter.shared.layouts[op.ref], op.ref.ref.dtype
    axis = buffer.order[0] + _slot_axes(op, buffer)
    width = vector_elements(layout, fast, dtype.bytes)
    start = emitter.forms[op.starts[axis]].divisor
    while width > 1 and (start % width or buffer.row_elements % width):
        width //= 2
    return width


def fast_axis(emitter: Emitter, op: ops.Window) -> int | None:
    """Return the tile's axis whose neighbours are neighbours in shared memory, if there is one."""
    buffer = emitter.shared.layouts[op.ref]
    axis = buffer.order[0] + _slot_axes(op, buffer)
    if not any(op.kept[axis : axis + 1]) or op.steps[axis] != 1 or not buffer.has_rows:
        return None
    return sum(op.kept[:axis])


def _slot_axes(op: ops.Window, buffer: BufferLayout) -> int:
    return op.ref.ref.rank - len(buffer.shape) if op.ref.ref.rank else 0


def slot_pointer(emitter: Emitter, ref: object, slots: Sequence[LV]) -> LV:
    """Return where a slot of a buffer begins; `slots` are i32 numbers, one a leading axis."""
    builder = emitter.builder
    pointer = emitter.shared_place(ref)  # type: ignore[arg-type]
    return builder.gep("i8", pointer, slot_offset(emitter, ref, slots))


def slot_offset(emitter: Emitter, ref: object, slots: Sequence[LV], unit_bytes: int = 1) -> LV:
    """Return how far a slot is behind the first one of its buffer, in units, i32."""
    builder, offset = emitter.builder, i32(0)
    step = emitter.shared.layouts[ref].slot_bytes // unit_bytes  # type: ignore[index]
    extents = ref.ref.shape[: len(slots)]  # type: ignore[attr-defined]
    for slot, extent in reversed(list(zip(slots, extents, strict=True))):
        offset = builder.add(offset, builder.mul(slot, i32(step)))
        step *= extent
    return offset


def buffer_address(emitter: Emitter, pointer: LV, buffer: BufferLayout, places: Sequence[LV]) -> LV:
    """Return the address of the element at `places` (i32, one an axis) of a slot."""
    return emitter.builder.gep("i8", pointer, buffer_offset(emitter, buffer, places))


def buffer_offset(emitter: Emitter, buffer: BufferLayout, places: Sequence[LV]) -> LV:
    """Return the byte in a slot of the element at `places` (i32, one an axis)."""
    builder = emitter.builder
    offset = i32(0)
    for axis in reversed(buffer.order):
        index, parts = places[axis], buffer.parts[axis]
        for part in parts[:-1]:
            digit = builder.binary("urem", index, i32(part.extent))
            index = builder.binary("udiv", index, i32(part.extent))
            offset = builder.add(offset, builder.mul(digit, i32(part.stride_bytes)))
        offset = builder.add(offset, builder.mul(index, i32(parts[-1].stride_bytes)))
    if buffer.swizzle_bytes:
        rows = builder.lshr(offset, i32(SWIZZLE_PERIOD_BITS))
        mask = buffer.swizzle_bytes // SWIZZLE_UNIT_BYTES - 1
        flip = builder.mul(builder.and_(rows, i32(mask)), i32(SWIZZLE_UNIT_BYTES))
        offset = builder.xor(offset, flip)
    return offset
