"""Stated layouts: which thread holds which element of a tile.

Invariant: a layout is a name with its numbers, and what it asks of a tile; what it means is in the
back end. Where none is stated the compiler chooses. Stating one never changes a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from astdsl.errors import ShapeMismatch, TypeMismatch, in_words
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import DType
from astdsl.ir.types import SMEM, TMEM
from astdsl.lang.elementwise import settle, sources
from astdsl.lang.products import Accumulator
from astdsl.lang.refs import Ref
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Tile
from astdsl.records import dataclass

WIDEST_ACCESS_BITS = 128
MOST_COPIES = 256
WARPGROUP_THREADS = 128
COLLECTIVE_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class StatedLayout:
    """A layout by its name: `Layout.WGMMA`, or with numbers, `Layout.WG_STRIDED((64, 64), 4)`.

    `multiples` are of the tile's extents, one for each axis, empty for any rank.
    """

    spec: tuple[Any, ...]
    multiples: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"Layout.{_spelt(self.spec)}"

    def reduce(self, axis: int) -> StatedLayout:
        """Return how a reduction along `axis` of a tile in this layout is held."""
        rank = len(self.shape or self.multiples)
        if rank < 2:
            raise fault(
                ShapeMismatch,
                f"`{self!r}.reduce` is of layouts of two axes or more",
                help="every thread holds a scalar: it has no other layout",
            )
        if type(axis) is not int or not 0 <= axis < rank:
            raise fault(
                ShapeMismatch,
                f"`{self!r}.reduce` takes an axis from 0 to {rank - 1}, got {axis!r}",
                help="it is the axis that the reduction drops",
            )
        kept = [a for a in range(rank) if a != axis]
        return StatedLayout(
            ("reduce", self.spec, axis),
            tuple(self.multiples[a] for a in kept) if self.multiples else (),
            tuple(self.shape[a] for a in kept) if self.shape else (),
        )

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Return what a tile of a shape lacks for this layout, empty if nothing."""
        if self.shape and shape != self.shape:
            return f"is of tiles of shape {self.shape}"
        if self.multiples and len(shape) != len(self.multiples):
            return f"is of tiles of {in_words(len(self.multiples), 'axis')}"
        if any(n % m or not n for n, m in zip(shape, self.multiples, strict=False)):
            return f"is of extents that are multiples of {self.multiples}"
        return ""


def _spelt(spec: tuple[Any, ...]) -> str:
    name, *rest = spec
    if name == "reduce":
        return f"{_spelt(rest[0])}.reduce({rest[1]})"
    return f"{name}({', '.join(map(repr, rest))})" if rest else name


def _strided(shape: Sequence[int], vec: int) -> StatedLayout:
    """Return vectors of `vec` elements, neighbouring ones in neighbouring threads."""
    extents = tuple(shape)
    if not extents or type(vec) is not int or vec < 1 or extents[-1] % vec:
        raise fault(
            ShapeMismatch,
            f"`Layout.WG_STRIDED({extents}, {vec!r})` cuts rows into vectors",
            help="the last extent is a multiple of `vec`",
        )
    return StatedLayout(("WG_STRIDED", extents, vec), shape=extents)


