"""Elementwise functions and operators of kernel values.

Invariant: each is a row given to `binary` or `unary`, or composed of those. Operands are broadcast
by NumPy's rule; weak numbers take the dtype of the other operand, an integer beside a float takes
the float's, `/` of integers gives f32, and bools do not mix with numbers. Integers wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from astdsl.errors import TypeMismatch
from astdsl.ir import ops
from astdsl.ir.dtypes import BOOL, FLOAT, boolean, f32, i64
from astdsl.lang import rows
from astdsl.lang.elementwise import (
    INTEGRAL,
    NUMERIC,
    Binary,
    Unary,
    all_dims,
    binary,
    broadcast_shape,
    cast,
    converted_to_target,
    counted,
    joint_edges,
    meet,
    placed,
    require_kind,
    sources,
    unary,
)
from astdsl.lang.ragged import choice_state, lost
from astdsl.lang.symbolic import ANY_INDEX
from astdsl.lang.tracing import emit, fault, trace
from astdsl.lang.values import METHODS, Tile, as_operand, method

OPERATORS = {
    "add": rows.ADD,
    "sub": rows.SUBTRACT,
    "mul": rows.MULTIPLY,
    "truediv": rows.DIVIDE,
    "floordiv": rows.FLOOR_DIVIDE,
    "mod": rows.REMAINDER,
    "and": rows.BIT_AND,
    "or": rows.BIT_OR,
    "xor": rows.BIT_XOR,
    "lshift": rows.SHIFT_LEFT,
    "rshift": rows.SHIFT_RIGHT,
}
SQUARE = 2
COMPARISONS = {
    "eq": rows.EQUAL,
    "ne": rows.NOT_EQUAL,
    "lt": rows.LESS,
    "le": rows.LESS_EQUAL,
    "gt": rows.GREATER,
    "ge": rows.GREATER_EQUAL,
}


def _forward(row: Binary) -> Callable[[Tile, object], Tile]:
    return lambda x, y: binary(row, x, y)


def _reflected(row: Binary) -> Callable[[Tile, object], Tile]:
    return lambda x, y: binary(row, y, x)


def _function(row: Unary) -> Callable[[Tile], Tile]:
    return lambda x: unary(row, x)


for _name, _row in OPERATORS.items():
    method(f"__{_name}__")(_forward(_row))
    method(f"__r{_name}__")(_reflected(_row))
for _name, _row in COMPARISONS.items():
    method(f"__{_name}__")(_forward(_row))
method("__neg__")(_function(rows.NEGATE))
method("__invert__")(_function(rows.INVERT))


@method("__iadd__")
def _in_place(target: Tile, operator: str, other: object) -> Tile:
    """Trace `target += other`, which keeps the target's dtype and shape; a weak one has none."""
    result: Tile = METHODS[operator](target, other)
    if target.weak or (result.dtype is target.dtype and result.shape == target.shape):
        return result
    symbol = f"`{rows.SYMBOLS[operator]}=`"
    value = converted_to_target(result, target.shape, target.dtype, symbol)
    return Tile(value, dims=result.dims, edges=result.edges)


def all_literal(*operands: object) -> bool:
    """Whether all are Python numbers, on which Python computes."""
    return all(isinstance(x, bool | int | float | np.generic) for x in operands)


def where(condition: object, x: object, y: object) -> Tile:
    """Choose by element: `x` where `condition`, else `y`.

    The condition is bool; all three are broadcast; x and y meet as in `x + y` (two bools too).
    Errors: TypeMismatch, ShapeMismatch.
    """
    c, a, b = (as_operand(operand, "`where`") for operand in (condition, x, y))
    if c.kind != BOOL:
        raise fault(
            TypeMismatch,
            f"the condition of `where` is bool, got {c}",
            *sources(c),
            help="`x != 0` makes a condition of numbers",
        )
    a, b = counted(a, b)
    dtype, weak = meet("`where`", a, b)
    shape = broadcast_shape("`where`", c, a, b)
    chosen = emit(
        ops.Select,
        condition=placed(c, boolean, shape),
        x=placed(a, dtype, shape),
        y=placed(b, dtype, shape),
    ).result
    bounds = ANY_INDEX
    if weak and dtype is i64:
        bounds = (min(a.bounds[0], b.bounds[0]), max(a.bounds[1], b.bounds[1]))
    edges = joint_edges(choice_state, shape, c, a, b)
    return Tile(chosen, weak=weak, bounds=bounds, dims=all_dims(c, a, b), edges=edges)


