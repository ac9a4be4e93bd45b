"""A second opinion on order: what of a run is not ordered without what one line orders.

A run of a program on the emulator is watched, and what happens before what is worked out from its
barriers, mbarriers and waits alone, with each asynchronous operation an actor of its own; what one
line orders is left out. Invariant: if nothing is found, two accesses of one place, of which one
writes, are ordered by other synchronisation in any schedule of this launch, and no phase of an
mbarrier can be mistaken for another. What is not modelled (other blocks, reductions in flight,
global memory of the async proxy) is found too, so that it proves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from astdsl.emulator.asynchronous import Asynchronous, Operation
from astdsl.emulator.copies import Transfer
from astdsl.emulator.formats.fragments import TMEM_COLUMNS
from astdsl.emulator.global_memory import GlobalMemory
from astdsl.emulator.groups import GroupLedger
from astdsl.emulator.guard import CHUNK_BYTES, SharedGuard
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.machine import Machine
from astdsl.emulator.mbarriers import BARRIER_BYTES, Mbarriers, mbarriers_of
from astdsl.emulator.races import SharedRaces, narrowest_bytes
from astdsl.emulator.tensor_memory import N_GROUPS, TensorMemory

Array = np.ndarray[Any, Any]
ALWAYS = 1 << 30
GLOBAL_WORD_BYTES = 4
Phase = tuple[int, int, int]


class Past:
    """What somebody knows: up to when each warp, and which asynchronous operations, a bit each.

    `tensor` is up to when of the warps' accesses of tensor memory, by their fences before.
    """

    def __init__(self, times: Array, done: int = 0, tensor: Array | None = None) -> None:
        self.times, self.done = times, done
        self.tensor = np.zeros_like(times) if tensor is None else tensor

    def copy(self) -> Past:
        return Past(self.times.copy(), self.done, self.tensor.copy())

    def join(self, other: Past) -> None:
        np.maximum(self.times, other.times, out=self.times)
        np.maximum(self.tensor, other.tensor, out=self.tensor)
        self.done |= other.done

    def meet(self, other: Past) -> None:
        np.minimum(self.times, other.times, out=self.times)
        np.minimum(self.tensor, other.tensor, out=self.tensor)
        self.done &= other.done

    def covers(self, other: Past) -> bool:
        return bool((self.times >= other.times).all()) and not other.done & ~self.done


@dataclass
class Part:
    """One block's part of an asynchronous operation, and what its completion tells."""

    row: int
    number: int
    told: Past | None = None


class Places:
    """The last accesses of some memory's words, by warp of the block that they belong to."""

    def __init__(self, n_warps: int, n_words: int) -> None:
        self.written = np.zeros((n_warps, n_words), np.int32)
        self.read = np.zeros((n_warps, n_words), np.int32)
        self.filled = np.full(n_words, -1, np.int32)
        # What operations read, by block.
        self.fetched: dict[int, dict[int, Array]] = {}
        self._marked = np.zeros(n_words, np.bool_)

    def disorder(self, words: Array, past: Past, row: int, *, writes: bool) -> str:
        """Say which access of words is not known to somebody who uses them, "" for none."""
        base = row * len(self.written)
        known = past.times[base : base + len(self.written)][:, None]
        if (self.written[:, words] > known).any():
            return "a write of another warp"
        if any(not past.done >> int(op) & 1 for op in np.unique(self.filled[words]) if op >= 0):
            return "an operation that fills it"
        if writes and (self.read[:, words] > known).any():
            return "a read of another warp"
        return "an operation that reads it" if writes and self._in_use(words, past, row) else ""

    def _in_use(self, words: Array, past: Past, row: int) -> bool:
        self._marked[words] = True
        reads = self.fetched.get(row, {}).items()
        unknown = (at for op, at in reads if not past.done >> op & 1)
        found = any(bool(self._marked[at].any()) for at in unknown)
        self._marked[words] = False
        return found


