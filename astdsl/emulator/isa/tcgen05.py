"""Allocation of tensor memory, fences and commits of sm_100a (PTX ISA 9.7.16.7, 9.7.16.11).

Invariant: one CTA (`cta_group::1`); two-CTA forms are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import lanes as lane_sets
from astdsl.emulator.asynchronous import Operation
from astdsl.emulator.convergence import Gathering
from astdsl.emulator.formats.fragments import TMEM_COLUMNS
from astdsl.emulator.isa import Control, Execute, controls, executes
from astdsl.emulator.isa.mbarrier import barrier_place, use
from astdsl.emulator.lanes import Lanes
from astdsl.emulator.machine import Condition
from astdsl.emulator.syntax import Immediate
from astdsl.emulator.tensor_memory import COLUMN_MASK
from astdsl.emulator.tensor_products import ORDER, OpenProduct, tensor_memory

if TYPE_CHECKING:
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import BoolArray

_WARP = 32
_ALIGNED = ("cta_group::1", "sync", "aligned", "shared::cta", "b32")


def _warp_lanes(lanes: Lanes, m: Machine) -> Iterator[int]:
    """Yield the first lane of every warp."""
    yield from (int(lane) for lane in lanes.index[m.thread_of[lanes.sel] % _WARP == 0])


def _columns(ops: Operands, operand: Any) -> int:
    if not isinstance(operand, Immediate):
        raise ops.refuse("the number of columns must be a constant")
    columns = operand.value
    if columns & (columns - 1) or not _WARP <= columns <= TMEM_COLUMNS:
        raise ops.refuse(f"columns are a power of two from 32 to 512, not {columns}")
    return columns


@controls("tcgen05.alloc")
def prepare_alloc(ops: Operands) -> Control:
    """`tcgen05.alloc.cta_group::1.sync.aligned{.shared::cta}.b32 [dst], columns`."""
    ops.allow("alloc", *_ALIGNED)
    address, columns = ops.address(ops.args[0]), _columns(ops, ops.args[1])
    gathering = Gathering(_WARP)

    def available(m: Machine, lanes: Lanes) -> BoolArray:
        memory = tensor_memory(m)
        rows = m.block_of[lanes.sel]
        free = {row: memory.find_free(row, columns) is not None for row in np.unique(rows)}
        return np.array([free[row] for row in rows], np.bool_)

    def describe(m: Machine, lanes: Lanes) -> str:
        return f"waits for {columns} free columns of tensor memory"

    condition = Condition(available, describe, again=True)

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        whole = gathering.complete(m, lanes)
        if not whole.n:
            return whole
        free = available(m, whole)
        if not free.all():
            m.block(whole.where(~free), condition)
        going = whole.where(free) if not free.all() else whole
        if going.n:
            _allocate(m, going, address(m, going), columns)
        return going if going.n else lane_sets.NONE

    return execute


def _allocate(m: Machine, lanes: Lanes, addresses: Any, columns: int) -> None:
    memory = tensor_memory(m)
    firsts = np.zeros(m.n_lanes, np.uint32)
    for lane in _warp_lanes(lanes, m):
        row = int(m.block_of[lane])
        first = memory.find_free(row, columns)
        if first is None:
            raise m.fault("E271", "two warps of a block allocate the last columns at once", lane)
        if not memory.may_allocate[row]:
            raise m.fault("E271", "tcgen05.alloc after tcgen05.relinquish_alloc_permit", lane)
        memory.allocate(row, first, columns)
        firsts[lane] = first
    leaders = lanes.where(m.thread_of[lanes.sel] % _WARP == 0)
    targets = np.broadcast_to(addresses, lanes.n)[m.thread_of[lanes.sel] % _WARP == 0]
    rows, offsets = m.memory.shared_place(m, leaders, targets, 4)
    # Not an ordinary store of the warp: no proxy fence is needed before the bytes are reused.
    m.memory.shared.store(rows, offsets, firsts[leaders.sel])
    if m.guard is not None and m.guard.races is not None:
        m.guard.races.made(leaders, rows, offsets, 4)


@controls("tcgen05.dealloc")
def prepare_dealloc(ops: Operands) -> Control:
    """`tcgen05.dealloc.cta_group::1.sync.aligned.b32 taddr, columns`."""
    ops.allow("dealloc", *_ALIGNED)
    address, columns = ops.source(ops.args[0], "u32"), _columns(ops, ops.args[1])
    ops.sensitive += ops.reads
    gathering = Gathering(_WARP)

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        whole = gathering.complete(m, lanes)
        if whole.n:
            firsts = np.broadcast_to(address(m, whole), whole.n)
            starts = m.thread_of[whole.sel] % _WARP == 0
            for lane, first in zip(whole.index[starts], firsts[starts], strict=True):
                one = Lanes.of(np.array([lane]))
                column = int(first) & COLUMN_MASK
                tensor_memory(m).free(int(m.block_of[lane]), column, columns, one)
            m.wake = True
        return whole

    return execute


@executes("tcgen05.relinquish_alloc_permit")
def prepare_relinquish(ops: Operands) -> Execute:
    """`tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned`."""
    ops.allow("relinquish_alloc_permit", *_ALIGNED)

    def execute(m: Machine, lanes: Lanes) -> None:
        tensor_memory(m).may_allocate[m.block_of[lanes.sel]] = False

    return execute


@executes("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def prepare_fence(ops: Operands) -> Execute:
    """`tcgen05.fence::...`: order with other threads; the emulator's order is stronger."""
    ops.allow("fence::before_thread_sync", "fence::after_thread_sync")

    def execute(m: Machine, lanes: Lanes) -> None:
        """Do nothing."""

    return execute


@executes("tcgen05.commit")
def prepare_commit(ops: Operands) -> Execute:
    """`tcgen05.commit.cta_group::1.mbarrier::arrive::one{.shared::cluster}.b64 [mbar]`."""
    ops.allow("commit", "cta_group::1", "mbarrier::arrive::one", "shared::cluster")
    place = barrier_place(ops, ops.args[0])

    def execute(m: Machine, lanes: Lanes) -> None:
        rows, offsets = place(m, lanes)
        ones, pc = np.ones(lanes.n, np.int64), m.pc
        m.state(OpenProduct).product = None

        def perform() -> None:
            m.pc = pc
            use(m, lanes, lambda b: b.arrive(rows, offsets, ones))
            if m.guard is not None:
                m.guard.complete_mbarrier(rows, offsets)

        place_text = m.place_text(pc)
        m.asynchronous.issue(Operation(perform, "tcgen05.commit", place_text, ORDER, signals=True))

    return execute
