"""Whether a run orders all that conflicts, so that each other schedule of the launch does the same.

A second opinion on races, by other means than the emulator's (`knowledge.py`), for the question
whether a barrier or an order may be missing. If in one run each two conflicting accesses are
ordered, every arrival at a barrier after the phase before it, and every wait before the next phase
completes, then no schedule can do anything else: barriers let the same threads through, and reads
see the same writes. Invariant: what is not modelled (copies by threads, words that others wait for)
makes the answer no.
What it rests on: a product of a warpgroup, or a pair, is complete for all of its warps together;
lanes of a warp that wait for a phase together see it together.
Sources: PTX ISA 8.9 "Causality order", 9.7.13.15 "mbarrier", 9.7.13.4 "membar / fence".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.races import narrowest_bytes
from tests.emulator.knowledge import (
    CAUSE,
    DATA,
    PROXY,
    WARP,
    Array,
    History,
    Known,
    Threads,
    join,
    nothing,
)  # fmt: skip
from tests.emulator.operations import Key, Part, Signal

CHUNK_BYTES = 16
# Of tensor memory: groups of 16 lanes times columns.
TENSOR_WORDS = 8 * 512
# Kinds of accesses of threads, and which earlier ones each conflicts with. Words that are "made"
# are no ordinary stores: mbarriers, addresses of tensor memory, its cells.
CONFLICTS = {
    "read": ("written", "made", "strongly written"),
    "written": ("read", "written", "made", "touched", "strongly read", "strongly written"),
    "made": ("read", "written", "made", "touched", "strongly read", "strongly written"),
    "touched": ("written", "made", "strongly written"),
    "strongly read": ("written", "made"),
    "strongly written": ("read", "written", "made", "touched"),
}
WRITES = ("written", "made", "strongly written")
# What lets a schedule decide what threads do, and what is not modelled.
DECIDES = re.compile(
    r"mbarrier\.test_wait|ld\.(?:\w+\.)*(?:acquire|relaxed|volatile|mmio)|clusterlaunchcontrol"
)
UNKNOWN = re.compile(
    r"mbarrier\.(?:complete_tx|expect_tx|arrive_drop)|cp\.async\.(?:c[ag]|mbarrier)|griddepcontrol"
)


@dataclass(eq=False)
class Phases:
    """A barrier: what its arrivals know, what those of the last phase knew, and who has seen it."""

    coming: Known
    last: Known
    seen: Array
    count: int = 0

    def may_overtake(self) -> bool:
        """Say whether this phase may complete before a warp has seen the one before.

        Of lanes that have seen it together one that is known to have is enough.
        """
        seen, cause = (each.reshape(-1, WARP) for each in (self.seen, self.coming.times[CAUSE]))
        told = np.where(cause >= seen, seen, -1)
        late = (seen[:, :, None] != told[:, None, :]).all(axis=2)
        return bool((late & (seen > 0)).any())


@dataclass
class Findings:
    """What is not ordered, as sentences; how many machines were watched, and how the last is."""

    texts: list[str] = field(default_factory=list)
    machines: int = 0
    # Of the machine that was made last, which runs.
    order: Order = field(init=False, repr=False)


def unclear(instructions: Sequence[Any]) -> Iterator[str]:
    """Yield which instructions no order says anything about."""
    read: set[str] = set()
    for each in instructions:
        # A register that is alone in front is a result.
        results = not each.opcode.startswith("bar")
        for at, operand in enumerate(each.operands):
            if at or not results or not hasattr(operand, "name"):
                read.update(re.findall(r"name='([^']+)'", repr(operand)))
    for each in instructions:
        opcode = each.opcode
        answer = opcode.startswith("atom") and getattr(each.operands[0], "name", "_") in read
        if answer or DECIDES.match(opcode):
            yield f"{opcode} lets a schedule decide"
        if UNKNOWN.match(opcode):
            yield f"{opcode} is not modelled"


class Order:
    """The threads, barriers, accesses and asynchronous parts of one machine."""

    def __init__(self, m: Any, findings: Findings) -> None:
        self.m, self.findings = m, findings
        self.size, self.serial = m.launch.cluster_size, findings.machines
        if m.n_threads % WARP:
            self.find("a block ends in the middle of a warp")
        findings.texts += unclear(m.program.instructions)
        n = self.size * m.n_threads
        self.threads = Threads(m.n_blocks * m.n_threads, n)
        self.word_bytes = narrowest_bytes(m.program)
        self.histories: dict[str, History] = {}
        self.add_history("shared", m.n_blocks, m.memory.shared.row_bytes // self.word_bytes)
        self.add_history("tensor", m.n_blocks, TENSOR_WORDS)
        self.barriers: dict[Key, Phases] = {}
        self.parts: list[Part] = []
        self.n_parts = 0
        self.signals: dict[Operation, list[Signal]] = {}
        # What is going on: barriers that a fence has shown, the lanes that use one, the operation.
        self.shown: tuple[Any, Array, Array] | None = None
        self.using: Any = None
        self.performing: Operation | None = None
        # When threads of its cluster have last come to each block's memory.
        self.visits = np.zeros((m.n_blocks, n), np.int32)

    def find(self, text: str) -> None:
        """Note that something is not ordered, or not known to be."""
        self.findings.texts.append(f"{self.m.place_text(self.m.pc)}: {text}")

    def numbers(self, lanes: Any) -> Array:
        """Return the numbers of lanes' threads through all blocks."""
        at = lanes.index
        found: Array = self.m.block_of[at] * self.m.n_threads + self.m.thread_of[at]
        return found

    def is_fenced(self, space: str) -> bool:
        """Say whether accesses of a memory are ordered by fences beside what orders threads."""
        return space == "tensor" and bool(self.m.launch.fences.tcgen05)

    # Accesses of threads.

    def add_history(self, space: str, n_rows: int, n_words: int) -> None:
        """Begin to keep the accesses of a memory."""
        self.histories[space] = History((n_rows, n_words, -(-self.threads.n // WARP)))

    def access(
        self, kind: str, space: str, who: Array, rows: Array, words: Array, *, fenced: bool = True
    ) -> None:
        """Check and note accesses of words [n, k] by n threads."""
        history, threads = self.histories[space], self.threads
        rows = np.broadcast_to(rows, len(who))
        words = np.broadcast_to(words, (len(who), words.shape[1]))
        fenced &= self.is_fenced(space)
        known = threads.fenced if fenced else threads.times[DATA]
        for other in CONFLICTS[kind]:
            if history.is_late(other, rows, words, known, who):
                self.find(f"{space} memory is {kind} after it was {other}, in no order")
        if kind in CONFLICTS[kind] and _meet(who // WARP, rows, words):
            self.find(f"{space} memory is {kind} by several warps at once")
        now = threads.tick()
        if space in ("shared", "tensor"):
            done = threads.fenced_done if fenced else threads.done
            self._check_parts(kind, space, who, (rows, words), done)
            self.visits[rows, who % threads.n] = now
        if kind in ("written", "made"):
            history.clear(rows, words)
        history.note(kind, rows, words, who, now)

    def access_global(self, kind: str, place: Any, lanes: Any, at: Array, width: int) -> None:
        """Check and note accesses of an allocation of global memory, by its bytes."""
        space = f"global {place.low}"
        if space not in self.histories:
            self.add_history(space, 1, place.high - place.low)
        bytes_ = (at - place.low)[:, None] + np.arange(width)
        self.access(kind, space, self.numbers(lanes), np.zeros(1, np.int64), bytes_)

    def _check_parts(
        self, kind: str, space: str, who: Array, where: tuple[Array, Array], done: list[int]
    ) -> None:
        rows, words = where
        places = words * self.word_bytes // CHUNK_BYTES if space == "shared" else words
        for part in self.parts:
            if part.space != space or not (part.writes or kind in WRITES):
                continue
            hit = (rows == part.row) & part.mask[places].any(axis=1)
            if any(not done[thread] & part.bit for thread in who[hit].tolist()):
                self.find(f"{space} memory is {kind} in no order with the {part.operation.what}")

    def words(self, offsets: Array, width: int) -> Array:
        """Return the words of accesses of shared memory."""
        first = np.atleast_1d(offsets)[:, None] // self.word_bytes
        found: Array = first + np.arange(max(width // self.word_bytes, 1))
        return found

    # Asynchronous parts.

    def begin(
        self, operation: Operation, space: str, lanes: Any, rows: Array, masks: Array,
        *, writes: bool,
    ) -> None:  # fmt: skip
        """Check and note what an operation does to places of some blocks, a mask for each."""
        numbers, threads = self.numbers(lanes), self.threads
        threads.tick()
        for at, (row, mask) in enumerate(zip(rows.tolist(), masks, strict=True)):
            mine = numbers[at : at + 1]
            if len(rows) != len(numbers):
                mine = self._issuers(lanes, numbers, row)
            part = Part(
                self.n_parts, space, row, mask, writes, frozenset(mine.tolist()), operation,
                threads.common(mine, fenced=self.is_fenced(space)), threads.past(mine),
            )  # fmt: skip
            self.n_parts += 1
            self._check_part(part)
            self.parts.append(part)
            self.visits[row, mine % threads.n] = threads.now

    def _issuers(self, lanes: Any, numbers: Array, row: int) -> Array:
        """Return those of the lanes in a block, or, if there are none, in its cluster."""
        blocks = self.m.block_of[lanes.index]
        own = blocks == row
        found: Array = numbers[own if own.any() else blocks // self.size == row // self.size]
        return found

    def _check_part(self, part: Part) -> None:
        for other in self.parts:
            if not part.known.done & other.bit and part.meets(other):
                self.find(f"the {part.operation.what} is in no order with {other.operation.what}")
        history, at = self.histories[part.space], np.flatnonzero(part.mask)
        if part.space == "shared":
            each = CHUNK_BYTES // self.word_bytes
            at = (at[:, None] * each + np.arange(each)).reshape(-1)
        row, who = np.array([part.row]), np.array([0])
        for kind in CONFLICTS["written" if part.writes else "read"]:
            # Only what threads have stored needs a fence of the proxy.
            by_proxy = part.space == "shared" and kind in ("written", "strongly written")
            known = part.known.times[PROXY if by_proxy else DATA]
            if history.is_late(kind, row, at[None], known[None], who):
                self.find(f"the {part.operation.what} comes in no order after what was {kind}")
        if part.writes:
            history.clear(row, at[None])

    def end(self, operation: Operation) -> None:
        """Note that an operation has done its parts."""
        for part in self.parts:
            part.done |= part.operation is operation

    def know(self, threads: Array, operation: Operation) -> None:
        """Let threads know that the parts of an operation are done which they have issued."""
        for part in self.parts:
            if part.operation is operation:
                mine = [thread for thread in threads.tolist() if thread in part.issuers]
                self.threads.learn(np.array(mine, np.int64), self._told([part]))

    def _told(self, parts: Iterable[Part]) -> Known:
        """Return what those know who know that parts are done, and the parts before them."""
        told = nothing(self.threads.n)
        for part in parts:
            past = part.past.caused()
            done = Known(past.times, part.known.done | part.bit, past.over | part.bit)
            told = join(told, done)
        return told

    def retire(self) -> None:
        """Forget the parts that every thread knows of."""
        left = []
        for part in self.parts:
            threads, fenced = self.threads, self.is_fenced(part.space)
            first = part.row // self.size * threads.n
            cluster = (threads.fenced_done if fenced else threads.done)[first : first + threads.n]
            if not (part.done and all(done & part.bit for done in cluster)):
                left.append(part)
        self.parts = left

    # Barriers.

    def _phases(self, key: Key) -> Phases:
        if key not in self.barriers:
            fresh = nothing(self.threads.n)
            self.barriers[key] = Phases(fresh, fresh, np.zeros(self.threads.n, np.int32))
        return self.barriers[key]

    def make(self, key: Key, who: Array) -> None:
        """Note that a thread makes a barrier."""
        self.barriers.pop(key, None)
        phases = self._phases(key)
        phases.last = self.threads.past(who).caused()

    def arrive(self, key: Key, who: Array, count: int, *, relaxed: bool) -> None:
        """Note that threads arrive; `count` phases are complete then."""
        phases, threads = self._phases(key), self.threads
        threads.tick()
        if not threads.common(who).knows(phases.last):
            self.find(f"an arrival at {key} may count in the phase before")
        past = threads.past(who)
        phases.coming = join(phases.coming, past.caused() if relaxed else past)
        self.complete(key, count)

    def arrive_late(self, signal: Signal, parts: Iterable[Part]) -> None:
        """Note that an operation arrives, or counts its bytes, which has done some parts."""
        phases = self._phases(signal.key)
        if signal.count != phases.count or not signal.past.knows(phases.last):
            self.find(f"an operation at {signal.key} may count in the phase before")
        told = join(self._told(parts), signal.past.caused())
        phases.coming = join(phases.coming, told)

    def complete(self, key: Key, count: int) -> None:
        """Note how many phases of a barrier are complete."""
        phases = self.barriers[key]
        if count == phases.count:
            return
        if count > phases.count + 1:
            self.find(f"two phases of {key} complete at once")
        if phases.may_overtake():
            self.find(f"a phase of {key} may complete before all have seen the one before")
        phases.last, phases.coming = phases.coming, nothing(self.threads.n)
        phases.seen[:] = 0
        phases.count = count

    def passes(self, key: Key, who: Array, *, relaxed: bool, sees: bool) -> None:
        """Note that threads pass a barrier; `sees`: by looking at its phase, which must not go on.

        Threads that the hardware lets go on have passed at once.
        """
        phases = self._phases(key)
        self.threads.learn(who, phases.last.caused() if relaxed else phases.last)
        self.threads.tick()
        if sees:
            phases.seen[who % self.threads.n] = self.threads.now

    def ends(self, rows: Array) -> None:
        """Check that nobody may come to the memory of blocks that have ended."""
        n = self.m.n_threads
        for row in rows.tolist():
            mine = np.arange(row * n, row * n + n)
            known = self.threads.past(mine)
            visits = self.visits[row].copy()
            visits[mine % self.threads.n] = 0
            parts = [part for part in self.parts if part.row == row]
            far = [part for part in parts if part.issuers.isdisjoint(mine.tolist())]
            if (visits > known.times[CAUSE]).any() or any(not known.over & p.bit for p in far):
                self.find("a block ends, and others may still come to its memory")


def _meet(warps: Array, rows: Array, words: Array) -> bool:
    """Say whether different warps use one of the words [n, k] of n rows at once."""
    if (warps == warps[0]).all():
        return False
    warps = np.broadcast_to(warps[:, None], words.shape).reshape(-1)
    places = (rows[:, None] * (int(words.max()) + 1) + words).reshape(-1)
    order = np.lexsort((warps, places))
    places, warps = places[order], warps[order]
    return bool(((places[1:] == places[:-1]) & (warps[1:] != warps[:-1])).any())
