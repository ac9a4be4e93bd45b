"""Block-scaled products as the tensor core has them, or as products of scaled operands.

Before
    d = scaled_dot a, transpose b, a_scale, b_scale     (f8, f4; a scale for `block` along k)
After, where the tensor core scales by blocks
    d = scaled_dot a, transpose b, image of a_scale, image of b_scale     (f4: bytes of two)
After, elsewhere
    a' = cast a * repeat (cast a_scale); b' = cast b * repeat (cast b_scale)     (bf16, or f16)
    d = dot a', transpose b'

A scaled element has at most 8 bits of mantissa (4 of f8e4m3 times 4), so that bf16 holds it where
its exponent fits; f4e2m1 by f8e4m3 is within f16 too.

Invariant: afterwards a `ScaledDot` is a product that the target's tensor core computes.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.ir import ops
from astdsl.ir.core import Module, Op, Value, walk
from astdsl.ir.dtypes import DType, bf16, f4e2m1, f8e4m3, f8e8m0, f16, u8
from astdsl.ir.rewrite import Emit, replace_body, rewrite_block
from astdsl.ir.types import TileType
from astdsl.lowering.products import TCGEN05_COLUMNS, TCGEN05_ROWS, ScaledKind, scaled_kind
from astdsl.lowering.target import TCGEN05, Target


def settle_scaled_products(module: Module, target: Target) -> Module:
    """Return the module with block-scaled products as the target has them."""
    if not any(isinstance(op, ops.ScaledDot) for op in walk(module.body)):
        return module
    return replace_body(module, rewrite_block(module.body, _Settling(target).op))


class _Settling:
    """One walk; what made each value so far."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._makers: dict[Value, Op] = {}

    def op(self, op: Op, emit: Emit) -> Sequence[Value] | None:
        """Rewrite one operation."""
        self._makers.update((v, op) for v in op.results)
        if not isinstance(op, ops.ScaledDot):
            return None
        kind = _tensor_core_kind(op, self._target)
        if kind is not None:
            return self._for_tensor_core(op, kind, emit)
        count = op.a.tile.shape[1] // op.block
        a_scale = _as_table(op, op.a_scale, op.a.tile.shape[0], count, emit)
        b_scale = _as_table(op, op.b_scale, op.b.tile.shape[1], count, emit)
        wide = _wide(op)
        a = self._scaled(op, op.a, a_scale, wide, emit)
        b = self._scaled_b(op, b_scale, wide, emit)
        return emit(ops.Dot(span=op.span, a=a, b=b, dtype=op.dtype)).results  # type: ignore[no-any-return]

    def _scaled(self, op: ops.ScaledDot, x: Value, scale: Value, kind: DType, emit: Emit) -> Value:
        """Return the rows of an operand, (rows, k), times their scales."""
        span, (rows, depth) = op.span, x.tile.shape
        count, blocks = depth // op.block, (rows, depth // op.block, op.block)
        split = emit(ops.Reshape(span=span, x=x, shape=blocks)).result
        wide = emit(ops.Cast(span=span, x=split, dtype=kind)).result
        factors = emit(ops.Cast(span=span, x=scale, dtype=kind)).result
        if scale.tile.dtype is not f8e8m0:
            factors = emit(ops.Absolute(span=span, x=factors)).result
        column = emit(ops.Reshape(span=span, x=factors, shape=(rows, count, 1))).result
        every = emit(ops.Broadcast(span=span, x=column, shape=blocks)).result
        product = emit(ops.Multiply(span=span, x=wide, y=every)).result
        whole: Value = emit(ops.Reshape(span=span, x=product, shape=(rows, depth))).result
        return whole

    def _for_tensor_core(
        self, op: ops.ScaledDot, kind: ScaledKind, emit: Emit
    ) -> Sequence[Value] | None:
        """Give the operands the form that the tensor core reads."""
        images = [_as_image(op, scale, emit) for scale in (op.a_scale, op.b_scale)]
        operands = [op.a, op.b]
        if kind.packed and not op.packed:
            operands = [self._packed(op, x, k, emit) for x, k in ((op.a, 1), (op.b, 0))]
        elif not kind.packed:
            operands = [_as_eight_bits(op, x, emit) for x in operands]
        if [*operands, *images] == [op.a, op.b, op.a_scale, op.b_scale]:
            return None
        new = ops.ScaledDot(
            span=op.span, a=operands[0], b=operands[1], a_scale=images[0], b_scale=images[1],
            block=op.block, packed=kind.packed, dtype=op.dtype,
        )  # fmt: skip
        return emit(new).results  # type: ignore[no-any-return]

    def _packed(self, op: Op, x: Value, k_axis: int, emit: Emit) -> Value:
        """Return an operand of f4e2m1 as bytes: those that it was read as, if there are such."""
        maker, turn = self._makers.get(x), (1, 0)
        if isinstance(maker, ops.Transpose):
            turned = ops.Transpose(
                span=op.span, x=self._packed(op, maker.x, 1 - k_axis, emit), permutation=turn
            )
            return emit(turned).result  # type: ignore[no-any-return]
        if isinstance(maker, ops.UnpackNibbles) and maker.axis == k_axis:
            return maker.x
        return emit(ops.PackNibbles(span=op.span, x=x, axis=k_axis)).result  # type: ignore[no-any-return]

    def _scaled_b(self, op: ops.ScaledDot, scale: Value, kind: DType, emit: Emit) -> Value:
        """Return B, (k, n), times its scales: turned to be scaled as its rows along k."""
        maker = self._makers.get(op.b)
        turn = (1, 0)
        if isinstance(maker, ops.Transpose):
            rows = maker.x
        else:
            rows = emit(ops.Transpose(span=op.span, x=op.b, permutation=turn)).result
        scaled = self._scaled(op, rows, scale, kind, emit)
        turned: Value = emit(ops.Transpose(span=op.span, x=scaled, permutation=turn)).result
        return turned


