"""The clusters of a grid that have not been launched yet.

Invariant: every cluster of the grid is launched once or cancelled once (PTX ISA 9.7.13.17).
"""

from __future__ import annotations

from collections import deque

import numpy as np

from astdsl.emulator.limits import Triple
from astdsl.emulator.scalars import Array

__all__ = ["WaitingClusters"]


class WaitingClusters:
    """Numbers of clusters, in launch order; the first of them are launched, or cancelled, next."""

    def __init__(self, grid: Triple, cluster: Triple) -> None:
        self._cluster = cluster
        self._counts = tuple(n // width for n, width in zip(grid, cluster, strict=True))
        count = self._counts[0] * self._counts[1] * self._counts[2]
        self._left = deque(range(count))

    def __len__(self) -> int:
        return len(self._left)

    def launch(self, most: int) -> tuple[Array, Array, Array]:
        """Take up to `most` clusters; return the block indices by axis, cluster after cluster."""
        taken = [self._left.popleft() for _ in range(min(most, len(self._left)))]
        size = self._cluster[0] * self._cluster[1] * self._cluster[2]
        outer = np.repeat(np.array(taken, np.uint32), size)
        rank = np.tile(np.arange(size, dtype=np.uint32), len(taken))
        axes = []
        for blocks, width in zip(self._counts, self._cluster, strict=True):
            axes.append(outer % max(blocks, 1) * width + rank % width)
            outer, rank = outer // max(blocks, 1), rank // width
        return axes[0], axes[1], axes[2]

    def cancel(self) -> Triple | None:
        """Take the next cluster away; return the index of its first block, None without one."""
        if not self._left:
            return None
        x, y, z = (int(axis[0]) for axis in self.launch(1))
        return x, y, z
