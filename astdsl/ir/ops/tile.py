"""Operations that move elements between places of a tile, or combine those along axes.

Invariant: shapes are static; every operation states its result's shape from its fields.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from astdsl.ir.core import WRITES, Block, Op, Value
from astdsl.ir.dtypes import DType, f4e2m1, i32, i64, u8
from astdsl.ir.ops.arith import Constant, Elementwise
from astdsl.ir.ops.control import Yield, yielded
from astdsl.ir.types import TileType, Type


class Iota(Op):
    """Element (i0, i1, ...) is its index along `axis`."""

    shape: tuple[int, ...]
    axis: int
    dtype: DType

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(self.shape, self.dtype),)

    def verify(self) -> None:
        assert 0 <= self.axis < len(self.shape), f"Iota: axis {self.axis} of {self.shape}"


class Broadcast(Op):
    """Repeat along axes of extent 1; new axes are added in front (NumPy's rule)."""

    x: Value
    shape: tuple[int, ...]

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(self.shape, self.x.tile.dtype),)

    def verify(self) -> None:
        old = self.x.tile.shape
        tail = self.shape[len(self.shape) - len(old) :]
        repeats = (a in (1, b) for a, b in zip(old, tail, strict=False))
        fits = len(old) <= len(self.shape) and all(repeats)
        assert fits, f"Broadcast: {old} to {self.shape}"


class Reshape(Op):
    """The same elements in row-major order under another shape."""

    x: Value
    shape: tuple[int, ...]

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(self.shape, self.x.tile.dtype),)

    def verify(self) -> None:
        same = self.x.tile.elements == math.prod(self.shape)
        assert same, f"Reshape: {self.x.tile.shape} to {self.shape}"


class Transpose(Op):
    """Axis k of the result is axis `permutation[k]` of x."""

    x: Value
    permutation: tuple[int, ...]

    def result_types(self) -> tuple[Type, ...]:
        shape = self.x.tile.shape
        return (TileType(tuple(shape[p] for p in self.permutation), self.x.tile.dtype),)

    def verify(self) -> None:
        rank = len(self.x.tile.shape)
        assert sorted(self.permutation) == list(range(rank)), f"Transpose: {self.permutation}"


class Slice(Op):
    """Element i along an axis is element `start + i * step` of x; static, inside x."""

    x: Value
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(self.sizes, self.x.tile.dtype),)

    def verify(self) -> None:
        for extent, start, size, step in zip(
            self.x.tile.shape, self.starts, self.sizes, self.steps, strict=True
        ):
            last = start + (size - 1) * step
            inside = size == 0 or (0 <= start < extent and 0 <= last < extent)
            assert inside, f"Slice: {start}:{size}:{step} of {extent}"


class Insert(Op):
    """`x` with `part` in place of its elements from `starts` on; static, inside x."""

    x: Value
    part: Value
    starts: tuple[int, ...]

    def result_types(self) -> tuple[Type, ...]:
        return (self.x.tile,)

    def verify(self) -> None:
        assert self.x.tile.dtype is self.part.tile.dtype, "Insert: dtypes differ"
        for extent, size, start in zip(
            self.x.tile.shape, self.part.tile.shape, self.starts, strict=True
        ):
            assert 0 <= start <= extent - size, f"Insert: {size} at {start} of {extent}"


class UnpackNibbles(Op):
    """The two f4e2m1 of each byte (u8), side by side along `axis`, the low nibble first."""

    x: Value
    axis: int

    def result_types(self) -> tuple[Type, ...]:
        shape = self.x.tile.shape
        return (TileType(_resized(shape, self.axis, shape[self.axis] * 2), f4e2m1),)

    def verify(self) -> None:
        assert self.x.tile.dtype is u8, f"UnpackNibbles: {self.x.tile}"
        assert 0 <= self.axis < len(self.x.tile.shape), f"UnpackNibbles: axis {self.axis}"


