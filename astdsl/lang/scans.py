"""Reductions and scans by a function of the user's, and `cumsum`.

Invariant: the order of operands is kept, so the function needs to be associative and nothing else.
It is traced once, for scalars. Elements outside take no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from astdsl.errors import ShapeMismatch, TypeMismatch, in_words
from astdsl.ir import ops
from astdsl.ir.dtypes import FLOAT, f32
from astdsl.ir.rewrite import free_values
from astdsl.ir.types import TileType
from astdsl.lang.arith import where
from astdsl.lang.elementwise import as_tile, cast, settle, sources
from astdsl.lang.masks import inside_mask, masked
from astdsl.lang.ragged import LOST, ZERO, Edges, HalfSpace
from astdsl.lang.reductions import summable
from astdsl.lang.regions import flattened, with_arguments
from astdsl.lang.shapes import as_extent, normalized_axes, reshape
from astdsl.lang.tracing import emit, fault, require_trace
from astdsl.lang.values import Tile, method

Parts: TypeAlias = tuple[Tile, ...]
Combine: TypeAlias = Callable[[Parts, Parts], Parts]


def reduce(tiles: Any, axis: object, combine: Any, *, keepdims: bool = False) -> Any:
    """Combine the elements along one axis, first to last, by an associative function.

    `tiles` is a tile or a tuple of tiles of one shape; `combine(left, right)` takes and gives an
    element of each: scalars, as one or as a tuple. It may use scalars of the kernel, and control
    flow without loops. `sum`, `max`, `argmax`, ... are faster where they do.
    Errors: ShapeMismatch, TypeMismatch, UnsupportedFeature.
    """
    work = _Work(tiles, axis, combine, "`reduce`")
    work.leave_out(work.spaces)
    folded = work.emitted(ops.Fold)
    if keepdims:
        shape = tuple(1 if a == work.along else n for a, n in enumerate(work.shape))
        folded = tuple(reshape(x, shape) for x in folded)
    return work.given_back(folded)


def scan(tiles: Any, axis: object, combine: Any) -> Any:
    """Combine each element along one axis with all before it, by an associative function.

    `tiles` and `combine` are as of `reduce`. Errors: ShapeMismatch, TypeMismatch,
    UnsupportedFeature.
    """
    work = _Work(tiles, axis, combine, "`scan`")
    work.leave_out(_before_inside(work.spaces))
    scanned = work.emitted(ops.Scan)
    return work.given_back(tuple(_with_edges(part, work.spaces) for part in scanned))


@method("cumsum")
def cumsum(x: object, axis: object = None) -> Tile:
    """Return the sum of each element and all before it along `axis`; without it x is flat.

    Floats under 32 bits are summed in f32 and rounded once; bools and integers under 32 bits give
    i32. The order inside is unspecified.
    """
    tile = as_tile(x, "`cumsum`")
    tile = summable(reshape(tile, -1) if axis is None else tile, "`cumsum`")
    (along,) = normalized_axes(as_extent(axis or 0, "`cumsum`"), tile.ndim, "`cumsum`")
    dtype = tile.dtype
    wide = cast(tile, f32) if tile.kind == FLOAT and dtype.bits < f32.bits else tile
    spaces = wide.edges.along([along])
    nonzero = [h for h in _before_inside(spaces) if wide.edges.outside[h] != ZERO]
    counted = masked(wide, nonzero, 0)
    kept = {h: s for h, s in wide.edges.outside.items() if h not in spaces}
    summed = scan(Tile(counted, edges=Edges(kept)), along, lambda left, right: left + right)
    outside = {**kept, **dict.fromkeys(spaces, LOST)}
    return cast(Tile(summed.value, edges=Edges(outside)), dtype)


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
        self.shape = given[0].shape
        if not self.shape[self.along]:
            raise fault(ShapeMismatch, f"{what} of no elements", help="the extent is 1 or more")
        every = dict.fromkeys(h for x in given for h in x.edges.along([self.along]))
        self.spaces = list(every)
        self.parts: Parts = tuple(_without(x, self.spaces) for x in given)
        self._has_mask = False

    def leave_out(self, spaces: Sequence[HalfSpace]) -> None:
        """Combine with each element whether it takes part: not where a half space fails."""
        if spaces:
            self.parts += (Tile(inside_mask(self.shape, spaces)),)
            self._has_mask = True

    def emitted(self, kind: type[ops.Combining]) -> Parts:
        """Trace the function once, for scalars, and emit the operation."""
        state = [TileType((), x.dtype) for x in self.parts]
        builder = require_trace(self._what).builder
        with builder.block([*state, *state]) as region:
            left, right = (
                tuple(map(Tile, region.args[a : a + len(state)])) for a in (0, len(state))
            )
            emit(ops.Yield, values=tuple(x.value for x in self._joined(left, right)))
        block = flattened(region.block, self._what)
        captured = tuple(free_values(block))
        closed = with_arguments(block, captured)
        op = emit(
            kind,
            xs=tuple(x.value for x in self.parts),
            captured=captured,
            axis=self.along,
            combine=closed,
        )
        edges = self._edges(kind)
        return tuple(Tile(value, edges=e) for value, e in zip(op.results, edges, strict=True))

    def _edges(self, kind: type[ops.Combining]) -> list[Edges]:
        """Return what lies outside of results along the other axes: elements that mean nothing."""
        found = [Edges(dict.fromkeys(x.edges, LOST)) for x in self.parts]
        if kind is ops.Scan:
            return found
        kept = [a for a in range(len(self.shape)) if a != self.along]
        return [edges.renumbered({old: new for new, old in enumerate(kept)}) for edges in found]

    def _joined(self, left: Parts, right: Parts) -> Parts:
        """Combine states; where only one side takes part, it is taken as it is."""
        if not self._has_mask:
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
                help="it takes a left and a right one: an element each, or a tuple of them each",
            ) from None
        made = tuple(result) if isinstance(result, tuple | list) else (result,)
        if len(made) != len(left):
            raise fault(
                TypeMismatch,
                f"the function of {self._what} gives {in_words(len(made), 'value')} for "
                f"{in_words(len(left), 'tile')}",
                help="it takes two of what it returns: an element, or a tuple of them",
            )
        return tuple(self._fitting(x, like) for x, like in zip(made, left, strict=True))

    def _fitting(self, x: object, like: Tile) -> Tile:
        tile = as_tile(x, f"the result of the function of {self._what}")
        if tile.weak:
            tile = cast(tile, like.dtype)
        if tile.shape:
            raise fault(
                TypeMismatch,
                f"the function of {self._what} gives {tile}: it combines single elements",
                *sources(tile),
                help="what differs along the tile goes in as a further tile: "
                f"write {self._what[:-1]}((t, u), axis, f)`",
            )
        if tile.dtype is not like.dtype:
            raise fault(
                TypeMismatch,
                f"the function of {self._what} gives {tile} for {like}",
                *sources(tile),
                help=f"the dtype stays what it is: `.astype({like.dtype})` converts",
            )
        return tile

    def given_back(self, parts: Parts) -> Any:
        """Return tiles as they were given: one, or a tuple."""
        own = parts[:-1] if self._has_mask else parts
        return own if self._is_tuple else own[0]


def _without(x: Tile, spaces: Sequence[HalfSpace]) -> Tile:
    """Return x with the elements outside `spaces` as ordinary ones."""
    kept = {h: state for h, state in x.edges.outside.items() if h not in spaces}
    return Tile(x.value, edges=Edges(kept))


def _with_edges(x: Tile, spaces: Sequence[HalfSpace]) -> Tile:
    """Return x with what lies outside `spaces` as meaningless elements."""
    return Tile(x.value, edges=Edges({**x.edges.outside, **dict.fromkeys(spaces, LOST)}))


def _before_inside(spaces: Sequence[HalfSpace]) -> list[HalfSpace]:
    """Return those outside of which elements come first: a prefix never reaches the others."""
    return [h for h in spaces if h.step > 0]
