"""Names that a kernel's text misspells, or reads before it assigns them, and endless recursion.

Invariant: only what rewritten code itself does becomes a KernelError; an error from deeper down is
the user's own Python failing, and stays one.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from types import FrameType, TracebackType

from astdsl.errors import UnknownName, UnsupportedFeature, did_you_mean
from astdsl.frontend.locate import Codes
from astdsl.lang.missing import MISSING
from astdsl.source import Span

# More calls of one function than this are no nest of helpers that somebody wrote.
SURELY_ENDLESS = 10


def unknown_name(error: NameError, codes: Codes) -> Exception:
    """Return the KernelError of a name that the kernel's text has wrong, else the error itself."""
    frames = list(_frames(error.__traceback__))
    quoted = re.search(r"'([^']+)'", str(error))
    if not frames or quoted is None or frames[-1].tb_frame.f_code not in codes:
        return error
    name, frame = quoted[1], frames[-1].tb_frame
    known = _known(frame)
    span = codes.reached(frames)
    if name in _own_names(frame):
        return UnknownName(
            f"`{name}` is read before it is assigned",
            (span, ""),
            help=f"assign `{name}` before the block that reads it: a block is traced once for all "
            "of its steps",
        )
    if name in MISSING:
        return UnsupportedFeature(
            f"`{name}` is not in this version", (span, ""), help=MISSING[name]
        )
    return UnknownName(
        f"there is no name `{name}`",
        (span, ""),
        help=did_you_mean(name, known) or "import it, or define it before the kernel is called",
    )


# The rewriter names the function that a block becomes by what it is and a number.
_BLOCK_NAME = re.compile(r"__[a-z]+_\d+__")


def endless_recursion(error: RecursionError, codes: Codes, name: str, here: Span) -> Exception:
    """Return the KernelError of a helper that calls itself, or of a nest that is too deep.

    The error itself where the user's own Python ends in it.
    """
    frames = list(_frames(error.__traceback__))
    # The limit may be met in a block of the helper, which is a function of ours.
    own = [
        t
        for t in frames
        if t.tb_frame.f_code in codes and not _BLOCK_NAME.fullmatch(t.tb_frame.f_code.co_name)
    ]
    if own and sum(t.tb_frame.f_code is own[-1].tb_frame.f_code for t in own) > SURELY_ENDLESS:
        return _calls_itself(own[-1], codes)
    if all(t.tb_frame.f_code in codes or _is_a_compilers(t) for t in frames):
        return too_deep(name, here)
    return error


def _calls_itself(last: TracebackType, codes: Codes) -> UnsupportedFeature:
    name = last.tb_frame.f_code.co_name
    return UnsupportedFeature(
        f"`{name}` calls itself without end while the kernel is traced",
        (codes.place(last.tb_frame.f_code, last.tb_lasti, last.tb_lineno), "the last call"),
        help="what ends a recursion must be known to Python (a constant, a length): both branches "
        "of an `if` on a kernel value are traced; a `while` loop repeats in the kernel",
    )


def _is_a_compilers(traceback: TracebackType) -> bool:
    """Whether a frame is of this package or of what it walks Python's syntax with."""
    module = str(traceback.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in {"astdsl", "ast", "contextlib"}


def too_deep(name: str, place: Span) -> UnsupportedFeature:
    """Return the KernelError of a kernel whose blocks or expressions nest beyond all measure."""
    return UnsupportedFeature(
        f"`{name}` nests deeper than the compiler follows",
        (place, ""),
        help="a chain of hundreds of `elif`s, operators or methods is a nest: write it as a loop, "
        "or assign its parts to names; `sys.setrecursionlimit` raises the limit",
    )


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _own_names(frame: FrameType) -> set[str]:
    code = frame.f_code
    return {*code.co_varnames, *code.co_cellvars, *code.co_freevars}


def _known(frame: FrameType) -> list[str]:
    names = {*frame.f_locals, *frame.f_globals, *dir(builtins)}
    return [name for name in names if not name.startswith("__")]
