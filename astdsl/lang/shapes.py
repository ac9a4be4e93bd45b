"""Moving the elements of tiles: creation, shapes, and indexing by constants.

Invariant: shapes are Python integers; a dim that is known only at run time is asked for as a
constant. Elements outside stay known through transposes, slices and broadcasts.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence

from astdsl.errors import (
    BadWindow,
    OutsideLost,
    ShapeMismatch,
    TypeMismatch,
    UnsupportedFeature,
    in_words,
)
from astdsl.ir import ops
from astdsl.ir.core import Op
from astdsl.ir.dtypes import BOOL, i32
from astdsl.lang.elementwise import as_tile, expand, placed, sources
from astdsl.lang.ragged import LOST, Edges, HalfSpace
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Literal, Tile, as_operand, method, require_dtype
from astdsl.records import dataclass, field, replace

ONE_ELLIPSIS = "`...` stands for all axes that are not written: `:` is a whole axis"


def as_extent(x: object, what: str) -> int:
    """Return a Python integer; a dim becomes a compile-time constant, anything else is refused."""
    try:
        extent = operator.index(x)  # type: ignore[arg-type]
    except TypeError:
        raise fault(
            TypeMismatch,
            f"{what} takes integers, got {x!r}",
            help="extents are integers that are known while tracing: constants and dims",
        ) from None
    return extent


def as_shape(shape: object, what: str) -> tuple[int, ...]:
    """Return a shape: one extent or several, none negative."""
    given = shape if isinstance(shape, Iterable) and not isinstance(shape, Tile) else (shape,)
    extents = tuple(as_extent(x, what) for x in given)
    if any(extent < 0 for extent in extents):
        raise fault(
            ShapeMismatch,
            f"{what}: extents are not negative, got {extents}",
            help="an extent is a number of elements; -1 stands in `reshape` only",
        )
    return extents


def normalized_axes(axis: object, rank: int, what: str) -> tuple[int, ...]:
    """Return axes as sorted numbers from 0: `axis` is None (all), one axis or several."""
    if axis is None:
        return tuple(range(rank))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    axes = [as_extent(a, what) for a in given]
    for a in axes:
        if not -rank <= a < rank:
            raise fault(
                ShapeMismatch,
                f"{what}: axis {a} of a tile of {in_words(rank, 'axis')}",
                help=f"axes go from 0 to {rank - 1}, or from -1 back"
                if rank
                else "leave `axis` out",
            )
    unique = sorted({a % rank for a in axes})
    if len(unique) != len(axes):
        raise fault(
            ShapeMismatch, f"{what}: an axis is given twice in {axis}", help="name each axis once"
        )
    return tuple(unique)


def full(shape: object, value: object, dtype: object = None) -> Tile:
    """Return a tile of `shape` with `value` everywhere.

    The value is a number or a scalar; without `dtype` the tile has that of the value.
    """
    return _full(shape, value, dtype, "`full`")


def _full(shape: object, value: object, dtype: object, what: str) -> Tile:
    operand = as_operand(value, what)
    if operand.shape:
        raise fault(
            ShapeMismatch,
            f"{what} takes one value, got {operand}",
            *sources(operand),
            help="`broadcast_to(x, shape)` repeats a tile",
        )
    wanted = operand.dtype if dtype is None else require_dtype(dtype, what)
    number = operand.number if isinstance(operand, Literal) else None
    if isinstance(number, float) and wanted.is_integer and not number.is_integer():
        raise fault(
            TypeMismatch,
            f"{what} of {wanted} with {number} would drop fractions silently",
            help="give a whole number: `int(v)` cuts off, `round(v)` rounds",
        )
    return Tile(placed(operand, wanted, as_shape(shape, what)), dims=operand.dims)


def zeros(shape: object, dtype: object = None) -> Tile:
    """Return a tile of zeros; `dtype` is f32 if not given."""
    return _full(shape, 0.0 if dtype is None else 0, dtype, "`zeros`")


def ones(shape: object, dtype: object = None) -> Tile:
    """Return a tile of ones; `dtype` is f32 if not given."""
    return _full(shape, 1.0 if dtype is None else 1, dtype, "`ones`")


def arange(start: object, stop: object = None, step: object = 1, *, dtype: object = None) -> Tile:
    """Return `start, start + step, ...` below `stop`, as one axis; `arange(n)` starts at 0.

    All three are compile-time constants. Without `dtype` the numbers are weak integers.
    """
    given = (0, start, step) if stop is None else (start, stop, step)
    low, high, stride = (as_extent(x, "`arange`") for x in given)
    if stride == 0:
        raise fault(
            TypeMismatch, "`arange` takes a step other than 0", help="`full` repeats one number"
        )
    numbers = range(low, high, stride)
    counted = iota((len(numbers),), 0)
    return _typed(low + counted * stride if (low, stride) != (0, 1) else counted, dtype, "`arange`")


def iota(shape: object, axis: object = 0, *, dtype: object = None) -> Tile:
    """Return a tile whose elements are their own index along `axis`; weak without `dtype`."""
    extents = as_shape(shape, "`iota`")
    (along,) = normalized_axes(as_extent(axis, "`iota`"), len(extents), "`iota`")
    value = emit(ops.Iota, shape=extents, axis=along, dtype=i32).result
    bounds = (0, max(extents[along] - 1, 0))
    return _typed(Tile(value, weak=True, bounds=bounds, dims=frozenset()), dtype, "`iota`")


def broadcasted_iota(dtype: object, shape: object, dimension: object) -> Tile:
    """Return `iota(shape, dimension)` of a dtype, as JAX writes it. Source: jax.lax."""
    return iota(shape, dimension, dtype=require_dtype(dtype, "`broadcasted_iota`"))


def _typed(tile: Tile, dtype: object, what: str) -> Tile:
    if dtype is None:
        return tile
    return Tile(placed(tile, require_dtype(dtype, what), tile.shape), dims=tile.dims)


def moved(x: Tile, value: Op, edges: Edges) -> Tile:
    """Return what `value` made of x's elements: weak if x is, with its bounds."""
    return Tile(value.result, weak=x.weak, bounds=x.bounds, dims=x.dims, edges=edges)


