"""The one swizzle formula, shared by TMA, wgmma and tcgen05.

A swizzle permutes the bytes of shared memory by XOR of address bits: bits 7 and up (the row of
128 bytes) are folded into bits 3 to 6 (the chunk within the row).  Invariant: the pattern is
anchored to absolute shared-memory addresses, so it is its own inverse and never needs to know
where a tile begins.  Source: PTX ISA, section "Swizzling modes" (5.5.7); CuTe `Swizzle<B, M, S>`.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["ROW_BYTES", "Swizzle", "repeat_bytes", "span_bytes", "swizzle"]

ROW_BYTES = 128
_ROW_SHIFT = 7


class Swizzle(IntEnum):
    """Name the swizzle modes by the driver's codes (CUtensorMapSwizzle).

    The driver has none of 96 bytes: it is set by `tensormap.replace` alone.
    """

    NONE = 0
    B32 = 1
    B64 = 2
    B128 = 3
    B128_ATOM_32B = 4
    B128_ATOM_32B_FLIP_8B = 5
    B128_ATOM_64B = 6
    B96 = 7


@dataclass(frozen=True, slots=True)
class _Fold:
    """One XOR: `offset ^= ((offset >> 7) & row_mask) << shift`."""

    row_mask: int
    shift: int


@dataclass(frozen=True, slots=True)
class _Pattern:
    span_bytes: int
    repeat_bytes: int
    folds: tuple[_Fold, ...]


_PATTERNS = {
    Swizzle.NONE: _Pattern(16, 16, ()),
    Swizzle.B32: _Pattern(32, 256, (_Fold(1, 4),)),
    Swizzle.B64: _Pattern(64, 512, (_Fold(3, 4),)),
    Swizzle.B128: _Pattern(128, 1024, (_Fold(7, 4),)),
    Swizzle.B128_ATOM_32B: _Pattern(128, 512, (_Fold(3, 5),)),
    Swizzle.B128_ATOM_32B_FLIP_8B: _Pattern(128, 512, (_Fold(3, 5), _Fold(1, 3))),
    Swizzle.B128_ATOM_64B: _Pattern(128, 256, (_Fold(1, 6),)),
    Swizzle.B96: _Pattern(96, 256, (_Fold(1, 4),)),
}


def span_bytes(mode: Swizzle) -> int:
    """Return the bytes of the inner dimension that one row of the pattern covers."""
    return _PATTERNS[mode].span_bytes


def repeat_bytes(mode: Swizzle) -> int:
    """Return after how many bytes the pattern repeats: the alignment that makes it relative."""
    return _PATTERNS[mode].repeat_bytes


def swizzle(offsets: NDArray[np.int64], mode: Swizzle) -> NDArray[np.int64]:
    """Map logical byte offsets in shared memory to the bytes that hold them.

    `o ^ (((o >> 7) & mask) << shift)` for each fold of the mode.  The function is an involution.
    """
    out = offsets
    for fold in _PATTERNS[mode].folds:
        # Every fold moves bits below bit 7, so the row bits of `out` are those of `offsets`.
        out = out ^ (((offsets >> _ROW_SHIFT) & fold.row_mask) << fold.shift)
    return out
