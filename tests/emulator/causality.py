"""Whether a run orders all that conflicts, so that each other schedule of the launch does the same.

A second opinion on races, by other means than the emulator's (`knowledge.py`), for the question
whether a barrier or an order may be missing. If in one run each two conflicting accesses are
ordered, every arrival at a barrier after the phase before it, and every wait before the next phase
completes, then no schedule can do anything else: barriers let the same threads through, and reads
see the same writes. Invariant: what is not modelled (copies by threads, words that others wait for)
makes the answer no.
What it rests on: a product of a warpgroup, or a pair, is complete for all of its warps together.
Sources: PTX ISA 8.9 "Causality order", 9.7.13.15 "mbarrier", 9.7.13.4 "membar / fence".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.races import narrowest_bytes
from tests.emulator.knowledge import WARP, Array, History, Known, Threads, join, nothing

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
Key = tuple[Any, ...]


@dataclass(eq=False)
class Part:
    """What one asynchronous operation does to one kind of memory of one block.

    `known` is ordered before it, `past` has happened before it can complete.
    """

    number: int
    space: str
    row: int
    mask: Array
    writes: bool
    issuers: frozenset[int]
    operation: Operation
    known: Known
    past: Known
    grouped: bool = False
    done: bool = False

    @property
    def bit(self) -> int:
        return 1 << self.number

    def precedes(self, other: Part) -> bool:
        """Say whether both are issued by one thread to a pipe that keeps their order."""
        order = self.operation.order
        return order is not None and (order, self.issuers) == (other.operation.order, other.issuers)


@dataclass(eq=False)
class Phases:
    """A barrier: what its arrivals know, what those of the last phase knew, and who has seen it."""

    coming: Known
    last: Known
    seen: Array
    count: int = 0


@dataclass(eq=False)
class Signal:
    """A barrier at which an operation will arrive: who issued it, and what they knew."""

    key: Key
    count: int
    issuer: int
    past: Known


@dataclass
class Findings:
    """What is not ordered, as sentences; how many machines were watched."""

    texts: list[str] = field(default_factory=list)
    machines: int = 0


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
        words = {"shared": m.memory.shared.row_bytes // self.word_bytes, "tensor": TENSOR_WORDS}
        self.history = {
            space: History((m.n_blocks, n_words, -(-n // WARP))) for space, n_words in words.items()
        }
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

    # Accesses of threads.

    def access(self, kind: str, space: str, who: Array, rows: Array, words: Array) -> None:
        """Check and note accesses of words [n, k] by n threads."""
        history, threads = self.history[space], self.threads
        rows = np.broadcast_to(rows, len(who))
        words = np.broadcast_to(words, (len(who), words.shape[1]))
        for other in CONFLICTS[kind]:
            if history.is_late(other, rows, words, threads.data, who):
                self.find(f"{space} memory is {kind} after it was {other}, in no order")
        self._check_parts(kind, space, who, rows, words)
        now = threads.tick()
        if kind in {"written", "made"}:
            history.clear(rows, words)
        history.note(kind, rows, words, who, now)
        self.visits[rows, who % threads.n] = now

    def _check_parts(self, kind: str, space: str, who: Array, rows: Array, words: Array) -> None:
        places = words * self.word_bytes // CHUNK_BYTES if space == "shared" else words
        for part in self.parts:
            if part.space != space or not (part.writes or kind in WRITES):
                continue
            hit = (rows == part.row) & part.mask[places].any(axis=1)
            if any(not self.threads.done[thread] & part.bit for thread in who[hit].tolist()):
                self.find(f"{space} memory is {kind} in no order with the {part.operation.what}")

    def words(self, offsets: Array, width: int) -> Array:
        """Return the words of accesses of shared memory."""
        first = np.atleast_1d(offsets)[:, None] // self.word_bytes
        found: Array = first + np.arange(max(width // self.word_bytes, 1))
        return found

    # Asynchronous parts.

    def begin(
        self, operation: Operation, space: str, lanes: Any, rows: Array, masks: dict[int, Array],
        *, writes: bool,
    ) -> None:  # fmt: skip
        """Check and note what an operation does to places of some blocks."""
        numbers = self.numbers(lanes)
        self.threads.tick()
        for row, mask in masks.items():
            # One lane for each row, or all those of the row's block.
            own = rows if len(rows) == len(numbers) else self.m.block_of[lanes.index]
            mine = np.unique(numbers[own == row] if (own == row).any() else numbers)
            part = Part(
                self.n_parts, space, row, mask, writes, frozenset(mine.tolist()), operation,
                self.threads.common(mine), self.threads.past(mine),
            )  # fmt: skip
            self.n_parts += 1
            self._check_part(part)
            self.parts.append(part)
            self.visits[row, mine % self.threads.n] = self.threads.now

    def _check_part(self, part: Part) -> None:
        for other in self.parts:
            meets = (other.space, other.row) == (part.space, part.row)
            if not meets or not (other.writes or part.writes) or other.precedes(part):
                continue
            if other.operation is part.operation or part.known.done & other.bit:
                continue
            if (other.mask & part.mask).any():
                self.find(f"the {part.operation.what} is in no order with {other.operation.what}")
        history, at = self.history[part.space], np.flatnonzero(part.mask)
        if part.space == "shared":
            each = CHUNK_BYTES // self.word_bytes
            at = (at[:, None] * each + np.arange(each)).reshape(-1)
        row, who = np.array([part.row]), np.array([0])
        for kind in CONFLICTS["written" if part.writes else "read"]:
            # Only what threads have stored needs a fence of the proxy.
            by_proxy = part.space == "shared" and kind in {"written", "strongly written"}
            known = part.known.proxy if by_proxy else part.known.data
            if history.is_late(kind, row, at[None], known[None], who):
                self.find(f"the {part.operation.what} comes in no order after what was {kind}")
        if part.writes:
            history.clear(row, at[None])

    def end(self, operation: Operation, *, grouped: bool = False) -> None:
        """Note that an operation has done its parts."""
        for part in self.parts:
            if part.operation is operation:
                part.done, part.grouped = True, grouped

    def know_groups(self, lanes: Any) -> None:
        """Let threads know of their own parts that they have waited for in groups."""
        numbers = self.numbers(lanes)
        for part in self.parts:
            if part.done and part.grouped:
                mine = numbers[np.isin(numbers, list(part.issuers))]
                self.threads.learn(mine, self._told([part]))

    def _told(self, parts: list[Part]) -> Known:
        """Return what those know who know that parts are done."""
        told = nothing(self.threads.n)
        for part in parts:
            told = told._replace(
                cause=np.maximum(told.cause, part.past.cause),
                done=told.done | part.bit,
                over=told.over | part.past.over | part.bit,
            )
        return told

    def retire(self) -> None:
        """Forget the parts that every thread knows of."""
        left = []
        for part in self.parts:
            first = part.row // self.size * self.threads.n
            cluster = self.threads.done[first : first + self.threads.n]
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
        phases, past = self._phases(key), self.threads.past(who)
        phases.last = phases.last._replace(cause=past.cause, over=past.over)

    def arrive(self, key: Key, who: Array, count: int, *, relaxed: bool) -> None:
        """Note that threads arrive; `count` phases are complete then."""
        phases, threads = self._phases(key), self.threads
        threads.tick()
        if not threads.common(who).knows(phases.last):
            self.find(f"an arrival at {key} may count in the phase before")
        phases.coming = join(phases.coming, threads.past(who), relaxed=relaxed)
        self.complete(key, count)

    def arrive_late(self, signal: Signal, parts: list[Part]) -> None:
        """Note that an operation arrives, or counts its bytes, which has done some parts."""
        phases = self._phases(signal.key)
        if signal.count != phases.count or not signal.past.knows(phases.last):
            self.find(f"an operation at {signal.key} may count in the phase before")
        told = self._told(parts)
        phases.coming = join(join(phases.coming, told), signal.past, relaxed=True)

    def complete(self, key: Key, count: int) -> None:
        """Note how many phases of a barrier are complete."""
        phases = self.barriers[key]
        if count == phases.count:
            return
        if count > phases.count + 1:
            self.find(f"two phases of {key} complete at once")
        if (phases.seen > phases.coming.cause).any():
            self.find(f"a phase of {key} may complete before all have seen the one before")
        phases.last, phases.coming = phases.coming, nothing(self.threads.n)
        phases.seen[:] = 0
        phases.count = count

    def passes(self, key: Key, who: Array, *, relaxed: bool, sees: bool) -> None:
        """Note that threads pass a barrier; `sees`: by looking at its phase, which must not go on.

        Threads that the hardware lets go on have passed at once.
        """
        phases = self._phases(key)
        self.threads.learn(who, phases.last, relaxed=relaxed)
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
            if (visits > known.cause).any() or any(not known.over & part.bit for part in far):
                self.find("a block ends, and others may still come to its memory")
