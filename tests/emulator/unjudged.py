"""Mutants that are neither found nor proved equivalent yet, by program: how many of each kind.

Invariant: nobody has judged what stands here, so it counts as neither; the numbers only get
smaller. A kind is a change and an instruction, whatever the numbers of its registers; one more of
a kind than stands here has survived.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from tests.emulator.mutants import Mutant

UNJUDGED: dict[str, dict[str, int]] = {
}  # fmt: skip


def survivors(name: str, lost: Iterable[Mutant]) -> list[Mutant]:
    """Return those of a program's mutants for which nothing speaks that are not on the list."""
    left = Counter(UNJUDGED.get(name, {}))
    found = []
    for mutant in lost:
        kind = re.sub(r"%([a-z]+)\d+", r"%\1", f"{mutant.change}: {mutant.before[:100]}")
        left[kind] -= 1
        if left[kind] < 0:
            found.append(mutant)
    return found
