"""Ordering what the threads of a block do to one memory: barriers between dependent accesses.

Before
    store x, ...; y = load x
    store x, ...; copy_in x
After
    store x, ...; block_barrier; y = load x
    store x, ...; block_barrier; proxy_fence of global memory; copy_in x

Invariant: between two accesses of one ref, one of them a write, every thread of the block has
passed a barrier, unless the two are known to touch different elements. What a product has read is
refilled only behind a barrier after a wait for products: each warpgroup waits for its own. No wait
is overtaken by the next phase of its mbarrier (`waits`). A copy of global memory that threads of
the launch write comes behind a fence, so that it sees what they have written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from astdsl.ir import ops
from astdsl.ir.core import IN, PURE, Block, Module, Op, Value, walk
from astdsl.ir.rewrite import map_regions, with_ops
from astdsl.ir.types import GMEM
from astdsl.lowering.schedule.build import Maker
from astdsl.lowering.schedule.waits import Awaited, Waits
from astdsl.lowering.target import Target

_ACCESSES = (ops.Load, ops.Gather, ops.Atomic, ops.Store, ops.Scatter)
_STORES = (ops.Store, ops.Scatter, ops.Atomic)
_BARRIERS = (ops.BlockBarrier, ops.BarrierArrive)


def _is_barrier(op: Op) -> bool:
    return op.meets if isinstance(op, ops.WaitGroup) else isinstance(op, _BARRIERS)


@dataclass(slots=True)
class _Pending:
    """What was accessed since the last barrier."""

    reads: set[Value] = field(default_factory=set)
    writes: set[Value] = field(default_factory=set)
    # Of memory that was only updated by atomics which give the same in any order: their kind.
    updates: dict[Value, str] = field(default_factory=dict)
    # Whether warpgroups have waited for products since, each for its own.
    waited: bool = False
    # What the warps have waited for since, each for itself; None where it is one warp.
    awaited: set[Awaited] | None = field(default_factory=set)

    def clear(self) -> None:
        self.waited = False
        self.met()
        self.reads.clear()
        self.writes.clear()
        self.updates.clear()

    def met(self) -> None:
        """Note that the warps have met."""
        if self.awaited is not None:
            self.awaited = set()

    def copy(self) -> _Pending:
        awaited = None if self.awaited is None else set(self.awaited)
        return _Pending(set(self.reads), set(self.writes), dict(self.updates), self.waited, awaited)

    @property
    def key(self) -> object:
        """What tells it from others."""
        awaited = None if self.awaited is None else frozenset(self.awaited)
        updates = frozenset(self.updates.items())
        return frozenset(self.reads), frozenset(self.writes), updates, self.waited, awaited

    def join(self, other: _Pending) -> None:
        self.waited |= other.waited
        if self.awaited is not None and other.awaited is not None:
            self.awaited |= other.awaited
        self.reads |= other.reads
        self.writes |= other.writes
        for ref, kind in other.updates.items():
            if self.updates.setdefault(ref, kind) != kind:
                self.writes.add(ref)


def order_accesses(
    launch: ops.Launch, module: Module, apart: Iterable[Op], target: Target
) -> ops.Launch:
    """Return the launch with barriers between dependent accesses.

    `apart` are stores that never touch an element twice, nor one that the block reads.
    """
    constant = {p.value for p in module.params if p.role == IN}
    used = {v for op in walk(launch.body) for v in op.operands}
    unions = [op.refs for op in walk(launch.body) if isinstance(op, ops.Overlap)]
    same = {v: refs[0] for refs in unions for v in refs}
    operands = {same.get(v, v) for v in _read_by_warpgroups(launch)}
    ordering = _Walk(constant, set(apart), used, same, operands, Waits(launch, target))
    ordering.stored = {op.ref for op in walk(launch.body) if isinstance(op, _STORES)}
    return map_regions(launch, lambda region: _of_body(ordering, region, launch))


def _read_by_warpgroups(launch: ops.Launch) -> Iterator[Value]:
    """Yield what products of several warpgroups together read."""
    if launch.warpgroups > 1 and not launch.per_warpgroup:
        for op in walk(launch.body):
            if isinstance(op, ops.MatrixMultiply):
                yield from (op.a, op.b)


def _of_body(ordering: _Walk, region: Block, launch: ops.Launch) -> Block:
    return ordering.block(region, _Pending()) if region is launch.body else region


class _Walk:
    """`same` leads from each buffer that shares its region with others to one for all of them.

    `operands` are the buffers that products of several warpgroups together read.
    """

    def __init__(
        self,
        constant: set[Value],
        apart: set[Op],
        used: set[Value],
        same: dict[Value, Value],
        operands: set[Value],
        waits: Waits,
    ) -> None:
        self.constant = constant
        self.apart = apart
        self.used = used
        self.same = same
        self.operands = operands
        self.waits = waits
        # What threads of the launch write.
        self.stored: set[Value] = set()
        # The bodies of loops by what was pending before, with what is pending after the loop.
        self.bodies: dict[object, tuple[Block, _Pending]] = {}

    def _memory(self, op: Any) -> Value:
        """Return the memory that an access touches."""
        ref: Value = op.ref
        return self.same.get(ref, ref)

    def block(self, block: Block, pending: _Pending) -> Block:
        made: list[Op] = []
        for op in block.ops:
            if op.effect == PURE and not op.regions:
                made.append(op)
                continue
            if self._conflicts(op, pending):
                made.append(Maker(op.span).add_op(ops.BlockBarrier(span=op.span)))
                pending.clear()
            if isinstance(op, ops.Copy) and op.ref in self.stored:
                made.append(Maker(op.span).add_op(ops.ProxyFence(span=op.span, space=GMEM)))
            made.append(self._op(op, pending))
        return with_ops(block, made)

    def _conflicts(self, op: Op, pending: _Pending) -> bool:
        if pending.awaited and self.waits.overtake(op, pending.awaited):
            return True
        if isinstance(op, ops.Copy):
            return self._comes_too_early(op, pending)
        if not isinstance(op, _ACCESSES) or (op in self.apart and op.ref not in self.same):
            return False
        memory = self._memory(op)
        if isinstance(op, (ops.Load, ops.Gather)):
            return memory in pending.writes or memory in pending.updates
        if pending.waited and memory in self.operands:
            return True
        if isinstance(op, ops.Atomic):
            touched = pending.writes | pending.reads
            return memory in touched or not self._commutes(op, memory, pending)
        return memory in pending.writes | pending.reads or memory in pending.updates

    def _comes_too_early(self, op: ops.Copy, pending: _Pending) -> bool:
        """Whether threads may still use what a copy fills, or write what it reads."""
        if op.ref in pending.writes or op.ref in pending.updates:
            return True
        if isinstance(op, ops.CopyOut):
            return op.ref in pending.reads
        return pending.waited and self.same.get(op.buffer, op.buffer) in self.operands

    def _commutes(self, op: ops.Atomic, memory: Value, pending: _Pending) -> bool:
        """Whether an update may happen before or after those that are pending, unseen."""
        if memory not in pending.updates:
            return True
        is_unseen = op.result not in self.used
        return is_unseen and op.kind in ops.COMMUTING and pending.updates[memory] == op.kind

    def _op(self, op: Op, pending: _Pending) -> Op:
        if pending.awaited is not None:
            pending.awaited.update(self.waits.awaited(op))
        if self.waits.meet(op):
            pending.met()
        if _is_barrier(op):
            pending.clear()
        elif isinstance(op, ops.ProductWait):
            pending.waited = True
        elif isinstance(op, (ops.Load, ops.Gather)) and op.ref not in self.constant:
            pending.reads.add(self._memory(op))
        elif isinstance(op, ops.Atomic):
            # One whose result is used tells them apart from those that follow it.
            pending.updates[self._memory(op)] = "" if op.result in self.used else op.kind
        elif isinstance(op, (ops.Store, ops.Scatter)):
            pending.writes.add(self._memory(op))
        if isinstance(op, ops.Warps):
            return self._warps(op, pending)
        if isinstance(op, ops.Loop):
            return self._loop(op, pending)
        return self._branches(op, pending) if op.regions else op

    def _warps(self, op: ops.Warps, pending: _Pending) -> Op:
        """Enter warps that meet before and after: between, each orders what it does itself."""
        pending.clear()
        return map_regions(op, lambda region: self.block(region, _Pending(awaited=None)))

    def _branches(self, op: Op, pending: _Pending) -> Op:
        before = pending.copy()
        pending.clear()

        def side(region: Block) -> Block:
            inner = before.copy()
            new = self.block(region, inner)
            pending.join(inner)
            return new

        return map_regions(op, side)

    def _loop(self, op: Op, pending: _Pending) -> Op:
        return map_regions(op, lambda region: self._body(region, pending))

    def _body(self, region: Block, pending: _Pending) -> Block:
        """Enter the body of a loop as from before it, and as from the end of the body.

        Once for what is pending when it is entered: loops in loops would be walked twice as often
        for each loop around them.
        """
        entry = (region, pending.key)
        if entry not in self.bodies:
            probe = pending.copy()
            self.block(region, probe)
            pending.join(probe)
            inner = pending.copy()
            new = self.block(region, inner)
            pending.join(inner)
            self.bodies[entry] = new, pending.copy()
        new, after = self.bodies[entry]
        pending.join(after)
        return new
