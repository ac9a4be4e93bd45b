"""Memory: loads with a fill, shared memory, and asynchronous copies written by hand.

Invariant: code in explicit names runs as written; no fence, wait or release is added to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from astdsl.errors import BadPipeline, ShapeMismatch, TypeMismatch, UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import SCRATCH, Value
from astdsl.ir.dtypes import f4e2m1, u8
from astdsl.ir.types import GMEM as GLOBAL
from astdsl.ir.types import SMEM as SHARED
from astdsl.lang.branching import as_condition
from astdsl.lang.control import stages_of
from astdsl.lang.elementwise import require_fits, rounded
from astdsl.lang.indices import as_index, form_of, index_value
from astdsl.lang.layouts import layout_cast
from astdsl.lang.masks import filled
from astdsl.lang.nibbles import PER_BYTE, half
from astdsl.lang.refs import Ref, whole_ref
from astdsl.lang.roots import Root
from astdsl.lang.shapes import as_shape
from astdsl.lang.symbolic import Form
from astdsl.lang.sync import Barrier, BarrierSlot, as_slot
from astdsl.lang.tracing import emit, fault, require_trace
from astdsl.lang.transforms import checked_transforms
from astdsl.lang.values import Literal, Operand, Tile, as_operand, require_dtype


def refuse_options(function: str, help: str, **options: object) -> None:
    """Refuse options of a function that are given and not in this version."""
    for name, value in options.items():
        if value is not None:
            raise fault(
                UnsupportedFeature, f"`{function}(..., {name}=)` is not in this version", help=help
            )


# What functions of this room mean for a path: the room knows no files.
OPENERS: dict[str, Callable[[Any], Any]] = {}


def opens(name: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register what the function of a name does with a path."""

    def register(opener: Callable[[Any], Any]) -> Callable[[Any], Any]:
        OPENERS[name] = opener
        return opener

    return register


def load(window: object, fill: object = None, stages: object = None, layout: object = None) -> Tile:
    """Return the tile of a ref, or of a part of it: `load(x.at[tile(i, 64)], fill=1)`.

    With `fill`, elements outside the array are ordinary elements of that value, rounded to the
    ref's dtype; without, they are left out of reductions. `stages` is the number of slots of the
    ring of this window, in place of that of the pipeline: `load(x.at[k], stages=2)`. The window
    stands in the body of the pipeline and moves with its steps. As there, `stages` acts on steps
    that run in order, and on arrays that TMA can describe. `layout` states which thread holds
    which element: see `layout_cast`. Errors: TypeMismatch, ShapeMismatch, BadPipeline.

    Of a path, return the kernel that was saved there (`Lowered.save`). Errors: BadArgument.
    """
    if isinstance(window, str | os.PathLike):
        return OPENERS["load"](window)  # type: ignore[no-any-return]
    ref = _require_ref("load", "window", window)
    slots = 0 if stages is None else _stages(ref, stages)
    tile = ref.read(stages=slots) if fill is None else _filled(ref, fill, slots)
    return tile if layout is None else layout_cast(tile, layout)


def _stages(ref: Ref, stages: object) -> int:
    """Return how many slots the ring of a window has, 0 for as many as those of its pipeline."""
    if ref.space != GLOBAL or ref.grid.shape:
        what = "of what indices pick" if ref.grid.shape else f"of {ref.space} memory"
        raise fault(
            BadPipeline,
            f"`load(..., stages=)` {what}, which is not copied ahead",
            help="leave `stages` out: windows of global memory have rings",
        )
    return stages_of(stages)


