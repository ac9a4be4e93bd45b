"""Ordinary loads and stores of shared memory in machine code of the host.

Invariant: an access is done only where nothing watches it and nothing can go wrong: in a launch
without checks and clusters, by whole threads of all blocks, all of whose addresses are aligned and
in bounds, and written before they are read; else nothing is done, and the step does it or reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.native.host import started
from astdsl.emulator.native.loops import FUNCTIONS

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.registers import Place
    from astdsl.emulator.scalars import Array

__all__ = ["SharedMove", "shared_move"]


# Neighbouring blocks whose lanes of a register fill a line of the cache.
_GROUP_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class SharedMove:
    """An access of neighbouring elements, each a whole register."""

    places: tuple[Place, ...]

    def load(self, m: Machine, lanes: Lanes, addresses: Array) -> bool:
        """Load the registers; return whether that could be done."""
        return self._move(m, lanes, addresses, "load")

    def store(self, m: Machine, lanes: Lanes, addresses: Array) -> bool:
        """Store the registers; return whether that could be done."""
        return self._move(m, lanes, addresses, "store")

    def _move(self, m: Machine, lanes: Lanes, addresses: Array, word: str) -> bool:
        on, memory, blocks = started(), m.memory.shared, m.n_blocks
        if on is None or m.guard is not None or m.undefined or m.launch.cluster_size > 1:
            return False
        if not lanes.contiguous or addresses.shape != (lanes.n,) or lanes.n % blocks:
            return False
        first, (bits, _) = int(lanes.index[0]), self.places[0]
        last = memory.size_bytes - bits // 8 * len(self.places)
        if first % blocks or last < 0:
            return False
        bad = np.zeros(1, np.int64)
        group = math.gcd(blocks, _GROUP_BLOCKS)
        lane_counts = blocks // group, lanes.n // blocks, group, blocks
        marks = memory.defined.ctypes.data
        on.function(f"check_{word}{bits // 8 * len(self.places)}")(
            addresses.ctypes.data, *lane_counts, marks, memory.row_bytes, last, bad.ctypes.data
        )
        if bad[0]:
            return False
        bank = m.registers.banks[bits]
        registers = np.array([row for _, row in self.places], np.int64) * bank.strides[0]
        registers += bank.ctypes.data + first * bank.itemsize
        on.function(f"{word}{bits}x{len(self.places)}")(
            addresses.ctypes.data, *lane_counts, memory.data.ctypes.data, marks, memory.row_bytes,
            registers.ctypes.data,
        )  # fmt: skip
        return True


def shared_move(places: list[Place | None], bits: int) -> SharedMove | None:
    """Return the move between elements of so many bits and registers, None if there is none."""
    known = tuple(place for place in places if place is not None and place[0] == bits)
    if len(known) != len(places) or f"load{bits}x{len(known)}" not in FUNCTIONS:
        return None
    return SharedMove(known)
