"""Making syntax nodes that stand where the user's own stand.

Invariant: every node made here has a location taken from a node of the source, so that an
operation's span is the user's text.
"""

from __future__ import annotations

import ast
from typing import TypeVar

from astdsl.records import dataclass
from astdsl.source import Span

AnyNode = TypeVar("AnyNode", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Place:
    """A location: lines from 1, UTF-8 columns from 0, the end exclusive."""

    lineno: int
    col_offset: int
    end_lineno: int
    end_col_offset: int

    def span(self, file: str) -> Span:
        """Return the place as a span."""
        return Span(file, self.lineno, self.col_offset, self.end_lineno, self.end_col_offset)


def place(first: ast.expr | ast.stmt | ast.arg, last: ast.expr | ast.stmt | None = None) -> Place:
    """Return the place of a node, or from the start of one to the end of another."""
    end = last or first
    return Place(
        first.lineno,
        first.col_offset,
        end.end_lineno or end.lineno,
        end.end_col_offset or end.col_offset,
    )


def at(where: Place, node: AnyNode) -> AnyNode:
    """Give a place to a node and to every node below that has none."""
    if hasattr(node, "lineno"):
        return node
    if isinstance(node, ast.stmt | ast.expr | ast.arg | ast.keyword | ast.ExceptHandler):
        for field in Place.__slots__:
            setattr(node, field, getattr(where, field))
    for child in ast.iter_child_nodes(node):
        at(where, child)
    return node


def moved(where: Place, node: AnyNode) -> AnyNode:
    """Give a node another place, leaving those below where they are."""
    for field in Place.__slots__:
        setattr(node, field, getattr(where, field))
    return node


def clone(node: AnyNode) -> AnyNode:
    """Copy a tree, faster than `copy.deepcopy` does.

    Only what the grammar has is copied: Python shares nodes such as `ast.Load()` among all trees,
    and some tools (`executing`, under IPython's tracebacks) hang a node's parent on them.
    """
    made = type(node).__new__(type(node))
    for name, value in vars(node).items():
        if name not in node._fields and name not in node._attributes:
            continue
        if isinstance(value, ast.AST):
            setattr(made, name, clone(value))
        elif isinstance(value, list):
            setattr(made, name, [clone(v) if isinstance(v, ast.AST) else v for v in value])
        else:
            setattr(made, name, value)
    return made


def load(name: str) -> ast.Name:
    """Return a read of a name."""
    return ast.Name(name, ast.Load())


def store(name: str) -> ast.Name:
    """Return a name as the target of an assignment."""
    return ast.Name(name, ast.Store())


def call(name: str, *arguments: ast.expr) -> ast.Call:
    """Return a call of a name."""
    return ast.Call(load(name), list(arguments), [])


def constant(value: str | int | bool | None) -> ast.Constant:
    """Return a constant."""
    return ast.Constant(value)


def assign(name: str, value: ast.expr) -> ast.Assign:
    """Return the assignment of one name."""
    return ast.Assign([store(name)], value)


def walrus(name: str, value: ast.expr) -> ast.NamedExpr:
    """Return an assignment expression."""
    return ast.NamedExpr(store(name), value)


def names_tuple(names: list[str]) -> ast.Tuple:
    """Return a tuple that reads names."""
    return ast.Tuple([load(n) for n in names], ast.Load())


def function(name: str, parameters: list[str], body: list[ast.stmt]) -> ast.FunctionDef:
    """Return the definition of a function of positional parameters."""
    arguments = ast.arguments([], [ast.arg(p) for p in parameters], None, [], [], None, [])
    made = ast.FunctionDef(name, arguments, body, [])
    if "type_params" in ast.FunctionDef._fields:
        made.type_params = []  # type: ignore[attr-defined,unused-ignore]
    return made
