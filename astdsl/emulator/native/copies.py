"""Moves of data in machine code of the host, for callers that do without where there is none.

Invariant: each function does what the NumPy code of its caller would, and says by its result
whether it did: it does nothing before some program has run for so long that LLVM is loaded, nor
for arrays that its loop is not written for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.native.host import started
from astdsl.emulator.native.loops import UNITS_AT_A_TIME

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.registers import Place
    from astdsl.emulator.scalars import Array

__all__ = [
    "add_fragment", "collect", "fill", "register_addresses", "scatter", "transpose", "widen_chunks",
    "widen_f16", "widen_pairs", "widen_rows",
]  # fmt: skip

_GROUP = 8
_CHUNK_BYTES = 16


def _at(array: Array) -> int:
    return int(array.ctypes.data)


def widen_f16(raw: Array) -> Array | None:
    """Return float16 bits (uint8, the last axis contiguous) as float32; signalling NaNs quiet."""
    on = started()
    if on is None or not raw.flags.c_contiguous or not raw.size or raw.size % (2 * _GROUP):
        return None
    result = np.empty((*raw.shape[:-1], raw.shape[-1] // 2), np.float32)
    on.function("widen")(_at(raw), _at(result), result.size)
    return result


def widen_rows(rows: Array, first: int, size: int) -> Array | None:
    """Return float16 of `size` bytes from byte `first` on of each row of bytes, as float32."""
    if first % _CHUNK_BYTES or size % _CHUNK_BYTES:
        return None
    return widen_chunks(rows, np.arange(first // _CHUNK_BYTES, (first + size) // _CHUNK_BYTES))


def widen_chunks(memory: Array, chunks: Array) -> Array | None:
    """Return the 16-byte chunks [..., c] of every row of bytes as float32 [rows, ..., 8 c]."""
    on = started()
    if on is None or not chunks.size or not memory.flags.c_contiguous:
        return None
    numbers = np.ascontiguousarray(chunks, np.int64)
    shape = len(memory), *chunks.shape[:-1], _GROUP * chunks.shape[-1]
    result = np.empty(shape, np.float32)
    on.function("widen_chunks")(
        _at(memory), memory.shape[1], _at(numbers), numbers.size, len(memory), _at(result)
    )
    return result


def register_addresses(m: Machine, lanes: Lanes, places: tuple[Place, ...]) -> Array | None:
    """Return where the first of neighbouring lanes lies of each of some registers of 32 bits."""
    if started() is None or not lanes.contiguous:
        return None
    bank = m.registers.banks[32]
    rows = np.array([row for _, row in places], np.int64)
    first = _at(bank) + int(lanes.index[0]) * bank.itemsize
    addresses: Array = first + rows * bank.strides[0]
    return addresses


def transpose(sources: Array | None, targets: Array | None) -> bool:
    """Copy rows of 32-bit elements to columns: rows at `sources` to those at `targets`."""
    on = started()
    if on is None or sources is None or targets is None:
        return False
    if len(sources) % _GROUP or len(targets) % _GROUP:
        return False
    on.function("transpose")(_at(sources), _at(targets), len(sources), len(targets))
    return True


def add_fragment(tiles: Array, positions: Array, registers: Array | None, *, adds: bool) -> bool:
    """Put tiles, float32 [blocks, elements], into registers, or add them to what they hold.

    Register r of thread t has the element `positions[r, t]`; lanes are thread by thread.
    """
    on = started()
    if on is None or registers is None or not tiles.flags.c_contiguous:
        return False
    n_registers, n_threads = positions.shape
    on.function("fragment" if len(tiles) % _GROUP else "fragment8")(
        _at(tiles), tiles[0].size, _at(positions), _at(registers), n_registers, n_threads,
        len(tiles), adds,
    )  # fmt: skip
    return True


def widen_pairs(raw: Array, positions: Array, tiles: Array, first: int) -> bool:
    """Put pairs of float16, uint32 [entries, blocks], into float32 [blocks, ...].

    Pair e goes to the elements `positions[e] + first` and the next of each block's tile.
    """
    on = started()
    if on is None or not raw.flags.c_contiguous:
        return False
    on.function("widen_pairs")(
        _at(raw), _at(positions), len(positions), len(tiles), tiles[0].size,
        _at(tiles) + first * tiles.itemsize,
    )  # fmt: skip
    return True


# 16-byte units of boxes: values, [boxes, units]; a list of units in rows of memory; and addresses
# of the boxes' corners with what is added for each unit.


def fill(memory: Array, rows: Array, units: Array, places: tuple[Array, Array]) -> bool:
    """Copy units from addresses to memory."""
    return _between("fill", memory, rows, units, places)


def collect(memory: Array, rows: Array, units: Array) -> Array | None:
    """Return the units in memory, [boxes, units]."""
    values = np.empty((len(rows), len(units)), np.complex128)
    return values if _between("collect", memory, rows, units, (values,)) else None


def _between(
    name: str, memory: Array, rows: Array, units: Array, others: tuple[Array, ...]
) -> bool:
    on = started()
    if on is None or not len(rows) or not len(units):
        return False
    rows, units = (np.ascontiguousarray(each, np.int64) for each in (rows, units))
    others = tuple(np.ascontiguousarray(each) for each in others)
    on.function(_by_width(name, len(units)))(
        _at(memory), memory.shape[1], _at(rows), _at(units), len(units),
        *[_at(each) for each in others], len(rows),
    )  # fmt: skip
    return True


def _by_width(name: str, n_units: int) -> str:
    return f"{name}{1 if n_units % UNITS_AT_A_TIME else UNITS_AT_A_TIME}"


def scatter(values: Array, places: tuple[Array, Array]) -> bool:
    """Copy units, [boxes, units], to addresses."""
    on = started()
    if on is None or not values.size or not values.flags.c_contiguous:
        return False
    n_boxes, n_units = values.shape
    corners, relative = (np.ascontiguousarray(each, np.int64) for each in places)
    on.function(_by_width("scatter", n_units))(
        _at(values), n_units, _at(corners), _at(relative), n_boxes
    )
    return True