class Order:
    """What happens before what in the launches of a program, without the edges of one line."""

    def __init__(self, line: int, *, gone: bool = False, fenced: bool = False) -> None:
        """Leave out the edges of a line.

        `gone` says that it does not arrive anywhere either, `fenced` that accesses of tensor memory
        are ordered by `tcgen05.fence` beside what orders threads.
        """
        self.line, self.gone, self.fenced = line, gone, fenced
        self.found: list[str] = []

    # What the run of one machine begins with.

    def begin(self, m: Machine) -> None:
        self.m = m
        self.n_warps = -(-m.n_threads // 32)
        n = m.n_blocks * self.n_warps
        self.now = 1
        self.past = [Past(np.where(np.arange(n) == w, ALWAYS, 0)) for w in range(n)]
        self.acquired = [past.copy() for past in self.past]
        self.released = [0] * n
        shared = m.memory.shared
        self.word_bytes = narrowest_bytes(m.program)
        self.row_words = shared.row_bytes // self.word_bytes
        self.shared = Places(self.n_warps, m.n_blocks * self.row_words)
        self.tensor = Places(self.n_warps, m.n_blocks * N_GROUPS * TMEM_COLUMNS)
        self.others: dict[int, Places] = {}
        self.owners: dict[int, Array] = {}
        self.channels: dict[tuple[Any, ...], Past] = {}
        # Of each barrier of a block: the lines that arrive in this phase, and what the last told.
        self.lines: dict[tuple[int, int], set[int]] = {}
        self.last: defaultdict[tuple[int, int], Past] = defaultdict(
            lambda: Past(np.zeros(n, np.int64))
        )
        self.phases: dict[tuple[int, int], int] = {}
        self.waits: dict[Phase, list[tuple[int, int]]] = {}
        self.issued: dict[Operation | None, list[Part]] = {}
        self.n_parts = 0
        self.queues: dict[tuple[int, Any], int] = {}
        self.shown: Lanes | None = None
        self.groups: dict[Any, list[tuple[Operation, Array, Array]]] = {}
        self.closed: dict[Any, dict[int, int]] = {}
        self.performing: Operation | None = None
        # The first phase of each mbarrier that the line arrives in; allocations by who uses them.
        self.mine: dict[tuple[int, int], int] = {}
        self.stored: set[int] = set()
        self.loaded: set[int] = set()
        self.wrote: set[int] = set()

    def end(self) -> None:
        """Look for waits that the next phase's completion may overtake, or that wait in vain."""
        for (row, column, phase), waits in self.waits.items():
            # Who arrives in the next phase has seen this one's end, however little he tells.
            after = self.channels.get(("arrived", row, column, phase + 1))
            last = self.mine.get((row, column), ALWAYS) if self.gone else ALWAYS
            follows = phase + 1 < min(last, int(self.barriers._phase[row, column]))
            known = after.times if after is not None and follows else None
            if known is not None and any(known[warp] < time for warp, time in waits):
                self.report("a wait for a phase that the next may follow before it is seen")
            if phase >= last:
                self.report("a wait for a phase that the line arrives in")
        if self.stored & (self.loaded | set(self.others)) or self.loaded & self.wrote:
            self.report("global memory that the async proxy and others use")

    def report(self, what: str) -> None:
        at = self.m.program.instructions[self.m.pc]
        self.found.append(f"line {at.ptx_line}, {at.opcode}: {what}")

    @property
    def ignored(self) -> bool:
        return self.m.program.instructions[self.m.pc].ptx_line - 1 == self.line

    def warps_of(self, lanes: Lanes) -> Array:
        m = self.m
        found: Array = m.block_of[lanes.sel] * self.n_warps + (m.thread_of[lanes.sel] >> 5)
        return found

    def tell(self, warp: int) -> Past:
        """Return what a warp knows and did."""
        past = self.past[warp].copy()
        past.times[warp] = self.now
        past.tensor[warp] = self.released[warp]
        return past

    def fence(self, lanes: Lanes, *, after: bool) -> None:
        """Run tcgen05.fence: what the warps have learnt counts from here on, or what they did."""
        self.now += 1
        for warp in np.unique(self.warps_of(lanes)).tolist():
            if self.ignored:
                continue
            if after:
                self.acquired[warp] = self.past[warp].copy()
            else:
                self.released[warp] = self.now

    def view(self, places: Places, warp: int) -> Past:
        """Return what a warp knows of some memory's past."""
        if places is not self.tensor or not self.fenced:
            return self.past[warp]
        known = self.acquired[warp]
        times = known.tensor.copy()
        times[warp] = ALWAYS
        return Past(times, known.done)

    def give(self, key: tuple[Any, ...], past: Past) -> None:
        held = self.channels.setdefault(key, Past(np.zeros(len(self.past), np.int64)))
        held.join(past)

    def take(self, key: tuple[Any, ...], warp: int) -> None:
        if key in self.channels:
            self.past[warp].join(self.channels[key])

    # Accesses of warps, and of asynchronous operations.

    def access(self, places: Places, warps: Array, words: Array, *, writes: bool) -> None:
        """Check and note accesses: `words` has a row for each of the warps."""
        self.now += 1
        for warp in np.unique(warps):
            mine, row = np.unique(words[warps == warp]), int(warp) // self.n_warps
            what = places.disorder(mine, self.view(places, int(warp)), row, writes=writes)
            if what:
                self.report(what)
            stamps = places.written if writes else places.read
            stamps[warp % self.n_warps, mine] = self.now
            if writes:
                places.filled[mine] = -1

    def shared_words(self, lanes: Lanes, rows: Array, offsets: Array, width: int) -> Array:
        if (self.m.block_of[lanes.sel] != rows).any():
            self.report("shared memory of another block")
        count = max(width // self.word_bytes, 1)
        first = np.broadcast_to(rows * self.row_words + offsets // self.word_bytes, lanes.n)
        return np.asarray(first[:, None] + np.arange(count))

    def use_shared(
        self, lanes: Lanes, rows: Array, offsets: Array, width: int, *, writes: bool
    ) -> None:
        words = self.shared_words(lanes, rows, offsets, width)
        self.access(self.shared, self.warps_of(lanes), words, writes=writes)

    def use_global(self, lanes: Lanes, addresses: Array, width: int, *, writes: bool) -> None:
        """Check and note an access of global memory, which no other block may use then."""
        allocation = self.m.memory.globals.find(int(addresses.min()))
        if allocation is None:
            return
        if writes:
            self.wrote.add(allocation.low)
        n_words = allocation.data.size // GLOBAL_WORD_BYTES + 2
        places = self.others.setdefault(allocation.low, Places(self.n_warps, n_words))
        owners = self.owners.setdefault(allocation.low, np.full(n_words, -1, np.int32))
        first = addresses // GLOBAL_WORD_BYTES - allocation.low // GLOBAL_WORD_BYTES
        words = first[:, None] + np.arange(-(-width // GLOBAL_WORD_BYTES))
        blocks = self.m.block_of[lanes.sel][:, None]
        if writes or (owners[words] >= 0).any():
            owned = owners[words]
            if ((owned >= 0) & (owned != blocks)).any():
                self.report("global memory that another block has written")
            if writes:
                owners[words] = blocks
                if (places.read[:, words].any(axis=0) & (owned < 0)).any():
                    self.report("global memory that was read before")
        self.access(places, self.warps_of(lanes), words, writes=writes)

    def reach(self, transfer: Transfer, allocations: set[int]) -> None:
        """Note which allocation a copy of the async proxy uses."""
        inside, addresses = transfer.inside, transfer.addresses
        reached = addresses if inside is None else addresses[inside]
        allocation = self.m.memory.globals.find(int(reached.min())) if reached.size else None
        if allocation is not None:
            allocations.add(allocation.low)

    def start(
        self, places: Places, operation: Operation, lanes: Lanes, rows: Array, words: Array,
        *, writes: bool,
    ) -> None:  # fmt: skip
        """Check and note what an operation uses: words of each of the blocks `rows`.

        Each lane issues the part of one row, or all lanes of a block that of its row.
        """
        blocks, warps = self.m.block_of[lanes.sel], self.warps_of(lanes)
        alone = lanes.n == len(rows) and bool((blocks == rows).all())
        parts = self.issued.setdefault(operation, [])
        for at, row in enumerate(rows.tolist()):
            if at == len(parts):
                parts.append(Part(row, self.n_parts))
                self.n_parts += 1
            issuers = warps[at : at + 1] if alone else np.unique(warps[blocks == row])
            if not len(issuers):
                self.report("an operation on another block")
                continue
            self._start(places, parts[at], issuers.tolist(), operation.order, words[at], writes)

    def _start(
        self, places: Places, part: Part, issuers: list[int], order: Any, words: Array, writes: bool
    ) -> None:
        past, known = self.tell(issuers[0]), self.view(places, issuers[0]).copy()
        for warp in issuers[1:]:
            # A product of a warpgroup begins when all have issued it, and is done for all.
            past.join(self.tell(warp))
            known.meet(self.tell(warp))
        mine = 1 << part.number
        if order is not None:
            queue = issuers[0], order
            mine = self.queues[queue] = self.queues.get(queue, 0) | mine
        past.done |= mine
        known.done |= mine
        what = places.disorder(words, known, part.row, writes=writes)
        if what:
            self.report(what)
        if writes:
            places.filled[words] = part.number
            places.written[:, words] = places.read[:, words] = 0
        else:
            reads = places.fetched.setdefault(part.row, {})
            old = reads.get(part.number, np.zeros(0, np.int64))
            reads[part.number] = np.concatenate([old, words])
        if part.told is not None:
            past.join(part.told)
        part.told = past

    def start_shared(self, operation: Operation, lanes: Lanes, index: Any, *, writes: bool) -> None:
        """Check and note the use of 16-byte chunks."""
        each = CHUNK_BYTES // self.word_bytes
        n_blocks, n_chunks = self.m.n_blocks, self.row_words // each
        whole = isinstance(index[0], slice)
        rows = np.arange(n_blocks) if whole else np.asarray(index[0]).reshape(-1)
        flat = np.arange(n_blocks * n_chunks).reshape(n_blocks, n_chunks)[index]
        words = flat.reshape(len(rows), -1, 1) * each + np.arange(each)
        self.start(self.shared, operation, lanes, rows, words.reshape(len(rows), -1), writes=writes)

    def cells(self, where: Any) -> Array:
        shape = self.m.n_blocks, N_GROUPS, TMEM_COLUMNS
        found: Array = np.arange(np.prod(shape)).reshape(shape)[where]
        return found

    def use_cells(self, where: Any, leaders: Array, *, writes: bool) -> None:
        lanes = Lanes.of(leaders)
        words = self.cells(where).reshape(len(leaders), -1)
        self.access(self.tensor, self.warps_of(lanes), words, writes=writes)

    def free(self, row: int, first: int, columns: int, lanes: Lanes) -> None:
        """Check that columns are free of accesses, which needs no fence."""
        where = np.array([[[row]]]), np.arange(N_GROUPS)[None, :, None]
        words = self.cells((*where, np.arange(first, first + columns))).reshape(-1)
        past = self.past[int(self.warps_of(lanes)[0])]
        what = self.tensor.disorder(words, past, row, writes=True)
        if what:
            self.report(what)

    def start_cells(self, operation: Operation, cells: Any, lanes: Lanes, *, writes: bool) -> None:
        rows, groups, columns = cells
        words = self.cells((rows[:, None], groups[None, :], columns)).reshape(len(rows), -1)
        self.start(self.tensor, operation, lanes, rows, words, writes=writes)

    # Barriers of the block.

    def arrive(self, lanes: Lanes, numbers: Array, completed: Any) -> None:
        numbers = np.broadcast_to(numbers, lanes.n)
        line = self.m.program.instructions[self.m.pc].ptx_line - 1
        for warp, number in set(zip(self.warps_of(lanes).tolist(), numbers.tolist(), strict=True)):
            row = warp // self.n_warps
            lines = self.lines.setdefault((row, number), set())
            lines.add(line)
            if self.line in lines and len(lines) > 1:
                self.report("the line meets another at a barrier")
            if not self.past[warp].covers(self.last[row, number]):
                self.report("an arrival that may count in the phase before")
            if not self.ignored:
                self.give(("bar", row, number), self.tell(warp))
        ends = np.broadcast_to(completed, lanes.n)
        for row, number in set(
            zip(self.m.block_of[lanes.sel][ends].tolist(), numbers[ends].tolist(), strict=True)
        ):
            self.lines.pop((row, number), None)
            if ("bar", row, number) in self.channels:
                self.last[row, number] = self.channels["bar", row, number].copy()

    def passed(self, lanes: Lanes, numbers: Array) -> None:
        numbers = np.broadcast_to(numbers, lanes.n)
        for warp, number in set(zip(self.warps_of(lanes).tolist(), numbers.tolist(), strict=True)):
            if not self.ignored:
                self.take(("bar", warp // self.n_warps, number), warp)

    # mbarriers: what a phase's arrivals tell is known to those who wait for it.

    def completes(self, barriers: Mbarriers, where: tuple[Array, Array]) -> None:
        """Keep the phases before arrivals, or bytes, which may complete them."""
        for row, column in zip(where[0].tolist(), where[1].tolist(), strict=True):
            self.phases[row, column] = int(barriers._phase[row, column])

    @property
    def barriers(self) -> Mbarriers:
        return mbarriers_of(self.m)

    def _keys(self, lanes: Lanes, rows: Array, offsets: Array) -> Iterable[tuple[int, int, int]]:
        rows, offsets = (np.broadcast_to(x, lanes.n) for x in (rows, offsets))
        self.use_shared(lanes, rows, offsets, BARRIER_BYTES, writes=False)
        columns = self.barriers.columns(offsets)
        return sorted(set(zip(self.warps_of(lanes).tolist(), rows.tolist(), columns.tolist(),
                              strict=True)))  # fmt: skip

    def signal(self, row: int, column: int, past: Past, *, silent: bool = False) -> None:
        """Note an arrival, or bytes, in the phase that is then: who tells must know the last."""
        phase = self.phases[row, column]
        last = self.channels.get(("mbarrier", row, column, phase - 1))
        if last is not None:
            if not past.covers(last):
                self.report("an arrival that may count in the phase before")
            self.give(("mbarrier", row, column, phase), last)
        self.give(("arrived", row, column, phase), past)
        if not silent:
            self.give(("mbarrier", row, column, phase), past)
        if self.ignored:
            self.mine.setdefault((row, column), phase)

    def arrive_mbarrier(
        self, lanes: Lanes, rows: Array, offsets: Array, *, relaxed: int | None = None
    ) -> None:
        for warp, row, column in self._keys(lanes, rows, offsets):
            silent = self.ignored or relaxed is not None
            self.signal(row, column, self.tell(warp), silent=silent)

    def pass_mbarrier(
        self, lanes: Lanes, rows: Array, offsets: Array, *, relaxed: int | None = None
    ) -> None:
        for warp, row, column in self._keys(lanes, rows, offsets):
            phase = int(self.barriers._phase[row, column]) - 1
            self.waits.setdefault((row, column, phase), []).append((warp, self.now))
            before = self.channels.get(("mbarrier", row, column, phase - 1))
            if before is not None and not self.past[warp].covers(before):
                self.report("a wait that may see the phase two before")
            if not (self.ignored or relaxed is not None):
                self.take(("mbarrier", row, column, phase), warp)

    def complete_mbarrier(self, rows: Array, offsets: Array) -> None:
        """Note that what is performed now, a copy or a commit, tells an mbarrier."""
        parts = self.issued.get(self.performing, [])
        columns = self.barriers.columns(offsets)
        if [part.row for part in parts] != rows.tolist():
            self.report("an operation on another block")
            return
        for part, column in zip(parts, columns.tolist(), strict=True):
            if part.told is not None:
                self.signal(part.row, column, part.told)

    # Asynchronous operations, and groups of them.

    def issue(self, operation: Operation) -> None:
        """Keep what a commit tells: what its thread knows, and the operations before it."""
        if operation.what != "tcgen05.commit" or self.shown is None:
            return
        parts = self.issued[operation] = []
        for warp in self.warps_of(self.shown).tolist():
            past = self.tell(warp)
            past.done |= self.queues.get((warp, operation.order), 0)
            parts.append(Part(warp // self.n_warps, self.n_parts, past))

    def group(self, ledger: Any, operation: Any, owners: Array) -> None:
        entries = self.groups.setdefault(ledger, [])
        entries.append((operation.operation, owners, np.full(len(owners), -1)))

    def close(self, ledger: Any, owners: Array) -> None:
        chosen = set(owners.tolist())
        closed = self.closed.setdefault(ledger, {})
        for _, mine, numbers in self.groups.get(ledger, ()):
            for at, owner in enumerate(mine.tolist()):
                if owner in chosen and numbers[at] < 0:
                    numbers[at] = closed.get(owner, 0)
        for owner in chosen:
            closed[owner] = closed.get(owner, 0) + 1

    def wait(self, ledger: Any, owners: Array, keep: int) -> None:
        """Let warps know the operations outside of their `keep` youngest groups."""
        if self.ignored:
            return
        chosen, closed = set(owners.tolist()), self.closed.get(ledger, {})
        for operation, mine, numbers in self.groups.get(ledger, ()):
            parts = self.issued[operation]
            for at, (owner, number) in enumerate(zip(mine.tolist(), numbers.tolist(), strict=True)):
                if owner in chosen and 0 <= number < closed[owner] - keep:
                    told = parts[at * len(parts) // len(mine)].told
                    if told is not None:
                        self.past[self._warp_of(ledger, owner)].join(told)

    def _warp_of(self, ledger: Any, owner: int) -> int:
        """Return the warp of an owner of groups: a lane of bulk copies, a warp of products."""
        if type(ledger) is GroupLedger:
            return owner
        return int(self.warps_of(Lanes.of(np.array([owner])))[0])


def disorder(
    run: Callable[[], object], line: int, *, gone: bool = False, fenced: bool = False
) -> list[str]:
    """Return what is not ordered in a run on the emulator without the edges of a line."""
    order = Order(line, gone=gone, fenced=fenced)
    with _watching(order):
        run()
    return order.found


@contextmanager
def _watching(order: Order) -> Iterator[None]:
    """Tell an order of what machines do."""
    o = order
    watched: tuple[tuple[Any, str, Callable[..., None]], ...] = (
        (SharedGuard, "read", lambda g, *a: o.use_shared(*a, writes=False)),
        (SharedGuard, "write", lambda g, *a: o.use_shared(*a, writes=True)),
        (SharedRaces, "made", lambda r, *a, **k: o.use_shared(*a, writes=True)),
        (SharedGuard, "arrive", lambda g, *a, **k: o.arrive(*a, *k.values())),
        (SharedGuard, "passed", lambda g, *a: o.passed(*a)),
        (SharedGuard, "arrive_mbarrier", lambda g, *a, **k: o.arrive_mbarrier(*a, **k)),
        (SharedGuard, "pass_mbarrier", lambda g, *a, **k: o.pass_mbarrier(*a, **k)),
        (SharedGuard, "complete_mbarrier", lambda g, *a: o.complete_mbarrier(*a[2:])),
        (SharedGuard, "require_shown", lambda g, lanes, *a: setattr(o, "shown", lanes)),
        (SharedGuard, "begin_read", lambda g, *a: o.start_shared(*a, writes=False)),
        (SharedGuard, "begin_write", lambda g, *a: o.start_shared(*a, writes=True)),
        (SharedGuard, "begin_combine", lambda g, *a: o.report("a reduction in flight")),
        (SharedGuard, "tell_write", lambda g, *a, **k: o.report("an asynchronous store")),
        (TensorMemory, "load", lambda t, *a: o.use_cells(*a, writes=False)),
        (TensorMemory, "store", lambda t, *a: o.use_cells(*a, writes=True)),
        (TensorMemory, "begin", lambda t, *a, writes: o.start_cells(*a, writes=writes)),
        (TensorMemory, "free", lambda t, *a: o.free(*a)),
        (TensorMemory, "fence", lambda t, *a, after: o.fence(*a, after=after)),
        (GlobalMemory, "load", lambda g, m, lanes, at, dtype, n: o.use_global(
            lanes, at, dtype.itemsize * n, writes=False)),
        (GlobalMemory, "store", lambda g, m, lanes, at, values: o.use_global(
            lanes, at, values[:1].nbytes, writes=True)),
        (Transfer, "load", lambda t: o.reach(t, o.loaded)),
        (Transfer, "write_global", lambda t, values: o.reach(t, o.stored)),
        (Transfer, "combine_global", lambda t, *a: o.reach(t, o.stored)),
        (Mbarriers, "_complete", o.completes),
        (Asynchronous, "issue", lambda x, operation: o.issue(operation)),
        (GroupLedger, "issue", o.group),
        (GroupLedger, "commit", o.close),
        (GroupLedger, "due", o.wait),
    )  # fmt: skip
    with ExitStack() as stack:
        for owner, name, tell in watched:
            stack.enter_context(patch.object(owner, name, _told(getattr(owner, name), tell)))
        stack.enter_context(patch.object(Machine, "run", _machine(Machine.run, order)))
        stack.enter_context(patch.object(Asynchronous, "_perform", _performed(order)))
        yield


def _told(original: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    """Return a method that tells of each call, before it happens."""

    def method(*arguments: Any, **options: Any) -> Any:
        tell(*arguments, **options)
        return original(*arguments, **options)

    return method


def _machine(run: Callable[[Machine], None], order: Order) -> Callable[[Machine], None]:
    def method(m: Machine) -> None:
        order.begin(m)
        run(m)
        order.end()

    return method


def _performed(order: Order) -> Callable[[Asynchronous, Operation], None]:
    perform = Asynchronous._perform

    def method(queue: Asynchronous, operation: Operation) -> None:
        order.performing = operation
        perform(queue, operation)

    return method
