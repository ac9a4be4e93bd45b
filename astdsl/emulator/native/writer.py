"""Writes one instruction as an LLVM function: a loop over lanes, some at a time.

Invariant: the text of a function does not depend on which registers it works on, nor on the values
of constants, which it takes from a list of operands: equal texts are one form. All is loaded before
anything is stored; every value is a vector with one element a lane (packed types: two), so that
lanes never mix. Predicates are vectors of i1, in memory one byte a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from astdsl.emulator.native.rows import lookup
from astdsl.emulator.native.table import NotCompiled
from astdsl.emulator.operands import immediate_value
from astdsl.emulator.scalars import TYPES, UNSIGNED
from astdsl.emulator.syntax import Immediate, Negated, Register

if TYPE_CHECKING:
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.registers import Place
    from astdsl.emulator.scalars import Scalar
    from astdsl.emulator.syntax import Operand

__all__ = ["Constant", "Form", "Writer", "leaves", "write_form"]

_FLOATS = {("f", 16): "half", ("f", 32): "float", ("f", 64): "double"}
_SUFFIXES = {"float": "f32", "double": "f64", "half": "f16"}
_WORD_BYTES = 8


class Constant(NamedTuple):
    """A literal operand, by its number among the operands, seen as a type."""

    number: int
    type: str


class Form(NamedTuple):
    """The body of a function, what it declares, and its operands.

    A register is given by its number among the operands of the instruction (`leaves`).
    """

    body: str
    declared: tuple[str, ...]
    operands: tuple[int | Constant, ...]

    def bind(self, ops: Operands) -> tuple[Place | int, ...]:
        """Return the registers and the bits of constants of one instruction of this form."""
        found = leaves(ops)
        return tuple(
            _bits(found[each.number], TYPES[each.type])
            if isinstance(each, Constant)
            else ops.place(found[each])
            for each in self.operands
        )


def leaves(ops: Operands) -> list[Operand]:
    """Return the guard, the registers and the literals of an instruction, in order."""
    found: list[Operand] = []
    if ops.instruction.predicate is not None:
        found.append(Register(ops.instruction.predicate))
    for operand in ops.args:
        for part in ops.pair(operand):
            found += [e.operand if isinstance(e, Negated) else e for e in ops.elements(part)]
    return found


def write_form(ops: Operands, width: int) -> Form:
    """Return the form of an instruction, `width` lanes at a time; raises `NotCompiled`."""
    row = lookup(ops.instruction.opcode)
    if row is None:
        raise NotCompiled
    writer = Writer(width, leaves(ops))
    predicate = ops.instruction.predicate
    if predicate is not None:
        writer.guard(ops, predicate, negated=ops.instruction.negated)
    row(writer, ops)
    return writer.form()


class Writer:
    """The code of one instruction."""

    def __init__(self, width: int, operands: list[Operand]) -> None:
        self.width = width
        self._leaves = operands
        self._operands: list[int | Constant] = []
        self._declared: dict[str, None] = {}
        self._head: list[str] = []
        self._lines: list[str] = []
        self._stores: list[str] = []
        self._count = 0
        self._loaded: dict[Place, str] = {}
        self._at: dict[Place, str] = {}
        self._guard: str | None = None

    # What rows use.

    def emit(self, text: str) -> str:
        """Write one instruction of LLVM; return the name of its value."""
        return self._named(self._lines, text)

    def call(self, intrinsic: str, kind: str, *values: str) -> str:
        """Write the call of an intrinsic whose operands and result are of one type."""
        count, element = kind[1:-1].split(" x ")
        name = f"@llvm.{intrinsic}.v{count}{_SUFFIXES[element]}"
        self._declared[f"declare {kind} {name}({', '.join([kind] * len(values))})"] = None
        return self.emit(f"call {kind} {name}({', '.join(f'{kind} {v}' for v in values)})")

    def type(self, scalar: Scalar) -> str:
        """Return the LLVM type of the values of a PTX type."""
        return self.vector(_element(scalar), scalar.count)

    def vector(self, element: str, count: int = 1) -> str:
        """Return the LLVM type of `count` elements a lane."""
        return f"<{self.width * count} x {element}>"

    def bits(self, scalar: Scalar) -> str:
        """Return the LLVM type of the bits of a PTX type's elements."""
        return self.vector(f"i{scalar.element_bits}", scalar.count)

    def read(self, ops: Operands, operand: Operand, name: str) -> str:
        """Return an operand's value, seen as the PTX type."""
        scalar = TYPES[name]
        if isinstance(operand, Immediate):
            return self._constant(operand, scalar)
        if isinstance(operand, Negated):
            inner = self.read(ops, operand.operand, name)
            return self.emit(f"xor {self.type(scalar)} {inner}, splat (i1 true)")
        if not isinstance(operand, Register):
            raise NotCompiled
        place = ops.site.place(operand.name)
        if place is None or place[0] == 128 or place[0] < scalar.bits:
            raise NotCompiled
        value, whole = self._load(place, operand), self.vector(f"i{scalar.bits}")
        if place[0] > scalar.bits:
            value = self.emit(f"trunc {self.vector(f'i{place[0]}')} {value} to {whole}")
        return self._seen_as(value, whole, self.type(scalar))

    def write(self, ops: Operands, operand: Operand, name: str, value: str) -> None:
        """Write a value of the PTX type; a wider register gets it extended by its type."""
        if not isinstance(operand, Register) or operand.name == "_":
            raise NotCompiled
        place, scalar = ops.place(operand), TYPES[name]
        bits, whole = place[0], self.vector(f"i{scalar.bits}")
        if bits == 128 or scalar.bits > bits:
            raise NotCompiled
        raw = self._seen_as(value, self.type(scalar), whole)
        if bits > scalar.bits:
            word = "sext" if scalar.kind == "s" else "zext"
            raw = self.emit(f"{word} {whole} {raw} to {self.vector(f'i{bits}')}")
        if self._guard is not None:
            kind = self.vector(f"i{bits}")
            mask = f"{self.vector('i1')} {self._guard}"
            raw = self.emit(f"select {mask}, {kind} {raw}, {kind} {self._load(place, operand)}")
        self._store(place, operand, raw)

    def guard(self, ops: Operands, name: str, *, negated: bool) -> None:
        """Let only the lanes in which a predicate holds write."""
        self._guard = self._load(ops.register_place(name), Register(name))
        if negated:
            self._guard = self.emit(f"xor {self.vector('i1')} {self._guard}, splat (i1 true)")

    def form(self) -> Form:
        """Return what has been written: a function of (descriptor, first lane, number of lanes)."""
        body = "\n".join(
            [
                "(ptr %descriptor, i64 %start, i64 %count) {",
                "entry:",
                *self._head,
                "  br label %loop",
                "loop:",
                "  %lane = phi i64 [ 0, %entry ], [ %next, %loop ]",
                *self._lines,
                *self._stores,
                f"  %next = add i64 %lane, {self.width}",
                "  %more = icmp slt i64 %next, %count",
                "  br i1 %more, label %loop, label %end",
                "end:",
                "  ret void",
                "}",
            ]
        )
        return Form(body, tuple(self._declared), tuple(self._operands))

    # Registers.

    def _named(self, lines: list[str], text: str) -> str:
        name = f"%v{self._count}"
        self._count += 1
        lines.append(f"  {name} = {text}")
        return name

    def _operand(self, operand: int | Constant, kind: str) -> str:
        """Return an operand's entry in the descriptor, which follows the function's address."""
        self._operands.append(operand)
        offset = _WORD_BYTES * len(self._operands)
        at = self._named(self._head, f"getelementptr i8, ptr %descriptor, i64 {offset}")
        return self._named(self._head, f"load {kind}, ptr {at}, align {_WORD_BYTES}")

    def _address(self, place: Place, register: Register) -> str:
        """Return where the register has the lanes of this turn."""
        found = self._at.get(place)
        if found is None:
            element = f"i{max(place[0], 8)}"
            base = self._operand(self._leaves.index(register), "ptr")
            first = self._named(self._head, f"getelementptr {element}, ptr {base}, i64 %start")
            found = self.emit(f"getelementptr {element}, ptr {first}, i64 %lane")
            self._at[place] = found
        return found

    def _load(self, place: Place, register: Register) -> str:
        """Return the bits of a register."""
        found = self._loaded.get(place)
        if found is None:
            octets = max(place[0] // 8, 1)
            kind, at = self.vector(f"i{8 * octets}"), self._address(place, register)
            found = self.emit(f"load {kind}, ptr {at}, align {octets}")
            if place[0] == 1:
                found = self.emit(f"trunc {kind} {found} to {self.vector('i1')}")
            self._loaded[place] = found
        return found

    def _store(self, place: Place, register: Register, value: str) -> None:
        octets = max(place[0] // 8, 1)
        kind, at = self.vector(f"i{8 * octets}"), self._address(place, register)
        if place[0] == 1:
            value = self.emit(f"zext {self.vector('i1')} {value} to {kind}")
        self._stores.append(f"  store {kind} {value}, ptr {at}, align {octets}")

    # Values.

    def _seen_as(self, value: str, source: str, to: str) -> str:
        return value if source == to else self.emit(f"bitcast {source} {value} to {to}")

    def _constant(self, operand: Immediate, scalar: Scalar) -> str:
        if scalar.kind == "pred":
            return f"splat (i1 {'true' if operand.value else 'false'})"
        whole, one = self.vector(f"i{scalar.bits}"), f"<1 x i{scalar.bits}>"
        entry = self._operand(Constant(self._leaves.index(operand), scalar.name), "i64")
        if scalar.bits < 64:
            entry = self._named(self._head, f"trunc i64 {entry} to i{scalar.bits}")
        first = self._named(
            self._head, f"insertelement {one} poison, i{scalar.bits} {entry}, i32 0"
        )
        every = f"shufflevector {one} {first}, {one} poison, <{self.width} x i32> zeroinitializer"
        return self._seen_as(self._named(self._head, every), whole, self.type(scalar))


def _bits(operand: Operand, scalar: Scalar) -> int:
    """Return the bits of a literal seen as a type."""
    if not isinstance(operand, Immediate):
        raise AssertionError(f"not a literal: {operand}")
    octets = np.atleast_1d(np.asarray(immediate_value(operand, scalar))).view(np.uint8)
    return int(octets.view(UNSIGNED[scalar.bits])[0])


def _element(scalar: Scalar) -> str:
    # tf32 is kept as float32; no row is for it.
    if scalar.kind == "tf" or scalar.bits > 64:
        raise NotCompiled
    if scalar.kind == "pred":
        return "i1"
    return _FLOATS.get((scalar.kind, scalar.element_bits), f"i{scalar.element_bits}")
