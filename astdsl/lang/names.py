"""Blocks of a kernel's source: the functions they became, and access to the names they share.

Invariant: a name lives in one cell, seen by every block and closure; what it holds is changed
through the cell and nowhere else.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from astdsl.errors import HiddenMutation, KernelError
from astdsl.lang.mutation import Change, Snapshot
from astdsl.lang.tracing import current, fault, require_trace
from astdsl.records import dataclass, replace
from astdsl.source import Span

Names = frozenset[str]
# What a function that returns early will return: the one name that may hold nothing yet on a path
# that is surely not the one taken, so that any value may stand there.
RESULT = "__result__"


class Missing:
    """What a name holds that is not assigned yet."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


@dataclass(frozen=True, slots=True)
class BlockNames:
    """Names of a block: those it assigns, reads, reads before assigning; those read after it.

    `exits` are the statements that leave it, as (flag, word, place); `stops` are the flags that
    end the loop whose body it is; `span` is the header of its statement. `changes` are the texts
    of objects whose parts it stores to, or whose methods it calls, with their places.
    """

    bound: tuple[str, ...]
    read: tuple[str, ...]
    exposed: Names
    after: Names
    span: Span
    exits: tuple[tuple[str, str, Span], ...] = ()
    stops: tuple[str, ...] = ()
    changes: tuple[tuple[str, Span], ...] = ()


class CellName(str):
    """A name of a scope that is not the block's: another one if the cell is another."""

    __slots__ = ("_cell",)
    _cell: types.CellType

    def __new__(cls, name: str, cell: types.CellType) -> CellName:
        """Return the name of a cell."""
        made = super().__new__(cls, name)
        made._cell = cell
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CellName) and other._cell is self._cell

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return id(self._cell)


class BlockFunction:
    """A block: the function that its statements became, and access to the names it shares."""

    __slots__ = ("_arguments", "_cells", "_function", "_through", "names")

    def __init__(
        self,
        function: types.FunctionType,
        names: BlockNames,
        arguments: tuple[object, ...] = (),
        through: Mapping[str, types.CellType] | None = None,
    ) -> None:
        """Make a block; `through` are the cells that functions it reaches may assign."""
        self._function = function
        self._arguments = arguments
        cells = function.__closure__ or ()
        self._cells = dict(zip(function.__code__.co_freevars, cells, strict=True))
        self.names = names
        self._through = self._assigned_by_calls() if through is None else through
        if self._through:
            # Whoever holds the function may call it, and read what it assigned.
            again = frozenset(self._through)
            self.names = replace(names, exposed=names.exposed | again, after=names.after | again)

    def _assigned_by_calls(self) -> dict[str, types.CellType]:
        trace = current.get()
        if trace is None or not trace.shared:
            return {}
        known = {id(self._cells[name]) for name in self.names.bound}
        found: dict[str, types.CellType] = {}
        for function in Snapshot(self.reached()).functions():
            cells = dict(
                zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            )
            for name in trace.shared.get(id(function.__code__), ()):
                if id(cells[name]) not in known:
                    found[CellName(name, cells[name])] = cells[name]
        return found

    @property
    def cells(self) -> dict[str, types.CellType]:
        """The cell of each name that the block assigns, or a function that it may call."""
        return {**{name: self._cells[name] for name in self.names.bound}, **self._through}

    @property
    def span(self) -> Span:
        """The header of the statement."""
        return self.names.span

    def get(self, name: str) -> Any:
        """Return what a name holds, MISSING if nothing yet."""
        cell = self._cells.get(name)
        if cell is not None:
            return read_cell(cell)
        return self._function.__globals__.get(name, MISSING)

    def set(self, name: str, value: object) -> None:
        """Let a name that the block assigns hold a value; MISSING unassigns it."""
        write_cell(self._cells[name], value)

    def bind(self, *arguments: object) -> BlockFunction:
        """Return the block as one step of a loop: what a step needs is read after it."""
        names = replace(self.names, after=self.names.after | self.names.exposed)
        return BlockFunction(self._function, names, arguments, self._through)

    def call(self, *arguments: object) -> Any:
        """Run the block."""
        return self._function(*(arguments or self._arguments))

    def reached(self) -> dict[str, object]:
        """Return what the names that the block mentions hold, those that hold something."""
        found = {name: self.get(name) for name in {*self.names.read, *self.names.bound}}
        return {name: value for name, value in found.items() if value is not MISSING}

    def stopped(self) -> Any:
        """Return whether a flag ends the loop: True, False, or a kernel value."""
        return any_flag([self.get(flag) for flag in self.names.stops])


