"""The edge of the package, where errors leave it: tracebacks end at the user's own lines.

Invariant: a mistake of the user shows no frame of ours; a fault of ours keeps them all.
"""

from __future__ import annotations

import sys
from types import TracebackType

from astdsl.errors import KernelError
from astdsl.source import Span

# The frames of this package's modules are ours; its library of kernels is written as users write.
PACKAGE, KERNELS = "astdsl", "astdsl.stdlib"
LIBRARIES = frozenset({*sys.stdlib_module_names, "numpy", "ml_dtypes"})
# Hooks do for the user what Python would: iterate, compare, ask for truth and attributes.
HOOKS = frozenset(f"astdsl.frontend.{name}" for name in ("attributes", "hooks", "methods"))
# Where the front end calls what the user's text calls: a failure there is the callee's own.
PLAIN_CALL = ("astdsl.frontend.calls", "plainly")


class Boundary:
    """Trims the traceback of what is raised inside the `with`; `name` is the kernel's.

    Of a `KernelError` nothing remains but the report. An exception raised by the user's own Python
    keeps the user's frames, and a note says which kernel line was being traced.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        """Nothing is needed before."""

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, KernelError):
            # What is set here is what Python goes on raising.
            error.__traceback__ = None
            error.__suppress_context__ = True
            return
        frames = _frames(trace)
        users = [frame for frame in frames[1:] if not _is_ours(frame)]
        if users and _is_the_users_failure(frames):
            error.__traceback__ = _chain(users)
            error.add_note(f"in kernel `{self._name}`, {_place(users[0])}")


def _frames(trace: TracebackType | None) -> list[TracebackType]:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return frames


def _is_the_users_failure(frames: list[TracebackType]) -> bool:
    """Whether the innermost frame that is no library's is the user's, or stands for the user."""
    for frame in reversed(frames):
        if _is_ours(frame):
            here = (_module(frame), frame.tb_frame.f_code.co_name)
            return here == PLAIN_CALL or here[0] in HOOKS
        if _module(frame).partition(".")[0] not in LIBRARIES:
            return True
    return False


def _is_ours(frame: TracebackType) -> bool:
    # Told by module: rewritten functions have the user's globals, and folders are mapped.
    module = _module(frame)
    return module.partition(".")[0] == PACKAGE and not module.startswith(KERNELS)


def _module(frame: TracebackType) -> str:
    return str(frame.tb_frame.f_globals.get("__name__", ""))


def _chain(frames: list[TracebackType]) -> TracebackType | None:
    chained: TracebackType | None = None
    for frame in reversed(frames):
        chained = TracebackType(chained, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return chained


def _place(frame: TracebackType) -> str:
    return str(Span(frame.tb_frame.f_code.co_filename, frame.tb_lineno, 0, frame.tb_lineno, 0))
