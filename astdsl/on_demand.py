"""What `import astdsl` leaves out: compiling, looking at what was compiled, and saved files.

Invariant: the front end, the passes, the evaluator and the file formats are loaded by the first
kernel or file that needs them, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astdsl.request import Request

if TYPE_CHECKING:
    from astdsl.call import Call
    from astdsl.compile import Program
    from astdsl.lowered import Lowered
    from astdsl.saved import Saved


class Programs:
    """The programs of one function: the in-memory cache."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], list[Program]] = {}
        self.traces = 0

    def get(self, request: Request) -> Program:
        """Return the program of a request, compiled if there is none that is valid."""
        kept = self._kept.setdefault(request.key, [])
        kept[:] = [program for program in kept if program.is_valid()]
        for program in kept:
            if program.fits(request):
                return program
        self.traces += 1
        kept.append(_build(request))
        return kept[-1]


def _build(request: Request) -> Program:
    from astdsl.compile import build

    return build(request)


def lowered(program: Program, call: Call, target: str, compile: Callable[[], Any]) -> Lowered:
    """Return a program to look at."""
    from astdsl.lowered import Lowered

    return Lowered(program, call, target, compile)


def write_saved(path: Path, **fields: Any) -> None:
    """Write a compiled kernel to a file; `fields` are those of `Saved`."""
    from astdsl.saved import Saved, write

    write(path, Saved(**fields))


def read_saved(path: Path) -> Saved:
    """Read a file that `write_saved` wrote. Raises BadArgument for another one."""
    from astdsl.saved import read

    return read(path)
