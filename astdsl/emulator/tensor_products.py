"""tcgen05 products and copies in flight: performed on tensor memory of all blocks together.

Invariant: operations happen in issue order; consecutive products on one accumulator between two
commits are performed as one longer product.
Source: PTX ISA 9.7.16.10 "tcgen05.mma", 9.7.16.9 "tcgen05.cp", 9.7.16.10.5 "Data path layouts".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.fragments import accumulator_lanes
from astdsl.emulator.formats.instruction import InstructionDescriptor
from astdsl.emulator.issues import Issue
from astdsl.emulator.matrix import accumulate, multiply, used_bytes, widen
from astdsl.emulator.native.copies import widen_rows
from astdsl.emulator.scalars import all_of, any_of
from astdsl.emulator.tensor_memory import COLUMN_MASK, GROUP_LANES, LANE_SHIFT, TensorMemory
from astdsl.emulator.tiles import SharedTile, read_tiles

if TYPE_CHECKING:
    from astdsl.emulator.faults import DeviceFault
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray
    from astdsl.emulator.tensor_memory import Cells

__all__ = [
    "ORDER", "OpenProduct", "ScaleTile", "Step", "TensorProduct", "TensorTile", "cells_of",
    "pair_tile_at", "tensor_memory", "tile_at",
]  # fmt: skip

ORDER = "tcgen05"
_ACCUMULATORS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "s32": np.dtype(np.int32),
}  # fmt: skip


def tensor_memory(m: Machine) -> TensorMemory:
    """Return the tensor memory of a machine's blocks."""
    return m.state(TensorMemory)


