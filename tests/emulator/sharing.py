"""Watches global memory: what several clusters, or copies, use and one of them writes.

Of those no order is looked for; atomics alone may meet there. Accesses by threads of one cluster
are left to the order of its launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from astdsl.emulator.copies import Transfer
from astdsl.emulator.global_memory import Allocation, GlobalMemory
from tests.emulator.causality import Findings, Order
from tests.emulator.knowledge import Array

# Instead of who reads or writes a byte.
MANY = -1
Hooks = list[tuple[Any, str, Callable[..., None]]]


@dataclass(eq=False)
class Globals:
    """Who reads and writes each byte of one allocation: a number, or `MANY`; 0 for nobody."""

    low: int
    readers: Array
    writers: Array
    strong: Array

    @classmethod
    def of(cls, low: int, high: int) -> Globals:
        """Return what is known of an allocation that nobody has used."""
        n = high - low
        return cls(low, np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_))

    def note(self, addresses: Array, width: int, who: Array, *, writes: bool, strong: bool) -> bool:
        """Note accesses; return whether one shares a byte with another one's write."""
        at = (addresses - self.low)[:, None] + np.arange(width)
        who = np.broadcast_to(who[:, None], at.shape)
        fresh = (self.readers[at] == 0) & (self.writers[at] == 0)
        self.strong[at] = strong & (self.strong[at] | fresh)
        mine = self.writers if writes else self.readers
        mine[at] = np.where((mine[at] == 0) | (mine[at] == who), who, MANY)
        # Of those that meet in one byte the last is there now.
        mine[at[mine[at] != who]] = MANY
        read, written = self.readers[at], self.writers[at]
        shared = (written == MANY) | ((read != 0) & (read != written))
        return bool(((written != 0) & shared & ~self.strong[at]).any())


class Sharing:
    """Finds bytes of global memory that more than one cluster, or copy, uses and one writes."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._known: list[tuple[GlobalMemory, Globals]] = []
        self._n_copies = 0

    def hooks(self) -> Hooks:
        """Return owners, names of their methods, and what is told before each call."""

        def load(
            memory: Any, m: Any, lanes: Any, at: Array, dtype: Any, count: int, **_: Any
        ) -> None:
            self._note_threads(m, lanes, at, dtype.itemsize * count, writes=False)

        def store(memory: Any, m: Any, lanes: Any, at: Array, values: Array) -> None:
            width = values.dtype.itemsize * (values.shape[1] if values.ndim > 1 else 1)
            self._note_threads(m, lanes, at, width, writes=True)

        def fetched(transfer: Transfer) -> None:
            self._note_copy(transfer, writes=False)

        def written(transfer: Transfer, values: Array) -> None:
            self._note_copy(transfer, writes=True)

        def combined(transfer: Transfer, *_: Any) -> None:
            self._note_copy(transfer, writes=True, strong=True)

        return [
            (GlobalMemory, "load", load),
            (GlobalMemory, "store", store),
            (Transfer, "load", fetched),
            (Transfer, "read_global", fetched),
            (Transfer, "write_global", written),
            (Transfer, "combine_global", combined),
        ]

    def _note_threads(self, m: Any, lanes: Any, at: Array, width: int, *, writes: bool) -> None:
        order: Order | None = getattr(m.guard, "order", None)
        allocation = m.memory.globals.find(int(at.min()))
        if order is None or allocation is None or int(at.max()) + width > allocation.high:
            self._findings.texts.append("an access that is not watched")
            return
        strong = m.guard.scope is not None
        clusters = order.m.block_of[lanes.index] // order.size + 1 + (order.serial << 32)
        self._note(m.memory.globals, allocation, at, width, clusters, writes=writes, strong=strong)
        kind = ("strongly " if strong else "") + ("written" if writes else "read")
        order.access_global(kind, allocation, lanes, at, width)

    def _note_copy(self, transfer: Transfer, *, writes: bool, strong: bool = False) -> None:
        """Note what a copy reads or writes, each as someone of its own."""
        at, inside = transfer.addresses, transfer.inside
        who = np.broadcast_to(MANY - 1 - self._n_copies - np.arange(len(at))[:, None], at.shape)
        self._n_copies += len(at)
        chosen = slice(None) if inside is None else inside
        at, who = at[chosen].reshape(-1), who[chosen].reshape(-1)
        if not at.size:
            return
        memory = transfer.m.memory.globals
        allocation = memory.find(int(at.min()))
        width = transfer.unit_bytes
        if allocation is None or int(at.max()) + width > allocation.high:
            self._findings.texts.append("a copy of several allocations at once")
            return
        self._note(memory, allocation, at, width, who, writes=writes, strong=strong)

    def _note(
        self, memory: GlobalMemory, allocation: Allocation, at: Array, width: int, who: Array,
        *, writes: bool, strong: bool,
    ) -> None:  # fmt: skip
        bytes_ = self._globals(memory, allocation)
        if bytes_.note(at, width, who, writes=writes, strong=strong):
            self._findings.texts.append(f"{allocation.name} is shared")

    def _globals(self, memory: GlobalMemory, allocation: Allocation) -> Globals:
        """Return what is known of an allocation in one launch."""
        for owner, known in self._known:
            if owner is memory and known.low == allocation.low:
                return known
        self._known.append((memory, Globals.of(allocation.low, allocation.high)))
        return self._known[-1][1]
