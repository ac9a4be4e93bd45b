"""Buffers that take turns in one region of shared or tensor memory.

Invariant: what was in a buffer is lost when another one of its union is written.
"""

from __future__ import annotations

from typing import Any

from astdsl.errors import KernelError, TypeMismatch
from astdsl.ir import ops
from astdsl.ir.types import SMEM as SHARED
from astdsl.ir.types import TMEM as TENSOR
from astdsl.lang.refs import Ref
from astdsl.lang.tracing import emit, fault, require_trace


def RefUnion(*refs: Any) -> tuple[Any, ...]:  # noqa: N802
    """Let buffers take turns in one region of shared or tensor memory; return them as given.

    `a, b = RefUnion(SMEM((64, 64), f32), SMEM((128, 64), f16))` takes as much as the larger one; a
    tuple of buffers is one member, whose buffers lie side by side. Where in the region a buffer's
    elements are is not specified: what was written through one member is read through it, before
    another one is written. Named as in Pallas. Errors: TypeMismatch, UnsupportedFeature.
    """
    groups = [tuple(ref) if isinstance(ref, tuple | list) else (ref,) for ref in refs]
    if len(groups) < 2 or not all(groups):
        raise fault(
            TypeMismatch,
            f"`RefUnion` takes two buffers or more, got {len(refs)}",
            help="`a, b = RefUnion(SMEM((64, 64), f32), SMEM((64, 64), f16))`",
        )
    members = [ref for group in groups for ref in group]
    _require_one_space(members)
    for number, ref in enumerate(members):
        if any(ref is other for other in members[:number]):
            raise _refused(ref, "is given twice")
        _require_fresh(ref)
    emit(
        ops.Overlap,
        refs=tuple(ref.root.value for ref in members),
        sizes=tuple(map(len, groups)),
    )
    return refs


def _require_one_space(members: list[Any]) -> None:
    spaces = {ref.space for ref in members if isinstance(ref, Ref)}
    if len(spaces) > 1:
        raise fault(
            TypeMismatch,
            f"`RefUnion` is of one kind of memory, got {' and '.join(sorted(spaces))}",
            *((ref.root.value, ref.space) for ref in members if isinstance(ref, Ref)),
            help="unite shared memory by itself, and tensor memory by itself",
        )


def _require_fresh(ref: Any) -> None:
    """Refuse what is no new, whole buffer on chip."""
    if not isinstance(ref, Ref) or ref.space not in (SHARED, TENSOR):
        raise fault(
            TypeMismatch,
            f"`RefUnion` takes buffers of shared memory or of tensor memory, got {ref!r}",
            help="`SMEM(shape, dtype)` or `TMEM(shape, dtype)` makes one",
        )
    value = ref.root.value
    used = [op for op in require_trace("`RefUnion`").builder.current.ops if value in op.operands]
    if used:
        raise _refused(ref, "is used before")
    if not all(axis.whole for axis in ref.axes):
        raise _refused(ref, "is a part of a buffer")


def _refused(ref: Ref, said: str) -> KernelError:
    return fault(
        TypeMismatch,
        f"a buffer of `RefUnion` {said}",
        (ref.root.value, "the buffer"),
        help="make the buffers in the call: `RefUnion(SMEM(...), SMEM(...))`",
    )
