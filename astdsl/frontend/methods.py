"""What Python calls by itself in a user's class, rewritten as if it were called by name.

These hooks take part where a trace failed without them. Each looks for the method that Python
would call; one that is not the user's own text (a generator, a dataclass's `__eq__`) stays plain
Python, and so does everything else.

Invariant: which method runs, on what and in which order is Python's data model.
"""

from __future__ import annotations

import builtins
import itertools
import operator
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from astdsl.errors import NotConstant
from astdsl.frontend import attributes, calls, hooks
from astdsl.frontend.attributes import found_in, own_method
from astdsl.frontend.reads import is_kernel_value
from astdsl.frontend.session import Session
from astdsl.lang import branching
from astdsl.lang.foreign import MIRRORED
from astdsl.lang.tracing import fault

Method = Callable[..., Any]
# Builtins that ask one method of their argument.
ASKING: dict[Any, str] = {
    **calls.ASKED, builtins.iter: "__iter__", builtins.next: "__next__",
    builtins.reversed: "__reversed__",
}  # fmt: skip
# Builtins that run through their first argument; these two through their only one.
RUNNING = frozenset({all, any, enumerate, frozenset, list, set, sorted, sum, tuple, zip})
RUNNING_ONE = frozenset({max, min})
ASKING_TWO: dict[Any, str] = {builtins.divmod: "divmod", builtins.pow: "pow"}


def _operator(name: str) -> Method:
    found: Method = getattr(operator, f"{name}_" if name in ("and", "or") else name)
    return found


def binary(session: Session, name: str, left: Any, right: Any) -> Any:
    """`left + right`."""
    python = divmod if name == "divmod" else _operator(name)
    return _answered(session, (f"__{name}__", f"__r{name}__"), left, right, python)


def compare(session: Session, name: str, left: Any, right: Any) -> Any:
    """`left < right`."""
    asked = f"__{name}__"
    is_plain = found_in(type(left), "__ne__") is object.__ne__
    if name == "ne" and is_plain and own_method(session, type(left), "__eq__"):
        # Python's own `!=` asks `==`.
        return not_(session, compare(session, "eq", left, right))
    return _answered(session, (asked, MIRRORED[asked]), left, right, _operator(name))


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
    ours = own_method(session, kinds[0], names[0])
    # Of two values of one class an operator asks the left one only, a comparison both.
    asks_both = kinds[0] is not kinds[1] or names[0] in MIRRORED
    others = own_method(session, kinds[1], names[1]) if asks_both else None
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
    if names[0] in MIRRORED:
        return is_subclass
    return is_subclass and found_in(kinds[1], names[1]) is not found_in(kinds[0], names[1])


def inplace(session: Session, name: str, left: Any, right: Any) -> Any:
    """Return what `left += right` leaves in the name."""
    method = own_method(session, type(left), f"__i{name}__")
    answer = method(left, right) if method is not None else NotImplemented
    if answer is not NotImplemented:
        return answer
    if method is not None or found_in(type(left), f"__i{name}__") is None:
        return binary(session, name, left, right)
    return getattr(operator, f"i{name}")(left, right)


def unary(session: Session, name: str, value: Any) -> Any:
    """`-value`."""
    method = own_method(session, type(value), f"__{name}__")
    return method(value) if method is not None else _operator(name)(value)


def owner(session: Session, value: Any, name: str) -> Any:
    """Return what to take the attribute `name` of `value` from."""
    return attributes.Owner(session, value) if attributes.has_text(value, name) else value


class _Indexed:
    """An object whose elements are asked for, by the text of its methods."""

    __slots__ = ("_session", "_value")

    def __init__(self, session: Session, value: Any) -> None:
        self._session = session
        self._value = value

    def _do(self, name: str, *arguments: Any) -> Any:
        method = own_method(self._session, type(self._value), f"__{name}__")
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
    has_text = any(own_method(session, type(value), name) for name in names)
    return _Indexed(session, value) if has_text else value


def iterated(session: Session, value: Any) -> Any:
    """Return what a `for` over `value` runs through."""
    method = own_method(session, type(value), "__iter__")
    if method is not None:
        return method(value)
    by_index = own_method(session, type(value), "__getitem__")
    is_sequence = by_index is not None and found_in(type(value), "__iter__") is None
    return _counted(by_index, value) if is_sequence and by_index is not None else value


def _counted(by_index: Method, value: Any) -> Iterator[Any]:
    """Yield the elements of an object that has no `__iter__`, by their numbers, as Python does."""
    for number in itertools.count():
        try:
            element = by_index(value, number)
        except IndexError:
            return
        yield element


def truth(session: Session, value: Any) -> Any:
    """Return the bool that Python asks a value for; it may be a kernel value."""
    method = own_method(session, type(value), "__bool__")
    if method is not None:
        return method(value)
    method = own_method(session, type(value), "__len__")
    if method is not None and found_in(type(value), "__bool__") is None:
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
        method = own_method(self._session, kind, name) or getattr(kind, name)
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
    if has_both and any(own_method(session, kind, name) for name in names):
        context = _Context(session, context)
    hooks.with_(session, context, body)


def call(session: Session, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call `function`: of a builtin that asks a method, that method."""
    is_builtin = getattr(function, "__module__", None) == "builtins" and not kwargs
    if is_builtin and function in ASKING and len(args) == 1:
        function = own_method(session, type(args[0]), ASKING[function]) or function
    elif is_builtin and args and function in (RUNNING if args[1:] else RUNNING | RUNNING_ONE):
        args = (iterated(session, args[0]), *args[1:])
    elif is_builtin and function in attributes.BY_NAME and len(args) > 1:
        args = (owner(session, args[0], args[1]), *args[1:])
    elif is_builtin and function is bool and len(args) == 1:
        args = (truth(session, args[0]),)
    elif is_builtin and function in ASKING_TWO and len(args) == 2:
        return binary(session, ASKING_TWO[function], *args)
    return calls.call(session, function, *args, **kwargs)


def in_(session: Session, value: Any, container: Any) -> Any:
    """`value in container`."""
    kind = type(container)
    method = own_method(session, kind, "__contains__")
    if method is not None:
        return truth(session, method(container, value))
    is_plain = found_in(kind, "__contains__") is not None
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
