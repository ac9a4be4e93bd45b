"""What becomes of each mutant: reported, a wrong result, or equivalent for a reason given here.

`python -m tests.emulator.mutation` judges all mutants of all programs and prints the score; with
`--part I/N` every N-th of them, with `--list` each mutant and its verdict.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

import astdsl.emulator.device as emulator
from astdsl.emulator import DeviceFault
from astdsl.emulator.arguments import Unwritten
from tests.acceptance.test_deletions import PROGRAMS
from tests.emulator.equivalence import equivalence
from tests.emulator.mutants import Mutant, mutants

Array = np.ndarray[Any, Any]
SCHEDULES: tuple[dict[str, Any], ...] = (
    {"completion": "late"},
    {"completion": "early", "order": "max-pc"},
    {"completion": "late", "order": "max-pc"},
    {"completion": 1, "order": 2},
)
WRONG = "a wrong result"
SURVIVED = "survived"


@dataclass
class Program:
    """A kernel's launches, recorded, its arrays before them, and what they hold after them."""

    name: str
    ptx: str
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    arrays: list[Array]
    before: list[Array]
    after: list[Array]

    def trial(self, ptx: str, schedule: dict[str, Any]) -> str:
        """Run a changed text under a schedule; return what is wrong with it, "" for nothing."""
        for array, start in zip(self.arrays, self.before, strict=True):
            array[...] = start
        try:
            for (_, *rest), options in self.calls:
                unwritten = [Unwritten(each.array) for each in options["uninitialised"]]
                chosen = {**options, "uninitialised": unwritten, **schedule}
                emulator.run(ptx, *rest, **chosen)
        except DeviceFault as fault:
            return fault.code
        same = all(map(np.array_equal, self.arrays, self.after))
        return "" if same else WRONG


def recorded(name: str) -> Program:
    """Run a program once on the emulator, and keep what it passed to it."""
    known, arguments, expected, target = PROGRAMS[name]
    # A kernel of its own, whose launchers call the `run` of now.
    kernel = type(known)(known.__wrapped__, known._options)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    before: list[Array] = []
    arrays: list[Array] = []
    run = emulator.run

    def record(*positional: Any, **options: Any) -> None:
        calls.append((positional, options))
        for array in _arrays(positional[4]):
            if not any(array is known for known in arrays):
                arrays.append(array)
                before.append(array.copy())
        run(*positional, **options)

    with patch.object(emulator, "run", record):
        found = kernel.on("emulator", target=target)(*arguments)
    assert np.array_equal(found, expected), f"{name} is wrong before anything is changed"
    return Program(name, calls[0][0][0], calls, arrays, before, [a.copy() for a in arrays])


def _arrays(arguments: Sequence[Any]) -> Iterator[Array]:
    for argument in arguments:
        each = (argument,) if isinstance(argument, np.ndarray) else getattr(argument, "arrays", ())
        yield from (array for array in each if array.flags.writeable)


def verdict(program: Program, mutant: Mutant) -> str:
    """Return a code, `WRONG`, the reason of an equivalence, or `SURVIVED`.

    A reason is no proof where the mutant shows itself.
    """
    changed = mutant.apply(program.ptx)
    reason = equivalence(program.ptx.splitlines(), mutant)
    for schedule in SCHEDULES:
        found = program.trial(changed, schedule)
        if found:
            assert not reason, f"{mutant} gives {found}, and counts as equivalent: {reason}"
            return found
    return reason or SURVIVED


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the score; 1 if a mutant survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="0/1", help="every N-th mutant, from the I-th on: I/N")
    parser.add_argument("--only", default="", help="the name of one program")
    parser.add_argument("--list", action="store_true", help="print every mutant")
    options = parser.parse_args(arguments)
    first, step = map(int, options.part.split("/"))
    survivors = 0
    for name in PROGRAMS:
        if options.only in ("", name):
            survivors += _score(recorded(name), first, step, options.list)
    return min(survivors, 1)


def _score(program: Program, first: int, step: int, show: bool) -> int:
    found = {m: verdict(program, m) for m in list(mutants(program.ptx))[first::step]}
    for mutant, what in found.items():
        if show or what == SURVIVED:
            sys.stdout.write(f"  {what:14} {mutant}\n")
    counts = Counter(_kind(what) for what in found.values())
    score = ", ".join(f"{n} {what}" for what, n in counts.most_common())
    sys.stdout.write(f"{program.name}: {len(found)} mutants: {score}\n")
    for reason in sorted({w for w in found.values() if _kind(w) == "equivalent"}):
        sys.stdout.write(f"  equivalent: {reason}\n")
    return counts[SURVIVED]


def _kind(what: str) -> str:
    if re.fullmatch(r"E\d+", what):
        return "reported"
    return what if what in (WRONG, SURVIVED) else "equivalent"


if __name__ == "__main__":
    sys.exit(main())
