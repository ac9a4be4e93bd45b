"""`ldmatrix` and `stmatrix`: 8x8 matrices of 16-bit elements between shared memory and registers.

Source: PTX ISA 9.7.14.5.15, 9.7.14.5.16.

Invariant: lane 8 m + r gives the address of row r of matrix m; lane l holds row l / 4, columns
2 (l % 4) and the next one (with `.trans`: of the transposed matrix).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.isa import Control, controls
from astdsl.emulator.isa.memory import space_of
from astdsl.emulator.isa.warp import WARP, Warps, collective
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.scalars import UNSIGNED, Array
from astdsl.emulator.syntax import Immediate
from astdsl.emulator.undefined import mark

if TYPE_CHECKING:
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands

ROW_BYTES = 16
WHOLE_WARP = Immediate(0xFFFFFFFF)
_WORDS = ("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta")


def _count(ops: Operands) -> int:
    ops.allow(*_WORDS)
    if not ops.has("m8n8"):
        raise ops.refuse("only .m8n8 matrices of .b16 are modelled")
    return next((int(word[1]) for word in ops.modifiers if word in ("x1", "x2", "x4")), 1)


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
    """`ldmatrix.sync.aligned.m8n8.{x1,x2,x4}{.trans}.shared.b16 {d...}, [a]`."""
    count, space = _count(ops), space_of(ops, ops.args[1])
    address = ops.address(ops.args[1])
    elements = ops.elements(ops.args[0])
    writes = [ops.destination(element, "b32") for element in elements]
    places = [ops.registers(element) for element in elements]
    transposed = ops.has("trans")

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        _check_whole(m, lanes, warps)
        loaded = []
        for matrix in range(count):
            rows = _row_lanes(warps, matrix)
            found, missing = m.memory.load(
                m, rows, space, np.broadcast_to(address(m, rows), rows.n), UNSIGNED[16], 8
            )
            at = _by_warp(warps, matrix, rows)
            tiles = found[at]
            if transposed:
                tiles = tiles.transpose(0, 2, 1)
            words = np.ascontiguousarray(tiles).view(np.uint32).reshape(warps.n, WARP)
            bad = None
            if missing is not None:
                bad = warps.gather(np.logical_or.reduce(missing[at], axis=1, keepdims=True))
            loaded.append((warps.gather(words), bad))
        for (words, bad), write, to in zip(loaded, writes, places, strict=True):
            write(m, lanes, words)
            if bad is not None or m.undefined:
                for place in to:
                    mark(m, place, lanes, bad)

    return collective(ops, WHOLE_WARP, body)


@controls("stmatrix")
def prepare_stmatrix(ops: Operands) -> Control:
    """`stmatrix.sync.aligned.m8n8.{x1,x2,x4}{.trans}.shared.b16 [a], {s...}`."""
    count, space = _count(ops), space_of(ops, ops.args[0])
    address = ops.address(ops.args[0])
    reads = ops.sources(ops.args[1], "b32")
    transposed = ops.has("trans")

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        _check_whole(m, lanes, warps)
        for matrix in range(count):
            words = warps.spread(reads[matrix](m, lanes), np.uint32)
            tiles = words.view(np.uint16).reshape(warps.n, 8, 8)
            if transposed:
                tiles = tiles.transpose(0, 2, 1)
            rows = _row_lanes(warps, matrix)
            values = np.empty((rows.n, 8), np.uint16)
            values[_by_warp(warps, matrix, rows).reshape(-1)] = tiles.reshape(-1, 8)
            addresses = np.broadcast_to(address(m, rows), rows.n)
            m.memory.store(m, rows, space, addresses, values)

    return collective(ops, WHOLE_WARP, body)
