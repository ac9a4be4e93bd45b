"""Integer arithmetic (PTX ISA 9.7.1, 9.7.2), and which family an arithmetic opcode belongs to.

Invariant: integers wrap at their width; what the ISA leaves to the machine (division by zero) is
all ones for a quotient and the dividend for a remainder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.isa import Execute, executes, floating
from astdsl.emulator.isa.steps import ufunc_step, value_step
from astdsl.emulator.scalars import SIGNED, UNSIGNED, Array
from astdsl.emulator.undefined import row_of
from astdsl.emulator.undefined_bits import anything, by_element, extremes, smeared, summed

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import Scalar
    from astdsl.emulator.undefined import Flow


def is_integer(ops: Operands) -> bool:
    """Say whether the opcode ends in an integer or bit type."""
    return not ops.last_type().is_float


def _sum_bits(ops: Operands) -> Flow:
    return by_element(ops) if ops.last_type().is_float or ops.has("sat") else summed(ops)


@executes("add", bits=_sum_bits)
def prepare_add(ops: Operands) -> Execute:
    """`add{.sat}.type`, `add{.rnd}{.ftz}{.sat}.float`."""
    if not is_integer(ops):
        return floating.prepare(ops, "add", 2)
    return _add_or_sub(ops, np.add)


@executes("sub", bits=_sum_bits)
def prepare_sub(ops: Operands) -> Execute:
    """`sub{.sat}.type`, `sub{.rnd}{.ftz}{.sat}.float`."""
    if not is_integer(ops):
        return floating.prepare(ops, "sub", 2)
    return _add_or_sub(ops, np.subtract)


def _add_or_sub(ops: Operands, ufunc: Any) -> Execute:
    ops.allow("sat")
    scalar = ops.last_type()
    if not ops.has("sat"):
        return ufunc_step(ops, ufunc, scalar.name, 2)
    wide = np.int64

    def saturated(a: Any, b: Any) -> Any:
        low, high = limits(scalar)
        return np.clip(ufunc(wide(a), wide(b)), low, high).astype(scalar.dtype)

    return value_step(ops, saturated, scalar.name, [scalar.name] * 2)


def limits(scalar: Scalar) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    info = np.iinfo(scalar.dtype)
    return int(info.min), int(info.max)


# Products.


def multiply_high(a: Any, b: Any, scalar: Scalar) -> Any:
    """Return the upper half of the double-width product."""
    bits = scalar.element_bits
    if bits < 64:
        wide = (SIGNED if scalar.kind == "s" else UNSIGNED)[2 * bits]
        product = np.multiply(a, b, dtype=wide) >> wide.type(bits)
        return product.astype(scalar.dtype)
    high = _high_u64(np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64))
    if scalar.kind != "s":
        return high
    # Of a two's complement product: subtract the other operand where one is negative.
    signed = high.view(np.int64)
    return signed - np.where(np.less(a, 0), b, 0) - np.where(np.less(b, 0), a, 0)


def _high_u64(a: Array, b: Array) -> Array:
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & mask, b >> half, b & mask
    middle = a_high * b_low + ((a_low * b_low) >> half)
    carry = (middle & mask) + a_low * b_high
    return a_high * b_high + (middle >> half) + (carry >> half)  # type: ignore[no-any-return]


def _widened(scalar: Scalar) -> tuple[str, np.dtype[Any]]:
    bits = 2 * scalar.element_bits
    table = SIGNED if scalar.kind == "s" else UNSIGNED
    return f"{scalar.kind}{bits}", table[bits]


def _product_bits(ops: Operands) -> Flow:
    exact = ops.has("lo") or ops.has("wide")
    return smeared(ops) if exact and not ops.has("sat") else by_element(ops)


@executes("mul", bits=_product_bits)
def prepare_mul(ops: Operands) -> Execute:
    """`mul.{lo,hi,wide}.type`, `mul{.rnd}{.ftz}{.sat}.float`."""
    if not is_integer(ops):
        return floating.prepare(ops, "mul", 2)
    ops.allow("lo", "hi", "wide")
    scalar = ops.last_type()
    if ops.has("wide"):
        name, dtype = _widened(scalar)
        return value_step(ops, lambda a, b: np.multiply(a, b, dtype=dtype), name, [scalar.name] * 2)
    if ops.has("hi"):
        return value_step(
            ops, lambda a, b: multiply_high(a, b, scalar), scalar.name, [scalar.name] * 2
        )
    return ufunc_step(ops, np.multiply, scalar.name, 2)


@executes("mad", bits=_product_bits)
def prepare_mad(ops: Operands) -> Execute:
    """`mad.{lo,hi,wide}.type`; of floats the same as `fma` (PTX ISA 9.7.3.7)."""
    if not is_integer(ops):
        return floating.prepare(ops, "fma", 3)
    ops.allow("lo", "hi", "wide", "sat")
    scalar = ops.last_type()
    if ops.has("wide"):
        name, dtype = _widened(scalar)
        types = [scalar.name, scalar.name, name]
        return value_step(ops, lambda a, b, c: np.multiply(a, b, dtype=dtype) + c, name, types)
    types = [scalar.name] * 3
    if ops.has("sat"):
        low, high = limits(scalar)

        def saturated(a: Any, b: Any, c: Any) -> Any:
            total = multiply_high(a, b, scalar).astype(np.int64) + c
            return np.clip(total, low, high).astype(scalar.dtype)

        return value_step(ops, saturated, scalar.name, types)
    if ops.has("hi"):
        return value_step(ops, lambda a, b, c: multiply_high(a, b, scalar) + c, scalar.name, types)
    return value_step(ops, lambda a, b, c: a * b + c, scalar.name, types)


@executes("mul24", "mad24")
def prepare_mul24(ops: Operands) -> Execute:
    """`mul24.{lo,hi}`, `mad24.{lo,hi}`: products of the low 24 bits (PTX ISA 9.7.1.5)."""
    ops.allow("lo", "hi", "sat")
    scalar = ops.last_type()
    shift, low, high = 16 if ops.has("hi") else 0, *limits(scalar)

    def low24(x: Any) -> Any:
        wide = np.asarray(x).astype(np.int64)
        return (wide << 40) >> 40 if scalar.kind == "s" else wide & 0xFFFFFF

    def function(a: Any, b: Any, c: Any = 0) -> Any:
        whole = ((low24(a) * low24(b)) >> shift) + c
        return (np.clip(whole, low, high) if ops.has("sat") else whole).astype(scalar.dtype)

    return value_step(ops, function, scalar.name, [scalar.name] * (len(ops.args) - 1))


# Quotients.


def divide(a: Any, b: Any, scalar: Scalar) -> Any:
    """Return the quotient rounded toward zero."""
    divisor = np.where(np.equal(b, 0), 1, b).astype(scalar.dtype)
    quotient = np.floor_divide(a, divisor)
    if scalar.kind == "s":
        rest = a - quotient * divisor
        quotient = quotient + ((rest != 0) & (np.less(a, 0) != (divisor < 0)))
    return np.where(np.equal(b, 0), ~scalar.dtype.type(0), quotient)


def remainder(a: Any, b: Any, scalar: Scalar) -> Any:
    """Return the remainder, which has the sign of the dividend."""
    divisor = np.where(np.equal(b, 0), 1, b).astype(scalar.dtype)
    return np.where(np.equal(b, 0), a, np.fmod(a, divisor))


@executes("div")
def prepare_div(ops: Operands) -> Execute:
    """`div.type`, `div{.approx,.full,.rnd}{.ftz}.float`."""
    if not is_integer(ops):
        return floating.prepare(ops, "div", 2)
    ops.allow()
    scalar = ops.last_type()
    return value_step(ops, lambda a, b: divide(a, b, scalar), scalar.name, [scalar.name] * 2)


@executes("rem")
def prepare_rem(ops: Operands) -> Execute:
    """`rem.type`."""
    ops.allow()
    scalar = ops.last_type()
    return value_step(ops, lambda a, b: remainder(a, b, scalar), scalar.name, [scalar.name] * 2)


# One operand, least and greatest.


def _sign_bits(ops: Operands) -> Flow:
    """Follow a float's sign as the bit that it is, if nothing is flushed, and integers as sums."""
    if ops.has("ftz"):
        return by_element(ops)
    if ops.last_type().is_float:
        return extremes(ops)
    return summed(ops) if ops.instruction.opcode.startswith("neg") else anything(ops)


