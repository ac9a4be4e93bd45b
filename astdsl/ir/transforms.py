"""What may be stated of the physical layout of shared memory: tilings, transposes, swizzles.

A buffer's elements follow each other row-major in its *physical axes*: at first its own axes.
A tiling cuts the last ones in two, a transpose permutes the last ones, a swizzle XORs the 16-byte
units of rows of so many bytes (PTX ISA, 5.5.7). The shape that programs see does not change.

Invariant: `physical_axes` of a list of transforms that `complaint` passes covers every element of
the buffer once.
"""

from __future__ import annotations

from typing import TypeAlias

from astdsl.errors import in_words
from astdsl.ir.dtypes import DType
from astdsl.records import dataclass

TILING, TRANSPOSE, SWIZZLE = "tiling", "transpose", "swizzle"
SWIZZLES_BYTES = (128, 64, 32)
# What is done, and its numbers: extents of the tile, a permutation, or bytes.
Transform: TypeAlias = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PhysicalAxis:
    """`index // divisor % extent` of the index along one axis of the buffer."""

    axis: int
    extent: int
    divisor: int


def physical_axes(
    shape: tuple[int, ...], transforms: tuple[Transform, ...]
) -> tuple[PhysicalAxis, ...]:
    """Return the axes in which elements follow each other, the last one fastest."""
    axes = tuple(PhysicalAxis(k, extent, 1) for k, extent in enumerate(shape))
    for kind, numbers in transforms:
        if kind == TILING:
            axes = _tiled(axes, numbers)
        elif kind == TRANSPOSE:
            first = len(axes) - len(numbers)
            axes = (*axes[:first], *(axes[first + k] for k in numbers))
    return axes


def _tiled(axes: tuple[PhysicalAxis, ...], tile: tuple[int, ...]) -> tuple[PhysicalAxis, ...]:
    first = len(axes) - len(tile)
    cut = list(zip(axes[first:], tile, strict=True))
    outer = (PhysicalAxis(a.axis, a.extent // n, a.divisor * n) for a, n in cut)
    inner = (PhysicalAxis(a.axis, n, a.divisor) for a, n in cut)
    return (*axes[:first], *outer, *inner)


def swizzle_of(transforms: tuple[Transform, ...]) -> int:
    """Return the bytes of the swizzle, 0 for none."""
    return next((numbers[0] for kind, numbers in transforms if kind == SWIZZLE), 0)


def complaint(
    shape: tuple[int, ...], dtype: DType, transforms: tuple[Transform, ...]
) -> tuple[str, str]:
    """Return what is wrong with the last of `transforms`, and a way out; empty for nothing."""
    before, (kind, numbers) = transforms[:-1], transforms[-1]
    if any(known == SWIZZLE for known, _ in before):
        return "nothing follows a swizzle", "state the `SwizzleTransform` last"
    extents = tuple(axis.extent for axis in physical_axes(shape, before))
    return _COMPLAINTS[kind](extents, dtype, numbers)


def _about_tiling(extents: tuple[int, ...], dtype: DType, tile: tuple[int, ...]) -> tuple[str, str]:
    del dtype
    if len(tile) > len(extents):
        return (
            f"a tile of {in_words(len(tile), 'axis')} cuts {in_words(len(extents), 'axis')}",
            f"a tile has at most {in_words(len(extents), 'extent')}, those of the last axes",
        )
    last = extents[len(extents) - len(tile) :]
    if any(extent % side for extent, side in zip(last, tile, strict=True)):
        return (
            f"tiles of {tile} do not divide the extents {last}",
            "take a tile whose extents divide them, or a larger buffer",
        )
    return "", ""


def _about_transpose(
    extents: tuple[int, ...], dtype: DType, permutation: tuple[int, ...]
) -> tuple[str, str]:
    del dtype
    if len(permutation) > len(extents):
        long, rank = in_words(len(permutation), "axis"), in_words(len(extents), "axis")
        return (
            f"a permutation of {long} is of {rank}",
            f"it permutes the last axes, {len(extents)} at most; a tiling before it adds axes",
        )
    return "", ""


def _about_swizzle(
    extents: tuple[int, ...], dtype: DType, numbers: tuple[int, ...]
) -> tuple[str, str]:
    (swizzle,) = numbers
    row, columns = extents[-1] if extents else 1, swizzle * 8 // dtype.bits
    if row == columns:
        return "", ""
    return (
        f"a swizzle of {swizzle} bytes is of rows of {columns} {dtype}, and the rows have {row}",
        f"cut them before it: `TilingTransform((8, {columns}))`; or `find_swizzle` the row",
    )


_COMPLAINTS = {TILING: _about_tiling, TRANSPOSE: _about_transpose, SWIZZLE: _about_swizzle}
