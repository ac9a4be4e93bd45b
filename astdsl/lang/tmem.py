"""Tensor memory of sm_100a by hand: buffers, products into them, tiles in and out.

Invariant: code in explicit names runs as written; the columns are reserved at the kernel's entry
and freed at its end.
"""

from __future__ import annotations

from typing import Any

from astdsl.errors import BadWindow, ShapeMismatch, TypeMismatch, UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import SCRATCH
from astdsl.ir.dtypes import DType, boolean, f32
from astdsl.ir.types import TMEM as TENSOR
from astdsl.lang.branching import as_condition
from astdsl.lang.elementwise import converted_to_target
from astdsl.lang.indices import form_of, index_value
from astdsl.lang.layouts import layout_cast
from astdsl.lang.products import check_product, operand_fields, require_operand
from astdsl.lang.reductions import max_along, min_along
from astdsl.lang.refs import Ref, whole_ref
from astdsl.lang.roots import Root
from astdsl.lang.shapes import as_shape, forget_edges
from astdsl.lang.sync import Barrier, BarrierSlot, as_slot
from astdsl.lang.tmem_scales import TMEMLayout, is_scales, scales_memory, start_scaled
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Tile, as_operand, require_dtype

ROWS = (64, 128)
COLUMNS_OF_128_ROWS, COLUMNS_OF_64_ROWS = 16, 8
MOST_COLUMNS = 512
CELL_BITS = 32
# What `Root.transforms` says of packed tensor memory.
PACKED = ("packed", ())


def TMEM(  # noqa: N802
    shape: object,
    dtype: object = f32,
    packed: object = False,
    collective: object = False,
    layout: object = None,
) -> Ref:
    """Return tensor memory of the block, unwritten: (64 or 128, columns); sm_100a.

    `async_load_tmem` and `async_store_tmem` move tiles; `tcgen05_mma` adds products to it. With
    `packed`, elements of 16 bits are two to a cell, of 8 bits four, as products read their left
    operand; without, each takes a cell of 32 bits. With `layout=TMEMLayout.SCALES` it holds (rows,
    count) scales of an operand of products, f8e8m0 or f8e4m3: `async_copy_scales_to_tmem`.
    Parts are columns of all rows, at any kernel integer: `acc.at[:, ds(start, 64)]`. A block has
    512 columns of cells. PTX: tcgen05.alloc.
    Errors: ShapeMismatch, TypeMismatch, UnsupportedFeature.
    """
    _require_layout(collective, layout)
    extents, kind = as_shape(shape, "`TMEM`"), require_dtype(dtype, "`TMEM`")
    if layout is TMEMLayout.SCALES:
        return scales_memory(extents, kind)
    if len(extents) != 2 or extents[0] not in ROWS or not extents[1]:
        raise fault(
            ShapeMismatch,
            f"`TMEM` has 64 or 128 rows, and columns, got {extents}",
            help="`TMEM((128, 256), f32)`; more rows are several buffers",
        )
    is_packed = _require_packed(packed, kind)
    _require_columns(extents, kind, is_packed)
    value = emit(ops.AllocTmem, shape=extents, dtype=kind, packed=is_packed, label="TMEM").result
    stated = (PACKED,) if is_packed else ()
    return whole_ref(Root(value, "TMEM", SCRATCH, (None, None), transforms=stated))


# What there is instead of the layouts that are not in this version.
_INSTEAD = {
    TMEMLayout.SPARSE_METADATA: "products of sparse operands are not in this version: fill in the "
    "zeros",
    **dict.fromkeys(
        [TMEMLayout.M64_COLLECTIVE, TMEMLayout.SCALES_M64_COLLECTIVE],
        "it is of products of two blocks: of one block 128 rows are as many lanes, 64 rows 16 of "
        "each warp, and `layout` is left out",
    ),
}


