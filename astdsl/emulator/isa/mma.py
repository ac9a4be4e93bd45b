"""`mma.sync`: products of a warp's register fragments (PTX ISA 9.7.14.5).

Invariant: products are exact and summed in float32 (float64 for f64, integers exactly), by the same
arithmetic as wgmma; only dense shapes without block scaling are modelled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import matrix
from astdsl.emulator.isa import Control, controls
from astdsl.emulator.isa.warp import WHOLE_WARP, Warps, collective
from astdsl.emulator.lanes import WARP_THREADS

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Getter, Operands
    from astdsl.emulator.scalars import Array

_SHAPE = re.compile(r"m(\d+)n8k(\d+)")
_BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f64": 64,
    "s4": 4, "u4": 4, "b1": 1,
}  # fmt: skip
_NARROW = ("s4", "u4", "b1")
_ACCUMULATORS = {"f32": np.float32, "f16": np.float16, "s32": np.int32, "f64": np.float64}
_GROUP, _QUAD = np.arange(WARP_THREADS) // 4, np.arange(WARP_THREADS) % 4


@dataclass(frozen=True, slots=True)
class _Shape:
    """m x 8 x k with operands of `bits`; a register (64-bit for f64) holds `per` elements."""

    m: int
    k: int
    bits: int

    @property
    def per(self) -> int:
        return max(32 // self.bits, 1)

    @property
    def rows(self) -> int:
        """Return how many 8-row halves A and D have."""
        return self.m // 8

    @property
    def steps(self) -> int:
        """Return how many groups of four registers' columns k is made of."""
        return self.k // (4 * self.per)


@controls("mma.sync")
def prepare_mma(ops: Operands) -> Control:
    """`mma.sync.aligned.shape.row.col{.satfinite}.dtype.atype.btype.ctype d, a, b, c`."""
    found = next(filter(None, (_SHAPE.fullmatch(word) for word in ops.modifiers)), None)
    types = [word for word in ops.modifiers if word in _BITS or word in _ACCUMULATORS]
    # Bits are combined by .and or .xor, and then counted.
    counts = ("and", "xor", "popc") if "b1" in types and ops.has("popc") else ()
    known = {"sync", "aligned", "row", "col", "satfinite", "kind::f8f6f4", *types, *counts}
    unknown = [w for w in ops.modifiers if w not in known and (found is None or w != found[0])]
    if found is None or unknown or len(types) != 4 or not (ops.has("row") and ops.has("col")):
        raise ops.refuse("this form of mma.sync is not modelled")
    to, a_type, b_type, c_type = types
    if a_type not in _BITS or b_type not in _BITS or to not in _ACCUMULATORS:
        raise ops.refuse(f"operands of .{a_type} and .{b_type} are not modelled")
    if a_type in _NARROW and (to != "s32" or (a_type == "b1") != bool(counts)):
        raise ops.refuse("operands of 4 bits and of single bits (.and.popc, .xor.popc) give .s32")
    if _BITS[a_type] != _BITS[b_type] or c_type != to:
        raise ops.refuse("operands of different widths are not modelled")
    return _Product(ops, _Shape(int(found[1]), int(found[2]), _BITS[a_type]), types).prepared


