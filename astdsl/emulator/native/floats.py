"""Floating-point arithmetic (PTX ISA 9.7.3), as `isa.floating` and `isa.elementary` do.

Invariant: only forms whose bits the standard fixes are written: rounded to nearest, NaNs canonical.
Nothing is reassociated or contracted; results of f64, whose NaNs keep a payload, are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from astdsl.emulator.native.exponential import exponential
from astdsl.emulator.native.table import NotCompiled, compiles, only
from astdsl.emulator.scalars import TYPES

if TYPE_CHECKING:
    from astdsl.emulator.native.writer import Writer
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import Scalar

_NAN = {32: 0x7FFFFFFF, 16: 0x7FFF}
_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_SIGN, _MAGNITUDE, _LEAST_NORMAL = 0x80000000, 0x7FFFFFFF, 0x00800000


def _float_type(ops: Operands) -> Scalar:
    """Return the one type of the instruction, f32 or two of them."""
    scalar = ops.last_type()
    types = [word for word in ops.modifiers if word in TYPES]
    if scalar.name not in ("f32", "f32x2") or len(types) > 1:
        raise NotCompiled
    return scalar


def canonical(w: Writer, scalar: Scalar, value: str) -> str:
    """Make NaNs the canonical one."""
    kind, mask = w.type(scalar), w.vector("i1", scalar.count)
    nan = f"splat (i{scalar.element_bits} {_NAN[scalar.element_bits]})"
    fixed = w.emit(f"bitcast {w.bits(scalar)} {nan} to {kind}")
    is_nan = w.emit(f"fcmp uno {kind} {value}, {value}")
    return w.emit(f"select {mask} {is_nan}, {kind} {fixed}, {kind} {value}")


def flushed(w: Writer, scalar: Scalar, value: str) -> str:
    """Make subnormals zero of the same sign."""
    kind, bits, mask = w.type(scalar), w.bits(scalar), w.vector("i1", scalar.count)
    raw = w.emit(f"bitcast {kind} {value} to {bits}")
    size = w.emit(f"and {bits} {raw}, splat (i32 {_MAGNITUDE})")
    zero = w.emit(f"and {bits} {raw}, splat (i32 {_SIGN})")
    tiny = w.emit(f"icmp ult {bits} {size}, splat (i32 {_LEAST_NORMAL})")
    chosen = w.emit(f"select {mask} {tiny}, {bits} {zero}, {bits} {raw}")
    return w.emit(f"bitcast {bits} {chosen} to {kind}")


def _values(w: Writer, ops: Operands, scalar: Scalar, count: int) -> list[str]:
    values = [w.read(ops, operand, scalar.name) for operand in ops.args[1 : 1 + count]]
    if all(ops.is_literal(operand) for operand in ops.args[1 : 1 + count]):
        raise NotCompiled
    return [flushed(w, scalar, each) for each in values] if ops.has("ftz") else values


def _finish(w: Writer, ops: Operands, scalar: Scalar, value: str) -> None:
    if ops.has("ftz"):
        value = flushed(w, scalar, value)
    w.write(ops, ops.args[0], scalar.name, canonical(w, scalar, value))


def arithmetic(w: Writer, ops: Operands) -> None:
    """`{add,sub,mul,div}.{f32,f32x2}`, and `mad`, which is `fma`."""
    only(ops, "rn", "ftz", "approx", "full")
    scalar = _float_type(ops)
    word = _BINARY.get(ops.instruction.opcode.partition(".")[0])
    if word is None:
        fused(w, ops)
        return
    first, second = _values(w, ops, scalar, 2)
    _finish(w, ops, scalar, w.emit(f"{word} {w.type(scalar)} {first}, {second}"))


compiles("div")(arithmetic)


@compiles("fma")
def fused(w: Writer, ops: Operands) -> None:
    """`fma.rn{.ftz}.{f32,f32x2}`: the host's, rounded once."""
    only(ops, "rn", "ftz")
    scalar = _float_type(ops)
    values = _values(w, ops, scalar, 3)
    _finish(w, ops, scalar, w.call("fma", w.type(scalar), *values))


