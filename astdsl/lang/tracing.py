"""The trace that is being built, and how lang adds to it and complains about it.

Invariant: at most one trace is current in a context. Nothing here looks at Python frames: where the
user stands is what `Trace.locate` answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from astdsl.errors import BadPipeline, KernelError, OutOfScope, UnsupportedFeature
from astdsl.ir.builder import Builder
from astdsl.ir.core import Op, Value
from astdsl.lang.params import DEFAULTS, CompilerParams
from astdsl.lang.symbolic import Atom
from astdsl.records import dataclass, field
from astdsl.source import NOWHERE, Span

AnyOp = TypeVar("AnyOp", bound=Op)
# Operations that one trace makes: loops that Python runs copy their bodies, and compiling takes
# minutes from here on.
MOST_OPERATIONS = 30_000
# A dim of a parameter, by the parameter's name and the axis.
DimKey = tuple[str, int]


class NeedsConstant(BaseException):
    """Dims that must be Python numbers: caught by the compiler, which traces again with them.

    Not an `Exception`, so that no `except Exception` in a helper swallows it.
    """

    def __init__(self, wanted: frozenset[DimKey]) -> None:
        super().__init__(f"dims needed as constants: {sorted(wanted)}")
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class Grid:
    """The outermost `parallel` around here: names, indices, and `(low, high, step)` of its axes."""

    names: tuple[str, ...]
    indices: tuple[Any, ...]
    bounds: tuple[tuple[Any, Any, Any], ...]


@dataclass(slots=True)
class Trace:
    """A kernel being traced.

    `locate` gives the span of the user's operation that runs now, helper stack included. `made`
    says where each value was made; `atoms` are the unknowns of index arithmetic, by what they are,
    and `known` the indices that were computed from them; `loops` counts the open loops and
    pipelines. With `warpgroups` the kernel is written for each of so many warpgroups of a block,
    with 0 for the block. `grid` is the `parallel` around what is traced now. `shared` are names
    around functions of the kernel that these may assign, by the id of their code. `unused` are
    the objects that do nothing until the kernel enters, runs through or calls them, each with the
    error that it is if no line does.
    """

    builder: Builder
    locate: Callable[[], Span]
    made: dict[Value, Span] = field(default_factory=dict)
    atoms: dict[object, Atom] = field(default_factory=dict)
    known: dict[object, object] = field(default_factory=dict)
    loops: int = 0
    warpgroups: int = 0
    params: CompilerParams = DEFAULTS
    grid: Grid | None = None
    shared: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    unused: dict[object, KernelError] = field(default_factory=dict)
    emitted: int = 0

    def emit(self, kind: type[AnyOp], /, **fields: object) -> AnyOp:
        """Append an operation at the user's place, and return it."""
        span = self.locate()
        self.emitted += 1
        if self.emitted > MOST_OPERATIONS:
            raise UnsupportedFeature(
                f"the kernel has more than {MOST_OPERATIONS:,} operations",
                (span, "one too many"),
                help="`for i in range(n):` is a loop of the kernel; `unroll(...)` and other loops "
                "of Python copy their body for each step",
            )
        op = kind(span=span, **fields)
        self._require_visible(op, span)
        self.made.update(dict.fromkeys(op.results, span))
        return self.builder.add(op)

    def _require_visible(self, op: Op, span: Span) -> None:
        for value in op.operands:
            if not self.builder.visible(value):
                name = f"`{value.hint}`" if value.hint else "this value"
                raise OutOfScope(
                    f"{name} is used outside the block that made it",
                    (span, "used here"),
                    (self.made.get(value, NOWHERE), "made here, inside the block"),
                    help="define the name before the block and assign it in it to carry it out, "
                    "or move the use into the block",
                )

    @contextmanager
    def loop(self) -> Iterator[None]:
        """Count one more open loop inside the `with`."""
        self.loops += 1
        try:
            yield
        finally:
            self.loops -= 1

    @contextmanager
    def inside_grid(self, grid: Grid | None) -> Iterator[None]:
        """Let the functions of places see `grid` inside the `with`, unless there is one around."""
        before, self.grid = self.grid, self.grid or grid
        try:
            yield
        finally:
            self.grid = before


current: ContextVar[Trace | None] = ContextVar("current", default=None)


def trace() -> Trace | None:
    """Return the trace being built, None outside one."""
    return current.get()


@contextmanager
def tracing(new: Trace) -> Iterator[Trace]:
    """Make `new` the current trace inside the `with`."""
    token = current.set(new)
    try:
        yield new
    finally:
        current.reset(token)


def require_trace(what: str) -> Trace:
    """Return the current trace, or refuse `what` outside a kernel."""
    found = current.get()
    if found is None:
        raise UnsupportedFeature(
            f"{what} is used outside a kernel",
            help="call it in a function under `@kernel`; on the host use NumPy",
        )
    return found


def emit(kind: type[AnyOp], /, **fields: object) -> AnyOp:
    """Append an operation to the current trace, and return it."""
    return require_trace("a function of kernels").emit(kind, **fields)


def must_be_used(made: object, message: str, help: str) -> None:
    """Let the trace end in an error here, unless `used` takes `made` before."""
    now = current.get()
    if now is not None:
        now.unused[made] = fault(BadPipeline, message, help=help)


def used(made: object) -> None:
    """Note that what `must_be_used` was given does something."""
    now = current.get()
    if now is not None:
        now.unused.pop(made, None)


def fault(
    kind: type[KernelError],
    message: str,
    *sources: tuple[Value, str],
    note: str = "",
    help: str = "",
) -> KernelError:
    """Return an error at the user's place, with the places where its operands were made.

    `sources` pairs a value with what to say of the place that made it.
    """
    now = current.get()
    if now is None:
        return kind(message, help=help)
    here = now.locate()
    places = [(here, note)]
    for value, said in sources:
        span = now.made.get(value, NOWHERE)
        if span is not NOWHERE and all(span != known for known, _ in places):
            places.append((span, said))
    return kind(message, *places, help=help)
