"""Why some mutants of synchronisation mean the same as the program: a table of reasons.

Invariant: a reason holds whatever the schedule; it is looked for in the text around the mutated
instruction, so that it keeps being checked while the compiler changes. What it rests on:

* All threads of a warpgroup execute `wgmma.wait_group`, and a product is complete for all of its
  warps together: CUTLASS's consumers release a slot by one thread of a warpgroup after it.
* An mbarrier's phase, or a commit's, is awaited by every thread that goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tests.emulator.mutants import Mutant

BAR = re.compile(r"^bar\.sync")
FENCE = re.compile(r"fence\.(?:mbarrier_init|proxy\.async)")
SHARED = re.compile(
    r"(?:ld|st)\.(?:volatile\.|relaxed\.)?shared|bulk_group \[|(?:ld|st)matrix|red\.|atom\."
)
SIGNALS = re.compile(
    r"mbarrier\.(?!init)|^bar\.|cp\.async\.bulk\.(?!wait|commit)|tcgen05\.commit|wgmma\.mma"
)
WAITS = re.compile(r"wgmma\.wait_group|mbarrier\.try_wait|tcgen05\.wait")
TENSOR = re.compile(r"tcgen05\.(?:ld|st|mma|cp)\b")
ACCESS = re.compile(rf"{SHARED.pattern}|{SIGNALS.pattern}|{TENSOR.pattern}")
USES = re.compile(rf"{ACCESS.pattern}|mbarrier|tcgen05\.alloc")
STORE = re.compile(r"global\.shared::cta\S*bulk_group \[")
LABEL = re.compile(r"^(\$\w+):")
BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+);")

Holds = Callable[[list[str], Mutant], bool]


def equivalence(lines: list[str], mutant: Mutant) -> str:
    """Return why a mutant is equivalent, "" if no reason is known."""
    text = [line.strip() for line in lines]
    return next((reason for reason, holds in REASONS.items() if holds(text, mutant)), "")


def _between(text: list[str], start: int, pattern: re.Pattern[str], step: int) -> list[str]:
    """Return the lines from `start`, exclusive, to the next that matches; all where none does."""
    end = len(text) if step > 0 else -1
    found = []
    for at in range(start + step, end, step):
        if pattern.search(text[at]):
            break
        found.append(text[at])
    return found


def _any(lines: list[str], pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(line) for line in lines)


def _back_branches(text: list[str], line: int) -> Iterator[int]:
    """Yield the branches after a line that lead to before it: the ends of its loops."""
    places = _labels(text)
    for at in range(line, len(text)):
        branch = BRANCH.search(text[at])
        if branch and places.get(branch[1], line + 1) <= line:
            yield at


def _returns(text: list[str], line: int) -> Iterator[int]:
    """Yield the beginnings of the loops that a line is in."""
    for at in _back_branches(text, line):
        branch = BRANCH.search(text[at])
        if branch:
            yield _labels(text)[branch[1]]


def _labels(text: list[str]) -> dict[str, int]:
    return {m[1]: i for i, line in enumerate(text) if (m := LABEL.match(line))}


def _is(mutant: Mutant, pattern: str, change: str = "deleted") -> bool:
    return bool(re.match(pattern, mutant.before)) and mutant.change.startswith(change)


def _other_fence_shows_barriers(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"fence\.mbarrier_init"):
        return False
    rest = _between(text, mutant.line, SIGNALS, 1)
    return any("fence.proxy.async" in line for line in rest)


def _nothing_to_cover(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"fence\.proxy\.async"):
        return False
    before = text[: mutant.line]
    shown = _between(text, mutant.line, SIGNALS, -1)
    return not _any(before, SHARED) and any("fence.mbarrier_init" in line for line in shown)


def _next_to_another_barrier(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"bar\.sync"):
        return False
    after, before = _between(text, mutant.line, BAR, 1), _between(text, mutant.line, BAR, -1)
    has_next, has_last = len(after) < len(text) - mutant.line - 1, len(before) < mutant.line
    loops = list(_returns(text, mutant.line))
    # What is only made between the two, barriers and allocations, the second one publishes.
    orders_for_next = has_next and not _any(after, ACCESS)
    waits = _any(before, re.compile("wait_group")) and _any(text[: mutant.line], STORE)
    return not loops and (orders_for_next or (has_last and not _any(before, USES) and not waits))


def _threads_touch_nothing(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"bar\.sync"):
        return False
    before = _between(text, mutant.line, BAR, -1)
    for branch in _back_branches(text, mutant.line):
        before += _between(text, branch, BAR, -1)
    return not _any(before, SHARED) and _any(before, WAITS)


def _nothing_follows(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"bar\.sync"):
        return False
    rest = [line for line in text[mutant.line + 1 :] if not BAR.search(line)]
    return not _any(rest, USES) and not list(_returns(text, mutant.line))


def _no_store_before(text: list[str], mutant: Mutant) -> bool:
    if not re.match(r"cp\.async\.bulk\.wait_group\.read", mutant.before):
        return False
    stores = [i for i, line in enumerate(text) if STORE.search(line)]
    return bool(stores) and min(stores) > mutant.line and not list(_returns(text, mutant.line))


def _tensor_fence_orders_nothing(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"tcgen05\.fence"):
        return False
    starts = [mutant.line, *_returns(text, mutant.line)]
    if not _any(text[: mutant.line], TENSOR) and len(starts) == 1:
        return True
    kind = re.compile(re.escape(mutant.before.rstrip(";")))
    for start in starts:
        gap = _between(text, start, TENSOR, 1)
        reaches = len(gap) < len(text) - start - 1
        others = [line for line in gap if kind.search(line)]
        if reaches and not others:
            return False
    return True


REASONS: dict[str, Holds] = {
    "a proxy fence before the barrier shows the mbarriers too": _other_fence_shows_barriers,
    "no thread has stored to shared memory yet, and the mbarriers are shown": _nothing_to_cover,
    "another barrier of the block is next to it, and nothing made before is used between the two":
        _next_to_another_barrier,
    "since the barrier before only products and copies used shared memory, which every thread "
    "has waited for": _threads_touch_nothing,
    "nothing that another thread has written is used after it": _nothing_follows,
    "no store has been issued that it could wait for": _no_store_before,
    "tensor memory is not accessed on one side of it, or another fence stands before the next "
    "access": _tensor_fence_orders_nothing,
}  # fmt: skip
