"""`cp.async`: asynchronous copies global to shared in the generic proxy (PTX ISA 9.7.9.25).

Invariant: a copy happens between its issue and a `wait_group` or `wait_all` of its thread that
covers it; until then its destination counts as unwritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.fetching import Fetch, Source, sources
from astdsl.emulator.groups import GroupLedger
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.mbarrier import barrier_place, use
from astdsl.emulator.issues import Issue
from astdsl.emulator.scalars import UNSIGNED, all_of, any_of
from astdsl.emulator.syntax import Immediate

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import Array, BoolArray


@dataclass(slots=True, eq=False)
class _Copy:
    """A copy in flight, and which of its lanes have waited for it.

    `target` are the rows and offsets that it fills, `size` bytes a lane; `fetch` is what it reads.
    """

    m: Machine
    operation: Operation
    lanes: Lanes
    target: tuple[Array, Array]
    size: int
    awaited: BoolArray
    fetch: Fetch | None

    @property
    def is_over(self) -> bool:
        """Return whether all lanes have waited for it."""
        return all_of(self.awaited)

    def wait(self, mine: BoolArray) -> None:
        """Complete it; what it wrote counts as written now by those of its lanes that wait."""
        m, new = self.m, mine & ~self.awaited
        if not any_of(new):
            return
        m.asynchronous.complete(self.operation)
        self.awaited |= new
        rows, offsets = self.target
        m.asynchronous.keep(self.operation, rows[~self.awaited])
        if m.guard is not None:
            m.guard.end_fill(self.lanes.where(new), rows[new], offsets[new], self.size)
        if self.fetch is not None:
            self._end_fetch(self.fetch, new)

    def _end_fetch(self, fetch: Fetch, new: BoolArray) -> None:
        """Note that some of its lanes need what they read no more."""
        memory, races = self.m.memory.globals, self.m.memory.globals.races
        if races is None:
            raise AssertionError("a copy is watched without checks")
        races.fetching.end(fetch, new)
        for source in fetch.sources:
            mine = new[source.of]
            if any_of(mine):
                lanes, addresses = source.lanes.where(mine), source.addresses[mine]
                memory.fetch(self.m, lanes, addresses, source.width, waited=True)


class _Copies(GroupLedger[_Copy]):
    """The `cp.async` groups of every thread of a machine."""

    def __init__(self, m: Machine) -> None:
        super().__init__(m.n_lanes)


_WORD_BYTES = 4
# What bypasses L1 (PTX ISA 9.7.9.25.3.1).
_LINE_BYTES = 16
_HINTS = ("async", "ca", "cg", "shared", "global", "shared::cta", "L2::cache_hint", "L2::64B",
          "L2::128B", "L2::256B")  # fmt: skip


@executes("cp.async.ca", "cp.async.cg")
def prepare_copy(ops: Operands) -> Execute:
    """`cp.async.{ca,cg}.shared.global [dst], [src], size{, src-size | ignore-src}{, hint}`."""
    ops.allow(*_HINTS)
    size = ops.immediate(ops.args[2])
    if size not in (4, 8, 16):
        raise ops.refuse(f"copies of 4, 8 or 16 bytes, not {size}")
    if ops.instruction.opcode.startswith("cp.async.cg") and size != _LINE_BYTES:
        raise ops.refuse(f"`.cg` copies {_LINE_BYTES} bytes, not {size}")
    target, source = ops.address(ops.args[0]), ops.address(ops.args[1])
    valid = _valid_bytes(ops, size)
    ops.sensitive += ops.reads

    def execute(m: Machine, lanes: Lanes) -> None:
        rows, offsets = m.memory.shared_place(m, lanes, target(m, lanes), size, aligned=True)
        # Copies: the registers may change before the copy happens.
        addresses = np.array(np.broadcast_to(source(m, lanes), lanes.n))
        n_valid = np.array(np.broadcast_to(valid(m, lanes), lanes.n))
        issue = Issue.of(m, f"cp.async of {size} bytes", lanes, rows, offsets)
        if m.guard is not None:
            m.guard.begin_fill(lanes, rows, offsets, size, issue)
        m.memory.shared.forget(rows, offsets, size)
        read = sources(lanes, addresses, n_valid, size)
        fetch = _begin_fetch(m, issue, read, lanes.n)
        perform = partial(_copy, m, m.pc, (rows, offsets), read, size)
        operation = m.asynchronous.hold(Operation(perform, issue, blocks=rows))
        none = np.zeros(lanes.n, np.bool_)
        copy = _Copy(m, operation, lanes, (rows, offsets), size, none, fetch)
        m.state(_Copies).issue(copy, lanes.index)

    return execute


def _begin_fetch(m: Machine, issue: Issue, read: list[Source], n_lanes: int) -> Fetch | None:
    """Check that lanes may read, and let nobody change that; None where nobody looks."""
    races = m.memory.globals.races
    if races is None:
        return None
    for source in read:
        m.memory.globals.fetch(m, source.lanes, source.addresses, source.width, waited=False)
    return races.fetching.begin(issue, read, n_lanes)


def _copy(m: Machine, pc: int, target: tuple[Array, Array], read: list[Source], size: int) -> None:
    """Copy the bytes that each lane reads, and zeros for the rest."""
    n = len(target[0])
    values = np.zeros((n, size), np.uint8)
    undefined = np.zeros_like(values)
    for source in read:
        word = UNSIGNED[8 * min(source.width, _WORD_BYTES)]
        count = source.width // word.itemsize
        with m.at(pc):
            found, missing = m.memory.globals.load(
                m, source.lanes, source.addresses, word, count, judged=True
            )
        values[source.of, source.start : source.start + source.width] = (
            np.ascontiguousarray(found).reshape(len(found), -1).view(np.uint8)
        )
        if missing is not None:
            undefined[source.of, source.start : source.start + source.width] = missing.reshape(
                len(found), -1
            ).view(np.uint8)
    words, bits = values.view(np.uint32), undefined.view(np.uint32)
    m.memory.shared.store(*target, words, bits if any_of(bits) else None)


def _valid_bytes(ops: Operands, size: int) -> Any:
    """Return a getter of how many bytes are copied; the rest is filled with zeros."""
    if len(ops.args) - ops.has("L2::cache_hint") < 4:
        return lambda m, lanes: size
    operand = ops.args[3]
    places = ops.registers(operand)
    if places and places[0][0] == 1:
        ignore = ops.source(operand, "pred")
        return lambda m, lanes: np.where(ignore(m, lanes), 0, size)
    return ops.source(operand if places else Immediate(ops.immediate(operand)), "u32")


@executes("cp.async.commit_group")
def prepare_commit(ops: Operands) -> Execute:
    """`cp.async.commit_group`: make a group of the thread's open copies."""
    ops.allow("async", "commit_group")
    return lambda m, lanes: m.state(_Copies).commit(lanes.index)


