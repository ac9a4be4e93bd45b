"""Literals and operands of instructions (PTX ISA 4.5, 6), and the scopes their names live in.

Invariant: a name declared in an inner scope `{ }` is renamed `name@n`, so that names are unique in
a function and the rest of the emulator knows nothing of scopes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from astdsl.emulator.syntax import (
    Address,
    Function,
    Group,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)
from astdsl.emulator.tokens import Tokens


def number(word: str) -> Immediate:
    """Return a literal (PTX ISA 4.5)."""
    kind = word[:2].lower()
    if kind == "0f":
        return Immediate(int("0x" + word[2:], 0), "f32")
    if kind == "0d":
        return Immediate(int("0x" + word[2:], 0), "f64")
    if kind != "0x" and ("." in word or "e" in word.lower()):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(word)))[0], "f64")
    digits = word.rstrip("U")
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        return Immediate(int(digits, 8))
    return Immediate(int(digits, 0))


def negative(literal: Immediate) -> Immediate:
    """Return the literal with its sign turned."""
    if literal.kind == "int":
        return Immediate(-literal.value)
    return Immediate(literal.value ^ (1 << (int(literal.kind[1:]) - 1)), literal.kind)


class Scopes:
    """The open `{ }` scopes of a body, each with the new names of what it declares."""

    def __init__(self, function: Function | None = None) -> None:
        self._function = function
        self._open: list[dict[str, str]] = [{}]
        self._numbers = [0]
        self._count = 0

    @property
    def depth(self) -> int:
        """Return how many scopes are open, the body itself included."""
        return len(self._open)

    def is_register(self, name: str) -> bool:
        """Say whether a name is a register's."""
        if name.startswith("%"):
            return True
        return self._function is not None and self._function.register_type(name) is not None

    def enter(self) -> None:
        """Open a scope."""
        self._count += 1
        self._open.append({})
        self._numbers.append(self._count)

    def leave(self) -> None:
        """Close the innermost scope."""
        self._open.pop()
        self._numbers.pop()

    def declare(self, name: str) -> str:
        """Return the unique name of what the innermost scope declares."""
        if self.depth == 1:
            return name
        renamed = f"{name}@{self._numbers[-1]}"
        self._open[-1][name] = renamed
        return renamed

    def resolve(self, name: str) -> str:
        """Return the unique name that a name means here."""
        if self.depth > 1:
            for scope in reversed(self._open):
                renamed = scope.get(name)
                if renamed is not None:
                    return renamed
        return name


def parse_operand(tokens: Tokens, scopes: Scopes) -> Operand:
    """Read one operand (PTX ISA 6)."""
    word = tokens.next()
    special = _OPERANDS.get(word)
    if special is not None:
        return special(tokens, scopes)
    if word[0].isdigit():
        try:
            return number(word)
        except ValueError:
            raise tokens.error(f"`{word}` is not a number") from None
    if not (word[0].isalpha() or word[0] in "%$_"):
        raise tokens.error(f"`{word}` is not an operand")
    name = scopes.resolve(word)
    operand: Operand = Register(name)
    if not scopes.is_register(name):
        operand = _named(tokens, name)
    if tokens.take("|"):
        return Pair(operand, parse_operand(tokens, scopes))
    return operand


def _named(tokens: Tokens, name: str) -> Operand:
    """Read the rest of a variable, function or label: `name + offset`."""
    offset = 0
    while tokens.peek() in ("+", "-") and tokens.peek(1)[0].isdigit():
        sign = 1 if tokens.next() == "+" else -1
        offset += sign * number(tokens.next()).value
    return Symbol(name, offset)


def _elements(tokens: Tokens, scopes: Scopes, closing: str) -> tuple[Operand, ...]:
    found = []
    while not tokens.take(closing):
        found.append(parse_operand(tokens, scopes))
        tokens.take(",")
    return tuple(found)


def _address(tokens: Tokens, scopes: Scopes) -> Operand:
    base = parse_operand(tokens, scopes)
    offset = 0
    while tokens.peek() in ("+", "-"):
        sign = 1 if tokens.next() == "+" else -1
        sign = -sign if tokens.take("-") else sign
        offset += sign * number(tokens.next()).value
    extra = _elements(tokens, scopes, "]") if tokens.take(",") else ()
    if not extra:
        tokens.take("]")
    return Address(base, offset, extra)


def _negation(tokens: Tokens, scopes: Scopes) -> Operand:
    return Negated(parse_operand(tokens, scopes))


def _minus(tokens: Tokens, scopes: Scopes) -> Operand:
    return negative(number(tokens.next()))


_OPERANDS: dict[str, Callable[[Tokens, Scopes], Operand]] = {
    "{": lambda tokens, scopes: Vector(_elements(tokens, scopes, "}")),
    "(": lambda tokens, scopes: Group(_elements(tokens, scopes, ")")),
    "[": _address,
    "!": _negation,
    "-": _minus,
}
