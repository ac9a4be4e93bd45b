"""Which forms of instructions there are: the grammar that `ptxas` holds a program to.

A family's table has one form a line: its syntax, its operands, and what it needs. In a syntax,
`rn/rz?` is a word that may be left out, `lo/hi` one that may not, and `add/sub` two opcodes; words
may stand in any order but for types and spaces. An operand is a value of a type (`t` the last type
of the opcode, `1` and `2` the first ones), `mem`, `imm`, `sink` or `any`; `+` lets its register be
wider, `?` lets it be absent, `*4` makes it a vector of four, `*` one of any length or one value;
`t|pred` is a pair.
Needs are the least target, the only one (`sm_90a`), Blackwell's `family`, or a target's `own`.

Sources: PTX ISA 6.4 and 9.4 (operands), 9.7 (syntax and target notes of each instruction).
Invariant: a form is no promise that it is modelled, which the families of `isa` say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from astdsl.emulator.forms import (
    arithmetic,
    bulk_copies,
    floating,
    memory,
    products,
    synchronisation,
    values,
)

_TABLES = (arithmetic, bulk_copies, floating, memory, products, synchronisation, values)
_TYPE = re.compile(r"pred|[busf]\d+(x\d)?|bf16(x2)?|tf32|u?e\dm\d(x\d)?|global|shared.*")
_OPERAND = re.compile(r"([\w|]+)(\+?)(?:(\*)(\d*))?(\??)")


@dataclass(frozen=True, slots=True)
class Operand:
    """What one operand may be; see the module docstring."""

    kinds: tuple[str, ...]
    wider: bool
    is_vector: bool
    count: int
    optional: bool


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one of some words."""

    names: frozenset[str]
    required: bool
    is_type: bool


@dataclass(frozen=True, slots=True)
class Form:
    """One line of a table."""

    syntax: str
    slots: tuple[Slot, ...]
    operands: tuple[Operand, ...]
    needs: tuple[str, ...]

    def fits(self, words: tuple[str, ...]) -> bool:
        """Say whether the words of an opcode are those of the form."""
        free = list(self.slots)
        for word in words:
            at = next((i for i, slot in enumerate(free) if word in slot.names), None)
            if at is None:
                return False
            if free[at].is_type and any(s.is_type and s.required for s in free[:at]):
                return False
            del free[at]
        return not any(slot.required for slot in free)

    def takes(self, count: int) -> bool:
        """Say whether there may be so many operands."""
        least = sum(not operand.optional for operand in self.operands)
        return least <= count <= len(self.operands)


def _operand(text: str) -> Operand:
    found = _OPERAND.fullmatch(text)
    if found is None:
        raise AssertionError(f"`{text}` describes no operand")
    kinds, wider, vector, count, optional = found.groups()
    return Operand(
        tuple(kinds.split("|")), bool(wider), bool(vector), int(count or 0), bool(optional)
    )


def _slot(text: str) -> Slot:
    names = frozenset(text.rstrip("?").split("/"))
    return Slot(names, not text.endswith("?"), any(map(_TYPE.fullmatch, names)))


def _form(line: str) -> Form:
    syntax, operands, needs = (*line.split(";"), "", "")[:3]
    syntax = syntax.strip()
    slots = tuple(map(_slot, syntax.split(".")[1:]))
    return Form(syntax, slots, tuple(map(_operand, operands.split())), tuple(needs.split()))


@lru_cache(maxsize=1)
def _lines() -> dict[str, list[str]]:
    """Return the lines of all tables by base opcode."""
    found: dict[str, list[str]] = {}
    for table in _TABLES:
        for line in table.FORMS.strip().splitlines():
            opcodes = line.partition(";")[0].partition(".")[0].strip()
            for opcode in opcodes.split("/"):
                found.setdefault(opcode, []).append(opcode + line[len(opcodes) :])
    return found


@cache
def forms_of(base: str) -> tuple[Form, ...]:
    """Return the forms of an opcode by its name without modifiers."""
    return tuple(map(_form, _lines().get(base, ())))


@lru_cache(maxsize=4096)
def fitting(opcode: str) -> tuple[Form, ...]:
    """Return the forms that the words of an opcode fit."""
    base, *words = opcode.split(".")
    return tuple(form for form in forms_of(base) if form.fits(tuple(words)))
