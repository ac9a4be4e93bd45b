"""Mutants of PTX: every synchronisation instruction deleted or perturbed, one at a time.

`python -m tests.emulator.mutation` runs all of them and prints the score (`--part 1/20` a part).
Invariant: a mutant differs from the program in one instruction; which instructions are mutated
depends on the text alone, so that a new one is mutated from the day it is emitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SYNCHRONISES = re.compile(
    r"mbarrier\.(?:init|arrive|expect_tx|complete_tx|try_wait|test_wait)|wgmma\.(?:fence|commit|wait)"
    r"|tcgen05\.(?:commit|wait|fence|alloc|dealloc|relinquish)|fence\.|membar\."
    r"|bulk\.(?:commit|wait)_group|cp\.async|cp\.reduce\.async|\bbar\.|\bbarrier\.|setmaxnreg|\bmapa\."
    r"|(?:atom|red|ld|st)\.(?:async|acquire|release|acq_rel)|(?:atom|red)\.\w+\.\w+\.acq_rel"
    r"|tensormap\.cp_fenceproxy|clusterlaunchcontrol\.try_cancel"
)
WAIT = re.compile(r"mbarrier\.(?:try|test)_wait\S* (\w+|%\w+), \[([^\]]+)\], (%\w+|\d+)")
GUARD = re.compile(r"^(@!?%?\w+ )?(.*;)$")
# What cannot be left out by itself: it gives a value, or data that are then missing in any case.
KEPT = re.compile(
    r"(?:try|test)_wait|cp\.async\.(?:c[ag]|bulk\.(?!commit|wait))|cp\.reduce|tcgen05\.alloc|\bmapa\."
    r"|atom\.|\bld\.|\bst\.|\bred\.|cp_fenceproxy|try_cancel"
)
FILLS = re.compile(
    r"cp\.(?:reduce\.)?async\.(?:bulk\.(?!commit|wait)|c[ag])|(?:st|red)\.async|try_cancel"
)
COPY = re.compile(r"cp\.(?:reduce\.)?async\.bulk\.(?!commit|wait)")
Changes = Iterator[tuple[str, str]]


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
            for changes in CHANGES:
                yield from (Mutant(number, change, line, after) for change, after in changes(line))


def _deleted(line: str) -> Changes:
    waits = WAIT.search(line)
    if waits:
        yield "deleted", f"setp.eq.u32 {waits[1]}, 0, 0;"
    elif not KEPT.search(line):
        yield "deleted", ""


def _phase(line: str) -> Changes:
    waits = WAIT.search(line)
    if waits and ".parity" in line:
        yield "other parity", _with(line, waits[3], "xor.b32 changed, {}, 1;")


def _barrier(line: str) -> Changes:
    """Yield the next barrier in memory, of waits, arrivals and copies."""
    found = re.search(r"(?:mbarrier\.[^\[]*\[|complete_tx::bytes.*, \[|b64 \[)(%\w+)\]", line)
    if found and "init" not in line:
        yield "next barrier", _with(line, f"[{found[1]}]", "add.u32 changed, {}, 8;")


def _bytes(line: str) -> Changes:
    """Yield other numbers of bytes, of expectations and of copies of bytes."""
    size = re.search(r"\], (%\w+|\d+)(?=;|, \[)", line)
    if size is None or "init" in line:
        return
    if "expect_tx" in line:
        yield "16 bytes more", _with(line, size[1], "add.u32 changed, {}, 16;")
        yield "16 bytes less", _with(line, size[1], "sub.u32 changed, {}, 16;")
        yield "twice the bytes", _with(line, size[1], "shl.b32 changed, {}, 1;")
        yield "half the bytes", _with(line, size[1], "shr.u32 changed, {}, 1;")
    elif COPY.search(line) and "tensor" not in line:
        yield "16 bytes more", _with(line, size[1], "add.u32 changed, {}, 16;")
        yield "16 bytes less", _with(line, size[1], "sub.u32 changed, {}, 16;")


def _arrivals(line: str) -> Changes:
    count = re.search(r"\], (%\w+|\d+)(?=;)", line)
    if "mbarrier.init" in line and count:
        yield "one arrival more", _with(line, count[1], "add.u32 changed, {}, 1;")
        yield "one arrival less", _with(line, count[1], "sub.u32 changed, {}, 1;")


def _slot(line: str) -> Changes:
    """Yield another place in shared memory, of what a copy fills or reads."""
    if not FILLS.search(line):
        return
    places = re.findall(r"\[(%r?\w+)\]", line)
    stores = "global.shared::cta" in line
    if places:
        place = places[-1] if stores else places[0]
        yield "other slot", _with(line, f"[{place}]", "add.u32 changed, {}, 1024;", first=True)


def _blocks(line: str) -> Changes:
    """Yield other blocks of the cluster."""
    mask = re.search(r", (%\w+)(?=;|, %)", line)
    if "multicast::cluster" in line and mask:
        yield "other blocks", _with(line, mask[1], "xor.b16 changed, {}, 2;", bits=16)
    rank = re.search(r"mapa\S* \S+, \S+, (%\w+|\d+);", line)
    if rank:
        yield "other block", _with(line, rank[1], "xor.b32 changed, {}, 1;")


def _groups(line: str) -> Changes:
    group = re.search(r"wait_group\S*\s+(\d+);", line)
    if group:
        yield "one group more in flight", line.replace(f"{group[1]};", f"{int(group[1]) + 1};")


def _named(line: str) -> Changes:
    """Yield another number of a barrier, and of the threads that meet there."""
    found = re.search(
        r"\bbar(?:rier)?\.(?:(?:sync|arrive)|red\S+ %\w+,)\s+(%?\w+)(?:, (%?\w+))?[;,]", line
    )
    if not found:
        return
    if found[2] is None:
        return
    yield "other barrier", _with(line, f" {found[1]},", "add.u32 changed, {}, 1;")
    yield "32 threads more", _with(line, f", {found[2]}", "add.u32 changed, {}, 32;")
    yield "32 threads less", _with(line, f", {found[2]}", "sub.u32 changed, {}, 32;")


def _order(line: str) -> Changes:
    """Yield an instruction that orders nothing."""
    opcode = re.search(r"\.(acquire|release|acq_rel)\b", line)
    if re.search(r"fence|\bmembar|tensormap|barrier\.cluster\.wait", line):
        return
    if opcode:
        yield "relaxed", line.replace(opcode[0], ".relaxed", 1)
    elif re.match(r"(?:@!?%?\w+ )?mbarrier\.(?:arrive|try_wait|test_wait)", line):
        yield "relaxed", re.sub(r"(arrive(?:\.expect_tx)?|\.parity)\.shared",
                                r"\1.relaxed.cta.shared", line)  # fmt: skip


def _columns(line: str) -> Changes:
    count = re.search(r"tcgen05\.(?:de)?alloc\S* .*, (%\w+|\d+);", line)
    if count:
        yield "half the columns", _with(line, count[1], "shr.u32 changed, {}, 1;")


CHANGES: tuple[Callable[[str], Changes], ...] = (
    _deleted, _phase, _barrier, _bytes, _arrivals, _slot, _blocks, _groups, _named, _order,
    _columns,
)  # fmt: skip


def _with(line: str, operand: str, code: str, *, bits: int = 32, first: bool = False) -> str:
    """Return an instruction of which one operand, a register or number, is changed by `code`.

    The operand may come with what stands next to it (brackets, commas); the last such place of the
    line is changed, or the first.
    """
    guard, body = GUARD.fullmatch(line).groups()  # type: ignore[union-attr]
    name = operand.strip("[], ")
    changed = operand.replace(name, "changed")
    at = body.index(operand) if first else body.rindex(operand)
    text = f"{guard or ''}{body[:at]}{changed}{body[at + len(operand) :]}"
    return f"{{ .reg .b{bits} changed; {code.format(name)} {text} }}"
