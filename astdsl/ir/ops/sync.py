"""Barriers and fences of a block.

Invariant: a wait names the parity of the phase that it waits for; who tracks it is the schedule,
or for hand-written kernels a counter for each barrier.
"""

from __future__ import annotations

from astdsl.ir.core import ACTS, Op, Value
from astdsl.ir.types import CONDITION, SMEM, BarrierType, Type


class AllocBarrier(Op):
    """`count` mbarriers in shared memory, each completed by `arrivals` arrivals.

    With `owners`, each of these warpgroups, which run the program themselves, has its own; with
    `orders_tensor_core`, tensor memory is used before an arrival and after a wait.
    """

    effect = ACTS
    count: int
    arrivals: int
    label: str = ""
    owners: tuple[int, ...] = ()
    orders_tensor_core: bool = False

    def result_types(self) -> tuple[Type, ...]:
        return (BarrierType(self.count, self.arrivals),)


class BarrierArrive(Op):
    """One arrival on `barrier[index]`, releasing what the thread did before."""

    effect = ACTS
    barrier: Value
    index: Value


class BarrierWait(Op):
    """Wait until the phase of parity `parity` (i64, 0 or 1) of `barrier[index]` is complete."""

    effect = ACTS
    barrier: Value
    index: Value
    parity: Value


class BarrierTest(Op):
    """Whether the phase of parity `parity` of `barrier[index]` is complete; does not wait."""

    effect = ACTS
    barrier: Value
    index: Value
    parity: Value

    def result_types(self) -> tuple[Type, ...]:
        return (CONDITION,)


class BlockBarrier(Op):
    """Every thread that runs the program waits for the others, and sees what they wrote.

    These are the threads of the block, or where each warpgroup runs it, those of the warpgroup.
    """

    effect = ACTS


class ProxyFence(Op):
    """Make accesses of a memory that this thread knows of visible to what is asynchronous.

    Of shared memory that is copies and products, of global memory copies.
    """

    effect = ACTS
    space: str = SMEM


class SetMaxRegisters(Op):
    """Give each thread of the warpgroup `count` registers, more than before if `increase`."""

    effect = ACTS
    count: int
    increase: bool
