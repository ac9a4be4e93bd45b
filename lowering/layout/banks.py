"""How often an access of shared memory is repeated, because lanes meet in a bank.

Source: CUDA programming guide, compute capability 9.0, shared memory: 32 banks of 4 bytes; lanes
that read one word are served together. A warp's vectors go in parts of 128 bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astdsl.ir.types import TileType
from astdsl.lowering.layout.registers import WARP_THREADS, WIDEST_ACCESS_BYTES, Layout
from astdsl.source import Span

BANKS = 32
WORD_BYTES = 4
PART_BYTES = BANKS * WORD_BYTES


def conflicts_of(addresses: NDArray[np.int64], width_bytes: int) -> int:
    """Return in how many passes the lanes of each part of a warp are served, 1 without conflicts.

    `addresses` are the bytes at which the lanes' accesses of `width_bytes` begin.
    """
    width_bytes = max(width_bytes, WORD_BYTES)
    lanes = PART_BYTES // width_bytes
    most = 1
    for start in range(0, len(addresses), lanes):
        part = addresses[start : start + lanes]
        first = part.min() // WORD_BYTES * WORD_BYTES
        if part.max() + width_bytes <= first + PART_BYTES:
            continue  # Side by side: a bank for each word.
        words = part[:, None] // WORD_BYTES
        every = set((words + np.arange(width_bytes // WORD_BYTES)).ravel().tolist())
        most = max(most, *Counter(word % BANKS for word in every).values())
    return most


@dataclass(frozen=True, slots=True)
class Conflict:
    """An access of shared memory whose lanes meet in banks: where, of what, in how many passes."""

    span: Span
    tile: TileType
    passes: int

    def __str__(self) -> str:
        return f"{self.tile} at {self.span}: {self.passes}-way bank conflicts"


def row_major_conflicts(layout: Layout, shape: tuple[int, ...], element_bytes: int) -> int:
    """Return the most passes of an access of a row-major tile by the registers of a layout."""
    strides = np.append(np.cumprod(shape[:0:-1], dtype=np.int64)[::-1], 1)[: len(shape)]
    if not shape:
        return 1
    threads = (layout.bases[:WARP_THREADS] * strides).sum(axis=1) * element_bytes
    return conflicts_of(threads, vector_elements(layout, element_bytes) * element_bytes)


def vector_elements(layout: Layout, element_bytes: int) -> int:
    """Return how many elements along the last axis one access of a thread takes."""
    last = len(layout.shape) - 1
    run = next((d.extent for d in layout.registers if (d.axis, d.stride) == (last, 1)), 1)
    fits = [n for n in (16, 8, 4, 2, 1) if run % n == 0 and layout.shape[last] % n == 0]
    return next(n for n in fits if n * element_bytes <= WIDEST_ACCESS_BYTES)
