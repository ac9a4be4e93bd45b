"""Copies of consecutive bytes: global to shared, back, and between blocks (PTX ISA 9.7.9.25.4).

Invariant: sizes and addresses are multiples of 16 bytes; what lands in shared memory is counted by
a barrier of the block that it lands in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.copies import Addresses, BulkStore, Transfer, issue_load, issue_shared
from astdsl.emulator.formats.swizzle import Swizzle
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.tma import (
    LoadTarget,
    issue_reduction,
    issue_store,
    place_units,
    require_aligned,
)
from astdsl.emulator.reductions import BULK_TYPES, OPERATIONS, combiner
from astdsl.emulator.scalars import all_of
from astdsl.emulator.spread import Spread, own

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Getter, Operands
    from astdsl.emulator.scalars import Array

_BULK_ALIGN_BYTES = 16


class _Run:
    """The operands of a copy of consecutive bytes between global and shared memory."""

    def __init__(self, ops: Operands, global_operand: Any, shared: Any, size: Any) -> None:
        self._global, self._shared = ops.address(global_operand), ops.address(shared)
        self._size = ops.source(size, "u32")
        ops.sensitive += ops.reads

    def sizes(self, m: Machine, lanes: Lanes) -> Iterator[tuple[Lanes, int]]:
        """Yield lanes that copy equally many bytes, and how many."""
        yield from _by_size(m, lanes, self._size)

    def transfer(
        self, m: Machine, spread: Spread, size: int, what: str, unit_bytes: int = 16
    ) -> Transfer:
        """Return the copy of `size` bytes, for each lane and each block that it reaches."""
        lanes = spread.lanes
        sources = np.broadcast_to(self._global(m, lanes), lanes.n)
        rows, starts = m.memory.shared_place(m, lanes, self._shared(m, lanes), size)
        if spread.at is not None:
            rows = spread.rows
        require_aligned(m, lanes, sources, _BULK_ALIGN_BYTES, "a bulk copy's global address")
        require_aligned(m, lanes, starts, _BULK_ALIGN_BYTES, "a bulk copy's shared address")
        addresses = Addresses(sources, np.arange(0, size, unit_bytes))
        units = place_units(starts, size, unit_bytes, Swizzle.NONE)
        return Transfer(m, lanes, what, unit_bytes, addresses, None, rows, starts, size, units)


def _by_size(m: Machine, lanes: Lanes, get: Getter) -> Iterator[tuple[Lanes, int]]:
    sizes = np.broadcast_to(get(m, lanes), lanes.n).astype(np.int64)
    require_aligned(m, lanes, sizes, _BULK_ALIGN_BYTES, "a bulk copy's size")
    for size in np.unique(sizes[sizes > 0]):
        yield (lanes if all_of(sizes == size) else lanes.where(sizes == size)), int(size)


class _Exchange:
    """The operands of a copy from a block's shared memory to that of another of its cluster."""

    def __init__(self, ops: Operands) -> None:
        self._target, self._source = ops.address(ops.args[0]), ops.address(ops.args[1])
        self._size = ops.source(ops.args[2], "u32")
        self._barrier = LoadTarget(ops, ops.args[3], ())
        ops.sensitive += ops.reads

    def issue(
        self, m: Machine, lanes: Lanes, what: str, unit_bytes: int = 16, combine: Any = None
    ) -> None:
        """Issue the copies of all lanes, or reductions of units by `combine`."""
        for some, size in _by_size(m, lanes, self._size):
            source = self._side(m, some, self._source(m, some), what, (size, unit_bytes))
            target = self._side(m, some, self._target(m, some), what, (size, unit_bytes))
            barrier = self._barrier.barriers(m, own(m, some), target.rows)
            issue_shared(source, target, barrier, combine)

    def _side(
        self, m: Machine, lanes: Lanes, addresses: Array, what: str, sizes: tuple[int, int]
    ) -> Transfer:
        size, unit_bytes = sizes
        rows, starts = m.memory.shared_place(m, lanes, addresses, size)
        require_aligned(m, lanes, starts, _BULK_ALIGN_BYTES, "a bulk copy's shared address")
        units = place_units(starts, size, unit_bytes, Swizzle.NONE)
        nowhere = Addresses.listed(starts)
        return Transfer(m, lanes, what, unit_bytes, nowhere, None, rows, starts, size, units)


