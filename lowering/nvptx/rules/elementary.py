"""Lowering of square roots, elementary functions and powers.

Invariant: without `approx_math` these are IEEE (`sqrt`) or libdevice's; with it, the approximate
instructions of PTX ISA 9.7.3. Floats under 32 bits are computed in f32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Op
from astdsl.ir.dtypes import DType
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.nvptx import libdevice
from astdsl.lowering.nvptx.asm import arith
from astdsl.lowering.nvptx.asm.row import AsmRow
from astdsl.lowering.nvptx.blocks import Phi
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.function import Emitter, lowers_tile
from astdsl.lowering.nvptx.rules.arith import multiply
from astdsl.lowering.nvptx.rules.elements import ElementRule, in_single, lowers_elements
from astdsl.lowering.nvptx.values import LV, Label, constant, i32

_SQUARE = 2
Approximation: TypeAlias = Callable[[Emitter, LV], LV]

FUNCTIONS: dict[type[Op], str] = {
    ops.Rsqrt: "rsqrt",
    ops.Exp: "exp",
    ops.Exp2: "exp2",
    ops.Log: "log",
    ops.Log2: "log2",
    ops.Tanh: "tanh",
    ops.Erf: "erf",
    ops.Sin: "sin",
    ops.Cos: "cos",
}


def _instruction(row: AsmRow) -> Approximation:
    def write(emitter: Emitter, x: LV) -> LV:
        (result,) = emitter.builder.asm(row, x)
        return result

    return write


def _approximate_exp(emitter: Emitter, x: LV) -> LV:
    scaled = emitter.builder.binary("fmul", x, constant("float", math.log2(math.e)))
    return _instruction(arith.EX2_APPROX)(emitter, scaled)


def _approximate_log(emitter: Emitter, x: LV) -> LV:
    of_two = _instruction(arith.LG2_APPROX)(emitter, x)
    return emitter.builder.binary("fmul", of_two, constant("float", math.log(2)))


_APPROXIMATIONS: dict[type[Op], Approximation] = {
    ops.Sqrt: _instruction(arith.SQRT_APPROX),
    ops.Rsqrt: _instruction(arith.RSQRT_APPROX),
    ops.Exp: _approximate_exp,
    ops.Exp2: _instruction(arith.EX2_APPROX),
    ops.Log: _approximate_log,
    ops.Log2: _instruction(arith.LG2_APPROX),
    ops.Tanh: _instruction(arith.TANH_APPROX),
    ops.Sin: _instruction(arith.SIN_APPROX),
    ops.Cos: _instruction(arith.COS_APPROX),
}


def _function(kind: type[Op]) -> ElementRule:
    def rule(emitter: Emitter, dtype: DType, x: LV) -> LV:
        if emitter.approx_math and x.type == "float" and kind in _APPROXIMATIONS:
            return _APPROXIMATIONS[kind](emitter, x)
        if kind is ops.Sqrt:
            return emitter.builder.intrinsic("llvm.sqrt", x)
        return libdevice.call(emitter.builder, FUNCTIONS[kind], x, target=emitter.target)

    return in_single(rule)


_KINDS: tuple[type[Op], ...] = (ops.Sqrt, *FUNCTIONS)
_RULES = {kind: _function(kind) for kind in _KINDS}


@lowers_elements(*_RULES)
def _elementary(emitter: Emitter, op: Op, x: LV) -> LV:
    return _RULES[type(op)](emitter, op.operands[0].tile.dtype, x)


@lowers_tile(ops.Power)
def _power(emitter: Emitter, op: ops.Power, layout: Layout) -> Sequence[LV]:
    dtype, bases = op.x.tile.dtype, emitter.get(op.x, layout)
    known = emitter.known(op.y)
    if known == _SQUARE or (known is not None and known >= 0 and not dtype.is_float):
        return [_known_power(emitter, dtype, x, int(known)) for x in bases]
    exponents = emitter.get(op.y, layout)
    if dtype.is_float:
        pairs = zip(bases, exponents, strict=True)
        return [_power_of_floats(emitter, dtype, x, y) for x, y in pairs]
    powers = _powers(emitter, dtype, bases, exponents)
    if not dtype.is_signed:
        return powers
    return [
        _with_negative_exponent(emitter, x, y, power)
        for x, y, power in zip(bases, exponents, powers, strict=True)
    ]


def _known_power(emitter: Emitter, dtype: DType, x: LV, exponent: int) -> LV:
    """Write a power by squaring; for floats only the square, which is rounded once."""
    result = None
    while exponent:
        if exponent & 1:
            result = x if result is None else multiply(emitter, dtype, result, x)
        exponent >>= 1
        x = multiply(emitter, dtype, x, x) if exponent else x
    return constant(x.type, 1) if result is None else result


def _pow(emitter: Emitter, dtype: DType, x: LV, y: LV) -> LV:
    return libdevice.call(emitter.builder, "pow", x, y, target=emitter.target)


_power_of_floats = in_single(_pow)


def _powers(
    emitter: Emitter, dtype: DType, bases: Sequence[LV], exponents: Sequence[LV]
) -> list[LV]:
    """Write the powers of integers modulo 2**bits, by squaring, one bit of the exponents a turn.

    Every thread takes as many turns as the exponents have bits, so that none goes ahead.
    """
    builder, kind = emitter.builder, bases[0].type
    before, header = builder.current, builder.block("power")
    body, after = builder.block("power.turn"), builder.block("power.end")
    builder.br(header)
    builder.position(header)
    turn = builder.phi("i32", "turn")
    turn.add(i32(0), before)
    columns = [
        [_entering(builder, value, before) for value in start]
        for start in ([constant(kind, 1)] * len(bases), bases, exponents)
    ]
    builder.cond_br(builder.icmp("ult", turn.value, i32(dtype.bits)), body, after)
    builder.position(body)
    for power, base, exponent in zip(*columns, strict=True):
        is_odd = builder.cast("trunc", exponent.value, "i1")
        more = builder.mul(power.value, base.value)
        power.add(builder.select(is_odd, more, power.value), body)
        base.add(builder.mul(base.value, base.value), body)
        exponent.add(builder.lshr(exponent.value, constant(kind, 1)), body)
    turn.add(builder.add(turn.value, i32(1)), body)
    builder.back_br(header)
    builder.position(after)
    return [power.value for power in columns[0]]


def _entering(builder: Builder, value: LV, source: Label) -> Phi:
    phi = builder.phi(value.type)
    phi.add(value, source)
    return phi


def _with_negative_exponent(emitter: Emitter, x: LV, y: LV, power: LV) -> LV:
    """Return the power, or for a negative exponent the reciprocal rounded to zero."""
    builder = emitter.builder
    one, zero = constant(x.type, 1), constant(x.type, 0)
    is_unit = builder.icmp("ult", builder.add(x, one), constant(x.type, 3))
    inverse = builder.select(builder.and_(is_unit, builder.icmp("ne", x, zero)), power, zero)
    return builder.select(builder.icmp("slt", y, zero), inverse, power)
