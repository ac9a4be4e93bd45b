"""Arrays of the plain witness: windows that may lie outside, indices, updates.

Invariant: a part of an array is, for each of its axes, an integer, a window or a tile of indices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.plain.numbers import I64, Kind, Unknown, converted, kind_of, number
from tests.fuzz.plain.tiles import Tile, along, tile_of
from tests.fuzz.program import Array, Shape


@dataclass(frozen=True)
class Window:
    """`size` elements from `start`, `step` apart, as far as they lie from `low` to `high`."""

    start: int
    size: int
    step: int = 1
    low: int = 0
    high: int = 2**63

    def inside(self, outer: Window) -> Window:
        """Return this window of another one, which ends where that one does."""
        ends = outer.start, outer.start + (outer.size - 1) * outer.step
        low, high = max(outer.low, min(ends)), min(outer.high, max(ends) + 1)
        high = high if outer.size else low
        start = outer.start + self.start * outer.step
        return Window(start, self.size, outer.step * self.step, low, high)

    def picked(self, which: Tile) -> Tile:
        """Return indices of this window as those of the array, -1 where they lie outside."""
        place = which.array.astype(np.int64)
        at = self.start + place * self.step
        inside = (place >= 0) & (place < self.size) & (at >= self.low) & (at < self.high)
        return Tile(np.where(inside, at, -1), I64, which.outside, which.is_outside)


def ds(start: Any, size: int, step: int = 1) -> Window:
    return Window(int(start), size, step)


def tile(index: Any, size: int) -> Window:
    return Window(int(index) * size, size)


Part = int | Window | Tile


class Ref:
    """An array or a part of it; `order` are the axes that the part still has."""

    def __init__(
        self, base: Array, kind: Kind, parts: list[Part] | None = None,
        order: list[int] | None = None,
    ) -> None:  # fmt: skip
        self.base, self.kind = base, kind
        self.parts: list[Part] = [Window(0, n) for n in base.shape] if parts is None else parts
        self.order = list(range(base.ndim)) if order is None else order

    @property
    def shape(self) -> Shape:
        found = [self.parts[a] for a in self.order]
        return tuple(p.size if isinstance(p, Window) else p.array.size  # type: ignore[union-attr]
                     for p in found)  # fmt: skip

    @property
    def T(self) -> Ref:  # noqa: N802 (the language's name)
        return Ref(self.base, self.kind, self.parts, self.order[::-1])

    @property
    def at(self) -> _At:
        return _At(self)

    def reshape(self, *shape: Any) -> Ref:
        raise Unknown("an array under other axes")

    def part(self, key: Any) -> Ref:
        """Return a part of this part."""
        keys = [*(key if isinstance(key, tuple) else (key,))]
        if keys[0] is Ellipsis:
            return self
        keys += [slice(None)] * (len(self.order) - len(keys))
        parts, order = list(self.parts), []
        for axis, item in zip(self.order, keys, strict=True):
            parts[axis] = self._along(axis, item)
            if not isinstance(parts[axis], int):
                order.append(axis)
        return Ref(self.base, self.kind, parts, order)

    def _along(self, axis: int, item: Any) -> Part:
        before = self.parts[axis]
        if not isinstance(before, Window):
            raise Unknown("a part of what indices pick")
        if isinstance(item, slice):
            if item.start is None:
                return before
            item = Window(int(item.start), max(0, int(item.stop) - int(item.start)))
        if isinstance(item, Window):
            return item.inside(before)
        if isinstance(item, Tile) and item.ndim:
            return before.picked(item.live())
        return before.start + int(item) * before.step

    def places(self) -> tuple[tuple[Array, ...], Array, list[Array | None], bool]:
        """Return places in the array, which lie inside, what is outside along each axis, or all."""
        rank, shape = len(self.order), self.shape
        where: list[Array] = []
        masks: list[Array | None] = [None] * rank
        inside, is_outside = np.ones(shape, bool), False
        for axis, (part, extent) in enumerate(zip(self.parts, self.base.shape, strict=True)):
            if isinstance(part, int):
                is_outside |= not 0 <= part < extent
                where.append(np.full(shape, np.clip(part, 0, extent - 1)))
                continue
            place, at = self.order.index(axis), positions(part)
            good = (at >= 0) & (at < extent)
            if isinstance(part, Window):
                good &= (at >= part.low) & (at < part.high)
            masks[place] = ~good
            if isinstance(part, Tile):  # an index outside reads an ordinary zero
                masks[place] = np.full(at.shape, True) if part.is_outside else part.outside[0]
            mask = masks[place]
            good = good if mask is None else good & ~mask
            inside &= along(good, place, rank)
            clipped = along(np.clip(at, 0, extent - 1), place, rank)
            where.append(np.broadcast_to(clipped, shape))
        return tuple(where), inside & (not is_outside), masks, is_outside

    def read(self, fill: Any = None) -> Tile:
        """Return the elements; outside are zeros, or ordinary elements `fill`."""
        where, inside, masks, is_outside = self.places()
        other = number(0 if fill is None else fill, self.kind)
        found = np.where(inside, self.base[where], other).astype(self.kind.numpy)
        return Tile(found, self.kind) if fill is not None else Tile(
            found, self.kind, masks, is_outside
        )  # fmt: skip

    def __getitem__(self, key: Any) -> Tile:
        return self.part(key).read()

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self.part(key)
        where, inside, _, _ = part.places()
        value = tile_of(value)
        if value.is_ragged and any(isinstance(p, Tile) for p in part.parts):
            raise Unknown("a ragged scatter")
        array = np.broadcast_to(converted(value.array, value.kind, self.kind), part.shape)
        self.base[tuple(w[inside] for w in where)] = array[inside]


@dataclass(frozen=True)
class _At:
    ref: Ref

    def __getitem__(self, key: Any) -> Ref:
        return self.ref.part(key)


def positions(part: Window | Tile) -> Array:
    """Return the indices along an axis that a part has."""
    if isinstance(part, Tile):
        return part.array.astype(np.int64)
    return part.start + part.step * np.arange(part.size)


def load(part: Ref, fill: Any = None, stages: int | None = None) -> Tile:
    return part.read(fill)


def GMEM(shape: tuple[int, ...], dtype: Any) -> Ref:  # noqa: N802 (the language's name)
    kind = kind_of(dtype)
    return Ref(np.zeros(shape, kind.numpy), kind)


def atomic(f: Any) -> Callable[..., None]:
    """Return an update of memory, each element once for each time that it is named."""

    def update(part: Ref, value: Any, order: str = "", scope: str = "") -> None:
        where, inside, _, _ = part.places()
        value = tile_of(value)
        if value.is_ragged:
            raise Unknown("a ragged update")
        array = np.broadcast_to(converted(value.array, value.kind, part.kind), part.shape)
        f.at(part.base, tuple(w[inside] for w in where), array[inside])

    return update


UFUNCS = {"add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and,
          "or": np.bitwise_or, "xor": np.bitwise_xor}  # fmt: skip
FUNCTIONS: dict[str, Any] = {
    "ds": ds, "tile": tile, "load": load, "GMEM": GMEM,
    **{f"atomic_{name}": atomic(f) for name, f in UFUNCS.items()},
}  # fmt: skip
