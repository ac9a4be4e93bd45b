"""Which tiles leave a block through shared memory, and in how many slots.

Invariant: what is counted here before a block is scheduled is what `stores` takes then, or more.
"""

from __future__ import annotations

from astdsl.ir.types import TileType

# Slots of a store in a loop: one is filled while the other is copied. They take no more than
# `LARGEST_BYTES`; of a larger tile the copy before has long been read when the next one is there.
SLOTS_IN_A_LOOP = 2
# A tile that takes more is stored from registers.
LARGEST_BYTES = 64 * 1024
# So is a smaller one: the copy and its barriers cost more.
LEAST_BYTES = 2048


def slots_of(tile: TileType, *, is_in_loop: bool) -> int:
    """Return how many slots the copies out of a tile take turns in; 0 if it is not copied."""
    size_bytes = tile_bytes(tile)
    if tile.shape == () or not LEAST_BYTES <= size_bytes <= LARGEST_BYTES:
        return 0
    if is_in_loop and SLOTS_IN_A_LOOP * size_bytes <= LARGEST_BYTES:
        return SLOTS_IN_A_LOOP
    return 1


def tile_bytes(tile: TileType) -> int:
    """Return what a tile takes."""
    return tile.elements * tile.dtype.bytes