@executes("abs", bits=_sign_bits)
def prepare_abs(ops: Operands) -> Execute:
    """`abs.type`."""
    if not is_integer(ops):
        return floating.prepare_sign(ops, "abs")
    ops.allow()
    return ufunc_step(ops, np.absolute, ops.last_type().name, 1)


@executes("neg", bits=_sign_bits)
def prepare_neg(ops: Operands) -> Execute:
    """`neg.type`."""
    if not is_integer(ops):
        return floating.prepare_sign(ops, "neg")
    ops.allow()
    return ufunc_step(ops, np.negative, ops.last_type().name, 1)


@executes("min", bits=by_element)
def prepare_min(ops: Operands) -> Execute:
    """`min{.relu}.type`, `min{.ftz}{.NaN}{.xorsign.abs}.float`."""
    if not is_integer(ops):
        return floating.prepare_extreme(ops, greatest=False)
    return _extreme(ops, np.minimum)


@executes("max", bits=by_element)
def prepare_max(ops: Operands) -> Execute:
    """`max{.relu}.type`, `max{.ftz}{.NaN}{.xorsign.abs}.float`."""
    if not is_integer(ops):
        return floating.prepare_extreme(ops, greatest=True)
    return _extreme(ops, np.maximum)


def _extreme(ops: Operands, ufunc: Any) -> Execute:
    ops.allow("relu")
    name = ops.last_type().name
    if not ops.has("relu"):
        return ufunc_step(ops, ufunc, name, 2)
    return value_step(ops, lambda a, b: np.maximum(ufunc(a, b), 0), name, [name] * 2)


