"""What a trace read of Python: functions, globals, closure cells, defaults, and what these hold.

Invariant: as long as all of it is what it was, tracing again gives the same kernel. Of modules,
classes and objects count the attributes that the text names; of containers and arrays counts all
that they hold, unless they are too large to be compared at every launch.
"""

from __future__ import annotations

import builtins
import functools
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from astdsl.frontend.library import is_library, module_of
from astdsl.lang.leaves import is_same
from astdsl.records import dataclass, field

CONTAINERS = (list, tuple, dict, set, frozenset, deque)
MOST_PARTS = 1024
MOST_ARRAY_BYTES = 1 << 16
# Of the library, but no more than names for what the user puts there.
PLAIN_OBJECTS = frozenset({"types.SimpleNamespace", "argparse.Namespace"})
# What these hold never changes, and may be read through them.
WRAPPERS: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    property: ("fget",),
    functools.cached_property: ("func",),
    functools.partial: ("func", "args", "keywords"),
}


@dataclass(frozen=True, slots=True)
class Read:
    """One thing read, by how it is read again; what is not there any more reads as `GONE`."""

    what: str
    again: Callable[[], object]
    value: object

    def is_current(self) -> bool:
        """Whether it still is the same object, an equal constant, or holds such ones."""
        now, value = self.again(), self.value
        if type(value) is Parts and type(now) is Parts:
            return len(now) == len(value) and all(map(is_same, now, value))
        return is_same(now, value)


class Parts(tuple[object, ...]):
    """What a container holds, or what stands for the elements of an array."""

    __slots__ = ()


GONE = object()


@dataclass(slots=True)
class Owner:
    """Something with attributes: how it is called, which names are asked for and which noted."""

    what: str
    value: object
    asked: set[str]
    noted: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Reads:
    """Everything that one trace read. Functions and objects are looked into once."""

    items: list[Read] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _kept: list[object] = field(default_factory=list)
    # The packages whose functions ran, and the names that functions mention, by package.
    _packages: set[str] = field(default_factory=set)
    _names: dict[str, set[str]] = field(default_factory=dict)
    # What is looked into when the trace is done.
    _containers: list[tuple[str, object, set[str]]] = field(default_factory=list)
    _owners: dict[int, Owner] = field(default_factory=dict)

    def are_current(self) -> bool:
        """Whether everything still is what it was."""
        # Asked at every launch, so the usual answer, the same object, comes first.
        for read in self.items:
            if read.again() is not read.value and not read.is_current():
                return False
        return True

    def function(self, function: types.FunctionType) -> None:
        """Note a function that runs, and what it and the functions it names may read."""
        self._packages.add(_package_of(function))
        self._function(function)

    def _function(self, function: types.FunctionType) -> None:
        if self._is_known(function) or is_library(function):
            return
        name = function.__name__
        names = _names(function.__code__)
        self._names.setdefault(_package_of(function), set()).update(names)
        for attribute in ("__code__", "__defaults__", "__kwdefaults__"):
            self._attribute(name, function, attribute)
        for variable, cell in _cells(function):
            self._note(f"`{variable}` around `{name}`", partial(_cell_contents, cell), names)
        for variable in sorted(names):
            self._global(function.__globals__, variable, names)

    def inside(self, what: str, value: object, names: Iterable[str] = ()) -> None:
        """Note what lies inside of an object that the trace was given, or found by these names."""
        kind = type(value)
        if kind is types.FunctionType:
            self._function(value)  # type: ignore[arg-type]
        elif kind in WRAPPERS:
            for name in WRAPPERS[kind]:
                self.inside(what, getattr(value, name), names)
        elif issubclass(kind, CONTAINERS):
            if len(value) <= MOST_PARTS and not self._is_known(value):  # type: ignore[arg-type]
                self._containers.append((what, value, {*names}))
        elif _is_array(value):
            self._add(what, partial(_array_contents, value))
        elif _has_attributes(value):
            self._owners.setdefault(id(value), Owner(what, value, set())).asked.update(names)

    def finish(self) -> None:
        """Note what containers and owners hold, once the trace has changed what it changes.

        Of modules and classes count those that were named beside them, of objects, and of what
        belongs to the packages that ran, those that any function of these packages names.
        """
        todo = True
        while todo:
            containers, self._containers = self._containers, []
            for found in containers:
                self._container(*found)
            new = sum(self._attributes(owner) for owner in list(self._owners.values()))
            todo = new > 0 or len(self._containers) > 0

    def _attributes(self, owner: Owner) -> int:
        """Note the attributes of an owner that are not yet noted; return of how many names."""
        names = set(owner.asked)
        is_object = type(owner.value) is not types.ModuleType and not _is_class(owner.value)
        if is_object or _package_of(owner.value) in self._packages:
            names = names.union(*(self._names.get(p, ()) for p in self._packages))
        new = sorted(names - owner.noted)
        owner.noted |= names
        for name in new:
            again = partial(_attribute_of, owner.value, name)
            self._note(f"`{name}` of {owner.what}", again, names)
        return len(new)

    def _is_known(self, value: object) -> bool:
        """Whether an object was looked into before; it is kept, so that its identity stays its."""
        known = id(value) in self._seen
        self._seen.add(id(value))
        if not known:
            self._kept.append(value)
        return known

    def _container(self, what: str, value: Any, names: set[str]) -> None:
        if type(value) not in (tuple, frozenset):
            self._add(what, partial(_contents, value))
        for part in _contents(value):
            self.inside(what, part, names)

    def _global(self, space: dict[str, Any], variable: str, names: set[str]) -> None:
        is_global = variable in space  # else it is a builtin, until there is such a global
        again = (
            partial(space.get, variable, GONE) if is_global else partial(_look_up, space, variable)
        )
        self._note(f"global `{variable}`", again, names)

    def _attribute(self, name: str, function: types.FunctionType, attribute: str) -> None:
        self._add(f"`{attribute}` of `{name}`", partial(getattr, function, attribute))
        for key, _ in _items(getattr(function, attribute)):
            again = partial(_item, function, attribute, key)
            self._note(f"a default of `{name}`", again, _names(function.__code__))

    def _add(self, what: str, again: Callable[[], object]) -> object:
        value = again()
        if value is not GONE and not is_kernel_value(value):
            self.items.append(Read(what, again, value))
        return value

    def _note(self, what: str, again: Callable[[], object], names: set[str]) -> None:
        """Note something read by a function that mentions these names, and look into it."""
        value = self._add(what, again)
        if not is_kernel_value(value):
            self.inside(what, value, names)


