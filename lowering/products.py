"""Which products the tensor core has, and what it asks of their shared-memory operands.

Invariant: the rows of a product come 64 (`wgmma`; `tcgen05.mma` if it has no more) or 128 at a
time, its columns 8 or 16, its depth 32 bytes; an operand with fewer rows or columns is laid out
with room for them, and what stands there never reaches an element of the result. Depth is padded
with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.dtypes import DType, bf16, f8e4m3, f8e5m2, f8e8m0, f16, f32, i8, i32, tf32, u8
from astdsl.ir.types import AccumulatorType, RefType
from astdsl.lowering.layout.registers import is_half
from astdsl.lowering.target import WGMMA, Target

WGMMA_ROWS = 64
TCGEN05_ROWS = 128
WGMMA_COLUMNS = 8
TCGEN05_COLUMNS = 16
DEPTH_BYTES = 32
# The bits of an f32 operand that a tf32 product reads (PTX ISA 9.7.15.5.2: the rest is ignored).
TF32_BITS = 0xFFFFE000
# Rows of operands that are contiguous along M or N come in these (the narrowest swizzle).
ROW_BYTES = 32
# Below so many multiplications the padding costs more than the threads take.
LEAST_MULTIPLICATIONS = 2048


@dataclass(frozen=True, slots=True)
class ProductKind:
    """One kind of products: its operands and accumulators, each with its code in tcgen05.

    The codes are those of the instruction descriptor (PTX ISA 9.7.16.4.2); `name` is `.kind`.
    """

    name: str
    operands: dict[DType, int]
    accumulators: dict[DType, int]
    element_bytes: int

    @property
    def depth(self) -> int:
        """Elements along K of one instruction."""
        return DEPTH_BYTES // self.element_bytes

    def transposes(self, target: Target) -> bool:
        """Whether operands may be contiguous along M or N (PTX ISA 9.7.15.5.2, 9.7.16.10.2).

        `wgmma` does so for 16 bits only; of 32 bits `tcgen05` wants a swizzle of its own.
        """
        return self.element_bytes == 2 or (self.element_bytes == 1 and not target.has(WGMMA))


KINDS = (
    ProductKind("f16", {f16: 0, bf16: 1}, {f32: 1, f16: 0}, 2),
    ProductKind("f8f6f4", {f8e4m3: 0, f8e5m2: 1}, {f32: 1, f16: 0}, 1),
    ProductKind("i8", {u8: 0, i8: 1}, {i32: 2}, 1),
    ProductKind("tf32", {f32: 2, tf32: 2}, {f32: 1}, 4),
)
# Operands of one product that differ: the others are of one dtype.
_MIXED = ("f8f6f4", "i8")


def kind_of(a: DType, b: DType, result: DType) -> ProductKind | None:
    """Return the kind of products of such operands into such a result, None if there is none."""
    for kind in KINDS:
        if a in kind.operands and b in kind.operands and result in kind.accumulators:
            fits = (a is b or kind.name in _MIXED) and (result is not f16 or bf16 not in (a, b))
            return kind if fits else None
    return None


@dataclass(frozen=True, slots=True)
class ScaledKind(ProductKind):
    """One kind of products of block-scaled operands (PTX ISA 9.7.16.10.7), on `tcgen05` alone.

    `scales` gives the dtype of scales its code; one stands for `block` elements along k, `count`
    of them are read by an instruction. Operands of 4 bits are bytes of two.
    """

    scales: dict[DType, int]
    block: int
    count: int
    packed: bool

    def transposes(self, target: Target) -> bool:
        """Whether operands may be contiguous along M or N: those of 8 bits."""
        return not self.packed


_F8 = {f8e4m3: 0, f8e5m2: 1}
SCALED_KINDS = (
    ScaledKind("mxf8f6f4", _F8, {f32: 1}, 1, {f8e8m0: 1}, block=32, count=1, packed=False),
    ScaledKind("mxf4", {u8: 1}, {f32: 1}, 1, {f8e8m0: 1}, block=32, count=2, packed=True),
    ScaledKind("mxf4nvf4", {u8: 1}, {f32: 1}, 1, {f8e4m3: 0}, block=16, count=4, packed=True),
)


def scaled_kind(
    operands: tuple[DType, DType], scale: DType, block: int, *, packed: bool
) -> ScaledKind | None:
    """Return the kind of products of scaled operands, None if there is none."""
    for kind in SCALED_KINDS:
        wanted = (kind.packed, kind.block) == (packed, block) and scale in kind.scales
        if wanted and all(dtype in kind.operands for dtype in operands):
            return kind
    return None


def kind_of_scaled(op: ops.ScaledMultiply | ops.ScaledTensorMultiply) -> ScaledKind:
    """Return what kind of product it is."""
    assert isinstance(op.a.type, RefType), "scaled operands are in shared memory"
    operands = op.a.ref.dtype, op.b.ref.dtype
    kind = scaled_kind(operands, op.a_scale.ref.dtype, op.block, packed=op.packed)
    assert kind is not None, f"the tensor core has no scaled product of {operands}"
    return kind


def scale_columns(op: ops.ScaledMultiply) -> tuple[int, int]:
    """Return the columns of tensor memory that the scales of A and of B take."""
    shapes = (scale.ref.shape[-4:] for scale in (op.a_scale, op.b_scale))
    a, b = (ops.SCALE_COLUMNS * (rows or 0) * (groups or 0) for rows, groups, *_ in shapes)
    return a, b


@dataclass(frozen=True, slots=True)
class Product:
    """The dtypes of a product that the tensor core computes."""

    a: DType
    b: DType
    result: DType

    @property
    def kind(self) -> ProductKind:
        """What kind of product it is."""
        kind = kind_of(self.a, self.b, self.result)
        assert kind is not None, f"the tensor core has no product of {self}"
        return kind


def product_kind(dot: ops.Dot) -> ProductKind | None:
    """Return the kind of products that the tensor core computes a tile's product by.

    f32 operands multiply exactly unless they say otherwise, and are then left to the threads.
    """
    a, b = dot.a.tile, dot.b.tile
    if isinstance(dot, ops.ScaledDot):
        scale = dot.a_scale.tile.dtype
        return scaled_kind((a.dtype, b.dtype), scale, dot.block, packed=dot.packed)
    kind = kind_of(a.dtype, b.dtype, dot.dtype)
    if kind is None or 0 in (*a.shape, *b.shape):
        return None
    if kind.name == "tf32":
        return kind if dot.precision else None
    work = a.shape[0] * a.shape[1] * b.shape[1]
    return kind if work >= LEAST_MULTIPLICATIONS else None


def rows_per_product(target: Target, shape: tuple[int, ...]) -> int:
    """Return how many rows of A one instruction multiplies, of a product of some shape."""
    return TCGEN05_ROWS if not target.has(WGMMA) and not is_half(shape) else WGMMA_ROWS


def rows_of(op: ops.MatrixMultiply, target: Target) -> int:
    """Return how many rows of A one instruction of a product multiplies."""
    assert isinstance(op.accumulator.type, AccumulatorType), f"{op.accumulator} accumulates nothing"
    return rows_per_product(target, op.accumulator.type.shape)


def columns_per_product(target: Target) -> int:
    """Return what the columns of B of one instruction are a multiple of."""
    return WGMMA_COLUMNS if target.has(WGMMA) else TCGEN05_COLUMNS


def up(extent: int, multiple: int) -> int:
    """Return the least multiple that is no less than an extent."""
    return -(-extent // multiple) * multiple


def padded_operand(
    buffer: Value,
    shape: tuple[int, ...],
    order: tuple[int, ...],
    used: Sequence[Op],
    target: Target,
) -> tuple[int, ...]:
    """Return the extents to allocate for a slot: M and N are rounded up to what a product covers.

    `order` lists the axes, contiguous first; rows contiguous along M or N are whole swizzles.
    `used` are the operations that use the buffer.
    """
    allocated = list(shape)
    for op in used:
        if isinstance(op, ops.MatrixMultiply) and buffer in (op.a, op.b):
            if op.a is buffer:
                axis, covered = (1 if op.a_transposed else 0), rows_of(op, target)
            else:
                axis, covered = (0 if op.b_transposed else 1), columns_per_product(target)
            if order[0] == axis:
                covered = max(covered, ROW_BYTES // buffer.ref.dtype.bytes)
            allocated[axis] = max(allocated[axis], up(shape[axis], covered))
    return tuple(allocated)


def product_barriers(body: Block) -> int:
    """Return how many mbarriers tell the products of `tcgen05` apart: a power of two, or none.

    A wait names a product by its number modulo this; no more than that many are between the
    oldest one waited for and the newest one issued.
    """
    pending = [op.pending for op in walk(body) if isinstance(op, ops.ProductWait)]
    products = sum(isinstance(op, ops.MatrixMultiply) for op in walk(body))
    if not products:
        return 0
    return 1 << (max(pending, default=0) + products).bit_length()
