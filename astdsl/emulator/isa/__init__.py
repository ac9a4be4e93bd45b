"""The table of what each opcode does, filled by the family modules that `families` imports.

`@executes("add", "sub.f32")` registers a *preparer*: a function that takes the `Operands` of one
instruction and returns what executes it, `(machine, lanes) -> None`. It is called once per
instruction of a program; what it returns runs once per group of lanes that gets there.
`@controls(...)` registers one whose result returns the lanes that go on to the next instruction
(None = all), because it jumps, ends or blocks the others. With `bits=` a rule of `undefined_bits`
says how undefined bits pass through.

Invariant: keys are dotted prefixes of opcodes, the longest match wins, and a preparer refuses every
modifier that it does not know (`ops.allow(...)`); a second row for one key fails at import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.undefined_bits import Rule

Execute = Callable[["Machine", "Lanes"], None]
Control = Callable[["Machine", "Lanes"], "Lanes | None"]
PreparePlain = Callable[["Operands"], Execute]
PrepareControl = Callable[["Operands"], Control]
P = TypeVar("P", bound=PreparePlain)
C = TypeVar("C", bound=PrepareControl)


@dataclass(frozen=True, slots=True)
class Row:
    """A preparer; `tracks`: it handles undefined values itself, `control`: it may divert lanes.

    `bits` is the rule by which undefined bits pass through it, None for all from any.
    """

    prepare: PreparePlain | PrepareControl
    control: bool
    tracks: bool
    bits: Rule | None = None


ROWS: dict[str, Row] = {}


def _register(opcodes: tuple[str, ...], row: Row) -> None:
    for opcode in opcodes:
        if opcode in ROWS:
            raise AssertionError(f"two rows for opcode {opcode}")
        ROWS[opcode] = row


def executes(*opcodes: str, tracks: bool = False, bits: Rule | None = None) -> Callable[[P], P]:
    """Register a preparer for opcodes whose lanes all go on to the next instruction."""

    def decorate(prepare: P) -> P:
        _register(opcodes, Row(prepare, False, tracks, bits))
        return prepare

    return decorate


def controls(*opcodes: str) -> Callable[[C], C]:
    """Register a preparer for opcodes that may jump, end or block lanes."""

    def decorate(prepare: C) -> C:
        _register(opcodes, Row(prepare, True, True))
        return prepare

    return decorate
