"""Putting tiles together and taking them apart.

Invariant: composed of `Slice`, `Insert`, `Reshape` and reductions. Elements outside stay known
along axes that are not joined, where all parts agree on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from astdsl.errors import BadWindow, ShapeMismatch, TypeMismatch, in_words
from astdsl.ir import ops
from astdsl.ir.dtypes import BOOL, INT, UINT, DType, f32, i32, i64, u8, u16, u32, u64
from astdsl.lang.arith import where
from astdsl.lang.elementwise import (
    as_tile,
    constant,
    convert,
    counted,
    expand,
    meet,
    require_kind,
    sources,
)
from astdsl.lang.leaves import leaves
from astdsl.lang.ragged import LOST, Edges
from astdsl.lang.reductions import any as any_along
from astdsl.lang.shapes import (
    as_extent,
    expand_dims,
    forget_edges,
    index,
    iota,
    normalized_axes,
    reshape,
)
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Tile, fits_i32

Numbers: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[Any]]"
# Integers that hold the bits of an element, by its width.
WORDS = {8: u8, 16: u16, 32: u32, 64: u64}


def concat(tiles: object, axis: object = 0) -> Tile:
    """Return tiles one after another along `axis`; the other extents are equal.

    Dtypes meet as in `a + b` (bools with bools). Elements outside along `axis` must be as they were
    read: they become ordinary zeros. Errors: ShapeMismatch, TypeMismatch, OutsideLost.
    """
    return _joined(_tiles_of(tiles, "`concat`"), axis, "`concat`")


def stack(tiles: object, axis: object = 0) -> Tile:
    """Return tiles of one shape as one with a new axis, `axis` of the result."""
    parts = _tiles_of(tiles, "`stack`")
    if any(part.shape != parts[0].shape for part in parts):
        raise _misfit("`stack` takes tiles of one shape", parts)
    return _joined([expand_dims(part, axis) for part in parts], axis, "`stack`")


def split(x: object, parts: object, axis: object = 0) -> tuple[Tile, ...]:
    """Return x cut along `axis`: in `parts` equal parts, or before each of several indices.

    By NumPy's rules: `split(t, 2)` are two halves, `split(t, (3, 5))` are `t[:3], t[3:5], t[5:]`.
    """
    tile = as_tile(x, "`split`")
    (along,) = normalized_axes(as_extent(axis, "`split`"), tile.ndim, "`split`")
    extent = tile.shape[along]
    if isinstance(parts, Iterable) and not isinstance(parts, Tile):
        cuts = [as_extent(cut, "`split`") for cut in parts]
    else:
        count = as_extent(parts, "`split`")
        if count < 1 or extent % count:
            raise fault(
                ShapeMismatch,
                f"`split` of {in_words(extent, 'element')} in {in_words(count, 'equal part')}",
                *sources(tile),
                help="a tuple of indices cuts anywhere: `split(t, (3, 5))`",
            )
        cuts = [k * (extent // count) for k in range(1, count)]
    borders = [0, *cuts, extent]
    if borders != sorted(borders):
        raise fault(
            BadWindow,
            f"`split` at {tuple(cuts)} of an axis of {in_words(extent, 'element')}",
            *sources(tile),
            help="indices ascend, from 0 to the extent",
        )
    return tuple(_part(tile, along, a, b) for a, b in pairwise(borders))


def take(x: object, indices: object, axis: object = None) -> Tile:
    """Return the elements of x at `indices` along `axis`, by NumPy's rules.

    Compile-time indices may be one integer or a list, negative from the end. One kernel integer
    picks by a reduction, a tile or a list of them through shared memory; outside 0 to extent - 1
    they give zeros. Without `axis` x is flat. Errors: BadWindow, OutsideLost, TypeMismatch.
    """
    tile = as_tile(x, "`take`")
    tile = reshape(tile, -1) if axis is None else tile
    (along,) = normalized_axes(as_extent(axis or 0, "`take`"), tile.ndim, "`take`")
    chosen = _stacked(indices, tile, along)
    if isinstance(chosen, Tile) and _is_chosen(chosen):
        return _taken_at_run_time(tile, chosen, along)
    numbers = numbers_of(indices, "`take`")
    if not numbers.ndim:
        return index(tile, (slice(None),) * along + (int(numbers),))
    taken = _taken(tile, [int(n) for n in numbers.flat], along)
    shape = (*tile.shape[:along], *numbers.shape, *tile.shape[along + 1 :])
    return taken if taken.shape == shape else reshape(taken, shape)


def _stacked(indices: object, tile: Tile, along: int) -> object:
    """Return a list of kernel integers, or of lists of them, as a tile; others as they are."""
    if not isinstance(indices, list | tuple) or not any(map(_is_chosen, leaves(indices))):
        return indices
    return stack([_as_index(part, tile, along) for part in indices])


def _as_index(part: object, tile: Tile, along: int) -> Tile:
    """Return kernel integers as a tile; numbers beside them count from the end too."""
    found = _stacked(part, tile, along)
    if isinstance(found, Tile):
        return found
    numbers = numbers_of(found, "`take`")
    places = places_inside(tile, numbers.flat, along)
    whole = [as_tile(place, "`take`") for place in places]
    return reshape(stack(whole), numbers.shape) if numbers.ndim else whole[0]


def _is_chosen(x: object) -> bool:
    """Whether an index is known only when the kernel runs: dims alone become constants."""
    return type(x) is Tile and (x.dims is None or bool(x.shape))


def numbers_of(indices: object, what: str) -> Numbers:
    """Return compile-time indices as an array; dims among them become constants.

    Errors: TypeMismatch of what is no integer, ShapeMismatch of lists of several lengths.
    """
    numbers = indices if isinstance(indices, np.ndarray) else _array_of(indices, what)
    if numbers.dtype.kind not in "iu" and numbers.size:
        raise fault(
            TypeMismatch,
            f"{what} takes integers, got {indices!r}",
            help="`where(mask, x, 0)` selects by bools",
        )
    return numbers.astype(np.int64)


def _array_of(indices: object, what: str) -> Numbers:
    if isinstance(indices, list | tuple | range):
        parts = [_array_of(part, what) for part in indices]
        if any(part.shape != parts[0].shape for part in parts):
            raise fault(
                ShapeMismatch,
                f"{what} takes lists of one length, got {indices!r}",
                help="each row of indices is as long as the others",
            )
        return np.array(parts, parts[0].dtype if parts else np.int64)
    if isinstance(indices, bool | np.bool_):
        return np.array(indices)
    return np.array(as_extent(indices, what), np.int64)


def _taken(tile: Tile, numbers: Sequence[int], along: int) -> Tile:
    runs = as_runs(places_inside(tile, numbers, along))
    if not runs:
        return _part(tile, along, 0, 0)
    picked = [index(tile, (slice(None),) * along + (_as_slice(run),)) for run in runs]
    return picked[0] if len(picked) == 1 else _joined(picked, along, "`take`")


def places_inside(tile: Tile, numbers: Iterable[int], along: int) -> list[int]:
    """Return indices along an axis, counted from 0. Errors: BadWindow outside."""
    extent = tile.shape[along]
    found = list(numbers)
    wrong = [n for n in found if not -extent <= n < extent]
    if wrong:
        raise fault(
            BadWindow,
            f"index {wrong[0]} is outside axis {along} of {tile}, which has extent {extent}",
            *sources(tile),
            help=f"indices go from 0 to {extent - 1}, or from -1 back to {-extent}",
        )
    return [n % extent for n in found]


def as_runs(places: Iterable[int]) -> list[range]:
    """Cut indices into ranges, each as long as its step stays the same."""
    found: list[list[int]] = []
    for place in places:
        last = found[-1] if found else []
        step = last[1] - last[0] if len(last) > 1 else place - last[0] if last else 0
        if step and place == last[-1] + step:
            last.append(place)
        else:
            found.append([place])
    steps = [run[1] - run[0] if len(run) > 1 else 1 for run in found]
    return [
        range(run[0], run[-1] + (1 if step > 0 else -1), step)
        for run, step in zip(found, steps, strict=True)
    ]


def _as_slice(run: range) -> slice:
    return slice(run.start, run.stop if run.stop >= 0 else None, run.step)


def _taken_at_run_time(tile: Tile, at: Tile, along: int) -> Tile:
    """Pick by a kernel integer: of the elements' bits all others are 0, and they are joined."""
    require_kind("`take`", (INT, UINT), at)
    dtype = tile.value.tile.dtype
    if at.shape or dtype.bits not in WORDS:
        return _chosen(tile, at, along)
    is_it = iota(tile.shape, along) == at
    if tile.kind == BOOL:
        return any_along(is_it & tile, axis=along)
    word = WORDS[dtype.bits]
    bits = tile.value if dtype is word else emit(ops.Bitcast, x=tile.value, dtype=word).result
    alone = where(is_it, Tile(bits, edges=tile.edges), 0)
    # A sum in which one word is not 0 is that word, whatever the order.
    found = emit(ops.Reduce, x=alone.value, axes=(along,), kind="sum").result
    value = found if dtype is word else emit(ops.Bitcast, x=found, dtype=dtype).result
    kept = [a for a in range(tile.ndim) if a != along]
    edges = tile.edges.renumbered({old: new for new, old in enumerate(kept)})
    low, high = tile.bounds
    return Tile(value, weak=tile.weak, bounds=(min(low, 0), max(high, 0)), edges=edges)