def _require_layout(collective: object, layout: object) -> None:
    """Refuse what tensor memory of one block does not hold."""
    if collective:
        raise fault(
            UnsupportedFeature,
            "`TMEM(..., collective=)` is not in this version",
            help="leave it out: one block multiplies, 128 rows by `TMEM((128, n))`, and a second "
            "buffer for 128 more",
        )
    if layout is None or layout == TMEMLayout.SCALES:
        return
    if not isinstance(layout, str) or layout not in _INSTEAD:
        raise fault(
            TypeMismatch,
            f"`layout` of `TMEM` is one of `TMEMLayout`, got {layout!r}",
            help="leave it out: which thread gets which element is for `async_load_tmem(layout=)`",
        )
    raise fault(
        UnsupportedFeature,
        f"`TMEM` of {layout} is not in this version",
        help=_INSTEAD[layout],
    )


def _require_packed(packed: object, dtype: DType) -> bool:
    if not isinstance(packed, bool):
        raise fault(
            TypeMismatch,
            f"`packed` of `TMEM` is True or False, got {packed!r}",
            help="True for the left operand of a product",
        )
    fits = (8, 16) if packed else (16, CELL_BITS)
    if dtype.bits not in fits or dtype is boolean:
        raise fault(
            UnsupportedFeature,
            f"`TMEM` of {dtype}{', packed,' if packed else ''} is not in this version",
            help="it holds 32-bit elements, 16-bit ones packed or not, and 8-bit ones packed",
        )
    return packed


def _require_columns(shape: tuple[int, ...], dtype: DType, packed: bool) -> None:
    per_cell = CELL_BITS // dtype.bits if packed else 1
    multiple = (1 if shape[0] == ROWS[1] else 8) * per_cell
    if shape[1] % multiple:
        raise fault(
            ShapeMismatch,
            f"`TMEM` of {shape[0]} rows of {dtype} has a multiple of {multiple} columns, got "
            f"{shape[1]}",
            help="round the columns up",
        )
    columns = shape[1] // per_cell
    if columns > MOST_COLUMNS:
        raise fault(
            ShapeMismatch,
            f"`TMEM` of {shape} {dtype} takes {columns} columns, {MOST_COLUMNS} is all",
            help="take fewer columns, or 16-bit elements packed",
        )


def _require_tensor(function: str, argument: str, x: object) -> Ref:
    """Return columns of tensor memory: all rows, without steps."""
    if not isinstance(x, Ref) or x.space != TENSOR:
        got = f"{x.space} memory" if isinstance(x, Ref) else repr(x)
        raise fault(
            TypeMismatch,
            f"`{argument}` of `{function}` is in tensor memory, got {got}",
            help="`TMEM((128, 128), f32)` makes some; `.at[:, ds(start, n)]` is a part",
        )
    if is_scales(x):
        raise fault(
            TypeMismatch,
            f"`{argument}` of `{function}` is no memory for scales, got {x}",
            (x.root.value, "allocated here"),
            help="`async_copy_scales_to_tmem` fills it, `tcgen05_mma(..., a_scale=)` reads it",
        )
    x = x.as_window(f"`{function}`")
    rows, columns = x.axes
    whole = rows.whole and rows.kept and columns.kept and columns.step == 1
    if not whole or list(x.order) != [0, 1]:
        raise fault(
            BadWindow,
            f"`{argument}` of `{function}` is columns of all rows of tensor memory, got {x}",
            (x.root.value, "allocated here"),
            help="`.at[:, ds(start, n)]`: each thread reaches its own rows only",
        )
    _require_aligned(function, argument, x)
    return x


def _require_aligned(function: str, argument: str, x: Ref) -> None:
    """Refuse a part that begins or ends inside a cell, or inside what one access moves."""
    per_cell = CELL_BITS // x.dtype.bits if _is_packed(x) else 1
    multiple = per_cell * (1 if x.shape[0] == ROWS[1] else 8)
    start = form_of(x.axes[1].start).constant
    if x.shape[1] % multiple or (start or 0) % per_cell:
        raise fault(
            BadWindow,
            f"`{argument}` of `{function}` has a multiple of {multiple} columns and begins at a "
            f"multiple of {per_cell}, got {x}",
            (x.root.value, "allocated here"),
            help="take columns by 32",
        )


def _is_packed(x: Ref) -> bool:
    return PACKED in x.root.transforms


