"""What barriers and fences mean.

Invariant: a wait that is not satisfied yields; whoever drives the threads of a block decides what
happens, and calls it a deadlock when nobody can go on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from astdsl.errors import ProtocolError
from astdsl.ir import ops
from astdsl.ir.evaluate.memory import fence, join
from astdsl.ir.evaluate.state import Barrier, Blocked, Frame, Run
from astdsl.ir.evaluate.table import evaluates


@evaluates(ops.AllocBarrier)
def _alloc_barrier(op: ops.AllocBarrier, frame: Frame) -> list[Barrier]:
    made = [Barrier(op.arrivals, op.arrivals, op.span) for _ in range(op.count)]
    frame.block.barriers += made
    return made


def _barrier(op: Any, frame: Frame) -> Barrier:
    barriers: list[Barrier] = frame[op.barrier]
    index = frame.number(op.index)
    if not 0 <= index < len(barriers):
        raise ProtocolError(
            f"barrier {index} of an array of {len(barriers)}",
            (op.span, ""),
            (barriers[0].span, "made here"),
            help=f"indices go from 0 to {len(barriers) - 1}",
        )
    return barriers[index]


@evaluates(ops.BarrierArrive)
def _arrive(op: ops.BarrierArrive, frame: Frame) -> None:
    _barrier(op, frame).arrive(op.span)


@evaluates(ops.BarrierWait)
def _wait(op: ops.BarrierWait, frame: Frame) -> Run:
    barrier, parity = _barrier(op, frame), frame.number(op.parity)
    while not barrier.is_complete(parity):
        yield Blocked(op.span, barrier.span)
    barrier.acknowledge()


@evaluates(ops.BarrierTest)
def _test(op: ops.BarrierTest, frame: Frame) -> Any:
    barrier = _barrier(op, frame)
    is_complete = barrier.is_complete(frame.number(op.parity))
    if is_complete:
        barrier.acknowledge()
    return np.bool_(is_complete)


@evaluates(ops.BlockBarrier)
def _block_barrier(op: ops.BlockBarrier, frame: Frame) -> None:
    del op
    join(frame)


@evaluates(ops.ProxyFence)
def _proxy_fence(op: ops.ProxyFence, frame: Frame) -> None:
    del op
    fence(frame)
