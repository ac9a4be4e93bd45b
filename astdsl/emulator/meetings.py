"""When the lanes of each warp accessed memory, told others of it, and came together last.

What one lane signals tells of its own past, and of the other lanes' only up to when they met or
told themselves. Invariant: of each lane the accesses since it told last, and those between the two
times before, are known apart; what is older counts as told.
Source: PTX ISA 9.7.13.2 "bar.warp.sync" (it orders memory accesses among the threads that take
part), 8.9.3 "Synchronizes-with".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.lanes import WARP_THREADS

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["Meetings"]

# Later than all that is known of anybody.
_NEVER = (1 << 31) - 1


class Meetings:
    """The times, by one set of clocks, of all lanes of a machine."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self._m, self._clocks = m, clocks
        # When the lanes of warps met, [blocks, warps].
        self.met = np.zeros(clocks.known.shape[:2], np.int32)
        # Of each lane its first read, and its first write, since it told last, and the same of the
        # time before, [kinds, lanes].
        self._begun = np.full((2, m.n_lanes), _NEVER, np.int32)
        self._begun_before = np.full((2, m.n_lanes), _NEVER, np.int32)
        self._told = np.zeros((2, m.n_lanes), np.int32)
        self._last_told = 0
        # Up to when it has learnt of its own warp through what that has told.
        self.heard = np.zeros(m.n_lanes, np.int32)

    def access(self, lanes: Lanes, *, writes: bool) -> None:
        """Note that lanes access memory now."""
        kind = self._begun[int(writes)]
        begun = kind[lanes.sel]
        if lanes.contiguous:
            np.minimum(begun, self._clocks.now, out=begun)
        else:
            kind[lanes.sel] = np.minimum(begun, self._clocks.now)

    def tell(self, lanes: Lanes) -> None:
        """Note that lanes signal what they have done: a moment of its own."""
        sel = lanes.sel
        begun = self._begun[:, sel]
        new = begun < _NEVER
        if new.any():
            now = self._last_told = self._clocks.tick()
            self._begun_before[:, sel] = np.where(new, begun, self._begun_before[:, sel])
            self._told[:, sel] = np.where(new, now, self._told[:, sel])
            self._begun[:, sel] = _NEVER

    def meet(self, lanes: Lanes) -> None:
        """Note that the lanes of warps have come together: their accesses are ordered."""
        self.tell(lanes)
        self.met[self._clocks.warps(lanes)] = self._clocks.now
        self._clocks.knowing.meet(lanes)

    def meet_whole(self, lanes: Lanes) -> None:
        """Note the same for those warps all of whose lanes are there."""
        rows, warps = self._clocks.warps(lanes)
        counts = np.zeros(self.met.shape, np.int64)
        np.add.at(counts, (rows, warps), 1)
        whole = counts >= WARP_THREADS
        together = lanes.where(whole[rows, warps])
        self.tell(together)
        self.met[whole] = self._clocks.now
        self._clocks.knowing.meet(together)

    def hear(self, lanes: Lanes, times: Array) -> None:
        """Note up to when lanes have learnt of their own warps."""
        self.heard[lanes.sel] = np.maximum(self.heard[lanes.sel], times)

    def may_be_untold(self, time: int, floor: int, *, writes: bool) -> bool:
        """Say whether a lane has not told of what it read, or wrote, at a time or before.

        Or if it has, then after the time `floor`.
        """
        kind = int(writes)
        if self._begun[kind].min() <= time:
            return True
        if self._last_told <= floor:
            return False
        late = self._told[kind] > floor
        return bool((late & (self._begun_before[kind] <= time)).any())

    def untold(
        self, rows: Array, made: tuple[Array, Array, Array], known: Array | None = None,
        *, writes: bool,
    ) -> BoolArray:  # fmt: skip
        """Say which reads, or writes, of others their lanes have not told of, for blocks `rows`.

        They were `made` at times, by actors, by lanes of those (more than 31: by all). They have
        told of it too late if that is after the times `known` of the actors.
        """
        (times, actors, lanes), n_warps, kind = made, self._clocks.n_warps, int(writes)
        ranks, warps = np.divmod(actors, n_warps)
        blocks = rows // self._clocks.reach * self._clocks.reach + ranks
        one = (lanes < WARP_THREADS) & (actors < self._clocks.first_ended) & (times > 0)
        threads = warps * WARP_THREADS + lanes
        at = np.where(one & (threads < self._m.n_threads), threads * self._m.n_blocks + blocks, 0)
        bad: BoolArray = times >= self._begun[kind][at]
        if known is not None:
            bad |= (times >= self._begun_before[kind][at]) & (known < self._told[kind][at])
        return bad & one
