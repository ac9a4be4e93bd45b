"""From a Python function to the syntax tree of its text.

Invariant: a file is parsed whole and once for each text it has had, so every node keeps the line
and the UTF-8 columns that Python itself gives to the code; the trees returned are shared, never
changed.
"""

from __future__ import annotations

import ast
import importlib.machinery
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType

from astdsl.errors import SourceUnavailable
from astdsl.frontend.compiling import compile_function, compiler_flags, unwarned
from astdsl.records import dataclass
from astdsl.source import Span

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
KEEP_TEXT = (
    "write the kernel in a file, a notebook or `astdsl repl`; for `exec`, register the text with "
    "`linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)`"
)


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """A function's node, and the innermost class around it (its private names are mangled)."""

    file: str
    node: FunctionNode
    class_name: str


def find_function(function: FunctionType, is_ours: bool = False) -> FunctionSource:
    """Return the node that a function was compiled from, by Python or, if `is_ours`, by us.

    Errors: SourceUnavailable where Python does not keep the text, or the file is not what it was
    when the function was made.
    """
    code = function.__code__
    lines = _lines(function)
    if not lines:
        message = f"Python does not keep the source text of `{function.__name__}`"
        raise SourceUnavailable(message, (_first_line(code), ""), help=KEEP_TEXT)
    found = _find(code.co_filename, "".join(lines), code, not is_ours and _can_change(function))
    if found is None:
        message = f"the file of `{function.__name__}` has changed since Python read it"
        help = "import the module again, or start Python again"
        raise SourceUnavailable(message, (_first_line(code), ""), help=help)
    return found


@lru_cache(maxsize=512)
def _find(file: str, text: str, code: CodeType, can_change: bool) -> FunctionSource | None:
    """Return the only function of a text that a code object comes from."""
    try:
        candidates = _functions(text).get((code.co_firstlineno, code.co_name), ())
    except SyntaxError:
        return None
    found = [candidate for candidate in candidates if _encloses(candidate[0], code)]
    if len(found) > 1:  # lambdas of one line
        found = [candidate for candidate in found if _has_places_of(*candidate, code)]
    if len(found) != 1:
        return None
    if can_change and not _is_compiled_from(code, file, text):
        return None
    return FunctionSource(file, *found[0])


def _lines(function: FunctionType) -> list[str]:
    file = function.__code__.co_filename
    linecache.checkcache(file)
    lines = linecache.getlines(file, function.__globals__)
    interactive = getattr(linecache, "_getlines_from_code", None)
    if not lines and interactive is not None:
        # Prompts of Python 3.13 keep the text by code object; excerpts look it up by file.
        lines = list(interactive(function.__code__))
        if lines:
            linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    return lines


@lru_cache(maxsize=64)
def _functions(text: str) -> dict[tuple[int, str], list[tuple[FunctionNode, str]]]:
    """Return every function of a text by first line (decorators count) and name."""
    table: dict[tuple[int, str], list[tuple[FunctionNode, str]]] = {}
    with unwarned():
        tree = ast.parse(text)
    for node, class_name in _walk_functions(tree, ""):
        if isinstance(node, ast.Lambda):
            key = (node.lineno, "<lambda>")
        else:
            key = (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.name)
        table.setdefault(key, []).append((node, class_name))
    return table


def _walk_functions(tree: ast.AST, class_name: str) -> Iterator[tuple[FunctionNode, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FunctionNode):
            yield node, class_name
        inner = node.name if isinstance(node, ast.ClassDef) else class_name
        yield from _walk_functions(node, inner)


def _encloses(node: FunctionNode, code: CodeType) -> bool:
    """Whether the code's positions lie in the node; tells apart the lambdas of one line."""
    start = (node.lineno, node.col_offset)
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    if isinstance(node, ast.Lambda):
        # A lambda inside the default of another does not lie in the body of the outer one.
        start = (node.body.lineno, node.body.col_offset)
    for line, end_line, column, end_column in code.co_positions():
        if None in (line, end_line, column, end_column) or (column, end_column) == (0, 0):
            continue
        if not start <= (line, column) <= (end_line, end_column) <= end:
            return False
    return True


def _has_places_of(node: FunctionNode, class_name: str, code: CodeType) -> bool:
    """Whether the node compiles to instructions at the places of the code's, constants alike."""
    flags = compiler_flags(code)
    made = compile_function(node, code.co_filename, class_name, code.co_freevars, flags)
    constants = zip(made.co_consts, code.co_consts, strict=False)
    same_places = list(made.co_positions()) == list(code.co_positions())
    return same_places and all(_same_constant(*pair) for pair in constants)


def _can_change(function: FunctionType) -> bool:
    """Whether the text is a file's that was compiled as it stands.

    Import hooks (pytest's asserts) compile something else than the text, and what has no file
    keeps the text it was compiled from.
    """
    entry = linecache.cache.get(function.__code__.co_filename)
    if entry is None or len(entry) != 4 or entry[1] is None:
        return False
    loader = function.__globals__.get("__loader__")
    return loader is None or type(loader) is importlib.machinery.SourceFileLoader


def _is_compiled_from(code: CodeType, file: str, text: str) -> bool:
    """Whether compiling the text gives such a code object.

    The whole text: what Python makes of a call depends on the imports of the module around.
    """
    key = (code.co_firstlineno, code.co_name)
    return any(_same_code(made, code) for made in _codes(file, text).get(key, ()))


@lru_cache(maxsize=64)
def _codes(file: str, text: str) -> dict[tuple[int, str], list[CodeType]]:
    """Return every code object that a text compiles to, by first line and name."""
    table: dict[tuple[int, str], list[CodeType]] = {}
    with unwarned():
        todo = [compile(text, file, "exec", dont_inherit=True)]
    while todo:
        code = todo.pop()
        table.setdefault((code.co_firstlineno, code.co_name), []).append(code)
        todo += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return table


def _same_code(a: CodeType, b: CodeType) -> bool:
    if _text_of(a) != _text_of(b):
        return False
    constants = zip(a.co_consts, b.co_consts, strict=False)
    return len(a.co_consts) == len(b.co_consts) and all(_same_constant(*c) for c in constants)


def _text_of(code: CodeType) -> tuple[object, ...]:
    lines = list(code.co_lines())
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, lines)


def _same_constant(a: object, b: object) -> bool:
    if isinstance(a, CodeType) and isinstance(b, CodeType):
        return _same_code(a, b)
    return type(a) is type(b) and (a == b or repr(a) == repr(b))


def _first_line(code: CodeType) -> Span:
    line = code.co_firstlineno
    return Span(code.co_filename, line, 0, line, 0)
