"""What Python does not do with an object of ours: its own complaint becomes a report.

An object that cannot be iterated over, called or compared, or has no such attribute, is told by the
`TypeError` or `AttributeError` that Python raises where the user's text stands.

Invariant: what the user's text raises itself, and what fails further down, stays what it is.
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType

from astdsl.errors import TypeMismatch
from astdsl.frontend.library import LIBRARIES
from astdsl.frontend.locate import Codes
from astdsl.source import Span

OURS = "astdsl"
# Whose objects a kernel's text may hold.
MAKERS = ("astdsl.lang.", "astdsl.kernel", "astdsl.ir.dtypes")
# Where the front end does for the user's text what Python would.
FOR_THE_USER = ("astdsl.frontend.", "astdsl.lang.builtins", "astdsl.records")
RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})
KEEPS_NOTHING = (
    "what the package makes keeps no attributes of yours: give the value a name of its own, or "
    "hold it in an object of yours"
)
IS_ASKED = (
    "what Python asks this method for is Python's own: call a method by its name, or choose by "
    "`where(condition, a, b)`"
)
IS_GIVEN = "it is for the functions of `astdsl` that take it: their documentation says which do"


class Misused(TypeMismatch):
    """Python's complaint about an object of ours."""


def misused(error: TypeError | AttributeError, codes: Codes) -> Exception:
    """Return the KernelError of a complaint of Python's about an object of ours, else the error."""
    frames = list(_frames(error.__traceback__))
    while frames and _stands_for_the_user(frames[-1]):
        frames.pop()
    if not frames or not _is_users(frames[-1], codes) or _raises(frames[-1]):
        return error
    kind = _kind_of(error, frames[-1].tb_frame)
    if kind is None:
        return error
    return Misused(
        f"Python refuses this use of an object of `{OURS}`: {error}",
        *_places(frames, codes),
        help=_way_out(error, kind),
    )


def _way_out(error: TypeError | AttributeError, kind: type) -> str:
    if isinstance(error, AttributeError):
        return KEEPS_NOTHING
    if "return" in str(error):
        return IS_ASKED
    return getattr(kind, "operand_help", "") or getattr(kind, "way_out", "") or IS_GIVEN


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _stands_for_the_user(frame: TracebackType) -> bool:
    """Whether a frame is of the front end, or of a library that the user's text called."""
    module = str(frame.tb_frame.f_globals.get("__name__", ""))
    first = module.partition(".")[0]
    return module.startswith(FOR_THE_USER) if first == OURS else first in LIBRARIES


def _is_users(frame: TracebackType, codes: Codes) -> bool:
    module = str(frame.tb_frame.f_globals.get("__name__", ""))
    return frame.tb_frame.f_code in codes or module.partition(".")[0] not in LIBRARIES


def _raises(frame: TracebackType) -> bool:
    """Whether a `raise` of the user's stands there, and not an operation of Python's."""
    code = frame.tb_frame.f_code.co_code
    return dis.opname[code[frame.tb_lasti]] in RAISES


def _kind_of(error: TypeError | AttributeError, frame: FrameType) -> type | None:
    """Return the class of ours that a complaint is about, None if it may be about none."""
    owner = getattr(error, "obj", None)
    if owner is not None:
        return next((kind for kind in _kinds() if kind is owner or kind is type(owner)), None)
    named = set(re.findall(r"[A-Za-z_]\w*", str(error)))
    held = map(type, [*frame.f_globals.values(), *frame.f_locals.values()])
    # A class of the user's may have the name of one of ours.
    theirs = {kind.__name__ for kind in held if not str(kind.__module__).startswith(MAKERS)}
    return next((kind for kind in _kinds() if kind.__name__ in named - theirs), None)


def _kinds() -> Iterator[type]:
    for name, module in [*sys.modules.items()]:
        if name.startswith(MAKERS):
            yield from (
                value
                for value in [*vars(module).values()]
                if isinstance(value, type) and value.__module__ == name
            )


def _places(frames: list[TracebackType], codes: Codes) -> Iterator[tuple[Span, str]]:
    last = frames[-1]
    if last.tb_frame.f_code not in codes:
        code = last.tb_frame.f_code
        span = codes.place(code, last.tb_lasti, last.tb_lineno)
        yield span, f"`{code.co_qualname}` is not rewritten"
    yield codes.reached(frames), ""
