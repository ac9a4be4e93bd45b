"""Where the elements of an indexed access are: addresses and predicates, register by register.

Invariant: an address is used only where its predicate holds, or was led to some element.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.ir import ops
from astdsl.ir.types import GMEM
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.nvptx.access import GlobalWindow, buffer_address, slot_pointer
from astdsl.lowering.nvptx.function import MEMORY_TYPES, Emitter
from astdsl.lowering.nvptx.values import LV, i32, i64


def tile_axes(op: ops.Indexed) -> dict[int, int]:
    """Return the tile's axis of each kept axis of the ref."""
    kept = [axis for axis, is_kept in enumerate(op.kept) if is_kept]
    return dict(zip(kept, op.along, strict=True))


class _Parts:
    """What the tiles of an access hold for each register, and the limits of its window."""

    def __init__(self, emitter: Emitter, op: ops.Indexed, layout: Layout) -> None:
        self.indices = {
            axis: emitter.get(tile, layout)
            for axis, tile in zip(op.indexed, op.indices, strict=True)
        }
        self.masks = [emitter.get(mask, layout) for mask in op.mask]
        numbers = [emitter.scalar(v) for v in op.limits]
        self.limits = {a: (numbers[2 * k], numbers[2 * k + 1]) for k, a in enumerate(op.limited)}

    def rows(self, register: int) -> tuple[LV, ...]:
        """Return all that is known of a register's element one by one."""
        columns = (*self.indices.values(), *self.masks)
        return tuple(column[register] for column in columns)


class GlobalElements(GlobalWindow):
    """Elements of a global array, as the threads of a layout reach them."""

    def __init__(self, emitter: Emitter, op: ops.Indexed, layout: Layout) -> None:
        super().__init__(emitter, op, layout)
        self.tile_axis = tile_axes(op)
        self.parts = _Parts(emitter, op, layout)
        self._wide: dict[LV, LV] = {}
        self._terms: dict[tuple[int, LV], LV] = {}
        self._hits: dict[tuple[int, LV], LV] = {}

    @property
    def vector(self) -> int:
        """Elements of one access where the whole window is inside."""
        width = super().vector
        while width > 1 and not self._is_uniform(width):
            width //= 2
        words = width * self.dtype.bytes % 4 == 0
        return width if words else 1

    def _is_uniform(self, width: int) -> bool:
        """Whether neighbouring registers have the same indices, and the same mask."""
        registers = range(self.layout.register_count)
        return all(self.parts.rows(k) == self.parts.rows(k - k % width) for k in registers)

    def address(self, register: int) -> LV:
        """Return the address of a register's element."""
        index = self.base()
        for axis, tile_axis in self.tile_axis.items():
            offset = self.layout.offsets[register][tile_axis]
            if offset:
                index = self.builder.add(index, self._move(axis, offset))
        for axis, column in self.parts.indices.items():
            index = self.builder.add(index, self._term(axis, column[register]))
        return self.builder.gep(self.type, self.argument.pointer, index)

    def inside(self, register: int) -> LV | None:
        """Return whether a register's element takes part; None: always."""
        return self.emitter.both(super().inside(register), self.hit(register))

    def hit(self, register: int) -> LV | None:
        """Return whether its indices are inside and its mask is true; None: always."""
        result: LV | None = None
        for axis, column in self.parts.indices.items():
            result = self.emitter.both(result, self._hit(axis, column[register]))
        for column in self.parts.masks:
            result = self.emitter.both(result, column[register])
        return result

    def all_inside(self) -> LV | None:
        """Return whether the window along the axes without indices is inside; None: always."""
        result: LV | None = None
        for axis, start in enumerate(self.starts):
            if axis in self.parts.indices or self._is_static(axis):
                continue
            reach = (self.op.sizes[axis] - 1) * self.op.steps[axis]
            last = self.builder.add(start, i64(reach))
            low, high = self._bounds(axis)
            result = self.emitter.both(result, self.builder.icmp("sge", start, low))
            result = self.emitter.both(result, self.builder.icmp("slt", last, high))
        return result

    def _bounds(self, axis: int) -> tuple[LV, LV]:
        extent = self.argument.dims[axis]
        if axis not in self.parts.limits:
            return i64(0), extent
        low, high = self.parts.limits[axis]
        least = self.builder.intrinsic("llvm.smax", low, i64(0))
        return least, self.builder.intrinsic("llvm.smin", high, extent)

    def _is_static(self, axis: int) -> bool:
        return axis not in self.parts.limits and super()._is_static(axis)

    def _inside_axis(self, axis: int, offset: int) -> LV | None:
        return None if axis in self.parts.indices else super()._inside_axis(axis, offset)

    def _compare(self, axis: int, offset: int) -> LV:
        place = self.starts[axis]
        if axis in self.tile_axis:
            place = self.builder.add(place, self._thread_part(axis))
            place = self.builder.add(place, i64(offset * self.op.steps[axis]))
        return self._is_between(axis, place)

    def _is_between(self, axis: int, place: LV) -> LV:
        if axis not in self.parts.limits:
            return self.builder.icmp("ult", place, self.argument.dims[axis])
        low, high = self._bounds(axis)
        above = self.builder.icmp("sge", place, low)
        return self.builder.and_(above, self.builder.icmp("slt", place, high))

    def _scaled(self, axis: int, index: LV) -> LV:
        if index not in self._wide:
            self._wide[index] = self.builder.cast("sext", index, "i64")
        return self.builder.mul(self._wide[index], i64(self.op.steps[axis]))

    def _term(self, axis: int, index: LV) -> LV:
        key = (axis, index)
        if key not in self._terms:
            scaled = self._scaled(axis, index)
            self._terms[key] = self.builder.mul(scaled, self.argument.strides[axis])
        return self._terms[key]

    def _hit(self, axis: int, index: LV) -> LV:
        key = (axis, index)
        if key not in self._hits:
            place = self.builder.add(self.starts[axis], self._scaled(axis, index))
            self._hits[key] = self._is_between(axis, place)
        return self._hits[key]


