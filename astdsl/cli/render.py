"""What the commands show: text, error reports and tables, in colour on a terminal.

Invariant: where the output is no terminal, what is written is plain text, unchanged; what is asked
for goes to standard output, complaints to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from traceback import FrameSummary
from typing import Any

from rich.console import Console
from rich.text import Text

from astdsl.errors import KernelError

# Patterns and their styles by language; later ones win where they overlap.
_NUMBER = (r"\b-?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?\b", "cyan")
_STRING = (r'"[^"\n]*"', "green")
STYLES: dict[str, tuple[tuple[str, str], ...]] = {
    "python": (
        _NUMBER,
        (
            r"\b(?:and|def|elif|else|for|if|in|is|lambda|nonlocal|not|or|return|while|with)\b",
            "magenta",
        ),
        (r"\b__\w+__\b", "dim"),
        _STRING,
    ),
    "ir": (
        _NUMBER,
        (r"\b[A-Z]\w+\b", "bold blue"),
        (r"%\w+", "yellow"),
        (r"\b(?:kernel|constant|in|out|inout|scalar)(?= )", "magenta"),
        _STRING,
    ),
    "llvm": (
        _NUMBER,
        (r"\b(?:define|declare|ret|br|phi|call|load|store|asm|sideeffect|target)\b", "magenta"),
        (r"[%@][\w.$-]+", "yellow"),
        _STRING,
        (r";[^\n]*", "dim"),
    ),
    "ptx": (
        _NUMBER,
        (r"^\s*(?:@!?%\w+\s+)?[a-z]\w*(?:[.:]+\w+)*", "bold blue"),
        (r"%\w+(?:\.[xyz])?", "yellow"),
        (r"^\s*\.[\w.]+", "magenta"),
        (r"//[^\n]*", "dim"),
    ),
    "sass": (
        (r"(?<=\*/)\s+(?:@!?U?P\w+ )?[A-Z][\w.]+", "bold blue"),
        (r"\bU?[RP](?:\d+|Z|T)\b", "yellow"),
        (r"/\*.*?\*/", "dim"),
    ),
    "report": (
        (r"^A\d+:[^\n]*", "bold"),
        (r"^A\d+", "bold red"),
        (r"^ +\^+[^\n]*", "red"),
        (r"^  (?:called from )?[^\s:]+:\d+:\d+", "cyan"),
        (r"^  help:", "bold green"),
    ),
}


class _Console(Console):
    """A console that leaves it to `main` what it means that a reader has left."""

    def on_broken_pipe(self) -> None:
        """Raise what rich would end the process for, with the exit code of a wrong kernel."""
        raise BrokenPipeError


class Screen:
    """Standard output and standard error."""

    def __init__(self, *, as_json: bool = False) -> None:
        # Kept, since what a user's file prints may be sent elsewhere while a command runs.
        self._stdout = sys.stdout
        self._out: Console = _Console(
            file=self._stdout, soft_wrap=True, highlight=False, markup=False, emoji=False
        )
        self._err: Console = _Console(
            soft_wrap=True, highlight=False, markup=False, emoji=False, stderr=True
        )
        self.as_json = as_json

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads standard output."""
        return self._out.is_terminal

    def show(self, text: str, language: str = "") -> None:
        """Write text, coloured as `language` on a terminal."""
        _write(self._out, text, language)

    def show_bytes(self, image: bytes) -> None:
        """Write bytes, as they are."""
        self._stdout.flush()
        self._stdout.buffer.write(image)
        self._stdout.buffer.flush()

    def show_json(self, value: Any) -> None:
        """Write a value as JSON."""
        self._stdout.write(json.dumps(value, indent=2) + "\n")

    def show_table(self, rows: Iterable[Sequence[str]]) -> None:
        """Write rows in columns, the first one in bold."""
        table = [tuple(row) for row in rows]
        columns = zip(*table, strict=True)
        widths = [max(map(len, column)) for column in columns]
        widths[-1] = 0  # nothing stands after the last one
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            line = Text(cells[0], "bold") + Text("  ".join(["", *cells[1:]]))
            line.rstrip()
            self._out.print(line)

    def complain(self, error: KernelError) -> None:
        """Write an error's report; with `--json` the error as an object on standard output."""
        if self.as_json:
            self.show_json({"error": as_object(error)})
        else:
            _write(self._err, error.report(), "report")

    def tell_failure(self, error: BaseException, frames: Sequence[FrameSummary]) -> None:
        """With `--json` write an exception of Python as an object, its innermost frame first."""
        if self.as_json:
            self.show_json({"error": _of_python(error, frames)})

    def note(self, text: str) -> None:
        """Write a remark beside the results."""
        _write(self._err, text, "")


def _write(console: Console, text: str, language: str) -> None:
    if not console.is_terminal:
        console.file.write(text.rstrip("\n") + "\n")
        return
    shown = Text(text.rstrip("\n"))
    for pattern, style in STYLES.get(language, ()):
        shown.highlight_regex(f"(?m:{pattern})", style)
    console.print(shown)


def as_object(error: KernelError) -> dict[str, Any]:
    """Return an error as an object for programs to read."""
    return {
        "code": error.code,
        "message": error.message,
        "places": [
            {
                "file": span.file,
                "line": span.line,
                "column": span.column,
                "end_line": span.end_line,
                "end_column": span.end_column,
                "note": note,
            }
            for span, note in error.places
        ],
        "help": error.help,
    }


def _of_python(error: BaseException, frames: Sequence[FrameSummary]) -> dict[str, Any]:
    """Return an exception that is no error of ours as an object; lines as Python counts them."""
    places: list[tuple[Any, ...]] = [
        (f.filename, f.lineno, f.colno, f.end_lineno, f.end_colno) for f in reversed(frames)
    ]
    message = str(error)
    if isinstance(error, SyntaxError):
        message, line, end_line = error.msg, error.lineno or 1, error.end_lineno or 0
        start, end = (_bytes_before(error.text, x or 1) for x in (error.offset, error.end_offset))
        place = (error.filename, line, start, max(line, end_line), max(start, end))
        places = [place] * bool(error.filename)
    names = ("file", "line", "column", "end_line", "end_column")
    return {
        "code": "",
        "message": f"{type(error).__name__}: {message}",
        "places": [{**dict(zip(names, place, strict=True)), "note": ""} for place in places],
        "help": "",
    }


def _bytes_before(text: str | None, column: int) -> int:
    """Return how many bytes stand before a column, which counts characters from 1."""
    return len((text or "")[: max(0, column - 1)].encode())
