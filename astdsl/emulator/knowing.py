"""What single lanes have acquired, and the other lanes of their warps do not know yet.

A warp's clock holds what any of its lanes has acquired. Invariant: of a warp of which only some
lanes know all of that, `common` holds what every lane knows, and a lane is taken to know everything
if it has acquired something itself since the lanes met last; where that is not clear, it does.
Source: PTX ISA 8.9.3 "Synchronizes-with" (of threads), 9.7.13.2 "bar.warp.sync".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from astdsl.emulator.lanes import WARP_THREADS

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["Knowing"]

_EVERY = np.uint32((1 << WARP_THREADS) - 1)


class Knowing:
    """Which lanes of each warp know what their warp knows, for one set of clocks."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self._m, self._clocks = m, clocks
        # The lanes that know everything, as masks [blocks, warps].
        self._lanes = np.full(clocks.known.shape[:2], _EVERY)
        self._common = clocks.known
        # Whether there is a warp of which some lanes do not.
        self.is_divided = False

    def learn(self, lanes: Lanes | None, who: tuple[Array, Array], vectors: Array) -> None:
        """Let warps know vectors [n, actors], of which only these lanes learn; None for all."""
        known = self._clocks.known
        alone = None if lanes is None else self._masks(lanes)
        if alone is not None:
            self._divide(alone)
        np.maximum.at(known, who, vectors)
        if self.is_divided:
            whole = np.ones(len(who[0]), np.bool_) if alone is None else alone[who] == _EVERY
            rows, warps = who[0][whole], who[1][whole]
            np.maximum.at(self._common, (rows, warps), vectors[whole])

    def meet(self, lanes: Lanes) -> None:
        """Note that lanes of warps have come together: what one knows, all of them do."""
        if not self.is_divided:
            return
        met = self._masks(lanes)
        if met is None:
            self._lanes[self._clocks.warps(lanes)] = _EVERY
        else:
            self._lanes |= np.where(self._lanes & met, met, np.uint32(0))
        self.is_divided = bool((self._lanes != _EVERY).any())

    def of(self, lanes: Lanes) -> Array:
        """Return what each of the lanes knows, [n, actors]."""
        rows, warps = self._clocks.warps(lanes)
        known: Array = self._clocks.known[rows, warps]
        if self.is_divided:
            late = ~self._knows(rows, warps, self._m.thread_of[lanes.sel])
            known[late] = self._common[rows[late], warps[late]]
        return known

    def at(self, rows: Array, warps: Array, threads: Array, actors: Array) -> Array:
        """Return up to when threads [n], of warps of blocks, know actors [n, k]."""
        at = rows[:, None], warps[:, None], actors
        known: Array = self._clocks.known[at]
        if self.is_divided:
            late = ~self._knows(rows, warps, threads)
            known[late] = self._common[at][late]
        return known

    def _knows(self, rows: Array, warps: Array, threads: Array) -> BoolArray:
        """Say which threads know everything that their warps do."""
        bits = (threads & (WARP_THREADS - 1)).astype(np.uint32)
        found: BoolArray = self._lanes[rows, warps] >> bits & 1 != 0
        return found

    def least(self, warps: slice) -> Array:
        """Return what all lanes know, [blocks, warps, actors], of some warps of every block."""
        known = self._clocks.known[:, warps]
        if not self.is_divided:
            return known
        divided = self._lanes[:, warps] != _EVERY
        if not divided.any():
            return known
        return np.where(divided[:, :, None], self._common[:, warps], known)

    def _divide(self, alone: Array) -> None:
        """Keep what the warps know of which only some lanes learn more; `alone` are their masks."""
        apart = (alone != 0) & (alone != _EVERY)
        if not apart.any():
            return
        new = apart & (self._lanes == _EVERY)
        if self._common is self._clocks.known:
            self._common = self._clocks.known.copy()
        self._common[new] = self._clocks.known[new]
        self._lanes[new] = alone[new]
        old = apart & ~new
        self._lanes[old] |= alone[old]
        self.is_divided = bool((self._lanes != _EVERY).any())

    def _masks(self, lanes: Lanes) -> Array | None:
        """Return the masks of lanes, [blocks, warps]; None if they are whole warps.

        Threads that a block does not have, or that have ended, count with the others of theirs.
        """
        width = WARP_THREADS * self._m.n_blocks
        if not self._clocks.tells_lanes:
            return None
        if lanes.contiguous and not (lanes.n % width or cast(slice, lanes.sel).start % width):
            return None
        masks = np.zeros(self._lanes.shape, np.uint32)
        rows, warps = self._clocks.warps(lanes)
        bits = (self._m.thread_of[lanes.sel] & (WARP_THREADS - 1)).astype(np.uint32)
        np.bitwise_or.at(masks, (rows, warps), np.uint32(1) << bits)
        absent = ~self._alive(np.unique(warps))
        return np.where(masks != 0, masks | absent, masks)

    def _alive(self, warps: Array) -> Array:
        """Return the masks of the lanes of some warps that have not ended, [blocks, warps]."""
        m = self._m
        alive = np.full(self._lanes.shape, _EVERY)
        live = m.live.reshape(m.n_threads, m.n_blocks)
        weights = np.uint32(1) << np.arange(WARP_THREADS, dtype=np.uint32)
        for warp in warps.tolist():
            some = live[warp * WARP_THREADS : (warp + 1) * WARP_THREADS]
            alive[:, warp] = (some * weights[: len(some), None]).sum(axis=0, dtype=np.uint32)
        return alive
