"""Arithmetic of the host: grids and checks, from dims and scalars.

Invariant: the text that is compiled is put together from the rows of `HOST_OPERATIONS` and from
numbers; nothing that a user or a file wrote is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from astdsl.ir.launch import HOST_OPERATIONS, HostExpression

Shapes: TypeAlias = Sequence[Sequence[int]]
HostFunction: TypeAlias = Callable[[Shapes, Sequence[Any]], Any]


def compile_host(expression: HostExpression) -> HostFunction:
    """Return the function `(shapes, scalars) -> value` of a host expression.

    `shapes[p]` is the shape of parameter p, `scalars[p]` its value. An AssertionError names an
    operation that has no row.
    """
    text = f"lambda shapes, scalars: {_text(expression)}"
    function: HostFunction = eval(compile(text, "<host>", "eval"), {})  # noqa: S307 (see above)
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
