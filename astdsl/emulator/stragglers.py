"""Warps that stand together and ask for something that may change, each at a time of its own.

Invariant: what they do is one of the schedules of the program: some warps of a group go on, and the
others stay where they are. In orders that are not drawn they ask together.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.lanes import WARP_THREADS

if TYPE_CHECKING:
    from astdsl.emulator.machine import Group, Machine

ASKS = re.compile(r"mbarrier\.test_wait|atom\.|ld\.(?:\w+\.)*(?:volatile|relaxed|acquire)")
# Groups beyond which none is divided: each of them is run alone.
MOST_GROUPS = 16


class Stragglers:
    """Divides groups whose next instructions ask, by the seed of an order."""

    def __init__(self, m: Machine, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        instructions = m.program.instructions
        self._asks = [pc for pc, each in enumerate(instructions) if ASKS.match(each.opcode)]

    def part(self, m: Machine, group: Group, ready: list[Group]) -> Group:
        """Return the group without the warps that it leaves among those that are ready."""
        next_ask = bisect_left(self._asks, group.pc)
        if next_ask == len(self._asks) or len(ready) >= MOST_GROUPS:
            return group
        if self._asks[next_ask] >= m.program.segment_ends[group.pc]:
            return group
        index = group.lanes.index
        warps = m.block_of[index] * m.n_warps + m.thread_of[index] // WARP_THREADS
        each, number = np.unique(warps, return_inverse=True)
        first = self._draw.integers(0, 2, len(each)).astype(np.bool_)
        if first.all() or not first.any():
            return group
        goes = first[number]
        ready.append(replace(group, lanes=group.lanes.where(~goes)))
        return replace(group, lanes=group.lanes.where(goes))