class SharedElements:
    """Elements of a shared buffer, as the threads of a layout reach them, one by one."""

    def __init__(self, emitter: Emitter, op: ops.Indexed, layout: Layout) -> None:
        self.emitter, self.builder = emitter, emitter.builder
        self.op, self.layout = op, layout
        self.buffer = emitter.shared.layouts[op.ref]
        self.dtype = op.ref.ref.dtype
        self.type = MEMORY_TYPES[self.dtype.name]
        self.starts = [emitter.scalar(v) for v in op.starts]
        self.slot_axes = op.ref.ref.rank - len(self.buffer.shape) if op.ref.ref.rank else 0
        self.tile_axis = tile_axes(op)
        self.parts = _Parts(emitter, op, layout)

    def address(self, register: int) -> LV:
        """Return the address of a register's element; one that is outside is led inside."""
        places = [self._bounded(axis, register) for axis in range(len(self.starts))]
        pointer = slot_pointer(self.emitter, self.op.ref, places[: self.slot_axes])
        inner = places[self.slot_axes :] or [i32(0)]
        return buffer_address(self.emitter, pointer, self.buffer, inner)

    def inside(self, register: int) -> LV | None:
        """Return whether a register's element takes part; None: always."""
        result = self.emitter.is_inside(self.layout, register)
        for axis in self.parts.indices:
            place, extent = self._place(axis, register), i64(self._extent(axis))
            result = self.emitter.both(result, self.builder.icmp("ult", place, extent))
        for axis, (low, high) in self.parts.limits.items():
            place = self._place(axis, register)
            above = self.builder.icmp("sge", place, low)
            below = self.builder.icmp("slt", place, high)
            result = self.emitter.both(result, self.builder.and_(above, below))
        for column in self.parts.masks:
            result = self.emitter.both(result, column[register])
        return result

    def _extent(self, axis: int) -> int:
        extent = self.op.ref.ref.shape[axis]
        assert extent is not None, "on-chip memory has constant extents"
        return extent

    def _place(self, axis: int, register: int) -> LV:
        """Return the place along an axis of the buffer, i64."""
        start, step = self.starts[axis], i64(self.op.steps[axis])
        if axis in self.parts.indices:
            count = self.parts.indices[axis][register]
        elif axis in self.tile_axis:
            count = self.emitter.coordinate(self.layout, self.tile_axis[axis], register)
        else:
            return start
        wide = self.builder.cast("sext", count, "i64")
        return self.builder.add(start, self.builder.mul(wide, step))

    def _bounded(self, axis: int, register: int) -> LV:
        last = i64(self._extent(axis) - 1)
        place = self.builder.intrinsic("llvm.umin", self._place(axis, register), last)
        return self.builder.cast("trunc", place, "i32")


def elements_of(
    emitter: Emitter, op: ops.Indexed, layout: Layout
) -> GlobalElements | SharedElements:
    """Return how the threads reach the elements of an access."""
    kind = GlobalElements if op.ref.ref.space == GMEM else SharedElements
    return kind(emitter, op, layout)


def owned(
    emitter: Emitter, elements: GlobalElements | SharedElements, registers: Sequence[int]
) -> list[LV | None]:
    """Return for each register whether this thread is the one that writes its element."""
    owner = emitter.is_owner(elements.layout)
    return [emitter.both(owner, elements.inside(k)) for k in registers]
