"""Which refusals of random programs are right: what the report says stands in the program.

Invariant: a refusal is right if its sentence is known, and the program has what it is about where
the report points, or anywhere where it concerns the whole; any other is a finding.
"""

from __future__ import annotations

import linecache
import re

from astdsl import KernelError

# What stands at a place that the report shows.
HERE = "here"
# What stands somewhere in the program.
ANYWHERE = "anywhere"

# Code, sentence, where to look, and for what.
RIGHT = (
    ("A111", r"lie outside the array", ANYWHERE, r"\b(ds|tile)\(|:\w"),
    ("A106", r"^the constant -\d+ as an index of", HERE, r"- ?\d|BlockSpec"),
    ("A306", r"^`load\(\.\.\., stages=\)` stands in a branch or loop", HERE, r"stages="),
    ("A306", r"^`order` moves independent steps", HERE, r"order="),
    ("A103", r"^`\w+` is read before it is assigned", ANYWHERE, r"\n +def f_\d+"),
    ("A107", r"^bool is known only when the kernel runs", HERE, r"\bcase .* if "),
    ("A110", r"is changed inside a block of the kernel", HERE, r"\.\w+ [^=]?=|\] [^=]?=|\|="),
    ("A102", r"^a tile of|registers", ANYWHERE, r"\b(ds|tile|full|broadcast_to)\("),
)


def is_right(error: KernelError, text: str) -> bool:
    """Whether the program of a text deserves a refusal."""
    lines = (
        linecache.getline(place.file, place.line)
        for span, _ in error.places
        for place in (span, *span.stack)
    )
    shown = {HERE: "".join(lines), ANYWHERE: text}
    return any(
        error.code == code and re.search(sentence, error.message) and re.search(sign, shown[where])
        for code, sentence, where, sign in RIGHT
    )
