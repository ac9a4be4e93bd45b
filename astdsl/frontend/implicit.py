"""Rewriting what Python calls by itself in a user's class: operators, subscripts, properties.

Before: ``v + w.length``
After: ``__binary__("add", v, __owner__(w, "length").length)``

Invariant: a kernel is first traced without this, and again with it where a method failed that ran
as plain Python; so nothing here costs a kernel whose classes compute no conditions. Names, order
and places are the source's.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from astdsl.frontend.expressions import ExpressionRewriter
from astdsl.frontend.nodes import at, call, constant, load, place

# Each operator by the name of its method, without the underscores.
BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.Div: "truediv",
    ast.FloorDiv: "floordiv", ast.LShift: "lshift", ast.MatMult: "matmul", ast.Mod: "mod",
    ast.Mult: "mul", ast.Pow: "pow", ast.RShift: "rshift", ast.Sub: "sub",
}  # fmt: skip
UNARY: dict[type[ast.unaryop], str] = {ast.Invert: "invert", ast.UAdd: "pos", ast.USub: "neg"}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq", ast.Gt: "gt", ast.GtE: "ge", ast.Lt: "lt", ast.LtE: "le", ast.NotEq: "ne",
}  # fmt: skip


class ImplicitRewriter(ExpressionRewriter):
    """Rewrites the expressions of one function, what Python calls by itself too.

    `mangled` spells an attribute as Python's compiler does in the class.
    """

    def __init__(
        self, temporary: Callable[[], str], receiver: str, mangled: Callable[[str], str]
    ) -> None:
        super().__init__(temporary, receiver)
        self.mangled = mangled

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:  # noqa: N802  (ast's)
        """Rewrite `a + b`."""
        self.generic_visit(node)
        made = call("__binary__", constant(BINARY[type(node.op)]), node.left, node.right)
        return at(place(node), made)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:  # noqa: N802  (ast's)
        """Rewrite `-a` and `not a`."""
        if isinstance(node.op, ast.Not):
            return super().visit_UnaryOp(node)
        self.generic_visit(node)
        made = call("__unary__", constant(UNARY[type(node.op)]), node.operand)
        return at(place(node), made)

    def _comparison(
        self, node: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr
    ) -> ast.expr:
        name = COMPARISONS.get(type(operator))
        if name is None:
            return super()._comparison(node, left, operator, right)
        return at(place(node), call("__compare__", constant(name), left, right))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:  # noqa: N802  (ast's)
        """Rewrite `a.name`: read, assigned or deleted, it may be a property."""
        self.generic_visit(node)
        owner = call("__owner__", node.value, constant(self.mangled(node.attr)))
        node.value = at(place(node.value), owner)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:  # noqa: N802  (ast's)
        """Rewrite `a[key]`: read, assigned or deleted."""
        self.generic_visit(node)
        node.value = at(place(node.value), call("__indexed__", node.value))
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:  # noqa: N802  (ast's)
        """Rewrite `a += b` of names and of their attributes; that of elements stays Python's."""
        source, name = node.target, constant(BINARY[type(node.op)])
        is_attribute = isinstance(source, ast.Attribute) and isinstance(source.value, ast.Name)
        if not (is_attribute or isinstance(source, ast.Name)):
            self.generic_visit(node)
            return node
        read = ast.parse(ast.unparse(source), mode="eval").body
        for each in ast.walk(read):
            if isinstance(each, ast.expr):
                ast.copy_location(each, source)
        target, old, value = self.visit(source), self.visit(read), self.visit(node.value)
        return at(place(node), ast.Assign([target], call("__inplace__", name, old, value)))

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:  # noqa: N802  (ast's)
        """Rewrite `a, b = v`: what is taken apart is iterated over."""
        self.generic_visit(node)
        if any(isinstance(target, ast.Tuple | ast.List) for target in node.targets):
            node.value = at(place(node.value), call("__iterated__", node.value))
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        """Rewrite a comprehension's part: what it runs through is iterated over."""
        made = super().visit_comprehension(node)
        made.iter = at(place(made.iter), call("__iterated__", made.iter))
        return made

    def condition(self, node: ast.expr) -> ast.expr:
        """Rewrite what decides a `while`."""
        test: ast.expr = self.visit(node)
        return at(place(test), ast.Call(load("__truth__"), [test], []))
