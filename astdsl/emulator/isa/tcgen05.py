"""Allocation of tensor memory, fences and commits of sm_100a (PTX ISA 9.7.16.7, 9.7.16.11).

Invariant: what a pair of blocks does collectively (`.cta_group::2`) happens when a warp of each has
come, in both alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import lanes as lane_sets
from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.convergence import Gathering, together
from astdsl.emulator.formats.fragments import TMEM_COLUMNS
from astdsl.emulator.isa import Control, Execute, controls, executes
from astdsl.emulator.isa.mbarrier import barrier_place, use
from astdsl.emulator.issues import Issue
from astdsl.emulator.lanes import WARP_THREADS, Lanes
from astdsl.emulator.machine import Condition
from astdsl.emulator.scalars import all_of, any_of, one_a_lane
from astdsl.emulator.spread import pairs, spread_by_mask
from astdsl.emulator.syntax import Immediate
from astdsl.emulator.tensor_memory import COLUMN_MASK
from astdsl.emulator.tensor_products import ORDER, OpenProduct, tensor_memory

if TYPE_CHECKING:
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import BoolArray

GROUPS = ("cta_group::1", "cta_group::2")
_COUNTS = "columns are a power of two from 32 to 512, not {}"
_ALIGNED = (*GROUPS, "sync", "aligned", "shared::cta", "b32")


def _warp_lanes(lanes: Lanes, m: Machine) -> Iterator[int]:
    """Yield the first lane of every warp."""
    yield from (int(lane) for lane in lanes.index[m.thread_of[lanes.sel] % WARP_THREADS == 0])


class _Columns:
    """How many columns each warp allocates or frees: a constant, or a register."""

    def __init__(self, ops: Operands, operand: Any) -> None:
        self._read = ops.source(operand, "u32")
        self._constant = operand.value if isinstance(operand, Immediate) else None
        if self._constant is not None and not _is_count(self._constant):
            raise ops.refuse(_COUNTS.format(self._constant))
        ops.sensitive += ops.registers(operand)

    def check(self, m: Machine, lanes: Lanes) -> None:
        """Fault if a whole warp has no number that it may ask for."""
        if self._constant is not None:
            return
        counts = one_a_lane(self._read(m, lanes), lanes.n)
        first = np.zeros(m.n_blocks * m.n_warps, np.uint32)
        warps = m.block_of[lanes.sel] * m.n_warps + m.thread_of[lanes.sel] // WARP_THREADS
        first[warps] = counts
        if any_of(first[warps] != counts):
            at = int(np.argmax(first[warps] != counts))
            text = "the lanes of a warp give different numbers of columns of tensor memory"
            raise m.fault("E271", text, int(lanes.index[at]))
        for count in np.unique(counts):
            if not _is_count(int(count)):
                at = int(np.argmax(counts == count))
                raise m.fault("E271", _COUNTS.format(count), int(lanes.index[at]))

    def each(self, m: Machine, lanes: Lanes) -> Iterator[tuple[int, Lanes]]:
        """Yield the numbers that lanes give, with those that give them."""
        if self._constant is not None:
            yield self._constant, lanes
            return
        counts = one_a_lane(self._read(m, lanes), lanes.n)
        for count in np.unique(counts):
            yield int(count), lanes.where(counts == count)


def _is_count(columns: int) -> bool:
    return not columns & (columns - 1) and WARP_THREADS <= columns <= TMEM_COLUMNS


class _Collective:
    """Lets a warp go on when it is whole, and with `.cta_group::2` with one of its pair's block."""

    def __init__(self, ops: Operands) -> None:
        self.n_blocks = 2 if ops.has("cta_group::2") else 1
        self._gathering = Gathering(WARP_THREADS)
        self._wait = Condition(self._paired, self._describe, again=True)

    def complete(self, m: Machine, lanes: Lanes) -> Lanes:
        """Return the lanes that go on; the others wait."""
        whole = self._gathering.complete(m, lanes)
        if not whole.n or self.n_blocks == 1:
            return whole
        paired = self._paired(m, whole)
        if all_of(paired):
            return whole
        m.block(whole.where(~paired), self._wait)
        return whole.where(paired) if any_of(paired) else lane_sets.NONE

    def _paired(self, m: Machine, lanes: Lanes) -> BoolArray:
        """Say of which lanes' pairs both blocks are there. Blocked lanes are gathered in one."""
        rows = pairs(m, lanes).rows.reshape(-1, 2)
        there = np.zeros(m.n_blocks, np.bool_)
        there[m.block_of[lanes.sel]] = True
        return np.asarray(there[rows].all(axis=1), np.bool_)

    def _describe(self, m: Machine, lanes: Lanes) -> str:
        return "waits for a warp of the other block of its pair to execute this instruction too"


@controls("tcgen05.alloc")
def prepare_alloc(ops: Operands) -> Control:
    """`tcgen05.alloc.cta_group.sync.aligned{.shared::cta}.b32 [dst], columns`."""
    ops.allow("alloc", *_ALIGNED)
    address, columns = ops.address(ops.args[0]), _Columns(ops, ops.args[1])
    collective = _Collective(ops)

    def available(m: Machine, lanes: Lanes) -> BoolArray:
        ready = np.zeros(m.n_lanes, np.bool_)
        for count, some in columns.each(m, lanes):
            free = tensor_memory(m).find_free(count, collective.n_blocks) >= 0
            ready[some.sel] = free[m.block_of[some.sel]]
        return np.asarray(ready[lanes.sel], np.bool_)

    def describe(m: Machine, lanes: Lanes) -> str:
        count, _ = next(columns.each(m, lanes))
        return f"waits for {count} free columns of tensor memory"

    condition = Condition(available, describe, again=True)

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        whole = collective.complete(m, lanes)
        if not whole.n:
            return whole
        columns.check(m, whole)
        free = available(m, whole)
        if not all_of(free):
            m.block(whole.where(~free), condition)
        going = whole.where(free) if not all_of(free) else whole
        for count, some in columns.each(m, going):
            _allocate(m, some, address(m, some), count, collective.n_blocks)
        return going if going.n else lane_sets.NONE

    return execute


