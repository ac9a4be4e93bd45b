"""The state of lowering one kernel's body: where every value is, in which registers.

Invariant: a tile is a tuple of LLVM values, one for each register of its layout. `registers` of a
value in a layout are made once for each block of the program that sees them; conversions and
FREE values are made where they are first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value
from astdsl.ir.dtypes import DType
from astdsl.ir.types import TileType
from astdsl.lowering.layout.banks import row_major_conflicts
from astdsl.lowering.layout.conversion import Conversion, Plan, register_moves
from astdsl.lowering.layout.inference import Placement, coalesced
from astdsl.lowering.layout.registers import REPLICATED, Digit, Layout, normalised
from astdsl.lowering.layout.shared import SharedPlan
from astdsl.lowering.nvptx.asm.memory import SHARED_BASE
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.crew import Crew, own_warpgroup, warpgroup_among, whole_block
from astdsl.lowering.nvptx.lanes import LaneTables
from astdsl.lowering.nvptx.values import LV, constant, i32, zero
from astdsl.lowering.small_floats import SMALL, small_float_bits
from astdsl.lowering.target import Target
from astdsl.lowering.windows import Forms
from astdsl.source import NOWHERE

Registers: TypeAlias = tuple[LV, ...]
# A tensor map of an array: its axes fastest first, the box along each, the swizzle in bytes.
MapKey: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
LLVM_TYPES = {
    "f64": "double", "f32": "float", "f16": "half", "bf16": "bfloat", "i64": "i64", "u64": "i64",
    "i32": "i32", "u32": "i32", "i16": "i16", "u16": "i16", "i8": "i8", "u8": "i8", "bool": "i1",
    "tf32": "float", "f8e4m3": "i8", "f8e5m2": "i8", "f8e8m0": "i8", "f4e2m1": "i8",
}  # fmt: skip
# Ranges of bytes of the scratch.
NOTHING, EVERYTHING = (0, 0), (0, 1 << 32)
# Up to here states of reductions stand side by side, so that warps need not meet in between.
_BOARDS_BYTES = 1024
# How an element is spelt in memory, where that differs.
MEMORY_TYPES = LLVM_TYPES | {"bool": "i8"}


def llvm_type(dtype: DType) -> str:
    """Return the LLVM type of an element in a register."""
    assert dtype.name in LLVM_TYPES, f"{dtype.name} has no arithmetic here"
    return LLVM_TYPES[dtype.name]


def element(dtype: DType, value: float | int | bool) -> LV:
    """Return a constant of an element type; 8-bit floats are their bits."""
    if dtype in SMALL:
        return constant("i8", small_float_bits(dtype, float(value)))
    return constant(llvm_type(dtype), value)


def padding(dtype: DType) -> LV:
    """Return what stands in a register without an element: not poison, which may divide."""
    return zero(llvm_type(dtype))


@dataclass(slots=True)
class RefArgument:
    """A global array as the kernel sees it: base pointer, and i64 dims and strides by axis."""

    pointer: LV
    dims: tuple[LV, ...]
    strides: tuple[LV, ...]
    maps: dict[MapKey, LV] = field(default_factory=dict)


# What a rule does: write the operation; for a FREE one, return its registers in a layout.
StatementRule: TypeAlias = Callable[["Emitter", Any], None]
TileRule: TypeAlias = Callable[["Emitter", Any, Layout], Sequence[LV]]
STATEMENTS: dict[type[Op], StatementRule] = {}
TILES: dict[type[Op], TileRule] = {}


def lowered_kinds() -> frozenset[type[Op]]:
    """Return the operations that have a rule."""
    return frozenset((*STATEMENTS, *TILES))


def lowers(*kinds: type[Op]) -> Callable[[StatementRule], StatementRule]:
    """Register the rule of operations that act, or have more than one result."""

    def register(rule: StatementRule) -> StatementRule:
        for kind in kinds:
            assert kind not in lowered_kinds(), f"two rules for {kind.__name__}"
            STATEMENTS[kind] = rule
        return rule

    return register


def lowers_tile(*kinds: type[Op]) -> Callable[[TileRule], TileRule]:
    """Register the rule of operations that give one tile, in the layout that is asked for."""

    def register(rule: TileRule) -> TileRule:
        for kind in kinds:
            assert kind not in lowered_kinds(), f"two rules for {kind.__name__}"
            TILES[kind] = rule
        return rule

    return register


@dataclass(frozen=True, slots=True)
class Log:
    """Where blocks write what they say, and the number of each report (`ir.launch.Report`)."""

    pointer: LV
    numbers: Mapping[Op, int]


class Emitter:
    """Writes a kernel's body through a `Builder`, operation by operation."""

    def __init__(
        self,
        builder: Builder,
        target: Target,
        threads: int,
        placements: dict[Value, Placement],
        shared: SharedPlan,
        forms: Forms,
        *,
        warpgroups: int = 0,
        approx_math: bool = False,
    ) -> None:
        self.builder = builder
        self.target = target
        # With `warpgroups`, each of them runs the program; `threads` are those of one run.
        self.block_crew = self.crew = whole_block(builder, threads * max(1, warpgroups))
        if warpgroups:
            self.crew = own_warpgroup(builder, self.block_crew, target)
        self.warpgroup = warpgroup_among(builder, self.crew, target)
        array = builder.shared_address(builder.shared(0))
        (self._shared_base,) = builder.asm(SHARED_BASE, array)
        self.placements = placements
        self.shared = shared
        self.forms = forms
        self.approx_math = approx_math
        self.arguments: dict[Value, RefArgument] = {}
        self.extra: dict[Value, Any] = {}
        self.tensor_memory: Any = None
        # The values that some operation uses: what an atomic gives often is not.
        self.used: frozenset[Value] = frozenset()
        self.log: Log | None = None
        self._span = NOWHERE
        # What the scratch holds here: a tile, its layout, its registers.
        self.scratch_content: tuple[TileType, Layout, Registers] | None = None
        # Which bytes of the scratch threads may read, from and to, since they last met.
        self.scratch_reads = NOTHING
        self._scratch_uses = 0
        self._makers: dict[Value, Op] = {}
        self._held: list[dict[tuple[Value, Layout], Registers]] = [{}]
        self._places: list[dict[tuple[tuple[Digit, ...], int, int], LV]] = [{}]

    # Walking

    def block(self, block: Block) -> None:
        """Write every operation of a block; its last one, if a `Yield`, is the caller's."""
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        """Write one operation."""
        self._span = op.span
        if op.span is not NOWHERE:
            self.builder.locate(op.span.file, op.span.line, op.span.column + 1)
        statement = STATEMENTS.get(type(op))
        if statement:
            statement(self, op)
            return
        self._makers[op.result] = op
        placement = self.placements[op.result]
        if isinstance(placement, Layout):
            self.define(op.result, placement, TILES[type(op)](self, op, placement))

    @contextmanager
    def scope(self, *, once: bool = False) -> Iterator[None]:
        """Forget at the end what was made inside: it does not dominate what follows.

        Unless it is run `once`, it may be entered from its end, and the scratch be in use.
        """
        reads, uses = self.scratch_reads, self._scratch_uses
        self._held.append({})
        self._places.append({})
        self.scratch_content = None
        self.scratch_reads = reads if once else EVERYTHING
        yield
        self._held.pop()
        self._places.pop()
        self.scratch_content = None
        self.scratch_reads = reads if uses == self._scratch_uses else EVERYTHING

    @contextmanager
    def guarded(self, predicate: LV | None, hint: str = "then") -> Iterator[None]:
        """Write the body for threads where `predicate` holds, None standing for true."""
        if predicate is None:
            yield
            return
        with self.scope(once=True), self.builder.guarded(predicate, hint):
            yield

    # Values

    def define(self, value: Value, layout: Layout, registers: Sequence[LV]) -> None:
        """Say which registers hold a value."""
        assert len(registers) == layout.register_count, f"{value}: {len(registers)} registers"
        self._held[-1][value, normalised(layout)] = tuple(registers)

    def get(self, value: Value, layout: Layout) -> Registers:
        """Return a value's registers in a layout, converting or making it where needed."""
        layout = normalised(layout)
        key = value, layout
        for held in reversed(self._held):
            registers = held.get(key)
            if registers is not None:
                return registers
        own = self.placements[value]
        if isinstance(own, Layout):
            registers = self.converted(self.get(value, own), value.tile, own, layout)
        else:
            maker = self._makers[value]
            registers = tuple(TILES[type(maker)](self, maker, layout))
        self.define(value, layout, registers)
        return registers

    def maker(self, value: Value) -> Op | None:
        """Return the operation that gives a tile, None for an argument of a region."""
        return self._makers.get(value)

    def known(self, value: Value) -> float | int | bool | None:
        """Return the number that a tile has everywhere, None where that is not known."""
        maker = self._makers.get(value)
        while isinstance(maker, ops.Broadcast):
            maker = self._makers.get(maker.x)
        return maker.value if isinstance(maker, ops.Constant) else None

    def settled(self, value: Value, fallback: Layout) -> Layout:
        """Return the layout that holds a value, `fallback` for a FREE one."""
        placement = self.placements[value]
        return placement if isinstance(placement, Layout) else fallback

    def default_layout(self, tile: TileType) -> Layout:
        """Return the layout of a tile that nothing else decides."""
        return coalesced(tile, self.threads)

    def scalar(self, value: Value) -> LV:
        """Return the one register of a scalar."""
        placement = self.placements[value]
        assert value.tile.shape == (), f"{value} is no scalar"
        assert isinstance(placement, Layout), f"{value} has no place"
        (register,) = self.get(value, placement)
        return register

    def converted(
        self, registers: Registers, tile: TileType, own: Layout, layout: Layout
    ) -> Registers:
        """Return a tile's registers in another layout than their own."""
        own, layout = normalised(own), normalised(layout)
        if own == layout:
            return registers
        plan = register_moves(own, layout)
        if plan is None:
            self.note_scratch(tile, own, layout)
            scratch = Scratch(self, tile)
            scratch.write(registers, own)
            return scratch.read(layout)
        self.note(tile, str(plan))
        return self.moved(registers, tile, plan)

    def note(self, tile: TileType, way: str) -> None:
        """Write down that a tile changes its layout."""
        self.shared.conversions[Conversion(self._span, tile, way)] = None

    def note_scratch(self, tile: TileType, own: Layout, layout: Layout) -> None:
        """Write down that a tile goes through shared memory, from one layout to another."""
        passes = (row_major_conflicts(x, x.shape, tile.dtype.bytes) for x in (own, layout))
        worst = max(passes)
        conflicts = f", {worst}-way bank conflicts" if worst > 1 else ""
        self.note(tile, f"shared memory{conflicts}")

    def moved(self, registers: Registers, tile: TileType, plan: Plan) -> Registers:
        """Return a tile's registers after they are moved within threads or warps."""
        return plan.applied(registers, padding(tile.dtype), LaneTables(self.builder, self.thread))

    # Threads

    @property
    def thread(self) -> LV:
        """The number of this thread among those that run the program together, i32."""
        return self.crew.thread

    @property
    def threads(self) -> int:
        """How many threads run the program together."""
        return self.crew.threads

    @contextmanager
    def run_by(self, crew: Crew) -> Iterator[None]:
        """Write the body for other threads that run it together."""
        before, self.crew = self.crew, crew
        with self.scope():
            yield
        self.crew = before

    def coordinate_base(self, layout: Layout, axis: int) -> LV:
        """Return the thread's part of the coordinates along an axis, i32."""
        return self._place(layout, axis, 0)

    def _place(self, layout: Layout, axis: int, offset: int) -> LV:
        key = (layout.threads, axis, offset)
        for places in reversed(self._places):
            if key in places:
                return places[key]
        if offset:
            made = self.builder.add(self._place(layout, axis, 0), i32(offset))
        else:
            made = self._thread_sum(layout.threads, axis)
        self._places[-1][key] = made
        return made

    def _thread_sum(self, digits: tuple[Digit, ...], axis: int) -> LV:
        total, divisor = i32(0), 1
        for digit in digits:
            if digit.axis == axis:
                value = self.thread_digit(divisor, digit.extent)
                total = self.builder.add(total, self.builder.mul(value, i32(digit.stride)))
            divisor *= digit.extent
        return total

    def thread_digit(self, divisor: int, extent: int) -> LV:
        """Return `thread // divisor % extent`."""
        value = self.thread
        if divisor > 1:
            value = self.builder.binary("udiv", value, i32(divisor))
        if divisor * extent < self.threads:
            value = self.builder.binary("urem", value, i32(extent))
        return value

    def coordinate(self, layout: Layout, axis: int, register: int) -> LV:
        """Return a register's coordinate along an axis, i32."""
        return self._place(layout, axis, layout.offsets[register][axis])

    def coordinates(self, layout: Layout, axis: int) -> list[LV]:
        """Return each register's coordinate along an axis, i32."""
        return [self._place(layout, axis, offsets[axis]) for offsets in layout.offsets]

    def is_owner(self, layout: Layout) -> LV | None:
        """Return whether this thread is the first to hold its elements; None: always."""
        result, divisor = None, 1
        for digit in layout.threads:
            if digit.axis == REPLICATED and digit.extent > 1:
                value = self.thread_digit(divisor, digit.extent)
                result = self.both(result, self.builder.icmp("eq", value, i32(0)))
            divisor *= digit.extent
        return result

    def is_inside(
        self, layout: Layout, register: int, axes: Iterable[int] | None = None
    ) -> LV | None:
        """Return whether a register holds an element of the tile (along `axes`); None: always."""
        result = None
        for axis in range(len(layout.shape)) if axes is None else axes:
            last = layout.reach[axis] + layout.offsets[register][axis]
            if last >= layout.shape[axis]:
                place = self.coordinate(layout, axis, register)
                inside = self.builder.icmp("ult", place, i32(layout.shape[axis]))
                result = self.both(result, inside)
        return result

    def both(self, left: LV | None, right: LV | None) -> LV | None:
        """Return the conjunction of two predicates, None standing for true."""
        if left is None or right is None:
            return left if right is None else right
        return self.builder.and_(left, right)

    def is_first_thread(self) -> LV:
        """Return whether this is the thread that issues what the block does once."""
        return self.crew.is_first

    def synchronise(self) -> None:
        """Wait for every thread that runs the program together with this one."""
        self.crew.meet()
        self.scratch_reads = NOTHING

    def shared_place(self, value: Value) -> LV:
        """Return where a buffer or an array of barriers begins: the warpgroup's if it has one."""
        pointer = self.builder.shared(self.shared.offsets[value])
        return self.builder.gep("i8", pointer, self._own_offset(value))

    def shared_address(self, value: Value) -> LV:
        """Return the address of the same place, i32, as inline PTX wants it."""
        place = self.address_at(self.shared.offsets[value])
        return self.builder.add(place, self._own_offset(value))

    def address_at(self, offset_bytes: int) -> LV:
        """Return the address of a fixed place in the block's shared memory, i32."""
        return self.builder.add(self._shared_base, i32(offset_bytes))

    def _own_offset(self, value: Value) -> LV:
        stride = self.shared.strides.get(value, 0)
        if not stride:
            return i32(0)
        return self.builder.mul(self.number_among(self.shared.owners[value]), i32(stride))

    def number_among(self, owners: Sequence[int]) -> LV:
        """Return which of the places of some warpgroups, in their order, is this one's."""
        number = self.crew.number
        assert number is not None, "one of several warpgroups runs this"
        return self.builder.sub(number, i32(owners[0])) if owners[0] else number

    def free_scratch(self, size_bytes: int) -> int:
        """Return from where on so many bytes are free to write, if need be after all have met."""
        low, high = self.scratch_reads
        if size_bytes <= low:
            return 0
        if high + size_bytes > _BOARDS_BYTES and high:
            self.synchronise()
            return 0
        return high

    def note_scratch_reads(self, reads: tuple[int, int]) -> None:
        """Say which bytes threads may read from here on, until all have met."""
        self.scratch_reads = reads
        self._scratch_uses += 1

    def scratch(self, offset_bytes: int = 0) -> LV:
        """Return a place in the scratch, of which each warpgroup that runs the program has one.

        Whoever asks for it may write there: what it held is forgotten.
        """
        self.scratch_content = None
        self.note_scratch_reads(EVERYTHING)
        pointer = self.builder.shared(self.shared.scratch_offset_bytes + offset_bytes)
        number = self.crew.number
        if number is None:
            return pointer
        stride = i32(self.shared.scratch_stride_bytes)
        return self.builder.gep("i8", pointer, self.builder.mul(number, stride))