@method("__abs__")
def abs(x: Any) -> Any:
    """Return `|x|`. Numbers; the least integer stays itself. Exact."""
    return x.__abs__() if all_literal(x) else unary(rows.ABSOLUTE, x)


def exp(x: object) -> Tile:
    """Return e to the power x. Floats; integers become f32.

    Within 2 ulp (f64: 1; f16, bf16: 0.6).
    """
    return unary(rows.EXP, x)


def exp2(x: object) -> Tile:
    """Return 2 to the power x. Floats; integers become f32.

    Within 2 ulp (f64: 1; f16, bf16: 0.6).
    """
    return unary(rows.EXP2, x)


def log(x: object) -> Tile:
    """Return the natural logarithm; of 0 -inf, of less NaN. Floats; integers become f32.

    Within 1 ulp (f64: 1; f16, bf16: 0.6).
    """
    return unary(rows.LOG, x)


def log2(x: object) -> Tile:
    """Return the logarithm to base 2; of 0 -inf, of less NaN. Floats; integers become f32.

    Within 1 ulp (f64: 2; f16, bf16: 0.6).
    """
    return unary(rows.LOG2, x)


def sqrt(x: object) -> Tile:
    """Return the square root, rounded once (IEEE); of less than 0 NaN. Integers become f32."""
    return unary(rows.SQRT, x)


def rsqrt(x: object) -> Tile:
    """Return `1 / sqrt(x)`; of 0 inf. Floats; integers become f32.

    Within 2 ulp (f64: 2; f16, bf16: 0.6).
    """
    return unary(rows.RSQRT, x)


def tanh(x: object) -> Tile:
    """Return the hyperbolic tangent. Floats; integers become f32.

    Within 2 ulp (f64: 2; f16, bf16: 0.6).
    """
    return unary(rows.TANH, x)


def erf(x: object) -> Tile:
    """Return the error function. Floats; integers become f32.

    Within 2 ulp (f64: 2; f16, bf16: 0.6).
    """
    return unary(rows.ERF, x)


def sin(x: object) -> Tile:
    """Return the sine of radians. Floats; integers become f32.

    Within 2 ulp (f64: 2; f16, bf16: 0.6).
    """
    return unary(rows.SIN, x)


def cos(x: object) -> Tile:
    """Return the cosine of radians. Floats; integers become f32.

    Within 2 ulp (f64: 2; f16, bf16: 0.6).
    """
    return unary(rows.COS, x)


def sigmoid(x: object) -> Tile:
    """Return `1 / (1 + exp(-x))`. Composed; floats under 32 bits are computed in f32, rounded once.

    Integers become f32. Within 4 ulp (f64: 3; f16, bf16: 0.6).
    """
    a = as_operand(x, "`sigmoid`")
    require_kind("`sigmoid`", NUMERIC, a)
    narrow = isinstance(a, Tile) and not a.weak and a.dtype.bits < f32.bits
    wide = cast(a, f32) if narrow or a.kind != FLOAT else a
    # Of the size alone, so that nothing overflows: exp(x) / (1 + exp(x)) below 0.
    small = exp(unary(rows.NEGATE, unary(rows.ABSOLUTE, wide)))
    numerator = where(binary(rows.GREATER_EQUAL, wide, 0.0), 1.0, small)
    result = binary(rows.DIVIDE, numerator, binary(rows.ADD, 1.0, small))
    return cast(result, a.dtype) if narrow and a.kind == FLOAT else result


def floor(x: object) -> Tile:
    """Return the greatest whole number not over x, in x's dtype. Integers stay themselves."""
    return unary(rows.FLOOR, x)


def ceil(x: object) -> Tile:
    """Return the least whole number not under x, in x's dtype. Integers stay themselves."""
    return unary(rows.CEIL, x)


@method("__round__")
def round(x: Any, digits: object = None) -> Any:
    """Return the nearest whole number, ties to even, in x's dtype. Integers stay themselves.

    `digits` other than 0 are refused.
    """
    if digits not in (None, 0):
        raise fault(
            TypeMismatch,
            f"`round` rounds to whole numbers, got digits={digits}",
            help="`round(x * 100) / 100` rounds to two digits",
        )
    return unary(rows.ROUND, x)


def isnan(x: object) -> Tile:
    """Return whether x is NaN, as bool."""
    return unary(rows.ISNAN, x)


