"""Who waits for what when nobody can go on, and who asks in vain: what reports of deadlocks say.

Invariant: it only reads. Each line is of warps of one block that wait for the same thing at the
same instruction; blocks that lines have no room for are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from astdsl.emulator.faults import DeviceFault
from astdsl.emulator.lanes import WARP_THREADS
from astdsl.emulator.memory import SPACE_OF_WINDOW, WINDOW_SHIFT, WINDOWS
from astdsl.emulator.scalars import all_of

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Condition, Group, Machine
    from astdsl.emulator.scalars import Array

__all__ = ["Polls", "deadlock", "going_round"]

Describe = Callable[["Machine", "Lanes"], str]
# The same of a barrier's block, its offset, and the phase that is asked for.
DescribeBarrier = Callable[["Machine", int, int, int], str]
MAX_LINES = 12
# One for each element of the widest vector: powers of an odd number, modulo 2^64.
_FACTORS = np.cumprod(np.full(32, 0x9E3779B97F4A7C15, np.uint64))


class Polls:
    """What each lane asked for last without waiting: an mbarrier's phase, or words of memory.

    `place` is the instruction that asked since something changed, -1 for none; `asked` says which
    lanes asked since somebody last looked. Registers may hold something else by now: what was asked
    for is kept here. Lanes that ask at one place for the same words, and find them as they were,
    let others go first, unless a seed draws the order.
    """

    def __init__(self, m: Machine) -> None:
        self.asked = np.zeros(m.n_lanes, np.bool_)
        self.place = np.full(m.n_lanes, -1, np.int32)
        self.of_barriers: dict[int, DescribeBarrier] = {}
        self._address = np.zeros(m.n_lanes, np.int64)
        # Of barriers: the block that has it, and the parity, or the state token.
        self._row = np.zeros(m.n_lanes, np.int32)
        self._wanted = np.zeros(m.n_lanes, np.uint64)
        # Of words: what they held, as one number.
        self._answer = np.zeros(m.n_lanes, np.uint64)
        self._is_drawn = isinstance(m.launch.order, int)

    def note_barrier(
        self, m: Machine, lanes: Lanes, place: tuple[Array, Array], wanted: Array,
        describe: DescribeBarrier,
    ) -> None:  # fmt: skip
        """Note that lanes ask whether mbarriers, at a (row, offset) each, have passed a phase."""
        self._note(m, lanes, place[1])
        self._row[lanes.sel], self._wanted[lanes.sel] = place[0], wanted
        self.of_barriers[m.pc] = describe

    def note_memory(
        self, m: Machine, lanes: Lanes, space: str, addresses: Array, answers: Array | None
    ) -> None:
        """Note what lanes read of words which others may write: by strong loads, or atomics.

        None for atomics that tell their lanes nothing.
        """
        places, sel = addresses + WINDOWS.get(space, 0), lanes.sel
        if answers is not None:
            now = _as_number(answers)
            same = (self._address[sel] == places) & (self._answer[sel] == now)
            if not self._is_drawn and all_of(same & (self.place[sel] == m.pc)):
                m.let_others_ask()
            self._answer[sel] = now
        self._note(m, lanes, places)

    def _note(self, m: Machine, lanes: Lanes, addresses: Array) -> None:
        self.asked[lanes.sel] = True
        self.place[lanes.sel] = m.pc
        self._address[lanes.sel] = addresses

    def begin(self) -> None:
        """Forget what was asked: something has changed."""
        self.asked[:] = False
        self.place[:] = -1

    def text(self, m: Machine, lanes: Lanes) -> str:
        """Return what the first of the lanes, which are alike, asks for and where."""
        lane = int(lanes.index[0])
        place, address = int(self.place[lane]), int(self._address[lane])
        if place < 0:
            return f"goes round ({m.place_text(m.pc)})"
        if place in self.of_barriers:
            row, wanted = int(self._row[lane]), int(self._wanted[lane])
            what = self.of_barriers[place](m, row, address, wanted)
        else:
            what = f"reads {_word_text(m, address)} again and again"
        return f"{what} ({m.place_text(place)})"


def _as_number(answers: Array) -> Array:
    """Return one number for the elements that each lane has read; equal ones give the same."""
    words = np.ascontiguousarray(answers).view(f"u{answers.itemsize}").astype(np.uint64)
    if words.ndim == 1:
        return words
    mixed: Array = words @ _FACTORS[: words.shape[1]]
    return mixed


def _word_text(m: Machine, address: int) -> str:
    """Name a word by its generic address."""
    space = SPACE_OF_WINDOW.get(address >> WINDOW_SHIFT, "global")
    if space != "global":
        return f"{space} memory at {address - WINDOWS[space]:#x}"
    allocation = m.memory.globals.find(address)
    return f"global memory at {address:#x}{f' in {allocation.name}' if allocation else ''}"


class _Waits(NamedTuple):
    """Warps of one block that wait for the same."""

    block: int
    warps: list[int]
    threads: int
    text: str


def deadlock(m: Machine, blocked: Iterable[Group]) -> DeviceFault:
    """Return the fault of blocked groups that nothing can let go on."""
    groups = list(blocked)
    text = "deadlock: no thread can go on and no asynchronous operation is pending"
    return _fault(m, "E210", text, groups, _blocked(m, groups))


def going_round(m: Machine, ready: Iterable[Group], blocked: Iterable[Group]) -> DeviceFault:
    """Return the fault of groups that go round while nothing changes, and of those that wait."""
    groups, waiting, polls = list(ready), list(blocked), m.state(Polls)
    asks = [place for g in groups for place in np.unique(polls.place[g.lanes.sel]).tolist()]
    waits = [wait for group in groups for wait in _asking(m, group)] + _blocked(m, waiting)
    if any(place in polls.of_barriers for place in asks):
        text = "deadlock: threads ask for ever, and nothing changes any more"
        return _fault(m, "E210", text, groups + waiting, waits)
    text = f"{groups[0].lanes.n} threads go round for ever, and nothing changes any more"
    return _fault(m, "E215", text, groups + waiting, waits)


def _fault(
    m: Machine, code: str, text: str, groups: list[Group], waits: list[_Waits]
) -> DeviceFault:
    first = groups[0]
    blocks = {block for group in groups for block in m.block_of[group.lanes.sel].tolist()}
    lines = _lines(m, waits, len(blocks))
    m.pc = first.pc
    return m.fault(code, "\n".join([text, *lines]), int(first.lanes.index[0]))


def _blocked(m: Machine, groups: Iterable[Group]) -> list[_Waits]:
    found = []
    for group in groups:
        if group.condition is None:
            raise AssertionError("a blocked group waits for nothing")
        found += _by_warps(m, group, group.lanes, _waiting_text(group.condition))
    return found


def _waiting_text(condition: Condition) -> Describe:
    return lambda m, lanes: f"{condition.describe(m, lanes)} ({m.place_text(m.pc)})"


def _asking(m: Machine, group: Group) -> list[_Waits]:
    polls = m.state(Polls)
    places = polls.place[group.lanes.sel]
    found = []
    for place in np.unique(places):
        found += _by_warps(m, group, group.lanes.where(places == place), polls.text)
    return found


def _by_warps(m: Machine, group: Group, lanes: Lanes, describe: Describe) -> list[_Waits]:
    """Tell the warps of a group apart by what they wait for; the first lane of each speaks."""
    index = lanes.index
    blocks, warps = m.block_of[index], m.thread_of[index] // WARP_THREADS
    keys, counts = np.unique(np.stack([blocks, warps]), axis=1, return_counts=True)
    # One more than lines have room for, so that it is known that others wait.
    last = np.unique(keys[0])[: MAX_LINES + 1][-1]
    found: dict[tuple[int, str], _Waits] = {}
    for block, warp, count in zip(*keys.tolist(), counts.tolist(), strict=True):
        if block > last:
            break
        first = lanes.where((blocks == block) & (warps == warp))
        m.group, m.pc = group, group.pc
        text = describe(m, first)
        known = found.setdefault((block, text), _Waits(block, [], 0, text))
        threads = known.threads + count
        found[block, text] = known._replace(warps=[*known.warps, warp], threads=threads)
    return list(found.values())


def _lines(m: Machine, waits: list[_Waits], n_blocks: int) -> list[str]:
    """Write lines by block, and which of a block's warps have ended; all blocks are counted."""
    lines: list[str] = []
    for block in sorted({wait.block for wait in waits}):
        some = [_line(m, wait) for wait in waits if wait.block == block]
        left = {
            int(thread) // WARP_THREADS for thread in np.flatnonzero(m.live[block :: m.n_blocks])
        }
        ended = [warp for warp in range(m.n_warps) if warp not in left]
        if ended:
            some.append(f"  {_warps_text(ended)} of block {m.block_index(block)}: ended")
        if lines and len(lines) + len(some) > MAX_LINES:
            return [*lines, f"  and others: threads of {n_blocks} blocks wait in all"]
        lines += some
    return lines


def _line(m: Machine, wait: _Waits) -> str:
    who = f"{_warps_text(wait.warps)} of block {m.block_index(wait.block)}"
    return f"  {who} ({wait.threads} thread{'s' if wait.threads > 1 else ''}): {wait.text}"


def _warps_text(warps: list[int]) -> str:
    """Write numbers that ascend, neighbours as ranges: "warps 0-3, 5"."""
    parts: list[list[int]] = []
    for warp in warps:
        if parts and parts[-1][-1] == warp - 1:
            parts[-1].append(warp)
        else:
            parts.append([warp])
    text = ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
    return f"warp{'s' if len(warps) > 1 else ''} {text}"
