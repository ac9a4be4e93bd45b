"""Reductions and scans by a function of the user's, and `cumsum`.

Invariant: composed of slices and inserts in log2(extent) rounds; the order of operands is kept, so
the function needs to be associative and nothing else. Elements outside take no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from astdsl.errors import ShapeMismatch, TypeMismatch
from astdsl.ir import ops
from astdsl.ir.dtypes import FLOAT, f32
from astdsl.lang.arith import where
from astdsl.lang.elementwise import as_tile, cast, settle, sources
from astdsl.lang.masks import inside_mask, masked
from astdsl.lang.parts import concat
from astdsl.lang.ragged import LOST, ZERO, Edges, HalfSpace
from astdsl.lang.reductions import summable
from astdsl.lang.shapes import as_extent, index, normalized_axes, reshape
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Tile, method

Parts: TypeAlias = tuple[Tile, ...]
Combine: TypeAlias = Callable[[Parts, Parts], Parts]


def reduce(tiles: Any, axis: object, combine: Any, *, keepdims: bool = False) -> Any:
    """Combine the elements along one axis, first to last, by an associative function.

    `tiles` is a tile or a tuple of tiles of one shape; `combine(left, right)` takes and gives what
    `tiles` is: a tile, or a tuple. Neighbours are combined, then pairs of neighbours, and so on.
    Composed. `sum`, `max`, `argmax`, ... are faster where they do.
    Errors: ShapeMismatch, TypeMismatch.
    """
    work = _Work(tiles, axis, combine, "`reduce`")
    parts, extent = work.parts, work.extent
    while extent > 1:
        even = extent - extent % 2
        left, right = (work.picked(parts, slice(k, even, 2)) for k in (0, 1))
        merged = work.combine(left, right)
        if extent % 2:
            last = work.picked(parts, slice(even, extent))
            merged = tuple(concat(pair, work.along) for pair in zip(merged, last, strict=True))
        parts, extent = merged, extent - extent // 2
    dropped = parts if keepdims else work.picked(parts, 0)
    return work.given_back(dropped)


def scan(tiles: Any, axis: object, combine: Any) -> Any:
    """Combine each element along one axis with all before it, by an associative function.

    `tiles` and `combine` are as of `reduce`. Composed: log2(extent) rounds, each of which moves the
    tile between threads. Errors: ShapeMismatch, TypeMismatch.
    """
    work = _Work(tiles, axis, combine, "`scan`")
    parts, distance = work.parts, 1
    while distance < work.extent:
        left = work.picked(parts, slice(0, work.extent - distance))
        right = work.picked(parts, slice(distance, work.extent))
        merged = work.combine(left, right)
        pairs = zip(parts, merged, strict=True)
        parts = tuple(_with_end(old, new, work.along, distance) for old, new in pairs)
        distance *= 2
    return work.given_back(tuple(_with_edges(part, work.spaces) for part in parts))


@method("cumsum")
def cumsum(x: object, axis: object = None) -> Tile:
    """Return the sum of each element and all before it along `axis`; without it x is flat.

    Floats under 32 bits are summed in f32 and rounded once; bools and integers under 32 bits give
    i32. The order inside is unspecified. Composed: see `scan`.
    """
    tile = as_tile(x, "`cumsum`")
    tile = summable(reshape(tile, -1) if axis is None else tile, "`cumsum`")
    (along,) = normalized_axes(as_extent(axis or 0, "`cumsum`"), tile.ndim, "`cumsum`")
    dtype = tile.dtype
    wide = cast(tile, f32) if tile.kind == FLOAT and dtype.bits < f32.bits else tile
    spaces = wide.edges.along([along])
    counted = masked(wide, [h for h in spaces if wide.edges.outside[h] != ZERO], 0)
    kept = {h: s for h, s in wide.edges.outside.items() if h not in spaces}
    summed = scan(Tile(counted, edges=Edges(kept)), along, lambda left, right: left + right)
    return cast(_with_edges(summed, spaces), dtype)


class _Work:
    """The tiles being combined, with the validity of their elements last where some lie outside.

    `spaces` are the half spaces along the axis, which the tiles have no more.
    """

    def __init__(self, tiles: Any, axis: object, combine: Any, what: str) -> None:
        self._is_tuple = isinstance(tiles, Iterable) and not isinstance(tiles, Tile)
        given = [settle(x, what) for x in (tiles if self._is_tuple else (tiles,))]
        if not given or any(x.shape != given[0].shape for x in given) or not given[0].ndim:
            raise fault(
                ShapeMismatch,
                f"{what} takes tiles of one shape, got {', '.join(map(repr, given)) or 'none'}",
                *sources(*given),
                help="`broadcast_to` repeats a tile",
            )
        if not callable(combine):
            raise fault(
                TypeMismatch,
                f"{what} combines by a function, got {combine!r}",
                help=f"write {what[:-1]}(t, axis, maximum)`, or a `lambda left, right: ...`",
            )
        self._combine, self._what = combine, what
        (self.along,) = normalized_axes(as_extent(axis, what), given[0].ndim, what)
        self.extent = given[0].shape[self.along]
        if not self.extent:
            raise fault(ShapeMismatch, f"{what} of no elements", help="the extent is 1 or more")
        every = dict.fromkeys(h for x in given for h in x.edges.along([self.along]))
        self.spaces = list(every)
        self.parts: Parts = tuple(_without(x, self.spaces) for x in given)
        if self.spaces:
            self.parts += (Tile(inside_mask(given[0].shape, self.spaces)),)

    def picked(self, parts: Parts, item: int | slice) -> Parts:
        """Return a part of every tile along the axis."""
        return tuple(index(x, (slice(None),) * self.along + (item,)) for x in parts)

    def combine(self, left: Parts, right: Parts) -> Parts:
        """Combine tiles; where only one side is valid, it is taken as it is."""
        if not self.spaces:
            return self._called(left, right)
        (*lefts, left_valid), (*rights, right_valid) = left, right
        both = self._called(tuple(lefts), tuple(rights))
        chosen = (
            where(left_valid & right_valid, made, where(left_valid, x, y))
            for made, x, y in zip(both, lefts, rights, strict=True)
        )
        return (*chosen, left_valid | right_valid)

    def _called(self, left: Parts, right: Parts) -> Parts:
        operands = (left, right) if self._is_tuple else (left[0], right[0])
        try:
            result = self._combine(*operands)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # it is the function's own
            raise fault(
                TypeMismatch,
                f"the function of {self._what} is called with two operands: {error}",
                help="it takes a left and a right one: a tile each, or a tuple of tiles each",
            ) from None
        made = tuple(result) if isinstance(result, tuple | list) else (result,)
        if len(made) != len(left):
            raise fault(
                TypeMismatch,
                f"the function of {self._what} gives {len(made)} values for {len(left)} tiles",
                help="it takes two of what it returns: a tile each, or a tuple of tiles each",
            )
        return tuple(self._fitting(x, like) for x, like in zip(made, left, strict=True))

    def _fitting(self, x: object, like: Tile) -> Tile:
        tile = as_tile(x, f"the result of the function of {self._what}")
        if tile.weak:
            tile = cast(tile, like.dtype)
        if tile.shape != like.shape or tile.dtype is not like.dtype:
            raise fault(
                TypeMismatch,
                f"the function of {self._what} gives {tile} for {like}",
                *sources(tile),
                help=f"shape and dtype stay what they are: `.astype({like.dtype})` converts",
            )
        return tile

    def given_back(self, parts: Parts) -> Any:
        """Return tiles as they were given: one, or a tuple."""
        own = parts[:-1] if self.spaces else parts
        return own if self._is_tuple else own[0]


def _without(x: Tile, spaces: Sequence[HalfSpace]) -> Tile:
    """Return x with the elements outside `spaces` as ordinary ones."""
    kept = {h: state for h, state in x.edges.outside.items() if h not in spaces}
    return Tile(x.value, edges=Edges(kept))


def _with_edges(x: Tile, spaces: Sequence[HalfSpace]) -> Tile:
    """Return x with what lies outside `spaces` as meaningless elements."""
    return Tile(x.value, edges=Edges({**x.edges.outside, **dict.fromkeys(spaces, LOST)}))


def _with_end(x: Tile, end: Tile, along: int, start: int) -> Tile:
    """Return x with `end` in place of its elements from `start` on."""
    starts = tuple(start if a == along else 0 for a in range(x.ndim))
    value = emit(ops.Insert, x=x.value, part=end.value, starts=starts).result
    states = {
        h: state if end.edges.outside.get(h, state) == state else LOST
        for h, state in x.edges.outside.items()
    }
    return Tile(value, edges=Edges(dict.fromkeys(end.edges, LOST) | states))