def _allocate(m: Machine, lanes: Lanes, addresses: Any, columns: int, together: int) -> None:
    """Give the first free columns to each warp's block, and store their address.

    Those of `together` neighbouring blocks are chosen before either takes them.
    """
    memory = tensor_memory(m)
    firsts = np.zeros(m.n_lanes, np.uint32)
    takers: dict[int, int] = {}
    free = memory.find_free(columns, together)
    for lane in _warp_lanes(lanes, m):
        row = int(m.block_of[lane])
        if row in takers:
            free[row] = memory.find_free(columns)[row] if together == 1 else -1
        first = int(free[row])
        if first < 0:
            # The other one may have asked for another number of columns.
            other = m.lane_text(takers[row]) if row in takers else "another one"
            text = f"two warps of a block allocate the last columns at once: this one and {other}"
            raise m.fault("E271", text, lane)
        takers[row] = lane
        if not memory.may_allocate[row]:
            raise m.fault("E271", "tcgen05.alloc after tcgen05.relinquish_alloc_permit", lane)
        memory.allocate(row, first, columns)
        firsts[lane] = first
    leaders = lanes.where(m.thread_of[lanes.sel] % WARP_THREADS == 0)
    targets = np.broadcast_to(addresses, lanes.n)[m.thread_of[lanes.sel] % WARP_THREADS == 0]
    rows, offsets = m.memory.shared_place(m, leaders, targets, 4)
    # Not an ordinary store of the warp: no proxy fence is needed before the bytes are reused.
    m.memory.shared.store(rows, offsets, firsts[leaders.sel])
    if m.guard is not None:
        m.guard.races.made(leaders, rows, offsets, 4, alone=False)


@controls("tcgen05.dealloc")
def prepare_dealloc(ops: Operands) -> Control:
    """`tcgen05.dealloc.cta_group.sync.aligned.b32 taddr, columns`."""
    ops.allow("dealloc", *_ALIGNED)
    address, columns = ops.source(ops.args[0], "u32"), _Columns(ops, ops.args[1])
    ops.sensitive += ops.reads
    collective = _Collective(ops)

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        whole = collective.complete(m, lanes)
        if whole.n:
            columns.check(m, whole)
            for count, some in columns.each(m, whole):
                _free(m, some, address(m, some), count)
            m.wake = True
        return whole

    return execute


def _free(m: Machine, lanes: Lanes, addresses: Any, columns: int) -> None:
    """Take columns back from each warp's block."""
    firsts = np.broadcast_to(addresses, lanes.n)
    starts = m.thread_of[lanes.sel] % WARP_THREADS == 0
    for lane, first in zip(lanes.index[starts], firsts[starts], strict=True):
        one = Lanes.of(np.array([lane]))
        column = int(first) & COLUMN_MASK
        tensor_memory(m).free(int(m.block_of[lane]), column, columns, one)


@controls("tcgen05.relinquish_alloc_permit")
def prepare_relinquish(ops: Operands) -> Control:
    """`tcgen05.relinquish_alloc_permit.cta_group.sync.aligned`."""
    ops.allow("relinquish_alloc_permit", *_ALIGNED)

    def execute(m: Machine, lanes: Lanes) -> None:
        tensor_memory(m).may_allocate[m.block_of[lanes.sel]] = False

    return together(execute)


@executes("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def prepare_fence(ops: Operands) -> Execute:
    """`tcgen05.fence::...`: orders accesses with what threads signal and wait for."""
    ops.allow("fence::before_thread_sync", "fence::after_thread_sync")
    after = ops.has("fence::after_thread_sync")

    def execute(m: Machine, lanes: Lanes) -> None:
        tensor_memory(m).fence(lanes, after=after)

    return execute


@executes("tcgen05.commit")
def prepare_commit(ops: Operands) -> Execute:
    """`tcgen05.commit.cta_group.mbarrier::arrive::one{.shared::cluster}.b64 [mbar]{, mask}`."""
    words = ("mbarrier::arrive::one", "shared::cluster", "multicast::cluster")
    ops.allow("commit", *GROUPS, *words)
    place, mask = barrier_place(ops, ops.args[0]), None
    if ops.has("multicast::cluster"):
        if len(ops.args) < 2:
            raise ops.refuse("a multicast needs the mask of its blocks")
        mask = ops.source(ops.args[1], "u16")
        ops.sensitive += ops.reads

    def execute(m: Machine, lanes: Lanes) -> None:
        rows, offsets = place(m, lanes)
        if mask is not None:
            spread = spread_by_mask(m, lanes, mask)
            lanes, rows, offsets = spread.lanes, spread.rows, spread.of(offsets)
        if m.guard is not None:
            m.guard.announce(lanes, rows, offsets)
        ones, pc, who = np.ones(lanes.n, np.int64), m.pc, lanes
        m.state(OpenProduct).product = None

        def perform() -> None:
            with m.at(pc):
                use(m, who, lambda b: b.arrive(rows, offsets, ones))
            if m.guard is not None:
                m.guard.complete_mbarrier(who, pc, rows, offsets)

        issue = Issue("tcgen05.commit", m.place_text(pc), m.warp_of(lanes))
        m.asynchronous.issue(Operation(perform, issue, ORDER, signals=True))

    return execute
