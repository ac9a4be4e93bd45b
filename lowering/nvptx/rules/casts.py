"""Lowering of conversions between element types.

Invariant: every conversion rounds once. Floats become integers by PTX's `cvt`, which saturates
where LLVM's `fptosi` is undefined (PTX ISA 9.7.9.21).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from astdsl.ir import ops
from astdsl.ir.dtypes import BOOL, DType, bf16, f4e2m1, f8e8m0, f16, f32, f64, tf32
from astdsl.ir.dtypes import i32 as word
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.nvptx.asm import arith
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.function import Emitter, llvm_type, lowers_tile
from astdsl.lowering.nvptx.rules.elements import (
    PACKED_DTYPES,
    has_pairs,
    is_narrow,
    lowers_elements,
    unpacked,
)
from astdsl.lowering.nvptx.values import LV, constant, i32, with_element
from astdsl.lowering.small_floats import SMALL

_TF32_DROPPED_BITS = 13
_MANTISSA_BITS = 23  # of f32
_NO_POWER = 255  # the NaN of f8e8m0
_UNPACK = {"f8e4m3": arith.UNPACK_E4M3, "f8e5m2": arith.UNPACK_E5M2}
_PACK = {"f8e4m3": arith.PACK_E4M3, "f8e5m2": arith.PACK_E5M2}
# Two neighbours are converted at once, into one register (PTX ISA 9.7.9.21, `.f16x2`, `.bf16x2`).
_PAIRED = (f16, bf16)
Conversion: TypeAlias = Callable[[Emitter, DType, DType, LV], LV]


@lowers_tile(ops.Cast)
def _cast(emitter: Emitter, op: ops.Cast, layout: Layout) -> Sequence[LV]:
    registers = emitter.get(op.x, layout)
    distinct = list(dict.fromkeys(registers))
    source, target = op.x.tile.dtype, op.dtype
    if target in _PAIRED and source is f32 and has_pairs(layout) and distinct == list(registers):
        vectors = emitter.builder.vectors(registers) or emitter.builder.together(registers, 2)
        return unpacked(emitter, [converted(emitter, source, target, x) for x in vectors])
    found = _all_converted(emitter, source, target, distinct)
    made = dict(zip(distinct, found, strict=True))
    return [made[x] for x in registers]


def _all_converted(
    emitter: Emitter, source: DType, target: DType, values: Sequence[LV]
) -> Sequence[LV]:
    """Write several elements as `target`; 8-bit floats are converted two at a time."""
    if source is target:
        return values
    builder = emitter.builder
    if source in SMALL:
        read = _READ.get(source)
        values = [read(builder, x) for x in values] if read else _unpacked(builder, source, values)
        source = f32
    if target not in SMALL:
        vectors = builder.vectors(values) if {source, target} <= PACKED_DTYPES else []
        found = [converted(emitter, source, target, x) for x in vectors or values]
        return unpacked(emitter, found) if vectors else found
    singles = [_to_single(emitter, source, x) for x in values]
    write = _WRITTEN.get(target)
    return [write(builder, x) for x in singles] if write else _packed(builder, target, singles)


def _f32_of_e8m0(builder: Builder, x: LV) -> LV:
    """Write f8e8m0 as f32: its code is the exponent, 0 is 2**-127 and 255 NaN."""
    code = builder.cast("zext", x, "i32")
    bits = builder.shl(code, i32(_MANTISSA_BITS))
    half = i32(1 << (_MANTISSA_BITS - 1))  # 2**-127 as f32; in a NaN the bit that makes it quiet
    is_end = builder.icmp("eq", builder.and_(builder.add(code, i32(1)), i32(0xFE)), i32(0))
    return builder.cast("bitcast", builder.select(is_end, builder.or_(bits, half), bits), "float")


def _e8m0_of_f32(builder: Builder, x: LV) -> LV:
    """Write f32 as f8e8m0: to nearest, ties to the even code, saturating; negative as NaN."""
    bits = builder.cast("bitcast", x, "i32")
    mantissa_bits = i32(_MANTISSA_BITS)
    last = builder.and_(builder.lshr(bits, mantissa_bits), i32(1))
    below_half = i32((1 << (_MANTISSA_BITS - 1)) - 1)
    rounded = builder.lshr(builder.add(bits, builder.add(last, below_half)), mantissa_bits)
    # Subnormal f32 lie around 2**-127 and below it: above 1.5 times that they are nearer 2**-126.
    is_normal = builder.icmp("ugt", bits, i32((1 << _MANTISSA_BITS) - 1))
    is_above = builder.cast("zext", builder.icmp("ugt", bits, i32(3 << 21)), "i32")
    code = builder.select(is_normal, rounded, is_above)
    code = builder.intrinsic("llvm.umin", code, i32(_NO_POWER - 1))
    is_power = builder.fcmp("oge", x, constant("float", 0.0))
    code = builder.select(is_power, code, i32(_NO_POWER))
    is_zero = builder.fcmp("oeq", x, constant("float", 0.0))  # -0.0 has the largest bits
    return builder.cast("trunc", builder.select(is_zero, i32(0), code), "i8")


def _f32_of_e2m1(builder: Builder, x: LV) -> LV:
    """Write f4e2m1 as f32: its bits as those of a tiny f32 are 2**-126 of the number, exactly."""
    code = builder.cast("zext", x, "i32")
    size = builder.shl(builder.and_(code, i32(7)), i32(_MANTISSA_BITS - 1))
    tiny = builder.or_(size, builder.shl(builder.and_(code, i32(8)), i32(28)))
    return builder.binary(
        "fmul", builder.cast("bitcast", tiny, "float"), constant("float", 2.0**126)
    )


def _e2m1_of_f32(builder: Builder, x: LV) -> LV:
    """Write f32 as f4e2m1, to nearest even and saturating; NaN is 6 (`cvt.rn.satfinite`)."""
    size = builder.intrinsic("llvm.fabs", x)
    code = i32(0)
    for middle, is_up in _E2M1_MIDDLES:  # unordered comparisons: a NaN is beyond each
        reached = builder.fcmp("uge" if is_up else "ugt", size, constant("float", middle))
        code = builder.add(code, builder.cast("zext", reached, "i32"))
    sign = builder.and_(builder.lshr(builder.cast("bitcast", x, "i32"), i32(28)), i32(8))
    is_number = builder.fcmp("ord", x, x)
    signed = builder.or_(code, builder.select(is_number, sign, i32(0)))
    return builder.cast("trunc", signed, "i8")


# Between neighbours of f4e2m1: the middle, and whether it goes up, to the even code.
_E2M1_MIDDLES = (
    (0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True),
    (5.0, False),
)  # fmt: skip
_READ: dict[DType, Callable[[Builder, LV], LV]] = {
    f8e8m0: _f32_of_e8m0,
    f4e2m1: _f32_of_e2m1,
}
_WRITTEN: dict[DType, Callable[[Builder, LV], LV]] = {
    f8e8m0: _e8m0_of_f32,
    f4e2m1: _e2m1_of_f32,
}


def _unpacked(builder: Builder, source: DType, values: Sequence[LV]) -> list[LV]:
    """Write 8-bit floats as f32, exactly."""
    found: list[LV] = []
    for low, high in _pairs([builder.cast("zext", x, "i16") for x in values]):
        both = builder.or_(low, builder.shl(high, constant("i16", 8)))
        (halves,) = builder.asm(_UNPACK[source.name], both)
        found += [builder.cast("fpext", half, "float") for half in builder.unpack(halves)]
    return found[: len(values)]


def _packed(builder: Builder, target: DType, values: Sequence[LV]) -> list[LV]:
    """Write f32 as 8-bit floats, to nearest even and saturating (PTX ISA, `.satfinite`)."""
    found: list[LV] = []
    for low, high in _pairs(values):
        (both,) = builder.asm(_PACK[target.name], low, high)
        upper = builder.lshr(both, constant("i16", 8))
        found += [builder.cast("trunc", x, "i8") for x in (both, upper)]
    return found[: len(values)]


def _pairs(values: Sequence[LV]) -> Iterator[tuple[LV, LV]]:
    """Yield neighbours; a last one without a neighbour comes with itself."""
    for k in range(0, len(values), 2):
        yield values[k], values[min(k + 1, len(values) - 1)]


def _to_single(emitter: Emitter, source: DType, x: LV) -> LV:
    """Write an element as f32 that rounding to 8 bits does not spoil."""
    # Integers that f32 does not hold are beyond every 8-bit float.
    if source is f64:
        return _rounded_to_odd(emitter.builder, x)
    return converted(emitter, source, f32, x)


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
    if source in SMALL or target in SMALL:
        (found,) = _all_converted(emitter, source, target, [x])
        return found
    if target.kind == BOOL:
        return is_nonzero(emitter, source, x)
    if target is tf32:
        return _to_tf32(emitter, source, x)
    kinds = (source.is_float, target.is_float)
    return _CONVERSIONS[kinds](emitter, source, target, x)


def rounded_to_tf32(builder: Builder, x: LV) -> LV:
    """Write a `float` with 10 bits of mantissa, to nearest even; `cvt.rna` takes ties away."""
    bits = builder.cast("bitcast", x, "i32")
    last = builder.and_(builder.lshr(bits, i32(_TF32_DROPPED_BITS)), i32(1))
    below_half = (1 << (_TF32_DROPPED_BITS - 1)) - 1
    moved = builder.add(bits, builder.add(last, i32(below_half)))
    kept = builder.and_(moved, i32(-1 << _TF32_DROPPED_BITS))
    magnitude = builder.intrinsic("llvm.fabs", x)
    is_finite = builder.fcmp("olt", magnitude, constant("float", math.inf))
    return builder.select(is_finite, builder.cast("bitcast", kept, "float"), x)


def _to_tf32(emitter: Emitter, source: DType, x: LV) -> LV:
    if is_narrow(source) or source is f32:
        return rounded_to_tf32(emitter.builder, converted(emitter, source, f32, x))
    wide = converted(emitter, source, f64, x)
    return rounded_to_tf32(emitter.builder, _rounded_to_odd(emitter.builder, wide))


def _rounded_to_odd(builder: Builder, x: LV) -> LV:
    """Write a `double` as a `float` that rounding again, to fewer bits, does not spoil.

    S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008.
    """
    near = builder.cast("fptrunc", x, "float")
    wide = builder.cast("fpext", near, "double")
    magnitudes = [builder.intrinsic("llvm.fabs", value) for value in (wide, x)]
    too_far = builder.cast("zext", builder.fcmp("ogt", *magnitudes), "i32")
    inexact = builder.cast("zext", builder.fcmp("one", wide, x), "i32")
    cut = builder.sub(builder.cast("bitcast", near, "i32"), too_far)
    return builder.cast("bitcast", builder.or_(cut, inexact), "float")


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
    if source.bits == target.bits and is_narrow(source):  # f16, bf16: through f32 alone, exact
        x, source = emitter.builder.cast("fpext", x, with_element(x.type, "float")), f32
    operation = "fptrunc" if target.bits < source.bits else "fpext"
    return emitter.builder.cast(operation, x, with_element(x.type, llvm_type(target)))


def _to_integer(emitter: Emitter, source: DType, target: DType, x: LV) -> LV:
    builder = emitter.builder
    if is_narrow(source):
        x, source = builder.cast("fpext", x, "float"), f32
    bits = max(target.bits, word.bits)
    row = arith.to_integer(x.type, f"{'s' if target.is_signed else 'u'}{bits}")
    (number,) = builder.asm(row, x)
    if source is f64 or bits > word.bits:  # else cvt makes 0 of NaN by itself
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