def _copied(shape: Sequence[int], dtype: DType, swizzle: int = 128) -> StatedLayout:
    """Return the widest vectors that shared and global memory take; `swizzle` is the buffer's."""
    extents = tuple(shape)
    vec = max(1, WIDEST_ACCESS_BITS // dtype.bits)
    while extents and extents[-1] % vec:
        vec //= 2
    return StatedLayout(("SMEM_GMEM_COPY", extents, vec, swizzle), shape=extents)


def _tiled(
    shape: Sequence[int],
    registers: Sequence[tuple[int, int, int]],
    threads: Sequence[tuple[int, int, int]],
) -> StatedLayout:
    """Return any layout: digits (extent, axis, stride) of the register's and thread's number.

    The fastest digit comes first; each adds `digit * stride` to the index along `axis`, -1 for
    threads that hold copies. Threads are 128 of a warpgroup.
    """
    digits = (tuple(map(tuple, registers)), tuple(map(tuple, threads)))
    count = prod(extent for extent, _, _ in digits[1])
    if count != WARPGROUP_THREADS or not _covers(tuple(shape), [*digits[0], *digits[1]]):
        raise fault(
            ShapeMismatch,
            f"`Layout.TILED` speaks of {count} threads, and must give each element of "
            f"{tuple(shape)} to some of {WARPGROUP_THREADS}",
            help="digits are (extent, axis, stride), the fastest first; -1 is the axis of copies",
        )
    return StatedLayout(("TILED", tuple(shape), *digits), shape=tuple(shape))


def _covers(shape: tuple[int, ...], digits: Sequence[tuple[int, ...]]) -> bool:
    """Whether the sums of the digits along each axis reach every index: digits are independent."""
    for axis, wanted in enumerate(shape):
        reached = {0}
        for extent, at, stride in digits:
            if at == axis:
                reached = {place + k * stride for place in reached for k in range(extent)}
        if not reached >= set(range(wanted)):
            return False
    return True


def _collective(columns: int) -> StatedLayout:
    """Return two by two warps: each has 32 rows of every 64, and half of the columns."""
    if type(columns) is not int or columns < 1 or columns % COLLECTIVE_COLUMNS:
        raise fault(
            ShapeMismatch,
            f"`Layout.TCGEN05_M64_COLLECTIVE` takes a multiple of {COLLECTIVE_COLUMNS} columns, "
            f"got {columns!r}",
            help="two warps have half of them each, in eights",
        )
    return StatedLayout(("TCGEN05_M64_COLLECTIVE", columns), (64, columns))


class Layout:
    """The layouts that a kernel may state, for `layout_cast` and `load(layout=)`.

    `WGMMA` is that of an accumulator (PTX ISA 9.7.15.5.1.1), 64 rows to a warpgroup, pairs of
    columns to a thread; `WGMMA_UPCAST_2X`, `WGMMA_8BIT` (four neighbouring columns) and
    `WGMMA_UPCAST_4X` (eight) keep the columns of a thread together for elements of fewer bits;
    `WGMMA_TRANSPOSED` is that of the transposed tile. `TCGEN05` has 32 rows to a warp, pairs of
    columns to a thread; `TCGEN05_TMEM_NATIVE` a row to a thread (PTX ISA 9.7.16.2.3);
    `TCGEN05_M64_COLLECTIVE(columns)` is `TCGEN05` with 64 rows, the second half of the columns in
    warps 2 and 3 (layout B of PTX ISA 9.7.16.10.5). In `WG_SPLAT` every thread holds all. In
    `TMA_INDICES` every thread of a warp holds its four neighbours of each 16. `WG_STRIDED(shape,
    vec)`, `SMEM_GMEM_COPY(shape, dtype, swizzle)` are vectors of neighbours, `TILED(shape,
    registers, threads)` anything.
    """

    WGMMA = StatedLayout(("WGMMA",), (64, 8))
    WGMMA_8BIT = StatedLayout(("WGMMA_8BIT",), (64, 16))
    WGMMA_UPCAST_2X = StatedLayout(("WGMMA_UPCAST_2X",), (64, 16))
    WGMMA_UPCAST_4X = StatedLayout(("WGMMA_UPCAST_4X",), (64, 32))
    WGMMA_TRANSPOSED = StatedLayout(("WGMMA_TRANSPOSED",), (8, 64))
    WG_SPLAT = StatedLayout(("WG_SPLAT",))
    TCGEN05 = StatedLayout(("TCGEN05",), (128, 8))
    TCGEN05_TRANSPOSED = StatedLayout(("TCGEN05_TRANSPOSED",), (8, 128))
    TCGEN05_TMEM_NATIVE = StatedLayout(("TCGEN05_TMEM_NATIVE",), (128, 1))
    WG_STRIDED = staticmethod(_strided)
    SMEM_GMEM_COPY = staticmethod(_copied)
    TILED = staticmethod(_tiled)
    TCGEN05_M64_COLLECTIVE = staticmethod(_collective)
    TMA_INDICES = StatedLayout(("TMA_INDICES",), (16,))


def layout_cast(x: object, layout: object) -> Tile:
    """Return x, held by the threads in a stated layout: the same elements, by `Layout`.

    Between any two layouts: within threads and warps by moves and shuffles where that is short,
    else through shared memory; `lower(...).explain()` lists each conversion. Errors: TypeMismatch,
    ShapeMismatch.
    """
    tile = settle(x, "`layout_cast`")
    if not isinstance(layout, StatedLayout):
        raise fault(
            TypeMismatch,
            f"`layout_cast` takes a layout, got {layout!r}",
            *sources(tile),
            help="`Layout.WGMMA` is one, `Layout.WG_STRIDED(x.shape, 4)` another",
        )
    lacks = layout.misfit(tile.shape)
    if lacks:
        raise fault(
            ShapeMismatch,
            f"`{layout!r}` {lacks}, got {tile}",
            *sources(tile),
            help="`Layout.WG_STRIDED(x.shape, 1)` fits any tile",
        )
    if layout.spec[0] == "WG_SPLAT" and tile.size > MOST_COPIES:
        raise fault(
            ShapeMismatch,
            f"`Layout.WG_SPLAT` of {tile} takes {tile.size} registers of every thread",
            *sources(tile),
            help=f"{MOST_COPIES} elements are the most; a constant needs no layout",
        )
    value = emit(ops.LayoutCast, x=tile.value, layout=layout.spec).result
    return Tile(value, dims=tile.dims, edges=tile.edges)


def print_layout(x: object) -> None:
    """Print, when the kernel is compiled for a target, which thread holds which element of x.

    x is a tile, an accumulator (`ACC`), or `SMEM` or `TMEM`, of which the physical layout is
    printed. The line says the target, the line of the kernel, the type and the layout, as
    `layout_cast` takes it; `lower(...).explain()` says it too. What the kernel computes does not
    change. Looking at a tile takes it into registers: of a sum in a loop print it after the loop.
    On the device `reference` nothing has a layout, and nothing is printed. Errors: TypeMismatch.
    """
    emit(ops.PrintLayout, x=_printable(x))


def _printable(x: object) -> Value:
    if isinstance(x, Accumulator):
        return x.value
    if not isinstance(x, Ref):
        return settle(x, "`print_layout`").value
    if x.space not in (SMEM, TMEM):
        raise fault(
            TypeMismatch,
            f"`print_layout` takes a tile, or memory on chip, got {x}",
            (x.root.value, "the memory"),
            help="global memory is as its strides say: `print_layout(x[...])` is of what is read",
        )
    return x.root.value
