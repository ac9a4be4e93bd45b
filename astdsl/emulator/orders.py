"""Which of the groups that can run goes next: hardware promises no order, so tests try several.

Invariant: every order is fair: a group that has been passed over `PATIENCE` times goes first, so
that a thread which spins on memory does not starve the one it waits for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

Order = Literal["min-pc", "max-pc", "round-robin"] | int
# Scheduling rounds after which a group goes first, whatever its place in the program.
PATIENCE = 256


class Runnable(Protocol):
    """What an order looks at: the place in the program, the depth of calls, the rounds waited."""

    pc: int
    stack: tuple[object, ...]
    waited: int


Pick = Callable[[Sequence[Runnable]], int]


def chooser(order: Order) -> Pick:
    """Return what picks the place of the next group; an integer seeds a random order.

    "min-pc" lets those that are behind, or inside a call, catch up and meet the others.
    """
    pick = _at_random(order) if isinstance(order, int) else _PICKS[order]

    def fair(groups: Sequence[Runnable]) -> int:
        best = pick(groups)
        for place, group in enumerate(groups):
            group.waited += 1
            if group.waited > PATIENCE:
                best = place
        return best

    return fair


def _at_random(seed: int) -> Pick:
    generator = random.Random(seed)  # noqa: S311 - schedules, not secrets
    return lambda groups: generator.randrange(len(groups))


def _behind(groups: Sequence[Runnable]) -> int:
    return min(range(len(groups)), key=lambda i: (-len(groups[i].stack), groups[i].pc))


def _ahead(groups: Sequence[Runnable]) -> int:
    return max(range(len(groups)), key=lambda i: (len(groups[i].stack), groups[i].pc))


_PICKS: dict[str, Pick] = {
    "min-pc": _behind,
    "max-pc": _ahead,
    "round-robin": lambda groups: 0,
}
