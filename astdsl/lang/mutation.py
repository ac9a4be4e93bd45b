"""Python objects that a block of a kernel can reach, before and after it runs.

Invariant: what is compared is identity, so a change is seen whatever `==` means for the objects.
"""

from __future__ import annotations

import itertools
import operator
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from astdsl.lang.leaves import PLAIN, dictionary_of
from astdsl.lang.values import Tile
from astdsl.records import dataclass

# Objects reached in one block; what lies farther from the kernel is not looked at.
LIMIT = 20_000
# Iterators over iterators.
WRAPPERS = (enumerate, filter, map, zip)
OPAQUE = (type, types.ModuleType, types.BuiltinFunctionType, types.CodeType)


@dataclass(frozen=True, slots=True)
class Change:
    """A part of an object that changed: the path from a name, and its values."""

    path: str
    before: object
    after: object


class Snapshot:
    """What the objects reached from some names hold now; cells of `own` are not looked into."""

    def __init__(self, names: Mapping[str, object], own: Collection[types.CellType] = ()) -> None:
        self._own = {id(cell) for cell in own}
        self._seen: dict[int, tuple[str, object, list[tuple[str, Any]]]] = {}
        for name, value in names.items():
            self._visit(name, value)

    def _visit(self, name: str, value: object) -> None:
        todo = [(name, value)]
        while todo and len(self._seen) < LIMIT:
            path, found = todo.pop()
            if type(found) in PLAIN or id(found) in self._seen:
                continue
            parts = list(self._parts(found))
            self._seen[id(found)] = (path, found, parts)
            todo += [(path + suffix, part) for suffix, part in parts]

    def functions(self) -> Iterator[types.FunctionType]:
        """Yield the functions of Python that were reached."""
        for _, value, _ in self._seen.values():
            if type(value) is types.FunctionType:
                yield value

    def change(self) -> Change | None:
        """Return one change since, None if there is none."""
        for path, value, before in self._seen.values():
            after = dict(self._parts(value))
            for suffix, old in before:
                new = after.pop(suffix, None)
                if new is not old:
                    return Change(path + suffix, old, new)
            for suffix, new in after.items():
                return Change(path + suffix, None, new)
        return None

    def _parts(self, value: object) -> Iterator[tuple[str, Any]]:
        if type(value) is types.FunctionType:
            return _cells(value, self._own)
        return _parts(value)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, with the text that leads there."""
    kind = type(value)
    if kind is list or kind is tuple:
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif kind is dict:
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif kind is set:
        yield from ((f" element {i}", part) for i, part in enumerate(sorted(value, key=id)))
    elif kind is types.MethodType:
        yield ".__self__", value.__self__
    elif issubclass(kind, Iterator) and kind.__module__ in ("builtins", "itertools"):
        yield from _state(value)
    elif not issubclass(kind, (Tile, *OPAQUE)) and not _is_library(kind):
        yield from attributes(value)


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an iterator of Python's still has to give, as far as Python tells."""
    if type(value) is types.GeneratorType:
        frame = value.gi_frame
        yield "'s place", sys.intern(str(frame and frame.f_lasti))
        yield "'s source", value.gi_yieldfrom
        yield from (
            (f"'s local {name}", x) for name, x in (frame.f_locals if frame else {}).items()
        )
    elif type(value) in WRAPPERS:
        # What it was made of: functions and iterators, and the number of `enumerate`.
        parts = value.__reduce__()[1]
        yield from ((f"'s part {i}", x) for i, x in enumerate(parts) if not isinstance(x, int))
    elif type(value) is itertools.count:
        yield "'s place", sys.intern(repr(value))
    else:
        yield "'s place", sys.intern(str(operator.length_hint(value)))


def _is_library(kind: type) -> bool:
    """Whether a type is ours or NumPy's: their objects are no state of the user's."""
    return kind.__module__.partition(".")[0] in {"astdsl", "numpy", "builtins"}


def _cells(function: types.FunctionType, own: set[int]) -> Iterator[tuple[str, Any]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        if id(cell) in own or (name.startswith("__") and name.endswith("__")):
            continue
        try:
            yield f"`'s `{name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Yield what an object's dictionary and its slots hold, with paths."""
    yield from ((f".{name}", part) for name, part in dictionary_of(value).items())
    spaces = (kind.__dict__ for kind in type(value).__mro__)
    slots = [item for space in spaces if "__slots__" in space for item in space.items()]
    for name, slot in slots:
        if type(slot) is types.MemberDescriptorType:
            with suppress(AttributeError):  # not assigned yet
                yield f".{name}", slot.__get__(value)
