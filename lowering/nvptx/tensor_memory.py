"""Tensor memory of sm_100a: reserving it, moving tiles in and out, waiting for products.

Products complete in the order in which they were committed (PTX ISA, 9.7.16.6). Product number n,
counted since the block began, arrives at barrier `n % count` and completes its phase `n // count`
(where each warpgroup runs the program itself, it counts its own, and has barriers of its own);
a wait for product -1 passes at once, as parity 1 of a fresh barrier does. Every product is waited
for, in order: a barrier whose phase nobody saw complete could be taken for a phase before.

Invariant: between a thread's loads or stores and a product stand a fence before, a barrier of the
block, and a fence after (PTX ISA, 9.7.16.6.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from astdsl.errors import TileTooLarge
from astdsl.ir import ops
from astdsl.ir.core import Block, Value, walk
from astdsl.ir.dtypes import DType, f16
from astdsl.ir.types import AccumulatorType
from astdsl.lowering.layout.inference import elements_per_cell
from astdsl.lowering.layout.registers import TMEM_LANES, Layout, is_half
from astdsl.lowering.layout.shared import BARRIER_BYTES, span_of
from astdsl.lowering.nvptx.asm import barriers, tcgen05
from astdsl.lowering.nvptx.asm.row import AsmRow
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.function import Emitter
from astdsl.lowering.nvptx.values import LV, i32, i64
from astdsl.lowering.products import TCGEN05_COLUMNS, scale_columns, up

LEAST_COLUMNS = 32
_LANE_BIT = 16


class Own(NamedTuple):
    """The columns of one warpgroup's buffer, and the warpgroups that have one."""

    columns: int
    owners: tuple[int, ...]


@dataclass(slots=True)
class TensorMemory:
    """What a kernel has of tensor memory: the address of its columns, and who has which.

    `own` says of a buffer which warpgroups each have their own, one's behind the other's. No more
    products than `most_unseen` are started between two waits: each stands once in the body.
    `cells` says of each buffer how many elements share 32 bits.
    """

    base: LV
    columns: dict[Value, int]
    own: dict[Value, Own]
    allocated: int
    products: LV
    most_unseen: int
    cells: dict[Value, int]


