"""Floating-point arithmetic of f16, bf16, f32, f64 and their packed forms (PTX ISA 9.7.3-9.7.5).

Invariant: results are the correctly rounded ones for the rounding mode; NaNs of 16- and 32-bit
results are canonical; `.approx` and `.full` forms give the correctly rounded value too, which is
within the error that the ISA states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import numerics
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.steps import ufunc_step, value_step
from astdsl.emulator.scalars import TYPES, Array, Scalar
from astdsl.emulator.undefined_bits import by_element, extremes

if TYPE_CHECKING:
    from astdsl.emulator.operands import Operands

ROUNDINGS = ("rn", "rz", "rm", "rp")
Decode = Callable[[Any], Array]
Encode = Callable[[Array, str], Array]


@dataclass(frozen=True, slots=True)
class Format:
    """How values of a type become float64 and how float64 is rounded to it, by mode."""

    decode: Decode
    encode: Encode
    nan: int


def _widen(x: Any) -> Array:
    return np.asarray(x).astype(np.float64)


FORMATS: dict[tuple[str, int], Format] = {
    ("f", 16): Format(_widen, numerics.round_f16, 0x7FFF),
    ("f", 32): Format(_widen, numerics.round_f32, 0x7FFFFFFF),
    ("f", 64): Format(_widen, lambda x, mode: x, 0x7FFFFFFFFFFFFFFF),
    ("bf", 16): Format(
        lambda x: numerics.bf16_to_f32(x).astype(np.float64), numerics.f64_to_bf16, 0x7FFF
    ),
}


def format_of(scalar: Scalar) -> Format:
    """Return the format of a floating-point type's elements."""
    return FORMATS[scalar.kind, scalar.element_bits]


# What each operation is, exactly or rounded to odd, in float64 for narrower operands.


def _add(a: Array, b: Array) -> Array:
    s = np.asarray(a + b)
    return numerics.to_odd(s, numerics.two_sum_error(a, b, s))


EXACT: dict[str, Callable[..., Array]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, -b),
    # Products of two 24-bit significands fit into 53 bits; quotients and roots of them are never
    # so close to a narrower value or midpoint that rounding to 53 bits first could matter.
    "mul": lambda a, b: a * b,
    "fma": numerics.fma_to_odd,
    "div": lambda a, b: a / b,
    "sqrt": np.sqrt,
    "rcp": lambda a: 1.0 / a,
}

# Of what a result is the sum.
_ADDENDS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "add": lambda a, b: (a, b),
    "sub": lambda a, b: (a, -b),
    "fma": lambda a, b, c: (a * b, c),
}


def _exact(name: str, mode: str) -> Callable[..., Array]:
    """Return an operation on float64; a sum that is zero is -0 when rounding down (IEEE 754)."""
    exact, addends = EXACT[name], _ADDENDS.get(name)
    if mode != "rm" or addends is None:
        return exact

    def rounded_down(*values: Array) -> Array:
        total = exact(*values)
        zero = total == 0
        if not zero.any():
            return total
        a, b = addends(*values)
        return np.where(zero & (np.signbit(a) | np.signbit(b)), -0.0, total)

    return rounded_down


# What NumPy rounds to nearest itself, in the type's own arithmetic.
_UFUNCS: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
}
_NATIVE = {("f", 16): ("add", "sub", "mul"), ("f", 32): tuple(_UFUNCS), ("f", 64): tuple(_UFUNCS)}
_FUSED = {("f", 32): numerics.fma_f32, ("f", 64): numerics.fma_f64}


def prepare(ops: Operands, name: str, n_sources: int) -> Execute:
    """Return the step of an arithmetic operation on floats."""
    ops.allow(*ROUNDINGS, "ftz", "sat", "relu", "approx", "full", "oob")
    if ops.has("oob"):
        raise ops.refuse(".oob is not modelled")
    scalar = ops.last_type()
    types = [word for word in ops.modifiers if word in TYPES]
    if len(types) > 1:
        return _mixed(ops, name, types)
    mode = next((word for word in ops.modifiers if word in ROUNDINGS), "rn")
    key = (scalar.kind, scalar.element_bits)
    plain = mode == "rn" and not (ops.has("ftz") or ops.has("sat") or ops.has("relu"))
    after = numerics.canonical_nan if scalar.element_bits < 64 else None
    if plain and name in _NATIVE.get(key, ()):
        return ufunc_step(ops, _UFUNCS[name], scalar.name, n_sources, after)
    function = _finish(ops, _rounded(name, scalar, mode), scalar)
    return value_step(ops, function, scalar.name, [scalar.name] * n_sources)


