"""Dataclasses whose methods are written when the first instance is made.

The standard decorator compiles `__init__`, `__eq__`, `__repr__` and others for every class, about
half a millisecond each: half of the import of a package of small records, most of which a program
never makes.

Invariant: a class behaves as the standard decorator makes it, once it has an instance; only that
a frozen record with slots, which never changes, is its own deep copy.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import field, replace
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["complete", "dataclass", "field", "replace"]

_COMPLETING = RLock()


def _postponed(cls: type | None = None, /, *, slots: bool = False, **options: Any) -> Any:
    """Make a dataclass; the options are those of the standard decorator."""

    def prepare(plain: type) -> type:
        made = _with_slots(plain, options.get("frozen", False)) if slots else plain
        _postpone(made, plain, options)
        return made

    return prepare if cls is None else prepare(cls)


def _with_slots(plain: type, is_frozen: bool) -> type:
    """Return a copy of a class that has slots in place of the defaults of its fields."""
    fields = tuple(inspect.get_annotations(plain))
    left_out = {*fields, "__dict__", "__weakref__"}
    names = {name: value for name, value in vars(plain).items() if name not in left_out}
    ours = FROZEN if is_frozen else {}
    made = type(plain)(plain.__name__, plain.__bases__, {"__slots__": fields} | ours | names)
    made.__qualname__ = plain.__qualname__
    return made


def _itself(self: Any, *_: object) -> Any:
    """Return the deep copy of what never changes."""
    return self


def _reduced(self: Any) -> tuple[Any, ...]:
    """Return what makes the record again."""
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    return _made_again, (type(self), fields)


def _made_again(record: type, fields: dict[str, Any]) -> Any:
    made: Any = object.__new__(record)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def _refuse_change(self: Any, name: str, *_: object) -> NoReturn:
    message = f"cannot assign to field {name!r}: a {type(self).__name__} never changes"
    raise dataclasses.FrozenInstanceError(message)


FROZEN = {
    "__deepcopy__": _itself, "__reduce__": _reduced,
    "__setattr__": _refuse_change, "__delattr__": _refuse_change,
}  # fmt: skip


def _postpone(made: type, plain: type, options: dict[str, Any]) -> None:
    """Give a class an `__init__` that writes the methods and gives way to the real one."""

    def complete() -> None:
        with _COMPLETING:
            if vars(made).get("__init__") is not begin:
                return
            for base in made.__mro__[1:]:
                _completion(base)()
            if plain is made:
                del made.__init__  # type: ignore[misc]
            _write(made, plain, options)

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        complete()
        made.__init__(self, *args, **kwargs)  # type: ignore[misc]

    begin.complete = complete  # type: ignore[attr-defined]
    made.__init__ = begin  # type: ignore[misc]


def complete(record: type) -> None:
    """Write the methods of a record now, for one who wants to look at them."""
    _completion(record)()


def _completion(base: type) -> Callable[[], None]:
    waiting: Callable[[], None] = getattr(vars(base).get("__init__"), "complete", lambda: None)
    return waiting


def _write(made: type, plain: type, options: dict[str, Any]) -> None:
    before = dict(vars(plain))
    dataclasses.dataclass(**options)(plain)
    if plain is made:
        return
    # The standard `__setattr__` knows the class without slots only.
    left_out = {*inspect.get_annotations(plain), "__setattr__", "__delattr__"}
    for name, value in vars(plain).items():
        if name not in left_out and before.get(name, made) is not value:
            setattr(made, name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _postponed
