"""Tracing a kernel: its function is rewritten and run once, and what it does becomes a Module.

Invariant: the same function, arguments and constants give the same Module, as long as what the
trace read of Python is what it was.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from astdsl.errors import UnsupportedSyntax
from astdsl.frontend.hooks import HOOKS
from astdsl.frontend.locate import Codes
from astdsl.frontend.nodes import place
from astdsl.frontend.reads import Reads
from astdsl.frontend.session import Session
from astdsl.frontend.source_text import FunctionSource, find_function
from astdsl.frontend.unknown import endless_recursion, unknown_name
from astdsl.ir.builder import Builder
from astdsl.ir.core import Module, Param, Value
from astdsl.ir.types import RefType, TileType
from astdsl.lang.params import DEFAULTS, CompilerParams
from astdsl.lang.programs import finished
from astdsl.lang.refs import parameter_ref
from astdsl.lang.tracing import Trace, tracing
from astdsl.lang.values import Tile
from astdsl.records import dataclass, field
from astdsl.source import Span


@dataclass(frozen=True, slots=True)
class TracedArgument:
    """A positional parameter of the kernel: its role, and its type, None if it is left out.

    `dims` name the axes, "" for none: axes of one name have one extent. A `packed` array holds two
    f4e2m1 to a byte, and its type is that of the bytes.
    """

    name: str
    role: str
    type: RefType | TileType | None
    initial: float | int | bool | None = None
    dims: tuple[str, ...] = ()
    packed: bool = False


@dataclass(slots=True)
class Traced:
    """A traced kernel: its IR, and what the trace read of Python."""

    module: Module
    reads: Reads
    _nodes: list[ast.FunctionDef] = field(default_factory=list)

    @property
    def source(self) -> str:
        """The rewritten functions as Python text, the kernel first, then the helpers."""
        return "\n\n\n".join(ast.unparse(node) for node in self._nodes) + "\n"

    def is_valid(self) -> bool:
        """Whether everything that the trace read still is what it was."""
        return self.reads.are_current()


def trace_kernel(
    function: FunctionType,
    arguments: Sequence[TracedArgument],
    constants: dict[str, object],
    name: str,
    warpgroups: int = 0,
    params: CompilerParams = DEFAULTS,
) -> Traced:
    """Run a kernel's rewritten function on the values of its parameters, and return its IR.

    With `warpgroups` it is written for each of so many warpgroups of a block.
    Errors: every KernelError that the kernel's text deserves; NeedsConstant where a runtime dim is
    needed as a number; what the user's own Python raises.
    """
    source = find_function(function)
    spans = _parameter_spans(source)
    here = place(source.node).span(source.file)
    values = {a.name: Value(a.type, a.name) for a in arguments if a.type is not None}
    builder = Builder(tuple(values.values()))
    codes = Codes()
    trace = Trace(builder, codes.locate, warpgroups=warpgroups, params=params, shared=codes.shared)
    trace.made.update({value: spans.get(n, here) for n, value in values.items()})
    session = Session(HOOKS, trace, codes)
    with tracing(trace):
        given = {a.name: _argument(a, values.get(a.name)) for a in arguments}
        try:
            result = session.rewritten(function)(**given, **constants)
        except NameError as error:
            raise unknown_name(error, codes) from None
        except RecursionError as error:
            raise endless_recursion(error, codes, name, here) from None
    for unused in trace.unused.values():
        raise unused
    if result is not None:
        raise _returns_value(source)
    for key, given_constant in constants.items():
        session.reads.inside(f"`{key}`", given_constant)
    session.reads.finish()
    made = [
        Param(value=values[a.name], name=a.name, role=a.role, span=spans.get(a.name, here),
              initial=a.initial)
        for a in arguments
        if a.type is not None
    ]  # fmt: skip
    module = Module(
        name=name,
        params=tuple(made),
        body=finished(builder.finish(), warpgroups),
        span=here,
        warpgroups=warpgroups,
        approx_math=params.approx_math,
        constants=tuple((key, repr(value)) for key, value in constants.items()),
    )
    return Traced(module, session.reads, session.nodes)


def _argument(argument: TracedArgument, value: Value | None) -> Any:
    """Return what the kernel sees of a parameter: a ref, a scalar, or None if it is left out."""
    if value is None:
        return None
    if isinstance(value.type, TileType):
        return Tile(value)
    names = tuple(dim or None for dim in argument.dims)
    return parameter_ref(value, argument.name, argument.role, names, packed=argument.packed)


def _parameter_spans(source: FunctionSource) -> dict[str, Span]:
    arguments = source.node.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return {a.arg: place(a).span(source.file) for a in every}


def _returns_value(source: FunctionSource) -> UnsupportedSyntax:
    returns = [n for n in ast.walk(source.node) if isinstance(n, ast.Return) and n.value]
    where = place(returns[0]) if returns else place(source.node)
    return UnsupportedSyntax(
        "a kernel returns nothing",
        (where.span(source.file), ""),
        help="write the result to an `Out` parameter: the call returns it",
    )
