"""`cvt` between integers, floats and packed floats (PTX ISA 9.7.9.21).

Invariant: float to integer clamps (NaN gives 0, or the middle of the range where a float64 or a
64-bit integer is involved); integer to integer wraps unless `.sat`; float results are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import numerics, small_floats
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.arith import limits
from astdsl.emulator.isa.floating import ROUNDINGS, format_of
from astdsl.emulator.isa.steps import value_step
from astdsl.emulator.scalars import TYPES, Array, Scalar
from astdsl.emulator.undefined_bits import by_element, elements, extremes, part_of

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.undefined import Flow

Convert = Callable[[Any], Array]

_INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_MAX_NORMAL = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "tf32": 3.4011621342146535e38}
_FLAGS = ("ftz", "sat", "satfinite", "relu")


def _cvt_bits(ops: Operands) -> Flow:
    """Follow bits of integers, and elements of packed results."""
    words = [word for word in ops.modifiers if word in TYPES or word in small_floats.FORMATS]
    if any(word in small_floats.FORMATS for word in words):
        return small_floats.undefined_bits(ops, words[0], words[1])
    if len(ops.args) > 2:
        wide = TYPES[words[-1]].bits
        parts = [part_of(ops, operand, 0, wide) for operand in (ops.args[2], ops.args[1])]
        for i, operand in enumerate(ops.args[3:] * 2):
            parts[i] += part_of(ops, operand, 16 * i, 16)
        return elements(ops, 16, parts)
    if any(TYPES[word].is_float for word in words) or ops.has("sat"):
        return by_element(ops)
    return extremes(ops)


@executes("cvt", bits=_cvt_bits)
def prepare_cvt(ops: Operands) -> Execute:
    """`cvt{.rnd}{.ftz}{.relu}{.sat,.satfinite}.dtype.atype d, a{, b}`."""
    if ops.has("rs"):
        return _stochastic(ops)
    words = [word for word in ops.modifiers if word in TYPES or word in small_floats.FORMATS]
    ops.allow(*ROUNDINGS, *_INTEGRAL, "rna", *_FLAGS, *small_floats.FORMATS)
    if len(words) != 2:
        raise ops.refuse("two types are needed")
    if any(word in small_floats.FORMATS for word in words):
        return small_floats.prepare(ops, words[0], words[1])
    if len(ops.args) == 3:
        return _packing(ops, words[0], words[1])
    to, source = ops.type(words[0]), ops.type(words[1])
    if to.count != source.count:
        raise ops.refuse("this pair of types is not modelled")
    return value_step(ops, converter(ops, to, source), _stored(to), [source.name])


def _stored(to: Scalar) -> str:
    return "f32" if to.kind == "tf" else to.name


@executes("cvt.pack")
def prepare_pack(ops: Operands) -> Execute:
    """`cvt.pack.sat.type.s32{.b32} d, a, b{, c}`: clamp, a above b, c above both if narrower."""
    ops.allow("pack", "sat")
    to = ops.type(ops.modifiers[2])
    if to.bits not in (8, 16):
        raise ops.refuse("only 8- and 16-bit elements are modelled")
    low, high = limits(to)
    mask, bits = (1 << to.bits) - 1, to.bits

    def function(a: Any, b: Any, c: Any = 0) -> Any:
        upper = np.clip(a, low, high).astype(np.int64) & mask
        lower = np.clip(b, low, high).astype(np.int64) & mask
        rest = np.asarray(c).astype(np.int64) << (2 * bits)
        return ((rest | upper << bits | lower) & 0xFFFFFFFF).astype(np.uint32)

    return value_step(ops, function, "b32", ["s32", "s32", "b32"][: len(ops.args) - 1])


def _packing(ops: Operands, to_name: str, source_name: str) -> Execute:
    """`cvt.rnd.{f16x2,bf16x2}.f32 d, a, b`: a becomes the upper half."""
    to = ops.type(to_name.removesuffix("x2"))
    source = ops.type(source_name)
    convert = converter(ops, to, source)
    upper, lower = (ops.source(arg, source_name) for arg in ops.args[1:3])
    write = ops.destination(ops.args[0], to_name)

    def execute(m: Machine, lanes: Lanes) -> None:
        both = np.empty((lanes.n, 2), source.dtype)
        both[:, 0] = lower(m, lanes)
        both[:, 1] = upper(m, lanes)
        write(m, lanes, convert(both))

    return execute


# Of the formats that `.rs` packs: bits of mantissa, the least exponent, and random bits.
_STOCHASTIC = {"f16x2": (10, -14, 13), "bf16x2": (7, -126, 16)}


def _stochastic(ops: Operands) -> Execute:
    """`cvt.rs{.relu}{.satfinite}.{f16x2,bf16x2}.f32 d, a, b, rbits`: rounded by random bits.

    a takes those of the upper half of rbits.  What is cut off a mantissa is rounded away from zero
    where the sum of it and the random bits carries; below the least exponent more is cut off, of
    which the random bits meet the upper part.
    """
    form = next((word for word in ops.modifiers if word in _STOCHASTIC), "")
    if not form or ops.modifiers[-1] != "f32":
        raise ops.refuse("random bits round two .f32 to .f16x2 or .bf16x2 here")
    ops.allow("rs", "relu", "satfinite", *_STOCHASTIC)
    mantissa, least, n_random = _STOCHASTIC[form]
    upper, lower = (ops.source(arg, "f32") for arg in ops.args[1:3])
    random, write = ops.source(ops.args[3], "b32"), ops.destination(ops.args[0], form)
    relu, encode = ops.has("relu"), _encoder(ops, ops.type(form.removesuffix("x2")), TYPES["f32"])
    bound = _MAX_NORMAL[form.removesuffix("x2")] if ops.has("satfinite") else np.inf

    def execute(m: Machine, lanes: Lanes) -> None:
        both = np.empty((lanes.n, 2), np.float64)
        both[:, 0], both[:, 1] = lower(m, lanes), upper(m, lanes)
        bits = np.broadcast_to(random(m, lanes), lanes.n)[:, None] >> np.array([0, 16], np.uint32)
        added = (bits & np.uint32((1 << n_random) - 1)) / 2.0**n_random
        if relu:
            both = np.where(both < 0, 0.0, both) + 0.0
        exponent = np.maximum(np.frexp(both)[1] - 1, least)
        size = np.abs(both) * 2.0 ** (mantissa - exponent)
        kept = np.floor(size)
        away = np.where(size - kept + added >= 1, kept + 1, kept) * 2.0 ** (exponent - mantissa)
        result = np.where(np.isinf(both), np.inf, away)
        result = np.where(np.isnan(both), both, np.copysign(np.minimum(result, bound), both))
        write(m, lanes, encode(result.astype(np.float32)))

    return execute


def converter(ops: Operands, to: Scalar, source: Scalar) -> Convert:
    """Return the function that converts an array of one type to another."""
    if source.is_float:
        convert = _float_to_float if to.is_float else _float_to_integer
    else:
        convert = _integer_to_float if to.is_float else _integer_to_integer
    return convert(ops, to, source)


def _integer_to_integer(ops: Operands, to: Scalar, source: Scalar) -> Convert:
    if not ops.has("sat"):
        return lambda a: np.asarray(a).astype(to.dtype)
    low, high = limits(to)
    first, last = limits(source)
    low, high = max(low, first), min(high, last)
    return lambda a: np.clip(a, low, high).astype(to.dtype)


def _rounding(ops: Operands) -> str:
    return next((word for word in ops.modifiers if word in (*ROUNDINGS, "rna")), "rn")


def integer_to_odd(a: Any) -> tuple[Array, Array]:
    """Return integers as float64, rounded to nearest, and the error."""
    whole = np.asarray(a)
    low = (whole & whole.dtype.type(0xFFFFFF)).astype(np.float64)
    high = (whole - (whole & whole.dtype.type(0xFFFFFF))).astype(np.float64)
    s = np.asarray(high + low)
    return s, numerics.two_sum_error(high, low, s)


def _integer_to_float(ops: Operands, to: Scalar, source: Scalar) -> Convert:
    convert = _rounded_integer(_rounding(ops), to, source)
    # Of the integers, [0, 1] has two.
    return (lambda a: convert(np.clip(a, 0, 1))) if ops.has("sat") else convert


def _rounded_integer(mode: str, to: Scalar, source: Scalar) -> Convert:
    if mode == "rn" and to.kind == "f" and (to.bits > 16 or source.bits < 32):
        return lambda a: np.asarray(a).astype(to.dtype)
    form = format_of(to)
    if source.bits < 32:
        return lambda a: form.encode(np.asarray(a).astype(np.float64), mode)
    if to.bits < 64:
        return lambda a: form.encode(_odd(a), mode)

    def directed(a: Any) -> Array:
        s, error = integer_to_odd(a)
        up = (error > 0) & ((mode == "rp") | ((mode == "rz") & (s < 0)))
        down = (error < 0) & ((mode == "rm") | ((mode == "rz") & (s > 0)))
        return np.where(up, np.nextafter(s, np.inf), np.where(down, np.nextafter(s, -np.inf), s))

    return directed


def _odd(a: Any) -> Array:
    s, error = integer_to_odd(np.asarray(a).astype(np.int64) if a.dtype.kind == "i" else a)
    return numerics.to_odd(s, error)


def _decoded(ops: Operands, source: Scalar) -> Convert:
    """Return what reads a float type as float32 or float64, exactly; `.ftz` is for float32."""
    if source.kind == "bf":
        return numerics.bf16_to_f32
    if ops.has("ftz") and source.name == "f32":
        return numerics.flush
    return np.asarray


def _float_to_integer(ops: Operands, to: Scalar, source: Scalar) -> Convert:
    word = next((word for word in ops.modifiers if word in _INTEGRAL), None)
    if word is None:
        raise ops.refuse("an integer rounding (.rni, .rzi, .rmi, .rpi) is needed")
    integral, decode = _INTEGRAL[word], _decoded(ops, source)
    low, high = limits(to)
    special = source.bits == 64 or to.bits == 64
    nan = to.dtype.type((1 << (to.bits - 1)) if to.kind == "u" else low) if special else 0

    def convert(a: Any) -> Array:
        whole = integral(decode(a).astype(np.float64))
        # The largest float64 below the bound; `high` itself may round up out of range.
        above, below = whole >= float(high) + 1.0, whole <= float(low)
        above |= whole >= float(high)
        inside = np.where(above | below | np.isnan(whole), 0.0, whole).astype(to.dtype)
        result = np.where(above, to.dtype.type(high), inside)
        result = np.where(below, to.dtype.type(low), result)
        return np.where(np.isnan(whole), to.dtype.type(nan), result)

    return convert


def _float_to_float(ops: Operands, to: Scalar, source: Scalar) -> Convert:
    word = next((word for word in ops.modifiers if word in _INTEGRAL), None)
    decode = _decoded(ops, source)
    encode = _encoder(ops, to, source)
    integral = None if word is None else _INTEGRAL[word]
    relu, clamp = ops.has("relu"), ops.has("sat")
    finite = _MAX_NORMAL[to.name] if ops.has("satfinite") else None

    def convert(a: Any) -> Array:
        value = decode(a)
        if integral is not None:
            value = integral(value)
        if relu:
            value = np.where(value < 0, value.dtype.type(0), value) + value.dtype.type(0)
        if clamp:
            value = numerics.saturate(value)
        if finite is not None:
            bound = value.dtype.type(finite)
            value = np.where(np.isnan(value), value, np.clip(value, -bound, bound))
        return encode(value)

    return convert


def _encoder(ops: Operands, to: Scalar, source: Scalar) -> Convert:
    """Return what rounds float32 or float64 values to the type, with canonical NaNs."""
    mode = _rounding(ops)
    if to.kind == "tf":
        return partial(numerics.f32_to_tf32, mode=mode)
    if to.kind == "bf":
        if source.bits < 64:
            return lambda value: numerics.f32_to_bf16(value.astype(np.float32), mode)
        return lambda value: numerics.f64_to_bf16(value, mode)
    if to.name == "f16" and mode == "rn":
        return numerics.to_f16
    flush = ops.has("ftz") and to.name == "f32"
    widening = to.bits >= source.bits and source.kind == "f"

    def encode(value: Array) -> Array:
        if widening or mode == "rn":
            result = np.asarray(value.astype(to.dtype))
        else:
            result = np.asarray(format_of(to).encode(value.astype(np.float64), mode))
        if flush:
            result = numerics.flush(result)
        if result.ndim:
            numerics.canonical_nan(result)
        return result

    return encode