@executes("sad")
def prepare_sad(ops: Operands) -> Execute:
    """`sad.type d, a, b, c`: d = c + |a - b|."""
    ops.allow()
    name = ops.last_type().name

    def function(a: Any, b: Any, c: Any) -> Any:
        return np.maximum(a, b) - np.minimum(a, b) + c

    return value_step(ops, function, name, [name] * 3)


@executes("dp4a", "dp2a")
def prepare_dot(ops: Operands) -> Execute:
    """`dp4a.atype.btype d, a, b, c`, `dp2a.{lo,hi}...` (PTX ISA 9.7.1.23, 9.7.1.24)."""
    ops.allow("lo", "hi")
    kinds = [word[0] for word in ops.modifiers if word in ("u32", "s32")]
    four = ops.instruction.opcode.startswith("dp4a")
    first = np.arange(4) if four else np.arange(2) + (2 if ops.has("hi") else 0)

    def parts(x: Any, kind: str, bits: int) -> Array:
        table = SIGNED if kind == "s" else UNSIGNED
        whole = np.ascontiguousarray(np.atleast_1d(x)).view(table[bits])
        return whole.reshape(-1, 32 // bits).astype(np.int64)

    def function(a: Any, b: Any, c: Any) -> Any:
        left = parts(a, kinds[0], 8 if four else 16)
        right = parts(b, kinds[1], 8)[:, first]
        return ((left * right).sum(axis=1) + c).astype(np.uint32)

    return value_step(ops, function, "u32", ["u32", "u32", f"{kinds[0]}32"])


# Extended precision: the carry flag (PTX ISA 9.7.2).


def _carrying(ops: Operands, *, subtract: bool, product: bool) -> Execute:
    ops.allow("cc", "lo", "hi")
    scalar = ops.last_type()
    dtype = UNSIGNED[scalar.bits]
    n = 3 if product else 2
    reads = [ops.source(arg, scalar.name) for arg in ops.args[1 : 1 + n]]
    write = ops.destination(ops.args[0], scalar.name)
    takes = ops.instruction.opcode.split(".")[0].endswith("c")
    gives, high = ops.has("cc"), ops.has("hi")
    carries = ops.layout.carry(ops.function)
    ops.reads += [carries] * takes
    ops.writes += [carries] * gives

    def execute(m: Machine, lanes: Lanes) -> None:
        flag = row_of(m, carries)
        values = [np.asarray(read(m, lanes)) for read in reads]
        if product:
            left, right, addend = values
            first = multiply_high(left, right, scalar) if high else left * right
            values = [np.asarray(first), addend]
        a, b = (value.view(dtype) for value in values)
        carry = flag[lanes.sel].astype(dtype) if takes else dtype.type(0)
        if subtract:
            partial = a - b
            total = partial - carry
            out = (a < b) | (partial < carry)
        else:
            partial = a + b
            total = partial + carry
            out = (partial < a) | (total < partial)
        if gives:
            flag[lanes.sel] = out
        write(m, lanes, total.view(scalar.dtype))

    return execute


@executes("add.cc", "addc")
def prepare_add_carry(ops: Operands) -> Execute:
    """`add.cc`, `addc{.cc}`: with carry out, in."""
    return _carrying(ops, subtract=False, product=False)


@executes("sub.cc", "subc")
def prepare_sub_borrow(ops: Operands) -> Execute:
    """`sub.cc`, `subc{.cc}`: with borrow out, in."""
    return _carrying(ops, subtract=True, product=False)


@executes("mad.lo.cc", "mad.hi.cc", "madc")
def prepare_mad_carry(ops: Operands) -> Execute:
    """`mad.{lo,hi}.cc`, `madc.{lo,hi}{.cc}`: multiply and add with carry out, in."""
    return _carrying(ops, subtract=False, product=True)
