"""How a tile gets from one register layout to another.

Invariant: a `Moves` plan says, for each register of the target, which register of the same thread
holds that element in the source; where no such plan exists the tile goes through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from astdsl.lowering.layout.registers import Layout

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moves:
    """For each target register, the source register of the same thread, None for padding."""

    sources: tuple[int | None, ...]

    def applied(self, registers: Sequence[T], padding: T) -> tuple[T, ...]:
        """Return the target's registers."""
        return tuple(padding if s is None else registers[s] for s in self.sources)


@lru_cache(maxsize=1024)
def register_moves(source: Layout, target: Layout) -> Moves | None:
    """Return the plan that stays within each thread, None if there is none.

    Layouts of different shapes hold the same elements in row-major order (`ops.Reshape`).
    """
    return _planned(source, element_numbers(target), target)


@lru_cache(maxsize=1024)
def slice_moves(
    source: Layout, target: Layout, starts: tuple[int, ...], steps: tuple[int, ...]
) -> Moves | None:
    """Return the plan for a target whose element i is the source's `start + i * step`."""
    places = _coordinates(target)
    alive = np.asarray((places < np.array(target.shape)).all(axis=2))
    moved = places * np.array(steps, np.int64) + np.array(starts, np.int64)
    return _planned(source, _numbered(moved, source.shape, alive), target)


@lru_cache(maxsize=1024)
def part_moves(part: Layout, target: Layout, starts: tuple[int, ...]) -> Moves | None:
    """Return the plan that brings a part to its place in a target, which begins at `starts`.

    Registers with no element of the part in any thread have no source.
    """
    places = _coordinates(target) - np.array(starts, np.int64)
    alive = np.asarray(((places >= 0) & (places < np.array(part.shape))).all(axis=2))
    return _planned(part, _numbered(places, part.shape, alive), target)


def element_numbers(layout: Layout) -> NDArray[np.int64]:
    """Return the row-major number of each (thread, register)'s element, -1 for padding."""
    places = _coordinates(layout)
    alive = np.asarray((places < np.array(layout.shape)).all(axis=2))
    return _numbered(places, layout.shape, alive)


def _planned(source: Layout, wanted: NDArray[np.int64], target: Layout) -> Moves | None:
    assert source.thread_count == target.thread_count, "conversion keeps the threads"
    held = element_numbers(source)
    sources: list[int | None] = []
    for column in wanted.T:
        alive = column >= 0
        if not alive.any():
            sources.append(None)
            continue
        registers = np.flatnonzero((held[alive] == column[alive, None]).all(axis=0))
        if not registers.size:
            return None
        sources.append(int(registers[0]))
    return Moves(tuple(sources))


def _coordinates(layout: Layout) -> NDArray[np.int64]:
    offsets = np.array(layout.offsets, np.int64).reshape(layout.register_count, -1)
    return layout.bases[:, None, :] + offsets[None, :, :]


def _numbered(
    places: NDArray[np.int64], shape: tuple[int, ...], alive: NDArray[np.bool_]
) -> NDArray[np.int64]:
    strides = np.append(np.cumprod(shape[:0:-1], dtype=np.int64)[::-1], 1)[: len(shape)]
    return np.where(alive, (places * strides).sum(axis=2), -1)
