"""Integer arithmetic, logic and shifts (PTX ISA 9.7.1, 9.7.8), as `isa.arith` and `isa.bits` do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astdsl.emulator.native import floats
from astdsl.emulator.native.table import NotCompiled, compiles, only
from astdsl.emulator.scalars import TYPES

if TYPE_CHECKING:
    from astdsl.emulator.native.writer import Writer
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import Scalar

_BINARY = {"add": "add", "sub": "sub", "and": "and", "or": "or", "xor": "xor"}
_MAX_WIDE_BITS = 64


def _base(ops: Operands) -> str:
    return ops.instruction.opcode.partition(".")[0]


def _operands(w: Writer, ops: Operands, name: str, count: int) -> list[str]:
    return [w.read(ops, operand, name) for operand in ops.args[1 : 1 + count]]


@compiles("add", "sub")
def add_or_sub(w: Writer, ops: Operands) -> None:
    """`{add,sub}.type`."""
    if ops.last_type().is_float:
        floats.arithmetic(w, ops)
    else:
        logic(w, ops)


@compiles("and", "or", "xor")
def logic(w: Writer, ops: Operands) -> None:
    """`{and,or,xor}.type`."""
    only(ops)
    scalar = ops.last_type()
    first, second = _operands(w, ops, scalar.name, 2)
    value = w.emit(f"{_BINARY[_base(ops)]} {w.type(scalar)} {first}, {second}")
    w.write(ops, ops.args[0], scalar.name, value)


@compiles("not")
def invert(w: Writer, ops: Operands) -> None:
    """`not.type`."""
    only(ops)
    scalar = ops.last_type()
    (value,) = _operands(w, ops, scalar.name, 1)
    ones = "true" if scalar.kind == "pred" else "-1"
    ones = f"splat (i{scalar.element_bits} {ones})"
    w.write(ops, ops.args[0], scalar.name, w.emit(f"xor {w.type(scalar)} {value}, {ones}"))


@compiles("mul")
def multiply(w: Writer, ops: Operands) -> None:
    """`mul.{lo,hi,wide}.type`."""
    if ops.last_type().is_float:
        floats.arithmetic(w, ops)
        return
    only(ops, "lo", "hi", "wide")
    product, scalar = _product(w, ops)
    w.write(ops, ops.args[0], scalar.name, product)


@compiles("mad")
def multiply_add(w: Writer, ops: Operands) -> None:
    """`mad.{lo,hi,wide}.type`."""
    if ops.last_type().is_float:
        floats.arithmetic(w, ops)
        return
    only(ops, "lo", "hi", "wide")
    product, scalar = _product(w, ops)
    addend = w.read(ops, ops.args[3], scalar.name)
    w.write(ops, ops.args[0], scalar.name, w.emit(f"add {w.type(scalar)} {product}, {addend}"))


def _product(w: Writer, ops: Operands) -> tuple[str, Scalar]:
    """Write the product of the first two operands; return it and its type."""
    scalar = ops.last_type()
    first, second = _operands(w, ops, scalar.name, 2)
    if not (ops.has("wide") or ops.has("hi")):
        return w.emit(f"mul {w.type(scalar)} {first}, {second}"), scalar
    bits = 2 * scalar.bits
    if bits > _MAX_WIDE_BITS or scalar.count > 1:
        raise NotCompiled
    word, kind = ("sext" if scalar.kind == "s" else "zext"), w.vector(f"i{bits}")
    wide = [w.emit(f"{word} {w.type(scalar)} {each} to {kind}") for each in (first, second)]
    product = w.emit(f"mul {kind} {wide[0]}, {wide[1]}")
    if ops.has("wide"):
        return product, TYPES[f"{scalar.kind}{bits}"]
    high = w.emit(f"lshr {kind} {product}, splat (i{bits} {scalar.bits})")
    return w.emit(f"trunc {kind} {high} to {w.type(scalar)}"), scalar


@compiles("min", "max")
def extreme(w: Writer, ops: Operands) -> None:
    """`{min,max}.type`."""
    if ops.last_type().is_float:
        floats.extreme(w, ops)
        return
    only(ops)
    scalar = ops.last_type()
    first, second = _operands(w, ops, scalar.name, 2)
    word = ("s" if scalar.kind == "s" else "u") + ("lt" if _base(ops) == "min" else "gt")
    chosen = w.emit(f"icmp {word} {w.type(scalar)} {first}, {second}")
    mask = w.vector("i1", scalar.count)
    kind = w.type(scalar)
    value = w.emit(f"select {mask} {chosen}, {kind} {first}, {kind} {second}")
    w.write(ops, ops.args[0], scalar.name, value)


@compiles("neg", "abs")
def sign(w: Writer, ops: Operands) -> None:
    """`{neg,abs}.type`: of integers, the least stays as it is."""
    if ops.last_type().is_float:
        floats.sign(w, ops)
        return
    only(ops)
    scalar = ops.last_type()
    kind = w.type(scalar)
    (value,) = _operands(w, ops, scalar.name, 1)
    result = w.emit(f"sub {kind} zeroinitializer, {value}")
    if _base(ops) == "abs":
        negative = w.emit(f"icmp slt {kind} {value}, zeroinitializer")
        mask = w.vector("i1", scalar.count)
        result = w.emit(f"select {mask} {negative}, {kind} {result}, {kind} {value}")
    w.write(ops, ops.args[0], scalar.name, result)


@compiles("shl", "shr")
def shift(w: Writer, ops: Operands) -> None:
    """`{shl,shr}.type d, a, count`: counts from the width on give zero, or the sign."""
    only(ops)
    scalar = ops.last_type()
    if scalar.count > 1:
        raise NotCompiled
    bits, kind, signed = scalar.bits, w.type(scalar), False
    word = "shl"
    if _base(ops) == "shr":
        signed = scalar.kind == "s"
        word = "ashr" if signed else "lshr"
    value = w.read(ops, ops.args[1], scalar.name)
    counts, words = w.read(ops, ops.args[2], "u32"), w.vector("i32")
    mask = w.vector("i1")
    over = w.emit(f"icmp ugt {words} {counts}, splat (i32 {bits - 1})")
    clamped = w.emit(f"select {mask} {over}, {words} splat (i32 {bits - 1}), {words} {counts}")
    if bits != 32:
        cast = "zext" if bits > 32 else "trunc"
        clamped = w.emit(f"{cast} {words} {clamped} to {kind}")
    result = w.emit(f"{word} {kind} {value}, {clamped}")
    if not signed:
        result = w.emit(f"select {mask} {over}, {kind} zeroinitializer, {kind} {result}")
    w.write(ops, ops.args[0], scalar.name, result)


@compiles("lop3")
def truth_table(w: Writer, ops: Operands) -> None:
    """`lop3.b32 d, a, b, c, immLut`: the sum of the products of its table."""
    only(ops)
    kind, table = w.vector("i32"), ops.immediate(ops.args[4])
    plain = _operands(w, ops, "b32", 3)
    inverted = [w.emit(f"xor {kind} {each}, splat (i32 -1)") for each in plain]
    value = "zeroinitializer"
    for row in range(8):
        if table >> row & 1:
            a, b, c = ((plain if row >> (2 - place) & 1 else inverted)[place] for place in range(3))
            both = w.emit(f"and {kind} {a}, {b}")
            value = w.emit(f"or {kind} {value}, {w.emit(f'and {kind} {both}, {c}')}")
    w.write(ops, ops.args[0], "b32", value)


@compiles("bfe.u32", "bfe.u64")
def field(w: Writer, ops: Operands) -> None:
    """`bfe.{u32,u64} d, a, pos, len` with a constant place and length."""
    only(ops)
    if not (ops.is_literal(ops.args[2]) and ops.is_literal(ops.args[3])):
        raise NotCompiled
    scalar = ops.last_type()
    place, length = (ops.immediate(each) & 255 for each in ops.args[2:4])
    kind, value = w.type(scalar), w.read(ops, ops.args[1], scalar.name)
    mask = (1 << min(length, scalar.bits)) - 1
    if place >= scalar.bits:
        mask, place = 0, 0
    moved = w.emit(f"lshr {kind} {value}, splat (i{scalar.bits} {place})")
    kept = w.emit(f"and {kind} {moved}, splat (i{scalar.bits} {mask})")
    w.write(ops, ops.args[0], scalar.name, kept)
