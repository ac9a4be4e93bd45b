"""Where registers' elements are in a slot of shared memory, as far as it is known without threads.

Invariant: the byte of a thread's register is `(thread's byte ^ flip) + move`, both constants of
the register: the swizzle is linear in the bits of an address, and where the bits of two parts are
disjoint, their sum is their XOR.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from astdsl.lowering.layout.shared import SWIZZLE_PERIOD_BITS, SWIZZLE_UNIT_BYTES, BufferLayout

Integers = NDArray[np.int64]


def split_offsets(
    buffer: BufferLayout, threads: Integers, registers: Integers
) -> list[tuple[int, int]] | None:
    """Return `flip` and `move` of every register, None where places do not split so.

    `threads` are the coordinates of each thread, `registers` what each register adds: (n, axes).
    """
    if min(threads.min(), registers.min()) < 0 or _carries(buffer, threads, registers):
        return None
    own, added = plain_offsets(buffer, threads), plain_offsets(buffer, registers)
    if not buffer.swizzle_bytes:
        return [(0, move) for move in added.tolist()]
    if np.bitwise_or.reduce(own) & np.bitwise_or.reduce(added):
        return None
    # Bits that no thread sets may be added as well, which is free in an address.
    bits = int(np.bitwise_or.reduce(_swizzled(buffer, own)))
    return [(n & bits, n & ~bits) for n in _swizzled(buffer, added).tolist()]


def _carries(buffer: BufferLayout, threads: Integers, registers: Integers) -> bool:
    """Return whether a digit of a thread's index and one of a register's may add up to more."""
    for axis, parts in enumerate(buffer.parts):
        own, added = threads[:, axis], registers[:, axis]
        for part in parts[:-1]:
            if (own % part.extent).max() + (added % part.extent).max() >= part.extent:
                return True
            own, added = own // part.extent, added // part.extent
    return False


def plain_offsets(buffer: BufferLayout, places: Integers) -> Integers:
    """Return the byte of each element in a slot, before the swizzle; `places` are (n, axes)."""
    offset = np.zeros(len(places), np.int64)
    for axis, parts in enumerate(buffer.parts):
        index = places[:, axis]
        for part in parts[:-1]:
            index, digit = np.divmod(index, part.extent)
            offset += digit * part.stride_bytes
        offset += index * parts[-1].stride_bytes
    return offset


def swizzled_offsets(buffer: BufferLayout, places: Integers) -> Integers:
    """Return the byte of each element in a slot; `places` are (n, axes)."""
    offsets = plain_offsets(buffer, places)
    return _swizzled(buffer, offsets) if buffer.swizzle_bytes else offsets


def _swizzled(buffer: BufferLayout, offsets: Integers) -> Integers:
    mask = buffer.swizzle_bytes // SWIZZLE_UNIT_BYTES - 1
    return offsets ^ ((offsets >> SWIZZLE_PERIOD_BITS & mask) * SWIZZLE_UNIT_BYTES)
