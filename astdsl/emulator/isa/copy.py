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
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.mbarrier import barrier_place, use
from astdsl.emulator.issues import Issue
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.scalars import UNSIGNED
from astdsl.emulator.syntax import Immediate

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Index
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import Array, BoolArray


@dataclass(slots=True, eq=False)
class _Copy:
    """A copy in flight, and in which group of each of its lanes it is (0 = not committed).

    `target` are the rows and offsets that it fills, `size` bytes a lane.
    """

    operation: Operation
    index: Index
    group: Array
    target: tuple[Array, Array]
    size: int
    awaited: BoolArray


class Copies:
    """The `cp.async` operations of a machine, by thread and group."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.groups = np.zeros(m.n_lanes, np.int64)
        self.copies: list[_Copy] = []

    def add(
        self, operation: Operation, lanes: Lanes, target: tuple[Array, Array], size: int
    ) -> None:
        """Note a copy of these lanes, in no group yet."""
        self.copies = [copy for copy in self.copies if not copy.awaited.all()]
        none = np.zeros(lanes.n, np.bool_)
        group = np.zeros(lanes.n, np.int64)
        self.copies.append(_Copy(operation, lanes.index, group, target, size, none))

    def commit(self, lanes: Lanes) -> None:
        """Put the lanes' open copies into a new group of each."""
        self.groups[lanes.sel] += 1
        member = self._members(lanes)
        for copy in self.copies:
            new = (copy.group == 0) & member[copy.index]
            copy.group = np.where(new, self.groups[copy.index], copy.group)

    def wait(self, lanes: Lanes, n_pending: int | None) -> None:
        """Complete all but the youngest groups of the lanes; None: everything, committed or not."""
        member = self._members(lanes)
        for copy in self.copies:
            wanted = member[copy.index]
            if n_pending is not None:
                old = copy.group <= self.groups[copy.index] - n_pending
                wanted = wanted & (copy.group > 0) & old
            self._await(copy, wanted)

    def of(self, lanes: Lanes) -> list[_Copy]:
        """Return the copies that some of the lanes have in flight."""
        member = self._members(lanes)
        return [copy for copy in self.copies if member[copy.index].any()]

    def finish(self, copy: _Copy, lanes: Lanes) -> None:
        """Complete a copy for lanes whose arrival at an mbarrier follows it."""
        self._await(copy, self._members(lanes)[copy.index])

    def _await(self, copy: _Copy, wanted: BoolArray) -> None:
        """Complete a copy; what it wrote counts as written now by the lanes that waited."""
        new = wanted & ~copy.awaited
        if not new.any():
            return
        self.m.asynchronous.complete(copy.operation)
        copy.awaited |= new
        if self.m.guard is not None:
            rows, offsets = (part[new] for part in copy.target)
            lanes = Lanes.of(copy.index[new])
            self.m.guard.end_fill(lanes, rows, offsets, copy.size)

    def _members(self, lanes: Lanes) -> Array:
        member = np.zeros(len(self.groups), np.bool_)
        member[lanes.sel] = True
        return member


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
        perform = partial(_copy, m, m.pc, lanes, (rows, offsets), (addresses, n_valid), size)
        operation = m.asynchronous.issue(Operation(perform, issue))
        m.state(Copies).add(operation, lanes, (rows, offsets), size)

    return execute


def _copy(
    m: Machine,
    pc: int,
    lanes: Lanes,
    target: tuple[Array, Array],
    source: tuple[Array, Array],
    size: int,
) -> None:
    """Copy the valid bytes of each lane, and zeros for the rest."""
    addresses, n_valid = source
    values = np.zeros((lanes.n, size // 4), np.uint32)
    undefined = None
    some = n_valid > 0
    if some.any():
        part, n_words = lanes if some.all() else lanes.where(some), size // 4
        with m.at(pc):
            found, missing = m.memory.globals.load(m, part, addresses[some], UNSIGNED[32], n_words)
        values[some] = found.reshape(-1, size // 4)
        if missing is not None:
            undefined = np.zeros(lanes.n, np.bool_)
            undefined[some] = missing
    if ((n_valid != size) & some).any():
        kept = np.arange(size) < n_valid[:, None]
        values.view(np.uint8)[~kept] = 0
    m.memory.shared.store(*target, values, undefined)


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
    return lambda m, lanes: m.state(Copies).commit(lanes)


@executes("cp.async.wait_group", "cp.async.wait_all")
def prepare_wait(ops: Operands) -> Execute:
    """`cp.async.wait_group n`: at most n of the youngest groups stay pending; `wait_all`: none."""
    ops.allow("async", "wait_group", "wait_all")
    n_pending = ops.immediate(ops.args[0]) if ops.has("wait_group") else None
    return lambda m, lanes: m.state(Copies).wait(lanes, n_pending)


@executes("cp.async.mbarrier.arrive")
def prepare_arrive(ops: Operands) -> Execute:
    """`cp.async.mbarrier.arrive{.noinc}.b64 [addr]`: arrive when the thread's copies are done.

    Without `.noinc` the phase waits for this arrival besides those that it expects.
    """
    ops.allow("async", "mbarrier", "arrive", "noinc", "shared", "shared::cta")
    place, adds = barrier_place(ops, ops.args[0]), not ops.has("noinc")

    def execute(m: Machine, lanes: Lanes) -> None:
        rows, offsets = (np.array(part) for part in place(m, lanes))
        copies, ones, pc = m.state(Copies), np.ones(lanes.n, np.int64), m.pc
        earlier = copies.of(lanes)
        if adds:
            use(m, lanes, lambda barriers: barriers.expect_arrivals(rows, offsets, ones))

        def perform() -> None:
            for copy in earlier:
                copies.finish(copy, lanes)
            with m.at(pc):
                use(m, lanes, lambda barriers: barriers.arrive(rows, offsets, ones))
                if m.guard is not None:
                    m.guard.arrive_mbarrier(lanes, rows, offsets)

        issue = Issue("cp.async.mbarrier.arrive", m.place_text(m.pc), m.warp_of(lanes))
        m.asynchronous.issue(Operation(perform, issue, signals=True))

    return execute
