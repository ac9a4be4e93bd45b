"""What barriers and fences mean.

Invariant: a wait that is not satisfied yields; whoever drives the threads of a block decides what
happens, and calls it a deadlock when nobody can go on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from astdsl.ir import ops
from astdsl.ir.evaluate.memory import barrier_of, fence, join
from astdsl.ir.evaluate.races import acknowledge, arrive
from astdsl.ir.evaluate.state import Barrier, Blocked, Frame, Run, Waiting
from astdsl.ir.evaluate.table import evaluates
from astdsl.ir.types import SMEM


@evaluates(ops.AllocBarrier)
def _alloc_barrier(op: ops.AllocBarrier, frame: Frame) -> Any:
    return frame.allocated(op, lambda: _new_barriers(op, frame))


def _new_barriers(op: ops.AllocBarrier, frame: Frame) -> list[Barrier]:
    made = [Barrier(op.arrivals, op.arrivals, op.span) for _ in range(op.count)]
    frame.block.barriers += made
    return made


@evaluates(ops.BarrierArrive)
def _arrive(op: ops.BarrierArrive, frame: Frame) -> None:
    arrive(barrier_of(op, frame), op, frame)


@evaluates(ops.BarrierWait)
def _wait(op: ops.BarrierWait, frame: Frame) -> Run:
    barrier, parity = barrier_of(op, frame), frame.number(op.parity)
    blocked = _blocked(op, barrier, frame)
    while not barrier.is_complete(parity):
        yield blocked
    acknowledge(barrier, frame)


def _blocked(op: Any, barrier: Barrier, frame: Frame, *, is_test: bool = False) -> Blocked:
    return Blocked((Waiting(frame.thread, op.span, barrier),), is_test=is_test)


@evaluates(ops.BarrierTest)
def _test(op: ops.BarrierTest, frame: Frame) -> Run:
    barrier, parity = barrier_of(op, frame), frame.number(op.parity)
    if not barrier.is_complete(parity):  # let the others have a turn
        yield _blocked(op, barrier, frame, is_test=True)
    is_complete = barrier.is_complete(parity)
    if is_complete:
        acknowledge(barrier, frame)
    return np.bool_(is_complete)


@evaluates(ops.BlockBarrier)
def _block_barrier(op: ops.BlockBarrier, frame: Frame) -> None:
    del op
    join(frame)


@evaluates(ops.ProxyFence)
def _proxy_fence(op: ops.ProxyFence, frame: Frame) -> None:
    """Mark stores to shared memory; of those to global memory no marks are kept."""
    if op.space == SMEM:
        fence(frame)


@evaluates(ops.SetMaxRegisters)
def _set_max_registers(op: ops.SetMaxRegisters, frame: Frame) -> None:
    """Do nothing: registers hold no more and no less."""
