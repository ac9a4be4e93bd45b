"""Reductions along axes of tiles.

Invariant: elements outside the array take no part. `axis` is None (all), one axis or a tuple;
`keepdims` leaves the reduced axes with extent 1. Floats under 32 bits are summed and multiplied in
f32 and rounded once; sums and products of bools and of integers under 32 bits are i32. The order
inside one reduction is unspecified, and fixed for one compiled kernel.
"""

from __future__ import annotations

from builtins import any as any_of
from builtins import sum as sum_of
from collections.abc import Iterable, Iterator, Mapping, Set, ValuesView
from functools import partial, reduce
from typing import Any

from astdsl.errors import ShapeMismatch
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import (
    BOOL,
    FLOAT,
    DType,
    boolean,
    f32,
    i32,
    largest_value,
    smallest_value,
)
from astdsl.lang.arith import all_literal, maximum, minimum
from astdsl.lang.elementwise import (
    as_tile,
    binary,
    cast,
    constant,
    expand,
    require_kind,
    rounded,
    settle,
    sources,
)
from astdsl.lang.masks import clamped, inside_mask, masked
from astdsl.lang.ragged import LOST, ZERO, Edges, HalfSpace
from astdsl.lang.rows import ADD, BIT_AND, BIT_OR
from astdsl.lang.shapes import normalized_axes, reshape
from astdsl.lang.symbolic import Form
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Tile, method
from astdsl.records import dataclass


@dataclass(frozen=True, slots=True)
class _Row:
    """A reduction: its kind, and whether zeros outside need no mask and give zero."""

    kind: str
    zeros_are_neutral: bool = False


SUM, PROD = _Row("sum", zeros_are_neutral=True), _Row("prod")
MIN, MAX, ANY, ALL = _Row("min"), _Row("max"), _Row("any", zeros_are_neutral=True), _Row("all")
# What is no operand but holds several.
LISTS = (list, tuple, Set, Mapping, ValuesView, Iterator)
IDENTITIES = {"sum": 0, "prod": 1, "any": False, "all": True}


def _identity(kind: str, dtype: DType) -> bool | int | float:
    if kind in IDENTITIES:
        return rounded(IDENTITIES[kind], dtype)
    return largest_value(dtype) if kind == "min" else smallest_value(dtype)


def _reduce(row: _Row, tile: Tile, axes: tuple[int, ...], keepdims: bool) -> Tile:
    if not axes:
        return tile
    spaces = tile.edges.along(axes)
    if row.zeros_are_neutral:
        spaces = [h for h in spaces if tile.edges.outside[h] != ZERO]
    identity = _identity(row.kind, tile.value.tile.dtype)
    if _is_empty(tile, axes):
        reduced = constant(identity, _kept_shape(tile, axes), tile.value.tile.dtype)
    else:
        value = masked(tile, spaces, identity)
        reduced = emit(ops.Reduce, x=value, axes=axes, kind=row.kind).result
    edges = _remaining(tile, axes)
    if not row.zeros_are_neutral:
        edges = Edges(dict.fromkeys(edges, LOST))
    return _with_axes(Tile(reduced, dims=tile.dims, edges=edges), tile, axes, keepdims)


def _is_empty(tile: Tile, axes: tuple[int, ...]) -> bool:
    return any_of(tile.shape[a] == 0 for a in axes)


def _kept_shape(tile: Tile, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for a, n in enumerate(tile.shape) if a not in axes)


def _remaining(tile: Tile, axes: tuple[int, ...]) -> Edges:
    kept = [a for a in range(tile.ndim) if a not in axes]
    return tile.edges.renumbered({old: new for new, old in enumerate(kept)})


def _with_axes(result: Tile, of: Tile, axes: tuple[int, ...], keepdims: bool) -> Tile:
    if not keepdims:
        return result
    shape = tuple(1 if a in axes else n for a, n in enumerate(of.shape))
    kept = [a for a in range(of.ndim) if a not in axes]
    edges = result.edges.renumbered(dict(enumerate(kept)))
    value = emit(ops.Reshape, x=result.value, shape=shape).result
    return Tile(value, dims=result.dims, edges=edges)