@executes("cp.async.wait_group", "cp.async.wait_all")
def prepare_wait(ops: Operands) -> Execute:
    """`cp.async.wait_group n`: at most n of the youngest groups stay pending.

    `wait_all` commits, and waits for all (PTX ISA 9.7.9.25.3.3).
    """
    ops.allow("async", "wait_group", "wait_all")
    commits = ops.has("wait_all")
    keep = 0 if commits else ops.immediate(ops.args[0])

    def execute(m: Machine, lanes: Lanes) -> None:
        copies = m.state(_Copies)
        if commits:
            copies.commit(lanes.index)
        for copy, mine in copies.due(lanes.index, keep):
            copy.wait(mine)

    return execute


@executes("cp.async.mbarrier.arrive")
def prepare_arrive(ops: Operands) -> Execute:
    """`cp.async.mbarrier.arrive{.noinc}.b64 [addr]`: arrive when the thread's copies are done.

    Without `.noinc` the phase waits for this arrival besides those that it expects.
    """
    ops.allow("async", "mbarrier", "arrive", "noinc", "shared", "shared::cta")
    place, adds = barrier_place(ops, ops.args[0]), not ops.has("noinc")

    def execute(m: Machine, lanes: Lanes) -> None:
        rows, offsets = (np.array(part) for part in place(m, lanes))
        ones, pc = np.ones(lanes.n, np.int64), m.pc
        earlier = m.state(_Copies).of(lanes.index)
        if adds:
            use(m, lanes, lambda barriers: barriers.expect_arrivals(rows, offsets, ones))

        def perform() -> None:
            for copy, mine in earlier:
                copy.wait(mine)
            with m.at(pc):
                use(m, lanes, lambda barriers: barriers.arrive(rows, offsets, ones))
                if m.guard is not None:
                    m.guard.arrive_mbarrier(lanes, rows, offsets)

        issue = Issue("cp.async.mbarrier.arrive", m.place_text(m.pc), m.warp_of(lanes))
        m.asynchronous.issue(Operation(perform, issue, signals=True))

    return execute
