"""Products of operands that are scaled by blocks along k: mxfp8, mxfp4, nvfp4.

Invariant: what is traced names the blocks and their scales, (rows, k/block) or the image that the
tensor core reads; how they are multiplied is the compiler's.
"""

from __future__ import annotations

from astdsl.errors import KernelError, ShapeMismatch, TypeMismatch, UnsupportedFeature, in_words
from astdsl.ir import ops
from astdsl.ir.dtypes import f4e2m1, f8e4m3, f8e5m2, f8e8m0, f32, u8
from astdsl.lang.contraction import contracted
from astdsl.lang.elementwise import constant, settle, sources
from astdsl.lang.shapes import reshape
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Tile
from astdsl.records import dataclass

SCALED = (f8e4m3, f8e5m2, f4e2m1)
SCALES = (f8e8m0, f8e4m3)
BLOCKS = (32, 16)
MATRIX_AXES = 2
IMAGE_AXES = (4, 5)


def refuse_precision(precision: object) -> None:
    """Refuse a precision beside scales. Errors: TypeMismatch."""
    if precision is not None:
        raise fault(
            TypeMismatch,
            "`dot` takes a precision of f32 operands, and scales of smaller ones",
            help="leave `precision=` out: scaled products are exact",
        )


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand, its name, its rows (of the result, m or n), and its scales if it has any."""

    name: str
    operand: Tile
    rows: int
    scale: Tile | None


def scaled_dot(a: object, b: object, a_scale: object, b_scale: object) -> Tile:
    """Return `(a * a_scale) @ (b * b_scale)`: see `dot`."""
    left, right = settle(a, "`a` of `dot`"), settle(b, "`b` of `dot`")
    _require_matrices(left, right)
    sides = [
        _Side("a", left, left.shape[0], _scale("a", a_scale)),
        _Side("b", right, right.shape[1], _scale("b", b_scale)),
    ]
    depth = left.shape[1]
    block = _block(sides, depth)
    if 0 in (*left.shape, *right.shape):
        return Tile(constant(0, (left.shape[0], right.shape[1]), f32))
    scales = [_as_traced(side, depth // block) for side in sides]
    used = next(x for x in scales if x is not None)
    for side, scale in zip(sides, scales, strict=True):
        if scale is not None and scale.dtype is not used.dtype:
            raise fault(
                TypeMismatch,
                f"the scales of `dot` are of one dtype, got {used.dtype} and {scale.dtype}",
                *sources(*(s.scale for s in sides if s.scale is not None)),
                help=f"`{side.name}_scale.astype({used.dtype})` converts",
            )
    ones = [constant(1, (side.rows, depth // block), used.dtype) for side in sides]
    values = [one if x is None else x.value for x, one in zip(scales, ones, strict=True)]
    rows, columns, edges = contracted(left, right)
    product = emit(
        ops.ScaledDot, a=rows, b=columns, a_scale=values[0], b_scale=values[1], block=block,
        dtype=f32,
    ).result  # fmt: skip
    return Tile(product, edges=edges)


def _require_matrices(a: Tile, b: Tile) -> None:
    for x in (a, b):
        if x.ndim != MATRIX_AXES:
            raise fault(
                UnsupportedFeature,
                f"`dot` with scales multiplies (m, k) by (k, n), got {a} and {b}",
                *sources(a, b),
                help="`v[None]` is a row; several matrices are multiplied one by one",
            )
        if x.dtype not in SCALED:
            raise fault(
                TypeMismatch,
                f"`dot` scales {', '.join(d.name for d in SCALED)} by blocks, got {x}",
                *sources(a, b),
                help="multiply other operands by their scales: `(a * scale) @ b`",
            )
    if a.shape[1] != b.shape[0]:
        raise fault(
            ShapeMismatch,
            f"`dot` contracts {a.shape[1]} with {in_words(b.shape[0], 'element')}",
            *sources(a, b),
            help="`a` is (m, k) and `b` is (k, n); `.T` turns one",
        )


def _scale(side: str, given: object) -> Tile | None:
    if given is None:
        return None
    scale = settle(given, f"`{side}_scale` of `dot`")
    if scale.dtype in SCALES:
        return scale
    way_out = "multiply the product of each block by scales of other dtypes"
    raise fault(
        TypeMismatch,
        f"`{side}_scale` of `dot` is f8e8m0 or f8e4m3, got {scale}",
        *sources(scale),
        help="`bitcast(x, f8e8m0)` reads bytes as powers of two" if scale.dtype is u8 else way_out,
    )


def _block(sides: list[_Side], depth: int) -> int:
    """Return how many elements along k share a scale."""
    found = []
    for side in sides:
        if side.scale is not None and side.scale.ndim == MATRIX_AXES:
            blocks = [n for n in BLOCKS if (side.rows, depth) == _scaled_by(side.scale, n)]
            if not blocks:
                raise _misfit(side, depth)
            found.append((blocks[0], side.scale))
        elif side.scale is not None and side.scale.ndim in IMAGE_AXES:
            found += [(n, side.scale) for n in BLOCKS if depth == side.scale.shape[1] * 4 * n]
        elif side.scale is not None:
            raise _misfit(side, depth)
    if not found:
        raise _misfit(next(side for side in sides if side.scale is not None), depth)
    if found[0][0] != found[-1][0]:
        raise fault(
            ShapeMismatch,
            f"`a` and `b` of `dot` are scaled by blocks of {found[0][0]} and {found[-1][0]}",
            *sources(found[0][1], found[-1][1]),
            help="both have as many scales along k",
        )
    return found[0][0]


def _scaled_by(scale: Tile, block: int) -> tuple[int, int]:
    rows, count = scale.shape
    return rows, count * block


def _misfit(side: _Side, depth: int) -> KernelError:
    assert side.scale is not None, "there are scales that misfit"
    wanted = " or ".join(f"{side.rows, depth // n}" for n in BLOCKS if depth % n == 0)
    count, turned = depth // BLOCKS[0], side.scale.shape[::-1]
    is_turned = side.scale.ndim == MATRIX_AXES and any(
        turned == (side.rows, depth // n) for n in BLOCKS
    )
    return fault(
        ShapeMismatch,
        f"`{side.name}_scale` of `dot` has the shape {side.scale.shape}; of {side.operand} it is "
        f"{wanted or f'one scale for 32 or 16 of {depth} elements'}",
        *sources(side.operand, side.scale),
        help=f"pass `{side.name}_scale.T`"
        if is_turned
        else "a row of scales for each row of the result's axis, one for each 32 or 16 elements "
        f"along k; or the image, {ops.scale_image_shape(side.rows, count)}",
    )


def _as_traced(side: _Side, count: int) -> Tile | None:
    """Return scales as (rows, count), or as an image of rank 4."""
    if side.scale is None or side.scale.ndim == MATRIX_AXES:
        return side.scale
    image = ops.scale_image_shape(side.rows, count)
    if side.scale.shape not in (image, (*image[:3], 4, 4)):
        raise fault(
            ShapeMismatch,
            f"`{side.name}_scale` of `dot` has the shape {side.scale.shape}; the image of "
            f"{(side.rows, count)} scales is {image}",
            *sources(side.operand, side.scale),
            help="whole atoms of 128 rows by 4 scales, 512 bytes each",
        )
    return side.scale if side.scale.ndim == IMAGE_AXES[0] else reshape(side.scale, image)
