"""What machine code says of its cost: loops, the instructions of a step, where threads wait.

Invariant: a step is the way through a loop, or where there is none from the entry to the end, that
most warps take: branches around what one thread does, or what only a ragged end needs, are taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_LINE = re.compile(
    r"^\.text\.(?P<entry>\S+):|^(?P<label>\.L\w+):|^\s+/\*[0-9a-f]{4,}\*/\s+(?P<text>.*?);",
    re.MULTILINE,
)
_BRANCH = re.compile(r"BRA\S*.* `\((\.L\w+)\)")
_END = re.compile(r"EXIT|RET")
# Before the instruction, or as the first operand of a branch.
_PREDICATE = re.compile(r"@!?U?P\w+\s+|BRA\S*\s+!?U?P\w+,")
# What starts products, on the tensor cores of sm_90 and sm_100.
PRODUCTS = re.compile(r"\b([HQI]GMMA|UTC\w*MMA)\b")
# Barriers, waits for phases and for groups, fences.
WAITS = re.compile(r"\b(BAR|SYNCS\.PHASECHK|WARPGROUP\.DEPBAR|DEPBAR|MEMBAR|FENCE)\b")
# Shorter loops do nothing but wait.
_LEAST_LOOP, _LONGEST_WAIT = 12, 6


class Loop(NamedTuple):
    """The numbers of the first and the last instruction of a loop."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many instructions it has."""
        return self.last + 1 - self.first

    def is_around(self, other: Loop) -> bool:
        """Whether another loop stands in this one."""
        return self != other and self.first <= other.first and other.last <= self.last


@dataclass(slots=True)
class Code:
    """The instructions of one function, in order, and the number of the one behind each label."""

    texts: list[str] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def target(self, number: int) -> int | None:
        """Return where an instruction may jump to, None if it is no branch."""
        found = _BRANCH.search(self.texts[number])
        return None if found is None else self.labels.get(found[1])

    def loops(self, least: int = _LEAST_LOOP) -> Iterator[Loop]:
        """Yield what each branch that goes back repeats, without what only waits.

        A wait that takes longer stands behind the code, and goes back to where it came from.
        """
        for last in range(len(self.texts)):
            first = self.target(last)
            if first is None or first > last - least:
                continue
            if not self._goes_back_from_a_wait(last):
                yield Loop(first, last)

    def _goes_back_from_a_wait(self, number: int) -> bool:
        waits = self.target(number - 1)
        always = not _PREDICATE.match(self.texts[number])
        return always and waits is not None and number - _LONGEST_WAIT < waits < number

    def main_loop(self) -> Loop | None:
        """Return the smallest loop with products, else the largest with no loop inside, if any."""
        loops = set(self.loops())
        multiply = [
            loop
            for loop in loops
            if any(map(PRODUCTS.search, self.texts[loop.first : loop.last + 1]))
        ]
        if multiply:
            return min(multiply, key=lambda loop: loop.size)
        inner = [loop for loop in loops if not any(map(loop.is_around, loops))]
        return max(inner, key=lambda loop: loop.size, default=None)

    def step(self, loop: Loop | None) -> int:
        """Return the least number of instructions from the head of a loop to its last branch.

        Without a loop: from the entry to an end.
        """
        first, last = loop or Loop(0, len(self.texts) - 1)
        far = last - first + 1
        least = [far] * far
        least[0] = 1
        for number in range(first, last):
            here = least[number - first] + 1
            for following in self._following(number):
                if number < following <= last:
                    at = following - first
                    least[at] = min(least[at], here)
        if loop:
            return least[-1]
        ends = (n for n, text in enumerate(self.texts) if text.startswith("EXIT"))
        return min((least[n] for n in ends), default=far)

    def _following(self, number: int) -> Iterable[int]:
        target = self.target(number)
        ends = target is not None or _END.match(self.texts[number])
        goes_on = not ends or _PREDICATE.match(self.texts[number])
        return [n for n in (target, number + 1 if goes_on else None) if n is not None]


def functions(sass: str) -> dict[str, Code]:
    """Return the functions of a listing by their names, "" for lines before the first."""
    found = {"": Code()}
    code = found[""]
    for line in _LINE.finditer(sass):
        if line["entry"]:
            code = found[line["entry"]] = Code()
        elif line["label"]:
            code.labels[line["label"]] = len(code.texts)
        else:
            code.texts.append(line["text"])
    return {name: code for name, code in found.items() if code.texts}


@dataclass(frozen=True, slots=True)
class Cost:
    """The instructions of a function, of its main loop, of one step, and the waits in the loop."""

    name: str
    instructions: int
    loop: int
    step: int
    waits: int


def cost(sass: str) -> Cost:
    """Return the cost of the entry with the products, else of the one with most instructions."""
    every = functions(sass)

    def size(name: str) -> tuple[bool, int]:
        return any(map(PRODUCTS.search, every[name].texts)), len(every[name].texts)

    name = max(every, key=size)
    code = every[name]
    loop = code.main_loop()
    first, last = loop or (0, len(code.texts) - 1)
    waits = sum(map(bool, map(WAITS.search, code.texts[first : last + 1])))
    return Cost(name, len(code.texts), last + 1 - first, code.step(loop), waits)
