"""tcgen05 products and copies in flight: performed on tensor memory of all blocks together.

Invariant: operations happen in issue order; consecutive products on one accumulator between two
commits are performed as one longer product.
Source: PTX ISA 9.7.16.10 "tcgen05.mma", 9.7.16.9 "tcgen05.cp", 9.7.16.10.5 "Data path layouts".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.formats.fragments import accumulator_lanes
from astdsl.emulator.formats.instruction import InstructionDescriptor
from astdsl.emulator.matrix import accumulate, multiply, widen
from astdsl.emulator.tensor_memory import COLUMN_MASK, GROUP_LANES, LANE_SHIFT, TensorMemory
from astdsl.emulator.tiles import SharedTile, read_tiles

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray
    from astdsl.emulator.tensor_memory import Cells

__all__ = ["ORDER", "TensorProduct", "TensorTile", "cells_of", "tensor_memory"]

ORDER = "tcgen05"
_ACCUMULATORS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "s32": np.dtype(np.int32),
}  # fmt: skip


def tensor_memory(m: Machine) -> TensorMemory:
    """Return the tensor memory of a machine's blocks."""
    return m.state(TensorMemory)


@dataclass(frozen=True, slots=True, eq=False)
class TensorTile:
    """An operand in tensor memory: lanes of its rows, and its columns."""

    lanes: Array
    columns: slice


def tile_at(address: int, rows: int, columns: int) -> TensorTile:
    """Return the cells of `rows` rows at an address; raises `FormatError` for a wrong lane."""
    first = address & COLUMN_MASK
    return TensorTile(
        accumulator_lanes(rows, address >> LANE_SHIFT), slice(first, first + columns)
    )


def cells_of(blocks: Array, tile: TensorTile) -> Cells:
    """Return the rectangle of tensor memory that a tile touches in each block."""
    return blocks, np.unique(tile.lanes // GROUP_LANES), tile.columns


@dataclass(slots=True, eq=False)
class TensorProduct:
    """Products in flight on one accumulator of some blocks; `keeps` says which add to it.

    `a_steps` holds tiles of shared or of tensor memory; `shift` divides D by 2^shift first.
    """

    m: Machine
    lanes: Lanes
    rows: Array
    descriptor: InstructionDescriptor
    d_address: int
    keeps: BoolArray
    shift: int = 0
    a_steps: list[SharedTile | TensorTile] = field(default_factory=list)
    b_steps: list[SharedTile] = field(default_factory=list)
    d_tile: TensorTile = field(init=False)
    operation: Operation = field(init=False)

    def __post_init__(self) -> None:
        m, d = self.m, self.descriptor
        what = f"tcgen05.mma m{d.m}n{d.n}"
        self.d_tile = tile_at(self.d_address, d.m, d.n)
        self.operation = Operation(self._perform, what, m.place_text(m.pc), ORDER, blocks=self.rows)

    @property
    def done(self) -> bool:
        """Return whether the accumulator holds the result."""
        return self.operation.done

    def begin(self) -> None:
        """Put the accumulator in flight."""
        memory, lane = tensor_memory(self.m), int(self.lanes.index[0])
        memory.require_allocated(self.rows, self.d_tile.columns, lane, "the accumulator")
        cells = cells_of(self.rows, self.d_tile)
        if self.keeps.any() and not memory.is_defined(cells):
            raise self.m.fault(
                "E231", "tcgen05.mma adds to an accumulator that nothing has written", lane,
                help="clear enable-input-d for the first product",
            )  # fmt: skip
        memory.begin(self.operation, cells, self.lanes, writes=True)

    def add(self, a: SharedTile | TensorTile, b: SharedTile) -> None:
        """Add a step of K: guard what it reads."""
        m, lane = self.m, int(self.lanes.index[0])
        for tile in (a, b):
            if isinstance(tile, SharedTile):
                if m.guard is not None:
                    m.guard.begin_read(self.operation, self.lanes, tile.index(m, self.rows))
            else:
                memory, cells = tensor_memory(m), cells_of(self.rows, tile)
                memory.require_allocated(self.rows, tile.columns, lane, "operand A")
                if not memory.is_defined(cells):
                    raise m.fault("E231", "tcgen05.mma reads A where nothing was written", lane)
                memory.begin(self.operation, cells, self.lanes, writes=False)
        self.a_steps.append(a)
        self.b_steps.append(b)

    def _perform(self) -> None:
        d, memory = self.descriptor, tensor_memory(self.m)
        product = multiply(self._a_values(), read_tiles(self.m, self.rows, self.b_steps, d.b_type))
        if d.negate_a != d.negate_b:
            product = -product
        dtype = _ACCUMULATORS[d.d_type]
        where = self._where()
        old: Array | None = None
        if self.keeps.any():
            old = self._old(memory.data[where], dtype)
        new = accumulate(old, product, dtype, d.saturate)
        # 16-bit results are not packed: one in the low half of each cell.
        memory.data[where] = new.view(f"u{dtype.itemsize}")
        memory.end(self.operation)
        if self.m.guard is not None:
            self.m.guard.end(self.operation)

    def _where(self) -> tuple[Any, Any, slice]:
        lanes, columns = self.d_tile.lanes, self.d_tile.columns
        whole_rows = len(self.rows) == self.m.n_blocks
        if whole_rows and len(lanes) == 128:
            return slice(None), slice(None), columns
        return self.rows[:, None], lanes[None, :], columns

    def _old(self, cells: Array, dtype: np.dtype[Any]) -> Array:
        narrow = cells.astype(np.uint16) if dtype.itemsize == 2 else cells
        old = narrow.view(dtype)
        if self.shift:
            old = old * dtype.type(2.0**-self.shift)
        if not self.keeps.all():
            old = np.where(self.keeps[:, None, None], old, dtype.type(0))
        return old

    def _a_values(self) -> Array:
        name = self.descriptor.a_type
        shared = [step for step in self.a_steps if isinstance(step, SharedTile)]
        if shared:
            return read_tiles(self.m, self.rows, shared, name)
        data = tensor_memory(self.m).data
        parts = [
            np.ascontiguousarray(data[self.rows[:, None], step.lanes[None, :], step.columns])
            for step in self.a_steps
            if isinstance(step, TensorTile)
        ]
        return np.concatenate([widen(part.view(np.uint8), name) for part in parts], axis=2)