def _rounded(name: str, scalar: Scalar, mode: str) -> Callable[..., Array]:
    """Return the correctly rounded function on values of the type."""
    key = (scalar.kind, scalar.element_bits)
    if mode == "rn" and name in _NATIVE.get(key, ()):
        return _UFUNCS[name]  # type: ignore[no-any-return]
    if mode == "rn" and name == "fma" and key in _FUSED:
        return _FUSED[key]
    if mode == "rn" and name == "rcp" and key in _FUSED:
        return lambda a: np.asarray(scalar.dtype.type(1) / a)
    if key == ("f", 64):
        return lambda *values: directed_f64(name, values, mode)
    exact, form = _exact(name, mode), format_of(scalar)
    return lambda *values: form.encode(np.asarray(exact(*map(form.decode, values))), mode)


def _finish(ops: Operands, function: Callable[..., Array], scalar: Scalar) -> Callable[..., Array]:
    """Add flushing, clamping and canonical NaNs to a rounded function."""
    ftz, clamp, relu = ops.has("ftz"), ops.has("sat"), ops.has("relu")
    if scalar.kind == "bf":
        return _finish_bf16(function, clamp=clamp, relu=relu)
    flush = ftz and scalar.element_bits < 64

    def finished(*values: Any) -> Array:
        if flush:
            result = numerics.flush(function(*map(numerics.flush, values)))
        else:
            result = np.asarray(function(*values))
        if clamp:
            result = numerics.saturate(result)
        if relu:
            result = np.where(result > 0, result, np.where(np.isnan(result), result, 0))
            result = result.astype(scalar.dtype)
        if result.ndim:
            numerics.canonical_nan(result)
        return result

    return finished


def _finish_bf16(
    function: Callable[..., Array], *, clamp: bool, relu: bool
) -> Callable[..., Array]:
    if not (clamp or relu):
        return function

    def finished(*values: Any) -> Array:
        result = numerics.bf16_to_f32(function(*values))
        if clamp:
            result = numerics.saturate(result)
        if relu:
            result = np.where(result < 0, np.float32(0), result) + np.float32(0)
        return numerics.f32_to_bf16(result)

    return finished


def directed_f64(name: str, values: tuple[Any, ...], mode: str) -> Array:
    """Return a float64 operation rounded toward zero, down or up, one value at a time."""
    arrays = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in values))
    nearest = np.array(_rounded(name, TYPES["f64"], "rn")(*arrays), np.float64)
    for place in np.ndindex(nearest.shape):
        operands = [float(a[place]) for a in arrays]
        got = float(nearest[place])
        if not all(map(np.isfinite, operands)) or np.isnan(got):
            continue
        if name in ("div", "rcp") and operands[-1] == 0:
            continue
        sign = _compare(name, operands, got)
        if got == 0 and sign == 0 and mode == "rm" and name in _ADDENDS:
            negative = any(map(np.signbit, _ADDENDS[name](*operands)))
            nearest[place] = -0.0 if negative else 0.0
        else:
            nearest[place] = _toward(got, sign, mode)
    return nearest


def _compare(name: str, operands: list[float], got: float) -> int:
    """Return the sign of (exact result - got)."""
    x = [Fraction(v) for v in operands]
    if np.isinf(got):
        return -1 if got > 0 else 1
    g = Fraction(got)
    if name == "sqrt":
        return int(x[0] > g * g) - int(x[0] < g * g)
    exact = {
        "add": lambda: x[0] + x[1],
        "sub": lambda: x[0] - x[1],
        "mul": lambda: x[0] * x[1],
        "fma": lambda: x[0] * x[1] + x[2],
        "div": lambda: x[0] / x[1],
        "rcp": lambda: 1 / x[0],
    }[name]()
    return int(exact > g) - int(exact < g)


def _toward(got: float, sign: int, mode: str) -> float:
    if sign == 0:
        return got
    if mode == "rz":
        inward = (sign < 0) == (got > 0) and got != 0
        return float(np.nextafter(got, 0.0)) if inward else got
    if (mode == "rp") == (sign > 0):
        return float(np.nextafter(got, np.inf if sign > 0 else -np.inf))
    return got


def _mixed(ops: Operands, name: str, types: list[str]) -> Execute:
    """`add/sub/fma{.rnd}.f32.{f16,bf16} d, a, c` (PTX ISA 9.7.5): narrow a (and b), f32 c."""
    narrow = ops.type(types[1])
    mode = next((word for word in ops.modifiers if word in ROUNDINGS), "rn")
    sources = [narrow.name] * (2 if name == "fma" else 1) + ["f32"]
    formats = [format_of(ops.type(source)) for source in sources]
    exact = _exact(name, mode)

    def rounded(*values: Any) -> Array:
        wide = [form.decode(v) for form, v in zip(formats, values, strict=True)]
        return numerics.round_f32(np.asarray(exact(*wide)), mode)

    return value_step(ops, _finish(ops, rounded, TYPES["f32"]), "f32", sources)


@executes("fma", bits=by_element)
def prepare_fma(ops: Operands) -> Execute:
    """`fma.rnd{.ftz}{.sat}{.relu}.float d, a, b, c`: rounded once."""
    return prepare(ops, "fma", 3)


