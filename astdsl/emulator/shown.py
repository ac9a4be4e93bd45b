"""Up to when ordinary writes of global memory are shown to another proxy, by fences.

Invariant: a fence shows what its warps know of and did, and takes nothing back.
Source: PTX ISA 8.6 "Proxies", 9.7.13.4 "fence.proxy".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["Shown"]


class Shown:
    """The fences of one proxy by the blocks of one machine.

    `times` says, of each set of blocks that know of each other, up to when the writes of each warp,
    or group of blocks that have ended, are shown: what has taken it keeps what was so then.
    """

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self._clocks = clocks
        n_known = clocks.n_actors - clocks.n_async
        self.times = np.zeros((m.n_blocks // clocks.reach, n_known), np.int32)

    def remember(self, ended: Array) -> None:
        """Note up to when writes of groups of blocks that have ended are shown."""
        self.times[:, self._clocks.first_ended :] = ended

    def fence(self, lanes: Lanes) -> None:
        """Show what the warps of lanes know of and did."""
        clocks = self._clocks
        blocks, warps = np.nonzero(clocks.mask(lanes))
        past = clocks.past((blocks, warps))[:, : -clocks.n_async]
        self.times = self.times.copy()
        np.maximum.at(self.times, blocks // clocks.reach, past)
