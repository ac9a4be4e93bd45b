"""Lowering of elementwise arithmetic, comparisons and bits.

Invariant: no instruction carries fast-math flags, so nothing is contracted or re-associated; and
none is reached with operands for which LLVM's meaning is undefined where ours is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from astdsl.ir import ops
from astdsl.ir.core import Op
from astdsl.ir.dtypes import BOOL, DType, tf32
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.nvptx.asm import arith
from astdsl.lowering.nvptx.function import Emitter, element, lowers_tile
from astdsl.lowering.nvptx.rules.casts import rounded_to_tf32
from astdsl.lowering.nvptx.rules.division import floor_divide, remainder
from astdsl.lowering.nvptx.rules.elements import ElementRule, in_single, lowers_elements
from astdsl.lowering.nvptx.values import LV, constant, i1


@lowers_tile(ops.Constant)
def _constant(emitter: Emitter, op: ops.Constant, layout: Layout) -> Sequence[LV]:
    del emitter
    return [element(op.type.dtype, op.value)] * layout.register_count


def _binary(of_floats: str, of_integers: str, of_bools: str) -> ElementRule:
    def rule(emitter: Emitter, dtype: DType, x: LV, y: LV) -> LV:
        if dtype.is_float:
            return emitter.builder.binary(of_floats, x, y)
        return emitter.builder.binary(of_bools if dtype.kind == BOOL else of_integers, x, y)

    return rule


add = _binary("fadd", "add", "or")
multiply = _binary("fmul", "mul", "and")
_subtract = _binary("fsub", "sub", "xor")


def _divide(emitter: Emitter, dtype: DType, x: LV, y: LV) -> LV:
    if emitter.approx_math and x.type == "float":
        (quotient,) = emitter.builder.asm(arith.DIV_APPROX, x, y)
        return quotient
    return emitter.builder.binary("fdiv", x, y)


def _extreme(name: str, of_bools: str) -> ElementRule:
    def rule(emitter: Emitter, dtype: DType, x: LV, y: LV) -> LV:
        if dtype.is_float:
            return emitter.builder.intrinsic(f"llvm.{name}imum", x, y)
        if dtype.kind == BOOL:
            return emitter.builder.binary(of_bools, x, y)
        sign = "s" if dtype.is_signed else "u"
        return emitter.builder.intrinsic(f"llvm.{sign}{name}", x, y)

    return rule


minimum = _extreme("min", "and")
maximum = _extreme("max", "or")


def _bitwise(name: str) -> ElementRule:
    def rule(emitter: Emitter, dtype: DType, x: LV, y: LV) -> LV:
        return emitter.builder.binary(name, x, y)

    return rule


def _within(emitter: Emitter, dtype: DType, count: LV) -> tuple[LV, LV]:
    """Return a shift count, and whether it is below the width.

    Counts of 64 bits are bounded first: LLVM 22 takes PTX's shift, which saturates, for the shift
    with its bound, and passes on the low 32 bits of the count.
    """
    builder, width = emitter.builder, constant(count.type, dtype.bits)
    if count.type == "i64":
        count = builder.intrinsic("llvm.umin", count, width)
    return count, builder.icmp("ult", count, width)


def _shift_left(emitter: Emitter, dtype: DType, x: LV, count: LV) -> LV:
    count, inside = _within(emitter, dtype, count)
    return emitter.builder.select(inside, emitter.builder.shl(x, count), constant(x.type, 0))


def _shift_right(emitter: Emitter, dtype: DType, x: LV, count: LV) -> LV:
    builder = emitter.builder
    count, inside = _within(emitter, dtype, count)
    if not dtype.is_signed:
        return builder.select(inside, builder.lshr(x, count), constant(x.type, 0))
    last = constant(count.type, dtype.bits - 1)
    return builder.binary("ashr", x, builder.select(inside, count, last))


def _negate(emitter: Emitter, dtype: DType, x: LV) -> LV:
    return (
        emitter.builder.fneg(x) if dtype.is_float else emitter.builder.sub(constant(x.type, 0), x)
    )


def _absolute(emitter: Emitter, dtype: DType, x: LV) -> LV:
    if dtype.is_float:
        return emitter.builder.intrinsic("llvm.fabs", x)
    return emitter.builder.intrinsic("llvm.abs", x, i1(False)) if dtype.is_signed else x


def _invert(emitter: Emitter, dtype: DType, x: LV) -> LV:
    return emitter.builder.xor(x, constant(x.type, -1))


def _rounded(name: str) -> ElementRule:
    def rule(emitter: Emitter, dtype: DType, x: LV) -> LV:
        return emitter.builder.intrinsic(f"llvm.{name}", x) if dtype.is_float else x

    return rule


def _is_nan(emitter: Emitter, dtype: DType, x: LV) -> LV:
    return emitter.builder.fcmp("uno", x, x) if dtype.is_float else i1(False)


def _is_inf(emitter: Emitter, dtype: DType, x: LV) -> LV:
    if not dtype.is_float:
        return i1(False)
    magnitude = emitter.builder.intrinsic("llvm.fabs", x)
    return emitter.builder.fcmp("oeq", magnitude, constant(x.type, math.inf))


def _fma(emitter: Emitter, dtype: DType, x: LV, y: LV, z: LV) -> LV:
    if dtype.is_float:
        return emitter.builder.intrinsic("llvm.fma", x, y, z)
    return add(emitter, dtype, multiply(emitter, dtype, x, y), z)


PLAIN: dict[type[Op], ElementRule] = {
    ops.Add: add,
    ops.Subtract: _subtract,
    ops.Multiply: multiply,
    ops.Divide: in_single(_divide),
    ops.FloorDivide: in_single(floor_divide),
    ops.Remainder: in_single(remainder),
    ops.Minimum: minimum,
    ops.Maximum: maximum,
    ops.BitAnd: _bitwise("and"),
    ops.BitOr: _bitwise("or"),
    ops.BitXor: _bitwise("xor"),
    ops.ShiftLeft: _shift_left,
    ops.ShiftRight: _shift_right,
    ops.Negate: _negate,
    ops.Absolute: _absolute,
    ops.Invert: _invert,
    ops.Floor: _rounded("floor"),
    ops.Ceil: _rounded("ceil"),
    ops.Round: _rounded("roundeven"),
    ops.IsNan: _is_nan,
    ops.IsInf: _is_inf,
    ops.Fma: _fma,
}


@lowers_elements(*PLAIN)
def _plain(emitter: Emitter, op: Op, *operands: LV) -> LV:
    made = PLAIN[type(op)](emitter, op.operands[0].tile.dtype, *operands)
    return rounded_to_tf32(emitter.builder, made) if op.result.tile.dtype is tf32 else made


@lowers_elements(ops.Select)
def _select(emitter: Emitter, op: ops.Select, condition: LV, x: LV, y: LV) -> LV:
    del op
    return emitter.builder.select(condition, x, y)
