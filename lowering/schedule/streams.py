"""Tiles too large for the registers that are only loaded, combined elementwise and stored.

Before
    store o[...], load x[...] + load y[...]             (512 x 512)
After
    pipeline (p, q) { store o[chunk], load x[chunk] + load y[chunk] }

Invariant: nothing that a load reads is written between the load and the store, so reading it
later, chunk by chunk, reads the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import ACTS, PURE, READS, Block, Module, Op, Value, walk
from astdsl.ir.rewrite import map_regions, replace_body, replace_fields, with_ops
from astdsl.ir.types import GMEM, INDEX, TileType
from astdsl.lowering.schedule.build import Maker
from astdsl.lowering.windows import Forms

# More elements than this, of 32 bits, are streamed; a chunk has at most so many.
LARGEST_HELD_ELEMENTS = 32 * 1024
# Likewise of one warpgroup, where each runs the program itself.
LARGEST_OF_WARPGROUP_ELEMENTS = 8 * 1024
CHUNK_ELEMENTS = 8 * 1024
CHUNK_COLUMNS = 512
_REGISTER_BITS = 32


def stream_whole_kernel(module: Module) -> Module:
    """Return the module with its only store streamed, the chunks free to become blocks."""
    effects = [op for op in module.body.ops if op.effect not in (PURE, READS)]
    stores = [op for op in effects if isinstance(op, ops.Store)]
    others = [op for op in effects if op not in stores and not isinstance(op, ops.Assert)]
    if len(stores) != 1 or others:
        return module
    return replace_body(module, _stream(module.body, Forms(module.body), ops.INFERRED))


def stream_large_tiles(launch: ops.Launch) -> ops.Launch:
    """Return the launch with large elementwise stores streamed inside the block."""
    forms = Forms(launch.body)
    largest = LARGEST_OF_WARPGROUP_ELEMENTS if launch.per_warpgroup else LARGEST_HELD_ELEMENTS

    def change(region: Block) -> Block:
        inner = [map_regions(op, change) for op in region.ops]
        return _stream(with_ops(region, inner), forms, ops.SEQUENTIAL, largest)

    return map_regions(launch, lambda region: change(region) if region is launch.body else region)


def _stream(region: Block, forms: Forms, mode: str, largest: int = LARGEST_HELD_ELEMENTS) -> Block:
    made: list[Op] = []
    for position, op in enumerate(region.ops):
        if isinstance(op, ops.Store) and _is_large(op.value.tile, largest):
            stream = _Stream(op, forms, region.ops[:position])
            if stream.is_possible():
                made += stream.write(mode)
                continue
        made.append(op)
    return with_ops(region, made)


def _is_large(tile: TileType, largest: int) -> bool:
    words = max(1, tile.dtype.bits // _REGISTER_BITS)
    return tile.elements * words > largest


def _divisor(extent: int, most: int) -> int:
    """Return the largest divisor of an extent that is at most `most`."""
    return max(d for d in range(1, min(extent, most) + 1) if extent % d == 0)


def _chunk(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the extents of a chunk: they divide the tile's, the last axis is cut last."""
    left, chunk = CHUNK_ELEMENTS, []
    for place, extent in enumerate(reversed(shape)):
        side = _divisor(extent, min(left, CHUNK_COLUMNS if place == 0 else left))
        chunk.append(side)
        left //= side
    return tuple(reversed(chunk))


