"""Choosing a register layout for every tile of a scheduled kernel.

One forward walk: loads choose what makes their accesses wide, products what the tensor core
demands, everything else follows its operands.

Invariant: a value is either held in one layout (`Layout`), or `FREE`: made anew in whatever
layout a use asks for, since that costs next to nothing (constants, index tiles, broadcasts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.rewrite import count_uses
from astdsl.ir.types import GMEM, AccumulatorType, RefType, TileType
from astdsl.lowering.layout.families import Families
from astdsl.lowering.layout.levels import levels_along
from astdsl.lowering.layout.parts import extended, sliced
from astdsl.lowering.layout.registers import (
    TMEM_LANES,
    WIDEST_ACCESS_BYTES,
    Layout,
    blocked,
    folded_in_warps,
    square,
    tmem_accumulator,
    tmem_half,
    tmem_product,
    wgmma_accumulator,
)
from astdsl.lowering.layout.reshaping import reshaped
from astdsl.lowering.layout.stated import stated_layout
from astdsl.lowering.layout.turning import wanted_by_uses
from astdsl.lowering.target import WGMMA, Target

TMEM_CELL_BITS = 32


class _Free:
    """The layout of what is made where it is used."""

    def __repr__(self) -> str:
        return "FREE"


FREE: Final = _Free()
Placement: TypeAlias = Layout | _Free
Rule: TypeAlias = Callable[["Inference", Any], None]
_RULES: dict[type[Op], Rule] = {}


def _infers(*kinds: type[Op]) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for kind in kinds:
            assert kind not in _RULES, f"two layout rules for {kind.__name__}"
            _RULES[kind] = rule
        return rule

    return register


def infer_layouts(
    body: Block, threads: int, target: Target, given: Iterable[Value] = ()
) -> dict[Value, Placement]:
    """Return the placement of every tile in `body`, which is run by `threads` threads.

    `given` are what the body uses of its surroundings: the kernel's parameters.
    """
    inference = Inference(threads, target, Families(body))
    inference.wanted = wanted_by_uses(body, threads) | _wanted(body, threads)
    inference.arguments((*given, *body.args))
    inference.block(body)
    return inference.placements


class Inference:
    """The state of one walk: what is placed so far."""

    def __init__(self, threads: int, target: Target, families: Families) -> None:
        self.threads = threads
        self.target = target
        self.families = families
        self.placements: dict[Value, Placement] = {}
        # Loads that are made in the layout that the kernel states for all their uses.
        self.wanted: dict[Value, Layout] = {}
        # Of tensor memory: how many elements share a cell.
        self.packed: dict[Value, int] = {}

    def block(self, block: Block) -> None:
        """Place every result made in a block."""
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        """Place the results of one operation."""
        rule = _RULES.get(type(op))
        if rule:
            rule(self, op)
            return
        if isinstance(op, ops.Elementwise):
            self.place(op.result, self.common(op.operands))
            return
        tiles = [v for v in op.results if isinstance(v.type, TileType)]
        assert all(v.tile.shape == () for v in tiles), f"no layout rule for {type(op).__name__}"
        for value in tiles:
            self.place(value, self.default(value.tile))

    def place(self, value: Value, placement: Placement) -> None:
        """Record where a value is."""
        self.placements[value] = placement

    def arguments(self, values: Iterable[Value]) -> None:
        """Place block arguments that no loop carries: indices, scalars."""
        for value in values:
            if isinstance(value.type, TileType):
                self.place(value, self.default(value.type))

    def default(self, tile: TileType) -> Layout:
        """Return the coalesced layout."""
        return coalesced(tile, self.threads)

    def common(self, values: Iterable[Value]) -> Placement:
        """Return where an elementwise operation on `values` happens.

        The first operand that is held decides, one with more registers first: an accumulator
        is not moved for the sake of a small operand's copy.
        """
        values = tuple(values)
        held = [p for p in map(self.placements.__getitem__, values) if isinstance(p, Layout)]
        if held:
            return max(held, key=lambda layout: layout.register_count)
        return FREE

    def settled(self, value: Value) -> Layout:
        """Return the layout of a value that must be held."""
        placement = self.placements[value]
        return placement if isinstance(placement, Layout) else self.default(value.tile)


def _wanted(body: Block, threads: int) -> dict[Value, Layout]:
    """Return the layout that a kernel states for a loaded tile, if there is no other use of it."""
    casts = [op for op in walk(body) if isinstance(op, ops.LayoutCast)]
    if not casts:
        return {}
    uses = count_uses(body)
    uses.subtract(op.x for op in walk(body) if isinstance(op, ops.PrintLayout))
    found = {op.x: stated_layout(op.layout, op.x.tile.shape, threads) for op in casts}
    return {value: layout for value, layout in found.items() if uses[value] == 1}


def coalesced(
    tile: TileType,
    threads: int,
    order: tuple[int, ...] = (),
    folded: frozenset[int] = frozenset(),
) -> Layout:
    """Return the blocked layout whose accesses along the fastest axis of `order` are wide.

    They are no wider than leaves every thread some. Warps are spread over the axes that are not
    `folded` first.
    """
    if not tile.shape:
        return blocked((), threads)
    vector = max(1, WIDEST_ACCESS_BYTES * 8 // max(8, tile.dtype.bits))
    fast = order[0] if order else -1
    while vector > 1 and (tile.shape[fast] % vector or vector * threads > tile.elements):
        vector //= 2
    if folded and len(folded) < len(tile.shape):
        return folded_in_warps(tile.shape, threads, vector, order, folded)
    return blocked(tile.shape, threads, vector, order)


# What is made anew where it is used takes no registers of its own.
FREE_KINDS = (ops.Constant, ops.Iota, ops.Broadcast)


@_infers(ops.InlinePtx)
def _inline_ptx(inference: Inference, op: ops.InlinePtx) -> None:
    common = inference.common(op.xs)
    for result in op.results:
        held = isinstance(common, Layout)
        inference.place(result, common if held else inference.default(result.tile))


@_infers(ops.Constant, ops.Iota)
def _made_anywhere(inference: Inference, op: Op) -> None:
    scalar = op.result.tile.shape == ()
    inference.place(op.result, inference.default(op.result.tile) if scalar else FREE)


@_infers(ops.Broadcast)
def _broadcast(inference: Inference, op: Op) -> None:
    inference.place(op.result, FREE)


@_infers(ops.Load)
def _load(inference: Inference, op: ops.Load) -> None:
    stated = inference.wanted.get(op.result)
    inference.place(op.result, stated or _as_broadcast(inference, op) or _wide(inference, op))


def _wide(inference: Inference, op: ops.Load) -> Layout:
    ref = op.ref.ref
    axes = [a for a, kept in enumerate(op.kept) if kept]
    order = [axes.index(a) for a in fastest_first(ref) if a in axes]
    folded = inference.families.folded_axes(op.result)
    return coalesced(op.window_type, inference.threads, tuple(order), folded)


def _as_broadcast(inference: Inference, op: ops.Load) -> Layout | None:
    """Return where a loaded tile is needed to be broadcast to another one that is loaded."""
    found = inference.families.broadcast_of(op.result)
    if found is None:
        return None
    broadcast, load = found
    needed = broadcast_from(_wide(inference, load), broadcast)
    return reshaped(needed, op.window_type.shape)


def broadcast_from(layout: Layout, op: ops.Broadcast) -> Layout:
    """Return the layout of what is broadcast to a tile of `layout` where nothing moves for it."""
    new, axes = broadcast_axes(op)
    return layout.narrowed(axes).without(range(new))


def broadcast_axes(op: ops.Broadcast) -> tuple[int, list[int]]:
    """Return how many axes of the result are new, and the others along which x is repeated."""
    new = len(op.shape) - len(op.x.tile.shape)
    every = enumerate(op.x.tile.shape, new)
    return new, [axis for axis, extent in every if extent != op.shape[axis]]


@_infers(ops.Gather)
def _gather(inference: Inference, op: ops.Gather) -> None:
    """Follow the contiguous axis where a window reads it, the indices where none does."""
    kept = [axis for axis, is_kept in enumerate(op.kept) if is_kept]
    fast = fastest_first(op.ref.ref)[:1] if op.ref.ref.rank else ()
    if fast and fast[0] in kept:
        first = op.along[kept.index(fast[0])]
        others = (axis for axis in reversed(range(len(op.shape))) if axis != first)
        found = coalesced(op.window_type, inference.threads, (first, *others))
        inference.place(op.result, found)
        return
    common = inference.common(op.indices)
    held = common if isinstance(common, Layout) else inference.default(op.window_type)
    inference.place(op.result, held)


@_infers(ops.Atomic)
def _atomic(inference: Inference, op: ops.Atomic) -> None:
    common = inference.common((op.value, *op.compare, *op.indices))
    held = common if isinstance(common, Layout) else inference.default(op.window_type)
    inference.place(op.result, held)


@_infers(ops.Take)
def _take(inference: Inference, op: ops.Take) -> None:
    inference.place(op.result, inference.settled(op.indices))


def fastest_first(ref: RefType) -> tuple[int, ...]:
    """Return the axes of a ref, the contiguous one first, the rest last axis first."""
    axes = tuple(reversed(range(ref.rank)))
    if ref.space == GMEM and 1 in ref.strides:
        contiguous = ref.rank - 1 - ref.strides[::-1].index(1)
        return (contiguous, *(a for a in axes if a != contiguous))
    return axes


@_infers(ops.Reduce)
def _reduce(inference: Inference, op: ops.Reduce) -> None:
    inference.place(op.result, inference.settled(op.x).without(op.axes))


@_infers(ops.ArgReduce)
def _arg_reduce(inference: Inference, op: ops.ArgReduce) -> None:
    inference.place(op.result, inference.settled(op.x).without((op.axis,)))


@_infers(ops.Scan)
def _scan(inference: Inference, op: ops.Scan) -> None:
    layout = _combine(inference, op)
    for result in op.results:
        inference.place(result, layout)


@_infers(ops.Fold)
def _fold(inference: Inference, op: ops.Fold) -> None:
    layout = _combine(inference, op).without([op.axis])
    for result in op.results:
        inference.place(result, layout)


def _combine(inference: Inference, op: ops.Combining) -> Layout:
    """Place what the function of scalars makes; return where elements are combined."""
    inference.arguments(op.combine.args)
    inference.block(op.combine)
    return combined_layout(op, inference.placements, inference.threads)


def combined_layout(
    op: ops.Combining, placements: Mapping[Value, Placement], threads: int
) -> Layout:
    """Return the layout in which elements are combined: a held operand's, if its axis is in order.

    Of several the one with the most registers.
    """
    held = [p for v in op.xs if isinstance(p := placements[v], Layout)]
    ordered = [p for p in held if levels_along(p, op.axis) is not None]
    widest = max((v.tile for v in op.xs), key=lambda tile: tile.dtype.bits)
    return max(ordered, key=lambda p: p.register_count, default=coalesced(widest, threads))


@_infers(ops.LayoutCast)
def _layout_cast(inference: Inference, op: ops.LayoutCast) -> None:
    inference.place(op.result, stated_layout(op.layout, op.x.tile.shape, inference.threads))


@_infers(ops.Transpose)
def _transpose(inference: Inference, op: ops.Transpose) -> None:
    placement = inference.placements[op.x]
    held = isinstance(placement, Layout)
    inference.place(op.result, placement.permuted(op.permutation) if held else FREE)  # type: ignore[union-attr]


@_infers(ops.Reshape)
def _reshape(inference: Inference, op: ops.Reshape) -> None:
    placement = inference.placements[op.x]
    if not isinstance(placement, Layout):
        inference.place(op.result, inference.default(op.result.tile))
        return
    moved = reshaped(placement, op.shape)
    inference.place(op.result, moved or inference.default(op.result.tile))


@_infers(ops.Slice)
def _slice(inference: Inference, op: ops.Slice) -> None:
    own = sliced(inference.settled(op.x), op.starts, op.sizes, op.steps)
    inference.place(op.result, own or inference.default(op.result.tile))


@_infers(ops.UnpackNibbles)
def _unpack_nibbles(inference: Inference, op: ops.UnpackNibbles) -> None:
    inference.place(op.result, inference.settled(op.x).doubled(op.axis))


@_infers(ops.PackNibbles)
def _pack_nibbles(inference: Inference, op: ops.PackNibbles) -> None:
    """Join the halves where they are, if they are in one thread."""
    joined = inference.settled(op.x).halved(op.axis)
    inference.place(op.result, joined or inference.default(op.result.tile))


@_infers(ops.Insert)
def _insert(inference: Inference, op: ops.Insert) -> None:
    """Follow the whole; where it is made anew, as in `concat`, the first part, if that can be."""
    part = inference.placements[op.part]
    own = None
    if inference.placements[op.x] is FREE and isinstance(part, Layout):
        own = extended(part, op.x.tile.shape, op.starts)
    usual = inference.settled(op.x)
    # Threads that hold copies of the part would hold copies of the whole.
    pays = own is not None and own.register_count <= usual.register_count
    inference.place(op.result, own if own is not None and pays else usual)


@_infers(ops.AccumulatorRead)
def _accumulator_read(inference: Inference, op: ops.AccumulatorRead) -> None:
    inference.place(op.result, accumulator_layout(op.accumulator, inference))


@_infers(ops.TmemLoad)
def _tmem_load(inference: Inference, op: ops.TmemLoad) -> None:
    inference.place(op.result, tmem_layout(op, inference.threads, inference.packed[op.ref]))


@_infers(ops.AllocTmem)
def _alloc_tmem(inference: Inference, op: ops.AllocTmem) -> None:
    inference.packed[op.result] = elements_per_cell(op)


def elements_per_cell(op: ops.AllocTmem) -> int:
    """Return how many neighbours share 32 bits of tensor memory."""
    return TMEM_CELL_BITS // op.dtype.bits if op.packed else 1


def tmem_layout(op: ops.Window, threads: int, per_cell: int) -> Layout:
    """Return how the threads hold columns of tensor memory that they load or store."""
    rows, columns = op.sizes
    if rows == TMEM_LANES:
        return tmem_accumulator((rows, columns), threads)
    return tmem_half((rows, columns), per_cell)


@_infers(ops.SharedDot)
def _shared_dot(inference: Inference, op: ops.SharedDot) -> None:
    inference.place(op.result, square(op.result.tile.shape, inference.threads))


def accumulator_layout(accumulator: Value, inference: Inference) -> Layout:
    """Return how the threads hold an accumulator that they read."""
    kind = accumulator.type
    assert isinstance(kind, AccumulatorType), f"expected an accumulator, got {kind}"
    rows, columns = kind.shape
    if inference.target.has(WGMMA):
        return wgmma_accumulator((rows, columns), inference.threads)
    return tmem_product((rows, columns), inference.threads)


@_infers(ops.If)
def _if(inference: Inference, op: ops.If) -> None:
    inference.block(op.then)
    inference.block(op.otherwise)
    sides = (ops.yielded(op.then), ops.yielded(op.otherwise))
    for result, *values in zip(op.results, *sides, strict=True):
        if isinstance(result.type, TileType):
            common = inference.common(values)
            held = common if isinstance(common, Layout) else inference.default(result.type)
            inference.place(result, held)


@_infers(ops.Phase)
def _phase(inference: Inference, op: ops.Phase) -> None:
    inference.block(op.body)
    for result, value in zip(op.results, ops.yielded(op.body), strict=True):
        if isinstance(result.type, TileType):
            inference.place(result, inference.settled(value))


@_infers(ops.Warps)
def _warps(inference: Inference, op: ops.Warps) -> None:
    inference.block(op.body)


@_infers(ops.For)
def _for(inference: Inference, op: ops.For) -> None:
    inference.arguments(op.body.args[:1])
    _carried(inference, op, op.body.args[1:], op.body)


@_infers(ops.While)
def _while(inference: Inference, op: ops.While) -> None:
    _carried(inference, op, op.body.args, op.body)
    for argument, result in zip(op.condition.args, op.results, strict=True):
        if isinstance(result.type, TileType):
            inference.place(argument, inference.placements[result])
    inference.block(op.condition)


def _carried(inference: Inference, op: ops.Loop, arguments: tuple[Value, ...], body: Block) -> None:
    """Place what a loop carries: as it enters, or if that is FREE as the body leaves it."""
    tiles = [k for k, v in enumerate(op.initial) if isinstance(v.type, TileType)]
    for k in tiles:
        inference.place(arguments[k], inference.placements[op.initial[k]])
    if any(inference.placements[arguments[k]] is FREE for k in tiles):
        inference.block(body)
        for k in tiles:
            if inference.placements[arguments[k]] is FREE:
                inference.place(arguments[k], inference.settled(ops.yielded(body)[k]))
    inference.block(body)
    for k in tiles:
        inference.place(op.results[k], inference.placements[arguments[k]])
