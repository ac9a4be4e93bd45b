"""Masks: half spaces as bool tiles, for whatever must leave the outside out.

Invariant: a mask is computed in i32 from bounds that were clamped in i64, so it is exact for any
index.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.errors import OutsideLost, TypeMismatch
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import FLOAT, i32
from astdsl.ir.types import CONDITION
from astdsl.lang.elementwise import constant, expand, placed
from astdsl.lang.indices import index_constant, index_value
from astdsl.lang.ragged import HalfSpace
from astdsl.lang.symbolic import Form
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Literal, Tile, as_operand, method


def inside_mask(shape: tuple[int, ...], spaces: Sequence[HalfSpace]) -> Value:
    """Return which elements of a tile of `shape` every half space holds for."""
    total: Value | None = None
    for h in spaces:
        part = _half_mask(shape, h)
        total = part if total is None else emit(ops.BitAnd, x=total, y=part).result
    return emit(ops.Constant, value=True, type=CONDITION).result if total is None else total


def _half_mask(shape: tuple[int, ...], h: HalfSpace) -> Value:
    if not h.is_certain:
        what = "whether all elements" if h.axis is None else f"which elements of axis {h.axis}"
        raise fault(
            OutsideLost,
            f"{what} lie outside the array depends on the branch taken",
            help="in the branch, `.filled(v)` makes them ordinary elements of value v",
        )
    if h.axis is None or h.step == 0:
        holds = _compare("ge", index_value(h.form), index_constant(0))
        return expand(holds, shape)
    extent = shape[h.axis]
    number = emit(ops.Iota, shape=shape, axis=h.axis, dtype=i32).result
    if h.step == -1:
        return _compare("le", number, _bound(h.form, -1, extent, shape))
    if h.step == 1:
        return _compare("ge", number, _bound(-h.form, -1, extent, shape))
    reach = abs(h.step) * extent
    scaled = emit(ops.Multiply, x=number, y=constant(h.step, shape, i32)).result
    shifted = emit(ops.Add, x=scaled, y=_bound(h.form, -reach - 1, reach, shape)).result
    return _compare("ge", shifted, constant(0, shape, i32))


def _compare(predicate: str, x: Value, y: Value) -> Value:
    return emit(ops.Compare, x=x, y=y, predicate=predicate).result


def clamped(form: Form, low: int, high: int) -> Value:
    """Return a form's value within bounds, as i32; what lies within already is not clamped."""
    value = index_value(form)
    if form.bounds[0] < low:
        value = emit(ops.Maximum, x=value, y=index_constant(low)).result
    if form.bounds[1] > high:
        value = emit(ops.Minimum, x=value, y=index_constant(high)).result
    return emit(ops.Cast, x=value, dtype=i32).result


def _bound(form: Form, low: int, high: int, shape: tuple[int, ...]) -> Value:
    return expand(clamped(form, low, high), shape)


def masked(x: Tile, spaces: Sequence[HalfSpace], number: bool | int | float) -> Value:
    """Return x's value with `number` where a half space does not hold."""
    if not spaces:
        return x.value
    other = constant(number, x.shape, x.value.tile.dtype)
    return emit(ops.Select, condition=inside_mask(x.shape, spaces), x=x.value, y=other).result


@method("filled")
def filled(x: Tile, value: object) -> Tile:
    """Return x with its elements outside the array as ordinary elements of `value`, a scalar.

    The value is converted to x's dtype as a store does.
    """
    operand = as_operand(value, "`filled`")
    if operand.kind == FLOAT and x.kind != FLOAT:
        raise fault(
            TypeMismatch,
            f"`filled` of {x} with the float {operand} would drop fractions silently",
            help=f"fill with a whole number, or convert it: `.astype({x.dtype})`",
        )
    spaces = list(x.edges)
    if not spaces:
        return x
    other = placed(operand, x.value.tile.dtype, x.shape)
    inside = inside_mask(x.shape, spaces)
    chosen = emit(ops.Select, condition=inside, x=x.value, y=other).result
    return Tile(chosen, weak=x.weak, dims=x.dims if isinstance(operand, Literal) else None)