def _chosen(tile: Tile, at: Tile, along: int) -> Tile:
    """Pick by a tile of kernel integers: the tile is put in shared memory, and read from there."""
    shape = (*tile.shape[:along], *at.shape, *tile.shape[along + 1 :])
    own = at.value.tile.dtype
    wide = own is i64 or own in (u32, u64)
    after = (None,) * (tile.ndim - along - 1)
    numbers = index(Tile(convert(at, i64 if wide else i32)), (Ellipsis, *after))
    moved = {a: a + (a > along) * (at.ndim - 1) for a in range(tile.ndim) if a != along}
    forget_edges(tile, (along,), "`take`")
    value = emit(
        ops.Take,
        x=tile.value,
        indices=expand(numbers.value, shape),
        axis=along,
        along=tuple(moved.values()),
    ).result
    shifted = at.edges.renumbered({a: a + along for a in range(at.ndim)})
    outside = dict.fromkeys(shifted, LOST) | tile.edges.renumbered(moved).outside
    low, high = tile.bounds
    edges = Edges(outside)
    return Tile(value, weak=tile.weak, bounds=(min(low, 0), max(high, 0)), edges=edges)


def _part(tile: Tile, along: int, start: int, stop: int) -> Tile:
    return index(tile, (slice(None),) * along + (slice(start, stop),))


