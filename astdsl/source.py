"""Where a piece of a kernel stands in its source: spans, and excerpts with carets.

Invariant: a span's columns are UTF-8 byte offsets, as `ast` and `co_positions` give them; they
become display columns only when an excerpt is drawn.
"""

from __future__ import annotations

import linecache
import unicodedata
from pathlib import PurePath

from astdsl.records import dataclass, field, replace

TAB_WIDTH = 4


@dataclass(frozen=True, slots=True)
class Span:
    """A range of source text, and the calls that led there.

    `line` and `end_line` count from 1; `column` and `end_column` are UTF-8 bytes from 0, the end
    exclusive. `stack` holds the call sites of the helpers being inlined, innermost first.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    stack: tuple[Span, ...] = field(default=())

    def within(self, stack: tuple[Span, ...]) -> Span:
        """Return this span as reached through `stack`, innermost call first."""
        return self if stack == self.stack else replace(self, stack=stack)

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}:{_display_start(self) + 1}"


NOWHERE = Span("<unknown>", 0, 0, 0, 0)


def source_line(file: str, line: int) -> str:
    """Return one line of a file without its end, empty where Python does not know the text."""
    return linecache.getline(file, line).rstrip("\r\n")


def excerpt(span: Span, note: str = "") -> list[str]:
    """Return the span's first line and a line of carets under it, ending in `note`."""
    text = source_line(span.file, span.line)
    if not text:
        return [f"    {note}"] if note else []
    raw = text.encode()
    end = span.end_column if span.end_line == span.line else len(raw)
    before, marked = _slice(raw, 0, span.column), _slice(raw, span.column, end)
    carets = "^" * max(1, _width(marked))
    indent = len(before) - len(before.lstrip())
    shown = _expand(text[indent:])
    under = " " * _width(before[indent:]) + carets
    return [f"    {shown}", f"    {under} {note}".rstrip()]


def _slice(raw: bytes, start: int, end: int) -> str:
    return raw[start:end].decode(errors="replace")


def _expand(text: str) -> str:
    return text.replace("\t", " " * TAB_WIDTH)


def _width(text: str) -> int:
    return sum(_character_width(c) for c in text)


def _character_width(character: str) -> int:
    if character == "\t":
        return TAB_WIDTH
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _display_start(span: Span) -> int:
    text = source_line(span.file, span.line)
    return len(_slice(text.encode(), 0, span.column)) if text else span.column
