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
from astdsl.emulator.formats.fragments import wgmma_a_fragment, wgmma_d_fragment
from astdsl.emulator.in_flight import Use
from astdsl.emulator.matrix import ELEMENT_BYTES, accumulate, multiply, widen
from astdsl.emulator.tiles import SharedTile, read_tiles
from astdsl.emulator.undefined import mark

if TYPE_CHECKING:
    from astdsl.emulator.convergence import Warpgroup
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.registers import Place
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["M_ROWS", "Product", "ProductKind", "Step"]

M_ROWS = 64
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
    """The operands of one instruction; A is a tile, or values [blocks, 64, k] from registers."""

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

    def __post_init__(self) -> None:
        m = self.m
        what = f"wgmma m64n{self.kind.n}k{self.kind.k}"
        order, place = ("wgmma", self.group.number), m.place_text(m.pc)
        self.operation = Operation(self._perform, what, place, order, blocks=self.group.rows)

    @property
    def done(self) -> bool:
        """Return whether the accumulator holds the result."""
        return self.operation.done

    def add(self, step: Step, places: frozenset[Place]) -> None:
        """Add a step: guard what it reads in shared memory, put its registers in flight."""
        m, rows, lanes = self.m, self.group.rows, self.group.lanes
        if m.guard is not None:
            for tile in (step.a, step.b):
                if isinstance(tile, SharedTile):
                    m.guard.begin_read(self.operation, lanes, tile.index(m, rows))
        self.steps.append(step)
        fresh = places.difference(*(use.places for use in self.uses))
        if fresh:
            use = Use(fresh, lanes, self.operation.what, m.pc, "wgmma.wait_group")
            self.uses.append(m.in_flight.begin(use))

    def _perform(self) -> None:
        m, kind = self.m, self.kind
        a, b = self._a_values(), self._b_values()
        product = multiply(a, b)
        if kind.sign < 0:
            product = -product
        self._add_to_registers(product)
        if m.guard is not None:
            m.guard.end(self.operation)
        for use in self.uses:
            m.in_flight.end(use)

    def _a_values(self) -> Array:
        tiles = [step.a for step in self.steps if isinstance(step.a, SharedTile)]
        if tiles:
            return read_tiles(self.m, self.group.rows, tiles, self.kind.a_type)
        return np.concatenate([step.a for step in self.steps], axis=2)

    def _b_values(self) -> Array:
        return read_tiles(
            self.m, self.group.rows, [step.b for step in self.steps], self.kind.b_type
        )

    def _add_to_registers(self, product: Array) -> None:
        """Add [blocks, 64, n] to the accumulator's registers, laid out as fragments."""
        kind, m = self.kind, self.m
        dtype = _ACCUMULATORS[kind.d_type]
        n_rows = len(self.group.rows)
        flat = np.ascontiguousarray(product.reshape(n_rows, -1).T)
        fragment = flat[_d_positions(kind.n, kind.d_parts)]  # [registers, threads, parts, blocks]
        fragment = fragment.transpose(0, 1, 3, 2).reshape(len(self.d_places), -1, kind.d_parts)
        bank = m.views[32, "b32"]
        registers = register_rows(self.d_places)
        where: tuple[Any, Any] = registers, self.group.lanes.sel
        if not self.group.lanes.contiguous and not isinstance(registers, slice):
            where = registers[:, None], self.group.lanes.index
        old: Array | None = None
        if self.keeps.any():
            old = np.ascontiguousarray(bank[where]).view(dtype).reshape(fragment.shape)
            if not self.keeps.all():
                old = np.where(np.tile(self.keeps, old.shape[1] // n_rows)[:, None], old, 0)
        new = accumulate(old, fragment, dtype, kind.saturate)
        bank[where] = new.reshape(len(self.d_places), -1).view(np.uint32)
        if m.undefined:
            for place in self.d_places:
                mark(m, place, self.group.lanes, None)


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
    return fragment.row * n + fragment.column


@lru_cache(maxsize=8)
def _a_order(element_bits: int) -> Array:
    """Return, for each register of A's tile in order, its place in [register, thread].

    A register holds neighbours of a row of the tile.
    """
    fragment = wgmma_a_fragment(element_bits)
    depth = 8 * 32 // element_bits
    return np.argsort((fragment.row * depth + fragment.column)[:, :, 0].reshape(-1))


def a_from_registers(m: Machine, group: Warpgroup, places: tuple[Place, ...], name: str) -> Array:
    """Return the values of A, [blocks, 64, k], from its four registers."""
    rows, n_blocks = register_rows(places), len(group.rows)
    bank = m.views[32, "b32"]
    raw = bank[rows, group.lanes.sel] if group.lanes.contiguous else bank[rows][:, group.lanes.sel]
    by_thread = raw.reshape(-1, n_blocks)[_a_order(32 // _parts(name))]
    by_block = np.ascontiguousarray(by_thread.T).reshape(n_blocks, M_ROWS, -1)
    return widen(by_block.view(np.uint8), name)


def _parts(name: str) -> int:
    """Return how many elements of A a register holds."""
    return 4 // ELEMENT_BYTES[name]
