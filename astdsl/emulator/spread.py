"""Which blocks of a cluster an instruction reaches: one, those of a mask, or a pair.

Invariant: `at[k]` is the lane (by its place among the instruction's) that reaches block `rows[k]`;
None when each reaches its own.
Sources: PTX ISA 9.7.9.25 (`.multicast::cluster`, `.cta_group`), 9.7.16.5 "Peer CTAs".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from astdsl.emulator.lanes import Lanes

if TYPE_CHECKING:
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Getter
    from astdsl.emulator.scalars import Array

__all__ = ["Spread", "cluster_start", "own", "pairs", "spread_by_mask"]


class Spread(NamedTuple):
    """Lanes of an instruction, repeated for each block that each reaches."""

    lanes: Lanes
    at: Any
    rows: Array

    def of(self, values: Array) -> Array:
        """Return per-lane values for each block that is reached."""
        chosen: Array = values if self.at is None else values[self.at]
        return chosen


def own(m: Machine, lanes: Lanes) -> Spread:
    """Reach the lanes' own blocks."""
    return Spread(lanes, None, m.block_of[lanes.sel])


def cluster_start(m: Machine, rows: Array) -> Array:
    """Return the first block of the cluster of each block."""
    first: Array = rows - rows % m.launch.cluster_size
    return first


def spread_by_mask(m: Machine, lanes: Lanes, mask: Getter) -> Spread:
    """Reach the blocks whose ranks are the bits set in each lane's mask."""
    size = m.launch.cluster_size
    masks = np.broadcast_to(mask(m, lanes), lanes.n).astype(np.int64)
    wrong = (masks == 0) | (masks >> size != 0)
    if wrong.any():
        first = int(np.argmax(wrong))
        text = f"the mask {int(masks[first]):#b} names no block, or one outside of the cluster"
        raise m.fault(
            "E257",
            f"{text} of {size}",
            int(lanes.index[first]),
            help="set bit r for the block of rank r",
        )
    at, rank = np.nonzero((masks[:, None] >> np.arange(size)) & 1)
    rows = cluster_start(m, m.block_of[lanes.sel])[at] + rank
    spread = Spread(Lanes.listed(lanes.index[at]), at, rows)
    if m.guard is not None:
        m.guard.require_started(spread.lanes, rows)
    return spread


def pairs(m: Machine, lanes: Lanes) -> Spread:
    """Reach both blocks of the pair of each lane's block: the even one, then the odd one."""
    if m.launch.cluster_size % 2:
        raise m.fault(
            "E278",
            f".cta_group::2 in a cluster of {m.launch.cluster_size} blocks, which has no pairs",
            int(lanes.index[0]),
            help="launch with clusters of an even number of blocks",
        )
    at = np.repeat(np.arange(lanes.n), 2)
    even = m.block_of[lanes.sel] & ~1
    rows = np.stack([even, even + 1], axis=1).reshape(-1)
    return Spread(Lanes.listed(lanes.index[at]), at, rows)
