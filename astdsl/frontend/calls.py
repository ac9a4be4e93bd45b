"""Calling from a kernel: helpers are rewritten, builtins take kernel values, libraries do not.

Invariant: without a kernel value among arguments, defaults or closure, a call is Python's call.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from astdsl.errors import UnsupportedFeature, UnsupportedSyntax
from astdsl.frontend.library import is_library, module_of
from astdsl.frontend.session import Session
from astdsl.ir.dtypes import boolean, f32, i32
from astdsl.lang.arith import maximum, minimum
from astdsl.lang.elementwise import cast
from astdsl.lang.leaves import children
from astdsl.lang.loops import kernel_range
from astdsl.lang.names import require_usable
from astdsl.lang.tracing import fault
from astdsl.lang.values import Tile, refuse_library_function

# How deep kernel values are looked for in containers and objects.
DEPTH = 6
MATH = frozenset({"math", "cmath", "numpy", "statistics"})


def call(session: Session, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call `function` from the kernel's text."""
    for value in (function, *args):
        require_usable(value)
    kernel = any(holds_kernel_value(x) for x in (*args, *kwargs.values()))
    meaning = BUILTINS.get(function) if _is_hashed(function) else None
    if meaning is not None and (kernel or function in ALWAYS):
        return meaning(*args, **kwargs)
    if kernel and module_of(function).partition(".")[0] in MATH:
        name = getattr(function, "__name__", "function")
        library = "np" if module_of(function).startswith("numpy") else module_of(function)
        refuse_library_function(f"{library}.{name}", name)
    return plainly(rewritten(session, function, kernel), args, kwargs)


def plainly(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call as Python does; a traceback that ends in this frame is the callee's own failure."""
    return function(*args, **kwargs)


def _is_hashed(function: object) -> bool:
    return isinstance(function, type | BuiltinFunctionType)


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
    attributes = () if is_library(kind) else getattr(value, "__dict__", {}).values()
    return any(holds_kernel_value(part, depth - 1) for part in attributes)


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
    handler = CALLEES.get(type(function), _object)
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


def _class(session: Session, kind: type, kernel: bool) -> Any:
    """A class whose `__init__` is Python text gets it rewritten for this call."""
    del session, kernel
    return kind


def _object(session: Session, value: Any, kernel: bool) -> Any:
    """An object with a `__call__` of the user's."""
    kind = type(value)
    if kind.__module__ == "astdsl.kernel":
        raise fault(
            UnsupportedFeature,
            f"the kernel `{getattr(value, '__name__', '?')}` is called in a kernel, which this "
            "version does not inline",
            help="write the shared part as a plain function: it is rewritten where it is called",
        )
    method = kind.__dict__.get("__call__")
    if type(method) is not FunctionType or is_library(kind):
        return value
    return MethodType(rewritten(session, method, kernel or holds_kernel_value(value)), value)


CALLEES: dict[type, Callable[[Session, Any, bool], Any]] = {
    FunctionType: _function,
    MethodType: _method,
    functools.partial: _partial,
    type: _class,
}


def _extreme(
    pick: Callable[[Any, Any], Any], reduction: str, plain: Callable[..., Any]
) -> Callable[..., Any]:
    def meaning(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], Tile):
            return getattr(args[0], reduction)(**kwargs)
        if kwargs:
            raise fault(
                UnsupportedSyntax,
                f"`{reduction}` of kernel values takes no {', '.join(kwargs)}",
                help="compare in the kernel: `where(condition, x, y)` chooses",
            )
        items = list(args[0]) if len(args) == 1 else list(args)
        return functools.reduce(pick, items) if items else plain(items)

    return meaning


def _sum(items: Any, /, *args: Any, **kwargs: Any) -> Any:
    return items.sum(*args, **kwargs) if isinstance(items, Tile) else sum(items, *args, **kwargs)


def _any(items: Any, /, **kwargs: Any) -> Any:
    return items.any(**kwargs) if isinstance(items, Tile) else _fold(items, lambda x, y: x | y)


def _all(items: Any, /, **kwargs: Any) -> Any:
    return items.all(**kwargs) if isinstance(items, Tile) else _fold(items, lambda x, y: x & y)


def _fold(items: Iterable[Any], combine: Callable[[Any, Any], Any]) -> Any:
    return functools.reduce(combine, [x != 0 if isinstance(x, Tile) else bool(x) for x in items])


def _converter(kind: type, wanted: Any) -> Callable[..., Any]:
    def meaning(*args: Any) -> Any:
        if len(args) != 1 or not isinstance(args[0], Tile):
            return kind(*args)
        tile = args[0]
        is_already = tile.weak and tile.dtype.is_integer and kind is int
        return tile if is_already else cast(tile, wanted, f"`{kind.__name__}`")

    return meaning


def _print(*values: Any, **options: Any) -> None:
    del values, options
    raise fault(
        UnsupportedFeature,
        "`print` of kernel values does not work in this version",
        help="store the value in an `Out` and print that; `print(x.shape)` prints while tracing",
    )


def _range(*numbers: Any) -> Any:
    return kernel_range(*numbers) if any(isinstance(n, Tile) for n in numbers) else range(*numbers)


def _own_frame(name: str) -> Callable[..., Any]:
    def meaning(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        raise fault(
            UnsupportedSyntax,
            f"`{name}()` is not supported in a kernel: the kernel's text was rewritten",
            help="name what is needed; `super(Class, self)` instead of `super()`",
        )

    return meaning


def _super(*args: Any) -> Any:
    return super(*args) if args else _own_frame("super")()


BUILTINS: dict[Any, Callable[..., Any]] = {
    builtins.all: _all,
    builtins.any: _any,
    builtins.bool: _converter(bool, boolean),
    builtins.float: _converter(float, f32),
    builtins.int: _converter(int, i32),
    builtins.max: _extreme(maximum, "max", max),
    builtins.min: _extreme(minimum, "min", min),
    builtins.print: _print,
    builtins.range: _range,
    builtins.sum: _sum,
    builtins.super: _super,
    builtins.locals: _own_frame("locals"),
    builtins.eval: _own_frame("eval"),
    builtins.exec: _own_frame("exec"),
}
# These look at the frame that calls them, which would be ours.
ALWAYS = frozenset({builtins.super, builtins.locals, builtins.eval, builtins.exec})
