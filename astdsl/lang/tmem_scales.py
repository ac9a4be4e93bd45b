"""Scales in tensor memory by hand: memory for them, copies to it, products that read it.

Invariant: scales are whole buffers, filled by copies from shared memory alone; copies and products
that one thread starts run in order.
"""

from __future__ import annotations

from typing import Any

from astdsl.errors import ShapeMismatch, TypeMismatch, UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import SCRATCH, Value
from astdsl.ir.dtypes import DType, f4e2m1, f8e4m3, f8e5m2, f8e8m0
from astdsl.ir.types import SMEM, TMEM
from astdsl.lang.indices import index_value
from astdsl.lang.nibbles import PER_BYTE
from astdsl.lang.products import operand_fields, require_operand
from astdsl.lang.refs import Ref, whole_ref
from astdsl.lang.roots import Root
from astdsl.lang.tracing import emit, fault

SCALES = ("scales", ())
ROWS, COLUMNS = 128, 16
# Scales by dtype and by the elements along k that one stands for: the operands, and how many
# elements of theirs one instruction multiplies (PTX ISA 9.7.16.10.7).
_F8 = (f8e4m3, f8e5m2)
KINDS: dict[tuple[DType, int, bool], int] = {
    (f8e8m0, 32, False): 32, (f8e8m0, 32, True): 64, (f8e4m3, 16, True): 64,
}  # fmt: skip


class TMEMLayout:
    """What tensor memory holds: `SCALES` of the operands of products. Named as in Pallas.

    The others are not in this version. Accumulators and operands have no layout to state.
    """

    __slots__ = ()

    SCALES = "scales"
    SPARSE_METADATA = "sparse metadata"
    M64_COLLECTIVE = "accumulators of 64 rows of two blocks"
    SCALES_M64_COLLECTIVE = "scales of 64 rows of two blocks"


def scales_memory(shape: tuple[int, ...], dtype: DType) -> Ref:
    """Return tensor memory for (rows, count) scales: rows of `a` or columns of `b`."""
    if dtype not in (f8e8m0, f8e4m3):
        raise fault(
            TypeMismatch,
            f"`TMEM(..., layout=TMEMLayout.SCALES)` is of f8e8m0 or f8e4m3, got {dtype}",
            help="f8e8m0 for blocks of 32, f8e4m3 for blocks of 16 of f4e2m1",
        )
    if len(shape) != 2 or 0 in shape:
        raise fault(
            ShapeMismatch,
            f"`TMEM(..., layout=TMEMLayout.SCALES)` has rows, and scales along k, got {shape}",
            help="(m, k/block) for `a`, (n, k/block) for `b`",
        )
    op = emit(ops.AllocTmem, shape=shape, dtype=dtype, scales=True, label="TMEM")
    return whole_ref(Root(op.result, "TMEM", SCRATCH, (None, None), transforms=(SCALES,)))


def is_scales(x: Ref) -> bool:
    """Whether a ref is tensor memory for scales."""
    return SCALES in x.root.transforms


def async_copy_scales_to_tmem(src: object, dst: object) -> None:
    """Start copying scales from shared memory to `TMEM(..., layout=TMEMLayout.SCALES)`; sm_100a.

    `src` is their image, (rows/128, count/4, 32, 16), a buffer or a slot of one, `buf.at[slot]`:
    scale k of row r is at `[r // 128, k // 4, r % 32, r % 128 // 32 * 4 + k % 4]`; what is beyond
    (rows, count) is not read. Products started afterwards by the same thread read what was copied;
    `src` may be written when a product, or `tcgen05_commit_arrive`, behind it has arrived. What was
    stored to it before must be followed by `commit_smem()`.
    PTX: tcgen05.cp.32x128b.warpx4. Errors: TypeMismatch, ShapeMismatch.
    """
    target = _require_scales("async_copy_scales_to_tmem", "dst", dst)
    if not isinstance(src, Ref) or src.space != SMEM:
        got = f"{src.space} memory" if isinstance(src, Ref) else repr(src)
        raise fault(
            TypeMismatch,
            f"`src` of `async_copy_scales_to_tmem` is in shared memory, got {got}",
            help="copy it to `SMEM` first: `copy_gmem_to_smem(src, dst, barrier)`",
        )
    source = src.as_window("`async_copy_scales_to_tmem`")
    rows, count = target.shape
    image = ops.scale_image_shape(rows, count)
    slots, rest = source.axes[: -len(image)], source.axes[-len(image) :]
    is_slot = not any(axis.kept for axis in slots) and all(axis.whole for axis in rest)
    if tuple(source.shape) != image or not is_slot or list(source.order) != sorted(source.order):
        raise fault(
            ShapeMismatch,
            f"`src` of `async_copy_scales_to_tmem` is the image {image} of {rows, count} scales, "
            f"got {source}",
            (source.root.value, "the buffer"),
            help="a whole buffer, or one slot of it: `buf.at[slot]`",
        )
    if source.dtype is not target.dtype:
        raise fault(
            TypeMismatch,
            f"`async_copy_scales_to_tmem` copies without converting, got {source} and {target}",
            help=f"allocate the buffer as `SMEM(..., {target.dtype})`",
        )
    slot = tuple(index_value(axis.start) for axis in slots)
    emit(ops.CopyScales, source=source.root.value, slot=slot, target=target.root.value)


