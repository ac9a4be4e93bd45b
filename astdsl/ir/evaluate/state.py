"""What an evaluation holds: memories with what was written, barriers, work in flight.

Invariant: an element counts as written only when its writer is known to be done: a copy in, when
its barrier was waited for. Copies and products take effect when they are issued, so what a
missing wait would show is found by these marks, not by wrong numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

import numpy as np

from astdsl.errors import ParallelConflict, ProtocolError
from astdsl.ir.core import Op, Value
from astdsl.ir.evaluate.table import EVALUATORS, Array
from astdsl.records import dataclass, field, replace
from astdsl.source import NOWHERE, Span

# What selects elements of an array: one slice, or one array of places, an axis.
Place: TypeAlias = tuple[Any, ...]
# Marks of `Shadow.reader`, beside the number of the step.
NOBODY, MANY = -1, -2
# Warps of a warpgroup.
WARPS = 4
# Marks of `Memory.private`: a store that asynchronous readers do not see yet, of which warpgroup.
VISIBLE = 0


def stored_mark(warpgroup: int) -> int:
    """Return the mark of a store of a warpgroup that is not fenced."""
    return 1 + 2 * warpgroup


def fenced_mark(warpgroup: int) -> int:
    """Return the mark of a store that is fenced, and not joined by a barrier."""
    return 2 + 2 * warpgroup


def is_stored(marks: Array) -> bool:
    """Whether any mark is of a store that is not fenced."""
    return bool((marks & 1).any())


@dataclass(slots=True)
class Shadow:
    """Who touched each element in a pipeline whose steps may run anywhere.

    Where warpgroups run the program themselves, `warpgroup` says which of the step's wrote it.
    """

    writer: Array
    reader: Array
    updater: Array
    warpgroup: Array | None = None

    @classmethod
    def of(cls, data: Array) -> Shadow:
        """Return a shadow of untouched elements."""
        return cls(*(np.full(data.shape, NOBODY) for _ in range(3)))


@dataclass(slots=True)
class Memory:
    """A ref's elements. `written` is None where every element is."""

    data: Array
    name: str
    span: Span
    written: Array | None = None
    shadow: Shadow | None = None
    # Of shared memory: how many asynchronous readers each element has, and stores not fenced.
    readers: Array | None = None
    private: Array | None = None
    # Of global memory: how many copies out write each element and are not known to be complete.
    writers: Array | None = None
    landing: list[Landing] = field(default_factory=list)
    # Of shared memory where warpgroups run the program themselves: who touched what, when last.
    accesses: dict[Any, Access] = field(default_factory=dict)
    # Of shared memory: what is lost when this is written.
    overlapping: list[Memory] = field(default_factory=list)
    # Of shared memory: what each store wrote last, the latest last.
    stores: dict[Span, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Access:
    """An access of a warpgroup to shared memory; `time` counts releases, the next one included."""

    warpgroup: int
    is_write: bool
    span: Span
    place: Place
    time: int


@dataclass(slots=True)
class Landing:
    """A copy in, issued and not known to be complete; `phase` is the one that it arrives in."""

    memory: Memory
    place: Place
    span: Span
    phase: int


@dataclass(slots=True)
class Barrier:
    """One mbarrier: completed phases, arrivals left, and whether the last phase was waited for."""

    arrivals: int
    pending: int
    span: Span
    phase: int = 0
    is_awaited: bool = True
    landings: list[Landing] = field(default_factory=list)
    # How many releases of each warpgroup who waits knows then, and after the next phase.
    known: list[int] = field(default_factory=list)
    coming: list[int] = field(default_factory=list)
    # Products in tensor memory, with the phase in which they arrive.
    products: list[tuple[int, Reading]] = field(default_factory=list)

    def arrive(self, span: Span) -> None:
        """Count one arrival; the last one completes the phase (PTX ISA 9.7.13.15)."""
        if not self.is_awaited:
            raise ProtocolError(
                "an arrival overruns the barrier: nobody waited for the phase before it",
                (span, "arrives"),
                (self.span, "the barrier"),
                help="wait for each phase before its barrier is used for the next",
            )
        self.pending -= 1
        if self.pending == 0:
            self.pending = self.arrivals
            self.phase += 1
            self.is_awaited = False

    def is_complete(self, parity: int) -> bool:
        """Return whether the phase of that parity is complete."""
        return (self.phase & 1) != parity

    def acknowledge(self) -> None:
        """Let the block see what arrived in the phases that are complete."""
        self.is_awaited = True
        done = [x for x in self.landings if x.phase < self.phase]
        self.landings = [x for x in self.landings if x.phase >= self.phase]
        for landing in done:
            assert landing.memory.written is not None, "shared memory has marks"
            landing.memory.written[landing.place] = True
            landing.memory.landing.remove(landing)
        for phase, product in self.products:
            if phase < self.phase and not product.is_read:
                product.end()
        self.products = [(phase, x) for phase, x in self.products if not x.is_read]


@dataclass(slots=True, eq=False)
class Accumulator:
    """An accumulator, and the products in flight that write it."""

    data: Array
    span: Span
    is_written: bool = False
    in_flight: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class Reading:
    """Asynchronous reads of on-chip memory by one copy out, product or load.

    A copy out has a `target`, which is written later than its source is read. `way_out` says how to
    wait for it.
    """

    span: Span
    sources: list[tuple[Memory, Place]]
    accumulator: Accumulator | None = None
    target: tuple[Memory, Place] | None = None
    is_read: bool = False
    way_out: str = "`wait_smem_to_gmem(n)` waits until at most n later copies read: wait"

    def begin(self) -> None:
        """Mark the elements as being read, and those of the target as being written."""
        self._mark_sources(1)
        if self.target is not None:
            memory, place = self.target
            if memory.writers is None:
                memory.writers = np.zeros(memory.data.shape, np.int16)
            memory.writers[place] += 1

    def end_reading(self) -> None:
        """Take the marks of the sources back."""
        if not self.is_read:
            self._mark_sources(-1)
            self.is_read = True
        if self.accumulator is not None:
            self.accumulator.in_flight.remove(self.span)

    def end(self) -> None:
        """Take all marks back."""
        self.end_reading()
        if self.target is not None:
            memory, place = self.target
            assert memory.writers is not None, "the target was marked when the copy began"
            memory.writers[place] -= 1

    def _mark_sources(self, change: int) -> None:
        for memory, place in self.sources:
            assert memory.readers is not None, "shared memory has marks"
            memory.readers[place] += change

    def touches(self, memory: Memory, place: Place) -> bool:
        """Return whether an element of the place is among those read."""
        mark = np.zeros(memory.data.shape, np.bool_)
        for source, where in self.sources:
            if source is memory:
                mark[where] = True
        return bool(mark[place].any())


@dataclass(slots=True)
class Issuer:
    """Who issues asynchronous work, and its work in flight; `allocated` counts its allocations."""

    copies: list[Reading] = field(default_factory=list)
    groups: deque[list[Reading]] = field(default_factory=deque)
    products: deque[Reading] = field(default_factory=deque)
    allocated: dict[Op, int] = field(default_factory=dict)
    tensor_products: list[Reading] = field(default_factory=list)
    tensor_loads: list[Reading] = field(default_factory=list)

    def readings(self) -> list[Reading]:
        """Return every asynchronous read that is not known to be complete."""
        return [*self.unfinished(), *self.tensor_loads]

    def unfinished(self) -> list[Reading]:
        """Return those that must not be left behind; a load of tensor memory may be."""
        copies = [*self.copies, *(r for group in self.groups for r in group)]
        self.tensor_products = [r for r in self.tensor_products if not r.is_read]
        unread = [r for r in (*copies, *self.tensor_products) if not r.is_read]
        return [*unread, *self.products]


@dataclass(slots=True)
class BlockState:
    """What one thread block owns: shared memory, barriers, and its issuers' work in flight.

    `made` holds what is allocated once for all threads: by the operation, the warpgroup that has it
    for itself, and how often a thread has run it before. `clocks` are the releases of warpgroups
    that each warpgroup knows.
    """

    memories: list[Memory] = field(default_factory=list)
    barriers: list[Barrier] = field(default_factory=list)
    issuers: list[Issuer] = field(default_factory=lambda: [Issuer()])
    clocks: list[list[int]] = field(default_factory=lambda: [[0]])
    made: dict[tuple[Op, int, int], Any] = field(default_factory=dict)

    def readings(self) -> list[Reading]:
        """Return every asynchronous read that is not known to be complete."""
        return [reading for issuer in self.issuers for reading in issuer.readings()]

    def finish(self) -> None:
        """Complain about work that is in flight when the block ends."""
        for reading in [r for issuer in self.issuers for r in issuer.unfinished()]:
            raise ProtocolError(
                "the block ends while this still reads its shared memory",
                (reading.span, "not waited for"),
                help=f"{reading.way_out} before the end",
            )
        for memory in self.memories:
            for landing in memory.landing:
                raise ProtocolError(
                    "the block ends while this copy may still write its shared memory",
                    (landing.span, "its barrier is not waited for"),
                    (memory.span, "written here"),
                    help="`barrier_wait` on the copy's barrier before the end",
                )
        for barrier in self.barriers:
            if barrier.pending != barrier.arrivals:
                raise ProtocolError(
                    f"the block ends in the middle of a phase: {barrier.pending} of "
                    f"{barrier.arrivals} arrivals are missing",
                    (barrier.span, "the barrier"),
                    help="let every arrival of a phase come, or count those that come in "
                    "`Barrier(num_arrivals=)`",
                )
        for issuer in self.issuers:
            for group in issuer.groups:  # read, and complete at the latest when the kernel is
                for copy in group:
                    copy.end()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Where a thread waits, and for which barrier."""

    thread: str
    wait: Span
    barrier: Barrier


@dataclass(frozen=True, slots=True, eq=False)
class Blocked:
    """What a thread yields that waits, or has tested a barrier in vain."""

    waits: tuple[Waiting, ...]
    is_test: bool = False


Run: TypeAlias = Generator[Blocked, None, Any]


@dataclass(slots=True)
class Frame:
    """One evaluation: the values so far, the block that runs, the step of a spread pipeline.

    `around` is the number of the step of the pipeline around, and how many it has.

    `order` is how a launch runs its blocks: ascending, descending, or the seed of a shuffle. Where
    each warpgroup runs the program itself there is a frame for each, and in `Warps` for each warp;
    `warpgroups` is their number then. `meanings` is what operations mean: a rehearsal has others.
    """

    values: dict[Value, Any]
    order: str | int = "ascending"
    block: BlockState = field(default_factory=BlockState)
    step: int | None = None
    around: tuple[int, int] = (0, 1)
    memories: list[Memory] = field(default_factory=list)
    warpgroups: int = 0
    warpgroup: int = 0
    warp: int | None = None
    meanings: Mapping[type[Op], Callable[..., Any]] = field(default_factory=lambda: EVALUATORS)

    @property
    def issuer(self) -> Issuer:
        """Who issues the asynchronous work: the first warp speaks for its warpgroup."""
        return self.block.issuers[self.warpgroup * WARPS + (self.warp or 0)]

    @property
    def clock(self) -> list[int]:
        """The releases of each warpgroup that this one knows."""
        return self.block.clocks[self.warpgroup]

    @property
    def thread(self) -> str:
        """How messages name who runs; empty where the block runs as one."""
        if not self.warpgroups:
            return ""
        whole = f"warpgroup {self.warpgroup}"
        return whole if self.warp is None else f"warp {self.warp} of {whole}"

    def warpgroup_frames(self, warpgroups: int) -> list[Frame]:
        """Return a frame for each warpgroup of a new block."""
        issuers = [Issuer() for _ in range(warpgroups * WARPS)]
        clocks = [[0] * warpgroups for _ in range(warpgroups)]
        block = BlockState(issuers=issuers, clocks=clocks)
        return [
            replace(self, values=dict(self.values), block=block, warpgroups=warpgroups, warpgroup=k)
            for k in range(warpgroups)
        ]

    def warp_frames(self) -> list[Frame]:
        """Return a frame for each warp of the warpgroup."""
        return [replace(self, values=dict(self.values), warp=k) for k in range(WARPS)]

    def allocated(self, op: Op, make: Callable[[], Any]) -> Any:
        """Return what an operation allocates: made by the first thread that runs it.

        For what each warpgroup has for itself, by the first of the warpgroup.
        """
        issuer = self.issuer
        number = issuer.allocated.get(op, 0)
        issuer.allocated[op] = number + 1
        owner = self.warpgroup if getattr(op, "owners", ()) else 0
        key = (op, owner, number)
        if key not in self.block.made:
            self.block.made[key] = make()
        return self.block.made[key]

    def __getitem__(self, value: Value) -> Any:
        return self.values[value]

    def number(self, value: Value) -> int:
        """Return an index scalar as a Python number."""
        return int(self.values[value])

    def numbers(self, values: tuple[Value, ...]) -> tuple[int, ...]:
        """Return index scalars as Python numbers."""
        return tuple(int(self.values[v]) for v in values)


def note_read(memory: Memory, place: Place, step: int, op: Op) -> None:
    """Record that a step of a spread pipeline reads; refuse what another step wrote."""
    shadow = _shadow(memory)
    if _is_of_another(shadow.writer[place], step):
        raise _conflict(memory, op, "reads what another step writes")
    if _is_of_another(shadow.updater[place], step):
        raise _conflict(memory, op, "reads what another step updates")
    shadow.reader[place] = _joined(shadow.reader[place], step)


def note_write(memory: Memory, place: Place, step: int, op: Op) -> None:
    """Record that a step of a spread pipeline writes; refuse what another step touched."""
    shadow = _shadow(memory)
    if _is_of_another(shadow.writer[place], step):
        raise _conflict(memory, op, "writes what another step writes")
    if _is_of_another(shadow.reader[place], step):
        raise _conflict(memory, op, "writes what another step reads")
    if _is_of_another(shadow.updater[place], step):
        raise _conflict(memory, op, "writes what another step updates")
    shadow.writer[place] = step


def note_warpgroup(memory: Memory, place: Place, frame: Frame, op: Op) -> None:
    """Record which warpgroup of a step writes; refuse what another one of the step wrote."""
    if not frame.warpgroups:
        return
    shadow = _shadow(memory)
    if shadow.warpgroup is None:
        shadow.warpgroup = np.full(memory.data.shape, NOBODY)
    if _is_of_another(shadow.warpgroup[place], frame.warpgroup):
        raise ParallelConflict(
            f"two warpgroups store one element of {memory.name}",
            (op.span, f"warpgroup {frame.warpgroup} stores what another one has stored"),
            help="let one of them store it, or give each its own window",
        )
    shadow.warpgroup[place] = frame.warpgroup


def note_update(memory: Memory, place: Place, step: int, op: Op) -> None:
    """Record that a step updates by atomics, which those of other steps do not hinder."""
    shadow = _shadow(memory)
    if _is_of_another(shadow.writer[place], step):
        raise _conflict(memory, op, "updates what another step writes")
    if _is_of_another(shadow.reader[place], step):
        raise _conflict(memory, op, "updates what another step reads")
    shadow.updater[place] = _joined(shadow.updater[place], step)


def _shadow(memory: Memory) -> Shadow:
    assert memory.shadow is not None, "a spread pipeline shadows every global memory"
    return memory.shadow


def _is_of_another(marks: Array, step: int) -> bool:
    return bool(((marks != NOBODY) & (marks != step)).any())


def _joined(marks: Array, step: int) -> Array:
    return np.where((marks == NOBODY) | (marks == step), step, MANY)


def _conflict(memory: Memory, op: Op, what: str) -> ParallelConflict:
    return ParallelConflict(
        f"a step {what} in {memory.name}",
        (op.span, what),
        *(() if memory.span == NOWHERE else ((memory.span, "this memory"),)),
        help="run that axis in order with `pipeline`, or give each step its own window",
    )
