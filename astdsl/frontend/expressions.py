"""Rewriting expressions: what Python would decide by itself is asked of the hooks.

Before: ``a and f(b)``
After: ``__both__(__v1__, __call__(f, b)) if __goes_on__(__v1__ := a) else __v1__``

Invariant: operands are evaluated in the source's order and scope, so an assignment expression in
one binds the name that it binds in the source.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from astdsl.frontend import scopes
from astdsl.frontend.nodes import (
    at,
    call,
    constant,
    function,
    load,
    names_tuple,
    place,
    walrus,
)

REFUSED: dict[type[ast.expr], str] = {
    ast.Yield: "yield",
    ast.YieldFrom: "yield from",
    ast.Await: "await",
    # From Python 3.14 on. Unlike an f-string's, its text would be what Python shows of the values.
    **{kind: "t-string" for kind in ast.expr.__subclasses__() if kind.__name__ == "TemplateStr"},
}


def in_pieces(argument: ast.expr) -> ast.expr:
    """Return `__text__("i=", i)` for `f"i={i}"`: the running kernel prints its own values."""
    if not isinstance(argument, ast.JoinedStr):
        return argument
    return at(place(argument), call("__text__", *map(_piece, argument.values)))


def _piece(part: ast.expr) -> ast.expr:
    is_plain = isinstance(part, ast.FormattedValue) and part.conversion == -1
    if isinstance(part, ast.FormattedValue) and is_plain and part.format_spec is None:
        return part.value
    # A format is Python's, while tracing; it refuses kernel values by itself.
    return part if isinstance(part, ast.Constant) else at(place(part), ast.JoinedStr([part]))


def _names_of(*operands: ast.expr) -> list[ast.expr]:
    """Return functions that close over the names that operands mention, and those they assign.

    None if evaluating them changes nothing: they neither call nor assign.
    """
    inner = [node for operand in operands for node in ast.walk(operand)]
    if not any(isinstance(node, ast.Call | ast.NamedExpr) for node in inner):
        return []
    assigned = sorted(scopes.bound(operands))
    mentioned = sorted({*assigned, *scopes.read(operands)})
    return [_closing_over(names) for names in (mentioned, assigned) if names]


def _closing_over(names: list[str]) -> ast.expr:
    return ast.Lambda(function("", [], []).args, names_tuple(names))


class ExpressionRewriter(ast.NodeTransformer):
    """Rewrites the expressions of one function.

    `temporary` gives an unused name; `receiver` is the function's first parameter, if it has one.
    """

    def __init__(self, temporary: Callable[[], str], receiver: str = "") -> None:
        self.temporary = temporary
        self.receiver = receiver
        self._iterables = 0

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """`f(x)`: what is called may be a helper to rewrite, or a builtin with a kernel meaning."""
        where = place(node)
        if isinstance(node.func, ast.Name) and node.func.id == "print":
            node.args = [in_pieces(argument) for argument in node.args]
        self.generic_visit(node)
        is_super = isinstance(node.func, ast.Name) and node.func.id == "super"
        if is_super and self.receiver and not (node.args or node.keywords):
            # Python finds these two in the calling frame, which will be ours.
            node.args = [load("__class__"), load(self.receiver)]
        return at(where, ast.Call(load("__call__"), [node.func, *node.args], node.keywords))

    def condition(self, node: ast.expr) -> ast.expr:
        """Rewrite what decides a `while`."""
        made: ast.expr = self.visit(node)
        return made

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """`and`, `or`: the next operand is evaluated if the first is a kernel value, or asks it."""
        names = [_names_of(operand) for operand in node.values[1:]]
        self.generic_visit(node)
        if self._iterables:
            return node
        hooks = ("__goes_on__", "__both__")
        if isinstance(node.op, ast.Or):
            hooks = ("__stays_open__", "__either__")
        result = node.values[0]
        for operand, its_names in zip(node.values[1:], names, strict=True):
            result = self._joined(node, hooks, (result, operand), its_names)
        return result

    def _joined(
        self,
        node: ast.expr,
        hooks: tuple[str, str],
        operands: tuple[ast.expr, ast.expr],
        names: list[ast.expr],
    ) -> ast.expr:
        name, (left, right) = self.temporary(), operands
        asked = call(hooks[0], walrus(name, left), *names)
        both = call(hooks[1], load(name), right)
        return at(place(node), ast.IfExp(asked, both, load(name)))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """`not x`."""
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return at(place(node), call("__not__", node.operand))

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """`x if c else y`: of a kernel condition both sides are evaluated, each in its region."""
        names = _names_of(node.body, node.orelse)
        self.generic_visit(node)
        if self._iterables:
            return node
        name = self.temporary()
        condition = call("__choose__", node.test)
        first = ast.IfExp(call("__then__", load(name), *names), node.body, constant(None))
        second = ast.IfExp(call("__else__", load(name)), node.orelse, constant(None))
        return at(place(node), call("__chosen__", walrus(name, condition), first, second))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Rewrite `a < b < c` to `a < b and b < c`; `in` asks the hook; one comparison stays."""
        names = [_names_of(operand) for operand in node.comparators]
        self.generic_visit(node)
        if len(node.ops) == 1:
            return self._comparison(node, node.left, node.ops[0], node.comparators[0])
        if self._iterables:
            return node
        left, result = node.left, None
        for operator, operand, its_names in zip(node.ops, node.comparators, names, strict=True):
            right = operand
            if operand is not node.comparators[-1]:
                name = self.temporary()
                right = at(place(operand), walrus(name, operand))
            step = self._comparison(node, left, operator, right)
            hooks = ("__goes_on__", "__both__")
            result = (
                step if result is None else self._joined(node, hooks, (result, step), its_names)
            )
            if right is not operand:
                left = at(place(operand), load(name))
        assert result is not None, "a comparison has operands"
        return result

    def _comparison(
        self, node: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr
    ) -> ast.expr:
        if isinstance(operator, ast.In | ast.NotIn) and isinstance(right, ast.Set):
            # Only what it holds matters, and kernel values have no hash.
            right = ast.copy_location(ast.Tuple(right.elts, ast.Load()), right)
        if isinstance(operator, ast.In):
            return at(place(node), call("__in__", left, right))
        if isinstance(operator, ast.NotIn):
            return at(place(node), call("__not__", call("__in__", left, right)))
        return at(place(node), ast.Compare(left, [operator], [right]))

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        """Rewrite a comprehension's part; its iterable can hold no assignment expression."""
        self._iterables += 1
        node.iter = self.visit(node.iter)
        self._iterables -= 1
        node.ifs = [self.visit(test) for test in node.ifs]
        return node

    def _refused(self, node: Any) -> ast.expr:
        return at(place(node), call("__refuse__", constant(REFUSED[type(node)])))

    visit_Yield = visit_YieldFrom = visit_Await = visit_TemplateStr = _refused  # noqa: N815  (ast's)
