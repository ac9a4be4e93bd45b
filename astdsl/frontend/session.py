"""The rewritten functions of one trace.

Invariant: a function is rewritten once for each trace, its text once for each process; the hooks
that rewritten code calls reach their session through closure cells, so nothing is added to the
user's namespaces.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType
from typing import Any

from astdsl.errors import SourceUnavailable, UnsupportedSyntax
from astdsl.frontend.compiling import compile_function, compiler_flags
from astdsl.frontend.locate import Codes
from astdsl.frontend.nodes import place
from astdsl.frontend.reads import Reads
from astdsl.frontend.rewrite import Rewritten, rewrite
from astdsl.frontend.source_text import FunctionSource, find_function
from astdsl.lang.branching import Side
from astdsl.lang.names import BlockFunction
from astdsl.lang.operands import Effects
from astdsl.lang.tracing import Trace
from astdsl.records import dataclass, field
from astdsl.source import NOWHERE

Hook = Callable[..., Any]


@dataclass(slots=True)
class Session:
    """One trace: its hooks, its rewritten functions, and what it read."""

    hooks: Mapping[str, Hook]
    trace: Trace
    codes: Codes
    reads: Reads = field(default_factory=Reads)
    nodes: list[ast.FunctionDef] = field(default_factory=list)
    # Places in the open block where operands of conditional expressions begin, innermost last.
    marks: list[int] = field(default_factory=list)
    effects: list[Effects | None] = field(default_factory=list)
    sides: list[Side] = field(default_factory=list)
    # How many kernel conditions decide whether the code that runs now is reached.
    conditions: int = 0
    _rewritten: dict[int, tuple[FunctionType, FunctionType]] = field(default_factory=dict)
    _cells: dict[str, CellType] = field(default_factory=dict)

    def rewritten(self, function: FunctionType) -> FunctionType:
        """Return a function rewritten, with the same cells, defaults and globals."""
        known = self._rewritten.get(id(function))
        if known is None:
            known = (function, self._make(function))
            self._rewritten[id(function)] = known
        return known[1]

    def _make(self, function: FunctionType) -> FunctionType:
        self.reads.function(function)
        source = self._source(function)
        if isinstance(source.node, ast.AsyncFunctionDef):
            span = place(source.node).span(source.file)
            message = f"`{function.__name__}` is an `async def`, which a kernel cannot call"
            raise UnsupportedSyntax(message, (span, ""), help="write a plain `def`")
        made, code = _compiled(source, function.__code__, tuple(self.hooks))
        self.codes.add(code, made.blocks, made.shared)
        self.nodes.append(made.node)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        closure = tuple(cells.get(n) or self._hook_cell(n) for n in code.co_freevars)
        result = FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, closure
        )
        result.__kwdefaults__ = function.__kwdefaults__
        result.__qualname__ = function.__qualname__
        return result

    def _source(self, function: FunctionType) -> FunctionSource:
        try:
            return find_function(function, self.codes.is_ours_unchanged(function.__code__))
        except SourceUnavailable as error:
            here = self.trace.locate()
            if here is not NOWHERE:
                error.places = (*error.places, (here, "called here"))
            raise

    def _hook_cell(self, name: str) -> CellType:
        if name not in self._cells:
            hook: Any = partial(self.hooks[name], self)
            # What Python calls it where it complains of the arguments.
            hook.__module__, hook.__qualname__ = "builtins", "call"
            self._cells[name] = CellType(hook)
        return self._cells[name]

    def block(self, function: FunctionType) -> BlockFunction:
        """Return a block from the function that its statements became."""
        return BlockFunction(function, self.codes.block(function.__code__))


@lru_cache(maxsize=512)
def _compiled(
    source: FunctionSource, code: CodeType, hooks: tuple[str, ...]
) -> tuple[Rewritten, CodeType]:
    made = rewrite(source, implicit="__owner__" in hooks)
    names = (*hooks, *code.co_freevars)
    flags = compiler_flags(code)
    return made, compile_function(made.node, source.file, source.class_name, names, flags)