def tcgen05_mma(
    acc: object,
    a: object,
    b: object,
    barrier: object = None,
    *,
    a_scale: object = None,
    b_scale: object = None,
    a_sparse_metadata: object = None,
    accumulate: object = True,
    collective_axis: object = None,
) -> None:
    """Start `acc += a @ b` asynchronously, `acc = a @ b` where `accumulate` is false; sm_100a.

    `acc` (m, n) is in tensor memory, m 64 or 128, `a` (m, k) in shared memory or packed in tensor
    memory, `b` (k, n) in shared memory; `ref.T` transposes. The dtypes are those of `wgmma`; those
    of 8 bits may be contiguous along any axis too. k is a multiple of 32 bytes, n of 8, with 128
    rows of 16. With a `barrier`, made with
    `orders_tensor_core=True`, the products of this thread arrive on it when they are done:
    `tcgen05_commit_arrive`. `accumulate` may be a kernel value.
    With `a_scale` (m, k/block) and `b_scale` (n, k/block), both memory of `TMEMLayout.SCALES`, the
    operands are scaled by blocks along k: f8 for each 32 by f8e8m0, f4e2m1 so, or for each 16 by
    f8e4m3, whose sign is ignored; m is 128, and `a` in shared memory.
    PTX: tcgen05.mma. Errors: TypeMismatch, ShapeMismatch, UnsupportedFeature.
    """
    refused = {"a_sparse_metadata": a_sparse_metadata, "collective_axis": collective_axis}
    for name, given in refused.items():
        if given is not None:
            raise fault(
                UnsupportedFeature,
                f"`tcgen05_mma(..., {name}=)` is not in this version",
                help="leave it out: dense operands of one block are multiplied",
            )
    if a_scale is not None or b_scale is not None:
        _start_scaled(acc, (a, b), barrier, (a_scale, b_scale), accumulate)
        return
    name = "tcgen05_mma"
    target, right = _require_tensor(name, "acc", acc), require_operand(name, "b", b)
    in_tensor_memory = isinstance(a, Ref) and a.space == TENSOR
    left = _require_tensor(name, "a", a) if in_tensor_memory else require_operand(name, "a", a)
    check_product(name, target, left, right)
    _require_extents(target)
    slot = None if barrier is None else _require_slot(name, barrier)
    condition = as_condition(accumulate, "`accumulate`").value
    if in_tensor_memory:
        if not _is_packed(left) and left.dtype.bits < CELL_BITS:
            raise fault(
                TypeMismatch,
                f"`a` of `{name}` is packed where it is in tensor memory, got {left}",
                (left.root.value, "allocated here"),
                help="`TMEM(shape, dtype, packed=True)`",
            )
        fields = {"a": left.root.value, "a_column": (index_value(left.axes[1].start),)}
    else:
        fields = operand_fields(name, "a", left)
    emit(
        ops.TensorMultiply,
        accumulator=target.root.value,
        column=index_value(target.axes[1].start),
        columns=target.shape[1],
        accumulate=condition,
        **fields,
        **operand_fields(name, "b", right),
    )
    if slot is not None:
        emit(ops.TensorCommit, barrier=slot.barrier.value, index=slot.index)


def _start_scaled(
    acc: object,
    operands: tuple[object, object],
    barrier: object,
    scales: tuple[object, object],
    accumulate: object,
) -> None:
    target = _require_tensor("tcgen05_mma", "acc", acc)
    if target.dtype is not f32:
        raise fault(
            TypeMismatch,
            f"`tcgen05_mma` sums scaled products in f32, and `acc` is of {target.dtype}",
            help="give the accumulator that dtype",
        )
    slot = None if barrier is None else _require_slot("tcgen05_mma", barrier)
    condition = as_condition(accumulate, "`accumulate`").value
    column = index_value(target.axes[1].start)
    start_scaled(target, column, condition, operands, scales)
    if slot is not None:
        emit(ops.TensorCommit, barrier=slot.barrier.value, index=slot.index)


