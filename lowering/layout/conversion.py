"""How a tile gets from one register layout to another.

Invariant: a plan moves elements within each thread (`Moves`), or among the lanes of each warp by
shuffles (`Exchange`), in the same way in every warp; where there is no such plan, or it takes too
many shuffles, the tile goes through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from astdsl.ir.types import TileType
from astdsl.lowering.layout.registers import WARP_THREADS, Layout
from astdsl.source import Span

T = TypeVar("T")
# A shuffle costs about what a store and a load of shared memory do; what it saves is two barriers.
MOST_SHUFFLES = 8
# Registers of a thread up to which an exchange is looked for.
MOST_REGISTERS = 32


class Lanes(Protocol[T]):
    """Writes what the lanes of a warp do; tables have an entry for each lane."""

    def picked(self, choices: Sequence[T], numbers: Sequence[int]) -> T:
        """Return `choices[numbers[lane]]`."""

    def heard(self, value: T, lanes: Sequence[int]) -> T:
        """Return the value of lane `lanes[lane]`."""


@dataclass(frozen=True, slots=True)
class Moves:
    """For each target register, the source register of the same thread, None for padding."""

    sources: tuple[int | None, ...]

    def applied(self, registers: Sequence[T], padding: T, lanes: Lanes[T]) -> tuple[T, ...]:
        """Return the target's registers."""
        del lanes
        return tuple(padding if s is None else registers[s] for s in self.sources)

    def __str__(self) -> str:
        return "registers"


@dataclass(frozen=True, slots=True)
class Exchange:
    """For each target register and lane a number: of a source register, or behind those of a round.

    In each round a lane sends the source register `sends[lane]` and hears from lane `hears[lane]`.
    """

    sends: tuple[tuple[int, ...], ...]
    hears: tuple[tuple[int, ...], ...]
    sources: tuple[tuple[int, ...], ...]

    def applied(self, registers: Sequence[T], padding: T, lanes: Lanes[T]) -> tuple[T, ...]:
        """Return the target's registers."""
        del padding
        rounds = zip(self.sends, self.hears, strict=True)
        heard = [lanes.heard(lanes.picked(registers, sent), table) for sent, table in rounds]
        return tuple(lanes.picked([*registers, *heard], numbers) for numbers in self.sources)

    def __str__(self) -> str:
        return f"{len(self.sends)} shuffles"


Plan: TypeAlias = Moves | Exchange


@dataclass(frozen=True, slots=True)
class Conversion:
    """A tile that changes its layout: where, what it is, and by which way."""

    span: Span
    tile: TileType
    way: str

    def __str__(self) -> str:
        return f"{self.tile} at {self.span}: {self.way}"


@dataclass(frozen=True, slots=True)
class LayoutNote:
    """What a kernel asked to be told: where it asked, of what, and the layout."""

    span: Span
    what: str
    layout: str

    def __str__(self) -> str:
        return f"{self.what} at {self.span}: {self.layout}"


@lru_cache(maxsize=1024)
def register_moves(source: Layout, target: Layout) -> Plan | None:
    """Return the plan that stays within each thread, None if there is none.

    Layouts of different shapes hold the same elements in row-major order (`ops.Reshape`).
    """
    return _planned(source, element_numbers(target), target)


@lru_cache(maxsize=1024)
def slice_moves(
    source: Layout, target: Layout, starts: tuple[int, ...], steps: tuple[int, ...]
) -> Plan | None:
    """Return the plan for a target whose element i is the source's `start + i * step`."""
    places = _coordinates(target)
    alive = np.asarray((places < np.array(target.shape)).all(axis=2))
    moved = places * np.array(steps, np.int64) + np.array(starts, np.int64)
    return _planned(source, _numbered(moved, source.shape, alive), target)


@lru_cache(maxsize=1024)
def part_moves(part: Layout, target: Layout, starts: tuple[int, ...]) -> Plan | None:
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


def _planned(source: Layout, wanted: NDArray[np.int64], target: Layout) -> Plan | None:
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
            return _exchange(held, wanted)
        sources.append(int(registers[0]))
    return Moves(tuple(sources))


def _exchange(held: NDArray[np.int64], wanted: NDArray[np.int64]) -> Exchange | None:
    """Return a plan by shuffles that holds in every warp, None if there is none that is short."""
    if max(held.shape[1], wanted.shape[1]) > MOST_REGISTERS:
        return None
    # (warp, lane and register): what is held where, and wanted where.
    have, want = (x.reshape(-1, WARP_THREADS * x.shape[1]) for x in (held, wanted))
    if any(not np.isin(w[w >= 0], h).all() for h, w in zip(have, want, strict=True)):
        return None
    fits = np.ones((want.shape[1], have.shape[1]), bool)
    for h, w in zip(have, want, strict=True):
        fits &= (h[None, :] == w[:, None]) | (w[:, None] < 0)
    if not fits.any(axis=1).all():
        return None
    return _Rounds(fits, held.shape[1], wanted.shape[1]).plan()


class _Rounds:
    """Sorts what is wanted into rounds in which every lane sends one register."""

    def __init__(self, fits: NDArray[np.bool_], held: int, wanted: int) -> None:
        self._held = held
        # For each (lane, target register): the (lane, register) pairs that hold it.
        self._sources = [np.argwhere(row.reshape(WARP_THREADS, held)).tolist() for row in fits]
        self._numbers = [[0] * WARP_THREADS for _ in range(wanted)]
        self._pending: list[tuple[int, int]] = []
        for lane in range(WARP_THREADS):
            for target in range(wanted):
                own = [r for at, r in self._of(lane, target) if at == lane]
                if own:
                    self._numbers[target][lane] = own[0]
                else:
                    self._pending.append((lane, target))

    def _of(self, lane: int, target: int) -> list[list[int]]:
        return self._sources[lane * len(self._numbers) + target]

    def plan(self) -> Exchange | None:
        sends: list[tuple[int, ...]] = []
        hears: list[tuple[int, ...]] = []
        while self._pending:
            if len(sends) == MOST_SHUFFLES:
                return None
            sent, heard = self._round(self._held + len(sends))
            sends.append(sent)
            hears.append(heard)
        return Exchange(tuple(sends), tuple(hears), tuple(map(tuple, self._numbers)))

    def _round(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Serve each lane once, if one that holds what it wants sends that in this round."""
        sent: dict[int, int] = {}
        heard: dict[int, int] = {}
        left = []
        for lane, target in self._pending:
            free = (p for p in self._of(lane, target) if sent.get(p[0], p[1]) == p[1])
            found = None if lane in heard else next(free, None)
            if found is None:
                left.append((lane, target))
                continue
            heard[lane], sent[found[0]] = found[0], found[1]
            self._numbers[target][lane] = number
        self._pending = left
        every = range(WARP_THREADS)
        return tuple(sent.get(k, 0) for k in every), tuple(heard.get(k, k) for k in every)


def _coordinates(layout: Layout) -> NDArray[np.int64]:
    offsets = np.array(layout.offsets, np.int64).reshape(layout.register_count, -1)
    return layout.bases[:, None, :] + offsets[None, :, :]


def _numbered(
    places: NDArray[np.int64], shape: tuple[int, ...], alive: NDArray[np.bool_]
) -> NDArray[np.int64]:
    strides = np.append(np.cumprod(shape[:0:-1], dtype=np.int64)[::-1], 1)[: len(shape)]
    return np.where(alive, (places * strides).sum(axis=2), -1)
