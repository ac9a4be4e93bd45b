"""From the operands of one instruction to functions that read and write them for a set of lanes.

Invariant: nothing here depends on a launch: what is made is kept with the program and works on any
`Machine`. A getter may return a view of the register file, one value for all lanes (a 0-d scalar)
or a fresh array; one that is kept while a destination is written must be copied first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import special
from astdsl.emulator.faults import Unsupported
from astdsl.emulator.registers import Place
from astdsl.emulator.scalars import TYPES, UNSIGNED, Array, Scalar
from astdsl.emulator.syntax import (
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.layout import Layout
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.native.shared import Access
    from astdsl.emulator.syntax import Function

Getter = Callable[["Machine", "Lanes"], Any]
Setter = Callable[["Machine", "Lanes", Any], None]
Target = Callable[["Machine", "Lanes"], "Array | None"]


@dataclass(frozen=True, slots=True)
class Site:
    """Where an instruction stands: its function, where that starts, and its own place."""

    layout: Layout
    function: Function
    start: int
    pc: int

    def place(self, name: str) -> Place | None:
        """Return the place of a register, None when it is not declared."""
        return self.layout.place(self.function, name)

    def symbol(self, name: str) -> tuple[str, int] | None:
        """Return (state space, offset in it) of a variable, None when it is not declared."""
        return self.layout.symbol(self.function, name)

    def label(self, name: str) -> int | None:
        """Return the place in the program of a label, None when it is not declared."""
        offset = self.function.labels.get(name)
        return None if offset is None else self.start + offset


class Operands:
    """Resolves the operands of one instruction, which stands at a site.

    `reads` and `writes` collect the registers touched, for the tracking of undefined values, and
    `widths` how many of their bits are looked at, where that is not all of them; `sensitive` those
    that must be defined (addresses, predicates of branches, ...), `holds` those that an
    asynchronous instruction may read; `access` is what it does to shared memory, where that can be
    done in machine code.
    """

    def __init__(self, instruction: Instruction, site: Site) -> None:
        self.instruction = instruction
        self.args = instruction.operands
        self.modifiers = instruction.modifiers
        self.site = site
        self.layout, self.function = site.layout, site.function
        self.reads: list[Place] = []
        self.widths: dict[Place, int] = {}
        self.writes: list[Place] = []
        self.sensitive: list[Place] = []
        self.holds: list[Place] = []
        self.access: Access | None = None

    def refuse(self, what: str) -> Unsupported:
        """Return the error that refuses this instruction by name and line."""
        text = f"`{self.instruction.opcode}`: {what}"
        return Unsupported(text, self.instruction.ptx_line)

    def type(self, name: str) -> Scalar:
        """Return the PTX type of that name, refusing what is not one."""
        scalar = TYPES.get(name)
        if scalar is None:
            raise self.refuse(f"type .{name} is not known here")
        return scalar

    def last_type(self) -> Scalar:
        """Return the type that ends the opcode."""
        return self.type(self.modifiers[-1])

    def allow(self, *known: str) -> None:
        """Refuse the instruction if it has a modifier that is neither a type nor `known`."""
        for modifier in self.modifiers:
            if modifier not in known and modifier not in TYPES:
                raise self.refuse(f"modifier .{modifier} is not known here")

    def has(self, modifier: str) -> bool:
        """Say whether the opcode carries the modifier."""
        return modifier in self.modifiers

    def symbols(self, name: str) -> tuple[str, int] | None:
        """Return (state space, offset in it) of a variable, None when it is not declared."""
        return self.site.symbol(name)

    def register_place(self, name: str) -> Place:
        """Return the place of a register by name."""
        place = self.site.place(name)
        if place is None:
            raise self.refuse(f"register {name} is not declared")
        return place

    def looked_at(self) -> tuple[tuple[Place, int], ...]:
        """Return the registers that are read, each once, with the number of bits looked at."""
        return tuple(
            (place, self.widths.get(place, place[0])) for place in dict.fromkeys(self.reads)
        )

    def place(self, operand: Operand) -> Place:
        """Return the place of a register operand."""
        if isinstance(operand, Register):
            return self.register_place(operand.name)
        raise self.refuse(f"a register is needed, not {operand}")

    def source(self, operand: Operand, type_name: str) -> Getter:
        """Return a getter of the operand's value, seen as the PTX type (PTX ISA 6.4, 6.5)."""
        resolve = _SOURCES.get(type(operand))
        if resolve is None:
            raise self.refuse(f"{operand} is not a value")
        return resolve(self, operand, self.type(type_name))

    def registers(self, operand: Operand) -> tuple[Place, ...]:
        """Return the place of a register operand, nothing for an immediate or special register."""
        if isinstance(operand, Negated):
            return self.registers(operand.operand)
        place = self.site.place(operand.name) if isinstance(operand, Register) else None
        return () if place is None else (place,)

    def elements(self, operand: Operand) -> tuple[Operand, ...]:
        """Return a vector's elements, or the one operand."""
        return operand.elements if isinstance(operand, Vector) else (operand,)

    def pair(self, operand: Operand) -> tuple[Operand, ...]:
        """Return the parts of `p|q`, or the one operand."""
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)

    def is_vector(self, operand: Operand) -> bool:
        """Say whether the operand is `{...}`."""
        return isinstance(operand, Vector)

    def is_literal(self, operand: Operand) -> bool:
        """Say whether the operand is a number in the text."""
        return isinstance(operand, Immediate)

    def immediate(self, operand: Operand) -> int:
        """Return the value of an operand that must be a number in the text."""
        if not isinstance(operand, Immediate):
            raise self.refuse(f"a constant is needed, not {operand}")
        return operand.value

    def sources(self, operand: Operand, type_name: str) -> list[Getter]:
        """Return getters of a vector's elements, or of the one operand."""
        return [self.source(element, type_name) for element in self.elements(operand)]

    def destination(self, operand: Operand, type_name: str) -> Setter:
        """Return a setter; a wider register gets the value zero- or sign-extended by its type."""
        if is_sink(operand):
            return _discard
        place = self.place(operand)
        self.writes.append(place)
        key, row = (place[0], self._write_view(place, self.type(type_name))), place[1]

        def write(m: Machine, lanes: Lanes, value: Any) -> None:
            m.views[key][row, lanes.sel] = value

        return write

    def destinations(self, operand: Operand, type_name: str) -> list[Setter]:
        """Return setters of a vector's elements, or of the one operand."""
        return [self.destination(element, type_name) for element in self.elements(operand)]

    def target(self, operand: Operand, type_name: str) -> Target:
        """Return what gives a writable view of the destination, None when lanes are scattered."""
        place = self.place(operand)
        scalar = self.type(type_name)
        key, row = (place[0], type_name), place[1]
        exact = place[0] == scalar.bits

        def view(m: Machine, lanes: Lanes) -> Array | None:
            if exact and lanes.contiguous:
                return m.views[key][row, lanes.sel]
            return None

        return view

    def address(self, operand: Operand) -> Getter:
        """Return a getter of `[base + offset]` as int64: one a lane, or one for all lanes."""
        if not isinstance(operand, Address):
            raise self.refuse(f"an address is needed, not {operand}")
        base, offset = operand.base, operand.offset
        if isinstance(base, Register):
            place = self.place(base)
            self.sensitive.append(place)
            key, row = (place[0], f"u{place[0]}"), place[1]

            def from_register(m: Machine, lanes: Lanes) -> Any:
                address = m.views[key][row, lanes.sel].astype(np.int64)
                if offset:
                    address += offset
                    address &= wrap
                return address

            # Addresses are computed in the width of their register; 64-bit ones never wrap here.
            wrap = (1 << place[0]) - 1 if place[0] < 64 else -1
            return from_register
        if isinstance(base, Immediate):
            constant = np.int64(base.value + offset)
            return lambda m, lanes: constant
        if isinstance(base, Symbol):
            return self._symbol_address(base.name, base.offset + offset)
        raise self.refuse(f"{base} is not an address")

    def shared_base(self, operand: Operand) -> tuple[Place | None, int]:
        """Return the register of an address in shared memory, if any, and what is added to it."""
        if not isinstance(operand, Address):
            raise self.refuse(f"an address is needed, not {operand}")
        base = operand.base
        if isinstance(base, Immediate):
            return None, base.value + operand.offset
        if isinstance(base, Symbol):
            found = self.site.symbol(base.name)
            if found is not None:
                return None, found[1] + base.offset + operand.offset
        return self.place(base), operand.offset

    def _symbol_address(self, name: str, offset: int) -> Getter:
        found = self.site.symbol(name)
        if found is None:
            raise self.refuse(f"`{name}` is not declared")
        space, start = found
        return lambda m, lanes: m.symbol_address(space, start, lanes) + offset

    def _write_view(self, place: Place, scalar: Scalar) -> str:
        if place[0] < scalar.bits:
            raise self.refuse(f"a {place[0]}-bit register cannot hold .{scalar.name}")
        if place[0] == scalar.bits:
            return scalar.name
        return "wide:s" if scalar.kind == "s" else "wide:u"


