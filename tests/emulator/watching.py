"""Watches a launch on the emulator, and tells `causality.Order` all that its threads and copies do.

Invariant: the emulator does what it does without it; what it reports is reported first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np

import astdsl.emulator.isa.mbarrier as instructions
from astdsl.emulator import machine
from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.clocks import BY_MBARRIER
from astdsl.emulator.formats.fragments import TMEM_COLUMNS
from astdsl.emulator.groups import GroupLedger
from astdsl.emulator.guard import SharedGuard
from astdsl.emulator.isa.cluster import ClusterBarrier
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.mbarriers import BARRIER_BYTES, mbarriers_of
from astdsl.emulator.occupancy import CHUNK_BYTES
from astdsl.emulator.tensor_memory import TensorMemory
from tests.emulator.causality import TENSOR_WORDS, Findings, Order
from tests.emulator.knowledge import WARP, Array
from tests.emulator.operations import Groups, Signal
from tests.emulator.sharing import Hooks, Sharing


class Watcher(SharedGuard):
    """The guard of a machine, which tells an `Order` as well what happens."""

    findings: Findings

    def __init__(self, m: Any) -> None:
        super().__init__(m)
        self.findings.machines += 1
        self.order = self.findings.order = order = Order(m, self.findings)
        m.exit_checks.append(lambda rows, lanes: order.ends(rows))
        told: tuple[tuple[Any, str, Callable[..., None]], ...] = (
            (self.races, "made", self._made),
            (self.races, "written_late", lambda *_, **__: order.find("a copy by threads")),
            (mbarriers_of(m), "invalidate", self._invalidated),
            (m.asynchronous, "issue", self._issued),
            (m.asynchronous, "_perform", self._performing),
        )
        for owner, name, tell in told:
            setattr(owner, name, _both(tell, getattr(owner, name)))

    def _performing(self, operation: Operation) -> None:
        self.order.performing = operation

    def _invalidated(self, rows: Array, offsets: Array) -> None:
        who = self.order.numbers(self.order.using)
        words = self.order.words(offsets, BARRIER_BYTES)
        self.order.access("made", "shared", who, rows, words)

    def _made(self, lanes: Any, rows: Array, offsets: Array, size: int, **_: Any) -> None:
        who = self.order.numbers(lanes)
        self.order.access("made", "shared", who, rows, self.order.words(offsets, size))
        live = mbarriers_of(self.order.m).live_offsets
        for row, offset, each in zip(rows.tolist(), offsets.tolist(), who, strict=True):
            if offset in live(row):
                self.order.make(("mbarrier", row, offset), np.array([each]))

    def meet(self, lanes: Lanes) -> None:
        super().meet(lanes)
        rows, warps = self.clocks.warps(lanes)
        n = self.order.m.n_threads
        firsts, counts = np.unique(rows * n + warps * WARP, return_counts=True)
        for first in firsts[counts == WARP].tolist():
            warp = np.arange(first, first + WARP)
            self.order.threads.learn(warp, self.order.threads.past(warp))

    def _groups(self, lanes: Any, rows: Any, columns: Any) -> Iterator[tuple[int, int, Array]]:
        """Yield row, column and threads of each object that some lanes use."""
        who = self.order.numbers(lanes)
        pairs = np.stack(np.broadcast_arrays(rows, columns, who))[:2]
        each, inverse = np.unique(pairs, axis=1, return_inverse=True)
        for k, (row, column) in enumerate(each.T.tolist()):
            yield row, column, who[inverse.reshape(-1) == k]

    def read(self, lanes: Any, rows: Array, offsets: Array, width: int) -> None:
        super().read(lanes, rows, offsets, width)
        kind, who = "strongly read" if self.scope is not None else "read", self.order.numbers(lanes)
        self.order.access(kind, "shared", who, rows, self.order.words(offsets, width))

    def write(
        self, lanes: Any, rows: Array, offsets: Array, width: int, values: Array | None = None
    ) -> None:
        super().write(lanes, rows, offsets, width, values)
        kind, who = (
            "strongly written" if self.scope is not None else "written",
            self.order.numbers(lanes),
        )
        self.order.access(kind, "shared", who, rows, self.order.words(offsets, width))

    def fence(self, lanes: Any) -> None:
        super().fence(lanes)
        self.order.threads.fence_proxy(self.order.numbers(lanes))

    def arrive(self, lanes: Any, numbers: Array, completed: Any) -> None:
        super().arrive(lanes, numbers, completed)
        rows, generation = self.order.m.block_of[lanes.sel], self.order.m.barriers.generation
        for row, number, who in self._groups(lanes, rows, numbers):
            count = int(generation[row, number])
            self.order.arrive(("barrier", row, number), who, count, relaxed=False)

    def passed(self, lanes: Any, numbers: Array) -> None:
        super().passed(lanes, numbers)
        rows = self.order.m.block_of[lanes.sel]
        for row, number, who in self._groups(lanes, rows, numbers):
            self.order.passes(("barrier", row, number), who, relaxed=False, sees=False)
        self.order.retire()

    def arrive_cluster(self, lanes: Any, *, relaxed: int | None = None) -> None:
        super().arrive_cluster(lanes, relaxed=relaxed)
        m = self.order.m
        generation = m.state(ClusterBarrier).barriers.generation
        clusters = m.block_of[lanes.sel] // self.order.size
        for cluster, _, who in self._groups(lanes, clusters, 0):
            count, key = int(generation[cluster, 0]), ("cluster", cluster)
            self.order.arrive(key, who, count, relaxed=relaxed is not None)

    def pass_cluster(self, lanes: Any) -> None:
        super().pass_cluster(lanes)
        clusters = self.order.m.block_of[lanes.sel] // self.order.size
        for cluster, _, who in self._groups(lanes, clusters, 0):
            self.order.passes(("cluster", cluster), who, relaxed=False, sees=False)

    def _touch(self, lanes: Any, rows: Array, offsets: Array) -> None:
        words = self.order.words(offsets, BARRIER_BYTES)
        self.order.access("touched", "shared", self.order.numbers(lanes), rows, words)

    def arrive_mbarrier(
        self, lanes: Any, rows: Array, offsets: Array, *, relaxed: int | None = None
    ) -> None:
        super().arrive_mbarrier(lanes, rows, offsets, relaxed=relaxed)
        self._touch(lanes, rows, offsets)
        for row, offset, who in self._groups(lanes, rows, offsets):
            count, key = self._count(row, offset), ("mbarrier", row, offset)
            self.order.arrive(key, who, count, relaxed=relaxed is not None)

    def pass_mbarrier(
        self, lanes: Any, rows: Array, offsets: Array, *, relaxed: int | None = None
    ) -> None:
        super().pass_mbarrier(lanes, rows, offsets, relaxed=relaxed)
        self._touch(lanes, rows, offsets)
        for row, offset, who in self._groups(lanes, rows, offsets):
            key = "mbarrier", row, offset
            self.order.passes(key, who, relaxed=relaxed is not None, sees=True)

    def _count(self, row: int, offset: int) -> int:
        barriers = mbarriers_of(self.order.m)
        if offset not in barriers.live_offsets(row):
            self.order.find("there is no mbarrier")
            return 0
        return barriers.state(row, offset).phase

    def require_shown(self, lanes: Any, rows: Array, offsets: Array) -> None:
        super().require_shown(lanes, rows, offsets)
        self.order.shown = lanes, rows, offsets

    def _issued(self, operation: Operation) -> None:
        order, shown = self.order, self.order.shown
        order.shown = None
        if shown is None or not operation.signals:
            return
        lanes, rows, offsets = shown
        order.signals[operation] = [
            Signal(("mbarrier", row, offset), self._count(row, offset), who,
                   order.threads.past(np.array([who])))
            for who, row, offset in zip(order.numbers(lanes).tolist(), rows.tolist(),
                                        offsets.tolist(), strict=True)
        ]  # fmt: skip

    def complete_mbarrier(self, lanes: Lanes, pc: int, rows: Array, offsets: Array) -> None:
        super().complete_mbarrier(lanes, pc, rows, offsets)
        operation = self.order.performing
        if operation is None or operation not in self.order.signals:
            self.order.find("an arrival of which it is not known who issued it")
            return
        mine = [part for part in self.order.parts if part.operation is operation]
        targets = set(rows.tolist())
        signals = self.order.signals.pop(operation)
        for signal in signals:
            _, row, _ = signal.key
            # Of its own parts, those in the barrier's block, and those in blocks without one.
            parts = [
                part for part in mine if signal.issuer in part.issuers
                and (part.row == row or part.row not in targets)
            ]  # fmt: skip
            if not mine:
                parts = [
                    part for part in self.order.parts if part.done
                    and part.operation.order == operation.order and signal.issuer in part.issuers
                ]  # fmt: skip
            self.order.arrive_late(signal, parts)
        for key in {signal.key for signal in signals}:
            self.order.complete(key, self._count(*key[1:]))

    def tell_write(self, *arguments: Any, **options: Any) -> None:
        super().tell_write(*arguments, **options)
        self.order.find("words are written asynchronously")

    def begin_combine(self, operation: Operation, lanes: Any, index: Any) -> None:
        super().begin_combine(operation, lanes, index)
        self.order.find("words are combined asynchronously")

    def begin_read(
        self, operation: Operation, lanes: Any, index: Any, used_bytes: int = CHUNK_BYTES
    ) -> None:
        super().begin_read(operation, lanes, index, used_bytes)
        self._begin(operation, lanes, index, writes=False)

    def begin_write(self, operation: Operation, lanes: Any, index: Any) -> None:
        super().begin_write(operation, lanes, index)
        self._begin(operation, lanes, index, writes=True)

    def _begin(self, operation: Operation, lanes: Any, index: Any, *, writes: bool) -> None:
        n_rows, n_chunks = self._occupancy.shape
        rows = np.arange(n_rows) if isinstance(index[0], slice) else index[0].reshape(-1)
        numbers = np.arange(n_rows * n_chunks).reshape(n_rows, n_chunks)[index]
        masks = np.zeros((len(rows), n_chunks), np.bool_)
        np.put_along_axis(masks, numbers.reshape(len(rows), -1) % n_chunks, True, axis=1)
        self.order.begin(operation, "shared", lanes, rows, masks, writes=writes)

    def end(self, operation: Operation, by: int | None = BY_MBARRIER) -> None:
        super().end(operation, by)
        self.order.end(operation)

    def end_some(self, operation: Operation, rest: Any) -> None:
        super().end_some(operation, rest)
        if rest is None:
            self.order.end(operation)


# What else than the guard is told of accesses: methods before which a function is called.


def _tensor_words(where: Any) -> tuple[Array, Array]:
    """Return rows [n] and words [n, k] of cells that n warps access."""
    rows, groups, columns = np.broadcast_arrays(*where)
    words = groups * TMEM_COLUMNS + columns
    return rows.reshape(len(rows), -1)[:, 0], words.reshape(len(rows), -1)


def _tensor_access(kind: str) -> Callable[..., None]:
    def note(memory: Any, where: Any, leaders: Array) -> None:
        m = memory._m
        who = m.block_of[leaders] * m.n_threads + m.thread_of[leaders]
        m.guard.order.access(kind, "tensor", who, *_tensor_words(where))

    return note


def _tensor_begin(
    memory: Any, operation: Operation, cells: Any, lanes: Any, *, writes: bool
) -> None:
    rows, groups, columns = cells
    mask = np.zeros((TENSOR_WORDS // TMEM_COLUMNS, TMEM_COLUMNS), np.bool_)
    mask[groups, columns] = True
    masks = np.broadcast_to(mask.reshape(-1), (len(rows), TENSOR_WORDS))
    memory._m.guard.order.begin(operation, "tensor", lanes, rows, masks, writes=writes)


def _tensor_free(memory: Any, row: int, first: int, columns: int, lanes: Any) -> None:
    groups = np.arange(TENSOR_WORDS // TMEM_COLUMNS)[:, None]
    words = groups * TMEM_COLUMNS + np.arange(first, first + columns)
    order = memory._m.guard.order
    who = order.numbers(lanes)[:1]
    # Who frees waits for what is done; the fences are for those that go on with it.
    order.access("made", "tensor", who, np.array([row]), words.reshape(1, -1), fenced=False)


def _tensor_fence(memory: Any, lanes: Any, *, after: bool) -> None:
    order = memory._m.guard.order
    order.threads.fence_tensor(order.numbers(lanes), after=after)


class Waits:
    """Tells an `Order` of groups of operations, and who waits for them."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._groups: defaultdict[Any, Groups] = defaultdict(Groups)

    def hooks(self) -> Hooks:
        """Return owners, names of their methods, and what is told before each call."""

        def issue(ledger: Any, entry: Any, owners: Array) -> None:
            self._groups[ledger].issue(entry.operation, owners)

        def commit(ledger: Any, owners: Array) -> None:
            self._groups[ledger].commit(owners)

        def due(ledger: Any, owners: Array, keep: int) -> None:
            for owner, operation in self._groups[ledger].due(owners, keep):
                self._findings.order.know(self._threads(ledger, owner), operation)

        return [
            (GroupLedger, "issue", issue),
            (GroupLedger, "commit", commit),
            (GroupLedger, "due", due),
        ]

    def _threads(self, ledger: Any, owner: int) -> Array:
        """Return the threads that own groups: those of a warp for products, else one."""
        order = self._findings.order
        if type(ledger) is not GroupLedger:
            return order.numbers(Lanes.of(np.array([owner])))
        row, warp = divmod(owner, -(-order.m.n_threads // WARP))
        first: int = row * order.m.n_threads + warp * WARP
        return np.arange(first, first + WARP)


def _hooks(findings: Findings) -> Hooks:
    """Return owners, names of their methods, and what is told before each call."""

    def used(m: Any, lanes: Any, action: Any) -> None:
        if m.guard is not None:
            m.guard.order.using = lanes

    return [
        (TensorMemory, "load", _tensor_access("read")),
        (TensorMemory, "store", _tensor_access("made")),
        (TensorMemory, "begin", _tensor_begin),
        (TensorMemory, "end", lambda memory, operation: memory._m.guard.order.end(operation)),
        (TensorMemory, "free", _tensor_free),
        (TensorMemory, "fence", _tensor_fence),
        (instructions, "use", used),
        *Sharing(findings).hooks(),
        *Waits(findings).hooks(),
    ]


def unordered(run: Callable[[], str]) -> list[str]:
    """Return what the launches of `run` leave without an order, and what it finds itself."""
    findings = Findings()
    watcher = type("Watching", (Watcher,), {"findings": findings})
    with ExitStack() as stack:
        stack.enter_context(patch.object(machine, "SharedGuard", watcher))
        for owner, name, told in _hooks(findings):
            replacement = _both(told, getattr(owner, name))
            stack.enter_context(patch.object(owner, name, replacement))
        found = run()
    if found or not findings.machines:
        findings.texts.append(found or "nothing was watched")
    return findings.texts


def _both(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls both, and returns what the second does."""

    def call(*arguments: Any, **options: Any) -> Any:
        first(*arguments, **options)
        return second(*arguments, **options)

    return call
