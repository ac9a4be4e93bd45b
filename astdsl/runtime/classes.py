"""The class of an argument: what of an array a compiled kernel may rely on.

Invariant: two arrays of one class run the same code. A class is which axis is contiguous, whether
TMA can describe the array, whether every offset fits 32 bits, whether it has no elements, and which
dims are compile-time constants; everything else is read from the arguments of each launch. Axes of
extent 1 have no stride.
Source: CUDA driver API, cuTensorMapEncodeTiled (the conditions on a tensor map).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd

from astdsl.errors import in_words
from astdsl.ir.dtypes import DType
from astdsl.ir.types import GMEM, TMA_ALIGN_BYTES, TMA_MAX_RANK, RefType
from astdsl.records import dataclass
from astdsl.runtime.arrays import ArrayView, byte_offsets

TMA_MAX_DIM = 1 << 32
TMA_MAX_STRIDE_BYTES = 1 << 40
OFFSET_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class Geometry:
    """All of an array that its class depends on; `align_bytes` is the base's, at most 16."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    align_bytes: int


@dataclass(frozen=True, slots=True)
class ArgumentClass:
    """A class, and why it is not a better one (for `explain`)."""

    contiguous_axis: int | None
    tma: bool
    small: bool
    align_bytes: int
    reason: str

    def words(self) -> str:
        """Say the class in words."""
        access = "TMA" if self.tma else f"plain loads, because {self.reason}"
        return _class_words(self.contiguous_axis, access, self.small)


def _class_words(contiguous_axis: int | None, access: str, is_small: bool) -> str:
    axis = contiguous_axis
    contiguous = "no contiguous axis" if axis is None else f"axis {axis} contiguous"
    return "; ".join([contiguous, access, "32-bit offsets" if is_small else "64-bit offsets"])


def tell_apart(given: RefType, wanted: RefType) -> tuple[str, str]:
    """Say what an argument is that a kernel is not compiled for, and what it is compiled for."""
    if given.dtype is not wanted.dtype or given.rank != wanted.rank:
        first, second = (
            f"{each.dtype} with {in_words(each.rank, 'axis')}" for each in (given, wanted)
        )
        return f"is {first}", second
    for axis, pair in enumerate(zip(given.shape, wanted.shape, strict=True)):
        if pair[0] != pair[1]:  # what is no constant is over 0
            extent = "more than 0 elements" if pair[0] is None else in_words(pair[0], "element")
            other = "more than 0" if pair[1] is None else str(pair[1])
            return f"has {extent} along axis {axis}", other
    return f"is of the class {_words_of(given)}", _words_of(wanted)


def _words_of(kind: RefType) -> str:
    axis = kind.strides.index(1) if 1 in kind.strides else None
    words = _class_words(axis, "TMA" if kind.tma else "plain loads", kind.small)
    return f"({words}{'; no elements' if kind.empty else ''})"


def geometry_of(view: ArrayView) -> Geometry:
    """Return what the class of an array depends on."""
    return Geometry(view.shape, view.strides, view.dtype, alignment_of(view.address))


def alignment_of(address: int) -> int:
    """Return the largest power of two, at most 16, that divides an address."""
    return gcd(address, TMA_ALIGN_BYTES)


@lru_cache(maxsize=4096)
def classify(geometry: Geometry) -> ArgumentClass:
    """Return the class of an array."""
    axis = contiguous_axis(geometry.shape, geometry.strides)
    reason = _why_not_tma(geometry, axis)
    low, high = byte_offsets(geometry.shape, geometry.strides, geometry.dtype.bytes)
    # Axes of stride 0 reach nowhere, but their indices must fit as well.
    is_short = all(extent < OFFSET_LIMIT for extent in geometry.shape)
    small = is_short and low >= -OFFSET_LIMIT and high <= OFFSET_LIMIT
    # Alignment beyond the element's is promised only with TMA, so that it makes no third class.
    align = min(geometry.align_bytes, geometry.dtype.bytes) if reason else TMA_ALIGN_BYTES
    return ArgumentClass(axis, not reason, small, align, reason)


def contiguous_axis(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the axis of stride 1: the last such of extent over 1, else the last of extent 1."""
    axes = range(len(shape) - 1, -1, -1)
    long = [a for a in axes if shape[a] != 1 and strides[a] == 1]
    short = [a for a in axes if shape[a] == 1]
    return next(iter(long + short), None)


def _why_not_tma(geometry: Geometry, axis: int | None) -> str:
    """Say what keeps TMA from describing an array; empty where nothing does."""
    shape = geometry.shape
    if axis is None:
        return "no axis is contiguous" if shape else "it has no axis"
    if len(shape) > TMA_MAX_RANK:
        return f"it has {in_words(len(shape), 'axis')}, and a tensor map {TMA_MAX_RANK}"
    if 0 in shape:
        return "it has no elements"
    if geometry.align_bytes < TMA_ALIGN_BYTES:
        return f"its base is no multiple of {TMA_ALIGN_BYTES} bytes"
    for a, extent in enumerate(shape):
        if extent > TMA_MAX_DIM:
            return f"axis {a} is longer than 2**32"
        if extent > 1 and a != axis:
            problem = _why_not_stride(a, geometry.strides[a] * geometry.dtype.bytes)
            if problem:
                return problem
    return ""


def _why_not_stride(axis: int, stride_bytes: int) -> str:
    if stride_bytes == 0:
        return f"axis {axis} has stride 0"
    if stride_bytes < 0:
        return f"axis {axis} runs backwards"
    if stride_bytes % TMA_ALIGN_BYTES:
        what = f"a stride of {stride_bytes} bytes, no multiple of {TMA_ALIGN_BYTES}"
        return f"axis {axis} has {what}"
    return "" if stride_bytes < TMA_MAX_STRIDE_BYTES else f"axis {axis} has a stride over 2**40"


def ref_type(geometry: Geometry, dtype: DType, static: tuple[int | None, ...]) -> RefType:
    """Return the type of a parameter: the argument's class, with `static` dims written in."""
    found = classify(geometry)
    strides = tuple(1 if a == found.contiguous_axis else None for a in range(len(static)))
    return RefType(
        shape=static,
        dtype=dtype,
        space=GMEM,
        strides=strides,
        tma=found.tma,
        align_bytes=found.align_bytes,
        small=found.small,
        empty=0 in geometry.shape,
    )


@lru_cache(maxsize=4096)
def launch_strides(geometry: Geometry) -> tuple[int, ...]:
    """Return the strides, in elements, that a launch passes: what an axis of extent 1 has is free.

    The contiguous axis gets 1; other axes of extent 1 get one that a tensor map takes.
    """
    axis = contiguous_axis(geometry.shape, geometry.strides)
    unit = max(1, TMA_ALIGN_BYTES // geometry.dtype.bytes)
    free = [1 if a == axis else unit for a in range(len(geometry.shape))]
    pairs = zip(geometry.shape, geometry.strides, free, strict=True)
    return tuple(f if extent == 1 else stride for extent, stride, f in pairs)