@method("transpose")
def transpose(x: object, axes: object = None, *more: object) -> Tile:
    """Return x with its axes permuted: axis k of the result is `axes[k]`; reversed if not given."""
    tile = as_tile(x, "`transpose`")
    given = (axes, *more) if more else axes
    order = range(tile.ndim)[::-1] if given is None else _permutation(given, tile)
    if list(order) == list(range(tile.ndim)):
        return tile
    op = emit(ops.Transpose, x=tile.value, permutation=tuple(order))
    return moved(tile, op, tile.edges.renumbered({old: new for new, old in enumerate(order)}))


def _permutation(given: object, tile: Tile) -> Sequence[int]:
    axes = [as_extent(a, "`transpose`") for a in given] if isinstance(given, Iterable) else []
    if sorted(a % tile.ndim if tile.ndim else a for a in axes) != list(range(tile.ndim)):
        raise fault(
            ShapeMismatch,
            f"`transpose` takes every axis of {tile} once, got {given}",
            *sources(tile),
            help=f"`transpose(x, {tuple(range(tile.ndim))[::-1]})` reverses them",
        )
    return [a % tile.ndim for a in axes]


@method("reshape")
def reshape(x: object, shape: object, *more: object) -> Tile:
    """Return the same elements, in row-major order, as another shape; one extent may be -1.

    Elements outside stay known along axes that are not merged or split. Errors: ShapeMismatch,
    OutsideLost.
    """
    tile = as_tile(x, "`reshape`")
    given = (shape, *more) if more else shape
    wanted = _completed(tile, given if isinstance(given, tuple | list) else (given,))
    if wanted == tile.shape:
        return tile
    kept = matching_axes(tile.shape, wanted)
    forget_edges(tile, [a for a in range(tile.ndim) if a not in kept], "`reshape`")
    op = emit(ops.Reshape, x=tile.value, shape=wanted)
    return moved(tile, op, tile.edges.renumbered(kept))