@compiles("sqrt")
def root(w: Writer, ops: Operands) -> None:
    """`sqrt{.approx,.rn}{.ftz}.f32`."""
    only(ops, "rn", "ftz", "approx")
    scalar = _float_type(ops)
    (value,) = _values(w, ops, scalar, 1)
    _finish(w, ops, scalar, w.call("sqrt", w.type(scalar), value))


@compiles("rcp")
def reciprocal(w: Writer, ops: Operands) -> None:
    """`rcp{.approx,.rn}{.ftz}.f32`."""
    only(ops, "rn", "ftz", "approx")
    scalar = _float_type(ops)
    (value,) = _values(w, ops, scalar, 1)
    _finish(w, ops, scalar, w.emit(f"fdiv {w.type(scalar)} splat (float 1.0), {value}"))


@compiles("ex2")
def power_of_two(w: Writer, ops: Operands) -> None:
    """`ex2.approx{.ftz}.f32`."""
    only(ops, "approx", "ftz")
    scalar = _float_type(ops)
    (value,) = _values(w, ops, scalar, 1)
    _finish(w, ops, scalar, exponential(w, value))


def sign(w: Writer, ops: Operands) -> None:
    """`{neg,abs}{.ftz}.f32`: on the bits, so that NaNs keep theirs."""
    only(ops, "ftz")
    scalar = _float_type(ops)
    if scalar.count > 1:
        raise NotCompiled
    (value,) = _values(w, ops, scalar, 1)
    kind, bits = w.type(scalar), w.bits(scalar)
    raw = w.emit(f"bitcast {kind} {value} to {bits}")
    is_neg = ops.instruction.opcode.startswith("neg")
    change = f"xor {bits} {raw}, splat (i32 {_SIGN})"
    keep = f"and {bits} {raw}, splat (i32 {_MAGNITUDE})"
    w.write(ops, ops.args[0], "b32", w.emit(change if is_neg else keep))


def extreme(w: Writer, ops: Operands) -> None:
    """`{min,max}{.ftz}{.NaN}.f32 d, a, b{, c}`; +0 > -0; without `.NaN` a NaN gives the other."""
    only(ops, "ftz", "NaN")
    scalar = _float_type(ops)
    if scalar.count > 1:
        raise NotCompiled
    greatest = ops.instruction.opcode.startswith("max")
    values = _values(w, ops, scalar, len(ops.args) - 1)
    result = values[0]
    for other in values[1:]:
        result = _extreme_of(w, scalar, (result, other), greatest=greatest, nan=ops.has("NaN"))
    w.write(ops, ops.args[0], scalar.name, canonical(w, scalar, result))


def _extreme_of(
    w: Writer, scalar: Scalar, pair: tuple[str, str], *, greatest: bool, nan: bool
) -> str:
    a, b = pair
    kind, bits, mask = w.type(scalar), w.bits(scalar), w.vector("i1")
    first = w.emit(f"fcmp {'ogt' if greatest else 'olt'} {kind} {a}, {b}")
    value = w.emit(f"select {mask} {first}, {kind} {a}, {kind} {b}")
    # Equal numbers have equal bits, but for the sign of zeros.
    equal = w.emit(f"fcmp oeq {kind} {a}, {b}")
    raw = [w.emit(f"bitcast {kind} {each} to {bits}") for each in pair]
    joined = w.emit(f"{'and' if greatest else 'or'} {bits} {raw[0]}, {raw[1]}")
    both = w.emit(f"bitcast {bits} {joined} to {kind}")
    value = w.emit(f"select {mask} {equal}, {kind} {both}, {kind} {value}")
    # What is chosen where the second is no number; where the first is none, it is the second.
    missing = b if nan else a
    is_nan = w.emit(f"fcmp uno {kind} {b}, {b}")
    value = w.emit(f"select {mask} {is_nan}, {kind} {missing}, {kind} {value}")
    if nan:
        is_nan = w.emit(f"fcmp uno {kind} {a}, {a}")
        value = w.emit(f"select {mask} {is_nan}, {kind} {a}, {kind} {value}")
    return value
