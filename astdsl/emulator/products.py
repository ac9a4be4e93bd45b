"""wgmma products: issued, in flight, performed on the accumulator registers of whole warpgroups.

Invariant: a product reads shared memory and changes its accumulator when it is performed, never
before; consecutive products of one group on one accumulator are performed as one longer product.
Source: PTX ISA 9.7.15.5 "Asynchronous wgmma.mma_async operation".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.clocks import by_group
from astdsl.emulator.formats.fragments import wgmma_a_fragment, wgmma_d_fragment
from astdsl.emulator.in_flight import Use
from astdsl.emulator.issues import Issue
from astdsl.emulator.lanes import NONE, WARP_THREADS
from astdsl.emulator.matrix import ELEMENT_BYTES, accumulate, multiply, widen
from astdsl.emulator.native.copies import add_fragment, register_addresses, widen_pairs
from astdsl.emulator.scalars import all_of, any_of
from astdsl.emulator.short_sums import FP8, add_products
from astdsl.emulator.tiles import SharedTile, read_tiles
from astdsl.emulator.undefined import mark

if TYPE_CHECKING:
    from astdsl.emulator.convergence import Warpgroup
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.registers import Place
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["M_ROWS", "Product", "ProductKind", "Step"]

M_ROWS = 64
_A_DEPTH_F16 = 16
_ACCUMULATORS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "s32": np.dtype(np.int32),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProductKind:
    """What one wgmma instruction computes: m64nNkK with these types."""

    n: int
    k: int
    d_type: str
    a_type: str
    b_type: str
    sign: int = 1
    saturate: bool = False

    @property
    def d_parts(self) -> int:
        """Return how many elements of D a register holds."""
        return 2 if self.d_type == "f16" else 1


@dataclass(slots=True, eq=False)
class Step:
    """The operands of one instruction; A is a tile, or what `a_from_registers` returns."""

    a: SharedTile | Array
    b: SharedTile


@dataclass(slots=True, eq=False)
class Product:
    """A product in flight for one warpgroup of some blocks; `keeps` says which add to D."""

    m: Machine
    group: Warpgroup
    kind: ProductKind
    d_places: tuple[Place, ...]
    a_places: tuple[Place, ...]
    keeps: BoolArray
    steps: list[Step] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    operation: Operation = field(init=False)
    # Which warps have waited for it, block by block.
    awaited: BoolArray = field(init=False)
    d_set: frozenset[Place] = field(init=False)
    a_set: frozenset[Place] = field(init=False)

    def __post_init__(self) -> None:
        m = self.m
        self.d_set, self.a_set = frozenset(self.d_places), frozenset(self.a_places)
        what = f"wgmma m64n{self.kind.n}k{self.kind.k}"
        issue = Issue(what, m.place_text(m.pc), m.warp_of(self.group.lanes))
        order, rows = ("wgmma", self.group.number), self.group.rows
        self.awaited = np.zeros(self.group.lanes.n // WARP_THREADS, np.bool_)
        self.operation = Operation(self._perform, issue, order, blocks=rows)

    @property
    def done(self) -> bool:
        """Return whether the accumulator holds the result."""
        return self.operation.done

    @property
    def is_over(self) -> bool:
        """Return whether all warps have waited for it."""
        return all_of(self.awaited)

    def add(self, step: Step, places: frozenset[Place]) -> None:
        """Add a step: guard what it reads in shared memory, put its registers in flight."""
        m, rows, lanes = self.m, self.group.rows, self.group.lanes
        if m.guard is not None:
            for tile in (step.a, step.b):
                if isinstance(tile, SharedTile):
                    m.guard.begin_read(self.operation, lanes, tile.index(m, rows))
        self.steps.append(step)
        if any(use.places is places for use in self.uses):
            return
        fresh = places.difference(*(use.places for use in self.uses)) if self.uses else places
        if fresh:
            use = Use(fresh, lanes, self.operation.what, m.pc, "wgmma.wait_group")
            self.uses.append(m.in_flight.begin(use))

    def _perform(self) -> None:
        m, kind = self.m, self.kind
        a, b = self._a_values(), self._b_values()
        if m.launch.fp8_accumulate == "hardware" and kind.a_type in FP8:
            self._write(self._short_sum(kind.sign * a, b))
        else:
            product = multiply(a, b)
            self._add_to_registers(-product if kind.sign < 0 else product)

    def wait(self, mine: BoolArray) -> None:
        """Let some of the warps, block by block, wait for the product.

        They finish it together, but the registers are each warp's own.
        """
        m, new = self.m, mine & ~self.awaited
        if not any_of(new):
            return
        m.asynchronous.complete(self.operation)
        if m.guard is not None and not any_of(self.awaited):
            m.guard.end(self.operation, by_group(self.group.number))
        self.awaited |= new
        waiting = ~self.awaited.reshape(len(self.group.rows), -1)
        m.asynchronous.keep(self.operation, self.group.rows[waiting.any(axis=1)])
        lanes = self._lanes(waiting)
        for use in self.uses:
            m.in_flight.leave(use, lanes)

    def _lanes(self, warps: BoolArray) -> Lanes:
        """Return the lanes of some of the warps, [blocks, warps]."""
        if not any_of(warps):
            return NONE
        by_thread = np.repeat(warps.T, WARP_THREADS, axis=0).reshape(-1)
        return self.group.lanes.where(by_thread)

    def _a_values(self) -> Array:
        tiles = [step.a for step in self.steps if isinstance(step.a, SharedTile)]
        if tiles:
            return read_tiles(self.m, self.group.rows, tiles, self.kind.a_type)
        raw = [step.a for step in self.steps if isinstance(step.a, np.ndarray)]
        return a_of_registers(raw, len(self.group.rows), self.kind.a_type)

    def _b_values(self) -> Array:
        return read_tiles(
            self.m, self.group.rows, [step.b for step in self.steps], self.kind.b_type
        )

    def _short_sum(self, a: Array, b: Array) -> Array:
        """Return the accumulator's registers after Hopper's sum of FP8 products."""
        kind, n_rows = self.kind, len(self.group.rows)
        dtype, positions = _ACCUMULATORS[kind.d_type], _d_positions(kind.n, kind.d_parts)
        tile = np.zeros((M_ROWS * kind.n, n_rows), np.float32)
        old = self._old()
        if old is not None:
            # [registers, threads, blocks, parts] to the order of `positions`.
            spread = old.reshape(*positions.shape[:2], n_rows, kind.d_parts)
            tile[positions] = spread.transpose(0, 1, 3, 2)
        tiles = np.ascontiguousarray(tile.T).reshape(n_rows, M_ROWS, kind.n)
        total = add_products(tiles, a, b, (kind.a_type, kind.b_type))
        return accumulate(None, self._fragment(total), dtype, saturate=False)

    def _add_to_registers(self, product: Array) -> None:
        """Add [blocks, 64, n] to the accumulator's registers, laid out as fragments."""
        kind = self.kind
        if kind.d_type == "f32" and (all_of(self.keeps) or not any_of(self.keeps)):
            registers = register_addresses(self.m, self.group.lanes, self.d_places)
            positions = _d_positions(kind.n, 1)[:, :, 0]
            if add_fragment(product, positions, registers, adds=any_of(self.keeps)):
                self._mark_defined()
                return
        fragment, dtype = self._fragment(product), _ACCUMULATORS[kind.d_type]
        self._write(accumulate(self._old(), fragment, dtype, kind.saturate))

    def _fragment(self, tile: Array) -> Array:
        """Return a tile [blocks, 64, n] as registers hold it: [registers, lanes, parts]."""
        parts = self.kind.d_parts
        flat = np.ascontiguousarray(tile.reshape(len(self.group.rows), -1).T)
        fragment = flat[_d_positions(self.kind.n, parts)]  # [registers, threads, parts, blocks]
        return fragment.transpose(0, 1, 3, 2).reshape(len(self.d_places), -1, parts)

    def _old(self) -> Array | None:
        """Return what the accumulator holds, [registers, lanes, parts]; None where it starts."""
        if not any_of(self.keeps):
            return None
        raw = np.ascontiguousarray(self.m.views[32, "b32"][self._where()])
        old = raw.view(_ACCUMULATORS[self.kind.d_type])
        old = old.reshape(*raw.shape, self.kind.d_parts)
        if not all_of(self.keeps):
            threads = old.shape[1] // len(self.group.rows)
            old = np.where(np.tile(self.keeps, threads)[:, None], old, 0)
        return old

    def _write(self, values: Array) -> None:
        m = self.m
        raw = np.ascontiguousarray(values).reshape(len(self.d_places), -1)
        m.views[32, "b32"][self._where()] = raw.view(np.uint32)
        self._mark_defined()

    def _mark_defined(self) -> None:
        if self.m.undefined:
            for place in self.d_places:
                mark(self.m, place, self.group.lanes, None)

    def _where(self) -> tuple[Any, Any]:
        """Return the index of the accumulator's registers, of this warpgroup's lanes."""
        registers = register_rows(self.d_places)
        if not self.group.lanes.contiguous and not isinstance(registers, slice):
            return registers[:, None], self.group.lanes.index
        return registers, self.group.lanes.sel


