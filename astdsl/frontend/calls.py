"""Calling from a kernel: helpers are rewritten, builtins take kernel values, libraries do not.

Invariant: without a kernel value among arguments, defaults or closure, a call is Python's call.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import traceback
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType
from typing import Any

from astdsl.errors import TypeMismatch, UnsupportedSyntax
from astdsl.frontend.inline import inlined
from astdsl.frontend.library import is_library, module_of
from astdsl.frontend.session import Session
from astdsl.ir.dtypes import DType
from astdsl.lang.arith import astype
from astdsl.lang.builtins import MEANINGS
from astdsl.lang.leaves import children
from astdsl.lang.mutation import attributes
from astdsl.lang.names import require_usable
from astdsl.lang.tracing import fault
from astdsl.lang.values import METHODS, refuse_library_function

# How deep kernel values are looked for in containers and objects.
DEPTH = 6
OURS = "astdsl"
# What may be given to a function of ours to be called; classes are dtypes there.
FUNCTIONS = frozenset({BuiltinFunctionType, FunctionType, MethodType, functools.partial})
# Where a call of ours fails whose arguments do not fit: at the call itself, or in what a builtin
# means.
BINDS = frozenset({__name__, "astdsl.lang.builtins"})
# Builtins that run through what they are given, and what of it hides its values until then.
RUNNERS = frozenset({all, any, max, min, sum})
RUN = frozenset({
    GeneratorType, enumerate, filter, frozenset, map, reversed, set, zip, type({}.items()),
    type({}.keys()), type({}.values()),
})  # fmt: skip
# The methods that answer a builtin.
ASKED: dict[Any, str] = {
    builtins.abs: "__abs__", builtins.float: "__float__", builtins.int: "__int__",
    builtins.len: "__len__", builtins.round: "__round__",
}  # fmt: skip
MATH = frozenset({"math", "cmath", "numpy", "statistics"})


def call(session: Session, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call `function` from the kernel's text."""
    for value in (function, *args, *kwargs.values()):
        require_usable(value)
    if type(function) in (type, BuiltinFunctionType) and function in MEANINGS:
        # What these give is seen only by running them, which the builtin does anyway.
        runs = RUN if function in RUNNERS else (GeneratorType,)
        args = tuple(list(x) if type(x) in runs else x for x in args)
        function = method_asked(function, args) or function
    if type(function) is DType:
        if len(args) != 1 or kwargs:
            raise fault(
                TypeMismatch,
                f"`{function}(x)` converts one value, got {len(args) + len(kwargs)}",
                help=f"`zeros(shape, {function})` makes a tile, `x.astype({function})` is another",
            )
        # As in NumPy, a dtype converts what it is called with.
        function = functools.partial(astype, dtype=function)
    if not callable(function) and type(function).__module__.startswith(f"{OURS}."):
        raise fault(
            TypeMismatch,
            f"`{function!r}` is called, and is no function",
            help="brackets index: `x[0]`, `ref[tile(i, 8)]`",
        )
    kernel = any(holds_kernel_value(x) for x in (*args, *kwargs.values()))
    if kernel and module_of(function).partition(".")[0] in MATH:
        name = getattr(function, "__name__", "function")
        library = "np" if module_of(function).startswith("numpy") else module_of(function)
        refuse_library_function(f"{library}.{name}", name, *args)
    callee = rewritten(session, function, kernel)
    if module_of(callee).startswith(f"{OURS}.lang"):
        # Functions that ours call (of `scan`, say) are kernel text like the rest.
        args = tuple(rewritten(session, x, True) if type(x) in FUNCTIONS else x for x in args)
        kwargs = {
            n: rewritten(session, x, True) if type(x) in FUNCTIONS else x for n, x in kwargs.items()
        }
    try:
        return plainly(callee, args, kwargs)
    except TypeError as error:
        require_arguments_taken(function, callee, error)
        raise


def method_asked(function: Any, args: tuple[Any, ...]) -> FunctionType | None:
    """Return the method of a user's class that a builtin asks for its value, None if none."""
    kind = type(args[0]) if args else None
    return users_method(kind, ASKED[function]) if kind is not None and function in ASKED else None


def users_method(kind: type, name: str) -> FunctionType | None:
    """Return the method that a class has by a name if it is text of the user's, else None."""
    found = getattr(kind, name, None)
    return found if type(found) is FunctionType and not is_library(found) else None


def plainly(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call as Python does; a traceback that ends in this frame is the callee's own failure."""
    return function(*args, **kwargs)


def require_arguments_taken(function: Any, callee: Any, error: TypeError) -> None:
    """Turn Python's complaint about the arguments of a function of ours into a located error.

    Errors: TypeMismatch. What a function of the user's does not take stays Python's error.
    """
    places = list(traceback.walk_tb(error.__traceback__))
    module = places[-1][0].f_globals.get("__name__")
    if not module_of(callee).startswith(f"{OURS}.lang") or module not in BINDS:
        return
    name = getattr(function, "__name__", "function").strip("_")
    shown = METHODS.get(name, function) if module_of(function) == "builtins" else function
    # From Python 3.13 on it may add a guess; the signature tells as much.
    words = str(error).partition(". Did you mean")[0]
    said = words.partition("() ")[2].replace("missing", "is missing") or f"says: {words}"
    raise fault(
        TypeMismatch,
        f"`{name}` {said}",
        help=f"it is `{name}{_signature(shown)}`",
    ) from None


def _signature(function: Any) -> str:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function of C without a text of its signature
        return "(...)"
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))