def summable(x: object, what: str) -> Tile:
    """Return a tile that is summed in its own dtype: bools and small integers become i32."""
    tile = settle(x, what)
    narrow = tile.kind == BOOL or (tile.kind != FLOAT and tile.dtype.bits < i32.bits)
    return cast(tile, i32) if narrow else tile


@method("sum")
def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the sum along `axis`; of no elements 0.

    Of a list, Python's sum of its values, which begins with the second argument, if there is one.
    """
    if isinstance(x, LISTS):
        values = [0 if axis is None else axis, *x]
        return sum_of(values) if all_literal(*values) else reduce(partial(binary, ADD), values)
    tile = summable(x, "`sum`")
    return _reduce(SUM, tile, normalized_axes(axis, tile.ndim, "`sum`"), keepdims)


@method("prod")
def prod(x: object, axis: object = None, keepdims: bool = False) -> Tile:
    """Return the product along `axis`; of no elements 1."""
    tile = summable(x, "`prod`")
    return _reduce(PROD, tile, normalized_axes(axis, tile.ndim, "`prod`"), keepdims)


def max(x: Any, *others: object, axis: object = None, keepdims: bool = False) -> Any:
    """Return the greatest element of a tile along `axis`, NaN if any is NaN; of none the least.

    Of several operands, or a list of them, `maximum` of all.
    """
    operands = _several(x, others)
    return reduce(maximum, operands) if operands else max_along(x, axis, keepdims)


def min(x: Any, *others: object, axis: object = None, keepdims: bool = False) -> Any:
    """Return the least element of a tile along `axis`, NaN if any is NaN; of none the greatest.

    Of several operands, or a list of them, `minimum` of all.
    """
    operands = _several(x, others)
    return reduce(minimum, operands) if operands else min_along(x, axis, keepdims)


def _several(x: Any, others: tuple[object, ...]) -> list[object]:
    if others:
        return [x, *others]
    return list(x) if isinstance(x, Iterable) and not isinstance(x, Tile) else []


@method("max")
def max_along(x: object, axis: object = None, keepdims: bool = False) -> Tile:
    """Return the greatest element along `axis`: see `max`."""
    return _extreme(MAX, ANY, x, axis, keepdims)


@method("min")
def min_along(x: object, axis: object = None, keepdims: bool = False) -> Tile:
    """Return the least element along `axis`: see `min`."""
    return _extreme(MIN, ALL, x, axis, keepdims)


def _extreme(row: _Row, of_bools: _Row, x: object, axis: object, keepdims: bool) -> Tile:
    what = f"`{row.kind}`"
    tile = settle(x, what)
    axes = normalized_axes(axis, tile.ndim, what)
    return _reduce(of_bools if tile.kind == BOOL else row, tile, axes, keepdims)


@method("any")
def any(x: Any, axis: object = None, keepdims: bool = False) -> Tile:
    """Return whether any element along `axis` is true (numbers: not 0), as bool.

    Of a list, whether any of its values is, by element.
    """
    if isinstance(x, LISTS):
        return reduce(partial(binary, BIT_OR), map(_is_true, x), as_tile(False))
    tile = cast(as_tile(x, "`any`"), boolean)
    return _reduce(ANY, tile, normalized_axes(axis, tile.ndim, "`any`"), keepdims)


@method("all")
def all(x: Any, axis: object = None, keepdims: bool = False) -> Tile:
    """Return whether all elements along `axis` are true (numbers: not 0), as bool.

    Of a list, whether all of its values are, by element.
    """
    if isinstance(x, LISTS):
        return reduce(partial(binary, BIT_AND), map(_is_true, x), as_tile(True))
    tile = cast(as_tile(x, "`all`"), boolean)
    return _reduce(ALL, tile, normalized_axes(axis, tile.ndim, "`all`"), keepdims)


def _is_true(x: object) -> Tile:
    return cast(as_tile(x, "`any` and `all`"), boolean)


@method("mean")
def mean(x: object, axis: object = None, keepdims: bool = False) -> Tile:
    """Return the sum along `axis` over the count of elements inside; of none NaN. Composed.

    Integers and bools give f32; floats under 32 bits are computed in f32 and rounded once.
    """
    tile = settle(x, "`mean`")
    dtype = tile.dtype if tile.kind == FLOAT else f32
    wide = cast(tile, f32) if dtype.bits < f32.bits or tile.kind != FLOAT else tile
    axes = normalized_axes(axis, tile.ndim, "`mean`")
    total = _reduce(SUM, wide, axes, keepdims=False)
    count = _count(wide, axes, total.shape)
    value = emit(ops.Divide, x=total.value, y=count).result
    edges = Edges(dict.fromkeys(total.edges, LOST))
    result = cast(Tile(value, dims=tile.dims, edges=edges), dtype)
    return _with_axes(result, tile, axes, keepdims)


def _count(tile: Tile, axes: tuple[int, ...], shape: tuple[int, ...]) -> Value:
    """Return how many elements inside each result is of, in the tile's dtype."""
    dtype = tile.value.tile.dtype
    spaces = tile.edges.along(axes)
    whole = 1
    for a in axes:
        whole *= tile.shape[a]
    if not spaces:
        return expand(_number(whole, dtype), shape)
    if len(spaces) == 1 and spaces[0].step == -1:
        return expand(_counted(spaces[0], tile.shape, whole, dtype), shape)
    ones = emit(ops.Cast, x=inside_mask(tile.shape, spaces), dtype=dtype).result
    return emit(ops.Reduce, x=ones, axes=axes, kind="sum").result