def _tiles_of(tiles: object, what: str) -> list[Tile]:
    if isinstance(tiles, Tile) or not isinstance(tiles, Iterable):
        raise fault(
            TypeMismatch,
            f"{what} takes a list or a tuple of tiles, got {tiles!r}",
            help=f"write {what[:-1]}([x, y], axis)`",
        )
    found = [as_tile(tile, what) for tile in tiles]
    if not found:
        raise fault(ShapeMismatch, f"{what} of no tiles", help="`zeros((0, n), dtype)` is empty")
    return found


def _misfit(message: str, parts: Sequence[Tile]) -> ShapeMismatch:
    error = fault(
        ShapeMismatch,
        f"{message}, got {', '.join(map(repr, parts))}",
        *sources(*parts),
        help="`broadcast_to` and `reshape` change a shape",
    )
    assert isinstance(error, ShapeMismatch), "fault returns what it is asked for"
    return error


def _joined(parts: Sequence[Tile], axis: object, what: str) -> Tile:
    rank = parts[0].ndim
    if any(part.ndim != rank for part in parts) or not rank:
        raise _misfit(f"{what} takes tiles of one rank over 0", parts)
    (along,) = normalized_axes(as_extent(axis, what), rank, what)
    rest = {part.shape[:along] + part.shape[along + 1 :] for part in parts}
    if len(rest) > 1:
        raise _misfit(f"{what} along axis {along} takes equal extents along the others", parts)
    parts = [as_tile(part) for part in counted(*parts)]
    dtype, is_weak = _common_dtype(parts, what)
    edges = _joint_edges(parts, along, what)
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[along] = sum(part.shape[along] for part in parts)
    value, start = constant(0, tuple(shape), dtype), 0
    for part in parts:
        starts = tuple(start if a == along else 0 for a in range(rank))
        value = emit(ops.Insert, x=value, part=convert(part, dtype), starts=starts).result
        start += part.shape[along]
    lows, highs = zip(*(part.bounds for part in parts), strict=True)
    return Tile(value, weak=is_weak, bounds=(min(lows), max(highs)), edges=edges)


def _common_dtype(parts: Sequence[Tile], what: str) -> tuple[DType, bool]:
    dtype, is_weak = meet(what, *parts)
    if is_weak and dtype is not f32:
        dtype = i32 if all(fits_i32(part.bounds) for part in parts) else i64
    return dtype, is_weak


def _joint_edges(parts: Sequence[Tile], along: int, what: str) -> Edges:
    """Return the half spaces that all parts share; what else lies outside must be as read."""
    shared = {
        h: state if all(part.edges.outside.get(h) == state for part in parts) else LOST
        for h, state in parts[0].edges.outside.items()
        if h.axis != along and all(h in part.edges.outside for part in parts)
    }
    for part in parts:
        left = {h: state for h, state in part.edges.outside.items() if h not in shared}
        axes = [h.axis for h in left if h.axis is not None]
        forget_edges(Tile(part.value, edges=Edges(left)), axes, what)
    return Edges(shared)