_LINEAR = ("async", "bulk", "global", "shared::cta", "shared::cluster", "L2::cache_hint")


@executes("cp.async.bulk")
def prepare_bulk_copy(ops: Operands) -> Execute:
    """`cp.async.bulk.dst.src.completion`, by its direction."""
    spaces = [word for word in ops.modifiers if word.partition("::")[0] in ("global", "shared")]
    if spaces == ["global", "shared::cta"]:
        return _bulk_store(ops)
    if spaces in (["shared::cluster", "global"], ["shared::cta", "global"]):
        return _bulk_load(ops)
    if spaces == ["shared::cluster", "shared::cta"]:
        return _bulk_exchange(ops)
    raise ops.refuse("copies go between global memory, shared::cta and shared::cluster")


def _bulk_load(ops: Operands) -> Execute:
    """`[dst], [src], size, [mbar]{, mask}{, hint}`."""
    ops.allow(*_LINEAR, "mbarrier::complete_tx::bytes", "multicast::cluster")
    run = _Run(ops, ops.args[1], ops.args[0], ops.args[2])
    target = LoadTarget(ops, ops.args[3], ops.args[4:])

    def execute(m: Machine, lanes: Lanes) -> None:
        for some, size in run.sizes(m, lanes):
            spread = target.spread(m, some)
            transfer = run.transfer(m, spread, size, "bulk load")
            issue_load(transfer, *target.barriers(m, spread, transfer.rows))

    return execute


def _bulk_store(ops: Operands) -> Execute:
    """`[dst], [src], size{, hint}{, mask}`: the bits of the mask choose bytes of each 16."""
    ops.allow(*_LINEAR, "bulk_group", "cp_mask")
    run = _Run(ops, ops.args[0], ops.args[1], ops.args[2])
    mask = ops.source(ops.args[-1], "u16") if ops.has("cp_mask") else None
    ops.sensitive += ops.reads

    def execute(m: Machine, lanes: Lanes) -> None:
        for some, size in run.sizes(m, lanes):
            unit_bytes = _BULK_ALIGN_BYTES if mask is None else 1
            transfer = run.transfer(m, own(m, some), size, "bulk store", unit_bytes)
            if mask is not None:
                bits = np.broadcast_to(mask(m, some), some.n)[:, None] >> np.arange(16) & 1
                transfer.inside = np.tile(bits == 1, size // 16)
            issue_store(m, some, BulkStore(transfer, transfer.write_global))

    return execute


def _bulk_exchange(ops: Operands) -> Execute:
    """`[dst], [src], size, [mbar]`: to another block of the cluster."""
    ops.allow("async", "bulk", "shared::cta", "shared::cluster", "mbarrier::complete_tx::bytes")
    exchange = _Exchange(ops)

    def execute(m: Machine, lanes: Lanes) -> None:
        exchange.issue(m, lanes, "bulk copy to another block")

    return execute


@executes("cp.reduce.async.bulk")
def prepare_bulk_reduction(ops: Operands) -> Execute:
    """`cp.reduce.async.bulk.dst.shared::cta.completion.op.type [dst], [src], size{, [mbar]}`."""
    words = ("reduce", "noftz", *OPERATIONS, *BULK_TYPES)
    ops.allow(*_LINEAR, *words, "bulk_group", "mbarrier::complete_tx::bytes")
    operation = next((word for word in OPERATIONS if ops.has(word)), "")
    dtype = BULK_TYPES.get(ops.modifiers[-1])
    if dtype is None or not operation:
        raise ops.refuse("a reduction ends in an operation and a type")
    if ops.has("shared::cluster"):
        exchange, combine = _Exchange(ops), combiner(operation, dtype)
        return lambda m, lanes: exchange.issue(
            m, lanes, "bulk reduction in another block", dtype.itemsize, (dtype, combine)
        )
    run = _Run(ops, ops.args[0], ops.args[1], ops.args[2])

    def execute(m: Machine, lanes: Lanes) -> None:
        for some, size in run.sizes(m, lanes):
            transfer = run.transfer(m, own(m, some), size, "bulk reduction", dtype.itemsize)
            issue_reduction(m, some, transfer, dtype, operation)

    return execute
