"""Mutants: a kernel's file with one token dropped, doubled, swapped with its neighbour or replaced.

Invariant: a mutant is Python, means something else than the original, and follows from its seed.
"""

from __future__ import annotations

import ast
import io
import random
import tokenize
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tests.mutation.subjects import SUBJECTS, Subject

Token: TypeAlias = tokenize.TokenInfo
MUTABLE = {tokenize.NAME, tokenize.NUMBER, tokenize.OP, tokenize.STRING}
# What a token of a kind is replaced by, besides the kernel's own tokens of that kind.
OTHERS = {
    tokenize.NAME: [
        "arange", "barrier_arrive", "cdiv", "commit_smem", "concat", "ds", "exp", "f16", "f32",
        "float", "full", "i32", "len", "max", "min", "None", "parallel", "pipeline", "print",
        "range", "sum", "tile", "True", "where", "while", "zeros",
    ],
    tokenize.NUMBER: ["-1", "0", "1", "2", "2.5", "3", "17", "64", "1e30", "4000", "..."],
    tokenize.OP: [
        "!=", "%", "&", "*", "**", "+", "+=", ",", "-", ".", "/", "//", ":", "<", "<<", "=", "==",
        ">=", "@", "@=", "and", "if", "or", "|",
    ],
    tokenize.STRING: ['"M N"', '"M"', '"N M"', '"4 M"', '""', "1", "None", 'f"{x}"'],
}  # fmt: skip
MISSING_NAMES = ["rows_", "aproach"]


@dataclass(frozen=True)
class Mutant:
    """A changed file: what was changed, at which line, and the whole text."""

    subject: Subject
    seed: int
    line: int
    change: str
    text: str

    @property
    def name(self) -> str:
        """What the report calls it."""
        return f"{self.seed} {self.subject.name}:{self.line} {self.change}"


def mutant(seed: int, subjects: Sequence[Subject] = SUBJECTS) -> Mutant:
    """Return the mutant of a seed: the first change drawn that is other Python."""
    draw = random.Random(seed)  # noqa: S311 (no secret)
    subject = subjects[seed % len(subjects)]
    tokens = _tokens(subject)
    original = ast.dump(ast.parse(subject.text))
    while True:
        position = draw.randrange(len(tokens))
        how = draw.choice(list(CHANGES))
        token, new = tokens[position], CHANGES[how](draw, tokens, position)
        text = _replaced(subject.text, token, new)
        if _is_other_python(text, original):
            change = f"{how} `{token.string}` -> `{new}`"
            return Mutant(subject, seed, token.start[0], change, text)


def _tokens(subject: Subject) -> list[Token]:
    every = tokenize.generate_tokens(io.StringIO(subject.text).readline)
    return [
        t
        for t in every
        if t.type in MUTABLE
        and t.start[0] == t.end[0]
        and any(t.start[0] in lines for lines in subject.lines)
    ]


def _replaced(text: str, token: Token, new: str) -> str:
    lines = text.splitlines(keepends=True)
    row, column = token.start
    line = lines[row - 1]
    lines[row - 1] = line[:column] + new + line[token.end[1] :]
    return "".join(lines)


def _is_other_python(text: str, original: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<mutant>", "exec")
            return ast.dump(ast.parse(text)) != original
    except (SyntaxError, ValueError):
        return False


def _drop(draw: random.Random, tokens: list[Token], position: int) -> str:
    return ""


def _double(draw: random.Random, tokens: list[Token], position: int) -> str:
    return f"{tokens[position].string} {tokens[position].string}"


def _swap(draw: random.Random, tokens: list[Token], position: int) -> str:
    """Take any other token of the kernel."""
    return draw.choice(tokens).string


def _replace(draw: random.Random, tokens: list[Token], position: int) -> str:
    """Take a token of the same kind: one of the kernel's, a known one, or a misspelt one."""
    kind = tokens[position].type
    own = sorted({t.string for t in tokens if t.type == kind})
    missing = MISSING_NAMES if kind == tokenize.NAME else []
    return draw.choice([*own, *OTHERS[kind], *missing])


def _sign(draw: random.Random, tokens: list[Token], position: int) -> str:
    """Put something before or after a token."""
    string = tokens[position].string
    return draw.choice([f"-{string}", f"not {string}", f"~{string}", f"{string}()", f"{string}.T"])


CHANGES: dict[str, Callable[[random.Random, list[Token], int], str]] = {
    "drop": _drop,
    "double": _double,
    "swap": _swap,
    "replace": _replace,
    "also replace": _replace,
    "add to": _sign,
}
