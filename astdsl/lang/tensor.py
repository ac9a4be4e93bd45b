"""Matrix products of tiles.

Invariant: elements outside along the contracted axis take no part: both operands hold zeros there.
"""

from __future__ import annotations

from astdsl.errors import ShapeMismatch, TypeMismatch, in_words
from astdsl.ir import ops
from astdsl.ir.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, u8
from astdsl.lang.contraction import contracted
from astdsl.lang.elementwise import binary, constant, convert, meet, settle, sources
from astdsl.lang.parts import stack
from astdsl.lang.rows import ADD
from astdsl.lang.scaled import refuse_precision, scaled_dot
from astdsl.lang.shapes import forget_edges, index
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Tile, method
from astdsl.records import dataclass

# What products are summed in, by the dtype in which the operands meet.
SUMMED_IN = {
    f16: f32, bf16: f32, f32: f32, f64: f64, f8e4m3: f32, f8e5m2: f32, i8: i32, u8: i32,
}  # fmt: skip
PRECISIONS = ("tf32", "tf32x3")
SUMS_IN_F16 = frozenset({f16, f8e4m3, f8e5m2})
MATRIX_AXES = 2


@method("__matmul__")
def matmul(a: object, b: object) -> Tile:
    """Return `a @ b`: see `dot`."""
    return dot(a, b)


@method("__rmatmul__")
def _reflected_matmul(b: object, a: object) -> Tile:
    return dot(a, b)


def dot(
    a: object,
    b: object,
    acc: object = None,
    *,
    precision: object = None,
    a_scale: object = None,
    b_scale: object = None,
) -> Tile:
    """Return the matrix product of (m, k) and (k, n); vectors count as one row, or one column.

    Of tiles with more axes, the last two are matrices; the others are broadcast, and multiplied one
    after the other. Operands of different dtypes meet as in `a * b` (8-bit integers, and 8-bit
    floats, may differ). The result is f32, of f64 f64, of 8-bit integers i32; products are exact
    (f32 operands too) and summed in that dtype in an unspecified order; of 8-bit floats the tensor
    core keeps fewer bits while it sums along k. Elements outside along k take no part. `acc`, of
    the result's shape and dtype, is added to it: `acc + a @ b`; an f16 `acc` lets f16 and 8-bit
    floats be summed in f16.
    `precision` lets f32 operands use the tensor core: "tf32" ignores the low 13 bits of each (as
    the hardware does: they are cut off, not rounded; relative error below 2^-9 a product);
    "tf32x3" adds the products with what was cut off, below 2^-19.
    `a_scale` (m, k/block) and `b_scale` (n, k/block), f8e8m0 or f8e4m3, scale f8e4m3, f8e5m2 and
    f4e2m1 by blocks of 32 or 16 elements along k: `(a * a_scale) @ (b * b_scale)`, each scale as
    often as its block is long. Formats: mxfp8 and mxfp4 (f8e8m0, 32), nvfp4 (f4e2m1 by f8e4m3, 16).
    One left out is 1. Scaled operands are exact while bf16 holds them (2**-126 to 2**127), their
    products exact and summed in f32. A scale may be the image that the tensor core reads, of
    shape (m/128, k/block/4, 32, 16), or (..., 32, 4, 4): `scale[r, c]` is at
    `[r // 128, c // 4, r % 32, r % 128 // 32 * 4 + c % 4]`.
    Errors: TypeMismatch, ShapeMismatch; UnsupportedFeature.
    """
    if a_scale is not None or b_scale is not None:
        refuse_precision(precision)
        product = scaled_dot(a, b, a_scale, b_scale)
        return product if acc is None else _accumulated(settle(acc, "`acc` of `dot`"), product)
    left, right = settle(a, "`@`"), settle(b, "`@`")
    _require_ranks(left, right)
    dtypes = _operand_dtypes(left, right)
    asked = _precision(precision, dtypes[0], left, right)
    added = None if acc is None else settle(acc, "`acc` of `dot`")
    summed = SUMMED_IN[dtypes[0]]
    if added is not None and added.dtype is f16 and SUMS_IN_F16.issuperset(dtypes):
        summed = f16
    found = _multiplied(left, right, _Product(dtypes, summed, asked))
    return found if added is None else _accumulated(added, found)


@dataclass(frozen=True, slots=True)
class _Product:
    """What is computed: the dtypes of the operands, what they are summed in, the precision."""

    operands: tuple[DType, DType]
    summed: DType
    precision: str


