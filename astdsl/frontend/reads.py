"""What a trace read of Python: functions, globals, closure cells, defaults.

Invariant: as long as all of it is what it was, tracing again gives the same kernel, but for what
lies inside of mutable objects.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from astdsl.frontend.library import is_library
from astdsl.lang.leaves import is_same
from astdsl.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Read:
    """One thing read, by how it is read again; what is not there any more reads as `GONE`."""

    what: str
    again: Callable[[], object]
    value: object

    def is_current(self) -> bool:
        """Whether it still is the same object, or an equal constant."""
        return is_same(self.again(), self.value)


GONE = object()


@dataclass(slots=True)
class Reads:
    """Everything that one trace read. Functions are looked into once."""

    items: list[Read] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _kept: list[object] = field(default_factory=list)

    def are_current(self) -> bool:
        """Whether everything still is what it was."""
        # Asked at every launch, so the usual answer, the same object, comes first.
        for read in self.items:
            if read.again() is not read.value and not read.is_current():
                return False
        return True

    def function(self, function: types.FunctionType) -> None:
        """Note a function, and what it and the functions it names may read."""
        if id(function) in self._seen or is_library(function):
            return
        self._seen.add(id(function))
        self._kept.append(function)
        name = function.__name__
        for attribute in ("__code__", "__defaults__", "__kwdefaults__"):
            self._attribute(name, function, attribute)
        for variable, cell in _cells(function):
            self._note(f"`{variable}` around `{name}`", partial(_cell_contents, cell))
        names = sorted(_names(function.__code__))
        for variable in names:
            self._global(function.__globals__, variable, names)

    def _global(self, space: dict[str, Any], variable: str, names: list[str]) -> None:
        """Note a global; of the user's modules and classes also the attributes that are named."""
        is_global = variable in space  # else it is a builtin, until there is such a global
        again = (
            partial(space.get, variable, GONE) if is_global else partial(_look_up, space, variable)
        )
        value = self._note(f"global `{variable}`", again)
        if not isinstance(value, types.ModuleType | type) or is_library(value):
            return
        for name in names:
            self._note(f"`{variable}.{name}`", partial(_attribute_of, value, name))

    def _attribute(self, name: str, function: types.FunctionType, attribute: str) -> None:
        self._add(f"`{attribute}` of `{name}`", partial(getattr, function, attribute))
        for key, _ in _items(getattr(function, attribute)):
            self._note(f"a default of `{name}`", partial(_item, function, attribute, key))

    def _add(self, what: str, again: Callable[[], object]) -> object:
        value = again()
        if value is not GONE and not is_kernel_value(value):
            self.items.append(Read(what, again, value))
        return value

    def _note(self, what: str, again: Callable[[], object]) -> object:
        """Note something read, and look into it if it is a function; return it."""
        value = self._add(what, again)
        if type(value) is types.FunctionType:
            self.function(value)
        return value


def is_kernel_value(value: object) -> bool:
    """Whether a value belongs to the trace itself."""
    return type(value).__module__.startswith("astdsl.lang")


def _items(value: object) -> list[tuple[Any, object]]:
    if isinstance(value, tuple):
        return list(enumerate(value))
    return list(value.items()) if isinstance(value, dict) else []


def _item(function: types.FunctionType, attribute: str, key: object) -> object:
    return dict(_items(getattr(function, attribute))).get(key, GONE)


def _cells(function: types.FunctionType) -> Iterator[tuple[str, types.CellType]]:
    return zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)


def _cell_contents(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return GONE


def _look_up(space: dict[str, Any], name: str) -> object:
    return space.get(name, getattr(builtins, name, GONE))


def _attribute_of(owner: Any, name: str) -> object:
    # Of a class, what its own dictionary holds: a method read through it is a new object each time.
    for kind in getattr(owner, "__mro__", (owner,)):
        if name in vars(kind):
            return vars(kind)[name]
    return GONE


def _names(code: types.CodeType) -> set[str]:
    """Return the names that a code object may read as globals or attributes."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names
