"""Which registers of a kernel may be read before anything has written them.

Invariant: a register that is not found here is written on every path from the start before it is
read; only the others need to begin as undefined. What a thread really reads unwritten is then
found when it runs. Source: liveness, backwards over the instructions to a fixed point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from astdsl.emulator.registers import Place
from astdsl.emulator.syntax import Function, Instruction, Symbol

__all__ = ["Flow", "successors", "unread", "unwritten"]

_ENDS = frozenset({"bra", "brx", "ret", "exit", "trap"})


@dataclass(frozen=True, slots=True)
class Flow:
    """The registers that an instruction may read, and those that it surely writes."""

    reads: frozenset[Place]
    writes: frozenset[Place]


def unwritten(function: Function, flows: Sequence[Flow]) -> list[Place]:
    """Return the registers that some path from the start of a function reads unwritten."""
    count = len(function.instructions)
    bits = {place: 1 << i for i, place in enumerate(_places(flows[:count]))}
    reads = [_mask(flow.reads, bits) for flow in flows[:count]]
    kept = [~_mask(flow.writes, bits) for flow in flows[:count]]
    following = [successors(function, pc) for pc in range(count)]
    live = [0] * (count + 1)
    changed = True
    while changed:
        changed = False
        for pc in range(count - 1, -1, -1):
            after = 0
            for successor in following[pc]:
                after |= live[successor]
            found = reads[pc] | (after & kept[pc])
            if found != live[pc]:
                live[pc], changed = found, True
    return [place for place, bit in bits.items() if live[0] & bit]


def unread(function: Function, pc: int, place: Place, flows: Sequence[Flow]) -> bool:
    """Say whether nothing reads a register after the instruction at `pc` has written it."""
    seen: set[int] = set()
    left = successors(function, pc)
    while left:
        at = left.pop()
        if at in seen or at >= len(function.instructions):
            continue
        seen.add(at)
        if place in flows[at].reads:
            return False
        if place not in flows[at].writes:
            left += successors(function, at)
    return True


def _places(flows: Iterable[Flow]) -> list[Place]:
    found: set[Place] = set()
    for flow in flows:
        found |= flow.reads
    return sorted(found)


def _mask(places: frozenset[Place], bits: dict[Place, int]) -> int:
    return sum(bits.get(place, 0) for place in places)


def successors(function: Function, pc: int) -> list[int]:
    """Return where an instruction may go on; the place after the last is the end."""
    instruction = function.instructions[pc]
    base = instruction.opcode.partition(".")[0]
    goes_on = base not in _ENDS or instruction.predicate is not None
    return [pc + 1] * goes_on + [function.labels[name] for name in _targets(function, instruction)]


def _targets(function: Function, instruction: Instruction) -> Sequence[str]:
    base = instruction.opcode.partition(".")[0]
    if base not in ("bra", "brx"):
        return ()
    # `bra label`, or `brx.idx index, list`.
    name = instruction.operands[-1]
    if not isinstance(name, Symbol):
        raise AssertionError(f"{instruction.opcode} has no label")
    return (name.name,) if base == "bra" else function.branch_targets[name.name]
