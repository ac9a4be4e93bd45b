"""Indexed accesses: elements of memory named by integer tiles, and windows that end before it does.

Invariant: an element's place along an axis of the ref is `start + step * number`. The number is, of
an axis in `indexed`, what its tile of indices holds there; of a kept axis the coordinate along one
axis of the tile, `along` names which; else 0. Whatever is outside of the ref, outside of `limits`,
or where `mask` is false, is left out: it is neither read nor written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astdsl.ir.core import READS, WRITES, Value
from astdsl.ir.dtypes import boolean, i32, i64
from astdsl.ir.ops.memory import CopyIn, CopyOut, Load, Store, Window
from astdsl.ir.types import INDEX, TileType, Type

ATOMIC_KINDS = ("add", "max", "min", "and", "or", "xor", "exchange", "cas")
# Updates of one of these kinds give the same memory in any order.
COMMUTING = frozenset(("add", "max", "min", "and", "or", "xor"))
ATOMIC_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
ATOMIC_SCOPES = ("cta", "cluster", "gpu", "sys")


class Indexed(Window):
    """An access to elements that a window, integer tiles, or both name.

    `shape` is the tile's. `indices` are integer tiles of it, one for each axis in `indexed`, which
    has size 1 and is not kept. `along` gives the tile's axis of each kept axis, in their order.
    `limits` are a low and a high place (i64, the high one excluded) for each axis in `limited`.
    `mask` is none, or one bool tile.
    """

    shape: tuple[int, ...]
    indices: tuple[Value, ...] = ()
    indexed: tuple[int, ...] = ()
    along: tuple[int, ...] = ()
    limits: tuple[Value, ...] = ()
    limited: tuple[int, ...] = ()
    mask: tuple[Value, ...] = ()

    @classmethod
    def implied(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        of_window = super().implied(fields)
        kept = fields.get("kept", of_window["kept"])
        return of_window | {"along": tuple(range(sum(kept)))}

    @property
    def window_type(self) -> TileType:
        """The tile that the elements make."""
        return TileType(self.shape, self.ref.ref.dtype)

    def verify(self) -> None:
        super().verify()
        name = type(self).__name__
        assert len(self.indices) == len(self.indexed), f"{name}: one tile an indexed axis"
        for axis, tile in zip(self.indexed, self.indices, strict=True):
            assert not self.kept[axis], f"{name}: axis {axis} is indexed and kept"
            assert tile.tile.dtype in (i32, i64), f"{name}: indices are i32 or i64"
            assert tile.tile.shape == self.shape, f"{name}: {tile.type} for {self.shape}"
        kept = [n for n, k in zip(self.sizes, self.kept, strict=True) if k]
        seen = [self.shape[axis] for axis in self.along]
        assert kept == seen, f"{name}: {kept} along {seen}"
        assert len({*self.along}) == len(kept), f"{name}: one axis of the tile a kept axis"
        assert len(self.limits) == 2 * len(self.limited), f"{name}: two limits a limited axis"
        assert all(v.type == INDEX for v in self.limits), f"{name}: limits are i64"
        expected = TileType(self.shape, boolean)
        assert all(v.type == expected for v in self.mask), f"{name}: the mask is {expected}"


class Gather(Indexed):
    """Read the elements as a tile, `fill` where they are left out.

    `stages` is that of the `Load` which it becomes where it is a window.
    """

    effect = READS
    fill: float | int | bool = 0
    stages: int = 0

    def result_types(self) -> tuple[Type, ...]:
        return (self.window_type,)


class Scatter(Indexed):
    """Write a tile to the elements; no two of its elements go to one place, unless equal."""

    effect = WRITES
    value: Value

    def verify(self) -> None:
        super().verify()
        assert self.value.type == self.window_type, f"Scatter: {self.value.type}"


class Atomic(Indexed):
    """Update each element in one indivisible step; the result is what it held before.

    `kind` says what becomes of `old`: `old + value`, the larger or the smaller one, `old & value`,
    `|`, `^`, `value`, or for `cas` `value` where the bits of `old` are those of `compare`. The
    result is 0 where an element is left out. An element named twice is updated twice, in an
    unspecified order. `order` and `scope` are those of PTX (ISA 8, memory consistency model).
    """

    effect = WRITES
    kind: str
    value: Value
    compare: tuple[Value, ...] = ()
    order: str = "relaxed"
    scope: str = "gpu"

    def result_types(self) -> tuple[Type, ...]:
        return (self.window_type,)

    def verify(self) -> None:
        super().verify()
        assert self.kind in ATOMIC_KINDS, f"Atomic: there is no {self.kind}"
        assert len(self.compare) == (self.kind == "cas"), "Atomic: cas, and it alone, compares"
        for value in (self.value, *self.compare):
            assert value.type == self.window_type, f"Atomic: {value.type} on {self.window_type}"
        assert self.order in ATOMIC_ORDERS, f"Atomic: there is no order {self.order}"
        assert self.scope in ATOMIC_SCOPES, f"Atomic: there is no scope {self.scope}"


# Who reads and who writes memory by windows; an atomic does both.
READERS = (Load, Gather, Atomic, CopyIn)
WRITERS = (Store, Scatter, Atomic, CopyOut)
