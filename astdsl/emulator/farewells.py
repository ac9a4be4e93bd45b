"""Blocks of a cluster that others reach into must have started, and may not end meanwhile.

Invariant: an access of another block is reported only if no chain of barriers leads to it from that
block, or from it to the end of that block; for a barrier of the cluster it is enough to have met
there. Source: PTX ISA 5.1.5 ("a CTA's shared memory is valid while it runs"), 9.7.13.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["Farewells"]


class Farewells:
    """When each block's memory was last accessed by each warp of the other blocks."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self._m, self._clocks = m, clocks
        self._last = np.zeros((m.n_blocks, clocks.n_actors), np.int32)
        self._came = np.zeros((m.n_blocks // m.launch.cluster_size, clocks.n_actors), np.int32)
        self._met = np.zeros_like(self._last)
        # Which blocks have passed a barrier of the cluster: all others have started.
        self._greeted = np.zeros(m.n_blocks, np.bool_)
        m.exit_checks.append(self.check)

    def note(self, lanes: Lanes, rows: Array) -> None:
        """Note that lanes access shared memory of the blocks `rows` now."""
        blocks, warps = self._clocks.warps(lanes)
        far = rows != blocks
        if far.any():
            actors = self._clocks.actors(blocks[far], warps[far])
            self._last[rows[far], actors] = self._clocks.now

    def arrive(self, lanes: Lanes) -> None:
        """Note that warps arrive at the barriers of their clusters."""
        blocks, warps = self._clocks.warps(lanes)
        clusters = blocks // self._m.launch.cluster_size
        self._came[clusters, self._clocks.actors(blocks, warps)] = self._clocks.now

    def met(self, lanes: Lanes) -> None:
        """Note that warps pass the barriers of their clusters."""
        blocks = np.unique(self._clocks.warps(lanes)[0])
        self._greeted[blocks] = True
        self._met[blocks] = self._came[blocks // self._m.launch.cluster_size]

    def require_started(self, lanes: Lanes, rows: Array) -> None:
        """Fault if lanes reach into blocks of which they know nothing yet."""
        clocks = self._clocks
        blocks, warps = clocks.warps(lanes)
        strange = (rows != blocks) & ~self._greeted[blocks]
        if not strange.any():
            return
        first = clocks.actors(rows[strange], np.zeros_like(rows[strange]))
        actors = first[:, None] + np.arange(clocks.n_warps)
        known = clocks.known[blocks[strange, None], warps[strange, None], actors].max(axis=1)
        if (known == 0).any():
            at = int(np.flatnonzero(strange)[np.argmax(known == 0)])
            raise self._m.fault(
                "E258",
                f"shared memory of block {self._m.launch.block_index(int(rows[at]))} is accessed, "
                "and nothing tells that it has started",
                int(lanes.index[at]),
                help="meet at the cluster's barrier before the first access of another block",
            )

    def check(self, blocks: Array, lanes: Lanes) -> None:
        """Fault if blocks, which have ended, were accessed without an order before their end."""
        known = np.maximum(self._clocks.known[blocks].max(axis=1), self._met[blocks])
        bad = self._last[blocks] > known
        if bad.any():
            at, actor = (int(k) for k in np.argwhere(bad)[0])
            row = int(blocks[at])
            place = self._clocks.place_text(int(self._last[row, actor]))
            raise self._m.fault(
                "E258",
                f"the block ends, and nothing orders the access of its shared memory by "
                f"{self._clocks.place_of(row, actor)} ({place}) before that",
                int(lanes.index[np.argmax(self._m.block_of[lanes.sel] == row)]),
                help="meet at the cluster's barrier before the end",
            )
