"""Arithmetic of the host: grids and checks, from dims and scalars.

Invariant: a number is what the operations of the IR make of it: division by 0, shifts beyond the
width, infinities and NaN are no exceptions. The text that is compiled is put together from the rows
of `HOST_OPERATIONS` and from numbers; nothing that a user or a file wrote is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from astdsl.ir.dtypes import BY_NAME
from astdsl.ir.launch import HOST_OPERATIONS, HostExpression
from astdsl.lang.elementwise import rounded

Shapes: TypeAlias = Sequence[Sequence[int]]
HostFunction: TypeAlias = Callable[[Shapes, Sequence[Any]], Any]


def compile_host(expression: HostExpression) -> HostFunction:
    """Return the function `(shapes, scalars) -> value` of a host expression.

    `shapes[p]` is the shape of parameter p, `scalars[p]` its value. An AssertionError names an
    operation that has no row.
    """
    text = f"lambda shapes, scalars: {_text(expression)}"
    function: HostFunction = eval(compile(text, "<host>", "eval"), dict(_FUNCTIONS))  # noqa: S307 (see above)
    return function


def _text(expression: HostExpression) -> str:
    if isinstance(expression, tuple):
        return _text_of_operation(*expression)
    assert type(expression) in (bool, int, float), f"not a host number: {expression!r}"
    # The text of an infinity or NaN is no literal.
    return f"float({str(expression)!r})" if isinstance(expression, float) else repr(expression)


def _text_of_operation(operation: str, *operands: Any) -> str:
    if operation == "dim":
        param, axis = map(int, operands)
        return f"shapes[{param}][{axis}]"
    if operation == "scalar":
        (param,) = map(int, operands)
        return f"scalars[{param}]"
    assert operation in HOST_OPERATIONS, f"no host operation {operation!r}"
    return HOST_OPERATIONS[operation].format(*map(_text, operands))


def reads_scalars(expression: HostExpression) -> bool:
    """Whether a value depends on scalars, so that it is not settled by the shapes."""
    if not isinstance(expression, tuple):
        return False
    return expression[0] == "scalar" or any(map(reads_scalars, expression[1:]))


def _ratio(x: float, y: float) -> float:
    """Return `x / y` of floats, by 0 too."""
    if y:
        return x / y
    return math.nan if not x or math.isnan(x) else math.copysign(math.inf, x) * math.copysign(1, y)


def _quotient(x: Any, y: Any) -> Any:
    """Return `x // y`; 0 of integers by 0."""
    return x // y if y else _ratio(x, y) if isinstance(y, float) else 0


def _remainder(x: Any, y: Any) -> Any:
    """Return `x % y`; 0 of integers by 0, NaN of floats."""
    return x % y if y else math.nan if isinstance(y, float) else 0


def _least(x: float, y: float) -> float:
    """Return the smaller float, NaN if either is."""
    return x if math.isnan(x) else y if math.isnan(y) else min(x, y)


def _greatest(x: float, y: float) -> float:
    """Return the larger float, NaN if either is."""
    return -_least(-x, -y)


def _shifted_left(x: int, y: int) -> int:
    """Return `x << y`, 0 for counts beyond every width."""
    return x << y if 0 <= y < MOST_BITS else 0


def _shifted_right(x: int, y: int) -> int:
    """Return `x >> y`, the sign alone for counts beyond every width."""
    return x >> (y if 0 <= y < MOST_BITS else MOST_BITS)


def _fitted(x: Any, name: str) -> Any:
    """Return a number in the dtype of this name, as `astype` does; integers wrap."""
    dtype = BY_NAME[name]
    if not dtype.is_integer or isinstance(x, float):
        return rounded(x, dtype)
    wrapped = int(x) & ((1 << dtype.bits) - 1)
    return wrapped - (1 << dtype.bits) if dtype.is_signed and wrapped >> dtype.bits - 1 else wrapped


MOST_BITS = 64
_FUNCTIONS: dict[str, Any] = {
    "ratio": _ratio,
    "quotient": _quotient,
    "remainder": _remainder,
    "least": _least,
    "greatest": _greatest,
    "shifted_left": _shifted_left,
    "shifted_right": _shifted_right,
    "fitted": _fitted,
}
