"""Instructions that need not be written, since their operands are constants.

Invariant: what is returned equals what LLVM's instruction gives, wrapped to the width of its type;
poison (a shift by the width or more) and division by zero are left to LLVM.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from astdsl.lowering.nvptx.values import INTEGER_BITS, LV, constant

_WORDS = {"true": -1, "false": 0}

# Of two numbers, where the result does not depend on the width: LLVM wraps it as `constant` does.
_EXACT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
_COMMUTES = frozenset(("add", "mul", "and", "or", "xor"))
# Right operands that change nothing, and those that decide the result, which is then themselves.
_NEUTRAL = {
    "add": 0, "sub": 0, "mul": 1, "and": -1, "or": 0, "xor": 0,
    "shl": 0, "lshr": 0, "ashr": 0, "udiv": 1, "sdiv": 1,
}  # fmt: skip
_DECISIVE = {"mul": 0, "and": 0, "or": -1}

_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "slt": operator.lt,
    "sle": operator.le,
    "sgt": operator.gt,
    "sge": operator.ge,
}


def number_of(value: LV) -> int | None:
    """Return the number of an integer constant as signed, None for any other value."""
    name = value.name
    if name[0] == "%" or value.type not in INTEGER_BITS:
        return None
    return int(name) if name.lstrip("-").isdigit() else _WORDS.get(name)


def binary(operation: str, left: LV, right: LV) -> LV | None:
    """Return what an integer operation gives without an instruction, None if it needs one."""
    x, y = number_of(left), number_of(right)
    if x is None and y is None:
        return None
    if x is not None and y is not None:
        exact = _EXACT.get(operation)
        return _wrapped(left.type, exact(x, y)) if exact else None
    if y is None and operation in _COMMUTES:
        left, right, y = right, left, x  # The constant stands on the right.
    if y is None:
        return None
    if y == _NEUTRAL.get(operation):
        return left
    return right if y == _DECISIVE.get(operation) else None


def compare(condition: str, left: LV, right: LV) -> LV | None:
    """Return what a comparison of integers gives if both are known."""
    known = _COMPARED.get(condition)
    x, y = number_of(left), number_of(right)
    if known is None or x is None or y is None:
        return None
    return constant("i1", known(x, y))


def select(condition: LV, yes: LV, no: LV) -> LV | None:
    """Return the chosen value if the condition is known, or there is no choice."""
    if yes == no:
        return yes
    chosen = number_of(condition)
    return None if chosen is None else (yes if chosen else no)


def cast(operation: str, value: LV, type: str) -> LV | None:
    """Return the converted constant."""
    known = number_of(value) if type in INTEGER_BITS else None
    if known is None:
        return None
    if operation == "zext":
        known &= (1 << INTEGER_BITS[value.type]) - 1
    return _wrapped(type, known) if operation in ("zext", "sext", "trunc") else None


def _wrapped(type: str, number: int) -> LV:
    return constant(type, number & 1 if type == "i1" else number)
