"""What the arithmetic of PTX computes, form by form, from the text of the ISA (9.7.1-9.7.5).

A meaning has the types of an instruction's operands, and a function of their bits as Python
integers; `meanings_of_bits` has the rest of them.  Shares nothing with the emulator.  Invariant: a
result is the bits that the ISA fixes, `ANY_NAN` for a NaN whose payload it leaves open, `Near` for
an approximation, and None where it says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tests.emulator.exact import FORMATS, OPERATIONS, Number, signed

ANY_NAN = "any NaN"
MODES = ("rn", "rz", "rm", "rp", "rna")


@dataclass(frozen=True)
class Near:
    """A value that may be missed by `error`, absolute."""

    value: float
    error: float


Result = int | str | Near | None
NANS: dict[str, Result] = {
    "f16": 0x7FFF,
    "bf16": 0x7FFF,
    "f32": 0x7FFFFFFF,
    "f64": ANY_NAN,
    "tf32": 0x7FFFFFFF,
}
Function = Callable[..., tuple[Result, ...]]


@dataclass(frozen=True)
class Meaning:
    """The types of sources and results, what they are, and the code where it is not the usual."""

    sources: tuple[str, ...]
    results: tuple[str, ...]
    function: Function
    code: str = ""


Builder = Callable[[str, list[str]], Meaning]


@cache
def bits_of(kind: str) -> int:
    """Return the width of a type."""
    if kind == "pred":
        return 1
    head, _, packed = kind.partition("x")
    return int(head.lstrip("bfsu")) * (int(packed) if packed else 1)


def number(code: int, kind: str) -> int:
    """Return the integer that a code of a type stands for."""
    return signed(code, bits_of(kind)) if kind[0] == "s" else code & ((1 << bits_of(kind)) - 1)


def wrap(value: int, kind: str) -> int:
    """Return the code of an integer, cut to the width of a type."""
    return value & ((1 << bits_of(kind)) - 1)


def limits(kind: str) -> tuple[int, int]:
    """Return the least and greatest number of an integer type."""
    bits = bits_of(kind)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def clamp(value: int, kind: str) -> int:
    """Return the code of an integer, stopped at the ends of a type."""
    low, high = limits(kind)
    return wrap(min(max(value, low), high), kind)


def by_parts(kind: str, n: int, function: Callable[..., Result]) -> Meaning:
    """Return the meaning of an operation on `n` operands of a type, element by element."""
    element, _, packed = kind.partition("x")
    count = int(packed) if packed else 1
    if count == 1:
        return Meaning((kind,) * n, (kind,), lambda *codes: (function(*codes),))
    width = bits_of(element)

    def whole(*codes: int) -> tuple[Result, ...]:
        result = 0
        for i in range(count):
            part = function(*(code >> i * width & ((1 << width) - 1) for code in codes))
            if not isinstance(part, int):
                return (None,)
            result |= part << i * width
        return (result,)

    return Meaning((kind,) * n, (kind,), whole)


# Floats.


def value(code: int, kind: str, *, flush: bool = False) -> float:
    """Return a float; flushed, a subnormal is a zero of its sign."""
    form = FORMATS[kind]
    if flush and form.is_subnormal(code):
        return -0.0 if code & form.sign else 0.0
    return form.decode(code)


def finish(x: Number, kind: str, words: list[str]) -> Result:
    """Round, clamp and flush a result as the modifiers say."""
    if isinstance(x, float) and math.isnan(x):
        return 0 if "sat" in words else NANS[kind]
    if "sat" in words:
        x = min(x, 1.0) if x > 0 else 0.0
    if "relu" in words and not x > 0:
        x = 0.0
    form = FORMATS[kind]
    mode = next((word for word in words if word in MODES), "rn")
    code = form.encode(x, mode, finite="satfinite" in words)
    if "ftz" in words and kind in ("f16", "f32") and form.is_subnormal(code):
        code &= form.sign
    return code << 13 if kind == "tf32" else code


def approximated(code: int, x: list[float]) -> Result:
    """Return a float32 result that may be 2 units wrong (PTX ISA 9.7.3.8, 9.7.3.13, 9.7.3.14)."""
    found = FORMATS["f32"].decode(code)
    if math.isnan(found):
        return code
    if len(x) == 2 and abs(x[1]) > 2.0**126:
        return None
    unit = math.ldexp(abs(found), -22) if math.isfinite(found) else 0.0
    return Near(found, unit and unit + 2.0**-148)


OPERANDS = {"fma": 3, "mad": 3, "rcp": 1, "sqrt": 1}


def arithmetic(base: str, words: list[str]) -> Meaning:
    """`add`, `sub`, `mul`, `fma`, `mad`, `div`, `rcp`, `sqrt`, of one type or of mixed ones."""
    types = [word for word in words if word.removesuffix("x2") in FORMATS]
    kind = types[-1].removesuffix("x2")
    flush = "ftz" in words and kind in ("f16", "f32")
    mode = next((word for word in words if word in MODES), "rn")
    n, operation = OPERANDS.get(base, 2), OPERATIONS[base]
    kinds = [types[-1]] * n if len(types) == 1 else [types[1]] * (n - 1) + ["f32"]
    result = kind if len(types) == 1 else "f32"
    rough = "approx" in words or "full" in words

    def function(*codes: int) -> Result:
        pairs = zip(codes, kinds, strict=True)
        x = [value(code, name.removesuffix("x2"), flush=flush) for code, name in pairs]
        found = finish(operation(mode, *x), result, words)
        return approximated(found, x) if rough and isinstance(found, int) else found

    if len(types) == 2:
        return Meaning(tuple(kinds), ("f32",), lambda *codes: (function(*codes),))
    return by_parts(types[-1], n, function)


def either(integers: Builder, floats: Builder) -> Builder:
    """Return a builder that looks at the last type."""

    def build(base: str, words: list[str]) -> Meaning:
        return (floats if words[-1].removesuffix("x2") in FORMATS else integers)(base, words)

    return build


def sign(base: str, words: list[str]) -> Meaning:
    """`abs`, `neg` of floats; a NaN may be any."""
    kind = words[-1].removesuffix("x2")
    bit = FORMATS[kind].sign

    def function(code: int) -> Result:
        if math.isnan(value(code, kind)):
            return ANY_NAN
        if "ftz" in words and FORMATS[kind].is_subnormal(code):
            code &= bit
        return code ^ bit if base == "neg" else code & ~bit

    return by_parts(words[-1], 1, function)


def extreme(base: str, words: list[str]) -> Meaning:
    """`min`, `max` of floats: -0 < +0; a NaN gives the other one, with `.NaN` a NaN."""
    kind = words[-1].removesuffix("x2")
    form, best = FORMATS[kind], min if base == "min" else max

    def function(*codes: int) -> Result:
        kept = []
        for code in codes:
            flushed = code & form.sign if "ftz" in words and form.is_subnormal(code) else code
            kept.append(flushed & ~form.sign if "abs" in words else flushed)
        numbers = [code for code in kept if not math.isnan(form.decode(code))]
        if not numbers or ("NaN" in words and len(numbers) < len(kept)):
            return NANS[kind]
        found = best(numbers, key=lambda c: (form.decode(c), not c & form.sign))
        if "xorsign" in words:
            found |= (codes[0] ^ codes[1]) & form.sign
        return found

    n = 3 if words[0] == "three" else 2
    return by_parts(words[-1], n, function)


def testp(base: str, words: list[str]) -> Meaning:
    """`testp`: zeros count as normal numbers (PTX ISA 9.7.3.1)."""
    form = FORMATS[words[-1]]

    def function(code: int) -> tuple[Result, ...]:
        x = form.decode(code)
        small = form.is_subnormal(code) and x != 0
        finite = math.isfinite(x)
        return (int({
            "finite": finite, "infinite": math.isinf(x), "number": not math.isnan(x),
            "notanumber": math.isnan(x), "normal": finite and not small, "subnormal": small,
        }[words[0]]),)  # fmt: skip

    return Meaning((words[-1],), ("pred",), function)


def copysign(base: str, words: list[str]) -> Meaning:
    """`copysign d, a, b`: the sign of a, and b but for its sign."""
    bit = FORMATS[words[-1]].sign
    return by_parts(words[-1], 2, lambda a, b: (a & bit) | (b & ~bit))


def _or_nan(function: Callable[[float], float]) -> Callable[[float], float]:
    """Return a function that is NaN of infinities."""
    return lambda x: function(x) if math.isfinite(x) else math.nan


def _log2(x: float) -> float:
    return math.log2(x) if x > 0 else -math.inf if x == 0 else math.nan


def _rsqrt(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, x)
    return math.nan if x < 0 else 0.0 if x == math.inf else 1 / math.sqrt(x)


def _ex2(x: float) -> float:
    return 0.0 if x < -1000 else math.inf if x > 1000 else math.exp2(x)


# What is approximated.
ELEMENTARY: dict[str, Callable[[float], float]] = {
    "sin": _or_nan(math.sin), "cos": _or_nan(math.cos), "lg2": _log2, "rsqrt": _rsqrt,
    "tanh": math.tanh, "ex2": _ex2, "rcp": lambda x: float(OPERATIONS["div"]("rn", 1.0, x)),
}  # fmt: skip


# The greatest errors that the ISA allows, relative and absolute, f64 being cut to 20 bits.
ERRORS = {
    "sin f32": (0.0, 2.0**-20), "cos f32": (0.0, 2.0**-20), "lg2 f32": (2.0**-22, 2.0**-22),
    "rsqrt f32": (2.0**-22, 0.0), "ex2 f32": (2.0**-22, 0.0), "ex2 f16": (2.0**-9.9, 0.0),
    "ex2 bf16": (2.0**-7, 0.0), "tanh f32": (2.0**-11, 0.0), "tanh f16": (0.0, 2.0**-10.9),
    "tanh bf16": (0.0, 2.0**-8), "rcp f64": (2.0**-20, 0.0), "rsqrt f64": (2.0**-20, 0.0),
}  # fmt: skip


def elementary(base: str, words: list[str]) -> Meaning:
    """Approximations, within their errors; of sines and cosines beyond 100 nothing is said."""
    kind = words[-1].removesuffix("x2")
    form, ftz = FORMATS[kind], "ftz" in words
    relative, absolute = ERRORS[f"{base} {kind}"]

    def function(code: int) -> Result:
        flushed = ftz and form.is_subnormal(code)
        x = form.decode(code & form.sign if flushed else code)
        found = x if math.isnan(x) else ELEMENTARY[base](x)
        if math.isnan(found):
            return NANS[kind]
        if base in ("sin", "cos") and abs(x) > 100:
            return None
        found = form.decode(form.encode(found))
        least = math.ldexp(1, 1 - form.bias)
        if ftz and abs(found) < least:
            found = math.copysign(0.0, found)
        if not found or math.isinf(found):
            return Near(found, 0.0)
        return Near(found, relative * abs(found) + absolute + math.ldexp(least, -form.mantissa))

    if words[-1] != kind:
        return _near_pair(words[-1], function)
    return by_parts(words[-1], 1, function)


def _near_pair(kind: str, function: Callable[[int], Result]) -> Meaning:
    """Return the meaning of an approximation of two halves, each a result of its own."""
    half = kind.removesuffix("x2")
    return Meaning(
        (kind,), (half, half), lambda code: (function(code & 0xFFFF), function(code >> 16)),
        "{op} %r9, {a}; mov.b32 {{{d}, {e}}}, %r9;",
    )  # fmt: skip


# Integers.


def quotient(a: int, b: int) -> int:
    """Return a / b, cut toward zero."""
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


WHOLE: dict[str, Callable[..., int | None]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "abs": abs, "neg": lambda a: -a,
    "min": min, "max": max, "sad": lambda a, b, c: abs(a - b) + c,
    "div": lambda a, b: quotient(a, b) if b else None,
    "rem": lambda a, b: a - quotient(a, b) * b if b else None,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a, "cnot": lambda a: int(a == 0),
}  # fmt: skip


def whole(base: str, words: list[str]) -> Meaning:
    """Operations on numbers of one type, in each element of packed ones."""
    if "cc" in words or base in ("addc", "subc"):
        return carrying(base, words)
    element = words[-1].partition("x")[0]
    operation = WHOLE[base]
    n = operation.__code__.co_argcount if hasattr(operation, "__code__") else 2 - (base == "abs")

    def function(*codes: int) -> Result:
        found = operation(*(number(code, element) for code in codes))
        if found is None:
            return None
        if "relu" in words:
            found = max(found, 0)
        return clamp(found, element) if "sat" in words else wrap(found, element)

    return by_parts(words[-1], n, function)


def products(base: str, words: list[str]) -> Meaning:
    """`mul`, `mad` of integers: the low or high half, or all of the product."""
    if "cc" in words or base == "madc":
        return carrying(base, words)
    kind, wide = words[-1], "wide" in words
    to = f"{kind[0]}{2 * bits_of(kind)}" if wide else kind
    sources = (kind, kind, to)[: 3 if base == "mad" else 2]

    def function(*codes: int) -> tuple[Result, ...]:
        product = number(codes[0], kind) * number(codes[1], kind)
        if "hi" in words:
            product >>= bits_of(kind)
        total = product + sum(number(code, to) for code in codes[2:])
        return (clamp(total, to) if "sat" in words else wrap(total, to),)

    return Meaning(sources, (to,), function)


def carrying(base: str, words: list[str]) -> Meaning:
    """`add`, `sub`, `mad` with a carry: the flag that goes in, and that comes out, are shown."""
    kind = words[-1]
    bits, takes, gives = bits_of(kind), base.endswith("c"), "cc" in words
    borrow = base.startswith("sub")
    sources = (kind,) * (3 if base.startswith("mad") else 2) + ("bool",) * takes

    def function(*codes: int) -> tuple[Result, ...]:
        flag = codes[-1] if takes else 0
        if base.startswith("mad"):
            product = number(codes[0], kind) * number(codes[1], kind)
            parts = [wrap(product >> (bits if "hi" in words else 0), kind), codes[2]]
        else:
            parts = list(codes[:2])
        total = parts[0] - parts[1] - flag if borrow else parts[0] + parts[1] + flag
        out = int(total < 0 or total >> bits > 0)
        return (wrap(total, kind), out)[: 1 + gives]

    operands = ", ".join(f"{{{name}}}" for name in "abc"[: len(sources) - takes])
    last = f"{{{'abcf'[len(sources) - 1]}}}"
    set_flag = f"sub.cc.u32 %r9, 0, {last};" if borrow else f"add.cc.u32 %r9, {last}, -1;"
    show = "subc.u32 {e}, 0, 0; neg.s32 {e}, {e};" if borrow else "addc.u32 {e}, 0, 0;"
    code = f"{set_flag if takes else ''} {{op}} {{d}}, {operands}; {show if gives else ''}"
    return Meaning(sources, (kind, "u32")[: 1 + gives], function, code)


def products24(base: str, words: list[str]) -> Meaning:
    """`mul24`, `mad24`: the low or high 32 of 48 bits."""
    kind = words[-1]

    def function(*codes: int) -> tuple[Result, ...]:
        a, b = (signed(c, 24) if kind[0] == "s" else c & 0xFFFFFF for c in codes[:2])
        total = (a * b >> (16 if "hi" in words else 0)) & 0xFFFFFFFF
        total = number(total, kind) + sum(number(c, kind) for c in codes[2:])
        return (clamp(total, kind) if "sat" in words else wrap(total, kind),)

    n = 3 if base == "mad24" else 2
    return Meaning((kind,) * n, (kind,), function)


def dot(base: str, words: list[str]) -> Meaning:
    """`dp4a`, `dp2a`: products of bytes, or of halves and the low or high bytes, and their sum."""
    first, second = words[-2:]
    four = base == "dp4a"

    def function(a: int, b: int, c: int) -> tuple[Result, ...]:
        left = [a >> 8 * i & 0xFF for i in range(4)] if four else [a & 0xFFFF, a >> 16]
        skip = 2 if "hi" in words else 0
        right = [b >> 8 * (i + skip) & 0xFF for i in range(len(left))]
        width = 8 if four else 16
        x = [signed(v, width) if first[0] == "s" else v for v in left]
        y = [signed(v, 8) if second[0] == "s" else v for v in right]
        return (wrap(c + sum(p * q for p, q in zip(x, y, strict=True)), "u32"),)

    return Meaning(("b32",) * 3, ("b32",), function)