def register_rows(places: tuple[Place, ...]) -> slice | Array:
    """Return the rows of a list of 32-bit registers: a slice if they are neighbours."""
    rows = [row for _, row in places]
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return np.array(rows, np.intp)


@lru_cache(maxsize=64)
def _d_positions(n: int, parts: int) -> Array:
    """Return, for each register, thread and part, the place of its element in a 64 x n tile."""
    fragment = wgmma_d_fragment(n, parts)
    positions: Array = np.ascontiguousarray(fragment.row * n + fragment.column, np.int64)
    return positions


@lru_cache(maxsize=8)
def _a_order(element_bits: int) -> Array:
    """Return, for each register of A's tile in order, its place in [register, thread].

    A register holds neighbours of a row of the tile.
    """
    fragment = wgmma_a_fragment(element_bits)
    depth = 8 * 32 // element_bits
    return np.argsort((fragment.row * depth + fragment.column)[:, :, 0].reshape(-1))


def a_from_registers(m: Machine, group: Warpgroup, places: tuple[Place, ...]) -> Array:
    """Return what the four registers of A hold: bits [register and thread, blocks]."""
    rows, bank = register_rows(places), m.views[32, "b32"]
    raw = bank[rows, group.lanes.sel] if group.lanes.contiguous else bank[rows][:, group.lanes.sel]
    return np.array(raw).reshape(-1, len(group.rows))


