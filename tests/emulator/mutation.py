"""What becomes of each mutant: reported, a wrong result, or equivalent for a reason given here.

`python -m tests.emulator.mutation` judges all mutants of all programs and prints the score; with
`--part I/N` every N-th of them, with `--only NAME` one program's, with `--list` each mutant and its
verdict.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tests.emulator.equivalence import equivalence
from tests.emulator.mutants import Mutant, mutants
from tests.emulator.programs import SUBJECTS
from tests.emulator.recording import WRONG, Program, record
from tests.emulator.watching import unordered

SCHEDULES: tuple[dict[str, Any], ...] = (
    {"completion": "late"},
    {"completion": "early", "order": "max-pc"},
    {"completion": "late", "order": "max-pc"},
    {"completion": 1, "order": 2},
)
SURVIVED = "survived"
TOO_WEAK = "found, and equivalent for a reason that is too weak"
FAILURES = (SURVIVED, TOO_WEAK)
NOT_EXECUTED = "no thread of this launch executes it"
ORDERED = "a run of the mutant orders all that conflicts: every schedule of it does the same"
# Instructions that an order of accesses and phases says all about; not other fences.
MODELLED = re.compile(
    r"(?:@!?%?\w+ )?(?:bar(?:rier)?\.|mbarrier\.|wgmma\.wait|cp\.async\.bulk\.wait|atom\.|red\."
    r"|fence\.proxy\.async(?!\.global)|tcgen05\.(?:commit|fence))"
)


def recorded(name: str) -> Program:
    """Run a program once on the emulator, and keep what it passed to it."""
    return record(name, SUBJECTS[name])


def verdict(program: Program, mutant: Mutant) -> str:
    """Return a code, `WRONG`, the reason of an equivalence, or one of `FAILURES`.

    A reason is no proof where the mutant shows itself.
    """
    changed = mutant.apply(program.ptx)
    reason = equivalence(program.ptx.splitlines(), mutant)
    for schedule in SCHEDULES:
        found = program.trial(changed, schedule)
        if found:
            return TOO_WEAK if reason else found
    return reason or _what_runs_tell(program, mutant) or SURVIVED


def verdicts(program: Program, chosen: Iterable[Mutant]) -> dict[Mutant, str]:
    """Return the verdict on each mutant."""
    return {mutant: verdict(program, mutant) for mutant in chosen}


def _what_runs_tell(program: Program, mutant: Mutant) -> str:
    """Return why a mutant is equivalent by what the threads of this launch execute, "" if not.

    A `trap` in the place of an instruction tells whether any thread comes there.
    """
    if not program.executes(mutant.line):
        return NOT_EXECUTED
    if not MODELLED.match(mutant.before):
        return ""
    changed = mutant.apply(program.ptx)
    return "" if unordered(lambda: program.trial(changed, {})) else ORDERED


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the score; 1 if a mutant survived, or a reason is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="0/1", help="every N-th mutant, from the I-th on: I/N")
    parser.add_argument("--only", default="", help="the name of one program")
    parser.add_argument("--list", action="store_true", help="print every mutant")
    options = parser.parse_args(arguments)
    first, step = map(int, options.part.split("/"))
    total: Counter[str] = Counter()
    for name in SUBJECTS:
        if options.only in ("", name):
            total += _score(recorded(name), first, step, options.list)
    score = ", ".join(f"{n} {what}" for what, n in total.most_common())
    sys.stdout.write(f"{total.total()} mutants: {score}\n")
    return int(any(total[what] for what in FAILURES))


def _score(program: Program, first: int, step: int, show: bool) -> Counter[str]:
    found = verdicts(program, list(mutants(program.ptx))[first::step])
    for mutant, what in found.items():
        if show or what in FAILURES:
            sys.stdout.write(f"  {what:14} {mutant}\n")
    counts = Counter(_kind(what) for what in found.values())
    score = ", ".join(f"{n} {what}" for what, n in counts.most_common())
    sys.stdout.write(f"{program.name}: {len(found)} mutants: {score}\n")
    for reason in sorted({w for w in found.values() if _kind(w) == "equivalent"}):
        sys.stdout.write(f"  equivalent: {reason}\n")
    return counts


def _kind(what: str) -> str:
    if re.fullmatch(r"E\d+", what):
        return "reported"
    return what if what in (WRONG, *FAILURES) else "equivalent"


if __name__ == "__main__":
    sys.exit(main())
