"""Arrays of f4e2m1: u8 that hold two elements to a byte, beside NumPy's own of one a byte.

Invariant: the last axis of a packed array is the packed one; the low nibble is the first element.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.errors import BadArgument
from astdsl.ir.dtypes import DType, f4e2m1, u8
from astdsl.lang.nibbles import PER_BYTE
from astdsl.records import dataclass
from astdsl.runtime.arrays import ArrayView, Where

# Libraries without arrays of one 4-bit float a byte.
PACKED_LIBRARIES = ("torch", "cupy")


@dataclass(frozen=True, slots=True)
class Elements:
    """An array as a signature sees it: elements that its bytes hold."""

    shape: tuple[int, ...]
    dtype: DType = f4e2m1


def is_packed(view: ArrayView, allowed: Sequence[DType]) -> bool:
    """Whether an array of bytes is passed where the annotation says f4e2m1, and not u8."""
    return view.dtype is u8 and f4e2m1 in allowed and u8 not in allowed


def elements_of(view: ArrayView, where: Where) -> Elements:
    """Return the elements that a packed array holds. Raises BadArgument for one without axes."""
    if not view.shape:
        raise BadArgument(
            f"`{where.name}` takes f4e2m1, two elements to a byte along its last axis, and this "
            "array has no axis",
            where.place,
            help="pass an array of u8 with half as many bytes along its last axis",
        )
    return Elements((*view.shape[:-1], view.shape[-1] * PER_BYTE))


def shape_in_bytes(shape: tuple[int, ...], where: Where) -> tuple[int, ...]:
    """Return the shape of the bytes of a packed array. Raises BadArgument for half a byte."""
    if not shape or shape[-1] % PER_BYTE:
        raise BadArgument(
            f"the omitted output `{where.name}` holds two f4e2m1 to a byte along its last axis, "
            f"and has the shape {shape}",
            where.place,
            help="an even last axis is whole bytes",
        )
    return (*shape[:-1], shape[-1] // PER_BYTE)
