"""Finds programs that run for ever: threads that go round while nothing changes.

Invariant: what a thread stores, an mbarrier's phase, a wait that ends (but for a barrier at which
threads meet) and an operation that happens are changes. Between two looks with none, with equal
registers and program counters, no operation pending, and every group having run, nothing has
happened, so nothing ever will: that is certain.
Where everybody has asked for something again and again, and `PATIENCE` rounds have changed nothing
but registers (a count of attempts, a clock), it is a matter of patience. A program that is only
slow is left alone.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.deadlock import Polls, going_round
from astdsl.emulator.mbarriers import mbarriers_of
from astdsl.emulator.scalars import all_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from astdsl.emulator.machine import Group, Machine

# Scheduling rounds between looks, of which each reads all registers if nothing has changed.
ROUNDS = 1 << 6
MOST_ROUNDS = 1 << 13
# Rounds after which threads that ask for something are taken to ask in vain.
PATIENCE = 1 << 14


class Watch:
    """Looks at a machine now and then."""

    def __init__(self) -> None:
        self._rounds = 0
        self._next = self._step = ROUNDS
        self._changes: tuple[int, ...] = ()
        self._since = 0
        self._seen: dict[tuple[object, ...], int] = {}

    def tick(self, m: Machine, ready: Sequence[Group], blocked: Sequence[Group]) -> None:
        """Count a scheduling round; raise a fault if nothing will change any more."""
        self._rounds += 1
        if self._rounds < self._next or not ready:
            return
        changes = m.memory.version, m.wakes, mbarriers_of(m).version, len(m.asynchronous.pending)
        if changes != self._changes:
            self._begin(m, changes)
            return
        self._step = min(2 * self._step, MOST_ROUNDS)
        self._next = self._rounds + self._step
        state = self._state(m, ready, blocked)
        passed = self._rounds - self._seen.setdefault(state, self._rounds)
        again = passed and all(group.waited < passed for group in ready)
        if not (self._in_vain(m, ready) or again):
            return
        # Whoever polls memory waits, perhaps, for an operation that nobody has asked for yet.
        if not m.asynchronous.complete_one():
            raise going_round(m, ready, blocked)
        self._begin(m, ())

    def _in_vain(self, m: Machine, ready: Sequence[Group]) -> bool:
        """Say whether everybody has been asking for long, in each window between two looks."""
        asked = m.state(Polls).asked
        if not all(all_of(asked[group.lanes.sel]) for group in ready):
            self._since = self._rounds
        asked[:] = False
        return self._rounds - self._since >= PATIENCE

    def _begin(self, m: Machine, changes: tuple[int, ...]) -> None:
        """Start anew: something has changed."""
        self._changes, self._since, self._step = changes, self._rounds, ROUNDS
        self._next = self._rounds + self._step
        self._seen.clear()
        m.state(Polls).begin()

    def _state(
        self, m: Machine, ready: Sequence[Group], blocked: Sequence[Group]
    ) -> tuple[object, ...]:
        sums = [zlib.crc32(m.barriers.arrived.tobytes())]
        for bank in m.registers.banks.values():
            octets = bank.reshape(-1).view(np.uint8).data if bank.size else b""
            sums += [zlib.crc32(octets), zlib.adler32(octets)]
        places = (tuple(sorted((g.pc, g.lanes.n) for g in groups)) for groups in (ready, blocked))
        return (*places, *sums)
