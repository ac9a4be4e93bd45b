"""Threads of a block that take turns: each runs until it waits; none that can go on is a deadlock.

Invariant: a thread that still waits for the same yields the same `Blocked`, so a round in which
nobody ended and nobody yielded another one is a round in which nothing happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astdsl.errors import ProtocolError
from astdsl.ir.evaluate.state import Blocked, Run, Waiting
from astdsl.source import Span

# Rounds in a row in which threads do nothing but test barriers in vain.
MOST_VAIN_ROUNDS = 10_000


def run_together(runs: Sequence[Run]) -> Run:
    """Run threads side by side to their ends; yield while none can go on. Returns their results."""
    going, results = dict(enumerate(runs)), [None] * len(runs)
    waiting: dict[int, Blocked] = {}
    stuck: Blocked | None = None
    while going:
        moved = tested = False
        for number in list(going):
            try:
                blocked = next(going[number])
            except StopIteration as done:
                results[number] = done.value
                del going[number]
                waiting.pop(number, None)
                moved = True
                continue
            is_new = waiting.get(number) is not blocked
            tested |= is_new and blocked.is_test
            moved |= is_new and not blocked.is_test
            waiting[number] = blocked
        if moved:
            stuck = None
        elif tested or stuck is None:
            waits = tuple(w for b in waiting.values() for w in b.waits)
            stuck = Blocked(waits, is_test=tested)
        if stuck is not None:
            yield stuck
    return results


def run_alone(*runs: Run) -> Any:
    """Run the threads of a block to their ends; a wait that cannot end is reported."""
    together = run_together(runs)
    for _ in range(MOST_VAIN_ROUNDS):
        try:
            blocked = next(together)
        except StopIteration as done:
            return done.value
        if not blocked.is_test:
            break
    raise _deadlock(blocked.waits)


def _deadlock(waits: Sequence[Waiting]) -> ProtocolError:
    places: dict[tuple[Span, str], None] = {}
    for waiting in waits:
        places[waiting.wait, f"{waiting.thread} waits".lstrip()] = None
    for waiting in waits:
        barrier = waiting.barrier
        come = f"{barrier.arrivals - barrier.pending} of {barrier.arrivals} arrivals have come"
        places[barrier.span, f"the barrier: {come}"] = None
    return ProtocolError(
        "deadlock: nobody can complete the phase that is waited for",
        *places,
        help="let a `barrier_arrive`, a copy or a `tcgen05_commit_arrive` complete the barrier, or "
        "count what arrives in `Barrier(num_arrivals=)`",
    )
