"""The last accesses of global memory, where blocks meet there, and which of them race.

Looked for in programs that have atomics, or loads that wait for other blocks: every access is
stamped by 4-byte word with its warp. Invariant: an access is reported only if no chain of barriers,
of releases and acquires at one word, and of fences leads from the other to it; strong accesses do
not race with each other (PTX ISA 8.7), nor stores of what is there already. Copies of the async
proxy are not looked at, nor blocks that do not run at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.clocks import Clocks

if TYPE_CHECKING:
    from astdsl.emulator.global_memory import Allocation
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["GlobalRaces"]

WORD_BYTES = 4
# More warps at a time than this are not looked at: each must know of each other.
MOST_ACTORS = 2048
# What one word's stamps take, for all allocations together.
BUDGET_BYTES = 1 << 28


class _Stamps:
    """The last write and the last read of each word of an allocation: when, and by whom."""

    def __init__(self, n_words: int) -> None:
        self.times = np.zeros((2, n_words), np.int32)
        self.actors = np.zeros((2, n_words), np.uint16)
        self.newest = [0, 0]


_WRITES, _READS = 0, 1


class GlobalRaces:
    """Stamps of the accesses of a machine's global memory."""

    def __init__(self, m: Machine) -> None:
        self.clocks = Clocks(m, reach=m.n_blocks)
        self._stamps: dict[tuple[int, bool], _Stamps] = {}
        self._bytes = 0

    @classmethod
    def of(cls, m: Machine) -> GlobalRaces | None:
        """Return what looks for races in global memory, None where a program does not need it."""
        warps = m.n_blocks * -(-m.n_threads // 32)
        return cls(m) if m.program.meets_other_blocks and warps < MOST_ACTORS else None

    def read(
        self, m: Machine, lanes: Lanes, allocation: Allocation, addresses: Array, width: int
    ) -> None:
        """Check and note a read of `width` bytes at each address."""
        strong = m.guard is not None and m.guard.strong
        words = _words(allocation, addresses, width)
        for stamps in self._others(allocation, strong):
            self._check(m, lanes, allocation, (stamps, _WRITES), words)
        self._note(lanes, allocation, words, _READS, strong=strong)

    def write(
        self, m: Machine, lanes: Lanes, allocation: Allocation, addresses: Array, values: Array
    ) -> None:
        """Check and note a write of each lane's row of values."""
        width = values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)
        strong = m.guard is not None and m.guard.strong
        words = _words(allocation, addresses, width)
        if width >= WORD_BYTES:
            changes = _changes(allocation, addresses, values, width)
            for stamps in self._others(allocation, strong):
                self._check(m, lanes, allocation, (stamps, _READS), words, changes)
                self._check(m, lanes, allocation, (stamps, _WRITES), words, changes)
        self._note(lanes, allocation, words, _WRITES, strong=strong, whole=width >= WORD_BYTES)

    def _of(self, allocation: Allocation, strong: bool) -> _Stamps | None:
        found = self._stamps.get((allocation.low, strong))
        if found is None:
            n_words = -(-allocation.data.size // WORD_BYTES) + 1
            self._bytes += 12 * n_words
            if self._bytes > BUDGET_BYTES:
                return None
            found = self._stamps[allocation.low, strong] = _Stamps(n_words)
        return found

    def _others(self, allocation: Allocation, strong: bool) -> list[_Stamps]:
        kinds = (False,) if strong else (False, True)
        found = (self._stamps.get((allocation.low, kind)) for kind in kinds)
        return [stamps for stamps in found if stamps is not None]

    def _check(
        self, m: Machine, lanes: Lanes, allocation: Allocation, past: tuple[_Stamps, int],
        words: Array, only: BoolArray | None = None,
    ) -> None:  # fmt: skip
        stamps, kind = past
        rows, warps = self.clocks.warps(lanes)
        known = self.clocks.known
        if stamps.newest[kind] <= self.clocks.floor(lanes)[0]:
            return
        times, actors = stamps.times[kind][words], stamps.actors[kind][words]
        bad = times > known[rows[:, None], warps[:, None], actors]
        if only is not None:
            bad &= only[:, None]
        if bad.any():
            at, word = np.unravel_index(int(np.argmax(bad)), bad.shape)
            block, warp = divmod(int(actors[at, word]), self.clocks.n_warps)
            address = allocation.low // WORD_BYTES * WORD_BYTES + WORD_BYTES * int(words[at, word])
            raise m.fault(
                "E232",
                f"global memory at {address:#x} in {allocation.name}: warp {warp} of block "
                f"{m.block_index(block)} {'writes' if kind == _WRITES else 'reads'} it "
                f"({self.clocks.place_text(int(times[at, word]))}), and nothing orders that before "
                "this access",
                int(lanes.index[at]),
                help="put a barrier between them, or release and acquire at one word: st.release "
                "and ld.acquire, or an atomic with a fence before it and one after it",
            )

    def _note(
        self, lanes: Lanes, allocation: Allocation, words: Array, kind: int, *, strong: bool,
        whole: bool = True,
    ) -> None:  # fmt: skip
        stamps = self._of(allocation, strong)
        if stamps is None:
            return
        stamps.newest[kind] = now = self.clocks.tick()
        rows, warps = self.clocks.warps(lanes)
        # Neighbours in a word may belong to different warps: its last writer is then not known.
        stamps.times[kind][words] = now if whole else 0
        stamps.actors[kind][words] = self.clocks.actors(rows, warps)[:, None]


def _words(allocation: Allocation, addresses: Array, width: int) -> Array:
    first = addresses // WORD_BYTES - allocation.low // WORD_BYTES
    found: Array = first[:, None] + np.arange(max(width // WORD_BYTES, 1))
    return found


def _changes(allocation: Allocation, addresses: Array, values: Array, width: int) -> BoolArray:
    """Say which lanes store something else than is there."""
    start, view = allocation.view(width)
    old = view[(addresses - start) // width]
    before = np.ascontiguousarray(old).view(np.uint8).reshape(len(addresses), width)
    after = np.ascontiguousarray(values).view(np.uint8).reshape(len(addresses), width)
    differs: BoolArray = (before != after).any(axis=1)
    return differs
