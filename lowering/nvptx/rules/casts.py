"""Lowering of conversions between element types.

Invariant: every conversion rounds once. Floats become integers by PTX's `cvt`, which saturates
where LLVM's `fptosi` is undefined (PTX ISA 9.7.9.21).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from astdsl.ir import ops
from astdsl.ir.dtypes import BOOL, DType, f32, f64, i32
from astdsl.lowering.nvptx.asm import arith
from astdsl.lowering.nvptx.function import Emitter, llvm_type
from astdsl.lowering.nvptx.rules.elements import is_narrow, lowers_elements
from astdsl.lowering.nvptx.values import LV, constant

Conversion: TypeAlias = Callable[[Emitter, DType, DType, LV], LV]


@lowers_elements(ops.Cast)
def _cast(emitter: Emitter, op: ops.Cast, x: LV) -> LV:
    return converted(emitter, op.x.tile.dtype, op.dtype, x)


@lowers_elements(ops.Bitcast)
def _bitcast(emitter: Emitter, op: ops.Bitcast, x: LV) -> LV:
    builder, source, target = emitter.builder, op.x.tile.dtype, op.dtype
    if source.kind == BOOL:
        x = builder.cast("zext", x, "i8")
    if target.kind == BOOL:
        return builder.cast("trunc", x, "i1")
    return builder.cast("bitcast", x, llvm_type(target))


def converted(emitter: Emitter, source: DType, target: DType, x: LV) -> LV:
    """Write `x` as `target`, by the rules of `ops.Cast`."""
    if source is target:
        return x
    if target.kind == BOOL:
        return is_nonzero(emitter, source, x)
    kinds = (source.is_float, target.is_float)
    return _CONVERSIONS[kinds](emitter, source, target, x)


def is_nonzero(emitter: Emitter, dtype: DType, x: LV) -> LV:
    """Write whether an element differs from 0, as NaN does."""
    zero = constant(x.type, 0)
    if dtype.is_float:
        return emitter.builder.fcmp("une", x, zero)
    return emitter.builder.icmp("ne", x, zero)


def _resized(emitter: Emitter, source: DType, target: DType, x: LV) -> LV:
    if target.bits < source.bits:
        return emitter.builder.cast("trunc", x, llvm_type(target))
    return emitter.builder.cast("sext" if source.is_signed else "zext", x, llvm_type(target))


def _to_float(emitter: Emitter, source: DType, target: DType, x: LV) -> LV:
    operation = "sitofp" if source.is_signed else "uitofp"
    return emitter.builder.cast(operation, x, llvm_type(target))


def _between_floats(emitter: Emitter, source: DType, target: DType, x: LV) -> LV:
    if source.bits == target.bits:  # f16 and bf16: no way but through f32, which is exact
        x, source = emitter.builder.cast("fpext", x, "float"), f32
    operation = "fptrunc" if target.bits < source.bits else "fpext"
    return emitter.builder.cast(operation, x, llvm_type(target))


def _to_integer(emitter: Emitter, source: DType, target: DType, x: LV) -> LV:
    builder = emitter.builder
    if is_narrow(source):
        x, source = builder.cast("fpext", x, "float"), f32
    bits = max(target.bits, i32.bits)
    row = arith.to_integer(x.type, f"{'s' if target.is_signed else 'u'}{bits}")
    (number,) = builder.asm(row, x)
    if source is f64 or bits > i32.bits:  # else cvt makes 0 of NaN by itself
        number = builder.select(builder.fcmp("uno", x, x), constant(number.type, 0), number)
    return _clamped(emitter, target, number) if target.bits < bits else number


def _clamped(emitter: Emitter, target: DType, number: LV) -> LV:
    """Return an i32 as a smaller integer, saturating."""
    builder, bits = emitter.builder, target.bits
    if target.is_signed:
        number = builder.intrinsic("llvm.smin", number, constant("i32", (1 << (bits - 1)) - 1))
        number = builder.intrinsic("llvm.smax", number, constant("i32", -(1 << (bits - 1))))
    else:
        number = builder.intrinsic("llvm.umin", number, constant("i32", (1 << bits) - 1))
    return builder.cast("trunc", number, llvm_type(target))


# By whether the source and the target are floats.
_CONVERSIONS: dict[tuple[bool, bool], Conversion] = {
    (False, False): _resized,
    (False, True): _to_float,
    (True, False): _to_integer,
    (True, True): _between_floats,
}
