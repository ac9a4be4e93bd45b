"""How warps give each other states: through shared memory.

They meet once, after the states are stored: those that follow stand beside the ones that some warp
may still read.

Invariant: every thread that runs the program takes part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from astdsl.lowering.layout.levels import Level
from astdsl.lowering.layout.registers import WIDEST_ACCESS_BYTES
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.function import Emitter
from astdsl.lowering.nvptx.values import LV, bits_of, i32

State: TypeAlias = tuple[LV, ...]


def thread_number(emitter: Emitter, levels: Sequence[Level]) -> LV:
    """Return the number, i32, that the thread's digits of `levels` make, first one fastest."""
    total, step = i32(0), 1
    for level in levels:
        digit = emitter.thread_digit(level.divisor, level.extent)
        total = emitter.builder.add(total, emitter.builder.mul(digit, i32(step)))
        step *= level.extent
    return total


def is_first(emitter: Emitter, levels: Sequence[Level]) -> LV | None:
    """Return whether the thread's digits of `levels` are all 0; None: always."""
    result = None
    for level in levels:
        digit = emitter.thread_digit(level.divisor, level.extent)
        result = emitter.both(result, emitter.builder.icmp("eq", digit, i32(0)))
    return result


@dataclass(frozen=True, slots=True)
class Space:
    """A part of the scratch: elements of one type."""

    builder: Builder
    type: str
    pointer: LV

    @property
    def memory_type(self) -> str:
        """The type in memory."""
        return "i8" if self.type == "i1" else self.type

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return bits_of(self.memory_type) // 8

    def store(self, value: LV, index: LV, offset: int) -> None:
        """Write the element `index + offset`."""
        wide = self.builder.cast("zext", value, "i8") if self.type == "i1" else value
        self.builder.store(wide, self._place(index, offset), self.element_bytes)

    def load(self, index: LV, offset: int) -> LV:
        """Read the element `index + offset`."""
        value = self.builder.load(self.memory_type, self._place(index, offset), self.element_bytes)
        return self.builder.cast("trunc", value, "i1") if self.type == "i1" else value

    def _place(self, index: LV, offset: int) -> LV:
        # A constant apart, so that LLVM joins the accesses.
        first = self.builder.gep(self.memory_type, self.pointer, index)
        return self.builder.gep(self.memory_type, first, i32(offset))


def _spaces_for(
    emitter: Emitter, state: State, elements: int
) -> tuple[list[Space], tuple[int, int]]:
    """Share free bytes of the scratch among the registers of a state, the widest first.

    Returns from where to where they are, too.
    """
    sizes = [elements * -(-bits_of(value.type) // 8) for value in state]
    first = end = emitter.free_scratch(sum(sizes))
    spaces = {}
    for number, value in sorted(enumerate(state), key=lambda pair: -bits_of(pair[1].type)):
        spaces[number] = Space(emitter.builder, value.type, emitter.scratch(end))
        end += sizes[number]
    end = -(-end // WIDEST_ACCESS_BYTES) * WIDEST_ACCESS_BYTES
    emitter.shared.require_scratch(end)
    return [spaces[number] for number in range(len(state))], (first, end)


@dataclass(frozen=True, slots=True)
class Board:
    """Where warps leave states for each other: one for each warp, register and other place.

    `across` are the levels of the warps that read each other's states, `kept` the other digits
    that tell states apart, `same` those whose threads hold the same state.
    """

    emitter: Emitter
    across: Sequence[Level]
    kept: Sequence[Level]
    same: Sequence[Level]

    def exchanged(self, states: Sequence[State]) -> list[list[State]]:
        """Return for each of the thread's states those of all warps, in order of their digits."""
        emitter, warps = self.emitter, _count(self.across)
        places = _count(self.kept) * warps
        spaces, used = _spaces_for(emitter, states[0], len(states) * places)
        first = emitter.builder.mul(thread_number(emitter, self.kept), i32(warps))
        own = emitter.builder.add(first, thread_number(emitter, self.across))
        with emitter.guarded(is_first(emitter, self.same)):
            for k, state in enumerate(states):
                for space, value in zip(spaces, state, strict=True):
                    space.store(value, own, k * places)
        emitter.synchronise()
        emitter.note_scratch_reads(used)
        return [
            [tuple(s.load(first, k * places + number) for s in spaces) for number in range(warps)]
            for k in range(len(states))
        ]


def _count(levels: Sequence[Level]) -> int:
    total = 1
    for level in levels:
        total *= level.extent
    return total
