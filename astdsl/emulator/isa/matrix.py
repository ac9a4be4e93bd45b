"""`ldmatrix`, `stmatrix`, `movmatrix`: matrices between shared memory and registers of a warp.

Source: PTX ISA 9.7.14.5.15, 9.7.14.5.16, 9.7.14.5.17; 9.7.16.9.1 for what is decompressed.

Invariant: lane 8 m + r gives the address of row r of matrix m, 16 bytes. Of 8x8 matrices of 16 bits
lane l holds row l / 4, columns 2 (l % 4) and the next one (with `.trans`: of the transposed
matrix); of matrices of bytes four columns, 4 (l % 4) and on. A 16x16 matrix of bytes has 16 rows in
memory, and is two registers: rows l / 4 and l / 4 + 8 of the transposed matrix. 4-bit elements
become bits 2 to 5 of a byte, 6-bit ones bits 0 to 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.isa import Control, controls
from astdsl.emulator.isa.memory import space_of
from astdsl.emulator.isa.warp import WHOLE_WARP, Warps, collective
from astdsl.emulator.lanes import WARP_THREADS, Lanes
from astdsl.emulator.matrix import contain
from astdsl.emulator.scalars import UNSIGNED, Array
from astdsl.emulator.undefined import Undefined, bits_read, mark
from astdsl.emulator.undefined_bits import extremes

if TYPE_CHECKING:
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands

ROW_BYTES = 16
_FORMATS = {"b6x16_p32": 6, "b4x16_p64": 4}
_WORDS = (
    "sync", "aligned", "m8n8", "m16n16", "m8n16", "m16n8", "x1", "x2", "x4", "trans", "shared",
    "shared::cta", "b8x16", *_FORMATS,
)  # fmt: skip


def _count(ops: Operands, bytes_shape: str) -> int:
    """Return how many groups of eight rows an instruction moves; refuse forms that do not exist."""
    ops.allow(*_WORDS)
    number = next((int(word[1]) for word in ops.modifiers if word in ("x1", "x2", "x4")), 1)
    packed = any(ops.has(word) for word in _FORMATS)
    if ops.has("m8n8") and not ops.has("b8") and not packed:
        return number
    if ops.has("m8n16") and packed and not ops.has("trans") and bytes_shape == "m16n16":
        return number
    if ops.has(bytes_shape) and ops.has("trans") and (ops.has("b8") or packed):
        if bytes_shape == "m16n8":
            return number
        if number < 4:
            return 2 * number
    raise ops.refuse(
        "the forms are .m8n8 of .b16, .m8n16 of packed elements, and of bytes with .trans "
        f".{bytes_shape}"
    )


def _check_whole(m: Machine, lanes: Lanes, warps: Warps) -> None:
    if not warps.complete:
        text = "a matrix access needs all 32 lanes of the warp"
        raise m.fault("E214", text, int(lanes.index[0]))


def _row_lanes(warps: Warps, matrix: int) -> Lanes:
    """Return the lanes that give the row addresses of a matrix."""
    return Lanes.of(np.sort(warps.slots[:, 8 * matrix : 8 * matrix + 8].reshape(-1)))


def _by_warp(warps: Warps, matrix: int, lanes: Lanes) -> Array:
    """Return where row r of each warp's matrix stands in the (sorted) row lanes."""
    wanted = warps.slots[:, 8 * matrix : 8 * matrix + 8]
    return np.searchsorted(lanes.index, wanted)


@controls("ldmatrix")
def prepare_ldmatrix(ops: Operands) -> Control:
    """`ldmatrix.sync.aligned.m8n8.{x1,x2,x4}{.trans}.shared.b16 {d...}, [a]`.

    And `.m16n16.{x1,x2}.trans.shared.b8`, `.m8n16.{x1,x2,x4}`, both `.b8x16.{b6x16_p32,b4x16_p64}`.
    """
    count, space = _count(ops, "m16n16"), space_of(ops, ops.args[1])
    address = ops.address(ops.args[1])
    elements = ops.elements(ops.args[0])
    if len(elements) != count:
        raise ops.refuse(f"{count} registers are needed, not {len(elements)}")
    writes = [ops.destination(element, "b32") for element in elements]
    places = [ops.registers(element) for element in elements]
    bits = next((bits for word, bits in _FORMATS.items() if ops.has(word)), 0)
    shape = "m16n16" if ops.has("m16n16") else "m8n16" if bits else "m8n8"
    transposed = ops.has("trans")

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        _check_whole(m, lanes, warps)
        groups: list[Array] = []
        missed: list[Array] = []
        some = False
        for group in range(count):
            rows = _row_lanes(warps, group)
            found, missing = m.memory.load(
                m, rows, space, np.broadcast_to(address(m, rows), rows.n), UNSIGNED[16], 8
            )
            at = _by_warp(warps, group, rows)
            some |= missing is not None
            missing = np.zeros_like(found) if missing is None else missing
            for parts, values in ((groups, found), (missed, missing)):
                raw = np.ascontiguousarray(values[at]).view(np.uint8)
                parts.append(contain(raw, bits) if bits else raw)
        for k, (write, to) in enumerate(zip(writes, places, strict=True)):
            words = _fragments(groups, k, shape, transposed)
            write(m, lanes, warps.gather(words.reshape(warps.n, WARP_THREADS)))
            if some or m.undefined:
                # What is undefined lies where the values do.
                undefined = _fragments(missed, k, shape, transposed)
                undefined = warps.gather(undefined.reshape(warps.n, WARP_THREADS))
                for place in to:
                    mark(m, place, lanes, undefined)

    return collective(ops, WHOLE_WARP, body, tracks=True)


