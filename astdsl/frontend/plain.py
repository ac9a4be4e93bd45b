"""Where a trace fails in code that runs as plain Python, below the kernel's own text.

Invariant: a user's function is plain if no call of the kernel's text reached it by name: Python or
a library called it, so none of its text was rewritten.
"""

from __future__ import annotations

from inspect import CO_GENERATOR
from types import TracebackType

from astdsl.errors import KernelError, NotConstant
from astdsl.frontend.library import LIBRARIES
from astdsl.frontend.locate import Codes
from astdsl.frontend.misuse import Misused
from astdsl.source import source_line

BY_NAME = (
    "no call of the kernel names this function, so it runs as plain Python: let a helper or a "
    "method that the kernel calls by its name do it, or choose by `where(condition, a, b)`"
)
GENERATOR = (
    "a generator runs as plain Python: return a list of the values, or choose by "
    "`where(condition, a, b)`"
)
WITHOUT_TEXT = (
    "`{}` has no text of its own, as that of a dataclass, and runs as plain Python: compare the "
    "attributes themselves"
)


def failed_in_plain_python(error: KernelError, codes: Codes) -> bool:
    """Whether a trace may do better if it rewrites what Python calls by itself.

    A method may have failed, or given Python a kernel value where it needs a value of its own.
    """
    return isinstance(error, Misused | NotConstant) or _plain(error, codes) is not None


def is_the_same(first: KernelError, second: KernelError) -> bool:
    """Whether a second trace failed as the first one did, in text that was rewritten for both."""
    lines = [[span.line for span, _ in error.places[:1]] for error in (first, second)]
    return (type(first), first.message, lines[0]) == (type(second), second.message, lines[1])


def tell_the_plain_place(error: KernelError, codes: Codes) -> bool:
    """Let an error begin at the line of the function that no rewriting reached, if there is one."""
    found = _plain(error, codes)
    if found is None:
        return False
    code = found.tb_frame.f_code
    span = codes.place(code, found.tb_lasti, found.tb_lineno)
    has_text = bool(source_line(span.file, span.line))
    if has_text:
        error.places = ((span, f"`{code.co_qualname}` is not rewritten"), *error.places)
    if isinstance(error, NotConstant):
        way_out = GENERATOR if code.co_flags & CO_GENERATOR else BY_NAME
        error.help = way_out if has_text else WITHOUT_TEXT.format(code.co_name)
    return True


def _plain(error: KernelError, codes: Codes) -> TracebackType | None:
    """Return the innermost place in a user's function that is not rewritten, None if none is."""
    found, trace = None, error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in codes:
            found = None
        elif str(frame.f_globals.get("__name__", "")).partition(".")[0] not in LIBRARIES:
            found = trace
        trace = trace.tb_next
    return found