@dataclass(slots=True)
class _Stream:
    """One store, and what it is computed from."""

    store: ops.Store
    forms: Forms
    before: Sequence[Op]
    chunk: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.chunk = _chunk(self.store.value.tile.shape)

    def is_possible(self) -> bool:
        """Whether every value the store needs can be made chunk by chunk."""
        return self._can_cut(self.store.value, self.chunk)

    def _can_cut(self, value: Value, chunk: tuple[int, ...]) -> bool:
        """Whether a part of a value, of `chunk` extents, can be made where the store is."""
        if value.tile.shape == chunk:
            return True
        maker = self.forms.makers.get(value)
        if isinstance(maker, ops.Load):
            return maker.ref.ref.space == GMEM and self._reads_the_same(maker)
        if isinstance(maker, (ops.Constant, ops.Iota)):
            return True
        if isinstance(maker, ops.Broadcast):
            return self._can_cut(maker.x, _source_chunk(maker, chunk))
        if isinstance(maker, ops.Elementwise):
            return all(self._can_cut(v, chunk) for v in maker.operands)
        return False

    def _reads_the_same(self, load: ops.Load) -> bool:
        """Whether nothing between the load and the store, nor the store, changes what it reads."""
        if load not in self.before:
            return False
        if load.ref is self.store.ref:
            return _is_same_window(load, self.store, self.forms)
        later = self.before[self.before.index(load) + 1 :]
        return not any(
            inner.effect == ACTS or (isinstance(inner, ops.Window) and inner.ref is load.ref)
            for op in later
            if op.effect not in (PURE, READS)
            for inner in (op, *(i for region in op.regions for i in walk(region)))
        )

    def write(self, mode: str) -> list[Op]:
        """Return the pipeline over chunks."""
        shape, maker = self.store.value.tile.shape, Maker(self.store.span)
        counts = [n // c for n, c in zip(shape, self.chunk, strict=True)]
        cut = [axis for axis, count in enumerate(counts) if count > 1]
        zero, one = maker.number(0), maker.number(1)
        indices = [Value(INDEX, f"chunk{axis}") for axis in cut]
        body = Maker(self.store.span)
        moves = {
            a: body.multiply(i, body.number(self.chunk[a]))
            for a, i in zip(cut, indices, strict=True)
        }
        parts = _Parts(body, self.forms)
        value = parts.part(self.store.value, self.chunk, moves)
        starts, sizes = _moved(body, self.store, self.chunk, moves)
        body.add_op(replace_fields(self.store, value=value, starts=starts, sizes=sizes))
        highs = tuple(maker.number(counts[a]) for a in cut)
        maker.add_op(
            ops.Pipeline(
                span=self.store.span,
                initial=(),
                lows=(zero,) * len(cut),
                highs=highs,
                steps=(one,) * len(cut),
                body=body.block(args=indices),
                axes=(mode,) * len(cut),
            )
        )
        return maker.ops


def _is_same_window(a: ops.Window, b: ops.Window, forms: Forms) -> bool:
    apart = [forms[x] - forms[y] for x, y in zip(a.starts, b.starts, strict=True)]
    same = (a.sizes, a.steps, a.kept) == (b.sizes, b.steps, b.kept)
    return same and all(each.is_constant and each.constant == 0 for each in apart)


def _source_chunk(op: ops.Broadcast, chunk: tuple[int, ...]) -> tuple[int, ...]:
    shape = op.x.tile.shape
    tail = chunk[len(chunk) - len(shape) :]
    return tuple(1 if n == 1 else c for n, c in zip(shape, tail, strict=True))


def _moved(
    maker: Maker, op: ops.Window, chunk: tuple[int, ...], moves: dict[int, Value]
) -> tuple[tuple[Value, ...], tuple[int, ...]]:
    """Return the starts and sizes of a chunk of a window."""
    starts, sizes = list(op.starts), list(op.sizes)
    kept = [axis for axis, keep in enumerate(op.kept) if keep]
    for tile_axis, axis in enumerate(kept):
        sizes[axis] = chunk[tile_axis]
        if tile_axis in moves:
            move = maker.multiply(moves[tile_axis], maker.number(op.steps[axis]))
            starts[axis] = maker.add(starts[axis], move)
    return tuple(starts), tuple(sizes)


_Part: TypeAlias = Callable[["_Parts", Any, tuple[int, ...], dict[int, Value]], Op]


class _Parts:
    """Writes the part of each value that a chunk needs, once."""

    def __init__(self, maker: Maker, forms: Forms) -> None:
        self.maker = maker
        self.forms = forms
        self._made: dict[tuple[Value, tuple[int, ...], tuple[int, ...]], Value] = {}

    def part(self, value: Value, chunk: tuple[int, ...], moves: dict[int, Value]) -> Value:
        """Return the part of a value that starts `moves` along its axes."""
        if value.tile.shape == chunk:
            return value
        key = (value, chunk, tuple(moves))
        if key not in self._made:
            op = self.forms.makers[value]
            write = _PARTS.get(type(op), _elementwise)
            self._made[key] = self.maker.add_op(write(self, op, chunk, moves)).result
        return self._made[key]


def _elementwise(parts: _Parts, op: Op, chunk: tuple[int, ...], moves: dict[int, Value]) -> Op:
    changes = {
        name: parts.part(value, chunk, moves)
        for name, value in op.values_of("operand")
        if isinstance(value, Value)
    }
    fields = {name: getattr(op, name) for name in type(op).fields}
    return type(op)(**fields | changes)


def _constant(
    parts: _Parts, op: ops.Constant, chunk: tuple[int, ...], moves: dict[int, Value]
) -> Op:
    return ops.Constant(span=op.span, value=op.value, type=TileType(chunk, op.type.dtype))


def _iota(parts: _Parts, op: ops.Iota, chunk: tuple[int, ...], moves: dict[int, Value]) -> Op:
    part = ops.Iota(span=op.span, shape=chunk, axis=op.axis, dtype=op.dtype)
    if op.axis not in moves:
        return part
    maker = parts.maker
    here = maker.add_op(part).result
    move = maker.add_op(ops.Cast(span=op.span, x=moves[op.axis], dtype=op.dtype)).result
    everywhere = maker.add_op(ops.Broadcast(span=op.span, x=move, shape=chunk)).result
    return ops.Add(span=op.span, x=here, y=everywhere)


def _broadcast(
    parts: _Parts, op: ops.Broadcast, chunk: tuple[int, ...], moves: dict[int, Value]
) -> Op:
    new_axes = len(op.shape) - len(op.x.tile.shape)
    inner = _source_chunk(op, chunk)
    kept = {
        axis - new_axes: move
        for axis, move in moves.items()
        if axis >= new_axes and op.x.tile.shape[axis - new_axes] > 1
    }
    return ops.Broadcast(span=op.span, x=parts.part(op.x, inner, kept), shape=chunk)


def _load(parts: _Parts, op: ops.Load, chunk: tuple[int, ...], moves: dict[int, Value]) -> Op:
    starts, sizes = _moved(parts.maker, op, chunk, moves)
    fields = {name: getattr(op, name) for name in type(op).fields}
    return ops.Load(**fields | {"starts": starts, "sizes": sizes})


_PARTS: dict[type[Op], _Part] = {
    ops.Constant: _constant,
    ops.Iota: _iota,
    ops.Broadcast: _broadcast,
    ops.Load: _load,
}
