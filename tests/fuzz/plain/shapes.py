"""Functions of the plain witness that make tiles, or move their elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzz.plain.numbers import BOOL, I64, Unknown, kind_of, number, wide
from tests.fuzz.plain.tiles import (
    LARGER,
    SMALLER,
    Tile,
    elementwise,
    meet,
    of_floats,
    of_integers,
    placed,
    tile_of,
)


def where(condition: Any, x: Any, y: Any) -> Tile:
    """Return elements of x or of y."""
    condition = tile_of(condition)
    (a, b), kind, is_weak = meet((x, y))
    made = placed(np.where(condition.array, a, b), kind, (condition, x, y), is_weak=is_weak)
    return made.settled()


def minimum(x: Any, y: Any) -> Tile:
    return elementwise(SMALLER, x, y)


def maximum(x: Any, y: Any) -> Tile:
    return elementwise(LARGER, x, y)


def clip(x: Any, low: Any, high: Any) -> Tile:
    return minimum(maximum(x, low), high)


def cdiv(x: Any, y: Any) -> Any:
    """Return a quotient rounded up, 0 where one divides by 0."""
    if isinstance(x, int) and isinstance(y, int):
        return -(-x // y)
    return elementwise(of_integers(lambda a, b, _: -(-a // b) if b else 0), x, y)


def rounded_to_even(x: Any) -> Tile:
    return of_floats(np.rint)(x) if tile_of(x).kind.kind == "float" else tile_of(x)


def isnan(x: Any) -> Tile:
    return elementwise(lambda _, a: np.isnan(wide(a)), x, kind=BOOL)


def isinf(x: Any) -> Tile:
    return elementwise(lambda _, a: np.isinf(wide(a)), x, kind=BOOL)


def full(shape: tuple[int, ...], x: Any, dtype: Any) -> Tile:
    kind = kind_of(dtype)
    return Tile(np.full(shape, number(x, kind)), kind)


def zeros(shape: tuple[int, ...], dtype: Any) -> Tile:
    return full(shape, 0, dtype)


def iota(shape: tuple[int, ...], axis: int) -> Tile:
    numbers = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return Tile(np.broadcast_to(numbers, shape).astype(np.int64), I64, is_weak=True)


def arange(count: int) -> Tile:
    return iota((count,), 0)


def broadcast_to(x: Any, shape: tuple[int, ...]) -> Tile:
    x = tile_of(x)
    return placed(np.broadcast_to(x.array, shape), x.kind, (x,), is_weak=x.is_weak)


def transpose(x: Any, order: Sequence[int]) -> Tile:
    return tile_of(x).transposed(order)


def _whole(*tiles: Any) -> list[Tile]:
    """Return tiles of which nothing lies outside."""
    found = [tile_of(t) for t in tiles]
    if any(t.is_ragged for t in found):
        raise Unknown("ragged where the edges are lost")
    return found


def reshape(x: Any, shape: tuple[int, ...]) -> Tile:
    (x,) = _whole(x)
    return Tile(x.array.reshape(shape), x.kind)


def concat(xs: Sequence[Any], axis: int) -> Tile:
    tiles = _whole(*xs)
    return Tile(np.concatenate([t.array for t in tiles], axis), tiles[0].kind)


def stack(xs: Sequence[Any], axis: int) -> Tile:
    tiles = _whole(*xs)
    return Tile(np.stack([t.array for t in tiles], axis), tiles[0].kind)


def split(x: Any, parts: int, axis: int) -> list[Tile]:
    (x,) = _whole(x)
    return [Tile(a, x.kind) for a in np.split(x.array, parts, axis)]


def take(x: Any, which: Any, axis: int) -> Tile:
    x, picked = _whole(x, which)
    return Tile(np.take(x.array, picked.array.astype(np.int64), axis), x.kind)


def bitcast(x: Any, dtype: Any) -> Tile:
    x, kind = tile_of(x), kind_of(dtype)
    bits = np.ascontiguousarray(x.array).view(kind.numpy).reshape(x.shape)
    return Tile(bits, kind, x.outside, x.is_outside)


FUNCTIONS = {
    "where": where, "minimum": minimum, "maximum": maximum, "clip": clip, "cdiv": cdiv,
    "round": rounded_to_even, "isnan": isnan, "isinf": isinf, "sqrt": of_floats(np.sqrt),
    "floor": of_floats(np.floor), "ceil": of_floats(np.ceil), "full": full, "zeros": zeros,
    "iota": iota, "arange": arange, "broadcast_to": broadcast_to, "transpose": transpose,
    "reshape": reshape,
    "concat": concat, "stack": stack, "split": split, "take": take, "bitcast": bitcast,
}  # fmt: skip
