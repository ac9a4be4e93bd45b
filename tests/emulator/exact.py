"""Numbers of PTX as Python's own: bits to floats, exact fractions to bits rounded once.

Shares nothing with the emulator: integers and `Fraction` alone.  Invariant: `Format.encode` gives
the correctly rounded bits of an exact value in every rounding mode of IEEE 754-2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

Number = Fraction | float
NAN = math.nan


@dataclass(frozen=True)
class Format:
    """A binary format of `bits` bits, `mantissa` of them stored, with its exponent's bias.

    `top` is the code of infinity, or one above the greatest finite code where there is none.
    """

    bits: int
    mantissa: int
    bias: int
    top: int
    has_infinity: bool = True

    @property
    def sign(self) -> int:
        """Return the bit of the sign."""
        return 1 << (self.bits - 1)

    def decode(self, code: int) -> float:
        """Return the value of a code, which a Python float holds exactly."""
        size, negative = code & (self.sign - 1), bool(code & self.sign)
        if size > self.top or (size == self.top and not self.has_infinity):
            return NAN
        if size == self.top:
            value = math.inf
        else:
            power, fraction = size >> self.mantissa, size & ((1 << self.mantissa) - 1)
            hidden = (1 << self.mantissa) if power else 0
            value = math.ldexp(fraction + hidden, max(power, 1) - self.bias - self.mantissa)
        return -value if negative else value

    def is_subnormal(self, code: int) -> bool:
        """Say whether a code is zero or subnormal."""
        return code & (self.sign - 1) < 1 << self.mantissa

    def encode(self, x: Number, mode: str = "rn", *, finite: bool = False) -> int:
        """Return the code of a number that is no NaN; `finite` stops at the greatest finite one."""
        negative = _negative(x)
        if isinstance(x, float) and math.isinf(x):
            size = self.top
        else:
            size = min(self._rounded(abs(Fraction(x)), mode, negative=negative), self.top)
        inward = mode in ("rz", "rp" if negative else "rm")
        if size == self.top and (finite or (inward and is_finite(x))):
            size = self.top - 1
        return size | (self.sign if negative else 0)

    def _rounded(self, size: Fraction, mode: str, *, negative: bool) -> int:
        if not size:
            return 0
        power = size.numerator.bit_length() - size.denominator.bit_length()
        power -= size < _power(power)
        power = max(power, 1 - self.bias)
        scaled = size / _power(power - self.mantissa)
        kept, rest = divmod(scaled.numerator, scaled.denominator)
        twice = 2 * rest
        up = {
            "rn": twice > scaled.denominator or (twice == scaled.denominator and kept & 1 == 1),
            "rna": twice >= scaled.denominator,
            "rz": False,
            "rm": negative and rest > 0,
            "rp": not negative and rest > 0,
        }[mode]
        return ((power - 1 + self.bias) << self.mantissa) + kept + up


def _power(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


FORMATS: dict[str, Format] = {
    "f16": Format(16, 10, 15, 0x7C00),
    "bf16": Format(16, 7, 127, 0x7F80),
    "f32": Format(32, 23, 127, 0x7F800000),
    "f64": Format(64, 52, 1023, 0x7FF << 52),
    # 19 bits in the upper ones of 32.
    "tf32": Format(19, 10, 127, 0xFF << 10),
    "e4m3": Format(8, 3, 7, 0x7F, has_infinity=False),
    "e5m2": Format(8, 2, 15, 0x7C),
    "e2m3": Format(6, 3, 1, 0x20, has_infinity=False),
    "e3m2": Format(6, 2, 3, 0x20, has_infinity=False),
    "e2m1": Format(4, 1, 1, 0x8, has_infinity=False),
}


# Operations: exact where they are finite, floats (which have a sign of zero) where they are not.


def is_finite(x: Number) -> bool:
    """Say whether a number is one; a fraction may be too large for a float."""
    return isinstance(x, Fraction) or math.isfinite(x)


def add(a: Number, b: Number, mode: str = "rn") -> Number:
    """Return a + b; a zero of two that cancel is negative when rounding down (IEEE 754 6.3)."""
    if not (is_finite(a) and is_finite(b)):
        return (0.0 if is_finite(a) else float(a)) + (0.0 if is_finite(b) else float(b))
    total = Fraction(a) + Fraction(b)
    if total:
        return total
    if a == 0 and _negative(a) == _negative(b):
        return a
    return -0.0 if mode == "rm" else 0.0


def _negative(x: Number) -> bool:
    return x < 0 or (x == 0 and isinstance(x, float) and math.copysign(1, x) < 0)


def multiply(a: Number, b: Number) -> Number:
    """Return a * b."""
    if is_finite(a) and is_finite(b) and a and b:
        return Fraction(a) * Fraction(b)
    return float(a) * float(b)


def divide(a: Number, b: Number) -> Number:
    """Return a / b."""
    if is_finite(a) and is_finite(b) and a and b:
        return Fraction(a) / Fraction(b)
    if math.isnan(a) or math.isnan(b) or (a == 0 and b == 0) or (math.isinf(a) and math.isinf(b)):
        return NAN
    size = math.inf if b == 0 or math.isinf(a) else 0.0
    return -size if _negative(a) != _negative(b) else size


def root(a: Number) -> Number:
    """Return the square root, cut to 200 bits with the last one set where there are more."""
    if not is_finite(a) or a <= 0:
        return a if a in (0, math.inf) else NAN
    scaled = Fraction(a) * _power(2 * 700)
    whole = scaled.numerator // scaled.denominator
    found = math.isqrt(whole)
    inexact = found * found != scaled
    return (2 * found + inexact) * _power(-701)


OPERATIONS: dict[str, Callable[..., Number]] = {
    "add": lambda mode, a, b: add(a, b, mode),
    "sub": lambda mode, a, b: add(a, -b, mode),
    "mul": lambda mode, a, b: multiply(a, b),
    "fma": lambda mode, a, b, c: add(multiply(a, b), c, mode),
    "mad": lambda mode, a, b, c: add(multiply(a, b), c, mode),
    "div": lambda mode, a, b: divide(a, b),
    "rcp": lambda mode, a: divide(1.0, a),
    "sqrt": lambda mode, a: root(a),
}


def signed(code: int, bits: int) -> int:
    """Return the two's complement number of a code."""
    code &= (1 << bits) - 1
    return code - (1 << bits) if code >> (bits - 1) else code
