"""Tracing a kernel: its function is rewritten and run once, and what it does becomes a Module.

Invariant: the same function, arguments and constants give the same Module, as long as what the
trace read of Python is what it was.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from astdsl.errors import KernelError, UnsupportedSyntax
from astdsl.frontend.hooks import HOOKS
from astdsl.frontend.locate import Codes
from astdsl.frontend.methods import HOOKS as METHODS
from astdsl.frontend.misuse import misused
from astdsl.frontend.nodes import place
from astdsl.frontend.plain import failed_in_plain_python, is_the_same, tell_the_plain_place
from astdsl.frontend.reads import Reads
from astdsl.frontend.session import Hook, Session
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
    make = partial(_Attempt, function, find_function(function), arguments, warpgroups, params)
    attempt = make(HOOKS)
    try:
        return attempt.traced(constants, name)
    except KernelError as error:
        if not failed_in_plain_python(error, attempt.codes):
            raise
        first = error
    attempt = make(METHODS)
    try:
        return attempt.traced(constants, name)
    except KernelError as error:
        if not tell_the_plain_place(error, attempt.codes) and is_the_same(first, error):
            raise first from None  # its expressions are nearer to the text
        raise


class _Attempt:
    """One run of a kernel's rewritten function, with the hooks that it calls."""

    def __init__(
        self,
        function: FunctionType,
        source: FunctionSource,
        arguments: Sequence[TracedArgument],
        warpgroups: int,
        params: CompilerParams,
        hooks: Mapping[str, Hook],
    ) -> None:
        self.function, self.source, self.arguments = function, source, arguments
        self.here = place(source.node).span(source.file)
        self.spans = _parameter_spans(source)
        self.values = {a.name: Value(a.type, a.name) for a in arguments if a.type is not None}
        self.codes = Codes(type(self)._run.__code__)
        self.trace = Trace(
            Builder(tuple(self.values.values())),
            self.codes.locate,
            warpgroups=warpgroups,
            params=params,
            shared=self.codes.shared,
        )
        made = {value: self.spans.get(n, self.here) for n, value in self.values.items()}
        self.trace.made.update(made)
        self.session = Session(hooks, self.trace, self.codes)

    def traced(self, constants: dict[str, object], name: str) -> Traced:
        """Trace the kernel, and return its module with what the trace read."""
        module = self._run(constants, name)
        return Traced(module, self.session.reads, self.session.nodes)

    def _run(self, constants: dict[str, object], name: str) -> Module:
        session, trace = self.session, self.trace
        with tracing(trace):
            given = {a.name: _argument(a, self.values.get(a.name)) for a in self.arguments}
            try:
                result = session.rewritten(self.function)(**given, **constants)
            except NameError as error:
                raise unknown_name(error, self.codes) from None
            except KernelError:
                raise
            except (TypeError, AttributeError) as error:
                raise misused(error, self.codes) from None
            except RecursionError as error:
                raise endless_recursion(error, self.codes, name, self.here) from None
        for unused in trace.unused.values():
            raise unused
        if result is not None:
            raise _returns_value(self.source)
        for key, given_constant in constants.items():
            session.reads.inside(f"`{key}`", given_constant)
        session.reads.finish()
        made = [
            Param(value=self.values[a.name], name=a.name, role=a.role,
                  span=self.spans.get(a.name, self.here), initial=a.initial)
            for a in self.arguments
            if a.type is not None
        ]  # fmt: skip
        return Module(
            name=name,
            params=tuple(made),
            body=finished(trace.builder.finish(), trace.warpgroups),
            span=self.here,
            warpgroups=trace.warpgroups,
            approx_math=trace.params.approx_math,
            constants=tuple((key, repr(value)) for key, value in constants.items()),
        )


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