def _fragments(groups: list[Array], k: int, shape: str, transposed: bool) -> Array:
    """Return the k-th register of every lane, from groups of eight rows of 16 bytes."""
    if shape == "m16n16":
        whole = np.concatenate(groups[k - k % 2 : k - k % 2 + 2], axis=1).transpose(0, 2, 1)
        half = whole[:, 8 * (k % 2) : 8 * (k % 2) + 8]
        words: Array = np.ascontiguousarray(half).view(np.uint32)
        return words
    tiles = groups[k].view(np.uint16) if shape == "m8n8" else groups[k]
    if transposed:
        tiles = tiles.transpose(0, 2, 1)
    found: Array = np.ascontiguousarray(tiles).view(np.uint32)
    return found


@controls("stmatrix")
def prepare_stmatrix(ops: Operands) -> Control:
    """`stmatrix.sync.aligned.m8n8.{x1,x2,x4}{.trans}.shared.b16 [a], {s...}`.

    And `.m16n8.{x1,x2,x4}.trans.shared.b8`, held like an accumulator of `mma.m16n8`: lane l has
    columns 2 (l % 4) and the next one of rows l / 4 and l / 4 + 8; memory has a column a row.
    """
    count, space = _count(ops, "m16n8"), space_of(ops, ops.args[0])
    address = ops.address(ops.args[0])
    reads = ops.sources(ops.args[1], "b32")
    places = [ops.registers(element) for element in ops.elements(ops.args[1])]
    if len(reads) != count:
        raise ops.refuse(f"{count} registers are needed, not {len(reads)}")
    transposed, of_bytes = ops.has("trans"), ops.has("m16n8")

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        _check_whole(m, lanes, warps)
        for matrix in range(count):
            rows = _row_lanes(warps, matrix)
            at = _by_warp(warps, matrix, rows).reshape(-1)

            def by_row(words: Array, rows: Lanes = rows, at: Array = at) -> Array:
                values = np.empty((rows.n, 8), np.uint16)
                tiles = _tiles(warps.spread(words, np.uint32), transposed, of_bytes)
                values[at] = tiles.reshape(-1, 8)
                return values

            found = bits_read(m, lanes, [(place, 32) for place in places[matrix]])
            undefined = None
            if found is not None:
                bits = by_row(found[0][places[matrix][0]])
                undefined = Undefined(bits, np.full(rows.n, found[1].max()))
            addresses = np.broadcast_to(address(m, rows), rows.n)
            values = by_row(reads[matrix](m, lanes))
            m.memory.store(m, rows, space, addresses, values, undefined)

    return collective(ops, WHOLE_WARP, body, tracks=True)


def _tiles(words: Array, transposed: bool, of_bytes: bool) -> Array:
    """Return the rows in memory, [warp, 8, 8] of 16 bits, of a matrix in registers."""
    n = len(words)
    if of_bytes:
        # By warp, row in 8, column by 2, row by 8, and column in 2.
        held = words.view(np.uint8).reshape(n, 8, 4, 2, 2)
        columns = np.ascontiguousarray(held.transpose(0, 2, 4, 3, 1))
        return columns.reshape(n, 8, 16).view(np.uint16)
    tiles: Array = words.view(np.uint16).reshape(n, 8, 8)
    return tiles.transpose(0, 2, 1) if transposed else tiles


@controls("movmatrix")
def prepare_movmatrix(ops: Operands) -> Control:
    """`movmatrix.sync.aligned.m8n8.trans.b16 d, a`: transpose a matrix in registers."""
    ops.allow("sync", "aligned", "m8n8", "trans")
    if not ops.has("trans"):
        raise ops.refuse(".trans is needed")
    read, write = ops.source(ops.args[1], "b32"), ops.destination(ops.args[0], "b32")

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        _check_whole(m, lanes, warps)
        tiles = warps.spread(read(m, lanes), np.uint32).view(np.uint16).reshape(warps.n, 8, 8)
        turned = np.ascontiguousarray(tiles.transpose(0, 2, 1)).view(np.uint32)
        write(m, lanes, warps.gather(turned.reshape(warps.n, WARP_THREADS)))

    return collective(ops, WHOLE_WARP, body, bits=extremes(ops))