def _tensor_core_kind(op: ops.ScaledDot, target: Target) -> ScaledKind | None:
    """Return the kind of products that the target's tensor core computes it by, None if none.

    M is 128 rows at a time (PTX ISA, table 39), and K whole instructions.
    """
    if not target.has(TCGEN05):
        return None
    rows, columns, depth = op.extents
    dtypes = {op.a.tile.dtype, op.b.tile.dtype}
    packed = op.packed or dtypes == {f4e2m1}
    operands = (u8, u8) if packed else (_eight_bits(op.a), _eight_bits(op.b))
    kind = scaled_kind(operands, op.a_scale.tile.dtype, op.block, packed=packed)
    fits = rows % TCGEN05_ROWS == 0 and columns % TCGEN05_COLUMNS == 0
    return kind if kind is not None and fits and depth % (kind.block * kind.count) == 0 else None


def _eight_bits(x: Value) -> DType:
    return f8e4m3 if x.tile.dtype is f4e2m1 else x.tile.dtype


def _as_eight_bits(op: Op, x: Value, emit: Emit) -> Value:
    """Return an operand as a float of 8 bits: f8e4m3 holds every f4e2m1."""
    if x.tile.dtype is _eight_bits(x):
        return x
    return emit(ops.Cast(span=op.span, x=x, dtype=_eight_bits(x))).result  # type: ignore[no-any-return]


def _as_image(op: Op, scale: Value, emit: Emit) -> Value:
    """Return scales as the image that `tcgen05.cp` copies to tensor memory, padded with zeros."""
    if len(scale.tile.shape) > 2:
        return scale
    shape = ops.scale_image_shape(*scale.tile.shape)
    whole = (shape[0] * ops.SCALE_ROWS, shape[1] * ops.SCALE_COLUMNS)
    if scale.tile.shape != whole:
        zeros = ops.Constant(span=op.span, value=0.0, type=TileType(whole, scale.tile.dtype))
        inserted = ops.Insert(span=op.span, x=emit(zeros).result, part=scale, starts=(0, 0))
        scale = emit(inserted).result
    quarters = ops.SCALE_ROWS // ops.SCALE_LANES
    parts = (shape[0], quarters, ops.SCALE_LANES, shape[1], ops.SCALE_COLUMNS)
    split = emit(ops.Reshape(span=op.span, x=scale, shape=parts)).result
    order = ops.Transpose(span=op.span, x=split, permutation=(0, 3, 2, 1, 4))
    return emit(ops.Reshape(span=op.span, x=emit(order).result, shape=shape)).result  # type: ignore[no-any-return]


def _wide(op: ops.ScaledDot) -> DType:
    """Return the dtype that holds scaled elements exactly."""
    is_small = all(x.tile.dtype is f4e2m1 for x in (op.a, op.b))
    return f16 if is_small and op.a_scale.tile.dtype is f8e4m3 else bf16


def _as_table(op: Op, scale: Value, rows: int, count: int, emit: Emit) -> Value:
    """Return scales as (rows, count): an image is put in order."""
    shape = scale.tile.shape
    if len(shape) == 2:
        return scale
    height, width = shape[0] * ops.SCALE_ROWS, shape[1] * ops.SCALE_COLUMNS
    parts = (*shape[:2], ops.SCALE_LANES, shape[3] // ops.SCALE_COLUMNS, ops.SCALE_COLUMNS)
    split = emit(ops.Reshape(span=op.span, x=scale, shape=parts)).result
    order = ops.Transpose(span=op.span, x=split, permutation=(0, 3, 2, 1, 4))
    table = emit(ops.Reshape(span=op.span, x=emit(order).result, shape=(height, width))).result
    if (height, width) == (rows, count):
        return table  # type: ignore[no-any-return]
    part = ops.Slice(span=op.span, x=table, starts=(0, 0), sizes=(rows, count), steps=(1, 1))
    return emit(part).result  # type: ignore[no-any-return]
