"""What words of global memory tell of blocks that have ended before others began.

The blocks of a launch run in any order, so that only such words order them after blocks that came
earlier here.  Neighbours count as one where there are very many.  Invariant: what is known of one
block of a group is known of all; what is too much to keep counts as known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from astdsl.emulator.clocks import Clocks
    from astdsl.emulator.ledger import Ledger
    from astdsl.emulator.scalars import Array

__all__ = ["EndedBlocks"]

MOST_GROUPS = 512
BUDGET_BYTES = 1 << 26


class EndedBlocks:
    """The words that the blocks of earlier machines of a launch have left."""

    def __init__(self, n_blocks: int) -> None:
        self._blocks_each = -(-n_blocks // MOST_GROUPS)
        self._n_ended = 0
        self._keys: list[int] = []
        self._told: dict[str, Array] = {}
        # Up to when the ordinary writes of each group are covered by a fence of the async proxy,
        # and all of them released to the tensormap proxy.
        self.covered = self.released = np.zeros(0, np.int32)
        # Whether they all count as known.
        self.are_known = False

    @property
    def n_groups(self) -> int:
        """Return how many groups of blocks have ended of which some word tells."""
        return self._all_groups if self._keys else 0

    @property
    def _all_groups(self) -> int:
        return -(-self._n_ended // self._blocks_each)

    def groups(self, blocks: Array) -> Array:
        """Return the groups of blocks, by their numbers in the launch."""
        found: Array = blocks // self._blocks_each
        return found

    def begin(self, ledger: Ledger) -> None:
        """Let the next blocks find the words as those before have left them."""
        ledger.remember(self._keys, self._told)

    def end(self, ledger: Ledger, covered: Array, released: Array) -> None:
        """Keep what the words tell of the blocks that a ledger is of, all of which have ended.

        `covered` and `released` say by actor up to when writes have been shown to other proxies.
        """
        clocks, first = ledger.clocks, self._n_ended
        self._n_ended += clocks.reach
        keys, told = ledger.told()
        size_bytes = len(keys) * self._all_groups * len(told) * np.dtype(np.int32).itemsize
        self.are_known |= size_bytes > BUDGET_BYTES
        if self.are_known:
            keys, told = [], {}
        self._keys = keys
        self._told = {
            name: self._folded(each[:, : -clocks.n_async], clocks, first)
            for name, each in told.items()
        }
        self.covered = self._folded(covered, clocks, first)[0]
        self.released = self._folded(released, clocks, first)[0]

    def _folded(self, vectors: Array, clocks: Clocks, first_block: int) -> Array:
        """Return what [n, warps and groups] tell of groups of blocks that have ended.

        The warps are those of the blocks that ended last, from the number told.
        """
        warps, before = vectors[:, : clocks.first_ended], vectors[:, clocks.first_ended :]
        folded = np.zeros((len(vectors), self._all_groups), np.int32)
        folded[:, : before.shape[1]] = before
        blocks = warps.reshape(len(vectors), clocks.reach, clocks.n_warps).max(axis=2)
        groups = self.groups(np.arange(first_block, first_block + clocks.reach))
        present, starts = np.unique(groups, return_index=True)
        newest = np.maximum.reduceat(blocks, starts, axis=1)
        folded[:, present] = np.maximum(folded[:, present], newest)
        return folded
