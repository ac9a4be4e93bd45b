"""Typed LLVM values and constants, as text.

Invariant: an `LV` is a type and an operand exactly as LLVM's assembly language spells them, so
that an instruction is made by pasting operands; only `folding` inspects them.
"""

from __future__ import annotations

import math
import re
import struct
from functools import cache, lru_cache
from typing import NamedTuple

import ml_dtypes
import numpy as np

GENERIC = "ptr"
GLOBAL = "ptr addrspace(1)"
SHARED = "ptr addrspace(3)"

INTEGER_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128}
FLOAT_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}
# How many constants of a width are kept: the same few stand everywhere.
_CONSTANTS_KEPT = 1024
_VECTOR = re.compile(r"<(\d+) x ([^<>]+)>")


class LV(NamedTuple):
    """One LLVM value: its type and its name or constant, both as text."""

    type: str
    name: str

    @property
    def typed(self) -> str:
        """Spell the value as an operand: ``i32 %v7``."""
        return f"{self.type} {self.name}"

    @property
    def is_constant(self) -> bool:
        """Whether it is written as a number and not by a name."""
        return self.name[0] not in "%@"


class Label(NamedTuple):
    """The name of a basic block, without the percent sign."""

    name: str


def vector(lanes: int, element: str) -> str:
    """Spell the type of `lanes` values of type `element`."""
    return f"<{lanes} x {element}>"


@cache
def lanes_of(type: str) -> int:
    """Count the lanes of a vector type; a scalar has one."""
    match = _VECTOR.fullmatch(type)
    return int(match[1]) if match else 1


@cache
def element_of(type: str) -> str:
    """Give the element type of a vector; of a scalar, itself."""
    match = _VECTOR.fullmatch(type)
    return match[2] if match else type


def with_element(type: str, element: str) -> str:
    """Spell a type of as many lanes as `type` has, of another element."""
    return element if element_of(type) == type else vector(lanes_of(type), element)


@cache
def bits_of(type: str) -> int:
    """Count the bits of an integer, a float or a vector of them; pointers have 64."""
    element = element_of(type)
    if element.startswith("ptr"):
        return 64 * lanes_of(type)
    table = INTEGER_BITS if element in INTEGER_BITS else FLOAT_BITS
    if element not in table:
        raise AssertionError(f"type {type} has no size in bits that we know")
    return table[element] * lanes_of(type)


@cache
def is_float(type: str) -> bool:
    """Tell whether `type` is a float or a vector of floats."""
    return element_of(type) in FLOAT_BITS


def is_integer(type: str) -> bool:
    """Tell whether `type` is an integer or a vector of integers."""
    return element_of(type) in INTEGER_BITS


def constant(type: str, value: float | int | bool) -> LV:
    """Make a constant of `type`; a vector type gets `value` in every lane.

    Integers wrap to the width of the type.  Floats are rounded to nearest even and written as
    the exact bits, so that NaN, infinities and the sign of zero survive.
    """
    element = element_of(type)
    scalar = LV(element, _scalar_text(element, value))
    return scalar if element == type else repeated(scalar, lanes_of(type))


def repeated(value: LV, lanes: int) -> LV:
    """Make a vector constant with a constant in every lane."""
    return LV(vector(lanes, value.type), f"<{', '.join([value.typed] * lanes)}>")


def undefined(type: str) -> LV:
    """Make a value of `type` that nobody may look at (``poison``)."""
    return LV(type, "poison")


def zero(type: str) -> LV:
    """Make the zero of any type."""
    return LV(type, "zeroinitializer") if type.startswith(("<", "[", "{")) else constant(type, 0)


def i1(value: bool) -> LV:
    """Make a constant predicate."""
    return LV("i1", "true" if value else "false")


@lru_cache(_CONSTANTS_KEPT)
def i32(value: int) -> LV:
    """Make a 32-bit integer constant."""
    return constant("i32", value)


@lru_cache(_CONSTANTS_KEPT)
def i64(value: int) -> LV:
    """Make a 64-bit integer constant."""
    return constant("i64", value)


def _scalar_text(type: str, value: float | int | bool) -> str:
    if type in FLOAT_BITS:
        return _FLOAT_TEXT[type](float(value))
    if type == "i1":
        return "true" if value else "false"
    if type not in INTEGER_BITS:
        raise AssertionError(f"no constant of type {type}")
    bits = INTEGER_BITS[type]
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def _double_text(value: float) -> str:
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _rounded(format: str, value: float) -> bytes:
    try:
        return struct.pack(format, value)
    except OverflowError:  # It rounds to an infinity.
        return struct.pack(format, math.copysign(math.inf, value))


def _float_text(value: float) -> str:
    # LLVM writes a float as the double of equal value.
    return _double_text(struct.unpack("<f", _rounded("<f", value))[0])


def _half_text(value: float) -> str:
    return f"0xH{struct.unpack('<H', _rounded('<e', value))[0]:04X}"


def _bfloat_text(value: float) -> str:
    with np.errstate(over="ignore"):
        return f"0xR{int(np.array(value, ml_dtypes.bfloat16).view(np.uint16)):04X}"


_FLOAT_TEXT = {
    "half": _half_text,
    "bfloat": _bfloat_text,
    "float": _float_text,
    "double": _double_text,
}
