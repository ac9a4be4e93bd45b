"""Lowering of memory: tiles to and from global and shared memory, asynchronous copies.

Invariant: an element outside a global array is never touched; where a window may cross an edge,
every access has its own predicate, and the wide accesses stand in the arm that is taken only if
the whole window is inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from astdsl.ir import ops
from astdsl.ir.dtypes import DType
from astdsl.ir.rewrite import replace_fields
from astdsl.ir.types import GMEM
from astdsl.lowering.layout.registers import Layout, blocked
from astdsl.lowering.layout.shared import BARRIER_BYTES
from astdsl.lowering.nvptx.access import (
    GlobalWindow,
    SharedWindow,
    fast_axis,
    fast_first,
    slot_offset,
)
from astdsl.lowering.nvptx.asm import barriers, copies
from astdsl.lowering.nvptx.asm.memory import PREFETCH_L2, guarded_load, guarded_store
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.function import (
    Emitter,
    as_memory,
    as_register,
    element,
    lowers,
    lowers_tile,
)
from astdsl.lowering.nvptx.matrices import load_matrices, matrices_of_window, store_matrices
from astdsl.lowering.nvptx.rules.elements import unpacked
from astdsl.lowering.nvptx.values import LV, Label, i1, i32, i64, vector
from astdsl.lowering.tensor_maps import Piece, pieces

T = TypeVar("T")
# What a prefetch brings at once.
LINE_BYTES = 128
# Coordinates of TMA are signed 32 bit; what lies further out is outside every array.
_FARTHEST_START = (1 << 31) - (1 << 16)


@lowers_tile(ops.Dim)
def _dim(emitter: Emitter, op: ops.Dim, layout: Layout) -> Sequence[LV]:
    return (emitter.arguments[op.ref].dims[op.axis],)


@lowers_tile(ops.Load)
def _load(emitter: Emitter, op: ops.Load, layout: Layout) -> Sequence[LV]:
    if op.ref.ref.space == GMEM:
        return _load_global(emitter, op, layout)
    found = matrices_of_window(emitter, op, layout)
    if found is not None:
        return load_matrices(emitter, op, found)
    window = SharedWindow(emitter, op, layout)
    window.note_conflicts()
    return _load_wide(emitter, window, window.vector)


def _load_global(emitter: Emitter, op: ops.Load, layout: Layout) -> list[LV]:
    window = GlobalWindow(emitter, op, layout)
    width = window.vector
    if width == 1:
        return load_guarded(emitter, window, op)
    inside = window.all_inside()
    if inside is None:
        return _load_wide(emitter, window, width)
    return choose(
        emitter,
        inside,
        lambda: _load_wide(emitter, GlobalWindow(emitter, op, layout), width),
        lambda: load_guarded(emitter, GlobalWindow(emitter, op, layout), op),
        width,
    )


def _load_wide(emitter: Emitter, window: GlobalWindow | SharedWindow, width: int) -> list[LV]:
    builder, dtype = emitter.builder, window.dtype
    result: list[LV] = []
    kind = vector(width, window.type) if width > 1 else window.type
    for first in range(0, window.layout.register_count, width):
        loaded = builder.load(kind, window.address(first), width * dtype.bytes)
        elements = builder.unpack(loaded) if width > 1 else [loaded]
        result += [as_register(builder, e, dtype) for e in elements]
    return result


def load_guarded(emitter: Emitter, window: GlobalWindow, op: ops.Load | ops.Gather) -> list[LV]:
    """Load each register's element where it is inside, `op.fill` elsewhere."""
    builder = emitter.builder
    result = []
    for k in range(window.layout.register_count):
        inside, address = window.inside(k), window.address(k)
        if inside is None:
            loaded = builder.load(window.type, address, window.dtype.bytes)
        else:
            outside = as_memory(builder, element(window.dtype, op.fill), window.dtype)
            loaded = _guarded_load(emitter, window.type, address, inside, outside)
        result.append(as_register(builder, loaded, window.dtype))
    return result


