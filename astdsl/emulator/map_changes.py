"""Tensor maps in global memory that a launch has written, and the proxy fences that show them.

A copy reads its map through the tensormap proxy. Invariant: what was written at a map, by whatever
instruction, may be used by a block once a release by a warp that knows of it has followed, and an
acquire of the map's address by a warp of the block that knows of both.
Source: PTX ISA 8.6 "Proxies", 9.7.13.4 "fence.proxy.tensormap::generic".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["MapChanges"]


class MapChanges:
    """Fences of the tensormap proxy of the blocks of one machine, by a set of clocks."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self._m, self._clocks = m, clocks
        n_known = clocks.n_actors - clocks.n_async
        # Of each set of blocks that know of each other: up to when the writes of each warp, or
        # group of blocks that have ended, are released.
        self.released = np.zeros((m.n_blocks // clocks.reach, n_known), np.int32)
        # By block and address, what of that has been acquired.
        self._acquired: dict[tuple[int, int], Array] = {}

    def remember(self, released: Array) -> None:
        """Note up to when writes of groups of blocks that have ended are released."""
        self.released[:, self._clocks.first_ended :] = released

    def release(self, lanes: Lanes) -> None:
        """Run `fence.proxy.tensormap::generic.release` of warps: for what they know and did."""
        clocks = self._clocks
        blocks, warps = np.nonzero(clocks.mask(lanes))
        past = clocks.past((blocks, warps))[:, : -clocks.n_async]
        np.maximum.at(self.released, blocks // clocks.reach, past)

    def acquire(self, lanes: Lanes, addresses: Array) -> None:
        """Run `fence.proxy.tensormap::generic.acquire` of lanes for their addresses."""
        clocks = self._clocks
        blocks, warps = clocks.warps(lanes)
        for block, warp, address in {
            *zip(blocks.tolist(), warps.tolist(), addresses.tolist(), strict=True)
        }:
            past = clocks.past((np.array([block]), np.array([warp])))[0, : -clocks.n_async]
            shown = np.minimum(past, self.released[block // clocks.reach])
            before = self._acquired.get((block, address), shown)
            self._acquired[block, address] = np.maximum(before, shown)

    def missing(self, row: int, address: int, time: int, actor: int) -> str:
        """Return what block `row` lacks to use what an actor wrote at a map; empty for nothing."""
        acquired = self._acquired.get((row, address))
        if acquired is not None and time <= acquired[actor]:
            return ""
        is_released = time <= self.released[row // self._clocks.reach, actor]
        return "acquire of its address" if is_released else "release after that"
