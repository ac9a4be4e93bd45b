"""Floats of 4, 6 and 8 bits: their values, and `cvt` from and to them (PTX ISA 5.2.3, 9.7.9.21).

Invariant: a format is the sorted list of its values of positive sign, by code; everything else
(rounding, saturation) follows from that list. They live packed in pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import numerics
from astdsl.emulator.scalars import TYPES, UNSIGNED, Array
from astdsl.emulator.undefined_bits import elements, part_of

if TYPE_CHECKING:
    from astdsl.emulator.isa import Execute
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.undefined import Flow


@dataclass(frozen=True)
class SmallFloat:
    """A format with `exponent` and `mantissa` bits, `bias`, in containers of `pitch` bits.

    `n_finite` codes of positive sign are finite; `nan` is the code that a NaN is converted to.
    """

    exponent: int
    mantissa: int
    bias: int
    pitch: int
    n_finite: int
    nan: int

    @property
    def sign(self) -> int:
        """Return the bit of the sign."""
        return 1 << (self.exponent + self.mantissa)

    @cached_property
    def positive(self) -> Array:
        """Return the values of the finite codes of positive sign."""
        codes = np.arange(self.n_finite)
        fraction, power = codes & ((1 << self.mantissa) - 1), codes >> self.mantissa
        normal = power > 0
        scale = 2.0 ** (np.where(normal, power, 1) - self.bias - self.mantissa)
        return (fraction + np.where(normal, 1 << self.mantissa, 0)) * scale

    @cached_property
    def values(self) -> Array:
        """Return the value of every code, float64."""
        table = np.full(2 * self.sign, np.nan)
        table[: self.n_finite] = self.positive
        if self.has_infinity:
            table[self.n_finite] = np.inf
        table[self.sign :] = -table[: self.sign]
        return table

    @property
    def has_infinity(self) -> bool:
        """Say whether the format has infinities (e5m2 alone)."""
        return (self.exponent, self.mantissa) == (5, 2)

    def encode(self, x: Array, *, relu: bool) -> Array:
        """Return the codes of finite values nearest to x, ties to even, saturated (uint8)."""
        size = np.minimum(np.abs(x), self.positive[-1])
        middles = (self.positive[1:] + self.positive[:-1]) / 2
        code = np.searchsorted(middles, size, side="left")
        tie = (code < len(middles)) & (middles[np.minimum(code, len(middles) - 1)] == size)
        code = code + (tie & (code % 2 == 1))
        code = code + np.where(np.signbit(x), self.sign, 0)
        if relu:
            code = np.where(np.signbit(x), 0, code)
        return np.where(np.isnan(x), self.nan, code).astype(np.uint8)


FORMATS: dict[str, SmallFloat] = {
    "e4m3x2": SmallFloat(4, 3, 7, 8, 0x7F, 0x7F),
    "e5m2x2": SmallFloat(5, 2, 15, 8, 0x7C, 0x7F),
    "e2m3x2": SmallFloat(2, 3, 1, 8, 0x20, 0x1F),
    "e3m2x2": SmallFloat(3, 2, 3, 8, 0x20, 0x1F),
    "e2m1x2": SmallFloat(2, 1, 1, 4, 0x8, 0x7),
    # An exponent alone, without sign: handled apart.
    "ue8m0x2": SmallFloat(8, 0, 127, 8, 0xFF, 0xFF),
}


def prepare(ops: Operands, to: str, source: str) -> Execute:
    """Return the step of a conversion between a pair of small floats and wider ones."""
    if to in FORMATS and source in FORMATS:
        raise ops.refuse("this pair of types is not modelled")
    return _narrowing(ops, to, source) if to in FORMATS else _widening(ops, to, source)


def undefined_bits(ops: Operands, to: str, source: str) -> Flow:
    """Return how undefined bits pass: each element of the result comes from one of the operands."""
    if to not in FORMATS:
        wide, narrow = TYPES[to].element_bits, FORMATS[source].pitch
        return elements(ops, wide, [part_of(ops, ops.args[1], narrow * i, narrow) for i in (0, 1)])
    width = FORMATS[to].pitch
    if source != "f32":
        return elements(ops, width, [part_of(ops, ops.args[1], 16 * i, 16) for i in (0, 1)])
    return elements(ops, width, [part_of(ops, ops.args[i], 0, 32) for i in (2, 1)])


def _narrowing(ops: Operands, to: str, source: str) -> Execute:
    form = FORMATS[to]
    write = ops.destination(ops.args[0], f"b{2 * form.pitch}")
    relu, mode = ops.has("relu"), "rp" if ops.has("rp") else "rz"
    finite = ops.has("satfinite")
    if to != "ue8m0x2" and not ops.has("satfinite"):
        raise ops.refuse("the ISA requires .satfinite here")
    if source == "f32":
        reads = [ops.source(arg, "f32") for arg in (ops.args[2], ops.args[1])]
    else:
        whole = ops.source(ops.args[1], source)
        reads = [_half(whole, 0, source), _half(whole, 1, source)]

    def codes(x: Any) -> Array:
        value = np.asarray(x).astype(np.float64)
        if to == "ue8m0x2":
            return exponent_code(value, mode, finite=finite)
        return form.encode(value, relu=relu)

    def execute(m: Machine, lanes: Lanes) -> None:
        low, high = (codes(read(m, lanes)).astype(np.uint16) for read in reads)
        packed = low | high << np.uint16(form.pitch)
        write(m, lanes, packed.astype(UNSIGNED[2 * form.pitch]))

    return execute


def _half(whole: Any, place: int, source: str) -> Any:
    """Return a getter of one half of a packed f16x2 or bf16x2 operand."""

    def read(m: Machine, lanes: Lanes) -> Array:
        half = whole(m, lanes)[..., place]
        return numerics.bf16_to_f32(half) if source == "bf16x2" else half

    return read


def exponent_code(x: Array, mode: str, *, finite: bool) -> Array:
    """Return the ue8m0 code of |x|: the power of two below (`rz`) or above (`rp`), 0xff for NaN.

    What is beyond 2^127 is a NaN too, unless it is to stay `finite` (`.satfinite`).
    """
    greatest = 254 if finite else 255
    mantissa, power = np.frexp(np.abs(x))
    exponent = power - 1
    if mode == "rp":
        exponent = exponent + (mantissa != 0.5)
    code = np.clip(np.where(x == 0, 0, exponent + 127), 0, greatest)
    code = np.where(np.isinf(x), greatest, code)
    return np.where(np.isnan(x), 255, code).astype(np.uint8)


def _widening(ops: Operands, to: str, source: str) -> Execute:
    form = FORMATS[source]
    scalar = ops.type(to)
    read = ops.source(ops.args[1], f"b{2 * form.pitch}")
    write = ops.destination(ops.args[0], to)
    table = form.values if source != "ue8m0x2" else 2.0 ** (np.arange(512.0) - 127)
    if source == "ue8m0x2":
        table[255] = np.nan
    if scalar.kind == "bf":
        halves = numerics.f64_to_bf16(table)
    else:
        halves = table.astype(np.float16)
        numerics.canonical_nan(halves)
    if ops.has("relu"):
        halves = np.where(table <= 0, halves.dtype.type(0), halves)
    mask = (1 << form.pitch) - 1

    def execute(m: Machine, lanes: Lanes) -> None:
        packed = np.broadcast_to(read(m, lanes), lanes.n)
        both = np.empty((lanes.n, 2), scalar.dtype)
        limit = 2 * form.sign - 1 if source != "ue8m0x2" else 255
        both[:, 0] = halves[packed & mask & limit]
        both[:, 1] = halves[packed >> form.pitch & limit]
        write(m, lanes, both)

    return execute
