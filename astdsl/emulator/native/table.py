"""The table of what can be compiled, filled by the modules that `rows` imports.

`@compiles("add")` registers a function that writes the code of one instruction. Invariant: keys are
dotted prefixes of opcodes, the longest match wins; a form that a row does not write is refused by
`NotCompiled`, before it has written a register.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from astdsl.emulator.scalars import TYPES

if TYPE_CHECKING:
    from astdsl.emulator.native.writer import Writer
    from astdsl.emulator.operands import Operands

Write = Callable[["Writer", "Operands"], None]
W = TypeVar("W", bound=Write)

ROWS: dict[str, Write] = {}


class NotCompiled(Exception):
    """This form of an instruction is left to its step."""


def compiles(*opcodes: str) -> Callable[[W], W]:
    """Register what writes the code of these opcodes."""

    def decorate(write: W) -> W:
        for opcode in opcodes:
            if opcode in ROWS:
                raise AssertionError(f"two rows for opcode {opcode}")
            ROWS[opcode] = write
        return write

    return decorate


def only(ops: Operands, *known: str) -> None:
    """Refuse an instruction with a modifier that is neither a type nor `known`."""
    if any(word not in known and word not in TYPES for word in ops.modifiers):
        raise NotCompiled
