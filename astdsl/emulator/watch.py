"""Finds programs that run for ever: threads that go round while nothing changes.

Invariant: a report is certain. Between two looks with equal registers, program counters, memory
version and no operation pending, nothing has happened, so nothing ever will. A program that is only
slow changes a register or memory, and is left alone.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.faults import DeviceFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from astdsl.emulator.machine import Group, Machine

# Scheduling rounds between looks: a look reads all registers.
ROUNDS = 1 << 14
MAX_KEPT = 64


class Watch:
    """Looks at a machine now and then."""

    def __init__(self) -> None:
        self._rounds = 0
        self._seen: list[tuple[object, ...]] = []

    def tick(self, m: Machine, ready: Sequence[Group]) -> None:
        """Count a scheduling round; raise a fault if the machine has been in this state before."""
        self._rounds += 1
        if self._rounds % ROUNDS or not ready:
            return
        # Whoever polls memory waits, perhaps, for an operation that nobody has asked for yet.
        if m.asynchronous.complete_one():
            self._seen.clear()
            return
        state = self._state(m, ready)
        if state in self._seen:
            raise self._fault(m, ready[0])
        self._seen.append(state)
        del self._seen[:-MAX_KEPT]

    def _state(self, m: Machine, ready: Sequence[Group]) -> tuple[object, ...]:
        sums = []
        for bank in m.registers.banks.values():
            octets = bank.reshape(-1).view(np.uint8).data if bank.size else b""
            sums += [zlib.crc32(octets), zlib.adler32(octets)]
        places = tuple(sorted((group.pc, group.lanes.n) for group in ready))
        return (places, m.memory.version, m.wakes, *sums)

    def _fault(self, m: Machine, group: Group) -> DeviceFault:
        m.pc = group.pc
        text = (
            f"{group.lanes.n} threads go round for ever: no register, no memory and no barrier "
            f"has changed between two visits of this place"
        )
        return m.fault("E215", text, int(group.lanes.index[0]))
