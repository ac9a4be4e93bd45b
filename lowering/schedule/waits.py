"""Waits that each warp makes for itself, and what its first thread then does for all of them.

A wait names a phase of an mbarrier by its parity. Who still waits for a phase when the next one is
complete takes it for the one after that, which may never come. So before the first thread lets the
next phase come, the others have passed the wait: they meet in between.

Invariant: between a wait of several warps and what lets the next phase of that barrier complete,
they have met. Semaphores and words of memory, by which warpgroups may also tell each other to go
on, are not looked at; the emulator does (E245).
Source: PTX ISA 9.7.13.15.16 "mbarrier.test_wait, try_wait": only the current phase and the one
immediately before it can be tested.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Op, Value, walk
from astdsl.lowering.schedule.reach import reach
from astdsl.lowering.target import TCGEN05, Target

__all__ = ["Awaited", "Waits"]

# An array of mbarriers; None stands for those that products in tensor memory complete.
Awaited: TypeAlias = "Value | None"

_WAITS = (ops.BarrierWait, ops.BarrierTest)
# What the first thread does alone; before an arrival for all of them the warps meet.
_ALONE = (ops.CopyIn, ops.TensorCommit)
_SIGNALS = (*_ALONE, ops.BarrierArrive)
_MEETINGS = (ops.AccumulatorRead, ops.AccumulatorWrite, ops.TmemWaitLoad, ops.TmemCommit)


class Waits:
    """What the operations of a launch wait for, and what their first threads then signal."""

    def __init__(self, launch: ops.Launch, target: Target) -> None:
        self._in_tensor_memory = target.has(TCGEN05)
        # By barrier, the warpgroups that wait for it, and that signal it; by signal, who makes it.
        self._waiting: dict[Value, set[int]] = defaultdict(set)
        self._signalling: dict[Value, set[int]] = defaultdict(set)
        self._runners: dict[Op, set[int]] = defaultdict(set)
        own = {op.result for op in walk(launch.body) if _is_own(op)}
        for group in range(launch.warpgroups if launch.per_warpgroup else 0):
            for op in reach(launch.body, group).ops:
                self._note(op, group, own)

    def _note(self, op: Op, group: int, own: Collection[Value]) -> None:
        if isinstance(op, _SIGNALS):
            self._runners[op].add(group)
        if isinstance(op, _WAITS) and op.barrier not in own:
            self._waiting[op.barrier].add(group)
        elif isinstance(op, _SIGNALS) and op.barrier not in own:
            self._signalling[op.barrier].add(group)

    def awaited(self, op: Op) -> Iterator[Awaited]:
        """Yield the mbarriers that each warp waits for at an operation."""
        if isinstance(op, ops.BarrierWait):
            yield op.barrier
        elif isinstance(op, ops.ProductWait) and self._in_tensor_memory:
            yield None

    def meet(self, op: Op) -> bool:
        """Say whether the warps meet at an operation that is no barrier by its name.

        They agree what a test has found; of one warp they vote, which orders no memory.
        """
        if isinstance(op, ops.BarrierTest):
            return True
        return isinstance(op, _MEETINGS) and self._in_tensor_memory

    def overtake(self, op: Op, awaited: Collection[Awaited]) -> bool:
        """Say whether an operation of the first thread may let what others wait for be followed.

        It signals what is awaited; or what another warpgroup waits for, who then does.
        """
        if isinstance(op, ops.MatrixMultiply):
            return None in awaited
        if not isinstance(op, _ALONE):
            return False
        return op.barrier in awaited or any(
            self._waiting[op.barrier] - {group} and self._signalling[barrier] - {group}
            for barrier in awaited
            if barrier is not None
            for group in self._runners[op]
        )


def _is_own(op: Op) -> bool:
    """Whether an operation makes mbarriers of which each warpgroup has its own."""
    return isinstance(op, ops.AllocBarrier) and bool(op.owners)
