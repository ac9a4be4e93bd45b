"""What a trace read of Python: functions, globals, closure cells, defaults.

Invariant: as long as all of it is what it was, tracing again gives the same kernel, but for what
lies inside of mutable objects.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from astdsl.frontend.library import is_library
from astdsl.lang.leaves import is_same


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
        return all(r.again() is r.value or r.is_current() for r in self.items)

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
        for variable in sorted(_global_names(function.__code__)):
            again = partial(_look_up, function.__globals__, variable)
            self._note(f"global `{variable}`", again)

    def _attribute(self, name: str, function: types.FunctionType, attribute: str) -> None:
        self._add(f"`{attribute}` of `{name}`", lambda: getattr(function, attribute))
        for key, _ in _items(getattr(function, attribute)):
            self._note(f"a default of `{name}`", partial(_item, function, attribute, key))

    def _add(self, what: str, again: Callable[[], object]) -> object:
        value = again()
        self.items.append(Read(what, again, value))
        return value

    def _note(self, what: str, again: Callable[[], object]) -> None:
        """Note something read, and look into it if it is a function."""
        value = self._add(what, again)
        if type(value) is types.FunctionType:
            self.function(value)

    def module_attribute(self, module: types.ModuleType, name: str) -> None:
        """Note what was read of a module."""
        if not is_library(module):
            self._note(f"`{module.__name__}.{name}`", lambda: getattr(module, name, GONE))


def _items(value: object) -> list[tuple[Any, object]]:
    if isinstance(value, tuple):
        return list(enumerate(value))
    return list(value.items()) if isinstance(value, dict) else []


def _default(values: Any, key: Any) -> object:
    try:
        return values[key]
    except (KeyError, IndexError, TypeError):  # other defaults, or none any more
        return GONE


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


def _global_names(code: types.CodeType) -> set[str]:
    """Return the names that a code object may read as globals; attributes' names are among them."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names