class _Product:
    """One `mma.sync`."""

    def __init__(self, ops: Operands, shape: _Shape, types: list[str]) -> None:
        self.shape, self.a_type, self.b_type = shape, types[1], types[2]
        self.dtype = np.dtype(_ACCUMULATORS[types[0]])
        self.saturate = ops.has("satfinite")
        self.differs = ops.has("xor")
        word = "b64" if types[1] == "f64" else "b32"
        self.a = ops.sources(ops.args[1], word)
        self.b = ops.sources(ops.args[2], word)
        part = {2: "b32", 4: "b32", 8: "b64"}[self.dtype.itemsize]
        self.c = ops.sources(ops.args[3], part)
        self.d = ops.destinations(ops.args[0], part)
        if len(self.a) != shape.rows * shape.steps or len(self.b) != shape.steps:
            raise ops.refuse("the number of registers does not fit the shape")
        if not len(self.c) == len(self.d) == len(self._places()):
            raise ops.refuse("the number of accumulators does not fit the shape")
        self.prepared = collective(ops, WHOLE_WARP, self._run)

    def _run(self, m: Machine, lanes: Lanes, warps: Warps) -> None:
        if not warps.complete:
            text = "mma.sync needs all 32 lanes of the warp"
            raise m.fault("E214", text, int(lanes.index[0]))
        a = self._operand(m, lanes, warps, self.a, self.a_type)
        b = self._operand(m, lanes, warps, self.b, self.b_type)
        old = self._accumulator(m, lanes, warps)
        product = matrix.multiply(a, b)
        if self.differs:
            # Of two rows of bits: those of both, less twice what they share.
            product = a.sum(axis=2)[:, :, None] + b.sum(axis=2)[:, None, :] - 2 * product
        if self.dtype == np.float64:
            new = product + old
        else:
            new = matrix.accumulate(old, product, self.dtype, self.saturate)
        self._write(m, lanes, warps, new)

    def _operand(
        self, m: Machine, lanes: Lanes, warps: Warps, reads: list[Getter], name: str
    ) -> Array:
        """Gather [warp, row, k]: register r holds row half r % halves, by the ISA's figures."""
        shape = self.shape
        halves = len(reads) // shape.steps
        word = np.dtype(np.uint64 if name == "f64" else np.uint32)
        values = np.empty((warps.n, 8 * halves, shape.k), self._value_type(name))
        for r, read in enumerate(reads):
            raw = warps.spread(read(m, lanes), word)
            parts = self._widen(np.ascontiguousarray(raw), name).reshape(
                warps.n, WARP_THREADS, shape.per
            )
            row = _GROUP + 8 * (r % halves)
            first = (r // halves) * 4 * shape.per + _QUAD * shape.per
            for i in range(shape.per):
                values[:, row, first + i] = parts[:, :, i]
        return values

    def _value_type(self, name: str) -> Any:
        exact = name == "f64" or name in matrix.INTEGERS or name in _NARROW
        return np.float64 if exact else np.float32

    def _widen(self, raw: Array, name: str) -> Array:
        if name == "f64":
            return raw.view(np.float64)
        if name in _NARROW:
            return _unpacked(raw.view(np.uint8), name)
        return matrix.widen(raw.view(np.uint8), name)

    def _accumulator(self, m: Machine, lanes: Lanes, warps: Warps) -> Array:
        values = np.empty((warps.n, self.shape.m, 8), self.dtype)
        for r, (row, column, count) in enumerate(self._places()):
            word = np.dtype(np.uint64 if self.dtype.itemsize == 8 else np.uint32)
            raw = np.ascontiguousarray(warps.spread(self.c[r](m, lanes), word))
            parts = raw.view(self.dtype).reshape(warps.n, WARP_THREADS, count)
            for i in range(count):
                values[:, row, column + i] = parts[:, :, i]
        return values

    def _write(self, m: Machine, lanes: Lanes, warps: Warps, values: Array) -> None:
        word = np.dtype(np.uint64 if self.dtype.itemsize == 8 else np.uint32)
        for r, (row, column, count) in enumerate(self._places()):
            parts = np.stack([values[:, row, column + i] for i in range(count)], axis=-1)
            raw = np.ascontiguousarray(parts).view(word).reshape(warps.n, WARP_THREADS)
            self.d[r](m, lanes, warps.gather(raw))

    def _places(self) -> list[tuple[Array, Array, int]]:
        """Return (row, first column, elements) of each accumulator register."""
        if self.dtype.itemsize == 2:
            return [(_GROUP + 8 * r, 2 * _QUAD, 2) for r in range(self.shape.rows)]
        return [(_GROUP + 8 * (r // 2), 2 * _QUAD + r % 2, 1) for r in range(2 * self.shape.rows)]


def _unpacked(raw: Array, name: str) -> Array:
    """Return the elements of 4 bits, or of one, in bytes [..., n]: the lowest bits first."""
    if name == "b1":
        return np.unpackbits(raw, axis=-1, bitorder="little")
    halves: Array = np.stack([raw & 15, raw >> 4], axis=-1).astype(np.int8)
    return (halves ^ 8) - 8 if name == "s4" else halves