def _completed(tile: Tile, given: Sequence[object]) -> tuple[int, ...]:
    extents = [as_extent(x, "`reshape`") for x in given]
    known = math.prod(e for e in extents if e != -1)
    if extents.count(-1) == 1 and known and tile.size % known == 0:
        extents[extents.index(-1)] = tile.size // known
    if math.prod(extents) != tile.size or min(extents, default=0) < 0:
        raise fault(
            ShapeMismatch,
            f"`reshape` of {in_words(tile.size, 'element')} to {tuple(extents)}",
            *sources(tile),
            help="the elements stay the same; one extent may be -1",
        )
    return tuple(extents)


def matching_axes(old: Sequence[int], new: Sequence[int]) -> dict[int, int]:
    """Return which axes of a reshape stay what they are: equal extents, equally many before."""
    starts = {}
    before = 1
    for axis, extent in enumerate(new):
        if extent != 1:
            starts[before, extent] = axis
        before *= extent
    found = {}
    before = 1
    for axis, extent in enumerate(old):
        if extent != 1 and (before, extent) in starts:
            found[axis] = starts[before, extent]
        before *= extent
    return found


def forget_edges(tile: Tile, axes: Sequence[int], what: str) -> None:
    """Refuse `what` if elements outside along `axes` hold what ordinary elements would not."""
    for h in tile.edges.along(axes):
        if tile.edges.outside[h] == LOST:
            raise fault(
                OutsideLost,
                f"{what} loses which elements of axis {h.axis} lie outside the array, and they "
                "are no longer zero",
                *sources(tile),
                help=f"`.filled(v)` makes them ordinary elements of value v along axis {h.axis}",
            )


def broadcast_to(x: object, shape: object) -> Tile:
    """Return x repeated to `shape`: along axes of extent 1, and new axes in front."""
    tile = as_tile(x, "`broadcast_to`")
    wanted = as_shape(shape, "`broadcast_to`")
    tail = wanted[len(wanted) - tile.ndim :]
    fits = len(wanted) >= tile.ndim
    if not fits or any(a not in (1, b) for a, b in zip(tile.shape, tail, strict=True)):
        raise fault(
            ShapeMismatch,
            f"`broadcast_to` of {tile} to {wanted}",
            *sources(tile),
            help="axes match from the last one on, and are equal or 1 in the tile",
        )
    edges = tile.edges.broadcast(tile.shape, wanted)
    value = expand(tile.value, wanted)
    return Tile(value, weak=tile.weak, bounds=tile.bounds, dims=tile.dims, edges=edges)


def expand_dims(x: object, axis: object) -> Tile:
    """Return x with a new axis of extent 1 that is `axis` of the result."""
    tile = as_tile(x, "`expand_dims`")
    (at,) = normalized_axes(as_extent(axis, "`expand_dims`"), tile.ndim + 1, "`expand_dims`")
    return index(tile, (slice(None),) * at + (None,))


def squeeze(x: object, axis: object = None) -> Tile:
    """Return x without axes of extent 1: all of them, or those of `axis`."""
    tile = as_tile(x, "`squeeze`")
    if axis is None:
        axes = [a for a, extent in enumerate(tile.shape) if extent == 1]
    else:
        axes = list(normalized_axes(axis, tile.ndim, "`squeeze`"))
    wrong = [a for a in axes if tile.shape[a] != 1]
    if wrong:
        raise fault(
            ShapeMismatch,
            f"`squeeze` of axis {wrong[0]}, which has extent {tile.shape[wrong[0]]}",
            *sources(tile),
            help="only axes of extent 1 are dropped; `x[0]` or a reduction drops others",
        )
    return index(tile, tuple(0 if a in axes else slice(None) for a in range(tile.ndim)))


@dataclass(slots=True)
class _Picked:
    """What an index picks: a slice of every axis, then a shape with axes dropped and added."""

    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)
    new_axes: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)