@dataclass(frozen=True, slots=True, eq=False)
class TensorTile:
    """An operand in tensor memory: lanes of its rows, their groups of 16, and its columns."""

    lanes: Array
    groups: Array
    columns: slice

    @classmethod
    def of(cls, lanes: Array, columns: slice) -> TensorTile:
        """Make the tile of some lanes and columns."""
        return cls(lanes, np.unique(lanes // GROUP_LANES), columns)


@dataclass(frozen=True, slots=True)
class ScaleTile:
    """The scales of one operand for one step: byte `first` on, `count` of them for each row.

    Row r has its scales in lane r % 32 of column `column + r / 32`, and the same in all four
    partitions of 32 lanes (PTX ISA 9.7.16.10.7). With `halves` = 2 the first half of the rows lies
    so in partitions 0 and 1, and the second in 2 and 3: where a pair has M = 128, these multiply
    the left and the right half of D (CuTe `tmem_sf_frg`, "SFB, 2x2 datapath").
    """

    rows: int
    column: int
    first: int
    count: int
    halves: int = 1

    @property
    def tile(self) -> TensorTile:
        """Return the cells that hold the scales."""
        n_columns = -(-self.rows // (32 * self.halves))
        return TensorTile.of(np.arange(128), slice(self.column, self.column + n_columns))

    def read(self, data: Array, blocks: Array, name: str) -> Array:
        """Return the scales, [blocks, rows, count]; raises `FormatError` for unequal copies."""
        row = np.arange(self.rows // self.halves)
        copies = np.arange(0, 128, 32).reshape(self.halves, -1)
        lanes = copies[:, :, None] + row % 32
        cells = data[blocks[:, None, None, None], lanes, self.column + row // 32]
        raw = cells.view(np.uint8).reshape(*cells.shape, 4)
        raw = raw[..., self.first : self.first + self.count]
        if (raw != raw[:, :, :1]).any():
            which = "all four partitions" if self.halves == 1 else "both partitions of each half"
            raise FormatError(
                f"the scale factors from column {self.column} on are not the same in {which} "
                "of 32 lanes"
            )
        return widen(raw[:, :, 0].reshape(len(blocks), self.rows, -1), name)


class Step(NamedTuple):
    """One instruction's operands: A in shared or tensor memory, B, and the scales of both."""

    a: SharedTile | TensorTile
    b: SharedTile
    scales: tuple[ScaleTile, ScaleTile] | None = None


class OpenProduct:
    """The product that the next instruction may lengthen; commits and copies close it."""

    def __init__(self, m: Machine) -> None:
        self.product: TensorProduct | None = None


@lru_cache(maxsize=64)
def tile_at(address: int, rows: int, columns: int) -> TensorTile:
    """Return the cells of `rows` rows at an address; raises `FormatError` for a wrong lane."""
    first = address & COLUMN_MASK
    lanes = accumulator_lanes(rows, address >> LANE_SHIFT)
    return TensorTile.of(lanes, slice(first, first + columns))


@lru_cache(maxsize=64)
def pair_tile_at(address: int, rows: int, columns: int) -> TensorTile:
    """Return the cells of the rows that one block of a pair holds, from lane 0 on."""
    first = address & COLUMN_MASK
    if address >> LANE_SHIFT:
        raise FormatError(f"a tile of a pair begins in lane 0, not {address >> LANE_SHIFT}")
    return TensorTile.of(np.arange(rows), slice(first, first + columns))


def cells_of(blocks: Array, tile: TensorTile) -> Cells:
    """Return the rectangle of tensor memory that a tile touches in each block."""
    return blocks, tile.groups, tile.columns


@dataclass(slots=True, eq=False)
class TensorProduct:
    """Products in flight on one accumulator of some blocks; `keeps` says which add to it.

    `shift` divides D by 2^shift first; lanes of D that are `disabled` stay as they are. With
    `n_blocks` = 2 rows are pairs of blocks, which hold halves of A, B and D: of D each has half the
    rows, or for M = 128 as 128 lanes of N / 2 columns, the right half below the left (PTX ISA
    9.7.16.10.5, layouts A and B).
    """

    m: Machine
    lanes: Lanes
    rows: Array
    descriptor: InstructionDescriptor
    d_address: int
    keeps: BoolArray
    shift: int = 0
    n_blocks: int = 1
    disabled: BoolArray | None = None
    steps: list[Step] = field(default_factory=list)
    d_tile: TensorTile = field(init=False)
    operation: Operation = field(init=False)
    pc: int = field(init=False)

    def __post_init__(self) -> None:
        m, d = self.m, self.descriptor
        self.pc = m.pc
        what = f"tcgen05.mma m{d.m}n{d.n}"
        self.d_tile = self._tile_of_d()
        issue = Issue.of(m, what, self.lanes, self.rows)
        self.operation = Operation(self._perform, issue, ORDER, blocks=self.rows)

    def _tile_of_d(self) -> TensorTile:
        d = self.descriptor
        if self.n_blocks == 1:
            return tile_at(self.d_address, d.m, d.n)
        return pair_tile_at(self.d_address, 128, d.n if self._is_whole else d.n // 2)

    @property
    def _is_whole(self) -> bool:
        """Return whether a block holds whole rows of D."""
        return self.n_blocks == 1 or self.descriptor.m == 256

    @property
    def done(self) -> bool:
        """Return whether the accumulator holds the result."""
        return self.operation.done

    def begin(self) -> None:
        """Put the accumulator in flight."""
        memory, lane = tensor_memory(self.m), int(self.lanes.index[0])
        memory.require_allocated(self.rows, self.d_tile.columns, lane, "the accumulator")
        cells = cells_of(self.rows, self.d_tile)
        if any_of(self.keeps) and not memory.is_defined(cells):
            raise self.m.fault(
                "E231", "tcgen05.mma adds to an accumulator that nothing has written", lane,
                help="clear enable-input-d for the first product",
            )  # fmt: skip
        memory.begin(self.operation, cells, self.lanes, writes=True)

    def add(self, step: Step) -> None:
        """Add a step of K: guard what it reads."""
        for tile, name in ((step.a, self.descriptor.a_type), (step.b, self.descriptor.b_type)):
            if isinstance(tile, TensorTile):
                self._read_cells(tile, "operand A")
            elif self.m.guard is not None:
                index = tile.index(self.m, self.rows)
                self.m.guard.begin_read(self.operation, self.lanes, index, used_bytes(name))
        for scales in step.scales or ():
            self._read_cells(scales.tile, "scale factors")
        self.steps.append(step)

    def _read_cells(self, tile: TensorTile, what: str) -> None:
        memory, cells = tensor_memory(self.m), cells_of(self.rows, tile)
        lane = int(self.lanes.index[0])
        memory.require_allocated(self.rows, tile.columns, lane, what)
        if not memory.is_defined(cells):
            raise self.m.fault("E231", f"tcgen05.mma: nothing has written its {what}", lane)
        memory.begin(self.operation, cells, self.lanes, writes=False)

    def _perform(self) -> None:
        memory = tensor_memory(self.m)
        a, b = self._scaled(self._a_values(), 0), self._scaled(self._b_values(), 1)
        cells = self._plain_cells(memory)
        if cells is None:
            self._accumulate(memory, multiply(a, b))
        elif any_of(self.keeps):
            np.add(cells, multiply(a, b), out=cells)
        else:
            multiply(a, b, out=cells)
        memory.end(self.operation)
        if self.m.guard is not None:
            self.m.guard.end(self.operation)

    def _plain_cells(self, memory: TensorMemory) -> Array | None:
        """Return D as float32, if products as they are go to all of its rows, or are added."""
        d = self.descriptor
        blocks, _, columns = self._index(self.d_tile)
        if d.d_type != "f32" or d.negate_a != d.negate_b or self.shift or not self._is_whole:
            return None
        if self.disabled is not None or not isinstance(blocks, slice):
            return None
        if any_of(self.keeps) and not all_of(self.keeps):
            return None
        cells: Array = memory.data[:, :, columns].view(np.float32)
        return cells

    def _accumulate(self, memory: TensorMemory, product: Array) -> None:
        """Put a product into D, or add it to what D holds, block by block."""
        d = self.descriptor
        if d.negate_a != d.negate_b:
            product = -product
        if not self._is_whole:
            n, m, columns = product.shape
            halves = product.reshape(n, m, 2, columns // 2).transpose(0, 2, 1, 3)
            product = halves.reshape(n, 2 * m, columns // 2)
        dtype = _ACCUMULATORS[d.d_type]
        where = self._index(self.d_tile)
        cells = memory.data[where]
        old = self._old(cells, dtype) if any_of(self.keeps) else None
        new = accumulate(old, product, dtype, d.saturate)
        # 16-bit results are not packed: one in the low half of each cell.
        raw = new.view(f"u{dtype.itemsize}")
        if self.disabled is not None:
            raw = np.where(self.disabled[:, self.d_tile.lanes, None], cells, raw)
        memory.data[where] = raw

    def _index(self, tile: TensorTile) -> tuple[Any, Any, slice]:
        """Return the index of a tile's cells: slices, which copy faster, where they are all."""
        if len(self.rows) == self.m.n_blocks and len(tile.lanes) == 128:
            return slice(None), slice(None), tile.columns
        return self.rows[:, None], tile.lanes[None, :], tile.columns

    def _old(self, cells: Array, dtype: np.dtype[Any]) -> Array:
        narrow = cells.astype(np.uint16) if dtype.itemsize == 2 else cells
        old = narrow.view(dtype)
        if self.shift:
            old = old * dtype.type(2.0**-self.shift)
        if not all_of(self.keeps):
            old = np.where(self.keeps[:, None, None], old, dtype.type(0))
        return old

    def _scaled(self, values: Array, side: int) -> Array:
        """Multiply blocks of K by their scales; `side` is 0 for A, 1 for B."""
        scales = [step.scales[side] for step in self.steps if step.scales is not None]
        if not scales:
            return values
        data, name = tensor_memory(self.m).data, self.descriptor.scale_type
        try:
            factors = np.concatenate([s.read(data, self.rows, name) for s in scales], axis=2)
        except FormatError as error:
            raise self._malformed(str(error)) from None
        scaled: Array = values * np.repeat(factors, values.shape[2] // factors.shape[2], axis=2)
        return scaled

    def _malformed(self, message: str) -> DeviceFault:
        self.m.pc = self.pc
        return self.m.fault("E281", message, int(self.lanes.index[0]))

    def _b_values(self) -> Array:
        tiles = [step.b for step in self.steps]
        values = read_tiles(self.m, self.rows, tiles, self.descriptor.b_type)
        if self.n_blocks == 1:
            return values
        # Both blocks of a pair multiply by the columns of both.
        n, columns, depth = values.shape
        return np.repeat(values.reshape(n // 2, 2 * columns, depth), 2, axis=0)

    def _a_values(self) -> Array:
        name = self.descriptor.a_type
        shared = [step.a for step in self.steps if isinstance(step.a, SharedTile)]
        if shared:
            return read_tiles(self.m, self.rows, shared, name)
        tiles = [step.a for step in self.steps if isinstance(step.a, TensorTile)]
        found = self._wide_rows(tiles) if name == "f16" and self._is_whole else None
        if found is not None:
            return found
        parts = [self._cells_of_a(tile) for tile in tiles]
        return np.concatenate([widen(part.view(np.uint8), name) for part in parts], axis=2)

    def _cells_of_a(self, tile: TensorTile) -> Array:
        """Return the cells of A's rows; where D is two halves side by side, each has its copy."""
        cells = np.ascontiguousarray(tensor_memory(self.m).data[self._index(tile)])
        if self._is_whole:
            return cells
        upper, lower = np.split(cells, 2, axis=1)
        if (upper != lower).any():
            raise self._malformed(
                "A's 64 rows in a block's tensor memory are not the same in lanes 64 to 127 as in "
                "lanes 0 to 63"
            )
        return np.ascontiguousarray(upper)

    def _wide_rows(self, tiles: list[TensorTile]) -> Array | None:
        """Return float16 tiles of whole rows that follow each other, None where they do not."""
        columns = [tile.columns for tile in tiles]
        follow = all(a.stop == b.start for a, b in pairwise(columns))
        if not follow or not all(isinstance(self._index(tile)[0], slice) for tile in tiles):
            return None
        data = tensor_memory(self.m).data
        octets = data.view(np.uint8).reshape(-1, data.shape[2] * data.itemsize)
        first, last = columns[0].start * data.itemsize, columns[-1].stop * data.itemsize
        values = widen_rows(octets, first, last - first)
        return None if values is None else values.reshape(len(data), data.shape[1], -1)
