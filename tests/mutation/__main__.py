"""Judge mutants in processes of their own, and print the score: `python -m tests.mutation`.

Each mutant has a process, so that one that crashes or hangs says so and hurts no other.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from tests.mutation.mutants import Mutant, mutant
from tests.mutation.trial import GOOD, Verdict, judge

MOST_BYTES = 6 << 30


@dataclass
class Running:
    """A mutant in its process."""

    mutant: Mutant
    process: ForkProcess
    answer: Connection
    deadline: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge mutants; return 1 if one of them shows a fault of ours."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=main.__doc__)
    parser.add_argument("--count", type=int, default=2000, help="mutants (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (%(default)s)")
    parser.add_argument("--limit", type=float, default=60, help="seconds a mutant (%(default)s)")
    parser.add_argument("--show", action="store_true", help="print every verdict")
    options = parser.parse_args(arguments)
    warm_up()
    seeds = range(options.seed, options.seed + options.count)
    score = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        made = map(mutant, seeds)
        for found, verdict in verdicts(made, Path(folder), options.jobs, options.limit):
            score[verdict.outcome] += 1
            if options.show or not verdict.is_good:
                print(f"{verdict.outcome}: {found.name}\n    {verdict.told}", flush=True)
    print(", ".join(f"{score[name]} {name}" for name in [*GOOD, "fault", "crash", "hang"]))
    return int(any(name not in GOOD for name in score))


def warm_up() -> None:
    """Load everything once: the processes are copies of this one."""
    first = mutant(0)
    original = Mutant(first.subject, 0, 0, "nothing", first.subject.text)
    with tempfile.TemporaryDirectory() as folder:
        verdict = judge(original, Path(folder))
    assert verdict.outcome == "agrees", f"the original is wrong: {verdict}"


def verdicts(
    mutants: Iterable[Mutant], folder: Path, jobs: int, limit: float
) -> Iterator[tuple[Mutant, Verdict]]:
    """Yield each mutant with its verdict, in the order in which they are done."""
    waiting, running = iter(mutants), list[Running]()
    while True:
        running += [_start(m, folder, limit) for m in islice(waiting, jobs - len(running))]
        if not running:
            return
        soonest = min(each.deadline for each in running) - time.monotonic()
        wait([each.answer for each in running], timeout=max(soonest, 0))
        for each in list(running):
            verdict = _verdict(each)
            if verdict is not None:
                running.remove(each)
                yield each.mutant, verdict


def _start(made: Mutant, folder: Path, limit: float) -> Running:
    context = mp.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(made, folder, there), daemon=True)
    process.start()
    there.close()
    return Running(made, process, here, time.monotonic() + limit)


def _work(made: Mutant, folder: Path, answer: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    answer.send(judge(made, folder))


def _verdict(running: Running) -> Verdict | None:
    """Return the verdict of a process that is done, or that will not be."""
    if running.answer.poll():
        try:
            verdict: Verdict = running.answer.recv()
        except EOFError:
            running.process.join()
            verdict = Verdict("crash", f"exit code {running.process.exitcode}")
    elif time.monotonic() < running.deadline:
        return None
    else:
        verdict = Verdict("hang", "no answer in time")
    running.process.kill()
    running.process.join()
    return verdict


if __name__ == "__main__":
    sys.exit(main())
