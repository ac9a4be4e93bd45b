"""What Python calls by itself in a user's class, rewritten as if it were called by name.

These hooks take part where a trace failed without them. Each looks for the method that Python
would call; one that is not the user's own text (a generator, a dataclass's `__eq__`) stays plain
Python, and so does everything else.

Invariant: which method runs, on what and in which order is Python's data model.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable, Iterator
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FunctionType
from typing import Any

from astdsl.errors import NotConstant, SourceUnavailable
from astdsl.frontend import calls, hooks
from astdsl.frontend.library import is_library
from astdsl.frontend.reads import is_kernel_value
from astdsl.frontend.session import Session
from astdsl.lang import branching
from astdsl.lang.tracing import fault

Method = Callable[..., Any]
SUSPENDS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
# What the other operand answers to.
REFLECTED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
# Builtins that ask one method of their argument.
ASKING: dict[Any, str] = {
    **calls.ASKED, builtins.iter: "__iter__", builtins.next: "__next__",
    builtins.reversed: "__reversed__",
}  # fmt: skip
ASKING_TWO: dict[Any, str] = {builtins.divmod: "divmod", builtins.pow: "pow"}


def _found(kind: type, name: str) -> Any:
    """Return what a class has by a name, as it stands there."""
    return next((base.__dict__[name] for base in kind.__mro__ if name in base.__dict__), None)


def _own(session: Session, kind: type, name: str) -> Method | None:
    """Return a method of a user's class, rewritten; None if it has none that is text."""
    return _rewritten(session, _found(kind, name))


def _rewritten(session: Session, function: Any) -> Method | None:
    is_text = type(function) is FunctionType and not function.__code__.co_flags & SUSPENDS
    if not is_text or is_library(function):
        return None
    try:
        return session.rewritten(function)
    except SourceUnavailable:  # what a library wrote for the class
        return None


def _operator(name: str) -> Method:
    found: Method = getattr(operator, f"{name}_" if name in ("and", "or") else name)
    return found


def binary(session: Session, name: str, left: Any, right: Any) -> Any:
    """`left + right`."""
    python = divmod if name == "divmod" else _operator(name)
    return _answered(session, (f"__{name}__", f"__r{name}__"), left, right, python)


def compare(session: Session, name: str, left: Any, right: Any) -> Any:
    """`left < right`."""
    names = (f"__{name}__", f"__{REFLECTED[name]}__")
    is_plain = _found(type(left), "__ne__") is object.__ne__
    if name == "ne" and is_plain and _own(session, type(left), "__eq__"):
        # Python's own `!=` asks `==`.
        return not_(session, compare(session, "eq", left, right))
    return _answered(session, names, left, right, _operator(name))


def _answered(
    session: Session, names: tuple[str, str], left: Any, right: Any, python: Method
) -> Any:
    """Return what the first method answers that does not decline, else what Python says."""
    for method, one, other in _asked(session, names, left, right):
        answer = method(one, other)
        if answer is not NotImplemented:
            return answer
    return python(left, right)


def _asked(
    session: Session, names: tuple[str, str], left: Any, right: Any
) -> Iterator[tuple[Method, Any, Any]]:
    """Yield the methods of the users' classes, in Python's order."""
    kinds = type(left), type(right)
    ours = _own(session, kinds[0], names[0])
    # Of two values of one class an operator asks the left one only, a comparison both.
    asks_both = kinds[0] is not kinds[1] or names[0][2:-2] in REFLECTED
    others = _own(session, kinds[1], names[1]) if asks_both else None
    is_first = others is not None and _goes_before(kinds, names)
    if is_first and others is not None:
        yield others, right, left
    native = getattr(kinds[0], names[0], None)
    if ours is not None:
        yield ours, left, right
    elif others is not None and native is not None and not is_kernel_value(left):
        yield native, left, right
    if others is not None and not is_first:
        yield others, right, left


def _goes_before(kinds: tuple[type, type], names: tuple[str, str]) -> bool:
    """Whether Python asks the right operand first: one of a subclass that says it anew."""
    is_subclass = kinds[0] is not kinds[1] and issubclass(kinds[1], kinds[0])
    if names[0][2:-2] in REFLECTED:
        return is_subclass
    return is_subclass and _found(kinds[1], names[1]) is not _found(kinds[0], names[1])


def inplace(session: Session, name: str, left: Any, right: Any) -> Any:
    """Return what `left += right` leaves in the name."""
    method = _own(session, type(left), f"__i{name}__")
    answer = method(left, right) if method is not None else NotImplemented
    if answer is not NotImplemented:
        return answer
    if method is not None or _found(type(left), f"__i{name}__") is None:
        return binary(session, name, left, right)
    return getattr(operator, f"i{name}")(left, right)


def unary(session: Session, name: str, value: Any) -> Any:
    """`-value`."""
    method = _own(session, type(value), f"__{name}__")
    return method(value) if method is not None else _operator(name)(value)


class _Property:
    """An object of which one attribute is asked for, by the text of its property."""

    __slots__ = ("parts",)

    def __init__(self, session: Session, owner: Any, found: Any) -> None:
        object.__setattr__(self, "parts", (session, owner, found))

    def __getattribute__(self, name: str) -> Any:
        session, owner, found = object.__getattribute__(self, "parts")
        if type(found) is property:
            method = _rewritten(session, found.fget)
            return method(owner) if method is not None else getattr(owner, name)
        method = _rewritten(session, found.func)
        if method is None or name in owner.__dict__:
            return getattr(owner, name)
        owner.__dict__[name] = value = method(owner)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        session, owner, found = object.__getattribute__(self, "parts")
        method = _rewritten(session, getattr(found, "fset", None))
        if method is not None:
            method(owner, value)
        else:
            setattr(owner, name, value)

    def __delattr__(self, name: str) -> None:
        session, owner, found = object.__getattribute__(self, "parts")
        method = _rewritten(session, getattr(found, "fdel", None))
        if method is not None:
            method(owner)
        else:
            delattr(owner, name)


