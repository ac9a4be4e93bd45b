"""Which bytes one tiled copy moves: units of global memory beside units of shared memory.

A box is cut into equal units (up to 16 bytes); unit `u` of the box lies at a byte offset from the
map's address and at a swizzled place in shared memory.  Invariant: both sides list the units in
the same order, the order in which the box is packed in shared memory (dimension 0 fastest).
Source: PTX ISA 5.5.3 "Tiled Mode", 5.5.7 "Swizzling modes".
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.swizzle import Swizzle, swizzle
from astdsl.emulator.formats.tensormap import Interleave, TensorMap
from astdsl.emulator.scalars import all_of, any_of

__all__ = [
    "BoxUnits", "box_units", "fill_pattern", "padded_units", "require_plain", "shared_units",
]  # fmt: skip

_UNIT_BYTES = 16
_WORD_BYTES = 4


class BoxUnits(NamedTuple):
    """Hold the units of `n` boxes: bytes of a unit, offsets and which are inside, [n, units].

    `corners_bytes` [n] count from the map's address, `relative_bytes` [units] from a box's corner;
    they mean nothing where `inside` is false, which is None when all are.
    """

    unit_bytes: int
    corners_bytes: NDArray[np.int64]
    relative_bytes: NDArray[np.int64]
    inside: NDArray[np.bool_] | None


def require_plain(m: TensorMap) -> None:
    """Refuse by name the maps that copies do not model."""
    if m.interleave is not Interleave.NONE:
        raise FormatError(f"tensor maps with interleave {m.interleave.name} are not supported")


@lru_cache(maxsize=256)
def _positions(m: TensorMap) -> tuple[NDArray[np.int64], ...]:
    """Return, for each dimension, the tensor positions of the box relative to its corner."""
    steps = (1, *m.element_strides[1:])
    return tuple(
        np.arange(count, dtype=np.int64) * step
        for count, step in zip(m.box_elements, steps, strict=True)
    )


@lru_cache(maxsize=256)
def _extents(m: TensorMap) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the greatest corner of a box that is inside, and the strides of a corner in bytes."""
    last = np.array([p[-1] for p in _positions(m)], np.int64)
    strides = np.array([m.element_bytes, *m.strides_bytes], np.int64)
    return np.array(m.dims, np.int64) - 1 - last, strides


@lru_cache(maxsize=256)
def _relative_bytes(m: TensorMap, unit_bytes: int) -> NDArray[np.int64]:
    """Return the byte offset of every unit from the box's corner, flat, dimension 0 fastest."""
    inner_bytes = m.box_elements[0] * m.element_bytes
    total = np.arange(0, inner_bytes, unit_bytes, dtype=np.int64)
    for positions, stride in zip(_positions(m)[1:], m.strides_bytes, strict=True):
        total = (positions[:, None] * stride + total[None, :]).reshape(-1)
    return total


def _spread(inside: NDArray[np.bool_], repeat: int) -> NDArray[np.bool_]:
    return inside if repeat == 1 else inside[:, ::repeat]


def _inside(m: TensorMap, corner: NDArray[np.int64], unit_elements: int) -> NDArray[np.bool_]:
    """Return [n, units]: the unit's element is inside along every dimension."""
    total = np.ones((len(corner), 1), np.bool_)
    for axis in reversed(range(m.rank)):
        position = corner[:, axis, None] + _positions(m)[axis][None, :]
        inside = (position >= 0) & (position < m.dims[axis])
        if axis == 0:
            inside = _spread(inside, unit_elements)
        total = (total[:, :, None] & inside[:, None, :]).reshape(len(corner), -1)
    return total


def box_units(m: TensorMap, corner: NDArray[np.int64], *, by_element: bool = False) -> BoxUnits:
    """Cut the boxes whose corners (elements, [n, rank]) are given into units.

    A unit is 16 bytes when no box begins or ends inside one, else (or `by_element`) one element.
    """
    most, strides = _extents(m)
    fits = (corner >= 0) & (corner <= most)
    widest = 8 if m.swizzle is Swizzle.B128_ATOM_32B_FLIP_8B else _UNIT_BYTES
    aligned = not any_of((corner[:, 0] * m.element_bytes) % widest)
    coarse = aligned and not by_element and all_of(fits[:, 0])
    unit_bytes = widest if coarse else m.element_bytes
    inside = None if all_of(fits) else _inside(m, corner, unit_bytes // m.element_bytes)
    return BoxUnits(unit_bytes, corner @ strides, _relative_bytes(m, unit_bytes), inside)


def padded_units(cut: BoxUnits, words: int) -> BoxUnits:
    """Return units of words, with words outside after each `words` of them, to make 16 bytes.

    Those have the address of the word before, so that all addresses lie in the box.
    """
    n, count = len(cut.corners_bytes), _UNIT_BYTES // _WORD_BYTES
    before = np.minimum(np.arange(count), words - 1)
    relative = cut.relative_bytes.reshape(-1, words)[:, before].reshape(-1)
    inside = np.zeros((n, len(relative) // count, count), np.bool_)
    inside[:, :, :words] = True if cut.inside is None else cut.inside.reshape(n, -1, words)
    return BoxUnits(_WORD_BYTES, cut.corners_bytes, relative, inside.reshape(n, -1))


@lru_cache(maxsize=1024)
def shared_units(
    start_bytes: int, size_bytes: int, unit_bytes: int, mode: Swizzle
) -> NDArray[np.intp]:
    """Return the indices of a box's units in shared memory seen as an array of such units."""
    logical = np.arange(start_bytes, start_bytes + size_bytes, unit_bytes, dtype=np.int64)
    units = (swizzle(logical, mode) // unit_bytes).astype(np.intp)
    units.flags.writeable = False
    return units


def fill_pattern(m: TensorMap) -> int:
    """Return the bits of one element outside the tensor: zero, or a quiet NaN."""
    if m.out_of_bounds.value == 0:
        return 0
    return (1 << (m.element_bits - 1)) - 1
