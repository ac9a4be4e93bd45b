"""`astdsl repl`: a Python prompt at which kernels can be defined.

Invariant: every input has a file name of its own, under which `linecache` keeps its text, so the
source of a kernel, and the line of a mistake, are those that were typed.
"""

from __future__ import annotations

import argparse
import code
import contextlib
import itertools
import linecache
import rlcompleter
import sys
import traceback
from pathlib import Path

import numpy as np

import astdsl
from astdsl.cli.render import Screen
from astdsl.errors import KernelError

try:
    import readline
except ImportError:  # Python may be built without it
    HAS_READLINE = False
else:
    HAS_READLINE = True

HELP = "a prompt at which kernels can be defined"
HISTORY = Path("~/.astdsl_history")
HISTORY_LINES = 1000
BANNER = (
    f"astdsl {astdsl.__version__}, Python {sys.version.split()[0]}; "
    "`from astdsl import *` and `import numpy as np` are done"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no options."""


def run(options: argparse.Namespace, screen: Screen) -> int:
    """Read and run what is typed until the end of the input."""
    del options
    is_typed = sys.stdin.isatty()
    prompt = Prompt(screen, is_typed=is_typed)
    if is_typed:
        _read_history()
        _complete_names(prompt)
    try:
        prompt.interact(BANNER if is_typed else "", exitmsg="")
    finally:
        if is_typed:
            _write_history()
    return 0


class Prompt(code.InteractiveConsole):
    """Python's own prompt, which keeps the text of what it compiles and reports kernel errors."""

    def __init__(self, screen: Screen, *, is_typed: bool) -> None:
        names = {name: getattr(astdsl, name) for name in astdsl.__all__}
        super().__init__({"__name__": "__console__", "astdsl": astdsl, "np": np, **names})
        self._screen = screen
        self._is_typed = is_typed
        self._files = (f"<astdsl {number}>" for number in itertools.count(1))

    def raw_input(self, prompt: str = "") -> str:
        """Read a line; a prompt is shown to a person only."""
        return super().raw_input(prompt if self._is_typed else "")

    def runsource(self, source: str, filename: str = "", symbol: str = "single") -> bool:
        """Run an input if it is complete; return whether more is wanted."""
        file = next(self._files)
        lines = [f"{line}\n" for line in source.splitlines()]
        linecache.cache[file] = (len(source), None, lines, file)
        return super().runsource(source, file, symbol)

    def showtraceback(self) -> None:
        """Show the report of a kernel's mistake, Python's traceback of anything else."""
        error = sys.exc_info()[1]
        assert error is not None, "a traceback is shown of an exception"
        if isinstance(error, KernelError):
            self._screen.complain(error)
            return
        trace = error.__traceback__
        own = trace.tb_next if trace else None  # without the prompt's own frame
        self.write("".join(traceback.format_exception(type(error), error, own)))


def _read_history() -> None:
    if HAS_READLINE and HISTORY.expanduser().is_file():
        readline.read_history_file(HISTORY.expanduser())


def _complete_names(prompt: Prompt) -> None:
    if HAS_READLINE:
        readline.set_completer(rlcompleter.Completer(prompt.locals).complete)
        readline.parse_and_bind("tab: complete")


def _write_history() -> None:
    if HAS_READLINE:
        readline.set_history_length(HISTORY_LINES)
        with contextlib.suppress(OSError):  # a home that cannot be written keeps no history
            readline.write_history_file(HISTORY.expanduser())
