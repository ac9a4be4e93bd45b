"""Dims that are computed from others: `G+1`, `cdiv(M,bm)`.

Invariant: a text has passed the annotations' grammar (`lang.annotations`), whose operators and
functions are those here.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

# `slope * name + offset`, of the one name that is not known; without a slope it is a number.
_Affine: TypeAlias = tuple[int, int]


def value_of(text: str, extents: Mapping[str, int]) -> int:
    """Return the value of an expression whose names are all known. Raises ZeroDivisionError."""
    return _evaluate(_parsed(text), extents)


def solved(text: str, value: int, extents: Mapping[str, int]) -> tuple[str, int | None] | None:
    """Return the one unknown name of `slope*name+offset`, and what makes it `value`, None if none.

    None where the names are all known, several are not, or the expression is no such sum.
    """
    unknown = {n.id for n in _names(_parsed(text)) if n.id not in extents}
    if len(unknown) != 1:
        return None
    form = _affine(_parsed(text), extents)
    if form is None or form[0] == 0:
        return None
    (name,), (slope, offset) = unknown, form
    found, rest = divmod(value - offset, slope)
    return name, None if rest else found


@lru_cache(maxsize=1024)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _names(tree: ast.expr) -> list[ast.Name]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return [node for node in names if id(node) not in called]


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


_OPERATORS: dict[type[ast.AST], Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"cdiv": _cdiv, "min": min, "max": max}


def _evaluate(node: ast.expr, extents: Mapping[str, int]) -> int:
    return _EVALUATORS[type(node)](node, extents)


def _operation(node: ast.BinOp, extents: Mapping[str, int]) -> int:
    left, right = _evaluate(node.left, extents), _evaluate(node.right, extents)
    return _OPERATORS[type(node.op)](left, right)


def _call(node: ast.Call, extents: Mapping[str, int]) -> int:
    assert isinstance(node.func, ast.Name), "the grammar calls names"
    return _FUNCTIONS[node.func.id](*(_evaluate(a, extents) for a in node.args))


_EVALUATORS: dict[type[ast.AST], Callable[..., int]] = {
    ast.Constant: lambda node, extents: int(node.value),
    ast.Name: lambda node, extents: extents[node.id],
    ast.BinOp: _operation,
    ast.UnaryOp: lambda node, extents: _OPERATORS[type(node.op)](_evaluate(node.operand, extents)),
    ast.Call: _call,
}


def _affine(node: ast.expr, extents: Mapping[str, int]) -> _Affine | None:
    """Return an expression as a sum; None for what is none, as a product of sums or `//` of one."""
    if all(name.id in extents for name in _names(node)):
        return _constant(node, extents)
    if isinstance(node, ast.Name):
        return (1, 0)
    inside = [*ast.iter_child_nodes(node)]
    parts = [_affine(n, extents) for n in inside if isinstance(n, ast.expr)]
    kind = type(getattr(node, "op", None))
    if kind not in _SUMS or None in parts:
        return None
    return _SUMS[kind](*parts)


def _constant(node: ast.expr, extents: Mapping[str, int]) -> _Affine | None:
    try:
        return (0, _evaluate(node, extents))
    except ZeroDivisionError:
        return None


def _times(x: _Affine, y: _Affine) -> _Affine | None:
    if x[0] and y[0]:
        return None
    return (x[0] * y[1] + y[0] * x[1], x[1] * y[1])


_SUMS: dict[type, Callable[..., _Affine | None]] = {
    ast.Add: lambda x, y: (x[0] + y[0], x[1] + y[1]),
    ast.Sub: lambda x, y: (x[0] - y[0], x[1] - y[1]),
    ast.Mult: _times,
    ast.USub: lambda x: (-x[0], -x[1]),
}