def index(x: Tile, key: object) -> Tile:
    """Return what NumPy's rules pick by constants: integers, slices, windows, `...`, `None`.

    Errors: BadWindow outside the tile, NotConstant for kernel values.
    """
    picked = _Picked()
    for item in spelled_out_of_tile(x, key if isinstance(key, tuple) else (key,)):
        _pick(x, picked, item)
    value, edges = x.value, x.edges
    if tuple(picked.sizes) != x.shape or any(step != 1 for step in picked.steps):
        fields = {n: tuple(getattr(picked, n)) for n in ("starts", "sizes", "steps")}
        value = emit(ops.Slice, x=value, **fields).result
        edges = edges.sliced(picked.starts, picked.sizes, picked.steps)
    if tuple(picked.shape) != value.tile.shape:
        value = emit(ops.Reshape, x=value, shape=tuple(picked.shape)).result
    edges = edges.moved(lambda h: _after_drop(h, picked))
    return Tile(value, weak=x.weak, bounds=x.bounds, dims=x.dims, edges=edges)


def _after_drop(h: HalfSpace, picked: _Picked) -> HalfSpace:
    if h.axis is None or h.axis in picked.dropped:
        return replace(h, axis=None, step=0)
    return replace(h, axis=picked.new_axes[h.axis])


def spelled_out_of_tile(x: Tile, items: tuple[object, ...]) -> Iterable[object]:
    """Yield the items with `...` and missing last axes written as whole slices."""
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > x.ndim:
        raise fault(
            BadWindow,
            f"{x} has {in_words(x.ndim, 'axis')}, indexed by {used}",
            *sources(x),
            help="one item an axis: an integer or a slice; `None` adds an axis",
        )
    dots = sum(item is Ellipsis for item in items)
    if dots > 1:
        raise fault(BadWindow, f"`...` stands twice in an index of {x}", help=ONE_ELLIPSIS)
    if not dots:
        items = (*items, Ellipsis)
    missing = x.ndim - used
    for item in items:
        if item is Ellipsis:
            yield from (slice(None),) * missing
            missing = 0
        else:
            yield item


def _pick(x: Tile, picked: _Picked, item: object) -> None:
    if item is None:
        picked.shape.append(1)
        return
    axis = len(picked.starts)
    extent = x.shape[axis]
    as_slice = getattr(type(item), "as_slice", None)  # of what `tile` and `ds` give
    item = as_slice(item) if as_slice else item
    if isinstance(item, slice):
        _pick_slice(x, picked, _constant_slice(item), axis)
        return
    _refuse_tile_index(x, item)
    number = as_extent(item, "an index of a tile")
    if not -extent <= number < extent:
        raise fault(
            BadWindow,
            f"index {number} is outside axis {axis} of {x}, which has extent {extent}",
            *sources(x),
            help=f"indices go from 0 to {extent - 1}, or from -1 back to {-extent}",
        )
    picked.starts.append(number % extent)
    picked.sizes.append(1)
    picked.steps.append(1)
    picked.dropped.add(axis)


def _refuse_tile_index(x: Tile, item: object) -> None:
    if isinstance(item, Tile) and item.dims is None:
        raise fault(
            UnsupportedFeature,
            f"a tile is indexed by compile-time constants, got {item}",
            (item.value, f"{item} comes from here"),
            help="`where(mask, t, 0)` selects by bools"
            if item.kind == BOOL
            else "`take(t, i, axis)` picks by kernel integers; a window of a ref may start at "
            "any: `ref[i]`; `unroll(range(n))` gives constant indices",
        )


def _constant_slice(item: slice) -> slice:
    parts = (item.start, item.stop, item.step)
    return slice(*(None if p is None else as_extent(p, "a slice of a tile") for p in parts))


def _pick_slice(x: Tile, picked: _Picked, item: slice, axis: int) -> None:
    extent = x.shape[axis]
    for bound in (item.start, item.stop):
        if bound is not None and not -extent <= bound <= extent:
            raise fault(
                BadWindow,
                f"{bound} is outside axis {axis} of {x}, which has extent {extent}",
                *sources(x),
                help="slices of tiles lie inside; only windows of global arrays may cross an edge",
            )
    if item.step == 0:
        raise fault(
            BadWindow,
            "the step of a slice is not 0",
            *sources(x),
            help="`t[::2]` takes every second element, `t[::-1]` turns the axis",
        )
    chosen = range(*item.indices(extent))
    picked.new_axes[axis] = len(picked.shape)
    picked.shape.append(len(chosen))
    picked.starts.append(chosen.start if chosen else 0)
    picked.sizes.append(len(chosen))
    picked.steps.append(chosen.step)
