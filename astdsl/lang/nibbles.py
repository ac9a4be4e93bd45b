"""Memory of f4e2m1, two elements to a byte: windows of elements as windows of bytes.

Before
    w[tile(i, 64), tile(k, 128)]                   (f4e2m1: elements)
After
    unpack_nibbles (load w[tile(i, 64), tile(k, 64)])  (u8: bytes)

Invariant: the last axis of the memory is the packed one, the low nibble is the first element; no
access begins, ends or steps within a byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from astdsl.errors import BadWindow, UnsupportedFeature, in_words
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import f4e2m1
from astdsl.lang.indices import form_of, index_value
from astdsl.lang.ragged import HalfSpace
from astdsl.lang.symbolic import Atom, Form
from astdsl.lang.tracing import emit, fault
from astdsl.lang.views import AxisView

PER_BYTE = 2


def bytes_of_window(
    fields: Mapping[str, Any], axis: AxisView, halves: Mapping[Atom, Form], name: str
) -> dict[str, Any]:
    """Return the fields of a window of elements as those of its bytes.

    `axis` is the packed one; `halves` gives the half of each extent that is known to be even.
    Errors: BadWindow, UnsupportedFeature for windows that no bytes are.
    """
    if axis.index is not None or not axis.kept or axis.step != 1 or axis.fences:
        raise fault(
            UnsupportedFeature,
            f"`{name}` holds two f4e2m1 to a byte along its last axis, and this reads or writes "
            "single ones there",
            help="take windows along the last axis, `tile(k, 64)` or `:`, and index the tile; or "
            "pass an array of one element a byte (float4_e2m1fn of ml_dtypes)",
        )
    size, start = fields["sizes"][-1], half(form_of(axis.start), halves)
    if size % PER_BYTE or start is None:
        what = f"has {in_words(size, 'element')}" if size % PER_BYTE else "may begin within a byte"
        raise fault(
            BadWindow,
            f"`{name}` holds two f4e2m1 to a byte along its last axis, and this window {what}",
            help="windows begin at even places and have even extents: `tile(k, 64)`, "
            "`ds(2 * i, 64)`",
        )
    sizes = (*fields["sizes"][:-1], size // PER_BYTE)
    starts = (*fields["starts"][:-1], index_value(start))
    return {**fields, "sizes": sizes, "starts": starts}


def shape_in_bytes(
    shape: tuple[int, ...], axis: int, spaces: Sequence[HalfSpace], name: str
) -> tuple[int, ...]:
    """Return the shape of what indices pick, in bytes; `spaces` are edges, none along `axis`."""
    if any(space.axis == axis for space in spaces):
        raise fault(
            UnsupportedFeature,
            f"`{name}` holds two f4e2m1 to a byte along its last axis, and of the tile that is "
            "stored there by indices some elements are outside along that axis",
            help="`t.filled(0)` makes them ordinary elements",
        )
    return (*shape[:axis], shape[axis] // PER_BYTE, *shape[axis + 1 :])


def half(form: Form, halves: Mapping[Atom, Form]) -> Form | None:
    """Return half of a number, None if it is not known to be even."""
    total = Form.of(0)
    for monomial, coefficient in form.terms.items():
        even = next((atom for atom in monomial if atom in halves), None)
        if coefficient % PER_BYTE == 0:
            part = Form({monomial: coefficient // PER_BYTE})
        elif even is not None:
            rest = list(monomial)
            rest.remove(even)
            part = Form({tuple(rest): coefficient}) * halves[even]
        else:
            return None
        total = total + part
    return total


def unpacked(value: Value, axis: int) -> Value:
    """Return the elements of bytes that were read."""
    return emit(ops.UnpackNibbles, x=value, axis=axis).result


def packed(value: Value, axis: int) -> Value:
    """Return elements as the bytes that are written."""
    return emit(ops.PackNibbles, x=value, axis=axis).result


def byte_of(number: float) -> int:
    """Return the byte of two elements that hold a number of f4e2m1."""
    code = int(np.asarray(number, np.float32).astype(f4e2m1.numpy).view(np.uint8))
    return code | code << 4