def _filled(ref: Ref, fill: object, stages: int) -> Tile:
    value = as_operand(fill, "`fill`")
    if isinstance(value, Tile):
        if ref.grid.shape:
            raise fault(
                UnsupportedFeature,
                f"`load` of what indices pick fills with a constant, got {value}",
                (value.value, f"{value} comes from here"),
                help="`where(inside, ref[ids], value)` chooses, `inside` being yours",
            )
        return filled(ref.read(stages=stages), value)
    if isinstance(value.number, float) and not ref.dtype.is_float:
        raise fault(
            TypeMismatch,
            f"`load` fills {ref.dtype} with the float {value}",
            help="fill with a whole number",
        )
    require_fits(value.number, ref.dtype)
    if stages:  # what is copied ahead arrives with zeros
        return filled(ref.read(stages=stages), rounded(value.number, ref.dtype))
    return ref.read(value.number)


def _require_ref(function: str, argument: str, x: object, space: str = "") -> Ref:
    if isinstance(x, Ref) and space in ("", x.space):
        return x if function == "load" else x.as_window(f"`{function}`")
    wanted = {"": "a ref", GLOBAL: "a ref to global memory", SHARED: "a ref to shared memory"}
    got = f"{x.space} memory" if isinstance(x, Ref) else repr(x)
    sources = [(x.value, f"{x} was read here")] if isinstance(x, Tile) else []
    raise fault(
        TypeMismatch,
        f"`{argument}` of `{function}` is {wanted[space]}, got {got}",
        *sources,
        help="`ref.at[window]` is a part of memory; `ref[window]` has read it already",
    )


def SMEM(shape: object, dtype: object, transforms: object = None) -> Ref:  # noqa: N802
    """Return shared memory of the block, unwritten: a ref of constant shape.

    It is indexed like any ref, but windows must lie inside. Its physical layout is inferred from
    its uses, or stated: `transforms=(TilingTransform((8, 32)), SwizzleTransform(128))`. f4e2m1 are
    two to a byte along the last axis; extents and windows count elements, by twos.
    Errors: ShapeMismatch, TypeMismatch. Named as in Pallas.
    """
    extents = as_shape(shape, "`SMEM`")
    if not extents:
        raise fault(
            ShapeMismatch,
            "`SMEM` takes one axis at least",
            help="`SMEM(1, f32)` is memory of one element: `buf[0] = x`",
        )
    kind = require_dtype(dtype, "`SMEM`")
    is_packed = kind is f4e2m1
    if is_packed:
        extents, kind = _packed_shape(extents, transforms), u8
    stated = () if transforms is None else checked_transforms(transforms, extents, kind)
    value = emit(ops.AllocSmem, shape=extents, dtype=kind, transforms=stated).result
    names = (None,) * len(extents)
    return whole_ref(Root(value, "SMEM", SCRATCH, names, transforms=stated, packed=is_packed))


