"""What lets warps know of each other: barriers, and words of memory with release and acquire.

A ledger belongs to one set of clocks.  Invariant: a warp learns through an object only what was
given to it before; relaxed accesses pass on what a fence of theirs released, and what they have
seen counts after the next fence.  A word remembers all that was ever given to it, which is lenient.
Source: PTX ISA 8.8 "Release and acquire patterns", 8.5 "Scope".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from astdsl.emulator.clocks import Channel, Clocks, Who
from astdsl.emulator.memory import WINDOW_SHIFT, WINDOWS
from astdsl.emulator.scalars import one_a_lane

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["Ledger", "Strength", "word_keys"]

# Above any address of global memory: words of shared memory, then the groups of narrow scopes.
_SHARED = np.uint64(1 << 47)
_ROW_SHIFT = np.uint64(24)
_GROUP_SHIFT = np.uint64(48)
_WINDOW = WINDOWS["shared"] >> WINDOW_SHIFT


class Strength(NamedTuple):
    """How an access orders others: does it acquire, does it release, and at which scope."""

    acquires: bool
    releases: bool
    scope: int


class Ledger:
    """The objects of all blocks through which the warps of one set of clocks learn."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        self.clocks = clocks
        self.block_barriers = Channel(clocks, m.n_blocks)
        self.mbarriers = Channel(clocks, m.n_blocks)
        self.cluster_barriers = Channel(clocks, m.n_blocks // m.launch.cluster_size)
        self._words = Channel(clocks, 1)
        self._columns: dict[int, int] = {}
        self._n_blocks, self._size = m.n_blocks, m.launch.cluster_size

    def give(self, who: Who, keys: Array, strength: Strength) -> None:
        """Note that warps write words (`word_keys`) which others may wait for."""
        for scope in range(strength.scope + 1):
            relaxed = None if strength.releases else scope
            if relaxed is None or self.clocks.has_released(scope):
                columns = self._column(self._grouped(keys, who[0], scope))
                self._words.give(who, columns * 0, columns, relaxed=relaxed)

    def take(self, lanes: Lanes, keys: Array, strength: Strength) -> None:
        """Note that lanes have read words which others wrote."""
        if not self._columns:
            return
        who = self.clocks.warps(lanes)
        for scope in range(strength.scope + 1):
            columns = self._column(self._grouped(keys, who[0], scope))
            relaxed = None if strength.acquires else scope
            self._words.take(who, columns * 0, columns, relaxed=relaxed, lanes=lanes)
            if relaxed is None:
                self.clocks.meetings.hear(lanes, self._words.heard(who, columns * 0, columns))

    def told(self) -> tuple[list[int], dict[str, Array]]:
        """Return the words of global memory that tell all blocks something, and what they tell."""
        reached = {key: column for key, column in self._columns.items() if key < int(_SHARED)}
        if not reached:
            return [], {}
        told = self._words.told(np.array([*reached.values()], np.int64))
        some = np.logical_or.reduce([each.any(axis=1) for each in told.values()])
        keys = [key for key, tells in zip(reached, some.tolist(), strict=True) if tells]
        return keys, {name: each[some] for name, each in told.items()}

    def remember(self, keys: list[int], told: dict[str, Array]) -> None:
        """Let words tell what they told of blocks that have ended; none is known here yet."""
        self._columns = {key: column for column, key in enumerate(keys)}
        if keys:
            self._words.remember(np.arange(len(keys)), told)

    def _grouped(self, keys: Array, rows: Array, scope: int) -> Array:
        """Return keys of words as a scope's group of threads sees them.

        Those of all blocks are the words' own.
        """
        if scope == 0:
            group = self._n_blocks + rows
        elif scope == 1:
            group = 2 * self._n_blocks + rows // self._size
        else:
            # Blocks that do not know of each other by these clocks use words of their own.
            group = rows // self.clocks.reach
        grouped: Array = keys | group.astype(np.uint64) << _GROUP_SHIFT
        return grouped

    def _column(self, keys: Array) -> Array:
        known = self._columns
        if len(keys) == 1:
            # Atomics that take turns ask for one word at a time.
            return np.array([known.setdefault(int(keys[0]), len(known))], np.int64)
        distinct, inverse = np.unique(keys, return_inverse=True)
        found = [known.setdefault(key, len(known)) for key in distinct.tolist()]
        return np.array(found, np.int64)[inverse]


def word_keys(m: Machine, lanes: Lanes, space: str, addresses: Array) -> Array:
    """Return a number for the word of memory at each lane's address, the same in every space."""
    addresses = one_a_lane(addresses, lanes.n)
    keys = addresses.astype(np.uint64)
    if space in ("", "generic"):
        shared = addresses >> WINDOW_SHIFT == _WINDOW
        if not shared.any():
            return keys
        if not shared.all():
            some = lanes.where(shared)
            keys[shared] = word_keys(m, some, "shared", addresses[shared])
            return keys
    elif space != "shared":
        return keys
    rows, offsets = m.memory.shared_place(m, lanes, addresses, 1)
    found: Array = _SHARED | rows.astype(np.uint64) << _ROW_SHIFT | offsets.astype(np.uint64)
    return found