def _guarded_load(emitter: Emitter, kind: str, address: LV, inside: LV, outside: LV) -> LV:
    builder = emitter.builder
    if kind != "i8":
        (loaded,) = builder.asm(guarded_load(kind), outside, address, inside)
        return loaded
    wide = builder.cast("zext", outside, "i16")
    (loaded,) = builder.asm(guarded_load("i16", 8), wide, address, inside)
    return builder.cast("trunc", loaded, "i8")


def choose(
    emitter: Emitter,
    condition: LV,
    yes: Callable[[], list[LV]],
    no: Callable[[], list[LV]],
    width: int,
) -> list[LV]:
    """Write both arms and return the registers of the one taken, `width` of them as one vector."""
    builder = emitter.builder
    arms = [lambda arm=arm: builder.together(arm(), width) for arm in (yes, no)]
    (first, source), (second, other) = in_arms(emitter, condition, *arms)
    phis = [builder.phi(v.type) for v in first]
    for phi, one, two in zip(phis, first, second, strict=True):
        phi.add(one, source)
        phi.add(two, other)
    return unpacked(emitter, [phi.value for phi in phis])


def in_arms(
    emitter: Emitter, condition: LV, yes: Callable[[], T], no: Callable[[], T]
) -> list[tuple[T, Label]]:
    """Write `yes` and `no` in the arms of a branch; return what they gave and where they end."""
    builder = emitter.builder
    labels = builder.block("inside"), builder.block("edge")
    after = builder.block("joined")
    builder.cond_br(condition, *labels)
    arms = []
    for label, write in zip(labels, (yes, no), strict=True):
        builder.position(label)
        with emitter.scope():
            arms.append((write(), builder.current))
        builder.br(after)
    builder.position(after)
    return arms