@executes("sqrt")
def prepare_sqrt(ops: Operands) -> Execute:
    """`sqrt{.approx,.rnd}{.ftz}.float`."""
    return prepare(ops, "sqrt", 1)


@executes("rcp")
def prepare_rcp(ops: Operands) -> Execute:
    """`rcp{.approx,.rnd}{.ftz}.float`."""
    return prepare(ops, "rcp", 1)


# Signs: on the bits, so that NaNs keep theirs.


def prepare_sign(ops: Operands, name: str) -> Execute:
    """`neg{.ftz}.float`, `abs{.ftz}.float`."""
    ops.allow("ftz")
    scalar = ops.last_type()
    sign = 1 << (scalar.element_bits - 1)
    bits = f"u{scalar.element_bits}" + ("x2" if scalar.count == 2 else "")
    if scalar.name == "f32x2":
        raise ops.refuse("there is no packed f32 sign operation")
    dtype = TYPES[bits].dtype.type
    if ops.has("ftz"):
        function = np.negative if name == "neg" else np.absolute
        type_name = scalar.name
        return value_step(ops, lambda a: function(numerics.flush(a)), type_name, [type_name])
    if name == "neg":
        return value_step(ops, lambda a: a ^ dtype(sign), bits, [bits])
    return value_step(ops, lambda a: a & dtype(sign - 1), bits, [bits])


@executes("copysign", bits=extremes)
def prepare_copysign(ops: Operands) -> Execute:
    """`copysign.type d, a, b`: the sign of a with the value of b (PTX ISA 9.7.3.2)."""
    ops.allow()
    name = ops.last_type().name
    return value_step(ops, lambda a, b: np.copysign(b, a), name, [name] * 2)


_TESTS: dict[str, Callable[[Any], Any]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    # Zeros are "considered normal numbers".
    "normal": lambda a: np.isfinite(a) & ((a == 0) | (np.abs(a) >= np.finfo(a.dtype).tiny)),
    "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
}


@executes("testp")
def prepare_testp(ops: Operands) -> Execute:
    """`testp.op.type p, a` (PTX ISA 9.7.3.1)."""
    ops.allow(*_TESTS)
    return value_step(ops, _TESTS[ops.modifiers[0]], "pred", [ops.last_type().name])


# Least and greatest.


def prepare_extreme(ops: Operands, *, greatest: bool) -> Execute:
    """`{min,max}{.ftz}{.NaN}{.xorsign.abs}.float d, a, b{, c}`; +0 > -0; NaN gives the other."""
    ops.allow("ftz", "NaN", "xorsign", "abs")
    scalar = ops.last_type()
    form = format_of(scalar)
    number = np.fmax if greatest else np.fmin
    strict = np.maximum if greatest else np.minimum
    bf16, flush = scalar.kind == "bf", ops.has("ftz")
    has_nan, has_xorsign, has_abs = (ops.has(word) for word in ("NaN", "xorsign", "abs"))

    def decoded(x: Any) -> Array:
        wide = numerics.bf16_to_f32(x) if bf16 else np.asarray(x)
        return numerics.flush(wide) if flush else wide

    def function(*values: Any) -> Any:
        arrays = [decoded(v) for v in values]
        sign = None
        if has_xorsign:
            sign = np.signbit(arrays[0]) ^ np.signbit(arrays[1])
        if has_abs:
            arrays = [np.abs(a) for a in arrays]
        result = arrays[0]
        for other in arrays[1:]:
            chosen = strict(result, other) if has_nan else _number(number, result, other)
            result = _signed_zero(chosen, result, other, greatest)
        if sign is not None:
            signed = np.where(sign, -np.abs(result), np.abs(result))
            result = np.where(np.isnan(result), result, signed)
        if bf16:
            return numerics.f32_to_bf16(result)
        nan = np.isnan(result)
        if nan.any():
            width = f"u{scalar.element_bits // 8}"
            result = np.where(nan, np.array(form.nan, width).view(scalar.dtype), result)
        return result

    return value_step(ops, function, scalar.name, [scalar.name] * (len(ops.args) - 1))


def _number(choose: Any, a: Array, b: Array) -> Any:
    """Return fmin or fmax; NumPy's give a NaN for a signalling one, but only in some places."""
    result = choose(a, b)
    nan = np.isnan(result)
    return np.where(nan, np.where(np.isnan(a), b, a), result) if nan.any() else result


def _signed_zero(result: Any, a: Array, b: Array, greatest: bool) -> Any:
    """Correct results that are zero: max(+0, -0) = +0, min = -0, whatever the order."""
    zero = result == 0
    if not zero.any():
        return result
    zero &= (a == 0) & (b == 0)
    negative = np.signbit(a) & np.signbit(b) if greatest else np.signbit(a) | np.signbit(b)
    signed = np.where(negative, result.dtype.type(-0.0), result.dtype.type(0.0))
    return np.where(zero, signed, result)