def _require_scales(function: str, argument: str, x: object) -> Ref:
    if isinstance(x, Ref) and x.space == TMEM and is_scales(x):
        if all(axis.whole for axis in x.axes) and list(x.order) == [0, 1]:
            return x
        raise fault(
            UnsupportedFeature,
            f"`{argument}` of `{function}` is a whole buffer of scales, got {x}",
            (x.root.value, "allocated here"),
            help="allocate a buffer for what one product reads",
        )
    raise fault(
        TypeMismatch,
        f"`{argument}` of `{function}` is tensor memory for scales, got {x!r}",
        help="`TMEM((128, k // 32), f8e8m0, layout=TMEMLayout.SCALES)` makes some",
    )


def start_scaled(
    acc: Ref, column: Value, condition: Value, operands: tuple[object, object], scales: Any
) -> None:
    """Start a product of operands in shared memory, scaled by blocks along k."""
    name = "tcgen05_mma"
    sides = ("a", "b")
    a, b = (require_operand(name, *each) for each in zip(sides, operands, strict=True))
    a_scale, b_scale = (
        _require_scales(name, f"{side}_scale", x) for side, x in zip(sides, scales, strict=True)
    )
    rows, columns = acc.shape
    depth = a.shape[1]
    if (a.shape[0], *b.shape) != (rows, depth, columns) or rows != ROWS or columns % COLUMNS:
        raise fault(
            ShapeMismatch,
            f"`{name}` with scales adds ({ROWS}, k) @ (k, n) to ({ROWS}, n), n a multiple of "
            f"{COLUMNS}, got {a} @ {b} to {acc}",
            help="`ref.T` transposes an operand; more rows are several products",
        )
    block = _block(a, b, (a_scale, b_scale))
    packed = a.dtype is f4e2m1
    emit(
        ops.ScaledTensorMultiply,
        accumulator=acc.root.value,
        column=column,
        columns=columns,
        accumulate=condition,
        a_scale=a_scale.root.value,
        b_scale=b_scale.root.value,
        block=block,
        packed=packed,
        **_fields("a", a),
        **_fields("b", b),
    )


def _block(a: Ref, b: Ref, scales: tuple[Ref, Ref]) -> int:
    """Return how many elements along k share a scale; refuse what no instruction multiplies."""
    dtype, count, depth = scales[0].dtype, scales[0].shape[1], a.shape[1]
    block: int = depth // count
    packed = a.dtype is b.dtype is f4e2m1
    step = KINDS.get((dtype, block, packed))
    is_known = packed or (a.dtype in _F8 and b.dtype in _F8)
    if step is None or not is_known or scales[1].dtype is not dtype or depth % step:
        raise fault(
            UnsupportedFeature,
            f"`tcgen05_mma` of {a} @ {b} scaled by {scales[0]} and {scales[1]} is not in this "
            "version",
            help="8-bit floats are scaled by f8e8m0 for each 32 along k, f4e2m1 so or by f8e4m3 "
            "for each 16; `dot(a, b, a_scale=, b_scale=)` multiplies others",
        )
    wanted = ((a.shape[0], count), (b.shape[1], count))
    if tuple(tuple(s.shape) for s in scales) != wanted or depth != block * count:
        raise fault(
            ShapeMismatch,
            f"`tcgen05_mma` of {a} @ {b} takes scales of the shapes {wanted[0]} and {wanted[1]}, "
            f"got {scales[0]} and {scales[1]}",
            help="(m, k/block) for `a`, (n, k/block) for `b`",
        )
    return block


def _fields(side: str, x: Ref) -> dict[str, Any]:
    """Return the fields of an operand: of packed memory the windows count bytes."""
    fields = operand_fields("tcgen05_mma", side, x)
    window = fields[f"{side}_window"]
    if x.dtype is not f4e2m1:
        return fields
    if not x.root.packed or any(n % PER_BYTE for n in (window[-1] if window else ())):
        raise fault(
            UnsupportedFeature,
            f"`{side}` of `tcgen05_mma` is whole bytes of f4e2m1, got {x}",
            (x.root.value, "the buffer"),
            help="parts begin at even elements along k",
        )
    if window:
        first, extent = window[-1]
        fields[f"{side}_window"] = (*window[:-1], (first // PER_BYTE, extent // PER_BYTE))
    return fields