def holds_kernel_value(value: object, depth: int = DEPTH) -> bool:
    """Whether a value is of lang, or holds one that is: in containers, or as an attribute."""
    kind = type(value)
    if kind.__module__.startswith("astdsl.lang"):
        return True
    if depth == 0 or kind in (int, float, str, bool, type(None)):
        return False
    parts = children(value)
    if parts is not None:
        return any(holds_kernel_value(part, depth - 1) for _, part in parts)
    if kind is FunctionType:
        return _closes_over_kernel_value(value, depth)
    if kind is MethodType:
        return holds_kernel_value(value.__self__, depth - 1)  # type: ignore[attr-defined]
    if kind is functools.partial:
        return holds_kernel_value((value.args, value.keywords), depth - 1)  # type: ignore[attr-defined]
    return not is_library(kind) and any(
        holds_kernel_value(part, depth - 1) for _, part in attributes(value)
    )


def _closes_over_kernel_value(function: Any, depth: int) -> bool:
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    return any(holds_kernel_value(part, depth - 1) for part in held)


def rewritten(session: Session, function: Any, kernel: bool) -> Any:
    """Return what to call for `function`: itself, or a rewritten one."""
    is_class = isinstance(function, type) and type(function).__call__ is type.__call__
    handler = CALLEES.get(type(function), _class if is_class else _object)
    return handler(session, function, kernel)


def _function(session: Session, function: FunctionType, kernel: bool) -> Any:
    if function.__code__ in session.codes or is_library(function):
        return function
    if kernel or _closes_over_kernel_value(function, DEPTH):
        return session.rewritten(function)
    session.reads.function(function)
    return function


def _method(session: Session, method: MethodType, kernel: bool) -> Any:
    kernel = kernel or holds_kernel_value(method.__self__)
    return MethodType(rewritten(session, method.__func__, kernel), method.__self__)


def _partial(session: Session, function: functools.partial[Any], kernel: bool) -> Any:
    kernel = kernel or holds_kernel_value((function.args, function.keywords))
    inner = rewritten(session, function.func, kernel)
    return functools.partial(inner, *function.args, **function.keywords)


def _builtin(session: Session, function: Any, kernel: bool) -> Any:
    """Return a function of C, or what it means in a kernel."""
    del session
    meaning = OF_THE_CALLER.get(function) or (MEANINGS.get(function) if kernel else None)
    return meaning or function


def _class(session: Session, kind: Any, kernel: bool) -> Any:
    """Return a class, or what makes an instance by its `__new__` and `__init__` rewritten."""
    if kind.__module__ == "builtins":
        return _builtin(session, kind, kernel)
    new, init = users_method(kind, "__new__"), users_method(kind, "__init__")
    # What a library wrote for a class, as that of a dataclass, has no text.
    texts = [f for f in (new, init) if f and f.__code__.co_filename != "<string>"]
    if not kernel or not texts or (new is None and kind.__new__ is not object.__new__):
        return kind

    def construct(*args: Any, **kwargs: Any) -> Any:
        make = session.rewritten(new) if new in texts else kind.__new__
        instance = make(kind, *args, **kwargs) if new else make(kind)
        if type(instance) is kind or isinstance(instance, kind):
            start = session.rewritten(init) if init in texts else kind.__init__
            start(instance, *args, **kwargs)
        return instance

    return construct


def _object(session: Session, value: Any, kernel: bool) -> Any:
    """Return an object, or its `__call__` rewritten, if the user wrote it; a kernel is inlined."""
    kind = type(value)
    if kind.__module__ == "astdsl.kernel":
        return inlined(session, value)
    method = users_method(kind, "__call__")
    if method is None:
        return value
    return MethodType(rewritten(session, method, kernel or holds_kernel_value(value)), value)


CALLEES: dict[type, Callable[[Session, Any, bool], Any]] = {
    BuiltinFunctionType: _builtin,
    FunctionType: _function,
    MethodType: _method,
    functools.partial: _partial,
    type: _class,
}


def _own_frame(name: str) -> Callable[..., Any]:
    def meaning(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        raise fault(
            UnsupportedSyntax,
            f"`{name}()` is not supported in a kernel: the kernel's text was rewritten",
            help="name what is needed; `super(Class, self)` instead of `super()`",
        )

    return meaning


def _given(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the meaning of a builtin that looks at its caller only without arguments."""

    def meaning(*args: Any) -> Any:
        return function(*args) if args else _own_frame(function.__name__)()

    return meaning


# These look at the frame that calls them, which would be ours.
OF_THE_CALLER: dict[Any, Callable[..., Any]] = {
    builtins.dir: _given(dir),
    builtins.eval: _own_frame("eval"),  # noqa: S307  (refused, not called)
    builtins.exec: _own_frame("exec"),
    builtins.globals: _own_frame("globals"),
    builtins.locals: _own_frame("locals"),
    builtins.super: _given(super),
    builtins.vars: _given(vars),
}
