"""PTX text as a list of words with their lines (PTX ISA 4.1-4.3)."""

from __future__ import annotations

import re

from astdsl.emulator.faults import PtxSyntaxError

# Names may hold `::` (`.shared::cta`) and dots; a label's colon is a word of its own. The last
# alternative takes what is no PTX at all, which the parser then names.
_WORD = re.compile(
    r"""
    "(?:[^"\\]|\\.)*"
  | //.*
  | 0[fF][0-9a-fA-F]{8}\b | 0[dD][0-9a-fA-F]{16}\b
  | 0[xX][0-9a-fA-F]+U? | 0[bB][01]+U?
  | \d+\.\d*(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ | \d+U?
  | [%$_a-zA-Z.](?:[\w$.]|::)*
  | \S
    """,
    re.VERBOSE,
)
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


class Tokens:
    """A cursor over the words of a text."""

    def __init__(self, text: str) -> None:
        self.words: list[str] = []
        self._lines: list[int] = []
        self._at = 0
        self._split(text)
        self._end = len(self.words)
        # Padding lets `peek` look past the end.
        self.words += ["", "", ""]
        self._lines += [self._lines[-1] if self._lines else 1] * 3

    def _split(self, text: str) -> None:
        if "/*" in text:
            text = _BLOCK_COMMENT.sub(lambda found: "\n" * found.group().count("\n"), text)
        # `.reg.b32 x` is `.reg .b32 x`.
        text = text.replace(".reg.", ".reg .")
        split = _WORD.findall
        for number, line in enumerate(text.split("\n"), 1):
            found = split(line)
            if not found:
                continue
            if found[-1].startswith("//"):
                found.pop()
            self.words += found
            self._lines += [number] * len(found)

    def at_end(self) -> bool:
        """Say whether every word has been read."""
        return self._at >= self._end

    def peek(self, ahead: int = 0) -> str:
        """Return a coming word without reading it, "" past the end."""
        return self.words[min(self._at + ahead, self._end)]

    def line(self) -> int:
        """Return the line of the next word."""
        return self._lines[self._at]

    def next(self) -> str:
        """Read a word."""
        if self._at >= self._end:
            raise PtxSyntaxError("the text ends in the middle", self._lines[self._end])
        word = self.words[self._at]
        self._at += 1
        return word

    def take(self, word: str) -> bool:
        """Read the word if it comes next."""
        if self.words[self._at] == word and self._at < self._end:
            self._at += 1
            return True
        return False

    def expect(self, word: str) -> None:
        """Read exactly this word."""
        if not self.take(word):
            raise self.error(f"expected `{word}`, got `{self.peek()}`")

    def skip_parentheses(self) -> None:
        """Read a bracketed list whole."""
        self.expect("(")
        depth = 1
        while depth:
            word = self.next()
            depth += (word == "(") - (word == ")")

    def error(self, message: str) -> PtxSyntaxError:
        """Return a syntax error at the next word."""
        return PtxSyntaxError(message, self.line())
