"""The sixteen barriers of every block (PTX ISA 9.7.13.1, `bar`/`barrier`).

Invariant: `generation[block, id]` counts completed phases; `arrived` < `expected` between phases.
"""

from __future__ import annotations

import numpy as np

from astdsl.emulator.scalars import Array, any_of

N_BARRIERS = 16


class BlockBarriers:
    """Arrivals at the named barriers of all blocks of a machine, counted in threads."""

    def __init__(self, n_blocks: int, n_threads: int) -> None:
        shape = (n_blocks, N_BARRIERS)
        self.arrived = np.zeros(shape, np.int64)
        self.expected = np.zeros(shape, np.int64)
        self.generation = np.zeros(shape, np.int64)
        self.whole = np.zeros(shape, np.bool_)
        self.live = np.full(n_blocks, n_threads, np.int64)
        self.total_live = n_blocks * n_threads
        self.true_votes = np.zeros(shape, np.int64)
        # Of those that have arrived, the threads that have ended or never were.
        self.absent = np.zeros(shape, np.int64)
        self.result_votes = np.zeros(shape, np.int64)
        self.result_arrived = np.zeros(shape, np.int64)

    def arrive(
        self, counts: Array, barrier: int, expected: int | None, votes: Array,
        absent: Array | None = None,
    ) -> int | None:  # fmt: skip
        """Count arrivals of each block at one barrier; `expected` None = every live thread.

        `votes` counts the true predicates of `.red`, `absent` the threads that count as arrived
        with their warps though they have ended. Returns a block that broke the rules (another
        count expected in this phase, or too many arrivals), else None.
        """
        blocks = np.flatnonzero(counts)
        wanted = self.live[blocks] if expected is None else np.full(len(blocks), expected)
        first = self.arrived[blocks, barrier] == 0
        agree = first | (self.expected[blocks, barrier] == wanted)
        self.expected[blocks, barrier] = wanted
        self.whole[blocks, barrier] = expected is None
        self.arrived[blocks, barrier] += counts[blocks]
        if absent is not None:
            self.arrived[blocks, barrier] += absent[blocks]
            self.absent[blocks, barrier] += absent[blocks]
        self.true_votes[blocks, barrier] += votes[blocks]
        wrong = ~agree | (self.arrived[blocks, barrier] > wanted)
        if any_of(wrong):
            return int(blocks[np.argmax(wrong)])
        self._complete(blocks, barrier)
        return None

    def leave(self, counts: Array) -> None:
        """Take ended threads out of the barriers that wait for every thread."""
        self.live -= counts
        self.total_live -= int(counts.sum())
        for barrier in np.flatnonzero(self.whole.any(axis=0)):
            blocks = np.flatnonzero(self.whole[:, barrier] & (self.arrived[:, barrier] > 0))
            self.expected[blocks, barrier] = self.live[blocks]
            self._complete(blocks, int(barrier))

    def _complete(self, blocks: Array, barrier: int) -> None:
        full = blocks[self.arrived[blocks, barrier] == self.expected[blocks, barrier]]
        self.generation[full, barrier] += 1
        self.result_votes[full, barrier] = self.true_votes[full, barrier]
        self.result_arrived[full, barrier] = (self.arrived - self.absent)[full, barrier]
        self.arrived[full, barrier] = self.absent[full, barrier] = 0
        self.true_votes[full, barrier] = 0