def is_sink(operand: Operand) -> bool:
    """Say whether the operand is `_`, which discards the result."""
    return isinstance(operand, (Symbol, Register)) and operand.name == "_"


def _discard(m: Machine, lanes: Lanes, value: Any) -> None:
    """Take a value that the program does not want."""


def _register(ops: Operands, operand: Operand, scalar: Scalar) -> Getter:
    if not isinstance(operand, Register):
        raise AssertionError(f"not a register: {operand}")
    place = ops.site.place(operand.name)
    if place is None:
        return special.getter(ops, operand.name, scalar)
    if place[0] < scalar.bits:
        raise ops.refuse(f"{operand.name} has {place[0]} bits, .{scalar.name} needs {scalar.bits}")
    ops.reads.append(place)
    ops.widths[place] = max(ops.widths.get(place, 0), scalar.bits)
    key, row = (place[0], scalar.name), place[1]
    return lambda m, lanes: m.views[key][row, lanes.sel]


def immediate_value(operand: Immediate, scalar: Scalar) -> Any:
    """Return a literal as a NumPy scalar of the type; packed types give one value an element."""
    if scalar.kind == "pred":
        return np.bool_(operand.value != 0)
    if operand.kind != "int" and scalar.kind == "f":
        bits = int(operand.kind[1:])
        number = np.array(operand.value, UNSIGNED[bits]).view(f"f{bits // 8}")
        return number.astype(scalar.dtype)[()]
    mask = (1 << scalar.bits) - 1
    width = UNSIGNED[scalar.element_bits]
    whole = operand.value & mask
    step = scalar.element_bits
    parts = [(whole >> (step * i)) & ((1 << step) - 1) for i in range(scalar.count)]
    value = np.array(parts, width).view(scalar.dtype)
    return value[0] if scalar.count == 1 else value


def _immediate(ops: Operands, operand: Operand, scalar: Scalar) -> Getter:
    if not isinstance(operand, Immediate):
        raise AssertionError(f"not an immediate: {operand}")
    value = immediate_value(operand, scalar)
    return lambda m, lanes: value


def _symbol(ops: Operands, operand: Operand, scalar: Scalar) -> Getter:
    if not isinstance(operand, Symbol):
        raise AssertionError(f"not a symbol: {operand}")
    if operand.name == "WARP_SZ":
        return _immediate(ops, Immediate(32), scalar)
    address = ops._symbol_address(operand.name, operand.offset)
    dtype = scalar.dtype
    return lambda m, lanes: address(m, lanes).astype(dtype)


def _negated(ops: Operands, operand: Operand, scalar: Scalar) -> Getter:
    if not isinstance(operand, Negated):
        raise AssertionError(f"not a negation: {operand}")
    inner = ops.source(operand.operand, scalar.name)
    return lambda m, lanes: ~inner(m, lanes)


_SOURCES: dict[type, Callable[[Operands, Operand, Scalar], Getter]] = {
    Register: _register,
    Immediate: _immediate,
    Symbol: _symbol,
    Negated: _negated,
}