def a_of_registers(steps: list[Array], n_blocks: int, name: str) -> Array:
    """Return the values of A, [blocks, 64, k], from the registers of some steps of K."""
    if name == "f16":
        depth = _A_DEPTH_F16 * len(steps)
        tiles = np.empty((n_blocks, M_ROWS, depth), np.float32)
        positions = _a_positions(depth)
        done = [
            widen_pairs(raw, positions, tiles, number * _A_DEPTH_F16)
            for number, raw in enumerate(steps)
        ]
        if all(done):
            return tiles
    return np.concatenate([_a_of_step(raw, n_blocks, name) for raw in steps], axis=2)


def _a_of_step(raw: Array, n_blocks: int, name: str) -> Array:
    by_thread = raw[_a_order(32 // _parts(name))]
    by_block = np.ascontiguousarray(by_thread.T).reshape(n_blocks, M_ROWS, -1)
    return widen(by_block.view(np.uint8), name)


@lru_cache(maxsize=32)
def _a_positions(depth: int) -> Array:
    """Return, for each register and thread, the place of its first element in 64 x depth."""
    fragment = wgmma_a_fragment(16)
    first: Array = (fragment.row * depth + fragment.column)[:, :, 0].reshape(-1)
    return first.astype(np.int64)


def _parts(name: str) -> int:
    """Return how many elements of A a register holds."""
    return 4 // ELEMENT_BYTES[name]
