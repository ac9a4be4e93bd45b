"""From a request to a kernel: front end, passes, back end.

Invariant: a program depends on the request's key and on what its trace read, and on nothing else;
new sizes of the same classes use the same program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from astdsl import backend, store
from astdsl.backend import Assembler, Compiled, Cubin
from astdsl.errors import UnsupportedFeature
from astdsl.frontend.trace import Traced, TracedArgument, trace_kernel
from astdsl.frontend.unknown import too_deep
from astdsl.ir import ops
from astdsl.ir.core import Module, walk
from astdsl.ir.evaluate.rehearsal import rehearse
from astdsl.ir.passes import run_passes
from astdsl.lang.tracing import NeedsConstant
from astdsl.passes import STANDARD
from astdsl.records import dataclass, field
from astdsl.request import DimKey, Request
from astdsl.runtime import kept
from astdsl.runtime.artifact import Code


@dataclass(slots=True)
class Program:
    """A traced kernel, and what the back end made of it for each target."""

    traced: Traced
    module: Module
    static: dict[DimKey, int]
    _compiled: dict[str, Compiled] = field(default_factory=dict)
    _codes: dict[str, Code] = field(default_factory=dict)
    _cubins: dict[str, Cubin] = field(default_factory=dict)

    def fits(self, request: Request) -> bool:
        """Whether the dims that were made constants have the same extents in a request."""
        shapes = {a.name: a.geometry.shape for a in request.arguments if a.geometry}
        return all(shapes[n][axis] == extent for (n, axis), extent in self.static.items())

    def is_valid(self) -> bool:
        """Whether what the trace read still is what it was."""
        return self.traced.is_valid()

    def settled(self, target: str) -> Module:
        """Return the typed IR as it means on a target, for a device that runs it."""
        return backend.settle_streams(self.module, target)

    def compiled(self, target: str) -> Compiled:
        """Return the kernel for a target, lowered once."""
        if target not in self._compiled:
            with _depth_of(self.module):
                self._compiled[target] = backend.compile_module(self.module, target)
            for shared in self._compiled[target].shared:
                sys.stdout.writelines(f"layout for {target} of {each}\n" for each in shared.told)
        return self._compiled[target]

    def code(self, target: str, before: Callable[[], None] = lambda: None) -> Code:
        """Return PTX and launch plan for a target: from the disk where they are kept.

        `before` is called before they are made, if they have to be.
        """
        if target not in self._codes:
            self._codes[target] = self._find_code(target, before)
        return self._codes[target]

    def _find_code(self, target: str, before: Callable[[], None]) -> Code:
        if not store.private_folder():
            return self._make_code(target, before)
        key = kept.code_key(self.module, target, backend.compiler_identity())
        found = None if _tells_layouts(self.module) else kept.read_code(key)
        if found is None:
            found = self._make_code(target, before)
            kept.write_code(key, found)
        return found

    def _make_code(self, target: str, before: Callable[[], None]) -> Code:
        before()
        compiled = self.compiled(target)
        return Code(compiled.ptx, compiled.plan)

    def cubin(self, target: str) -> Cubin:
        """Return the assembled kernel for a target: from the disk where it is kept."""
        if target not in self._cubins:
            self._cubins[target] = self._find_cubin(target)
        return self._cubins[target]

    def _find_cubin(self, target: str) -> Cubin:
        with backend.assembler(target) as assembler:
            ptx = self.code(target, before=assembler.start).ptx
            key = kept.cubin_key(ptx, target, backend.assembler_identity())
            found: Cubin | None = kept.read_cubin(key)
            if found is None:
                found = _assembled(assembler, ptx, self.module)
                kept.write_cubin(key, found)
            return found


def _assembled(assembler: Assembler, ptx: str, module: Module) -> Cubin:
    """Assemble PTX; what the assembler does not take is our bug, or a text of the kernel's."""
    try:
        return assembler.assemble(ptx)
    except AssertionError as error:
        texts = [op.span for op in walk(module.body) if isinstance(op, ops.InlinePtx)]
        if not texts or not hasattr(error, "complaint"):
            raise
        raise UnsupportedFeature(
            f"the assembler does not take this kernel's PTX: {error}",
            *((span, "a text of the kernel") for span in texts),
            help="correct the text; `lower(...).ptx` shows it in its place",
        ) from error


def _tells_layouts(module: Module) -> bool:
    """Whether a module prints something whenever it is compiled: what is kept would be silent."""
    return any(isinstance(op, ops.PrintLayout) for op in walk(module.body))


def build(request: Request) -> Program:
    """Trace a request, run the standard passes, place assertions, check what is done to outputs."""
    traced, static = trace_with_constants(request)
    shapes = {a.name: a.geometry.shape for a in request.arguments if a.geometry}
    with _depth_of(traced.module):
        backend.check_written(traced.module)
        module = backend.place_assertions(run_passes(traced.module, STANDARD))
        backend.check_outputs(module)
        if request.params.check:
            rehearse(module, shapes)
    extents = {(name, axis): shapes[name][axis] for name, axis in static}
    return Program(traced, module, extents)


@contextmanager
def _depth_of(module: Module) -> Iterator[None]:
    """Refuse a module that nests deeper than what is done inside can follow."""
    try:
        yield
    except RecursionError as error:
        raise too_deep(module.name, module.span) from error


def trace_with_constants(request: Request) -> tuple[Traced, frozenset[DimKey]]:
    """Trace; where dims turn out to be needed as numbers, again with those as constants."""
    static: frozenset[DimKey] = frozenset()
    while True:
        made = _try_trace(request, static)
        if isinstance(made, Traced):
            return made, static
        wanted = static | made | _of_the_same_name(request, made)
        assert wanted != static, f"the trace asks again for {sorted(made)}"
        static = wanted


def _try_trace(request: Request, static: frozenset[DimKey]) -> Traced | frozenset[DimKey]:
    """Trace, or return the dims that are needed as numbers."""
    arguments = [
        TracedArgument(a.name, a.role, a.type_with(static), a.initial, a.names, a.is_packed)
        for a in request.arguments
    ]
    assert request.function is not None, "a kernel that was loaded is not traced"
    try:
        return trace_kernel(
            request.function,
            arguments,
            request.constants,
            request.name,
            request.warpgroups,
            request.params,
        )
    except NeedsConstant as need:
        return need.wanted


def _of_the_same_name(request: Request, wanted: frozenset[DimKey]) -> frozenset[DimKey]:
    """Return every dim whose annotation has the name of a wanted one: they are equal."""
    named = {(a.name, axis): dim for a in request.arguments for axis, dim in enumerate(a.names)}
    names = {named[key] for key in wanted} - {""}
    return frozenset(key for key, dim in named.items() if dim in names)