def _number(number: int, dtype: DType) -> Value:
    return cast(number, dtype).value


def _counted(h: HalfSpace, shape: tuple[int, ...], whole: int, dtype: DType) -> Value:
    """Return the count where one axis ends early: after `form + 1` of its elements."""
    assert h.axis is not None, "a half space along an axis"
    extent = shape[h.axis]
    inside = emit(ops.Cast, x=clamped(h.form + Form.of(1), 0, extent), dtype=dtype).result
    if whole == extent:
        return inside
    return emit(ops.Multiply, x=inside, y=_number(whole // extent, dtype)).result


@method("argmax")
def argmax(x: object, axis: object = None, keepdims: bool = False) -> Tile:
    """Return the first index of the greatest element along one axis, as i32.

    Without `axis`, the index in row-major order. A NaN counts as greatest; of no elements 0.
    """
    return _arg_reduce("max", x, axis, keepdims)


@method("argmin")
def argmin(x: object, axis: object = None, keepdims: bool = False) -> Tile:
    """Return the first index of the least element along one axis, as i32.

    Without `axis`, the index in row-major order. A NaN counts as least; of no elements 0.
    """
    return _arg_reduce("min", x, axis, keepdims)


def _arg_reduce(kind: str, x: object, axis: object, keepdims: bool) -> Tile:
    what = f"`arg{kind}`"
    tile = settle(x, what)
    axes = normalized_axes(axis, tile.ndim, what)
    if axis is not None and len(axes) != 1:
        raise fault(
            ShapeMismatch,
            f"{what} goes along one axis, got {axis}",
            *sources(tile),
            help="reshape the axes into one before, or leave `axis` out for all of them",
        )
    require_kind(what, (FLOAT, "int", "uint", BOOL), tile)
    if not axes:
        return reshape(_arg_reduce(kind, reshape(tile, 1), 0, keepdims=False), ())
    if _is_empty(tile, axes):
        return _with_axes(Tile(constant(0, _kept_shape(tile, axes), i32)), tile, axes, keepdims)
    spaces = tile.edges.along(axes)
    valid: tuple[Value, ...] = (inside_mask(tile.shape, spaces),) if spaces else ()
    value, along = tile.value, axes[0]
    if len(axes) > 1:
        value, *rest = (_flat(v, tile.size) for v in (value, *valid))
        valid, along = tuple(rest), 0
    index = emit(ops.ArgReduce, x=value, valid=valid, axis=along, kind=kind).result
    edges = Edges(dict.fromkeys(_remaining(tile, axes), LOST))
    return _with_axes(Tile(index, dims=tile.dims, edges=edges), tile, axes, keepdims)


def _flat(value: Value, size: int) -> Value:
    return emit(ops.Reshape, x=value, shape=(size,)).result
