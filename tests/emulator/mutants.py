"""Mutants of PTX: every synchronisation instruction deleted or perturbed, one at a time.

`python -m tests.emulator.mutants` runs all of them and prints the score (`--part 1/20` a part).
Invariant: a mutant differs from the program in one instruction; which instructions are mutated
depends on the text alone, so that a new one is mutated from the day it is emitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SYNCHRONISES = re.compile(
    r"mbarrier\.(?:init|arrive|expect_tx|try_wait|test_wait)|wgmma\.(?:fence|commit|wait)"
    r"|tcgen05\.(?:commit|wait|fence|alloc|dealloc)|fence\.|bulk\.(?:commit|wait)_group"
    r"|cp\.async\.(?:commit|wait)|bar\.|barrier\.|setmaxnreg|cp\.async\.bulk\.tensor"
)
WAIT = re.compile(r"mbarrier\.(?:try|test)_wait\S* (\w+|%\w+), \[([^\]]+)\], (%\w+)")
BYTES = re.compile(r"(?<=\], )(%\w+|\d+)(?=;)")
BARRIER = re.compile(r"(mbarrier\.\S+ [^\[]*\[|complete_tx::bytes\S* .*\], \[|b64 \[)(%\w+)\]")
GUARD = re.compile(r"^(@!?%?\w+ )?(.*;)$")


@dataclass(frozen=True)
class Mutant:
    """One instruction replaced: its line (from 0), what was done to it, and the new text."""

    line: int
    change: str
    before: str
    after: str

    def apply(self, ptx: str) -> str:
        """Return the text with this one change."""
        lines = ptx.splitlines()
        lines[self.line] = self.after
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return f"line {self.line + 1}, {self.change}: {self.before[:100]}"


def mutants(ptx: str) -> Iterator[Mutant]:
    """Yield every mutant of a text."""
    for number, raw in enumerate(ptx.splitlines()):
        line = raw.strip()
        if SYNCHRONISES.search(line) and line.endswith(";"):
            for change, after in _changes(line):
                yield Mutant(number, change, line, after)


def _changes(line: str) -> Iterator[tuple[str, str]]:
    """Yield what is done to an instruction and what it becomes."""
    waits = WAIT.search(line)
    is_copy = "cp.async.bulk.tensor" in line
    if waits:
        yield "deleted", f"setp.eq.u32 {waits[1]}, 0, 0;"
        yield "other parity", _with(line, waits[3], "xor.b32 changed, {}, 1;")
    elif not is_copy and "alloc" not in line:
        yield "deleted", ""
    barrier = BARRIER.search(line)
    if barrier and "init" not in line:
        yield "next barrier", _with(line, f"[{barrier[2]}]", "add.u32 changed, {}, 8;")
    if "expect_tx" in line:
        size = BYTES.findall(line)[-1]
        for name, code in (
            ("16 bytes more", "add.u32 changed, {}, 16;"),
            ("16 bytes less", "sub.u32 changed, {}, 16;"),
            ("twice the bytes", "shl.b32 changed, {}, 1;"),
            ("half the bytes", "shr.u32 changed, {}, 1;"),
        ):
            yield name, _with(line, size, code)
    elif "mbarrier.init" in line:
        count = BYTES.findall(line)[-1]
        yield "one arrival more", _with(line, count, "add.u32 changed, {}, 1;")
        yield "one arrival less", _with(line, count, "sub.u32 changed, {}, 1;")
    elif is_copy and "mbarrier" in line:
        target = re.search(r"\[(%\w+)\]", line)
        if target:
            yield "other slot", _with(line, f"[{target[1]}]", "add.u32 changed, {}, 1024;")
    group = re.search(r"wait_group\S*\s+(\d+);", line)
    if group:
        yield "one group more in flight", line.replace(f"{group[1]};", f"{int(group[1]) + 1};")


def _with(line: str, operand: str, code: str) -> str:
    """Return an instruction of which one operand, a register or number, is changed by `code`."""
    guard, body = GUARD.fullmatch(line).groups()  # type: ignore[union-attr]
    name = operand.strip("[]")
    changed = "[changed]" if operand.startswith("[") else "changed"
    at = body.rindex(operand)
    text = f"{guard or ''}{body[:at]}{changed}{body[at + len(operand) :]}"
    return f"{{ .reg .b32 changed; {code.format(name)} {text} }}"
