"""Judge programs in processes of their own, and print the score: `python -m tests.fuzz`."""

from __future__ import annotations

import argparse
import multiprocessing as mp
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from tests.fuzz.elementary import elementary, judge_elementary
from tests.fuzz.kernels import kernel
from tests.fuzz.products import product
from tests.fuzz.program import Program
from tests.fuzz.rings import judge_ring, ring
from tests.fuzz.scaled import scaled
from tests.fuzz.structures import structure
from tests.fuzz.trial import Finding, judge
from tests.fuzz.views import view
from tests.fuzz.warpgroups import warpgroups

GENERATORS: dict[str, tuple[Callable[[int], Program], Callable[[Program], str]]] = {
    "kernels": (kernel, judge),
    "products": (product, judge),
    "rings": (ring, judge_ring),
    "elementary": (elementary, judge_elementary),
    "scaled": (scaled, judge),
    "structures": (structure, judge),
    "views": (view, judge),
    "warpgroups": (warpgroups, judge),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge programs of a generator; return 1 if the witnesses disagree about one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=main.__doc__)
    parser.add_argument("generator", choices=GENERATORS)
    parser.add_argument("--count", type=int, default=100, help="programs (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first (%(default)s)")
    parser.add_argument("--limit", type=float, default=300, help="seconds each (%(default)s)")
    parser.add_argument("--show", action="store_true", help="print every program")
    options = parser.parse_args(arguments)
    score, faults = Counter[str](), 0
    for seed in range(options.seed, options.seed + options.count):
        outcome, told = in_a_process(options.generator, seed, options.limit)
        score[outcome] += 1
        faults += bool(told)
        if told or options.show:
            text = GENERATORS[options.generator][0](seed).text
            print(f"{outcome}: seed {seed}\n{text}\n{told}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in score.most_common()))
    return int(faults > 0)


def in_a_process(generator: str, seed: int, limit: float) -> tuple[str, str]:
    """Return the outcome of a program, and the evidence if it is a fault."""
    context = mp.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(generator, seed, there), daemon=True)
    process.start()
    there.close()
    found: tuple[str, str] = ("hang", "no answer in time")
    try:
        if here.poll(limit):
            found = here.recv()
    except EOFError:
        process.join()
        found = "crash", f"exit code {process.exitcode}"
    process.kill()
    process.join()
    return found


def _work(generator: str, seed: int, answer: Connection) -> None:
    make, judged = GENERATORS[generator]
    try:
        answer.send((judged(make(seed)), ""))
    except Finding as finding:
        answer.send((finding.kind, finding.told))


if __name__ == "__main__":
    sys.exit(main())
