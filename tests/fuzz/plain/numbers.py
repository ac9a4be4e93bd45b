"""Dtypes of the plain witness: exact rounding, conversion and promotion, in long doubles.

Invariant: what is computed for a float of less than 64 bits is rounded once, from a number with
more than twice its precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.program import NUMPY, Array

LONG = np.longdouble


class Unknown(Exception):
    """What the plain witness knows nothing of: it has no say in such a program."""


@dataclass(frozen=True)
class Kind:
    """A dtype as a kernel names it."""

    name: str

    @property
    def numpy(self) -> Any:
        return NUMPY[self.name]

    @property
    def kind(self) -> str:
        return "bool" if self.name == "bool" else "int" if self.name[0] in "iu" else "float"

    @cached_property
    def bits(self) -> int:
        return int(np.dtype(self.numpy).itemsize) * 8


KINDS = {name: Kind(name) for name in NUMPY}
BOOL, I32, I64, F32, F64 = (KINDS[n] for n in ("bool", "i32", "i64", "f32", "f64"))


def kind_of(x: Any) -> Kind:
    """Return the dtype that a kernel names; Python's `bool` is one."""
    if x is bool:
        return BOOL
    assert isinstance(x, Kind), f"{x!r} is no dtype"
    return x


def wide(x: Array) -> Array:
    """Return any numbers as long doubles, exactly."""
    return x.astype(LONG) if x.dtype.kind in "iu" else x.astype(np.float64).astype(LONG)


def rounded(x: Array, kind: Kind) -> Array:
    """Round long doubles to a float, ties to even; 8-bit floats saturate."""
    if kind is F64:
        return np.asarray(x, np.float64)
    info: Any = ml_dtypes.finfo(kind.numpy)  # type: ignore[no-untyped-call]
    precision, least, most = info.nmant + 1, int(info.minexp) + 1, LONG(float(info.max))
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(x)
        quantum = np.ldexp(LONG(1), np.maximum(exponent, least) - precision)
        found = np.where(np.isfinite(x), np.copysign(np.rint(x / quantum) * quantum, x), x)
        limit = most if kind.bits == 8 else LONG(np.inf)
        found = np.where(np.abs(found) > most, np.copysign(limit, x), found)
        return np.asarray(found).astype(np.float64).astype(kind.numpy)


def converted(x: Array, source: Kind, kind: Kind) -> Array:
    """Convert numbers: floats to nearest even, to integers towards zero and saturating."""
    if source is kind:
        return x
    with np.errstate(all="ignore"):
        if kind is BOOL:
            return np.asarray(wide(x) != 0)
        if kind.kind == "int" and source.kind != "float":
            return x.astype(kind.numpy)
        if kind.kind == "float":
            return rounded(wide(x.astype(np.int32) if source is BOOL else x), kind)
        info = np.iinfo(kind.numpy)
        whole = np.trunc(np.where(np.isnan(wide(x)), LONG(0), wide(x)))
        clipped = np.clip(whole, LONG(int(info.min)), LONG(int(info.max)))
        return exactly([int(v) for v in clipped.ravel()], clipped.shape, kind)


def exactly(numbers: list[int], shape: tuple[int, ...], kind: Kind) -> Array:
    """Return Python's integers as an array, modulo 2**bits."""
    top = 2**kind.bits
    low = 0 if kind.name[0] == "u" else top // 2
    wrapped = [(n + low) % top - low for n in numbers]
    return np.array(wrapped, object).reshape(shape).astype(kind.numpy)


def number(x: Any, kind: Kind) -> Array:
    """Return a Python number as a dtype."""
    if kind.kind == "float":
        return rounded(np.asarray(LONG(x)), kind)
    if isinstance(x, float):
        raise Unknown("a float beside integers")
    return np.asarray(bool(x)) if kind is BOOL else exactly([int(x)], (), kind)


def promoted(x: Kind, y: Kind) -> Kind:
    """Return the dtype in which two meet."""
    if x is y:
        return x
    if BOOL in (x, y) or (x.bits == y.bits == 8 and x.kind == y.kind == "float"):
        raise Unknown("no dtype in which they meet")
    if x.kind != y.kind:
        return x if x.kind == "float" else y
    if x.kind == "float":
        return F32 if {x.name, y.name} == {"f16", "bf16"} else x if x.bits > y.bits else y
    name = np.promote_types(x.numpy, y.numpy)
    if name.kind == "f":
        raise Unknown("signed integers beside u64")
    return KINDS[f"{name.kind}{name.itemsize * 8}"]