def is_kernel_value(value: object) -> bool:
    """Whether a value belongs to the trace itself."""
    return type(value).__module__.startswith("astdsl.lang")


def _is_array(value: object) -> bool:
    """Whether it is an array of NumPy that may be compared at every launch."""
    kind = type(value)
    return (
        kind.__module__ == "numpy"
        and kind.__name__ == "ndarray"
        and value.nbytes <= MOST_ARRAY_BYTES  # type: ignore[attr-defined]
    )


def _is_class(value: object) -> bool:
    return issubclass(type(value), type)


def _package_of(value: object) -> str:
    """Return the first part of the name of the module that something comes from."""
    return module_of(value).partition(".")[0]


def _has_attributes(value: object) -> bool:
    """Whether it is a module, a class or an object that the user may change."""
    kind = type(value)
    if kind is types.ModuleType or _is_class(value):
        return not is_library(value)
    return not is_library(kind) or f"{kind.__module__}.{kind.__qualname__}" in PLAIN_OBJECTS


def _contents(value: Any) -> Parts:
    if issubclass(type(value), dict):
        return Parts(part for item in list(value.items()) for part in item)
    return Parts(value)


def _array_contents(value: Any) -> Parts:
    return Parts((str(value.dtype), *value.shape, hash(value.tobytes())))


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
    for kind in owner.__mro__ if _is_class(owner) else (owner, *type(owner).__mro__):
        space = getattr(kind, "__dict__", {})
        if name in space:
            return _of_slot(space[name], owner)
    return GONE


def _of_slot(found: object, owner: object) -> object:
    """Return what the slot of an object holds, anything else as it is."""
    if type(found) is not types.MemberDescriptorType or _is_class(owner):
        return found
    try:
        return found.__get__(owner)
    except AttributeError:
        return GONE


def _names(code: types.CodeType) -> set[str]:
    """Return the names that a code object may read as globals or attributes."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names