class Scratch:
    """A tile on its way through shared memory, row-major."""

    def __init__(self, emitter: Emitter, tile: TileType) -> None:
        self.emitter = emitter
        self.tile = tile
        self.type = MEMORY_TYPES[tile.dtype.name]
        self._before = emitter.scratch_content
        self._is_free = emitter.scratch_reads == NOTHING
        self.pointer = emitter.scratch()
        emitter.shared.require_scratch(tile.elements * tile.dtype.bytes)

    def write(self, registers: Sequence[LV], layout: Layout) -> None:
        """Store the tile from a layout, after every thread is done with the scratch before.

        If it is there already, since nothing came between, nothing is written.
        """
        emitter, content = self.emitter, (self.tile, normalised(layout), tuple(registers))
        if content != self._before:
            self._store(registers, layout)
        emitter.scratch_content = content

    def _store(self, registers: Sequence[LV], layout: Layout) -> None:
        emitter = self.emitter
        if not self._is_free:
            emitter.synchronise()
        rank = len(layout.shape)
        places = self.places(self.pointer, layout, (0,) * rank, (1,) * rank)
        with emitter.guarded(emitter.is_owner(layout)):
            for k, (register, place) in enumerate(zip(registers, places, strict=True)):
                with emitter.guarded(emitter.is_inside(layout, k)):
                    value = as_memory(emitter.builder, register, self.tile.dtype)
                    emitter.builder.store(value, place, self.tile.dtype.bytes)
        emitter.synchronise()
        emitter.note_scratch_reads(EVERYTHING)

    def read(
        self, layout: Layout, starts: tuple[int, ...] = (), steps: tuple[int, ...] = ()
    ) -> Registers:
        """Load a tile whose element i is the written one's `start + i * step`."""
        rank, builder, dtype = len(layout.shape), self.emitter.builder, self.tile.dtype
        places = self.places(self.pointer, layout, starts or (0,) * rank, steps or (1,) * rank)
        loaded = [builder.load(self.type, place, dtype.bytes) for place in places]
        return tuple(as_register(builder, value, dtype) for value in loaded)

    def read_reshaped(self, layout: Layout) -> Registers:
        """Load the tile under another shape of as many elements."""
        content = self.emitter.scratch_content
        moved = Scratch(self.emitter, TileType(layout.shape, self.tile.dtype))
        self.emitter.scratch_content = content
        return moved.read(layout)

    def places(
        self, pointer: LV, layout: Layout, starts: tuple[int, ...], steps: tuple[int, ...]
    ) -> list[LV]:
        """Return where each register's element is in the tile, which begins at `pointer`.

        Registers that are inside in every thread are a constant away from one another, so that
        LLVM joins their accesses. Padding is led to some element of the tile.
        """
        builder = self.emitter.builder
        strides = row_major_strides(self.tile.shape)
        axes = list(zip(starts, steps, strides, strict=True))
        base = i32(0)
        for axis, (start, step, stride) in enumerate(axes):
            thread = builder.mul(self.emitter.coordinate_base(layout, axis), i32(step))
            place = builder.add(thread, i32(start))
            base = builder.add(base, builder.mul(place, i32(stride)))
        first = builder.gep(self.type, pointer, base)
        found = []
        for k, offsets in enumerate(layout.offsets):
            if self._may_leave(layout, offsets, starts, steps):
                number = self._bounded(layout, k, axes)
                found.append(builder.gep(self.type, pointer, number))
                continue
            away = [n * step * d for n, (_, step, d) in zip(offsets, axes, strict=True)]
            found.append(builder.gep(self.type, first, i32(sum(away))))
        return found

    def _may_leave(
        self,
        layout: Layout,
        offsets: Sequence[int],
        starts: Sequence[int],
        steps: Sequence[int],
    ) -> bool:
        """Whether some thread's element would be outside of the tile."""
        ranges = zip(offsets, layout.reach, starts, steps, self.tile.shape, strict=True)
        for offset, reach, start, step, extent in ranges:
            ends = (offset * step + start, (offset + reach) * step + start)
            if min(ends) < 0 or max(ends) >= extent:
                return True
        return False

    def _bounded(self, layout: Layout, register: int, axes: Sequence[tuple[int, int, int]]) -> LV:
        """Return a register's element number, each of its coordinates at most the last."""
        builder, total = self.emitter.builder, i32(0)
        for axis, (start, step, stride) in enumerate(axes):
            coordinate = self.emitter.coordinate(layout, axis, register)
            place = builder.add(builder.mul(coordinate, i32(step)), i32(start))
            last = i32(self.tile.shape[axis] - 1)
            place = builder.intrinsic("llvm.umin", place, last)
            total = builder.add(total, builder.mul(place, i32(stride)))
        return total


def as_register(builder: Builder, value: LV, dtype: DType) -> LV:
    """Return an element loaded from memory as arithmetic wants it."""
    return builder.cast("trunc", value, "i1") if dtype.kind == "bool" else value


def as_memory(builder: Builder, value: LV, dtype: DType) -> LV:
    """Return an element as memory keeps it."""
    return builder.cast("zext", value, "i8") if dtype.kind == "bool" else value


def row_major_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides, in elements, of a dense row-major array."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return strides[::-1]