def any_flag(values: list[Any]) -> Any:
    """Return True if a flag is surely set, False if none is, else a kernel bool."""
    if any(value is True for value in values):
        return True
    result: Any = False
    for value in values:
        if value is not False and value is not MISSING:
            result = value if result is False else result | value
    return result


def read_cell(cell: types.CellType) -> Any:
    """Return what a cell holds, MISSING if nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def write_cell(cell: types.CellType, value: object) -> None:
    """Put a value into a cell; MISSING empties it."""
    if value is not MISSING:
        cell.cell_contents = value
    elif read_cell(cell) is not MISSING:
        del cell.cell_contents


class Unusable:
    """What a name holds whose value no path agrees on: any use raises a located error."""

    __slots__ = ("_error",)

    def __init__(self, error: Callable[[], KernelError]) -> None:
        object.__setattr__(self, "_error", error)

    def __getattribute__(self, name: str) -> NoReturn:
        _refuse(self)


def _refuse(self: Unusable, *others: object) -> NoReturn:
    error: KernelError = object.__getattribute__(self, "_error")()
    raise error


_BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
    "lshift", "rshift", "divmod",
)  # fmt: skip
_OPERATORS = [f"{side}{name}" for name in _BINARY for side in ("", "r", "i")]
_OTHERS = (
    "eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "invert", "abs", "bool", "int", "float",
    "index", "len", "iter", "getitem", "setitem", "contains", "call", "enter", "exit", "str",
    "repr", "format", "hash", "next", "round", "setattr",
)  # fmt: skip
for _name in (*_OPERATORS, *_OTHERS):
    setattr(Unusable, f"__{_name}__", _refuse)


def unusable(
    kind: type[KernelError],
    message: str,
    *places: tuple[Span, str],
    note: str = "used here",
    help: str = "",
) -> Unusable:
    """Return what refuses its use: at the place of the use, and showing `places` too."""

    def error() -> KernelError:
        here = require_trace("a name").locate()
        return kind(message, (here, note), *places, help=help)

    return Unusable(error)


def require_usable(value: object) -> None:
    """Raise the error of a name that holds no usable value."""
    if type(value) is Unusable:
        _refuse(value)


def states(cells: Mapping[str, types.CellType]) -> dict[str, Any]:
    """Return what each cell holds."""
    return {name: read_cell(cell) for name, cell in cells.items()}


def restore(cells: Mapping[str, types.CellType], values: Mapping[str, object]) -> None:
    """Put values back into cells."""
    for name, value in values.items():
        write_cell(cells[name], value)


class Watch:
    """The Python objects that blocks can reach, as they are now."""

    def __init__(self, *blocks: BlockFunction) -> None:
        reached: dict[str, object] = {}
        own: list[types.CellType] = []
        for block in blocks:
            reached |= block.reached()
            own += block.cells.values()
        self._before = Snapshot(reached, own)
        self._texts = [change for block in blocks for change in block.names.changes]

    def change(self) -> Change | None:
        """Return one change since, None if there is none."""
        return self._before.change()

    def require_unchanged(self) -> None:
        """Refuse what was changed since: a kernel value in it would be lost.

        Errors: HiddenMutation.
        """
        change = self.change()
        if change is not None:
            error = fault(
                HiddenMutation,
                f"`{change.path}` is changed inside a block of the kernel, where Python runs once "
                "for all steps and both branches",
                note="in this block",
                help="assign to a name (a tuple, or a dataclass rebuilt by `replace`) to carry "
                "it; `unroll(...)` makes a loop that Python runs",
            )
            error.places = (*self._places(change.path), *error.places)
            raise error

    def _places(self, path: str) -> Iterator[tuple[Span, str]]:
        """Yield the line that changes what `path` leads to, where a block's text shows it."""
        # The whole path, or a beginning of it that is followed by another step.
        fitting = [
            (text, span)
            for text, span in self._texts
            if path.startswith(text) and path[len(text) : len(text) + 1] in ("", ".", "[", " ")
        ]
        if fitting:
            yield max(fitting, key=lambda pair: len(pair[0]))[1], "changed here"


@contextmanager
def unchanged_objects(*blocks: BlockFunction) -> Iterator[None]:
    """Refuse changes inside of the Python objects that blocks can reach."""
    watch = Watch(*blocks)
    yield
    watch.require_unchanged()