def columns_of(op: ops.AllocAccumulator | ops.AllocTmem) -> int:
    """Return the columns that a buffer takes: of an accumulator once for each 128 rows."""
    rows, columns = op.shape
    if isinstance(op, ops.AllocTmem) and op.scales:
        blocks, groups, *_ = ops.scale_image_shape(rows, columns)
        return blocks * groups * ops.SCALE_COLUMNS
    if isinstance(op, ops.AllocTmem):
        return columns // elements_per_cell(op)
    return -(-rows // TMEM_LANES) * up(columns, TCGEN05_COLUMNS)


def _type(accumulator: Value) -> AccumulatorType:
    assert isinstance(accumulator.type, AccumulatorType), f"{accumulator} accumulates nothing"
    return accumulator.type


def _pitch(accumulator: Value) -> int:
    """Return the columns from one 128 rows to the next: what its products write."""
    return up(_type(accumulator).shape[1], TCGEN05_COLUMNS)


def reserve(emitter: Emitter, body: Block) -> TensorMemory | None:
    """Reserve the columns of every accumulator and buffer of a kernel, at its entry."""
    found = [op for op in walk(body) if isinstance(op, (ops.AllocAccumulator, ops.AllocTmem))]
    if not found:
        return None
    sizes = _sizes(found, body)
    owners = {op.result: _owners(op) for op in found if _owners(op)}
    places, used = _places(found, body)
    allocated = max(LEAST_COLUMNS, 1 << (used - 1).bit_length())
    if allocated > emitter.target.tmem_columns:
        several = "let the warpgroups take smaller blocks, or let fewer of them multiply: "
        raise TileTooLarge(
            f"the accumulators and buffers take {used} columns of tensor memory, "
            f"{emitter.target.tmem_columns} is all",
            *((op.span, _note(op, sizes[op.result])) for op in found),
            help=f"{several if owners else 'take smaller blocks: '}a block of (128, n) takes n "
            "columns",
        )
    emitter.shared.tensor_columns = allocated
    base, counter = _allocate(emitter, allocated), _counter(emitter)
    products = sum(isinstance(op, ops.MatrixMultiply) for op in walk(body))
    cells = {op.result: elements_per_cell(op) for op in found if isinstance(op, ops.AllocTmem)}
    own = {value: Own(sizes[value], each) for value, each in owners.items()}
    return TensorMemory(base, places, own, allocated, counter, products, cells)


def _owners(op: ops.AllocAccumulator | ops.AllocTmem) -> tuple[int, ...]:
    return op.owners if isinstance(op, ops.AllocAccumulator) else ()


def _note(op: ops.AllocAccumulator | ops.AllocTmem, columns: int) -> str:
    count = span_of(_owners(op))
    return f"{f'{count} x ' if count > 1 else ''}{columns} columns"


def _sizes(found: Sequence[ops.AllocAccumulator | ops.AllocTmem], body: Block) -> dict[Value, int]:
    """Return the columns of each buffer: behind an accumulator's, those of its operands' scales."""
    scales = [(op.accumulator, op) for op in walk(body) if isinstance(op, ops.ScaledMultiply)]
    return {
        op.result: columns_of(op)
        + max((sum(scale_columns(s)) for v, s in scales if v is op.result), default=0)
        for op in found
    }


def _places(
    found: Sequence[ops.AllocAccumulator | ops.AllocTmem], body: Block
) -> tuple[dict[Value, int], int]:
    """Return the first column of each buffer, and how many all take; those of a union share."""
    sizes = _sizes(found, body)
    columns = {op.result: sizes[op.result] * span_of(_owners(op)) for op in found}
    unions = [op for op in walk(body) if isinstance(op, ops.Overlap) and op.refs[0] in columns]
    regions = [union.groups() for union in unions]
    taken = {value for groups in regions for group in groups for value in group}
    places: dict[Value, int] = {}
    used = 0
    alone: list[list[tuple[Value, ...]]] = [[(value,)] for value in columns if value not in taken]
    for groups in (*alone, *regions):
        ends = []
        for group in groups:
            at = used
            for value in group:
                places[value] = at
                at += columns[value]
            ends.append(at)
        used = max(ends)
    return places, used


def _counter(emitter: Emitter) -> LV:
    return emitter.builder.variable(i64(0))


def _allocate(emitter: Emitter, columns: int) -> LV:
    builder = emitter.builder
    place = builder.shared(emitter.shared.tensor_address_bytes)
    with emitter.guarded(_is_first_warp(emitter), "allocate"):
        builder.asm(tcgen05.alloc(columns), builder.shared_address(place))
        builder.asm(tcgen05.RELINQUISH)
    with emitter.guarded(emitter.is_first_thread(), "initialise"):
        for number in range(emitter.shared.runners * emitter.shared.product_barriers):
            builder.asm(barriers.MBARRIER_INIT, _barrier(emitter, i32(number)), i32(1))
        builder.asm(barriers.FENCE_MBARRIER_INIT)
    builder.asm(tcgen05.FENCE_BEFORE)
    emitter.synchronise()
    builder.asm(tcgen05.FENCE_AFTER)
    return builder.load("i32", place, 4)


def release(emitter: Emitter, memory: TensorMemory) -> None:
    """Free the columns, when every thread is done with them."""
    builder = emitter.builder
    builder.asm(tcgen05.FENCE_BEFORE)
    emitter.synchronise()
    with emitter.guarded(_is_first_warp(emitter), "free"):
        builder.asm(tcgen05.FENCE_AFTER)
        builder.asm(tcgen05.dealloc(memory.allocated), memory.base)


def _is_first_warp(emitter: Emitter) -> LV:
    lanes = i32(emitter.target.threads_per_warp)
    return emitter.builder.icmp("ult", emitter.thread, lanes)


def spelt(emitter: Emitter, buffer: Value) -> str:
    """Return in words where a buffer is in tensor memory."""
    memory = memory_of(emitter)
    cells, first = memory.cells.get(buffer, 1), memory.columns[buffer]
    rows, columns = buffer.ref.shape
    last = first + (columns or 0) // cells - 1
    lanes = "a lane a row" if rows == TMEM_LANES else "16 lanes of each warp"
    packed = f"{cells} elements" if cells > 1 else "an element"
    return f"columns {first} to {last} of tensor memory, {lanes}, {packed} a cell of 32 bits"


def memory_of(emitter: Emitter) -> TensorMemory:
    """Return what the kernel has of tensor memory."""
    memory = emitter.tensor_memory
    assert isinstance(memory, TensorMemory), "the kernel's entry reserved tensor memory"
    return memory


def address(emitter: Emitter, accumulator: Value) -> LV:
    """Return the address of an accumulator's lane 0, column 0: the warpgroup's if it has one."""
    builder, memory = emitter.builder, memory_of(emitter)
    first = builder.add(memory.base, i32(memory.columns[accumulator]))
    own = memory.own.get(accumulator)
    if own is None:
        return first
    return builder.add(first, builder.mul(emitter.number_among(own.owners), i32(own.columns)))


def scales_address(emitter: Emitter, accumulator: Value) -> LV:
    """Return the address of the columns of scales, which follow those of the accumulator."""
    rows = _type(accumulator).shape[0]
    columns = -(-rows // TMEM_LANES) * _pitch(accumulator)
    return emitter.builder.add(address(emitter, accumulator), i32(columns))


def _own_lanes(emitter: Emitter, accumulator: Value) -> LV:
    """Return the address of an accumulator's first column in the lanes of the thread's warp."""
    builder, target = emitter.builder, emitter.target
    warp = emitter.thread_digit(target.threads_per_warp, target.warps_per_warpgroup)
    lane = builder.shl(builder.mul(warp, i32(target.threads_per_warp)), i32(_LANE_BIT))
    return builder.add(address(emitter, accumulator), lane)


class Access(NamedTuple):
    """One load or store of a thread: its registers, and where they are."""

    first: int
    registers: int
    load: AsmRow
    store: AsmRow
    address: LV


def accesses(emitter: Emitter, start: LV, cells: int, *, half: bool) -> Iterator[Access]:
    """Yield the loads or stores of some columns from `start` on, of 16 lanes a warp or of all."""
    shape = tcgen05.HALF if half else tcgen05.LANE
    columns, registers, counts = tcgen05.SHAPES[shape]
    for first, count in powers(cells // columns, counts):
        rows = tcgen05.load(count, shape), tcgen05.store(count, shape)
        place = emitter.builder.add(start, i32(first * columns))
        yield Access(first * registers, count * registers, *rows, place)


def _accesses(
    emitter: Emitter, accumulator: Value, layout: Layout, pitch: int, per_cell: int = 1
) -> Iterator[Access]:
    """Yield the loads or stores of a thread: its share of the columns of each 128 rows.

    From one 128 rows to the next there are `pitch` columns, each of `per_cell` elements.
    """
    builder = emitter.builder
    groups = emitter.threads // emitter.target.threads_per_warpgroup
    width = layout.shape[1] // groups // per_cell
    start = _own_lanes(emitter, accumulator)
    if groups > 1:
        group = emitter.thread_digit(emitter.target.threads_per_warpgroup, groups)
        start = builder.add(start, builder.mul(group, i32(width)))
    for block in range(-(-layout.shape[0] // TMEM_LANES)):
        here = builder.add(start, i32(block * pitch))
        for access in accesses(emitter, here, width, half=is_half(layout.shape)):
            yield access._replace(first=block * width + access.first)


def _rests(emitter: Emitter, accumulator: Value) -> Iterator[tuple[int, LV]]:
    """Yield (registers, address) of what products add to beyond the columns of a tile."""
    rows, columns = _type(accumulator).shape
    pitch = _pitch(accumulator)
    if pitch == columns:
        return
    start = _own_lanes(emitter, accumulator)
    for block in range(-(-rows // TMEM_LANES)):
        for first, count in powers(pitch - columns, tcgen05.SHAPES[tcgen05.LANE].counts):
            yield count, emitter.builder.add(start, i32(block * pitch + columns + first))


def powers(width: int, widths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut a number of columns into the widths that an access can have."""
    first = 0
    for count in reversed(widths):
        while width - first >= count:
            yield first, count
            first += count


def read(emitter: Emitter, accumulator: Value, layout: Layout) -> list[LV]:
    """Load an accumulator into registers."""
    builder = emitter.builder
    words: list[LV] = []
    for access in _accesses(emitter, accumulator, layout, _pitch(accumulator)):
        words += builder.asm(access.load, access.address)
    done = builder.asm(tcgen05.wait_load(len(words)), *words)
    builder.asm(tcgen05.FENCE_BEFORE)
    emitter.synchronise()
    return [_element(builder, word, _type(accumulator).dtype) for word in done]


def _element(builder: Builder, cell: LV, dtype: DType) -> LV:
    """Return what a cell holds: f16 in its low half (PTX ISA 9.7.16.10.5)."""
    if dtype is f16:
        return builder.cast("bitcast", builder.cast("trunc", cell, "i16"), "half")
    return builder.cast("bitcast", cell, "float") if dtype.is_float else cell


def _cell(builder: Builder, element: LV, dtype: DType) -> LV:
    """Return an element as a cell holds it."""
    if dtype is f16:
        return builder.cast("zext", builder.cast("bitcast", element, "i16"), "i32")
    return builder.cast("bitcast", element, "i32") if dtype.is_float else element


def write(emitter: Emitter, accumulator: Value, layout: Layout, registers: Sequence[LV]) -> None:
    """Store a tile into an accumulator."""
    builder = emitter.builder
    words = [_cell(builder, register, _type(accumulator).dtype) for register in registers]
    for access in _accesses(emitter, accumulator, layout, _pitch(accumulator)):
        given = words[access.first : access.first + access.registers]
        builder.asm(access.store, access.address, *given)
    for count, place in _rests(emitter, accumulator):
        builder.asm(tcgen05.store(count), place, *[i32(0)] * count)
    builder.asm(tcgen05.WAIT_ST)
    builder.asm(tcgen05.FENCE_BEFORE)
    emitter.synchronise()


def write_operand(
    emitter: Emitter, lender: Value, layout: Layout, registers: Sequence[LV], per_cell: int
) -> None:
    """Store an operand of a product into the columns of an accumulator that has been read."""
    builder = emitter.builder
    words = [builder.cast("bitcast", word, "i32") for word in builder.together(registers, per_cell)]
    if emitter.threads > emitter.target.threads_per_warpgroup:
        # Warps of several warpgroups have the same lanes: what others have read is overwritten.
        builder.asm(tcgen05.FENCE_AFTER)
    for access in _accesses(emitter, lender, layout, layout.shape[1] // per_cell, per_cell):
        given = words[access.first : access.first + access.registers]
        builder.asm(access.store, access.address, *given)
    builder.asm(tcgen05.WAIT_ST)
    builder.asm(tcgen05.FENCE_BEFORE)
    emitter.synchronise()


def commit(emitter: Emitter) -> None:
    """Let the products issued so far arrive, by the thread that issued them."""
    number = emitter.builder.held("i64", memory_of(emitter).products)
    emitter.builder.asm(tcgen05.COMMIT, _barrier(emitter, _slot(emitter, number)))


def count_product(emitter: Emitter) -> None:
    """Count one product, in every thread."""
    builder, place = emitter.builder, memory_of(emitter).products
    builder.hold(place, builder.add(builder.held("i64", place), i64(1)))


def wait_for_products(emitter: Emitter, pending: int) -> None:
    """Wait until at most `pending` products are in flight."""
    builder, memory = emitter.builder, memory_of(emitter)
    issued = builder.held("i64", memory.products)
    for behind in reversed(range(memory.most_unseen)):
        _wait_for(emitter, builder.sub(issued, i64(1 + pending + behind)))
    builder.asm(tcgen05.FENCE_AFTER)


def _wait_for(emitter: Emitter, product: LV) -> None:
    """Wait for a product; it passes if that was seen before, and none since on its barrier."""
    builder, count = emitter.builder, emitter.shared.product_barriers
    phase = builder.binary("ashr", product, i64(count.bit_length() - 1))
    parity = builder.cast("trunc", builder.and_(phase, i64(1)), "i32")
    builder.asm(barriers.MBARRIER_WAIT, _barrier(emitter, _slot(emitter, product)), parity)


def _slot(emitter: Emitter, number: LV) -> LV:
    """Return the number of a product's barrier, among those of every warpgroup."""
    builder, count = emitter.builder, emitter.shared.product_barriers
    slot = builder.cast("trunc", builder.and_(number, i64(count - 1)), "i32")
    runner = emitter.crew.number
    return slot if runner is None else builder.add(slot, builder.mul(runner, i32(count)))


def _barrier(emitter: Emitter, number: LV) -> LV:
    builder = emitter.builder
    base = emitter.address_at(emitter.shared.product_barriers_bytes)
    return builder.add(base, builder.mul(number, i32(BARRIER_BYTES)))
