"""Attributes of a user's objects, by the text of what Python asks for them.

That is properties and other descriptors, `super()`, `__getattr__` and its like.

Invariant: what answers, and in which order, is Python's data model; what is not the user's text is
left to Python.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FunctionType
from typing import Any

from astdsl.errors import KernelError, SourceUnavailable
from astdsl.frontend.library import is_library
from astdsl.frontend.session import Session
from astdsl.lang.leaves import dictionary_of

Method = Callable[..., Any]
SUSPENDS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
# What a class says of all of its attributes.
OF_ALL = ("__getattr__", "__getattribute__", "__setattr__", "__delattr__")
OF_ONE = ("__get__", "__set__", "__delete__")
PROPERTIES = (property, functools.cached_property)
# Builtins that take an attribute by its name.
BY_NAME = frozenset({builtins.delattr, builtins.getattr, builtins.hasattr, builtins.setattr})


def found_in(kind: type, name: str) -> Any:
    """Return what a class has by a name, as it stands there; None if it has none."""
    return next((base.__dict__[name] for base in kind.__mro__ if name in base.__dict__), None)


def own_method(session: Session, kind: type, name: str) -> Method | None:
    """Return a method of a user's class, rewritten; None if it has none that is text."""
    return rewritten_text(session, found_in(kind, name))


def rewritten_text(session: Session, function: Any) -> Method | None:
    """Return a function rewritten, None if it is not the user's text or suspends."""
    if not _is_text(function) or function.__code__.co_flags & SUSPENDS:
        return None
    try:
        return session.rewritten(function)
    except SourceUnavailable:  # what a library wrote for the class
        return None


def _is_text(function: Any) -> bool:
    return type(function) is FunctionType and not is_library(function)


def has_text(value: object, name: object) -> bool:
    """Whether a user's text may answer for the attribute `name` of a value."""
    kind = type(value)
    if kind is super:
        return True
    found = found_in(kind, name) if isinstance(name, str) else None
    return (
        type(found) in PROPERTIES
        or any(_is_text(found_in(kind, each)) for each in OF_ALL)
        or (found is not None and any(_is_text(found_in(type(found), each)) for each in OF_ONE))
    )


class Owner:
    """An object of which one attribute is read, assigned or deleted, by the texts that answer."""

    __slots__ = ("parts",)

    def __init__(self, session: Session, value: Any) -> None:
        object.__setattr__(self, "parts", (session, value))

    def __getattribute__(self, name: str) -> Any:
        session, value = object.__getattribute__(self, "parts")
        return _read(session, value, name)

    def __setattr__(self, name: str, given: object) -> None:
        session, value = object.__getattribute__(self, "parts")
        of_all = own_method(session, type(value), "__setattr__")
        if of_all is not None:
            of_all(value, name, given)
        elif not _changed(session, value, name, ("fset", "__set__"), given):
            setattr(value, name, given)

    def __delattr__(self, name: str) -> None:
        session, value = object.__getattribute__(self, "parts")
        of_all = own_method(session, type(value), "__delattr__")
        if of_all is not None:
            of_all(value, name)
        elif not _changed(session, value, name, ("fdel", "__delete__")):
            delattr(value, name)


def _read(session: Session, value: Any, name: str) -> Any:
    """Return `value.name`."""
    kind = type(value)
    if kind is super:
        later = value.__self_class__.__mro__
        after = later[later.index(value.__thisclass__) + 1 :]
        spaces = (base.__dict__ for base in after)
        found = next((space[name] for space in spaces if name in space), None)
        plain = functools.partial(getattr, value, name)
        return _described(session, found, value.__self__, name, plain)
    of_all = own_method(session, kind, "__getattribute__")
    missing = own_method(session, kind, "__getattr__")
    # Python's own way, without `__getattr__` where that is text.
    ask: Any = getattr if missing is None or of_all is not None else kind.__getattribute__
    plain = functools.partial(ask, value, name)
    try:
        if of_all is not None:
            return of_all(value, name)
        return _described(session, found_in(kind, name), value, name, plain)
    except AttributeError as error:
        if missing is None or isinstance(error, KernelError):
            raise
    return missing(value, name)


def _described(
    session: Session, found: Any, value: Any, name: str, plain: Callable[[], Any]
) -> Any:
    """Return what a descriptor of a class gives for an object of it, else what Python does."""
    held = dictionary_of(value)
    changes = any(found_in(type(found), each) is not None for each in OF_ONE[1:])
    if isinstance(value, type) or (name in held and not changes and type(found) is not property):
        return plain()
    if type(found) is property:
        method = rewritten_text(session, found.fget)
        return method(value) if method is not None else plain()
    if type(found) is functools.cached_property:
        method = rewritten_text(session, found.func)
        if method is None:
            return plain()
        held[name] = method(value)
        return held[name]
    method = own_method(session, type(found), "__get__")
    return method(found, value, type(value)) if method is not None else plain()


def _changed(
    session: Session, value: Any, name: str, asked: tuple[str, str], *given: object
) -> bool:
    """Whether the text of a property or of another descriptor did what was asked of it."""
    found = found_in(type(value), name)
    if type(found) is property:
        method = rewritten_text(session, getattr(found, asked[0]))
        arguments: tuple[object, ...] = (value, *given)
    else:
        method = own_method(session, type(found), asked[1])
        arguments = (found, value, *given)
    if method is not None:
        method(*arguments)
    return method is not None