def isinf(x: object) -> Tile:
    """Return whether x is infinite, as bool."""
    return unary(rows.ISINF, x)


def minimum(x: Any, y: Any) -> Any:
    """Return the smaller of two; NaN if either is NaN, -0 before +0. Exact.

    Of two Python numbers a Python number.
    """
    return min(x, y) if all_literal(x, y) else binary(rows.MINIMUM, x, y)


def maximum(x: Any, y: Any) -> Any:
    """Return the larger of two; NaN if either is NaN, +0 before -0. Exact.

    Of two Python numbers a Python number.
    """
    return max(x, y) if all_literal(x, y) else binary(rows.MAXIMUM, x, y)


def clip(x: Any, low: Any = None, high: Any = None) -> Any:
    """Return `minimum(maximum(x, low), high)`; a bound that is None is left out. Composed."""
    given = [bound for bound in (x, low, high) if bound is not None]
    if not all_literal(*given):
        require_kind("`clip`", NUMERIC, *(as_operand(bound, "`clip`") for bound in given))
    raised = x if low is None else maximum(x, low)
    return raised if high is None else minimum(raised, high)


def fma(x: object, y: object, z: object) -> Tile:
    """Return `x * y + z`, rounded once. Integers wrap."""
    a, b, c = (as_operand(operand, "`fma`") for operand in (x, y, z))
    a, b, c = counted(a, b, c)
    dtype, weak = meet("`fma`", a, b, c)
    require_kind("`fma`", NUMERIC, a, b, c)
    if dtype.is_integer:
        return binary(rows.ADD, binary(rows.MULTIPLY, a, b), c)
    shape = broadcast_shape("`fma`", a, b, c)
    x_value, y_value, z_value = (placed(operand, dtype, shape) for operand in (a, b, c))
    value = emit(ops.Fma, x=x_value, y=y_value, z=z_value).result
    edges = joint_edges(lost, shape, a, b, c)
    return Tile(value, weak=weak, dims=all_dims(a, b, c), edges=edges)


def cdiv(x: Any, y: Any) -> Any:
    """Return `x / y` of integers, rounded up. Composed.

    Of scalars it is `(x + y - 1) // y`, for y > 0. Of two Python integers it is a Python integer,
    so extents made of it stay constants. By a 0 that only the running kernel knows it is 0;
    a launch whose number of steps is divided by 0 is refused.
    Errors: TypeMismatch, also for a y of 0 that is known while tracing.
    """
    if all_literal(y) and y == 0 and trace() is not None:
        hint = "a block has at least one element: `max(b, 1)`"
        raise fault(TypeMismatch, "`cdiv` divides by 0", help=hint)
    if all_literal(x, y):
        return -(-x // y)
    a, b = (as_operand(operand, "`cdiv`") for operand in (x, y))
    require_kind("`cdiv`", INTEGRAL, a, b)
    if a.shape or b.shape:
        below = binary(rows.FLOOR_DIVIDE, a, b)
        rest = binary(rows.NOT_EQUAL, binary(rows.REMAINDER, a, b), 0)
        return binary(rows.ADD, below, cast(rest, below.dtype))
    return binary(rows.FLOOR_DIVIDE, binary(rows.ADD, a, binary(rows.SUBTRACT, b, 1)), b)


@method("__pow__")
def pow(x: Any, y: Any, modulus: object = None) -> Any:
    """Return x to the power y. A square is `x * x`, rounded once; integers wrap.

    A negative power of an integer is 0 unless |x| is 1. A modulus is refused.
    """
    if modulus is not None:
        raise fault(TypeMismatch, "`pow` takes no modulus", help="write `x ** y % m`")
    if isinstance(y, int) and y == SQUARE:
        return binary(rows.MULTIPLY, x, x)
    return binary(rows.POWER, x, y)


@method("__rpow__")
def _reflected_power(y: Tile, x: object) -> Tile:
    return binary(rows.POWER, x, y)


@method("astype")
def astype(x: object, dtype: object) -> Tile:
    """Return x converted to `dtype`.

    Float to float rounds to nearest even; floats of 8 and 4 bits saturate, infinities too (the
    hardware's `cvt.satfinite`; ml_dtypes gives NaN or infinities), NaN becomes 6 of f4e2m1, and of
    f8e8m0 0 becomes 2**-127 and a negative number NaN; float to integer goes towards
    zero and saturates, NaN gives 0; integers truncate or extend; to bool is `x != 0`.
    """
    return cast(x, dtype)
