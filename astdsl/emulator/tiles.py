"""Matrix operands in shared memory, as descriptors say, for all blocks of a batch together.

Invariant: `chunks` lists exactly the 16-byte chunks that the matrix unit reads, one list for all
blocks when their descriptors agree, else one list each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.formats.descriptors import (
    CHUNK_BYTES,
    MatrixDescriptor,
    OperandShape,
    operand_chunks,
)
from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.matrix import PACKED, contain, widen
from astdsl.emulator.native.copies import widen_chunks
from astdsl.emulator.occupancy import Index, chunk_index
from astdsl.emulator.scalars import all_of

if TYPE_CHECKING:
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array

__all__ = ["SharedTile", "locate", "read_tiles"]

Decode = Callable[[int], MatrixDescriptor]


@dataclass(frozen=True, slots=True, eq=False)
class SharedTile:
    """One operand of one step: `chunks` [outer, c], or [blocks, outer, c] when `per_row`."""

    chunks: Array
    per_row: bool
    mn_major: bool

    def index(self, m: Machine, rows: Array) -> Index:
        """Return the index of the operand's chunks in shared memory."""
        return chunk_index(rows, self.chunks, m.n_blocks, per_row=self.per_row)


def locate(m: Machine, descriptors: Array, decode: Decode, shape: OperandShape) -> SharedTile:
    """Find an operand from its descriptors, one a block; raises `FormatError`."""
    first = int(descriptors[0])
    if all_of(descriptors == descriptors[0]):
        return SharedTile(_chunks(m, first, decode, shape), False, shape.mn_major)
    each = np.stack([_chunks(m, int(bits), decode, shape) for bits in descriptors])
    return SharedTile(each, True, shape.mn_major)


@lru_cache(maxsize=512)
def _decoded(bits: int, decode: Decode, shape: OperandShape) -> tuple[Array, int]:
    """Return the chunks that a descriptor names, and where the last of them ends."""
    chunks = operand_chunks(decode(bits), shape)
    return chunks, (int(chunks.max()) + 1) * CHUNK_BYTES


def _chunks(m: Machine, bits: int, decode: Decode, shape: OperandShape) -> Array:
    chunks, end_bytes = _decoded(bits, decode, shape)
    if end_bytes > m.memory.shared.size_bytes:
        raise FormatError(
            f"a matrix operand ends at shared {end_bytes:#x}, past the "
            f"{m.memory.shared.size_bytes} bytes of shared memory"
        )
    return chunks


def read_tiles(m: Machine, rows: Array, tiles: list[SharedTile], name: str) -> Array:
    """Read one operand over consecutive steps of K: [blocks, rows, depth of all steps], widened."""
    mn_major = tiles[0].mn_major
    if any(tile.per_row for tile in tiles):
        shape = len(rows), *tiles[0].chunks.shape[-2:]
        parts = [np.broadcast_to(tile.chunks, shape) for tile in tiles]
    else:
        parts = [tile.chunks for tile in tiles]
    # K runs along the chunks of a row when K-major, along the rows when MN-major.
    chunks = np.concatenate(parts, axis=-2 if mn_major else -1) if len(parts) > 1 else parts[0]
    index = chunk_index(rows, chunks, m.n_blocks, per_row=chunks.ndim == 3)
    values = None
    if name == "f16" and isinstance(index[0], slice):
        values = widen_chunks(m.memory.shared.data, chunks)
    if values is None:
        raw = _gather(m.memory.shared.data.view(np.complex128), index).view(np.uint8)
        values = widen(contain(raw, PACKED[name]) if name in PACKED else raw, name)
    return values.transpose(0, 2, 1) if mn_major else values


def _gather(memory: Array, index: Index) -> Any:
    """Gather chunks; `take` is the faster spelling when all blocks agree."""
    rows, chunks = index
    if isinstance(rows, slice):
        return np.take(memory, chunks, axis=1)
    return memory[rows, chunks]