class PackNibbles(Op):
    """Two neighbours of f4e2m1 along `axis` as one byte (u8), the first in the low nibble."""

    x: Value
    axis: int

    def result_types(self) -> tuple[Type, ...]:
        shape = self.x.tile.shape
        return (TileType(_resized(shape, self.axis, shape[self.axis] // 2), u8),)

    def verify(self) -> None:
        assert self.x.tile.dtype is f4e2m1, f"PackNibbles: {self.x.tile}"
        assert 0 <= self.axis < len(self.x.tile.shape), f"PackNibbles: axis {self.axis}"
        assert self.x.tile.shape[self.axis] % 2 == 0, f"PackNibbles: half a byte of {self.x.tile}"


def _resized(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


class Take(Op):
    """Element of x by element: along `axis` at what `indices` holds, 0 where that is outside.

    `indices` is a tile of i32 or i64 that has the result's shape; `along` gives the result's axis
    of each other axis of x.
    """

    x: Value
    indices: Value
    axis: int
    along: tuple[int, ...]

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(self.indices.tile.shape, self.x.tile.dtype),)

    def verify(self) -> None:
        shape = self.x.tile.shape
        assert 0 <= self.axis < len(shape), f"Take: axis {self.axis} of {shape}"
        assert self.indices.tile.dtype in (i32, i64), "Take: indices are i32 or i64"
        others = [n for axis, n in enumerate(shape) if axis != self.axis]
        seen = [self.indices.tile.shape[axis] for axis in self.along]
        fits = others == seen and len({*self.along}) == len(others)
        assert fits, f"Take: {others} along {self.along} of {self.indices.tile.shape}"


class LayoutCast(Op):
    """The same tile, held by the threads as the author states: `layout` is a name with numbers.

    It changes no element. The names are those of `lang/layouts.py`.
    """

    x: Value
    layout: tuple[Any, ...]

    def result_types(self) -> tuple[Type, ...]:
        return (self.x.tile,)


class PrintLayout(Op):
    """Tell the author, when the code is made, which thread holds which element of `x`.

    `x` is a tile, an accumulator, or memory on chip, whose physical layout is told. Nothing runs.
    """

    effect = WRITES
    x: Value


REDUCTIONS = ("sum", "prod", "min", "max", "any", "all")


class Reduce(Op):
    """Combine along `axes`, which are dropped. `kind` is sum, prod, min, max, any or all.

    Floats under 32 bits are summed and multiplied in f32 and rounded once; the order within one
    reduction is unspecified. min and max give NaN if any element is NaN.
    """

    x: Value
    axes: tuple[int, ...]
    kind: str

    def result_types(self) -> tuple[Type, ...]:
        kept = tuple(s for a, s in enumerate(self.x.tile.shape) if a not in self.axes)
        return (TileType(kept, self.x.tile.dtype),)

    def verify(self) -> None:
        assert self.kind in REDUCTIONS, f"Reduce: {self.kind}"
        assert list(self.axes) == sorted(set(self.axes)), f"Reduce: axes {self.axes}"


class ArgReduce(Op):
    """The first index, as i32, of the least (`kind` min) or greatest (max) element along `axis`.

    NaN counts as both: the first NaN wins. `valid` (none, or one bool tile of x's shape) says
    which elements take part; where none does, the index is 0.
    """

    x: Value
    valid: tuple[Value, ...] = ()
    axis: int
    kind: str

    def result_types(self) -> tuple[Type, ...]:
        kept = tuple(s for a, s in enumerate(self.x.tile.shape) if a != self.axis)
        return (TileType(kept, i32),)

    def verify(self) -> None:
        assert self.kind in ("min", "max"), f"ArgReduce: {self.kind}"


class Combining(Op):
    """Combine elements along `axis`, first to last, by a function that is associative.

    An element's state is a scalar of each of `xs`, which have one shape. `combine` takes the state
    on the left, the one on the right and the scalars `captured`, and yields a state; it is made of
    elementwise operations on scalars.
    """

    isolated: ClassVar[bool] = True
    xs: tuple[Value, ...]
    captured: tuple[Value, ...] = ()
    axis: int
    combine: Block

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every operand."""
        return self.xs[0].tile.shape

    def verify(self) -> None:
        what = type(self).__name__
        assert {v.tile.shape for v in self.xs} == {self.shape}, f"{what}: shapes differ"
        assert 0 <= self.axis < len(self.shape), f"{what}: axis {self.axis} of {self.shape}"
        state = tuple(TileType((), v.tile.dtype) for v in self.xs)
        expected = (*state, *state, *(v.type for v in self.captured))
        assert tuple(v.type for v in self.combine.args) == expected, f"{what}: arguments"
        assert tuple(v.type for v in yielded(self.combine)) == state, f"{what}: what it yields"
        allowed = (Constant, Elementwise, Yield)
        odd = [op for op in self.combine.ops if not isinstance(op, allowed)]
        assert not odd, f"{what}: {type(odd[0]).__name__} is not elementwise" if odd else ""


class Scan(Combining):
    """Each element combined with all before it along `axis`."""

    def result_types(self) -> tuple[Type, ...]:
        return tuple(v.type for v in self.xs)


class Fold(Combining):
    """All elements along `axis`, which is dropped, combined in order; there is at least one."""

    def result_types(self) -> tuple[Type, ...]:
        kept = tuple(n for a, n in enumerate(self.shape) if a != self.axis)
        return tuple(TileType(kept, v.tile.dtype) for v in self.xs)

    def verify(self) -> None:
        super().verify()
        assert self.shape[self.axis], "Fold: of no elements"
