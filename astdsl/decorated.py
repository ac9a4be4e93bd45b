"""What `@kernel` may be put on beside a function, and what to do instead where it may not.

Invariant: nothing is refused before the first call; where the decorator stood is noted for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from inspect import getattr_static
from itertools import islice
from types import FrameType, FunctionType
from typing import Any

from astdsl.errors import BadSignature
from astdsl.source import NOWHERE, Span

OURS = "astdsl"
BY_A_FUNCTION = "write a function around it: `def f(x: In[f32], o: Out[f32]): o[...] = ...`"
# What is said of an object by its class: what it is, and the way out.
OF_A_KERNEL = (
    "make a kernel of the function, and a partial of the kernel: "
    "`functools.partial(kernel(f), bm=64)`"
)
BY_A_METHOD = (
    "put `@kernel` before a method, `def __call__(self, x: In[...], o: Out[...])`, and call it on "
    "an object"
)
_PARTIAL = (
    lambda made: f"a `functools.{type(made).__name__}` of `{_name(made.func)}`",
    OF_A_KERNEL,
)
INSTEAD: dict[type, tuple[Callable[[Any], str], str]] = {
    type: (lambda kind: f"the class `{kind.__name__}`", BY_A_METHOD),
    functools.partial: _PARTIAL,
    functools.partialmethod: _PARTIAL,
    property: (
        lambda _: "a property",
        "a property takes no arrays: write a method, and put `@kernel` nearest to its `def`",
    ),
}


def refusal(function: Any, place: Span) -> BadSignature:
    """Return the error of what is no function: what it is, and what to do instead."""
    kind = next((k for k in type(function).__mro__ if k in INSTEAD), None)
    wrapped = getattr(function, "__wrapped__", None)
    own = (function, getattr_static(type(function), "__call__", None))
    made = next((x for x in own if type(x).__module__ == f"{OURS}.kernel"), None)
    places = [(place, "")] if place is not NOWHERE else []
    if kind is not None:
        said, way_out = INSTEAD[kind][0](function), INSTEAD[kind][1]
    elif made is not None:
        said = f"the kernel `{made.__name__}`"
        way_out = "one `@kernel` makes it one; `.on(...)` places it, `.lower(...)` compiles it"
    elif wrapped is not None:
        said = f"a {type(function).__name__} around `{_name(wrapped)}`"
        way_out = "put `@kernel` nearest to the `def`, below the other decorators"
    elif callable(function):
        said, way_out = f"`{_name(function)}`, which has no text in Python", BY_A_FUNCTION
    else:
        said, way_out = f"{function!r}", "put `@kernel` nearest to the `def`"
    return BadSignature(f"`@kernel` takes a Python function, got {said}", *places, help=way_out)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def call_of(function: Any) -> Any:
    """Return the method that a call of a user's object runs, bound to it; None if it has none."""
    kind = type(function)
    is_ours = kind.__module__.partition(".")[0] == OURS
    found = getattr_static(kind, "__call__", None)
    is_text = isinstance(found, FunctionType | classmethod | staticmethod)
    return found.__get__(function, kind) if is_text and not is_ours else None


def where_decorated() -> Span:
    """Return the place outside of this package that runs now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] != OURS:
            break
        frame = frame.f_back
    if frame is None:
        return NOWHERE
    code = frame.f_code
    line, end, column, end_column = next(islice(code.co_positions(), frame.f_lasti // 2, None))
    line, end = line or frame.f_lineno, end or frame.f_lineno
    return Span(code.co_filename, line, column or 0, end, end_column or 0)