def _packed_shape(shape: tuple[int, ...], transforms: object) -> tuple[int, ...]:
    """Return the extents, in bytes, of shared memory of f4e2m1."""
    if transforms is not None:
        raise fault(
            UnsupportedFeature,
            "`SMEM(..., transforms=)` of f4e2m1 is not in this version",
            help="leave it out: the physical layout follows from the uses",
        )
    if not shape or shape[-1] % PER_BYTE:
        raise fault(
            ShapeMismatch,
            f"`SMEM` holds two f4e2m1 to a byte along its last axis, got the shape {shape}",
            help="an even last axis is whole bytes",
        )
    return (*shape[:-1], shape[-1] // PER_BYTE)


def GMEM(shape: object, dtype: object) -> Ref:  # noqa: N802
    """Return global memory of this call, unwritten: a ref that later pipelines read.

    Extents are constants, dims, and numbers computed from them and from scalars: `GMEM((M, 8),
    f32)`. It is made outside of pipelines, branches and loops. A pipeline that reads it is launched
    when the pipelines before it are done. Errors: ShapeMismatch, TypeMismatch, UnsupportedFeature.
    """
    if require_trace("`GMEM`").builder.depth > 1:
        raise fault(
            UnsupportedFeature,
            "`GMEM` is memory of the whole call, and this is inside a block",
            help="make it before the first pipeline, branch or loop; `SMEM` is memory of a block",
        )
    kind = require_dtype(dtype, "`GMEM`")
    given = shape if isinstance(shape, Iterable) and not isinstance(shape, Tile) else (shape,)
    extents = [as_index(x, "an extent of `GMEM`") for x in given]
    forms = tuple(map(form_of, extents))
    if not forms or any(form.bounds[1] < 0 for form in forms):
        raise fault(
            ShapeMismatch,
            "`GMEM` takes one extent an axis, none negative, and one axis at least",
            help="`GMEM((M, N), f32)`; one number is `GMEM(1, f32)`",
        )
    is_packed = kind is f4e2m1
    sizes: list[Operand | Form] = [*extents]
    if is_packed:
        sizes[-1] = _half_of(forms[-1])
    counts = [x if isinstance(x, Form) else form_of(x) for x in sizes]
    dims = tuple(index_value(x) for x, n in zip(sizes, counts, strict=True) if n.constant is None)
    static = tuple(n.constant for n in counts)
    stored = u8 if is_packed else kind
    value = emit(ops.AllocGmem, dims=dims, shape=static, dtype=stored, label="GMEM").result
    names = (None,) * len(forms)
    return whole_ref(Root(value, "GMEM", SCRATCH, names, forms, packed=is_packed))


def _half_of(extent: Form) -> Form:
    """Return the bytes along the packed axis of scratch."""
    found = half(extent, {})
    if found is None:
        raise fault(
            ShapeMismatch,
            "`GMEM` holds two f4e2m1 to a byte along its last axis, and this extent may be odd",
            help="round it up: `GMEM((M, 2 * cdiv(K, 2)), f4e2m1)`",
        )
    return found


def copy_gmem_to_smem(
    src: object,
    dst: object,
    barrier: object,
    *,
    predicate: object = None,
    collective_axes: object = None,
    leader_tracked: object = None,
    oob_fill: object = None,
) -> None:
    """Start copying `src`, a window of global memory, to `dst`, shared memory of its shape.

    When the data is there the copy makes one arrival on `barrier`, with its bytes; elements
    outside the array arrive as zeros. Where `predicate` (a bool) is false nothing is copied and
    the arrival still happens. `dst` is a whole buffer, or one slot of it: `buf.at[slot]`. What the
    block has stored to `src` before is there. What TMA cannot describe (unaligned rows, steps)
    the threads load and store. PTX: cp.async.bulk.tensor. Errors: TypeMismatch, ShapeMismatch.
    """
    options = {"collective_axes": collective_axes, "leader_tracked": leader_tracked}
    refuse_options("copy_gmem_to_smem", "leave it out", oob_fill=oob_fill, **options)
    name = "copy_gmem_to_smem"
    source = _require_ref(name, "src", src, GLOBAL)
    target = _require_ref(name, "dst", dst, SHARED)
    slot = _require_slot(name, barrier)
    fields = _copy_fields(name, source, target, predicate)
    emit(ops.CopyIn, **fields, barrier=slot.barrier.value, index=slot.index)


def copy_smem_to_gmem(
    src: object,
    dst: object,
    *,
    predicate: object = None,
    commit_group: object = True,
    reduction_op: object = None,
) -> None:
    """Start copying `src`, shared memory, to `dst`, a window of global memory of its shape.

    Elements outside the array are dropped. The copy belongs to the open group of the block, which
    is closed at once unless `commit_group` is False. What was written to `src` before must be
    followed by `commit_smem()`. What TMA cannot describe (unaligned rows, steps) the threads load
    and store. PTX: cp.async.bulk.tensor. Errors: TypeMismatch, ShapeMismatch, WrittenInput.
    """
    refuse_options("copy_smem_to_gmem", "leave it out", reduction_op=reduction_op)
    name = "copy_smem_to_gmem"
    source = _require_ref(name, "src", src, SHARED)
    target = _require_ref(name, "dst", dst, GLOBAL)
    target.root.require_writable()
    emit(ops.CopyOut, **_copy_fields(name, target, source, predicate))
    if commit_group:
        commit_smem_to_gmem_group()


def async_prefetch(ref: object, *, collective_axes: object = None) -> None:
    """Begin to bring a window of global memory, `x.at[tile(k, 64)]`, into the L2 cache.

    Nothing waits for it, and no result depends on it; elements outside the array are left out.
    A `pipeline` copies ahead by itself: this is for what it does not, such as gathers, or the next
    block's data. PTX: prefetch.global.L2, one for each 128 bytes. Errors: TypeMismatch, BadWindow.
    """
    refuse_options("async_prefetch", "each block names its own", collective_axes=collective_axes)
    source = _require_ref("async_prefetch", "ref", ref, GLOBAL)
    emit(ops.Prefetch, **source.window_fields())


def commit_smem_to_gmem_group() -> None:
    """Close the group of copies out started so far. PTX: cp.async.bulk.commit_group."""
    emit(ops.CommitGroup)


def wait_smem_to_gmem(n: object, wait_read_only: object = False) -> None:
    """Wait until at most the `n` newest groups of copies to global memory are in flight.

    With `wait_read_only`, until the others have read their shared memory, which may then be
    written again. PTX: cp.async.bulk.wait_group.
    """
    pending = as_operand(n, "`wait_smem_to_gmem`")
    if not isinstance(pending, Literal) or type(pending.number) is not int or pending.number < 0:
        raise fault(
            TypeMismatch,
            f"`wait_smem_to_gmem` takes a constant number of groups from 0 on, got {pending}",
            help="`wait_smem_to_gmem(0)` waits for all of them",
        )
    emit(ops.WaitGroup, pending=pending.number, read_only=bool(wait_read_only))


def _require_slot(function: str, barrier: object) -> BarrierSlot:
    if isinstance(barrier, Barrier | BarrierSlot):
        return as_slot(barrier)
    raise fault(
        TypeMismatch,
        f"`barrier` of `{function}` is a `Barrier`, got {barrier!r}",
        help="make one with `Barrier()` before, and wait on it with `barrier_wait`",
    )


def _copy_fields(function: str, window: Ref, buffer: Ref, predicate: object) -> dict[str, Any]:
    """Return the fields of a copy between a window of global memory and shared memory."""
    fields = window.window_fields()
    shape = tuple(window.axes[k].size for k in window.order)
    if list(window.order) != sorted(window.order):
        raise fault(
            UnsupportedFeature,
            f"`{function}` copies axes in the array's order, and this view is transposed",
            help="copy it as it is, and read the buffer through `.T`",
        )
    if shape != buffer.shape:
        raise fault(
            ShapeMismatch,
            f"`{function}` copies between equal shapes, got {window} and {buffer}",
            help="`.at[window]` picks a part; an integer drops an axis",
        )
    if window.dtype is not buffer.dtype:
        raise fault(
            TypeMismatch,
            f"`{function}` copies without converting, got {window} and {buffer}",
            help=f"allocate the buffer as `SMEM(..., {window.dtype})`",
        )
    condition = () if predicate is None else (as_condition(predicate, "`predicate`").value,)
    fields |= {"buffer": buffer.root.value, "slot": _slot(function, buffer)}
    return fields | {"predicate": condition}


def _slot(function: str, buffer: Ref) -> tuple[Value, ...]:
    """Return the leading starts that pick a slot; the other axes must be whole."""
    count = len(buffer.axes) - buffer.ndim
    leading, rest = buffer.axes[:count], buffer.axes[count:]
    if any(axis.kept for axis in leading) or not all(axis.whole for axis in rest):
        raise fault(
            UnsupportedFeature,
            f"`{function}` takes a whole buffer or one slot of it, got the part {buffer}",
            help="make slots the first axis: `SMEM((2, 64, 32), f32)`, and copy to `buf.at[slot]`",
        )
    if list(buffer.order) != sorted(buffer.order):
        raise fault(
            UnsupportedFeature,
            f"`{function}` takes a buffer in its own order, not transposed",
            help="copy it as it is, and read the buffer through `.T`",
        )
    return tuple(index_value(axis.start) for axis in leading)