@lowers(ops.Prefetch)
def _prefetch(emitter: Emitter, op: ops.Prefetch) -> None:
    """Touch a line after the other, and each row's last element, which may be in one more."""
    strides = op.ref.ref.strides
    fast = len(strides) - 1 - strides[::-1].index(1) if 1 in strides else None
    if fast is None or op.steps[fast] != 1:
        _touch(emitter, op)
        return
    line, row = LINE_BYTES // op.ref.ref.dtype.bytes, op.sizes[fast]
    _touch(emitter, _every(op, fast, line, -(-row // line)))
    if (row - 1) % line:
        _touch(emitter, _every(op, fast, row - 1, 2))


def _touch(emitter: Emitter, op: ops.Prefetch) -> None:
    layout = blocked(op.window_type.shape, emitter.threads)
    window, owner = GlobalWindow(emitter, op, layout), emitter.is_owner(layout)
    for register in range(layout.register_count):
        inside = emitter.both(owner, window.inside(register))
        emitter.builder.asm(PREFETCH_L2, window.address(register), inside or i1(True))


def _every(op: ops.Prefetch, axis: int, step: int, count: int) -> ops.Prefetch:
    """Return the window of some elements along an axis."""
    sizes, steps = list(op.sizes), list(op.steps)
    sizes[axis], steps[axis] = count, step
    return replace_fields(op, sizes=tuple(sizes), steps=tuple(steps))


@lowers(ops.Store)
def _store(emitter: Emitter, op: ops.Store) -> None:
    layout = emitter.settled(op.value, emitter.default_layout(op.value.tile))
    registers = emitter.get(op.value, layout)
    owner = emitter.is_owner(layout)
    if op.ref.ref.space == GMEM:
        _store_global(emitter, op, layout, registers, owner)
    else:
        _store_shared(emitter, op, layout, registers, owner)


def _store_global(
    emitter: Emitter, op: ops.Store, layout: Layout, registers: Sequence[LV], owner: LV | None
) -> None:
    window = GlobalWindow(emitter, op, layout)
    width = window.vector
    inside = window.all_inside() if width > 1 else None
    if width == 1:
        store_guarded(emitter, window, registers, owner)
    elif inside is None:
        _store_wide(emitter, window, registers, owner, width)
    else:
        in_arms(
            emitter,
            inside,
            lambda: _store_wide(
                emitter, GlobalWindow(emitter, op, layout), registers, owner, width
            ),
            lambda: store_guarded(emitter, GlobalWindow(emitter, op, layout), registers, owner),
        )


def _store_shared(
    emitter: Emitter, op: ops.Store, layout: Layout, registers: Sequence[LV], owner: LV | None
) -> None:
    found = matrices_of_window(emitter, op, layout)
    if found is not None:
        store_matrices(emitter, op, found, registers)
        return
    fast = fast_axis(emitter, op)
    if fast is not None:
        layout, numbers = fast_first(layout, fast)
        registers = [registers[number] for number in numbers]
    window = SharedWindow(emitter, op, layout)
    window.note_conflicts()
    if layout.is_exact:
        _store_wide(emitter, window, registers, owner, window.vector)
        return
    for k, register in enumerate(registers):
        with emitter.guarded(emitter.both(owner, emitter.is_inside(layout, k))):
            value = as_memory(emitter.builder, register, window.dtype)
            emitter.builder.store(value, window.address(k), window.dtype.bytes)


def _store_wide(
    emitter: Emitter,
    window: GlobalWindow | SharedWindow,
    registers: Sequence[LV],
    owner: LV | None,
    width: int,
) -> None:
    if owner is None:
        store_vectors(emitter, window, registers, width)
        return
    with emitter.guarded(owner):
        store_vectors(emitter, window, registers, width)


def store_vectors(
    emitter: Emitter, window: GlobalWindow | SharedWindow, registers: Sequence[LV], width: int
) -> None:
    """Store neighbouring registers together, whatever is inside."""
    for first in range(0, len(registers), width):
        together = registers[first : first + width]
        store_vector(emitter, window.dtype, together, window.address(first))


def store_vector(emitter: Emitter, dtype: DType, registers: Sequence[LV], place: LV) -> None:
    """Store elements that are neighbours from `place` on."""
    builder = emitter.builder
    elements = [as_memory(builder, r, dtype) for r in registers]
    value = builder.pack(elements) if len(elements) > 1 else elements[0]
    builder.store(value, place, len(elements) * dtype.bytes)


def store_guarded(
    emitter: Emitter, window: GlobalWindow, registers: Sequence[LV], owner: LV | None
) -> None:
    """Store each register's element where it is inside and this thread owns it."""
    builder = emitter.builder
    for k, register in enumerate(registers):
        keep = emitter.both(owner, window.inside(k))
        value = as_memory(builder, register, window.dtype)
        if keep is None:
            builder.store(value, window.address(k), window.dtype.bytes)
        elif window.type == "i8":
            wide = builder.cast("zext", value, "i16")
            builder.asm(guarded_store("i16", 8), window.address(k), wide, keep)
        else:
            builder.asm(guarded_store(window.type), window.address(k), value, keep)


@lowers(ops.AllocSmem)
def _alloc_smem(emitter: Emitter, op: ops.AllocSmem) -> None:
    """Write nothing: the shared-memory plan placed it before the walk."""


@lowers(ops.Overlap)
def _overlap(emitter: Emitter, op: ops.Overlap) -> None:
    """Write nothing: the shared-memory plan placed the buffers over each other."""


@lowers(ops.StateLayout)
def _state_layout(emitter: Emitter, op: ops.StateLayout) -> None:
    """Write nothing: the shared-memory plan laid the buffer out so."""


def _each_piece(
    emitter: Emitter,
    op: ops.Copy,
    starts: Sequence[LV],
    act: Callable[[Piece, list[LV], LV, LV], None],
) -> None:
    """Write one asynchronous copy for each TMA box of the window from `starts`, by one thread."""
    builder = emitter.builder
    layout = emitter.shared.layouts[op.buffer]
    slots = [builder.cast("trunc", emitter.scalar(v), "i32") for v in op.slot]
    first = builder.add(emitter.shared_address(op.buffer), slot_offset(emitter, op.buffer, slots))
    split = pieces(op, layout)
    tensor_map = emitter.arguments[op.ref].maps[split.key]
    for piece in split.pieces:
        place = [
            builder.add(starts[axis], i32(move))
            for axis, move in zip(split.key[0], piece.moves, strict=True)
        ]
        act(piece, place, builder.add(first, i32(piece.offset_bytes)), tensor_map)


def _coordinates(emitter: Emitter, op: ops.Copy) -> list[LV]:
    """Return where a window starts, for TMA; outside of branches, so that copies share it."""
    return [_coordinate(emitter.builder, emitter.scalar(start)) for start in op.starts]


def _coordinate(builder: Builder, start: LV) -> LV:
    low = builder.intrinsic("llvm.smax", start, i64(-_FARTHEST_START))
    return builder.cast("trunc", builder.intrinsic("llvm.smin", low, i64(_FARTHEST_START)), "i32")


@lowers(ops.CopyIn)
def _copy_in(emitter: Emitter, op: ops.CopyIn) -> None:
    builder = emitter.builder
    barrier = barrier_address(emitter, op.barrier, op.index)
    split = pieces(op, emitter.shared.layouts[op.buffer])
    row = copies.tma_load(len(split.key[0]))

    def load(piece: Piece, place: list[LV], slot: LV, tensor_map: LV) -> None:
        builder.asm(row, slot, tensor_map, *place, barrier)

    starts = _coordinates(emitter, op)
    with emitter.guarded(emitter.is_first_thread(), "issue"):
        if not op.predicate:
            builder.asm(barriers.MBARRIER_ARRIVE_EXPECT_TX, barrier, i32(split.total_bytes))
            _each_piece(emitter, op, starts, load)
            return
        wanted = emitter.scalar(op.predicate[0])
        total = builder.select(wanted, i32(split.total_bytes), i32(0))
        builder.asm(barriers.MBARRIER_ARRIVE_EXPECT_TX, barrier, total)
        with emitter.guarded(wanted, "copy"):
            _each_piece(emitter, op, starts, load)


@lowers(ops.CopyOut)
def _copy_out(emitter: Emitter, op: ops.CopyOut) -> None:
    builder = emitter.builder
    row = copies.tma_store(op.ref.ref.rank)

    def store(piece: Piece, place: list[LV], slot: LV, tensor_map: LV) -> None:
        builder.asm(row, tensor_map, *place, slot)

    issues = emitter.is_first_thread()
    if op.predicate:
        issues = builder.and_(issues, emitter.scalar(op.predicate[0]))
    starts = _coordinates(emitter, op)
    with emitter.guarded(issues, "issue"):
        _each_piece(emitter, op, starts, store)


@lowers(ops.CommitGroup)
def _commit_group(emitter: Emitter, op: ops.CommitGroup) -> None:
    with emitter.guarded(emitter.is_first_thread(), "issue"):
        emitter.builder.asm(copies.BULK_COMMIT)


@lowers(ops.WaitGroup)
def _wait_group(emitter: Emitter, op: ops.WaitGroup) -> None:
    with emitter.guarded(emitter.is_first_thread(), "wait"):
        emitter.builder.asm(copies.bulk_wait(op.pending, read=op.read_only))
    if op.meets:
        emitter.synchronise()


def barrier_address(emitter: Emitter, barrier: object, index: object) -> LV:
    """Return the 32-bit shared address of one mbarrier of an array."""
    builder = emitter.builder
    base = emitter.shared_address(barrier)  # type: ignore[arg-type]
    number = builder.cast("trunc", emitter.scalar(index), "i32")  # type: ignore[arg-type]
    return builder.add(base, builder.mul(number, i32(BARRIER_BYTES)))
