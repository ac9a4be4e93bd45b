"""What a kernel states of the physical layout of shared memory.

Invariant: transforms are checked where they are written; what programs see of the memory, its
shape and its elements, does not change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from astdsl.errors import ShapeMismatch, TypeMismatch, in_words
from astdsl.ir import ops
from astdsl.ir.dtypes import DType
from astdsl.ir.transforms import (
    SWIZZLE,
    SWIZZLES_BYTES,
    TILING,
    TRANSPOSE,
    Transform,
    complaint,
)
from astdsl.ir.types import SMEM
from astdsl.lang.refs import Ref
from astdsl.lang.shapes import as_extent, as_shape
from astdsl.lang.tracing import emit, fault
from astdsl.records import replace


class PhysicalTransform:
    """One step of a physical layout: what kind, and its numbers."""

    __slots__ = ("kind", "numbers")
    kind: str
    numbers: tuple[int, ...]
    operand_help = "state it of shared memory: `SMEM(shape, dtype, transforms=(...))`"

    def __repr__(self) -> str:
        given = self.numbers[0] if self.kind == SWIZZLE else self.numbers
        return f"{type(self).__name__}({given})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PhysicalTransform):
            return NotImplemented
        return (self.kind, self.numbers) == (other.kind, other.numbers)

    def __hash__(self) -> int:
        return hash((self.kind, self.numbers))


class TilingTransform(PhysicalTransform):
    """Cut the last axes into tiles: elements of a tile follow each other, then the next tile's.

    (..., M, N) tiled by (m, n) is stored as (..., M/m, N/n, m, n), row-major. `tile` has one
    positive extent for each of the last axes and divides them. Errors: ShapeMismatch.
    """

    __slots__ = ()

    def __init__(self, tile: object) -> None:
        self.kind, self.numbers = TILING, as_shape(tile, "`TilingTransform`")
        if not self.numbers or 0 in self.numbers:
            raise fault(
                ShapeMismatch,
                f"`TilingTransform` takes extents of 1 or more, got {self.numbers}",
                help="one extent an axis, for the last axes: `TilingTransform((8, 32))`",
            )


class SwizzleTransform(PhysicalTransform):
    """XOR the 16-byte units of rows of `swizzle` bytes, 32, 64 or 128, against bank conflicts.

    Rows are the last physical axis, and have exactly so many bytes; nothing follows a swizzle.
    Unit u of row r, rows counted in steps of 128 bytes, is stored as unit u ^ (r % (swizzle / 16)).
    PTX ISA, 5.5.7. Errors: TypeMismatch.
    """

    __slots__ = ()

    def __init__(self, swizzle: object) -> None:
        given = as_extent(swizzle, "`SwizzleTransform`")
        if given not in SWIZZLES_BYTES:
            raise fault(
                TypeMismatch,
                f"`SwizzleTransform` takes 32, 64 or 128 bytes, got {given}",
                help="`find_swizzle(bits)` finds the largest one for a row of so many bits",
            )
        self.kind, self.numbers = SWIZZLE, (given,)


class TransposeTransform(PhysicalTransform):
    """Permute the last physical axes: axis k becomes what axis `permutation[k]` was.

    After a tiling of two axes, `TransposeTransform((1, 0, 2, 3))` stores tiles column by column.
    Errors: ShapeMismatch.
    """

    __slots__ = ()

    def __init__(self, permutation: object) -> None:
        self.kind, self.numbers = TRANSPOSE, as_permutation(permutation, "`TransposeTransform`")


def as_permutation(permutation: object, what: str) -> tuple[int, ...]:
    """Return the numbers 0 to n - 1 in some order."""
    numbers = as_shape(permutation, what)
    if not numbers or sorted(numbers) != list(range(len(numbers))):
        raise fault(
            ShapeMismatch,
            f"{what} takes each of 0 to n - 1 once, got {numbers}",
            help="`(1, 0)` exchanges two axes",
        )
    return numbers


def checked_transforms(
    transforms: object, shape: tuple[int, ...], dtype: DType, before: tuple[Transform, ...] = ()
) -> tuple[Transform, ...]:
    """Return transforms as the IR has them, after those of `before`; refuse what does not fit."""
    given = transforms if isinstance(transforms, Iterable) else (transforms,)
    found = before
    for each in given:
        if not isinstance(each, PhysicalTransform):
            raise fault(
                TypeMismatch,
                "`transforms` takes `TilingTransform`, `TransposeTransform` and "
                f"`SwizzleTransform`, got {each!r}",
                help="`transforms=(TilingTransform((8, 32)), SwizzleTransform(128))`",
            )
        found = (*found, (each.kind, each.numbers))
        wrong, help = complaint(shape, dtype, found)
        if wrong:
            raise fault(ShapeMismatch, f"`{each!r}` of {dtype}{list(shape)}: {wrong}", help=help)
    return found


def transform_ref(ref: object, transform: object) -> Ref:
    """State more of the physical layout of shared memory; return the memory as a ref.

    `transform` is one transform or several; they come after those that were stated before, and
    hold for the whole kernel. The shape does not change. Errors: TypeMismatch, ShapeMismatch.
    """
    memory = _require_shared("transform_ref", ref)
    root = memory.root
    shape = tuple(axis.size or 0 for axis in memory.axes)
    if not all(axis.whole and axis.kept for axis in memory.axes):
        raise fault(
            TypeMismatch,
            f"`ref` of `transform_ref` is a whole buffer, got a part of it, {memory}",
            (root.value, "the buffer is made here"),
            help="state the layout of the buffer: it is that of its parts",
        )
    found = checked_transforms(transform, shape, memory.dtype, root.transforms)
    emit(ops.StateLayout, ref=root.value, transforms=found)
    return memory.with_root(replace(root, transforms=found))


def transpose_ref(ref: object, permutation: object) -> Ref:
    """Return the view of a ref whose axis k is the ref's axis `permutation[k]`; nothing moves.

    `transpose_ref(ref, (1, 0))` is `ref.T`. Errors: TypeMismatch, ShapeMismatch.
    """
    if not isinstance(ref, Ref):
        raise fault(
            TypeMismatch,
            f"`ref` of `transpose_ref` is a ref, got {ref!r}",
            help="`transpose(tile, axes)` transposes a tile",
        )
    numbers = as_permutation(permutation, "`transpose_ref`")
    if len(numbers) != ref.ndim:
        raise fault(
            ShapeMismatch,
            f"`transpose_ref` permutes {in_words(ref.ndim, 'axis')} of {ref}, got {numbers}",
            help="name each axis once",
        )
    return ref.permuted(numbers)


def find_swizzle(bits: object, what: Any = "") -> int:
    """Return the largest swizzle, 128, 64 or 32 bytes, that divides a row of `bits` bits.

    `what` names the row in the message if none does. Errors: ShapeMismatch.
    """
    row_bits = as_extent(bits, "`find_swizzle`")
    for swizzle in SWIZZLES_BYTES:
        if row_bits > 0 and row_bits % (swizzle * 8) == 0:
            return swizzle
    raise fault(
        ShapeMismatch,
        f"no swizzle divides a row of {row_bits} bits{f' of {what}' if what else ''}",
        help="rows that are multiples of 256 bits have one; leave it out for others",
    )


def _require_shared(function: str, ref: object) -> Ref:
    if isinstance(ref, Ref) and ref.space == SMEM:
        return ref
    got = repr(ref)
    raise fault(
        TypeMismatch,
        f"`ref` of `{function}` is a ref to shared memory, got {got}",
        help="allocate it with `SMEM(shape, dtype)`",
    )
