"""Operands of products: those that stay where a copy put them, and those that are stored anew.

Before
    d = dot a, transpose b
After, where b's slot is contiguous along N and the tensor core wants K
    store b's operand, transpose (load b's slot); fence; multiply accumulator, a's slot, b's operand

Invariant: a stored operand is contiguous as the tensor core wants it, its depth is whole
instructions, what is beyond the tile's is zero, and it is overwritten only when every product
that reads it has been waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.types import INDEX, TileType
from astdsl.lowering.layout.inference import fastest_first
from astdsl.lowering.products import DEPTH_BYTES, ProductKind, up
from astdsl.lowering.schedule.block import BlockScheduler, Slot
from astdsl.lowering.schedule.build import Maker
from astdsl.lowering.schedule.slots import read_slot


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand in shared memory; a transposed slot holds it transposed."""

    slot: Slot
    is_transposed: bool


@dataclass(frozen=True, slots=True)
class Source:
    """What an operand is: `value`, or its transpose; `k_axis` is the axis of `value` along K."""

    value: Value
    is_transposed: bool
    k_axis: int


def source_of(scheduler: BlockScheduler, dot: ops.Dot, side: str) -> Source:
    """Return the source of operand `a` or `b` of a product."""
    operand, k_axis = (dot.a, 1) if side == "a" else (dot.b, 0)
    maker = scheduler.forms.makers.get(operand)
    if isinstance(maker, ops.Transpose):
        return Source(maker.x, True, 1 - k_axis)
    return Source(operand, False, k_axis)


def stays(scheduler: BlockScheduler, source: Source, kind: ProductKind | None) -> bool:
    """Whether the product reads a staged load where the copy puts it.

    `kind` None stands for the threads, which read anything.
    """
    load = scheduler.forms.makers.get(source.value)
    if not isinstance(load, ops.Load) or kind is None:
        return kind is None
    tile = load.window_type
    if tile.shape[source.k_axis] * tile.dtype.bytes % DEPTH_BYTES:
        return False
    kept = [axis for axis, is_kept in enumerate(load.kept) if is_kept]
    fastest = next(axis for axis in fastest_first(load.ref.ref) if axis in kept)
    return kept.index(fastest) == source.k_axis or kind.transposes(scheduler.target)


def in_shared_memory(
    scheduler: BlockScheduler, dot: ops.Dot, side: str, kind: ProductKind | None
) -> Operand:
    """Return an operand where the product reads it, stored there first unless it stays."""
    source = source_of(scheduler, dot, side)
    slot = scheduler.slots.get(source.value)
    if slot is not None and stays(scheduler, source, kind):
        return Operand(slot, source.is_transposed)
    return stored(scheduler, tile_of(scheduler, source), source, dot, kind)


def tile_of(scheduler: BlockScheduler, source: Source) -> Value:
    """Return the tile of a source in registers, read from its slot if it is there alone."""
    load = scheduler.forms.makers.get(source.value)
    slot = scheduler.slots.get(source.value)
    if slot is None or source.value in scheduler.values or not isinstance(load, ops.Load):
        return scheduler.value(source.value)
    read_slot(scheduler, load, slot)
    # Only here: what is read in a region is not known behind it.
    return scheduler.values.pop(source.value)


def scale_slot(scheduler: BlockScheduler, dot: ops.ScaledDot, side: str) -> Slot:
    """Return where the image of an operand's scales is in shared memory."""
    image = dot.a_scale if side == "a" else dot.b_scale
    slot = scheduler.slots.get(image)
    if slot is not None:
        return slot
    tile, maker, span = scheduler.value(image), scheduler.maker, dot.span
    label = f"scales of operand {side} of `dot`"
    allocation = ops.AllocSmem(span=span, shape=tile.tile.shape, dtype=tile.tile.dtype, label=label)
    buffer = scheduler.allocations.add_op(allocation).result
    _store_visibly(maker, buffer, tile)
    return Slot(buffer, ())


def _store_visibly(maker: Maker, buffer: Value, tile: Value) -> None:
    """Store a tile to where the tensor core, or its copies, may read it afterwards."""
    maker.add_op(ops.BlockBarrier(span=maker.span))
    _store(maker, buffer, tile, (0,) * len(tile.tile.shape))
    maker.add_op(ops.ProxyFence(span=maker.span))
    maker.add_op(ops.BlockBarrier(span=maker.span))


def stored(
    scheduler: BlockScheduler, tile: Value, source: Source, dot: ops.Dot, kind: ProductKind | None
) -> Operand:
    """Store a tile in registers where the tensor core can read it, turned if it must be."""
    # The buffer is contiguous along its last axis; where that must be K, the tile is turned.
    as_written = source.k_axis == 1 or kind is None or kind.transposes(scheduler.target)
    if not as_written:
        turn = ops.Transpose(span=dot.span, x=tile, permutation=(1, 0))
        tile = scheduler.maker.add_op(turn).result
    is_transposed = source.is_transposed if as_written else not source.is_transposed
    k_axis = source.k_axis if as_written else 1
    multiple = 1 if kind is None else kind.depth
    label = "operand of @" if as_written else "operand of @, turned to be contiguous along k,"
    buffer = _buffer(scheduler, tile.tile, k_axis, multiple, label)
    _store_visibly(scheduler.maker, buffer, tile)
    return Operand(Slot(buffer, ()), is_transposed)


def _buffer(
    scheduler: BlockScheduler, tile: TileType, k_axis: int, multiple: int, label: str
) -> Value:
    """Allocate the buffer of an operand; clear once what is beyond the tile along K."""
    shape = list(tile.shape)
    shape[k_axis] = up(shape[k_axis], multiple)
    before, span = scheduler.allocations, scheduler.maker.span
    is_padded = tuple(shape) != tile.shape
    label = f"{label} padded with zeros" if is_padded else label
    allocation = ops.AllocSmem(span=span, shape=tuple(shape), dtype=tile.dtype, label=label)
    buffer = before.add_op(allocation).result
    if is_padded:
        start, rest = [0, 0], list(shape)
        start[k_axis] = tile.shape[k_axis]
        rest[k_axis] -= tile.shape[k_axis]
        zero = before.number(0, TileType(tuple(rest), tile.dtype))
        _store(before, buffer, zero, (start[0], start[1]))
    return buffer


def _store(maker: Maker, buffer: Value, tile: Value, start: tuple[int, ...]) -> None:
    shape = tile.tile.shape
    maker.add_op(
        ops.Store(
            span=maker.span,
            ref=buffer,
            starts=tuple(maker.number(n, INDEX) for n in start),
            sizes=shape,
            steps=(1,) * len(shape),
            kept=(True,) * len(shape),
            value=tile,
        )
    )
