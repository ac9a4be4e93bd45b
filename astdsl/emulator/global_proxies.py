"""What of global memory the async proxy may see, and what it is still writing.

Bulk copies reach global memory through the async proxy: an ordinary write before is not seen there
without a proxy fence between the two.  What they write themselves is seen by all who come after a
`wait_group` (not `.read`) of the thread that issued them.  Invariant: an access is reported only if
no fence by a warp that knows of the write covers it, or no such wait has come.
Sources: PTX ISA 9.7.9.25.2 "Async proxy", 9.7.13.4 "fence.proxy", 9.7.9.25.1 "bulk async-group".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["GlobalProxies", "Past"]


class Past(NamedTuple):
    """When an operation was issued; what was covered then, and when each warp had waited last."""

    time: int
    covered: Array
    awaited: Array


class GlobalProxies:
    """Fences of the blocks of one machine, and waits of its warps."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self._m, self._clocks = m, clocks
        n_known = clocks.n_actors - clocks.n_async
        # Of each set of blocks that know of each other: up to when the ordinary writes of each
        # warp, or group of blocks that have ended, are covered by a fence.
        self.covered = np.zeros((m.n_blocks // clocks.reach, n_known), np.int32)
        # When each warp has waited last for all that its bulk copies write.
        self.awaited = np.zeros((m.n_blocks, -(-m.n_threads // 32)), np.int32)

    def remember(self, covered: Array) -> None:
        """Note up to when writes of groups of blocks that have ended are covered."""
        self.covered[:, self._clocks.first_ended :] = covered

    def fence(self, lanes: Lanes) -> None:
        """Run fence.proxy.async of global memory: what the warps know of and did is covered."""
        clocks = self._clocks
        blocks, warps = np.nonzero(clocks.mask(lanes))
        past = clocks.past((blocks, warps))[:, : -clocks.n_async]
        # Operations that were issued before keep what was covered then.
        self.covered = self.covered.copy()
        np.maximum.at(self.covered, blocks // clocks.reach, past)

    def wait(self, lanes: Lanes) -> None:
        """Note that lanes have waited until what they copied out is written."""
        m = self._m
        self.awaited = self.awaited.copy()
        self.awaited[m.block_of[lanes.sel], m.thread_of[lanes.sel] >> 5] = self._clocks.tick()

    def past(self) -> Past:
        """Return what is so now, for an operation that is issued."""
        return Past(self._clocks.now, self.covered, self.awaited)
