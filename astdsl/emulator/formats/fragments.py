"""Which thread holds which element: register fragments of wgmma, lanes and columns of tcgen05.

Invariant: every array here is a bijection onto the tile it describes (tests check it).
Source: PTX ISA figures of wgmma 9.7.15.5.1 (D and A fragments) and tcgen05 9.7.16.2.3 (matrix
fragments), 9.7.16.10.5 (data path layouts); CuTe `copy_traits_sm100.hpp`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.lanes import WARP_THREADS, WARPGROUP_THREADS

__all__ = [
    "TMEM_COLUMNS",
    "TMEM_LANES",
    "TMEM_SHAPES",
    "Fragment",
    "TmemAccess",
    "accumulator_lanes",
    "tmem_access",
    "wgmma_a_fragment",
    "wgmma_d_fragment",
]

TMEM_LANES = 128
TMEM_COLUMNS = 512


class Fragment(NamedTuple):
    """Give row and column of every element: arrays [register, thread, part of the register]."""

    row: NDArray[np.intp]
    column: NDArray[np.intp]


class TmemAccess(NamedTuple):
    """Give the lane and column that each register of each thread touches: [register, thread]."""

    lane: NDArray[np.intp]
    column: NDArray[np.intp]


def _thread_rows() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return (16 * warp + lane / 4, lane % 4) for the 128 threads of a warpgroup."""
    thread = np.arange(WARPGROUP_THREADS, dtype=np.intp)
    lane = thread % WARP_THREADS
    return 16 * (thread // WARP_THREADS) + lane // 4, lane % 4


@lru_cache(maxsize=256)
def wgmma_d_fragment(n: int, parts: int) -> Fragment:
    """Return the accumulator's fragment for m64nN.

    With one 32-bit element per register (`parts` 1) register `4j + 2h + z` holds row `r + 8h`,
    column `8j + 2q + z`; with two f16 (`parts` 2) register `2j + h` holds columns `8j + 2q + z`.
    """
    row, quad = _thread_rows()
    pair = np.arange(n // 4, dtype=np.intp)
    j, h = (pair // 2)[:, None, None], (pair % 2)[:, None, None]
    z = np.arange(2, dtype=np.intp)[None, None, :]
    rows = np.broadcast_to(row[None, :, None] + 8 * h, (len(pair), WARPGROUP_THREADS, 2))
    columns = 8 * j + 2 * quad[None, :, None] + z
    if parts == 2:
        return Fragment(rows, columns)
    flat = (len(pair) * 2, WARPGROUP_THREADS, 1)
    return Fragment(
        rows.transpose(0, 2, 1).reshape(flat),
        np.broadcast_to(columns, rows.shape).transpose(0, 2, 1).reshape(flat),
    )


@lru_cache(maxsize=8)
def wgmma_a_fragment(element_bits: int) -> Fragment:
    """Return the fragment of A in four registers, low bits first.

    With p = 32 / bits elements in a register, register `2k + h` holds row `r + 8h`, columns
    `4pk + pq + (0..p-1)`.
    """
    row, quad = _thread_rows()
    parts = 32 // element_bits
    register = np.arange(4, dtype=np.intp)[:, None, None]
    part = np.arange(parts, dtype=np.intp)[None, None, :]
    shape = (4, WARPGROUP_THREADS, parts)
    rows = row[None, :, None] + 8 * (register % 2)
    columns = (register // 2) * 4 * parts + quad[None, :, None] * parts + part
    return Fragment(np.broadcast_to(rows, shape), np.broadcast_to(columns, shape))


def _access_32x32b(r: NDArray[np.intp], t: NDArray[np.intp], _: int) -> TmemAccess:
    return TmemAccess(t + 0 * r, r + 0 * t)


def _access_16x64b(r: NDArray[np.intp], t: NDArray[np.intp], _: int) -> TmemAccess:
    return TmemAccess(t // 4 + 8 * (t % 2) + 0 * r, 2 * r + (t // 2) % 2)


def _access_16x128b(r: NDArray[np.intp], t: NDArray[np.intp], _: int) -> TmemAccess:
    return TmemAccess(t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4)


def _access_16x256b(r: NDArray[np.intp], t: NDArray[np.intp], _: int) -> TmemAccess:
    return TmemAccess(t // 4 + 8 * ((r // 2) % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2)


def _access_16x32bx2(r: NDArray[np.intp], t: NDArray[np.intp], split: int) -> TmemAccess:
    return TmemAccess(t % 16 + 0 * r, r + (t // 16) * split)


# Shape -> (registers for .x1, largest .xN, index function).
TMEM_SHAPES = {
    "32x32b": (1, 128, _access_32x32b),
    "16x64b": (1, 128, _access_16x64b),
    "16x128b": (2, 64, _access_16x128b),
    "16x256b": (4, 32, _access_16x256b),
    "16x32bx2": (1, 128, _access_16x32bx2),
}


@lru_cache(maxsize=256)
def tmem_access(shape: str, repeat: int, half_split: int = 0) -> TmemAccess:
    """Return lane and column offsets, [registers, 32 threads], of tcgen05.ld/st `.shape.xN`.

    `half_split` is the column distance of the upper sixteen threads of `.16x32bx2`.
    """
    if shape not in TMEM_SHAPES:
        raise FormatError(f"tcgen05 has no shape .{shape}")
    per_repeat, largest, index = TMEM_SHAPES[shape]
    if repeat & (repeat - 1) or not 1 <= repeat <= largest:
        raise FormatError(f".x{repeat} is not a repeat of .{shape} (1 to {largest})")
    register = np.arange(per_repeat * repeat, dtype=np.intp)[:, None]
    return index(register, np.arange(WARP_THREADS, dtype=np.intp)[None, :], half_split)


@lru_cache(maxsize=64)
def accumulator_lanes(m: int, first_lane: int) -> NDArray[np.intp]:
    """Return the TMEM lane of each row of D (or of A in TMEM) for one CTA.

    M = 128: row i in lane i (layout D).  M = 64: `32 * (i / 16) + i % 16` from lane 0 or 16
    (layout F).  PTX ISA 9.7.16.10.5.
    """
    row = np.arange(m, dtype=np.intp)
    if m == TMEM_LANES:
        if first_lane:
            raise FormatError(f"a tile of 128 rows begins in lane 0 of TMEM, not {first_lane}")
        return row
    if first_lane not in (0, 16):
        raise FormatError(f"a tile of 64 rows begins in lane 0 or 16 of TMEM, not {first_lane}")
    return first_lane + 32 * (row // 16) + row % 16
