"""2^x of float32, in float64 and rounded once, as `isa.elementary` takes it from NumPy.

x = n + f with |f| <= 1/2, exactly; 2^f by its Taylor polynomial, whose remainder is below 2^-57;
2^n by the bits of a float64. Invariant: the result is that of `isa.elementary` for all 2^32 values
(compared with glibc's exp2; both are within 0.6 units of the last place of a float64, so that they
could only differ for the few values whose result lies that close to between two float32s).
"""

from __future__ import annotations

import struct
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astdsl.emulator.native.writer import Writer

__all__ = ["exponential"]

_DEGREE = 13
# Adding it leaves the nearest integer in the low bits of the sum (1.5 * 2^52).
_ROUNDER = 6755399441055744.0
_BIAS, _MANTISSA_BITS = 1023, 52
# Beyond these float32 has only infinity, and zero.
_HIGHEST, _LOWEST = 192.0, -192.0


@lru_cache(maxsize=1)
def _coefficients() -> tuple[float, ...]:
    """Return ln(2)^k / k! for k from 0 on."""
    with localcontext() as context:
        context.prec = 40
        log, term, found = Decimal(2).ln(), Decimal(1), []
        for k in range(_DEGREE + 1):
            found.append(float(term))
            term = term * log / (k + 1)
    return tuple(found)


def _double(value: float) -> str:
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return f"splat (double 0x{bits:016X})"


def exponential(w: Writer, value: str) -> str:
    """Write 2^value for float32 values; NaN gives some NaN."""
    narrow, wide, whole = w.vector("float"), w.vector("double"), w.vector("i64")
    x = w.emit(f"fpext {narrow} {value} to {wide}")
    for bound, word in ((_HIGHEST, "ogt"), (_LOWEST, "olt")):
        beyond = w.emit(f"fcmp {word} {wide} {x}, {_double(bound)}")
        x = w.emit(f"select {w.vector('i1')} {beyond}, {wide} {_double(bound)}, {wide} {x}")
    shifted = w.emit(f"fadd {wide} {x}, {_double(_ROUNDER)}")
    nearest = w.emit(f"fsub {wide} {shifted}, {_double(_ROUNDER)}")
    f = w.emit(f"fsub {wide} {x}, {nearest}")
    *rest, last = _coefficients()
    sum_ = _double(last)
    for coefficient in reversed(rest):
        sum_ = w.call("fma", wide, sum_, f, _double(coefficient))
    bits = w.emit(f"bitcast {wide} {shifted} to {whole}")
    biased = w.emit(f"add {whole} {bits}, splat (i64 {_BIAS})")
    moved = w.emit(f"shl {whole} {biased}, splat (i64 {_MANTISSA_BITS})")
    scale = w.emit(f"bitcast {whole} {moved} to {wide}")
    return w.emit(f"fptrunc {wide} {w.emit(f'fmul {wide} {sum_}, {scale}')} to {narrow}")
