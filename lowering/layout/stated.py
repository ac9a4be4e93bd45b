"""Layouts by the names that kernels state (`lang/layouts.py`), in digits.

Invariant: each row makes a layout for a shape and a number of threads, whole warpgroups; the trace
has checked that the shape fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from astdsl.lowering.layout.registers import (
    REPLICATED,
    WARPGROUP_THREADS,
    Digit,
    Layout,
    blocked,
    normalised,
    splat,
    tmem_accumulator,
    wgmma_accumulator,
)

Shape = tuple[int, ...]
Row = Callable[..., Layout]


def stated_layout(spec: tuple[Any, ...], shape: Shape, threads: int) -> Layout:
    """Return the layout that a kernel states for a tile of a shape."""
    name, *numbers = spec
    if name == "reduce":
        inner, axis = numbers
        whole = (*shape[:axis], _least_extent(inner, axis), *shape[axis:])
        return stated_layout(inner, whole, threads).without([axis])
    return ROWS[name](shape, threads, *numbers)


def _least_extent(spec: tuple[Any, ...], axis: int) -> int:
    """Return an extent along a dropped axis: where the others stand does not depend on it."""
    name, *numbers = spec
    if name == "reduce":
        inner, dropped = numbers
        return _least_extent(inner, axis + (axis >= dropped))
    if name == "TCGEN05_M64_COLLECTIVE":
        return int((64, *numbers)[axis])
    return int(numbers[0][axis]) if numbers else LEAST[name][axis]


# The least extents of layouts without numbers.
LEAST = {
    "WGMMA": (64, 8), "WGMMA_8BIT": (64, 16), "WGMMA_UPCAST_2X": (64, 16),
    "WGMMA_UPCAST_4X": (64, 32), "WGMMA_TRANSPOSED": (8, 64), "TCGEN05": (128, 8),
    "TCGEN05_TRANSPOSED": (8, 128), "TCGEN05_TMEM_NATIVE": (128, 1), "TMA_INDICES": (16,),
}  # fmt: skip


def _neighbours(count: int) -> Row:
    """Make the row of accumulators whose threads hold `count` neighbouring columns."""

    def row(shape: Shape, threads: int) -> Layout:
        groups = threads // WARPGROUP_THREADS
        blocks = -(-shape[0] // (64 * groups))
        registers = (
            Digit(count, 1, 1),
            Digit(2, 0, 8),
            Digit(-(-shape[1] // (4 * count)), 1, 4 * count),
            Digit(blocks, 0, 64),
        )
        lanes = (Digit(4, 1, count), Digit(8, 0, 1), Digit(4, 0, 16))
        return normalised(Layout(shape, registers, (*lanes, Digit(groups, 0, 64 * blocks))))

    return row


def _wgmma(shape: Shape, threads: int) -> Layout:
    rows, columns = shape
    return wgmma_accumulator((rows, columns), threads)


def _tcgen05(shape: Shape, threads: int) -> Layout:
    """Return 32 rows to a warp; pairs of columns, and every eighth row, to a thread."""
    groups = threads // WARPGROUP_THREADS
    blocks = -(-shape[0] // (128 * groups))
    registers = (
        Digit(2, 1, 1),
        Digit(4, 0, 8),
        Digit(-(-shape[1] // 8), 1, 8),
        Digit(blocks, 0, 128),
    )
    lanes = (Digit(4, 1, 2), Digit(8, 0, 1), Digit(4, 0, 32))
    return normalised(Layout(shape, registers, (*lanes, Digit(groups, 0, 128 * blocks))))


def _collective(shape: Shape, threads: int, columns: int) -> Layout:
    """Two by two warps of 32 rows and half the columns (PTX ISA, 9.7.16.10.5, layout B)."""
    groups, half = threads // WARPGROUP_THREADS, columns // 2
    blocks = -(-shape[0] // (64 * groups))
    registers = (
        Digit(2, 1, 1),
        Digit(4, 0, 8),
        Digit(half // 8, 1, 8),
        Digit(-(-shape[1] // columns), 1, columns),
        Digit(blocks, 0, 64),
    )
    warps = (Digit(2, 0, 32), Digit(2, 1, half))
    lanes = (Digit(4, 1, 2), Digit(8, 0, 1), *warps, Digit(groups, 0, 64 * blocks))
    return normalised(Layout(shape, registers, lanes))


def _indices(shape: Shape, threads: int) -> Layout:
    """Four neighbours of each 16 in every lane of a warp, as copies by rows take them."""
    groups = threads // WARPGROUP_THREADS
    blocks = -(-shape[0] // (16 * groups))
    lanes = (Digit(32, REPLICATED, 0), Digit(4, 0, 4), Digit(groups, 0, 16 * blocks))
    return normalised(Layout(shape, (Digit(4, 0, 1), Digit(blocks, 0, 16)), lanes))


def _native(shape: Shape, threads: int) -> Layout:
    rows, columns = shape
    return tmem_accumulator((rows, columns), threads)


def _transposed(row: Row) -> Row:
    def made(shape: Shape, threads: int) -> Layout:
        return row(shape[::-1], threads).permuted((1, 0))

    return made


def _strided(shape: Shape, threads: int, extents: Shape, vec: int, *_: int) -> Layout:
    assert shape == tuple(extents), f"{shape} is not {extents}"
    return blocked(shape, threads, vec)


def _tiled(shape: Shape, threads: int, extents: Shape, registers: Any, lanes: Any) -> Layout:
    """Return the digits as they are stated; further warpgroups hold copies."""
    assert shape == tuple(extents), f"{shape} is not {extents}"
    own = tuple(Digit(*d) for d in lanes)
    count = math.prod(d.extent for d in own)
    copies = Digit(threads // count, REPLICATED, 0)
    return normalised(Layout(shape, tuple(Digit(*d) for d in registers), (*own, copies)))


ROWS: dict[str, Row] = {
    "WGMMA": _wgmma,
    "WGMMA_8BIT": _neighbours(4),
    "WGMMA_UPCAST_2X": _neighbours(4),
    "WGMMA_UPCAST_4X": _neighbours(8),
    "WGMMA_TRANSPOSED": _transposed(_wgmma),
    "WG_SPLAT": splat,
    "WG_STRIDED": _strided,
    "SMEM_GMEM_COPY": _strided,
    "TILED": _tiled,
    "TCGEN05": _tcgen05,
    "TCGEN05_TRANSPOSED": _transposed(_tcgen05),
    "TCGEN05_TMEM_NATIVE": _native,
    "TCGEN05_M64_COLLECTIVE": _collective,
    "TMA_INDICES": _indices,
}