def owner(session: Session, value: Any, name: str) -> Any:
    """Return what to take the attribute `name` of `value` from."""
    found = _found(type(value), name)
    return _Property(session, value, found) if type(found) in PROPERTIES else value


PROPERTIES = (property, functools.cached_property)


class _Indexed:
    """An object whose elements are asked for, by the text of its methods."""

    __slots__ = ("_session", "_value")

    def __init__(self, session: Session, value: Any) -> None:
        self._session = session
        self._value = value

    def _do(self, name: str, *arguments: Any) -> Any:
        method = _own(self._session, type(self._value), f"__{name}__")
        return (method or getattr(operator, name))(self._value, *arguments)

    def __getitem__(self, key: object) -> Any:
        return self._do("getitem", key)

    def __setitem__(self, key: object, value: object) -> None:
        self._do("setitem", key, value)

    def __delitem__(self, key: object) -> None:
        self._do("delitem", key)


def indexed(session: Session, value: Any) -> Any:
    """Return what to take an element of `value` from."""
    names = ("__getitem__", "__setitem__", "__delitem__")
    has_text = any(_own(session, type(value), name) for name in names)
    return _Indexed(session, value) if has_text else value


def iterated(session: Session, value: Any) -> Any:
    """Return what a `for` over `value` runs through."""
    method = _own(session, type(value), "__iter__")
    return method(value) if method is not None else value


def truth(session: Session, value: Any) -> Any:
    """Return the bool that Python asks a value for; it may be a kernel value."""
    method = _own(session, type(value), "__bool__")
    if method is not None:
        return method(value)
    method = _own(session, type(value), "__len__")
    if method is not None and _found(type(value), "__bool__") is None:
        return method(value) != 0
    return value


def operand(session: Session, value: Any) -> Any:
    """Return an operand of `and` or `or`, which gives one of them: Python must know which."""
    known = truth(session, value)
    if hooks.is_kernel(known) and not hooks.is_kernel(value):
        raise fault(
            NotConstant,
            f"whether this {type(value).__name__} is true is known only when the kernel runs, and "
            "`and` and `or` give one of their operands",
            (known.value, "its truth comes from here"),
            help="`bool(x) and y` is a condition; `if x:` takes the object itself",
        )
    return value


class _Context:
    """A context manager by the text of its methods."""

    def __init__(self, session: Session, value: Any) -> None:
        self._session = session
        self._value = value

    def _do(self, name: str, *arguments: Any) -> Any:
        kind = type(self._value)
        method = _own(self._session, kind, name) or getattr(kind, name)
        return method(self._value, *arguments)

    def __enter__(self) -> Any:
        """Enter the user's."""
        return self._do("__enter__")

    def __exit__(self, *error: object) -> Any:
        """Leave the user's."""
        return self._do("__exit__", *error)


def with_(session: Session, context: Any, body: FunctionType) -> None:
    """`with context as value: body(value)`."""
    kind = type(context)
    has_both = hasattr(kind, "__enter__") and hasattr(kind, "__exit__")
    names = ("__enter__", "__exit__")
    if has_both and any(_own(session, kind, name) for name in names):
        context = _Context(session, context)
    hooks.with_(session, context, body)


def call(session: Session, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call `function`: of a builtin that asks a method, that method."""
    is_builtin = getattr(function, "__module__", None) == "builtins" and not kwargs
    if is_builtin and function in ASKING and len(args) == 1:
        function = _own(session, type(args[0]), ASKING[function]) or function
    elif is_builtin and function is bool and len(args) == 1:
        args = (truth(session, args[0]),)
    elif is_builtin and function in ASKING_TWO and len(args) == 2:
        return binary(session, ASKING_TWO[function], *args)
    return calls.call(session, function, *args, **kwargs)


def in_(session: Session, value: Any, container: Any) -> Any:
    """`value in container`."""
    kind = type(container)
    method = _own(session, kind, "__contains__")
    if method is not None:
        return truth(session, method(container, value))
    is_plain = _found(kind, "__contains__") is not None
    return hooks.in_(session, value, container if is_plain else _elements(session, container))


def _elements(session: Session, container: Any) -> Any:
    made = iterated(session, container)
    return container if made is container else list(made)


def not_(session: Session, value: Any) -> Any:
    """`not value`."""
    known = truth(session, value)
    return branching.negated(known) if hooks.is_kernel(known) else not known


def _of_truth(hook: Method) -> Method:
    """Return a hook that is given the truth of what decides."""
    return lambda session, value, *others: hook(session, truth(session, value), *others)


def _of_operand(hook: Method) -> Method:
    return lambda session, value, *others: hook(session, operand(session, value), *others)


def _of_items(hook: Method) -> Method:
    return lambda session, value, *others: hook(session, iterated(session, value), *others)


HOOKS: dict[str, Method] = {
    **hooks.HOOKS,
    "__assert__": _of_truth(hooks.assert_),
    "__binary__": binary,
    "__call__": call,
    "__choose__": _of_truth(hooks.choose),
    "__compare__": compare,
    "__for__": _of_items(hooks.for_),
    "__goes_on__": _of_operand(hooks.goes_on),
    "__if__": _of_truth(hooks.if_),
    "__in__": in_,
    "__indexed__": indexed,
    "__inplace__": inplace,
    "__iterated__": iterated,
    "__not__": not_,
    "__owner__": owner,
    "__stays_open__": _of_operand(hooks.stays_open),
    "__truth__": truth,
    "__unary__": unary,
    "__with__": with_,
}
