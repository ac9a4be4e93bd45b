"""Names that a kernel's text misspells, or reads before it assigns them.

Invariant: only what rewritten code itself reads becomes a KernelError; a NameError from deeper down
is the user's own Python failing, and stays one.
"""

from __future__ import annotations

import builtins
import re
from types import FrameType, TracebackType

from astdsl.errors import UnknownName, UnsupportedFeature, did_you_mean
from astdsl.frontend.locate import Codes
from astdsl.lang.missing import MISSING


def unknown_name(error: NameError, codes: Codes) -> Exception:
    """Return the KernelError of a name that the kernel's text has wrong, else the error itself."""
    last = _last(error.__traceback__)
    quoted = re.search(r"'([^']+)'", str(error))
    if last is None or quoted is None or last.tb_frame.f_code not in codes:
        return error
    name, frame = quoted[1], last.tb_frame
    known = _known(frame)
    span = codes.place(frame.f_code, last.tb_lasti, last.tb_lineno)
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


def _last(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _own_names(frame: FrameType) -> set[str]:
    code = frame.f_code
    return {*code.co_varnames, *code.co_cellvars, *code.co_freevars}


def _known(frame: FrameType) -> list[str]:
    names = {*frame.f_locals, *frame.f_globals, *dir(builtins)}
    return [name for name in names if not name.startswith("__")]