def _multiplied(left: Tile, right: Tile, kind: _Product) -> Tile:
    rank = max(left.ndim, right.ndim)
    if rank > MATRIX_AXES:
        return _batched(left, right, rank, kind)
    is_row, is_column = left.ndim == 1, right.ndim == 1
    rows = index(left, (None,)) if is_row else left
    columns = index(right, (slice(None), None)) if is_column else right
    if rows.shape[1] != columns.shape[0]:
        raise fault(
            ShapeMismatch,
            f"`@` contracts {rows.shape[1]} with {in_words(columns.shape[0], 'element')}",
            *sources(left, right),
            note=f"{left} @ {right}",
            help="the last axis of the left operand is the first of the right one; `.T` turns one",
        )
    product = _product(rows, columns, kind)
    return index(product, (*([0] if is_row else []), ..., *([0] if is_column else [])))


def _batched(left: Tile, right: Tile, rank: int, kind: _Product) -> Tile:
    """Multiply along the first axis, one matrix, or batch of them, after the other."""
    stacks = [x for x in (left, right) if x.ndim == rank]
    extents = {x.shape[0] for x in stacks if x.shape[0] != 1}
    if len(extents) > 1:
        raise fault(
            ShapeMismatch,
            f"`@` multiplies {left.shape[0]} matrices with {right.shape[0]}",
            *sources(left, right),
            note=f"{left} @ {right}",
            help="as many on both sides, or one",
        )
    for each in stacks:
        forget_edges(each, [0], "`@` of several matrices")
    count = extents.pop() if extents else 1
    parts = [[_matrix(x, number, rank) for x in (left, right)] for number in range(count)]
    return stack([_multiplied(a, b, kind) for a, b in parts])


def _matrix(x: Tile, number: int, rank: int) -> Tile:
    if x.ndim < rank:
        return x
    return index(x, (0 if x.shape[0] == 1 else number,))


def _accumulated(tile: Tile, product: Tile) -> Tile:
    if tile.shape != product.shape or tile.dtype is not product.dtype:
        raise fault(
            ShapeMismatch if tile.shape != product.shape else TypeMismatch,
            f"`acc` of `dot` is what the product is, {product}, got {tile}",
            *sources(tile),
            help=f"start with `zeros({product.shape}, {product.dtype})`",
        )
    return binary(ADD, tile, product)


def _require_ranks(a: Tile, b: Tile) -> None:
    for x in (a, b):
        if x.ndim == 0:
            raise fault(
                ShapeMismatch,
                f"`@` takes no scalars, got {a} @ {b}",
                *sources(a, b),
                help="`*` multiplies by a scalar",
            )
    if min(a.ndim, b.ndim) == 1 and max(a.ndim, b.ndim) > MATRIX_AXES:
        raise fault(
            ShapeMismatch,
            f"`@` of several matrices takes no vector, got {a} @ {b}",
            *sources(a, b),
            help="`v[:, None]` is a column, `v[None]` a row",
        )


def _precision(asked: object, dtype: DType, a: Tile, b: Tile) -> str:
    if asked is None:
        return ""
    if asked not in PRECISIONS:
        raise fault(
            TypeMismatch,
            f'`precision` is "tf32", "tf32x3" or None, got {asked!r}',
            *sources(a, b),
            help="None multiplies f32 exactly",
        )
    if dtype is not f32:
        raise fault(
            TypeMismatch,
            f'`precision="{asked}"` is for f32 operands, got {a} @ {b}',
            *sources(a, b),
            help="leave it out: products of other dtypes are exact",
        )
    return str(asked)


def _product(left: Tile, right: Tile, kind: _Product) -> Tile:
    if 0 in (*left.shape, *right.shape):
        return Tile(constant(0, (left.shape[0], right.shape[1]), kind.summed))
    rows, columns, edges = contracted(left, right)
    product = emit(
        ops.Dot,
        a=convert(Tile(rows), kind.operands[0]),
        b=convert(Tile(columns), kind.operands[1]),
        dtype=kind.summed,
        precision=kind.precision,
    ).result
    return Tile(product, edges=edges)


def _operand_dtypes(a: Tile, b: Tile) -> tuple[DType, DType]:
    if any({a.dtype, b.dtype} <= pair for pair in ({i8, u8}, {f8e4m3, f8e5m2})):
        return a.dtype, b.dtype
    dtype, _ = meet("`@`", a, b)
    if dtype not in SUMMED_IN:
        raise fault(
            TypeMismatch,
            f"`@` does not multiply {dtype}",
            *sources(a, b),
            note=f"{a} @ {b}",
            help=f"it takes {', '.join(d.name for d in SUMMED_IN)}: `x.astype(f32)` converts",
        )
    return dtype, dtype
