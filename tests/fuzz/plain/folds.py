"""Functions of the plain witness along an axis: reductions, scans and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzz.plain.numbers import BOOL, F32, F64, I32, Kind, Unknown, converted, rounded, wide
from tests.fuzz.plain.tiles import (
    LARGER,
    SMALLER,
    Meaning,
    Tile,
    along,
    arithmetic,
    elementwise,
    placed,
    tile_of,
)
from tests.fuzz.program import Array

Reduction = Callable[[Tile, int, Array], tuple[Array, Kind]]


def inside_of(x: Tile, axis: int) -> Array:
    """Return which elements count along an axis."""
    mask = x.outside[axis]
    if mask is None:
        return np.ones(x.shape, bool)
    return np.broadcast_to(~along(mask, axis, x.ndim), x.shape)


def reduction(meaning: Reduction) -> Callable[..., Tile]:
    """Return a reduction along one axis."""

    def reduce_along(x: Any, axis: int | None = None) -> Tile:
        x = tile_of(x).settled()
        if axis is None:
            if x.is_ragged:
                raise Unknown("a ragged reduction of all axes")
            x, axis = Tile(x.array.ravel(), x.kind), 0
        axis %= x.ndim
        found, kind = meaning(x, axis, inside_of(x, axis))
        masks = [m for a, m in enumerate(x.outside) if a != axis]
        return Tile(found, kind, masks, x.is_outside)

    return reduce_along


def sum_kind(kind: Kind) -> Kind:
    """Return the dtype of a sum."""
    return I32 if kind is BOOL or (kind.kind == "int" and kind.bits < 32) else kind


def _summed(x: Tile, axis: int, inside: Array) -> tuple[Array, Kind]:
    kind = sum_kind(x.kind)
    if kind.kind == "int":
        numbers = np.where(inside, x.array.astype(kind.numpy), kind.numpy(0))
        return numbers.sum(axis=axis, dtype=kind.numpy), kind
    return rounded(np.where(inside, wide(x.array), 0).sum(axis=axis), kind), kind


def _multiplied(x: Tile, axis: int, inside: Array) -> tuple[Array, Kind]:
    kind = sum_kind(x.kind)
    if kind.kind != "int":
        raise Unknown("products of floats")
    numbers = np.where(inside, x.array.astype(kind.numpy), kind.numpy(1))
    return numbers.prod(axis=axis, dtype=kind.numpy), kind


def _averaged(x: Tile, axis: int, inside: Array) -> tuple[Array, Kind]:
    total = rounded(np.where(inside, wide(x.array), 0).sum(axis=axis), F32)
    require(inside, axis)
    return converted(total / inside.sum(axis=axis).astype(np.float32), F32, x.kind), x.kind


def require(inside: Array, axis: int) -> None:
    """Know nothing of what has no element inside."""
    if not inside.any(axis=axis).all():
        raise Unknown("no element inside")


def folded(meaning: Meaning) -> Reduction:
    """Return the reduction by an operation on two elements."""

    def fold(x: Tile, axis: int, inside: Array) -> tuple[Array, Kind]:
        require(inside, axis)
        parts, counts = np.moveaxis(x.array, axis, 0), np.moveaxis(inside, axis, 0)
        found, has = parts[0], counts[0]
        for part, here in zip(parts[1:], counts[1:], strict=True):
            joined = np.where(has, meaning(x.kind, found, part), part)
            found, has = np.where(here, joined, found), has | here
        return found.astype(x.kind.numpy), x.kind

    return fold


def place_of(is_better: Callable[[Array, Array], Array]) -> Reduction:
    """Return the reduction to the first place of the best, or of the first NaN."""

    def best(x: Tile, axis: int, inside: Array) -> tuple[Array, Kind]:
        require(inside, axis)
        parts, counts = np.moveaxis(wide(x.array), axis, 0), np.moveaxis(inside, axis, 0)
        place, found, has = np.zeros(parts[0].shape, np.int32), parts[0], counts[0]
        for k, (part, here) in enumerate(zip(parts[1:], counts[1:], strict=True), 1):
            better = (is_better(part, found) | np.isnan(part)) & ~np.isnan(found)
            taken = here & (better | ~has)
            place = np.where(taken, np.int32(k), place)
            found, has = np.where(taken, part, found), has | here
        return place, I32

    return best


def cumsum(x: Any, axis: int) -> Tile:
    """Return sums so far."""
    x = tile_of(x).settled()
    axis %= x.ndim
    if x.outside[axis] is not None:
        raise Unknown("sums so far of what lies outside mean nothing")
    kind = sum_kind(x.kind)
    if kind.kind == "int":
        found = x.array.cumsum(axis=axis, dtype=kind.numpy)
    else:
        found = rounded(wide(x.array).cumsum(axis=axis), kind)
    return Tile(found, kind, x.outside, x.is_outside)


def _combined(
    tiles: Any, axis: int, combine: Callable[..., Any]
) -> tuple[list[Tile], list[list[Tile]], int]:
    xs = [tile_of(t).settled() for t in (tiles if isinstance(tiles, tuple) else (tiles,))]
    axis %= xs[0].ndim
    if any(x.outside[axis] is not None for x in xs):
        raise Unknown("a ragged axis")
    steps = [
        [Tile(np.take(x.array, k, axis), x.kind) for x in xs] for k in range(xs[0].shape[axis])
    ]
    so_far = steps[:1]
    for step in steps[1:]:
        pair = (tuple(so_far[-1]), tuple(step)) if isinstance(tiles, tuple) else (
            so_far[-1][0], step[0]
        )  # fmt: skip
        made = combine(*pair)
        made = made if isinstance(tiles, tuple) else (made,)
        so_far.append([tile_of(v).astype(x.kind) for v, x in zip(made, xs, strict=True)])
    return xs, so_far, axis


def _answer(found: Sequence[Tile], tiles: Any) -> Any:
    return tuple(found) if isinstance(tiles, tuple) else found[0]


def scan(tiles: Any, axis: int, combine: Callable[..., Any]) -> Any:
    """Return what an associative function makes of the elements so far."""
    xs, so_far, axis = _combined(tiles, axis, combine)
    stacked = [np.stack([s[k].array for s in so_far], axis) for k in range(len(xs))]
    return _answer([placed(a, x.kind, xs) for a, x in zip(stacked, xs, strict=True)], tiles)


def reduce(tiles: Any, axis: int, combine: Callable[..., Any]) -> Any:
    """Return what an associative function makes of all elements."""
    xs, so_far, axis = _combined(tiles, axis, combine)
    without = [
        Tile(np.take(x.array, 0, axis), x.kind, x.outside[:axis] + x.outside[axis + 1 :],
             x.is_outside)
        for x in xs
    ]  # fmt: skip
    return _answer([placed(t.array, t.kind, without) for t in so_far[-1]], tiles)


def dot(
    a: Any, b: Any, acc: Any = None, precision: str | None = None, a_scale: Any = None,
    b_scale: Any = None,
) -> Tile:  # fmt: skip
    """Return a product of matrices, of which every operand is exact in tf32."""
    a, b = tile_of(a), tile_of(b)
    rows = a if a.ndim > 1 else a[None, :]
    columns = b if b.ndim > 1 else b[:, None]
    x, y = rows.array.astype(np.float64), columns.array.astype(np.float64)
    x, y = _scaled(x, a_scale), np.swapaxes(_scaled(np.swapaxes(y, -1, -2), b_scale), -1, -2)
    gone = np.zeros(x.shape[-1], bool)
    for mask in (rows.outside[-1], columns.outside[-2]):
        gone |= False if mask is None else mask
    left, right = np.where(gone, 0, x), np.where(gone[:, None], 0, y)
    with np.errstate(all="ignore"):
        found = left @ right
    kind = I32 if a.kind.kind == "int" else F64 if a.kind is F64 else F32
    made = placed(converted(found, F64, kind), kind, [_first(rows, -1), _first(columns, -2)])
    kept = [0 if x.ndim == 1 else slice(None) for x in (a, b)]
    made = made[(*[slice(None)] * (made.ndim - 2), *kept)]
    return made if acc is None else elementwise(arithmetic(np.add), made, acc)


def _first(x: Tile, axis: int) -> Tile:
    """Return the first elements along an axis, as if they were inside."""
    masks = list(x.outside)
    masks[axis] = None
    return Tile(np.take(x.array, [0], axis), x.kind, masks, x.is_outside)


def _scaled(x: Array, scale: Any) -> Array:
    """Return rows with blocks along the last axis scaled, by scales or by their image."""
    if scale is None:
        return x
    scale = tile_of(scale).array.astype(np.float64)
    if scale.ndim == 4:  # atoms of 128 rows by 4 scales
        across, along_k = scale.shape[:2]
        atoms = scale.reshape(across, along_k, 32, 4, 4).transpose(0, 3, 2, 1, 4)
        scale = atoms.reshape(across * 128, along_k * 4)
    return np.asarray(x * np.repeat(scale, x.shape[1] // scale.shape[1], axis=1))


def _any(x: Tile, axis: int, inside: Array) -> tuple[Array, Kind]:
    return (wide(x.array) != 0).__and__(inside).any(axis=axis), BOOL


def _all(x: Tile, axis: int, inside: Array) -> tuple[Array, Kind]:
    return ((wide(x.array) != 0) | ~inside).all(axis=axis), BOOL


REDUCTIONS = {
    "sum": reduction(_summed),
    "prod": reduction(_multiplied),
    "mean": reduction(_averaged),
    "min": reduction(folded(SMALLER)),
    "max": reduction(folded(LARGER)),
    "any": reduction(_any),
    "all": reduction(_all),
    "argmax": reduction(place_of(np.greater)),
    "argmin": reduction(place_of(np.less)),
}
for _name, _method in {"__matmul__": dot, **REDUCTIONS}.items():
    setattr(Tile, _name, _method)
