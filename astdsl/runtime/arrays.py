"""Arrays of any library, seen as address, shape, strides and dtype.

Invariant: an `ArrayView` describes memory, of the host or a GPU, that is valid while its `owner`
lives; strides count elements and may be zero or negative; the address is that of element 0.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from astdsl.errors import AliasedOutput, BadArgument
from astdsl.ir.dtypes import BY_NUMPY, DType
from astdsl.records import dataclass
from astdsl.source import Span

# Work that `np.shares_memory` may spend on one pair before the pair is refused.
SHARING_WORK = 100_000

AnyArray: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Where:
    """The parameter that an array is passed to: its name, and where it stands in the source."""

    name: str
    span: Span

    @property
    def place(self) -> tuple[Span, str]:
        """The parameter as a place of an error report."""
        return (self.span, f"parameter `{self.name}`")


@dataclass(frozen=True, slots=True)
class ArrayView:
    """Memory as an array: what a launch needs to know of an argument.

    `owner` is what keeps the memory alive; `library` names where the array comes from; `device` is
    the number of the GPU that holds it, None for memory of the host.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    writeable: bool
    owner: object
    library: str = "numpy"
    device: int | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def view_of_numpy(array: AnyArray, where: Where) -> ArrayView:
    """Describe an array of NumPy."""
    if isinstance(array, np.ma.MaskedArray):
        raise BadArgument(
            f"`{where.name}` is a masked array, whose mask a kernel does not see",
            where.place,
            help="pass `.filled(value)`",
        )
    dtype = dtype_of_numpy(array.dtype, where)
    strides = strides_in_elements(array.shape, array.strides, array.dtype.itemsize, where)
    address = array.__array_interface__["data"][0]
    return ArrayView(address, array.shape, strides, dtype, array.flags.writeable, array)


def dtype_of_numpy(numpy: np.dtype[Any], where: Where) -> DType:
    """Return the kernel dtype of a NumPy dtype; BadArgument where there is none."""
    dtype = BY_NUMPY.get(numpy)
    if dtype is None:
        way_out = f"convert it, for example by `.astype({_nearest(numpy)!r})`"
        raise BadArgument(
            f"`{where.name}` has dtype {numpy}, which no kernel type holds",
            where.place,
            help=way_out,
        )
    return dtype


def _nearest(numpy: np.dtype[Any]) -> str:
    native = numpy.newbyteorder("=")
    return native.name if native in BY_NUMPY else "float32"


def strides_in_elements(
    shape: Sequence[int], strides: Sequence[int], element_bytes: int, where: Where
) -> tuple[int, ...]:
    """Return strides in elements. Raises BadArgument where they are no whole number of them.

    The stride of an axis that nothing steps along (extent 1, an empty array) may be any number.
    """
    empty = 0 in shape
    for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        if stride % element_bytes and extent > 1 and not empty:
            raise BadArgument(
                f"axis {axis} of `{where.name}` has a stride of {stride} bytes, which is no "
                f"multiple of its {element_bytes}-byte elements",
                where.place,
                help="copy it, for example by `numpy.ascontiguousarray`",
            )
    return tuple(stride // element_bytes for stride in strides)


def as_numpy(view: ArrayView) -> AnyArray:
    """Return the same memory as a NumPy array, keeping the owner alive."""
    if isinstance(view.owner, np.ndarray):
        return view.owner
    item = view.dtype.bytes
    low, high = byte_range(view)
    if low == high:
        return np.empty(view.shape, view.dtype.numpy)
    # NumPy keeps its buffer alive, and a ctypes array takes attributes: so the owner lives on.
    memory: Any = (ctypes.c_char * (high - low)).from_address(low)
    memory.owner = view.owner
    strides = tuple(stride * item for stride in view.strides)
    array: AnyArray = np.ndarray(
        view.shape, view.dtype.numpy, memory, offset=view.address - low, strides=strides
    )
    array.flags.writeable = view.writeable
    return array


def byte_offsets(
    shape: Sequence[int], strides: Sequence[int], element_bytes: int
) -> tuple[int, int]:
    """Return the least offset from the address, and the end of the last byte; (0, 0) if empty."""
    if 0 in shape:
        return (0, 0)
    reaches = [(d - 1) * s * element_bytes for d, s in zip(shape, strides, strict=True)]
    return sum(r for r in reaches if r < 0), sum(r for r in reaches if r > 0) + element_bytes


def byte_range(view: ArrayView) -> tuple[int, int]:
    """Return the first byte's address and the end; equal where there is no element."""
    low, high = byte_offsets(view.shape, view.strides, view.dtype.bytes)
    return view.address + low, view.address + high


def check_written(view: ArrayView, where: Where) -> None:
    """Raise BadArgument unless a kernel may write every element of an array by itself.

    Elements that share memory (a broadcast, a sliding window) would be written by several blocks.
    """
    if not view.writeable:
        raise BadArgument(
            f"`{where.name}` is written by the kernel, and this array is read-only",
            where.place,
            help="pass a copy, or leave the output out",
        )
    if _may_overlap_itself(view):
        raise BadArgument(
            f"`{where.name}` is written by the kernel, and elements of this array share memory",
            where.place,
            help="pass a copy, for example by `.copy()`",
        )


def _may_overlap_itself(view: ArrayView) -> bool:
    reach = 0
    long_axes = [(abs(s), d) for d, s in zip(view.shape, view.strides, strict=True) if d > 1]
    for stride, extent in sorted(long_axes):
        if stride <= reach:
            return view.elements > 0
        reach += stride * (extent - 1)
    return False


def check_aliases(views: Sequence[ArrayView], written: Sequence[bool], at: Sequence[Where]) -> None:
    """Raise AliasedOutput if a written array shares memory with another argument.

    Exact; a pair of strided arrays that is too hard to decide is refused as well.
    """
    for i, output in enumerate(views):
        if not written[i]:
            continue
        for j, other in enumerate(views):
            if (j < i or not written[j]) and i != j and _share(output, other):
                raise AliasedOutput(
                    f"the output `{at[i].name}` shares memory with `{at[j].name}`",
                    at[i].place,
                    at[j].place,
                    help="declare one parameter `InOut` to work in place, or pass a copy",
                )


def _share(a: ArrayView, b: ArrayView) -> bool:
    a_low, a_high = byte_range(a)
    b_low, b_high = byte_range(b)
    if not (a_low < b_high and b_low < a_high and a.elements and b.elements):
        return False
    try:
        # NumPy's stubs know the two named limits only.
        limit: Any = SHARING_WORK
        return bool(np.shares_memory(as_numpy(a), as_numpy(b), max_work=limit))
    except np.exceptions.TooHardError:
        return True
