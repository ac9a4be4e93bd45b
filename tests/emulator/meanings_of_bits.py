"""What logic, shifts, bit fields, comparisons, selections, moves and conversions of PTX compute.

From the text of the ISA (9.7.1, 9.7.6-9.7.9), as `meanings`, which it completes: `meaning(opcode)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

from tests.emulator.exact import FORMATS, signed
from tests.emulator.meanings import (
    NANS,
    Builder,
    Meaning,
    Result,
    arithmetic,
    bits_of,
    by_parts,
    clamp,
    copysign,
    dot,
    either,
    elementary,
    extreme,
    finish,
    number,
    products,
    products24,
    sign,
    testp,
    value,
    whole,
    wrap,
)
from tests.emulator.test_logic import extracted, nth_set_bit, permuted


def meaning(opcode: str, operands: int) -> Meaning:
    """Return what an instruction computes; KeyError where nothing is known of it."""
    base, *words = opcode.split(".")
    if base in ("min", "max") and operands == 4:
        words.insert(0, "three")
    return BUILDERS[base](base, words)


def _counts(base: str, words: list[str]) -> Meaning:
    kind = words[-1]
    bits = bits_of(kind)

    def function(a: int) -> tuple[Result, ...]:
        if base == "bfind":
            plain = ~number(a, kind) if number(a, kind) < 0 else number(a, kind)
            place = plain.bit_length() - 1
            return (wrap(bits - 1 - place if "shiftamt" in words and plain else place, "u32"),)
        return (a.bit_count() if base == "popc" else bits - a.bit_length(),)

    return Meaning((kind,), ("u32",), function)


def _reversed(base: str, words: list[str]) -> Meaning:
    bits = bits_of(words[-1])
    return by_parts(words[-1], 1, lambda a: int(f"{a:0{bits}b}"[::-1], 2))


def _fields(base: str, words: list[str]) -> Meaning:
    kind = words[-1]
    bits = bits_of(kind)

    def extract(a: int, position: int, length: int) -> tuple[Result, ...]:
        return (extracted(a, position & 255, length & 255, bits, kind[0] == "s"),)

    def insert(a: int, b: int, position: int, length: int) -> tuple[Result, ...]:
        mask = wrap(((1 << (length & 255)) - 1) << (position & 255), kind)
        return (b & ~mask | a << (position & 255) & mask,)

    if base == "bfe":
        return Meaning((kind, "count", "count"), (kind,), extract)
    return Meaning((kind, kind, "count", "count"), (kind,), insert)


def _nth(base: str, words: list[str]) -> Meaning:
    def function(mask: int, start: int, offset: int) -> tuple[Result, ...]:
        return (nth_set_bit(mask, start % 32, signed(offset, 32)),)

    code = "and.b32 %r9, {b}, 31; {op} {d}, {a}, %r9, {c};"
    return Meaning(("b32", "count", "s32"), ("b32",), function, code)


def _limited(count: int, words: list[str]) -> int:
    return count & 31 if "wrap" in words else min(count, 32)


def _extended(base: str, words: list[str]) -> Meaning:
    kind = words[-1]

    def extend(a: int, width: int) -> tuple[Result, ...]:
        kept = _limited(width, words)
        low = a & ((1 << kept) - 1)
        return (wrap(signed(low, kept) if kept and kind == "s32" else low, kind),)

    return Meaning((kind, "count"), (kind,), extend)


def _mask(base: str, words: list[str]) -> Meaning:
    def function(start: int, width: int) -> tuple[Result, ...]:
        return (wrap(((1 << _limited(width, words)) - 1) << _limited(start, words), "b32"),)

    return Meaning(("count", "count"), ("b32",), function)


def _lut(base: str, words: list[str]) -> Meaning:
    table = 0x6E

    def function(a: int, b: int, c: int, *other: int) -> tuple[Result, ...]:
        found = 0
        for row in range(8):
            x, y, z = (v if row & bit else ~v for v, bit in ((a, 4), (b, 2), (c, 1)))
            found |= x & y & z if table >> row & 1 else 0
        found = wrap(found, "b32")
        if not other:
            return (found,)
        said = found != 0
        return found, int(said or other[0]) if "or" in words else int(said and other[0])

    if len(words) == 1:
        return Meaning(
            ("b32",) * 3, ("b32",), function, f"{{op}} {{d}}, {{a}}, {{b}}, {{c}}, {table};"
        )
    code = f"{{op}} {{d}}|{{e}}, {{a}}, {{b}}, {{c}}, {table}, {{f}};"
    return Meaning(("b32",) * 3 + ("pred",), ("b32", "pred"), function, code)


def _funnel(base: str, words: list[str]) -> Meaning:
    def function(low: int, high: int, count: int) -> tuple[Result, ...]:
        pair, n = high << 32 | low, _limited(count, words)
        return (wrap(pair << n >> 32 if "l" in words else pair >> n, "b32"),)

    return Meaning(("b32", "b32", "count"), ("b32",), function)


def _shift(base: str, words: list[str]) -> Meaning:
    kind = words[-1]

    def function(a: int, count: int) -> tuple[Result, ...]:
        n = min(count, bits_of(kind))
        return (wrap(a << n if base == "shl" else number(a, kind) >> n, kind),)

    return Meaning((kind, "count"), (kind,), function)


def _permute(base: str, words: list[str]) -> Meaning:
    places: dict[str, Callable[[int, int], int]] = {
        "f4e": lambda c, i: c + i, "b4e": lambda c, i: (c - i) % 8, "rc8": lambda c, i: c,
        "ecl": max, "ecr": min,
        "rc16": lambda c, i: (c & 1) * 2 + (i & 1),
    }  # fmt: skip

    def function(a: int, b: int, c: int) -> tuple[Result, ...]:
        if len(words) == 1:
            return (permuted(a, b, c),)
        picks = sum(places[words[-1]](c & 3, i) << 4 * i for i in range(4))
        return (permuted(a, b, picks),)

    return Meaning(("b32",) * 3, ("b32",), function)


# Comparisons and selections.

LOGIC = {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}


def _compare(word: str, a: float, b: float) -> bool:
    unordered = math.isnan(a) or math.isnan(b)
    if word in ("num", "nan"):
        return unordered == (word == "nan")
    word = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(word, word)
    if unordered:
        return len(word) == 3
    return {
        "eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b,
    }[word[:2]]  # fmt: skip


@cache
def _elements(kind: str, word: str, ftz: bool, a: int, b: int) -> tuple[bool, ...]:
    """Return what a comparison says of each element."""
    element, _, packed = kind.partition("x")
    width, found = bits_of(element), []
    for i in range(int(packed) if packed else 1):
        x, y = (code >> i * width & ((1 << width) - 1) for code in (a, b))
        if element in FORMATS:
            flush = ftz and element in ("f16", "f32")
            p, q = (value(code, element, flush=flush) for code in (x, y))
            found.append(_compare(word, p, q))
        else:
            found.append(_compare(word, number(x, element), number(y, element)))
    return tuple(found)


def _setp(base: str, words: list[str]) -> Meaning:
    """Both predicates: of two halves, or what is so and what is not; `!c` combines as well."""
    kind, logic = words[-1], next((LOGIC[w] for w in words[1:] if w in LOGIC), None)
    packed = kind.endswith("x2")

    def function(a: int, b: int, *other: int) -> tuple[Result, ...]:
        found = _elements(kind, words[0], "ftz" in words, a, b)
        both = found if packed else [found[0], not found[0]]
        if logic is None:
            return tuple(int(each) for each in both)
        return tuple(int(logic(each, not other[0])) for each in both)

    two = packed or kind not in ("f16", "bf16")
    third = ", !{c}" if logic else ""
    results = f"{{d}}{'|{e}' if two else ''}"
    return Meaning(
        (kind, kind) + ("pred",) * bool(logic), ("pred",) * (1 + two),
        lambda *codes: function(*codes)[: 1 + two],
        f"{{op}} {results}, {{a}}, {{b}}{third};",
    )  # fmt: skip


ONES = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}


def _set(base: str, words: list[str]) -> Meaning:
    to, kind = words[-2:]
    logic = next((LOGIC[w] for w in words[1:] if w in LOGIC), None)

    def function(a: int, b: int, *other: int) -> tuple[Result, ...]:
        found = _elements(kind, words[0], "ftz" in words, a, b)
        said = [logic(each, bool(other[0])) if logic else each for each in found]
        one = ONES.get(to.removesuffix("x2"), (1 << (bits_of(to) // len(said))) - 1)
        return (sum(one << i * (bits_of(to) // len(said)) for i, each in enumerate(said) if each),)

    return Meaning((kind, kind) + ("pred",) * bool(logic), (to,), function)


def _selp(base: str, words: list[str]) -> Meaning:
    kind = words[-1]
    return Meaning((kind, kind, "pred"), (kind,), lambda a, b, c: (a if c else b,))


def _slct(base: str, words: list[str]) -> Meaning:
    kind, by = words[-2:]

    def function(a: int, b: int, c: int) -> tuple[Result, ...]:
        x = value(c, by, flush="ftz" in words) if by == "f32" else number(c, by)
        return (a if x >= 0 else b,)

    return Meaning((kind, kind, by), (kind,), function)


def _mov(base: str, words: list[str]) -> Meaning:
    if words[-1] != "b128":
        return by_parts(words[-1], 1, lambda a: a)
    code = "{op} %q1, {{{a}, {b}}}; {op} {{{d}, {e}}}, %q1;"
    return Meaning(("b64", "b64"), ("b64", "b64"), lambda a, b: (a, b), code)


# Conversions.

INTEGRAL: dict[str, Callable[[float], int]] = {
    "rni": round,
    "rzi": math.trunc,
    "rmi": math.floor,
    "rpi": math.ceil,
}
SMALL = ("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "e2m1x2", "ue8m0x2")
PAIRS = ("f16x2", "bf16x2")


def _cvt(base: str, words: list[str]) -> Meaning:
    if words[0] == "pack":
        return _pack(words)
    to, source = words[-2:]
    if words[0] == "rs":
        return _random(words, to)
    if to in SMALL or source in SMALL:
        return _small(words, to, source)
    if to in PAIRS:
        half = to.removesuffix("x2")

        def both(a: int, b: int) -> tuple[Result, ...]:
            high, low = (_one(words, half, source, code) for code in (a, b))
            return (int(str(high)) << 16 | int(str(low)),)

        return Meaning((source, source), ("b32",), both)
    wide = {"u8": "wide u8", "s8": "wide s8"}
    result = "b32" if to == "tf32" else wide.get(to, to)
    return Meaning(
        (wide.get(source, source),), (result,), lambda code: (_one(words, to, source, code),)
    )


def _one(words: list[str], to: str, source: str, code: int) -> Result:
    """Convert one number."""
    if source not in FORMATS:
        x: float | int = number(code, source)
        if to in FORMATS:
            return finish(Fraction(x), to, words)
        found = clamp(int(x), to) if "sat" in words else wrap(int(x), to)
        return wrap(number(found, to), "b32") if to in ("s8", "u8") else found
    x = value(code, source, flush="ftz" in words and source == "f32")
    integral = next((INTEGRAL[w] for w in words if w in INTEGRAL), None)
    if to not in FORMATS:
        return _integer(x, to, source, integral or math.trunc)
    if integral and math.isfinite(x):
        x = math.copysign(float(integral(x)), x)
    # `.ftz` is of float32 alone.
    return finish(x, to, words if to == "f32" else [word for word in words if word != "ftz"])


def _integer(x: float, to: str, source: str, integral: Callable[[float], int]) -> Result:
    if math.isnan(x):
        wide = source == "f64" or to in ("s64", "u64")
        found = 1 << (bits_of(to) - 1) if wide else 0
    elif math.isinf(x):
        found = clamp((1 << 99) * (1 if x > 0 else -1), to)
    else:
        found = clamp(integral(x), to)
    return wrap(number(found, to), "b32") if to in ("s8", "u8") else found


def _pack(words: list[str]) -> Meaning:
    to = words[2]
    bits = bits_of(to)

    def function(a: int, b: int, c: int = 0) -> tuple[Result, ...]:
        high, low = (clamp(signed(code, 32), to) for code in (a, b))
        return (wrap(c << 2 * bits | high << bits | low, "b32"),)

    return Meaning(("s32", "s32") + ("b32",) * (bits < 16), ("b32",), function)


def _random(words: list[str], to: str) -> Meaning:
    """`cvt.rs`: random bits are added to those cut off, of values that stay normal."""
    half, cut = to.removesuffix("x2"), 13 if to == "f16x2" else 16
    form = FORMATS[half]

    def one(code: int, random: int) -> Result:
        x = FORMATS["f32"].decode(code)
        if math.isfinite(x) and abs(x) >= 2.0 ** (1 - form.bias):
            added = code + (random & ((1 << cut) - 1))
            x = FORMATS["f32"].decode(added >> cut << cut)
        elif x and math.isfinite(x):
            return None
        return finish(x, half, words[1:])

    def function(a: int, b: int, random: int) -> tuple[Result, ...]:
        return one(b, random), one(a, random >> 16)

    code = "{op} %r9, {a}, {b}, {c}; mov.b32 {{{d}, {e}}}, %r9;"
    return Meaning(("f32", "f32", "b32"), ("b16", "b16"), function, code)


def _small(words: list[str], to: str, source: str) -> Meaning:
    """Pairs of floats of 4, 6 and 8 bits, each in 4 or 8 bits."""
    name = (to if to in SMALL else source).removesuffix("x2")
    pitch = 4 if name == "e2m1" else 8
    packed = f"b{2 * pitch}"
    if source in SMALL:
        half = to.removesuffix("x2")

        def widen(code: int) -> tuple[Result, ...]:
            parts = [_widened(words, half, name, code >> pitch * i) for i in (0, 1)]
            return (int(str(parts[1])) << 16 | int(str(parts[0])),)

        return Meaning((packed,), ("b32",), widen)

    def pair(low: int, high: int, kind: str) -> tuple[Result, ...]:
        x, y = (_narrowed(words, name, FORMATS[kind].decode(code)) for code in (low, high))
        return (x | y << pitch,)

    if source == "f32":
        return Meaning(("f32", "f32"), (packed,), lambda a, b: pair(b, a, "f32"))
    half = source.removesuffix("x2")
    return Meaning((source,), (packed,), lambda a: pair(a & 0xFFFF, a >> 16, half))


def _widened(words: list[str], to: str, name: str, code: int) -> Result:
    if name == "ue8m0":
        return (
            NANS[to]
            if code & 255 == 255
            else finish(Fraction(2) ** ((code & 255) - 127), to, words)
        )
    return finish(FORMATS[name].decode(code & ((1 << FORMATS[name].bits) - 1)), to, words)


# What a NaN becomes; without one, the greatest number (PTX ISA 9.7.9.21).
NARROW_NANS = {"e4m3": 0x7F, "e5m2": 0x7F, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 0x7}


def _narrowed(words: list[str], name: str, x: float) -> int:
    if name == "ue8m0":
        return _exponent(x, up="rp" in words, finite="satfinite" in words)
    if math.isnan(x):
        return NARROW_NANS[name]
    if "relu" in words and not x > 0:
        x = 0.0
    return FORMATS[name].encode(x, finite=True)


def _exponent(x: float, *, up: bool, finite: bool) -> int:
    """As the host does it in `cuda_fp8.hpp`: of |x|; beyond 2^127 a NaN, unless `.satfinite`."""
    if math.isnan(x):
        return 255
    if math.isinf(x):
        return 254 if finite else 255
    fraction, power = math.frexp(abs(x))
    code = 0 if x == 0 else max(power - 1 + (up and fraction != 0.5) + 127, 0)
    return min(code, 254) if finite else code


def _rcp(base: str, words: list[str]) -> Meaning:
    rounded = words[-1] == "f32" or "approx" not in words
    return (arithmetic if rounded else elementary)(base, words)


BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(("add", "sub", "div", "abs", "neg", "min", "max"), whole),
    **dict.fromkeys(("addc", "subc", "sad", "rem", "and", "or", "xor", "not", "cnot"), whole),
    **dict.fromkeys(("mul", "mad", "madc"), products),
    **dict.fromkeys(("mul24", "mad24"), products24), **dict.fromkeys(("dp4a", "dp2a"), dot),
    **dict.fromkeys(("popc", "clz", "bfind"), _counts), "brev": _reversed, "fns": _nth,
    "bfe": _fields, "bfi": _fields, "szext": _extended, "bmsk": _mask, "lop3": _lut,
    "shf": _funnel, "shl": _shift, "shr": _shift, "prmt": _permute, "testp": testp,
    "copysign": copysign, "fma": arithmetic, "sqrt": arithmetic, "rcp": _rcp,
    **dict.fromkeys(("sin", "cos", "lg2", "ex2", "tanh", "rsqrt"), elementary),
    "setp": _setp, "set": _set, "selp": _selp, "slct": _slct, "mov": _mov, "cvt": _cvt,
}  # fmt: skip
BUILDERS |= {
    base: either(BUILDERS[base], floats)
    for base, floats in (
        *((base, arithmetic) for base in ("add", "sub", "mul", "mad", "div")),
        *((base, sign) for base in ("abs", "neg")), *((base, extreme) for base in ("min", "max")),
    )
}  # fmt: skip
