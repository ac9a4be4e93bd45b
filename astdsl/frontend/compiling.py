"""From a function's node back to a code object that takes the original's closure cells.

Invariant: the code is compiled inside a function that owns every name of the original's cells
(and inside a class of the right name), so free and private names resolve as in the source.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from types import CodeType
from typing import Any

OUTER = "__outer__"
# Flags of `from __future__` imports; the other bits of co_flags describe the code itself.
FUTURE_FLAGS = 0x1FF0000
# The filters of warnings are the whole process's.
_UNWARNED = RLock()


@contextmanager
def unwarned() -> Iterator[None]:
    """Leave out warnings of a user's text (of `x is 3`): Python gave them when it read it.

    Where warnings are errors, a text that Python had compiled before would be none to us.
    """
    with _UNWARNED, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compiler_flags(code: CodeType) -> int:
    """Return the `from __future__` flags that a code object was compiled under."""
    return code.co_flags & FUTURE_FLAGS


def compile_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
    file: str,
    class_name: str,
    free_names: Iterable[str],
    flags: int,
) -> CodeType:
    """Compile a function without its decorators, defaults and annotations.

    `free_names` are those that the function may close over. The node is not changed.
    """
    inner, free_names = undressed(node), tuple(free_names)
    names: list[ast.expr] = [ast.Name(n, ast.Store()) for n in free_names]
    body: list[ast.stmt] = [ast.Assign(names, ast.Constant(None))] if names else []
    kept: ast.stmt = ast.Expr(inner) if isinstance(inner, ast.Lambda) else inner
    if not isinstance(inner, ast.Lambda) and inner.name not in free_names:
        # What the function calls by its own name is the global, not the `def` compiled here.
        body.append(ast.Global([inner.name]))
    outer: ast.stmt = ast.FunctionDef(OUTER, _no_arguments(), [*body, kept], [], **_no_types())
    if class_name:
        outer = ast.ClassDef(class_name, [], [], [outer], [], **_no_types())
    for made in ast.walk(outer):
        if isinstance(made, ast.stmt | ast.expr) and not hasattr(made, "lineno"):
            ast.copy_location(made, node)
    tree = ast.Module([outer], [])
    with unwarned():
        made_code = compile(tree, file, "exec", flags=flags, dont_inherit=True)
    path = [class_name, OUTER] if class_name else [OUTER]
    for name in path:
        made_code = _inner_code(made_code, name)
    return _inner_code(made_code, "<lambda>" if isinstance(node, ast.Lambda) else node.name)


def undressed(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda:
    """Return a copy that shares the body, without decorators, defaults and annotations."""
    arguments = ast.arguments(
        posonlyargs=[_bare(a) for a in node.args.posonlyargs],
        args=[_bare(a) for a in node.args.args],
        vararg=_bare(node.args.vararg) if node.args.vararg else None,
        kwonlyargs=[_bare(a) for a in node.args.kwonlyargs],
        kw_defaults=[None for _ in node.args.kwonlyargs],
        kwarg=_bare(node.args.kwarg) if node.args.kwarg else None,
        defaults=[],
    )
    if isinstance(node, ast.Lambda):
        return ast.copy_location(ast.Lambda(arguments, node.body), node)
    made = type(node)(node.name, arguments, node.body, [], **_no_types())
    return ast.copy_location(made, node)


def _bare(argument: ast.arg) -> ast.arg:
    return ast.copy_location(ast.arg(argument.arg), argument)


def _no_arguments() -> ast.arguments:
    return ast.arguments([], [], None, [], [], None, [])


def _no_types() -> dict[str, Any]:
    """Return what Python 3.12 and later want of functions and classes beside."""
    return {"type_params": []} if "type_params" in ast.FunctionDef._fields else {}


def _inner_code(code: CodeType, name: str) -> CodeType:
    found = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name]
    assert len(found) == 1, f"one code object {name}, found {len(found)}"
    return found[0]
