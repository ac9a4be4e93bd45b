"""Which cluster wrote each word of global memory, where no cluster can wait for another.

Invariant: a report is exact, and none is missed of stores of whole words into allocations of up to
`MOST_WORDS`; in programs that have atomics, or loads that wait for other blocks, none is looked
for. The blocks of a cluster order their stores by barriers of their own, and count as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from astdsl.emulator.copies import Transfer
    from astdsl.emulator.global_memory import Allocation
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["Owners"]

WORD_BYTES = 4
MOST_WORDS = 1 << 23


class Owners:
    """The numbers, from 1, of the clusters that wrote the words of each allocation."""

    def __init__(self, threads: int) -> None:
        """Make it; so many threads of a block store as one, 0 for all of them."""
        self._threads = threads
        self._words: dict[int, Array] = {}
        self._numbers: tuple[Any, Array] | None = None

    def write(
        self, m: Machine, lanes: Lanes, allocation: Allocation, addresses: Array, width: int
    ) -> None:
        """Note the store of `width` bytes by each lane; fault if another cluster stored there."""
        at = self._note(self._writers(m, lanes), allocation, addresses, width)
        if at is not None:
            raise m.fault("E235", _text(addresses[at]), int(lanes.index[at]))

    def copy(self, transfer: Transfer, allocation: Allocation) -> None:
        """Note what an asynchronous copy writes; fault if another cluster wrote there."""
        addresses, inside = transfer.addresses, transfer.inside
        who = self._writers(transfer.m, transfer.lanes)
        who = np.broadcast_to(who[:, None], addresses.shape)
        lanes = np.broadcast_to(np.arange(len(addresses))[:, None], addresses.shape)
        chosen = slice(None) if inside is None else inside
        places = addresses[chosen].reshape(-1)
        at = self._note(who[chosen].reshape(-1), allocation, places, transfer.unit_bytes)
        if at is not None:
            lane = int(lanes[chosen].reshape(-1)[at])
            raise transfer.fault("E235", _text(places[at]), lane)

    def _note(
        self, writers: Array, allocation: Allocation, addresses: Array, width: int
    ) -> int | None:
        """Note who writes; return the number of a write that another one did already."""
        owners = self._owners(allocation)
        if owners is None or width % WORD_BYTES:
            return None
        first = (addresses - allocation.low) // WORD_BYTES
        places = first[:, None] + np.arange(width // WORD_BYTES)
        who = writers[:, None]
        before = owners[places]
        owners[places] = who
        met = ((before != 0) & (before != who)) | (owners[places] != who)
        return int(np.argmax(met.any(axis=1))) if met.any() else None

    def _owners(self, allocation: Allocation) -> Array | None:
        words = len(allocation.data) // WORD_BYTES + 1
        if words > MOST_WORDS or allocation.low % WORD_BYTES:
            return None
        if allocation.low not in self._words:
            self._words[allocation.low] = np.zeros(words, np.int32)
        return self._words[allocation.low]

    def _writers(self, m: Machine, lanes: Lanes) -> Array:
        """Return the number of what each lane stores for: its cluster, or a part of its block."""
        clusters = self._clusters(m)[m.block_of[lanes.sel]]
        if not self._threads:
            return clusters
        parts = -(-m.n_threads // self._threads)
        return clusters * parts + (m.thread_of[lanes.sel] // self._threads).astype(np.int32)

    def _clusters(self, m: Machine) -> Array:
        """Return the number of the cluster of each block of a machine."""
        if self._numbers is None or self._numbers[0] is not m:
            number = np.zeros(m.n_blocks, np.int32)
            axes = zip(m.launch.index, m.launch.cluster, m.launch.grid, strict=True)
            for at, size, extent in reversed(list(axes)):
                number = number * (extent // size) + at // size
            self._numbers = (m, (number + 1).astype(np.int32))
        return self._numbers[1]


def _text(address: int) -> str:
    return f"global memory at {address:#x} is written by two blocks or warpgroups"
