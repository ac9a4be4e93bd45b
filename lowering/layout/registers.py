"""Register layouts: which thread of the block holds which elements of a tile, in which register.

A layout is a mixed-radix number system. The thread index and the register index are each written
in digits, fastest first; every digit adds `value * stride` to the coordinate along one axis, or
says that threads hold copies (`axis` is `REPLICATED`).

Invariant: every element of the tile has at least one holder. Coordinates at or past the tile's
extent are padding: registers exist for them, and mean nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

REPLICATED = -1
WARP_THREADS = 32
WARPGROUP_THREADS = 128
TMEM_LANES = 128
WIDEST_ACCESS_BYTES = 16
SQUARE_COLUMNS = 16


class Digit(NamedTuple):
    """`extent` values, each adding `stride` to the coordinate along `axis`."""

    extent: int
    axis: int
    stride: int

    def on(self, axis: int) -> Digit:
        """Return the same digit on another axis, or replicated."""
        return Digit(self.extent, axis, 0 if axis == REPLICATED else self.stride)


@dataclass(frozen=True)
class Layout:
    """The elements of a tile of `shape` over `threads` and `registers` digits, fastest first."""

    shape: tuple[int, ...]
    registers: tuple[Digit, ...]
    threads: tuple[Digit, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Made once: layouts are the keys of what is remembered of tiles.
        return hash((self.shape, self.registers, self.threads))

    @cached_property
    def register_count(self) -> int:
        """Registers of one thread, padding included."""
        return math.prod(d.extent for d in self.registers)

    @cached_property
    def thread_count(self) -> int:
        """Threads that the layout speaks of."""
        return math.prod(d.extent for d in self.threads)

    @cached_property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """For each register, the coordinates that it adds to those of its thread."""
        return tuple(map(tuple, _coordinates(self.registers, len(self.shape)).tolist()))

    @cached_property
    def bases(self) -> NDArray[np.int64]:
        """For each thread, the coordinates of its register 0: (threads, axes)."""
        return _coordinates(self.threads, len(self.shape))

    @cached_property
    def reach(self) -> tuple[int, ...]:
        """The largest coordinates that any thread adds to those of a register."""
        return tuple(int(n) for n in self.bases.max(axis=0))

    @cached_property
    def padded(self) -> tuple[int, ...]:
        """The extents that the digits cover, at least `shape`."""
        largest = self.bases.max(axis=0) + np.array(self.offsets).reshape(
            self.register_count, len(self.shape)
        ).max(axis=0)
        return tuple(int(n) + 1 for n in largest)

    @cached_property
    def is_exact(self) -> bool:
        """Whether no register holds padding."""
        return self.padded == self.shape

    @cached_property
    def owners(self) -> NDArray[np.bool_]:
        """For each thread, whether it is the first of those that hold the same elements."""
        flags = np.ones(1, bool)
        for digit in self.threads:
            first = np.arange(digit.extent) == 0
            keep = first if digit.axis == REPLICATED else np.ones(digit.extent, bool)
            flags = np.logical_and.outer(keep, flags).reshape(-1)
        return flags

    def permuted(self, permutation: Sequence[int]) -> Layout:
        """Return the layout of the transposed tile: its axis k is this one's `permutation[k]`."""
        place = {old: new for new, old in enumerate(permutation)} | {REPLICATED: REPLICATED}
        shape = tuple(self.shape[p] for p in permutation)
        return self._renamed(shape, place)

    def without(self, axes: Iterable[int]) -> Layout:
        """Return the layout of a tile without `axes`.

        Each element is held by every thread that holds some element of this tile with the same
        other coordinates.
        """
        dropped = set(axes)
        kept = [a for a in range(len(self.shape)) if a not in dropped]
        place = {old: new for new, old in enumerate(kept)} | {REPLICATED: REPLICATED}
        registers = tuple(d.on(place[d.axis]) for d in self.registers if d.axis not in dropped)
        threads = tuple(d.on(place.get(d.axis, REPLICATED)) for d in self.threads)
        shape = tuple(self.shape[a] for a in kept)
        return normalised(Layout(shape, registers, threads))

    def kept_registers(self, axes: Iterable[int]) -> tuple[int, ...]:
        """Return for each register the number of the one that holds it in `without(axes)`."""
        dropped, step = set(axes), 1
        numbers = [0]
        for digit in self.registers:
            kept = digit.axis not in dropped
            numbers = [n + d * step * kept for d in range(digit.extent) for n in numbers]
            step *= digit.extent if kept else 1
        return tuple(numbers)

    def expanded(self, axis: int) -> Layout:
        """Return the layout with a new axis of extent 1 before `axis`."""
        place = {a: a + (a >= axis) for a in range(len(self.shape))} | {REPLICATED: REPLICATED}
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        return self._renamed(shape, place)

    def narrowed(self, axes: Iterable[int]) -> Layout:
        """Return the layout of a tile whose `axes` have extent 1, held as `without` holds it."""
        result = self.without(axes)
        for axis in sorted(axes):
            result = result.expanded(axis)
        return result

    def doubled(self, axis: int) -> Layout:
        """Return the layout with two neighbours along an axis in the place of each element."""
        registers = (Digit(2, axis, 1), *(_stretched(d, axis) for d in self.registers))
        threads = tuple(_stretched(d, axis) for d in self.threads)
        shape = (*self.shape[:axis], self.shape[axis] * 2, *self.shape[axis + 1 :])
        return normalised(Layout(shape, registers, threads))

    def halved(self, axis: int) -> Layout | None:
        """Return the layout whose `doubled` this one is, None if a pair is not side by side."""
        first, *rest = self.registers or (None,)
        if first is None or (first.axis, first.stride) != (axis, 1) or first.extent % 2:
            return None
        others = (*rest, *self.threads)
        if self.shape[axis] % 2 or any(d.axis == axis and d.stride % 2 for d in others):
            return None
        shape = (*self.shape[:axis], self.shape[axis] // 2, *self.shape[axis + 1 :])
        registers = (Digit(first.extent // 2, axis, 1), *(_shrunk(d, axis) for d in rest))
        threads = tuple(_shrunk(d, axis) for d in self.threads)
        return normalised(Layout(shape, registers, threads))

    def _renamed(self, shape: tuple[int, ...], place: dict[int, int]) -> Layout:
        registers = tuple(d.on(place[d.axis]) for d in self.registers)
        threads = tuple(d.on(place[d.axis]) for d in self.threads)
        return normalised(Layout(shape, registers, threads))


def _stretched(digit: Digit, axis: int) -> Digit:
    return Digit(digit.extent, axis, digit.stride * 2) if digit.axis == axis else digit


def _shrunk(digit: Digit, axis: int) -> Digit:
    return Digit(digit.extent, axis, digit.stride // 2) if digit.axis == axis else digit


@lru_cache(maxsize=4096)
def normalised(layout: Layout) -> Layout:
    """Return the one spelling of equal layouts: no digits of extent 1, neighbours joined."""
    threads = _joined(d for d in layout.threads if d.extent > 1)
    registers = _joined(d for d in layout.registers if d.extent > 1)
    return Layout(layout.shape, registers, threads)


def _joined(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    result: list[Digit] = []
    for digit in digits:
        last = result[-1] if result else None
        if last and last.axis == digit.axis == REPLICATED:
            result[-1] = Digit(last.extent * digit.extent, REPLICATED, 0)
        elif last and last.axis == digit.axis and digit.stride == last.stride * last.extent:
            result[-1] = Digit(last.extent * digit.extent, digit.axis, last.stride)
        else:
            result.append(digit)
    return tuple(result)


def _coordinates(digits: tuple[Digit, ...], rank: int) -> NDArray[np.int64]:
    coordinates = np.zeros((1, rank), np.int64)
    for digit in digits:
        step = np.zeros((digit.extent, 1, rank), np.int64)
        if digit.axis != REPLICATED:
            step[:, 0, digit.axis] = np.arange(digit.extent) * digit.stride
        coordinates = (step + coordinates).reshape(digit.extent * len(coordinates), rank)
    return coordinates


def splat(shape: tuple[int, ...], threads: int) -> Layout:
    """Return the layout in which every thread holds every element."""
    registers = _row_major(shape)
    return normalised(Layout(shape, registers, (Digit(threads, REPLICATED, 0),)))


def _row_major(shape: tuple[int, ...]) -> tuple[Digit, ...]:
    return tuple(Digit(shape[a], a, 1) for a in reversed(range(len(shape))))


@lru_cache(maxsize=4096)
def blocked(
    shape: tuple[int, ...], threads: int, vector: int = 1, order: tuple[int, ...] = ()
) -> Layout:
    """Return the coalesced layout: neighbouring threads hold neighbouring vectors.

    `order` lists axes fastest first (default: last axis first); `vector` elements along the
    fastest axis are neighbouring registers of one thread. Threads left over hold copies.
    """
    if not shape:
        return splat(shape, threads)
    axes = order or tuple(reversed(range(len(shape))))
    thread_digits: list[Digit] = []
    repeats: list[Digit] = []
    left, fast = threads, axes[0]
    for axis in axes:
        width = vector if axis == fast else 1
        count = -(-shape[axis] // width)
        used = _threads_along(count, left)
        thread_digits.append(Digit(used, axis, width))
        repeats.append(Digit(-(-count // used), axis, width * used))
        left //= used
    digits = (*thread_digits, Digit(left, REPLICATED, 0))
    return normalised(Layout(shape, (Digit(vector, fast, 1), *repeats), digits))


@lru_cache(maxsize=4096)
def folded_in_warps(
    shape: tuple[int, ...],
    threads: int,
    vector: int,
    order: tuple[int, ...],
    folded: frozenset[int],
) -> Layout:
    """Return `blocked` but that warps are spread over other axes than those `folded` first.

    So a fold needs fewer of them, often one; the lanes of a warp are where they always are.
    """
    usual = blocked(shape, threads, vector, order)
    axes = order or tuple(reversed(range(len(shape))))
    widths = {axis: vector if axis == axes[0] else 1 for axis in axes}
    counts = {axis: -(-shape[axis] // widths[axis]) for axis in axes}
    digits: list[Digit] = []

    def spread(number: int, over: Iterable[int]) -> int:
        for axis in over:
            used = _threads_along(counts[axis], number)
            digits.append(Digit(used, axis, widths[axis]))
            counts[axis], widths[axis] = -(-counts[axis] // used), widths[axis] * used
            number //= used
        return number

    idle = spread(min(threads, WARP_THREADS), axes)
    idle *= spread(threads // min(threads, WARP_THREADS), sorted(axes, key=folded.__contains__))
    repeats = (Digit(counts[axis], axis, widths[axis]) for axis in axes)
    registers = (Digit(vector, axes[0], 1), *repeats)
    found = normalised(Layout(shape, registers, tuple(digits)))
    return usual if idle > 1 or found.register_count > usual.register_count else found


def _threads_along(count: int, left: int) -> int:
    """Return how many of the threads `left` go along `count` elements: a divisor of `left`."""
    wanted = min(left, _power_of_two_over(count))
    return wanted if left % wanted == 0 else left & -left


def _power_of_two_over(n: int) -> int:
    return 1 << max(0, (n - 1).bit_length())


@lru_cache(maxsize=256)
def square(shape: tuple[int, ...], threads: int) -> Layout:
    """Return the layout of a product by the threads: each holds about as many rows as columns.

    Neighbouring threads hold neighbouring columns, so a row of B is read without conflicts.
    """
    rows, columns = shape
    across = min(_power_of_two_over(columns), threads, SQUARE_COLUMNS)
    down = min(_power_of_two_over(rows), threads // across)
    digits = (
        Digit(across, 1, 1),
        Digit(down, 0, 1),
        Digit(threads // (across * down), REPLICATED, 0),
    )
    registers = (Digit(-(-columns // across), 1, across), Digit(-(-rows // down), 0, down))
    return normalised(Layout(shape, registers, digits))


@lru_cache(maxsize=256)
def wgmma_accumulator(shape: tuple[int, int], threads: int) -> Layout:
    """Return the layout of a wgmma accumulator (PTX ISA, 9.7.15.5.1.1, matrix D).

    Each warpgroup holds blocks of 64 rows, warpgroups one below the other; `shape` may be less
    than what the instructions cover.
    """
    groups = threads // WARPGROUP_THREADS
    rows, columns = shape
    blocks = -(-rows // (64 * groups))
    registers = (
        Digit(2, 1, 1),
        Digit(2, 0, 8),
        Digit(-(-columns // 8), 1, 8),
        Digit(blocks, 0, 64),
    )
    lanes = (Digit(4, 1, 2), Digit(8, 0, 1), Digit(4, 0, 16))
    return normalised(Layout(shape, registers, (*lanes, Digit(groups, 0, 64 * blocks))))


def is_half(shape: tuple[int, ...]) -> bool:
    """Whether an accumulator of tensor memory takes 16 lanes of each warp (PTX ISA, layout F).

    Its columns are whole accesses of 8 for each of up to four warpgroups.
    """
    return shape[0] <= TMEM_LANES // 2 and shape[1] % 32 == 0


def tmem_product(shape: tuple[int, int], threads: int) -> Layout:
    """Return the layout of an accumulator in tensor memory, of 64 or of whole 128 lanes."""
    if is_half(shape):
        return tmem_half(shape, 1, threads)
    return tmem_accumulator(shape, threads)


@lru_cache(maxsize=256)
def tmem_half(shape: tuple[int, int], per_cell: int, threads: int = WARPGROUP_THREADS) -> Layout:
    """Return the layout of 16x256b loads of 64 rows, 16 in the lanes of each warp.

    A cell of 32 bits holds `per_cell` neighbours along a row; with one it is the layout of a
    `wgmma` accumulator, but that warpgroups beyond the first take the next part of the columns
    (PTX ISA, 9.7.16.2.3 and 9.7.16.10.5, layout F).
    """
    groups = threads // WARPGROUP_THREADS
    columns = -(-shape[1] // (8 * per_cell * groups))
    registers = (
        Digit(per_cell, 1, 1),
        Digit(2, 1, per_cell),
        Digit(2, 0, 8),
        Digit(columns, 1, 8 * per_cell),
    )
    lanes = (Digit(4, 1, 2 * per_cell), Digit(8, 0, 1), Digit(4, 0, 16))
    share = Digit(groups, 1, 8 * per_cell * columns)
    return normalised(Layout(shape, registers, (*lanes, share)))


@lru_cache(maxsize=256)
def wgmma_operand(shape: tuple[int, int], threads: int, each: int) -> Layout:
    """Return the layout of A in registers (PTX ISA, 9.7.15.5.1.1, matrix A).

    `each` elements of a row stand in one register of 32 bits; of 16-bit elements it is the layout
    of an accumulator, so that a result becomes an operand without a move.
    """
    groups = threads // WARPGROUP_THREADS
    rows, depth = shape
    blocks = -(-rows // (64 * groups))
    registers = (
        Digit(each, 1, 1),
        Digit(2, 0, 8),
        Digit(-(-depth // (4 * each)), 1, 4 * each),
        Digit(blocks, 0, 64),
    )
    lanes = (Digit(4, 1, each), Digit(8, 0, 1), Digit(4, 0, 16))
    return normalised(Layout(shape, registers, (*lanes, Digit(groups, 0, 64 * blocks))))


@lru_cache(maxsize=256)
def tmem_accumulator(shape: tuple[int, int], threads: int) -> Layout:
    """Return the layout of 32x32b loads of an accumulator of 128 lanes: a thread holds rows.

    Rows beyond 128 stand in further columns; warpgroups beyond the first take the next part of
    the columns of each block of rows (PTX ISA, 9.7.16.2.3).
    """
    groups = threads // WARPGROUP_THREADS
    columns = -(-shape[1] // groups)
    blocks = -(-shape[0] // TMEM_LANES)
    lanes = (Digit(TMEM_LANES, 0, 1), Digit(groups, 1, columns))
    return normalised(Layout(shape, (Digit(columns, 1, 1), Digit(blocks, 0, TMEM_LANES)), lanes))
