"""Division that rounds to minus infinity, as Python's `//` and `%` do, of integers and floats.

Invariant: LLVM's division is undefined for a divisor of 0 and for the least integer over -1; it
is never reached with either. Dividing by a power of two is a shift, which rounds down as well.
"""

from __future__ import annotations

from astdsl.ir.dtypes import DType
from astdsl.lowering.nvptx import folding, libdevice
from astdsl.lowering.nvptx.function import Emitter
from astdsl.lowering.nvptx.values import LV, constant


def floor_divide(emitter: Emitter, dtype: DType, x: LV, y: LV) -> LV:
    """Write `x // y`; integer division by 0 gives 0."""
    return (
        _floor_divide_floats(emitter, x, y) if dtype.is_float else _quotient(emitter, dtype, x, y)
    )


def remainder(emitter: Emitter, dtype: DType, x: LV, y: LV) -> LV:
    """Write `x % y`, with the sign of `y`; integer remainder by 0 gives 0."""
    return _remainder_floats(emitter, x, y) if dtype.is_float else _rest(emitter, dtype, x, y)


def _quotient(emitter: Emitter, dtype: DType, x: LV, y: LV) -> LV:
    builder, zero = emitter.builder, constant(x.type, 0)
    exponent = _exponent(y)
    if exponent is not None:
        shift = "ashr" if dtype.is_signed else "lshr"
        return builder.binary(shift, x, constant(x.type, exponent))
    divisor, is_zero = _safe_divisor(emitter, dtype, x, y)
    if not dtype.is_signed:
        return builder.select(is_zero, zero, builder.binary("udiv", x, divisor))
    quotient = builder.binary("sdiv", x, divisor)
    rest = builder.sub(x, builder.mul(quotient, divisor))
    down = builder.cast("zext", _is_opposite(emitter, rest, divisor), x.type)
    return builder.select(is_zero, zero, builder.sub(quotient, down))


def _rest(emitter: Emitter, dtype: DType, x: LV, y: LV) -> LV:
    builder, zero = emitter.builder, constant(x.type, 0)
    exponent = _exponent(y)
    if exponent is not None:
        return builder.and_(x, constant(x.type, (1 << exponent) - 1))
    divisor, is_zero = _safe_divisor(emitter, dtype, x, y)
    if not dtype.is_signed:
        return builder.select(is_zero, zero, builder.binary("urem", x, divisor))
    rest = builder.binary("srem", x, divisor)
    up = builder.select(_is_opposite(emitter, rest, divisor), divisor, zero)
    return builder.select(is_zero, zero, builder.add(rest, up))


def _exponent(y: LV) -> int | None:
    """Return k if the divisor is the constant 2**k, as a signed number."""
    number = folding.number_of(y)
    if number is None or number <= 0 or number & (number - 1):
        return None
    return number.bit_length() - 1


def _safe_divisor(emitter: Emitter, dtype: DType, x: LV, y: LV) -> tuple[LV, LV]:
    """Return a divisor that LLVM may divide by, and whether `y` is 0.

    The least integer is divided by 1 in place of -1: wrapped, the result is the same.
    """
    builder = emitter.builder
    is_zero = builder.icmp("eq", y, constant(y.type, 0))
    refused = is_zero
    if dtype.is_signed:
        least = builder.icmp("eq", x, constant(x.type, 1 << (dtype.bits - 1)))
        overflows = builder.and_(least, builder.icmp("eq", y, constant(y.type, -1)))
        refused = builder.or_(is_zero, overflows)
    return builder.select(refused, constant(y.type, 1), y), is_zero


def _is_opposite(emitter: Emitter, rest: LV, divisor: LV) -> LV:
    """Return whether a remainder is not 0 and has not the divisor's sign."""
    builder, zero = emitter.builder, constant(rest.type, 0)
    differs = builder.icmp("slt", builder.xor(rest, divisor), zero)
    return builder.and_(builder.icmp("ne", rest, zero), differs)


def _truncated_remainder(emitter: Emitter, x: LV, y: LV) -> tuple[LV, LV, LV]:
    """Return `fmod(x, y)`, whether it is not 0, and whether its sign is not that of `y`.

    NaN counts as not 0, and as positive.
    """
    builder, zero = emitter.builder, constant(x.type, 0)
    rest = libdevice.call(builder, "fmod", x, y, target=emitter.target)
    is_some = builder.fcmp("une", rest, zero)
    signs = (builder.fcmp("olt", y, zero), builder.fcmp("olt", rest, zero))
    return rest, is_some, builder.and_(is_some, builder.xor(*signs))


def _remainder_floats(emitter: Emitter, x: LV, y: LV) -> LV:
    builder, zero = emitter.builder, constant(x.type, 0)
    rest, is_some, is_opposite = _truncated_remainder(emitter, x, y)
    moved = builder.select(is_opposite, builder.binary("fadd", rest, y), rest)
    exact = builder.intrinsic("llvm.copysign", zero, y)
    return builder.select(is_some, moved, exact)


def _floor_divide_floats(emitter: Emitter, x: LV, y: LV) -> LV:
    """Write NumPy's `floor_divide`: the quotient without the remainder, put on a whole number."""
    builder, zero = emitter.builder, constant(x.type, 0)
    one, half = constant(x.type, 1), constant(x.type, 0.5)
    plain = builder.binary("fdiv", x, y)
    rest, _, is_opposite = _truncated_remainder(emitter, x, y)
    near = builder.binary("fdiv", builder.binary("fsub", x, rest), y)
    near = builder.select(is_opposite, builder.binary("fsub", near, one), near)
    below = builder.intrinsic("llvm.floor", near)
    is_above = builder.fcmp("ogt", builder.binary("fsub", near, below), half)
    whole = builder.select(is_above, builder.binary("fadd", below, one), below)
    whole = builder.select(
        builder.fcmp("une", near, zero), whole, builder.intrinsic("llvm.copysign", zero, plain)
    )
    return builder.select(builder.fcmp("oeq", y, zero), plain, whole)
