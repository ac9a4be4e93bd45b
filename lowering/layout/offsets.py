"""Where registers' elements are in a slot of shared memory, as far as it is known without threads.

Invariant: the byte of a thread's register is `(thread's byte ^ flip) + move`, both constants of
the register: the swizzle is linear in the bits of an address, and where the bits of two parts are
disjoint, their sum is their XOR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astdsl.lowering.layout.shared import SWIZZLE_PERIOD_BITS, SWIZZLE_UNIT_BYTES, BufferLayout

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SplitOffsets:
    """A slot in which threads and registers move apart; `thread_bits` are those threads set."""

    buffer: BufferLayout
    thread_bits: int

    def moves(self, places: Sequence[int]) -> tuple[int, int]:
        """Return `flip` and `move` of a register whose coordinates are `places` in thread 0."""
        offset = int(plain_offsets(self.buffer, np.array([places]))[0])
        if not self.buffer.swizzle_bytes:
            return 0, offset
        swizzled = int(_swizzled(self.buffer, offset))
        return swizzled & self.thread_bits, swizzled & ~self.thread_bits


def split_offsets(
    buffer: BufferLayout, threads: Integers, registers: Integers
) -> SplitOffsets | None:
    """Return how places split into a thread's and a register's part, None if they do not.

    `threads` are the coordinates of each thread, `registers` what each register adds: (n, axes).
    """
    column = buffer.order[0]
    reach = (threads[:, column] % buffer.chunk_elements).max()
    reach += (registers[:, column] % buffer.chunk_elements).max()
    if min(threads.min(), registers.min()) < 0 or reach >= buffer.chunk_elements:
        return None
    if not buffer.swizzle_bytes:
        return SplitOffsets(buffer, 0)
    own = plain_offsets(buffer, threads)
    added = plain_offsets(buffer, registers)
    if np.bitwise_or.reduce(own) & np.bitwise_or.reduce(added):
        return None
    return SplitOffsets(buffer, int(np.bitwise_or.reduce(_swizzled(buffer, own))))


def plain_offsets(buffer: BufferLayout, places: Integers) -> Integers:
    """Return the byte of each element in a slot, before the swizzle; `places` are (n, axes)."""
    chunk, column = np.divmod(places[:, buffer.order[0]], buffer.chunk_elements)
    row = sum((places[:, a] * s for a, s in buffer.row_strides.items()), np.zeros_like(column))
    offset: Integers = chunk * buffer.chunk_bytes + row * buffer.row_bytes
    return offset + column * buffer.dtype.bytes


def _swizzled(buffer: BufferLayout, offset: Any) -> Any:
    mask = buffer.swizzle_bytes // SWIZZLE_UNIT_BYTES - 1
    return offset ^ ((offset >> SWIZZLE_PERIOD_BITS & mask) * SWIZZLE_UNIT_BYTES)
