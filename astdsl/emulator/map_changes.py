"""Tensor maps in global memory that a launch has written, and the proxy fences that show them.

A copy reads its map through the tensormap proxy. Invariant: what was written at a map, by whatever
instruction, may be used by a block once a release by a warp that knows of it has followed, and an
acquire of the map's address by a warp of the block that knows of both.
Source: PTX ISA 8.6 "Proxies", 9.7.13.4 "fence.proxy.tensormap::generic".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.shown import Shown

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["MapChanges"]


class MapChanges:
    """Fences of the tensormap proxy of the blocks of one machine, by a set of clocks."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self._clocks = clocks
        self.released = Shown(m, clocks)
        # By block and address, what of that has been acquired.
        self._acquired: dict[tuple[int, int], Array] = {}

    def acquire(self, lanes: Lanes, addresses: Array) -> None:
        """Run `fence.proxy.tensormap::generic.acquire` of lanes for their addresses."""
        clocks = self._clocks
        blocks, warps = clocks.warps(lanes)
        for block, warp, address in {
            *zip(blocks.tolist(), warps.tolist(), addresses.tolist(), strict=True)
        }:
            past = clocks.past((np.array([block]), np.array([warp])))[0, : -clocks.n_async]
            shown = np.minimum(past, self.released.times[block // clocks.reach])
            before = self._acquired.get((block, address), shown)
            self._acquired[block, address] = np.maximum(before, shown)

    def missing(self, row: int, address: int, time: int, actor: int) -> str:
        """Return what block `row` lacks to use what an actor wrote at a map; empty for nothing."""
        acquired = self._acquired.get((row, address))
        if acquired is not None and time <= acquired[actor]:
            return ""
        is_released = time <= self.released.times[row // self._clocks.reach, actor]
        return "acquire of its address" if is_released else "release after that"