def _require_extents(acc: Ref) -> None:
    rows, columns = acc.shape
    multiple = COLUMNS_OF_128_ROWS if rows == ROWS[1] else COLUMNS_OF_64_ROWS
    if columns % multiple:
        raise fault(
            ShapeMismatch,
            f"`tcgen05_mma` of {rows} rows has a multiple of {multiple} columns, got {columns}",
            help="take more columns, and leave what is not needed unread",
        )


def _require_slot(function: str, barrier: object) -> BarrierSlot:
    if not isinstance(barrier, Barrier | BarrierSlot):
        raise fault(
            TypeMismatch,
            f"`barrier` of `{function}` is a `Barrier`, got {barrier!r}",
            help="`done = Barrier(orders_tensor_core=True)`",
        )
    slot = as_slot(barrier)
    if not slot.barrier.orders_tensor_core:
        raise fault(
            TypeMismatch,
            f"`barrier` of `{function}` does not order the tensor core",
            (slot.barrier.value, "made here"),
            help="make it with `Barrier(orders_tensor_core=True)`",
        )
    return slot


def tcgen05_commit_arrive(barrier: object, collective_axis: object = None) -> None:
    """Arrive once on a barrier when the products that this thread started are done; sm_100a.

    The barrier is made with `orders_tensor_core=True`. PTX: tcgen05.commit. Errors: TypeMismatch,
    UnsupportedFeature.
    """
    if collective_axis is not None:
        raise fault(
            UnsupportedFeature,
            "`tcgen05_commit_arrive(..., collective_axis=)` is not in this version",
            help="leave it out: it arrives in its own block",
        )
    slot = _require_slot("tcgen05_commit_arrive", barrier)
    emit(ops.TensorCommit, barrier=slot.barrier.value, index=slot.index)


def async_load_tmem(ref: object, layout: object = None, reduce: object = None) -> Any:
    """Start reading tensor memory; return the tile, which may be used at once; sm_100a.

    Before the memory is written again, or handed on, `wait_load_tmem()`. `layout` states which
    thread holds which element: see `layout_cast`. With `reduce="min"` or `"max"` return `(tile,
    rows)`, rows being the least or the greatest element of each row, NaN if one is: the threads
    find them, as tcgen05.ld.red is of sm_103a. PTX: tcgen05.ld.
    Errors: TypeMismatch, BadWindow, ShapeMismatch.
    """
    found = _ROW_REDUCTIONS.get(reduce) if isinstance(reduce, str) else None
    if reduce is not None and found is None:
        raise fault(
            TypeMismatch,
            f'`reduce` of `async_load_tmem` is "min" or "max", got {reduce!r}',
            help="`tile.sum(axis=1)` and others reduce what was loaded",
        )
    source = _require_tensor("async_load_tmem", "ref", ref)
    tile = Tile(emit(ops.TmemLoad, **source.window_fields()).result)
    shown = tile if layout is None else layout_cast(tile, layout)
    return (shown, found(tile, 1)) if found else shown


# What a load may find of each row (PTX ISA 9.7.16.8.3, `.redOp`).
_ROW_REDUCTIONS = {"min": min_along, "max": max_along}


def wait_load_tmem() -> None:
    """Wait until every thread's loads of tensor memory are done. PTX: tcgen05.wait::ld."""
    emit(ops.TmemWaitLoad)


def async_store_tmem(ref: object, x: object) -> None:
    """Start writing a tile to tensor memory, broadcast and converted as a store does; sm_100a.

    Whoever reads it needs `commit_tmem()` before. PTX: tcgen05.st. Errors: TypeMismatch, BadWindow.
    """
    target = _require_tensor("async_store_tmem", "ref", ref)
    operand = as_operand(x, "`x` of `async_store_tmem`")
    if isinstance(operand, Tile):
        forget_edges(operand, range(operand.ndim), "storing it in tensor memory")
    shape = tuple(axis.size or 0 for axis in target.axes)
    value = converted_to_target(operand, shape, target.dtype, "a store")
    emit(ops.TmemStore, **target.window_fields(), value=value)


def commit_tmem() -> None:
    """Wait until every thread's stores to tensor memory are done. PTX: tcgen05.wait::st."""
    emit(ops.TmemCommit)
