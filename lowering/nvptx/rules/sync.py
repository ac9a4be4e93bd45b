"""Lowering of barriers and fences.

Invariant: what the block does once (an arrival), its elected thread does; what every thread needs
(a wait, a fence of its own writes), every thread. What threads then go by is the same for all.
"""

from __future__ import annotations

from astdsl.ir import ops
from astdsl.ir.types import GMEM, SMEM
from astdsl.lowering.nvptx.asm import barriers, tcgen05
from astdsl.lowering.nvptx.asm.control import set_max_registers
from astdsl.lowering.nvptx.function import Emitter, lowers
from astdsl.lowering.nvptx.rules.control import placed
from astdsl.lowering.nvptx.rules.memory import barrier_address
from astdsl.lowering.target import TCGEN05

_PROXY_FENCES = {
    SMEM: barriers.FENCE_PROXY_ASYNC,
    GMEM: barriers.FENCE_PROXY_ASYNC_GLOBAL,
}


@lowers(ops.AllocBarrier)
def _alloc_barrier(emitter: Emitter, op: ops.AllocBarrier) -> None:
    """Say whether it orders tensor memory; the entry of the kernel initialised it."""
    emitter.extra[op.result] = op.orders_tensor_core and emitter.target.has(TCGEN05)


@lowers(ops.BarrierArrive)
def _barrier_arrive(emitter: Emitter, op: ops.BarrierArrive) -> None:
    """Arrive once every thread of the block is here: the arrival speaks for all of them."""
    address = barrier_address(emitter, op.barrier, op.index)
    if emitter.extra[op.barrier]:
        emitter.builder.asm(tcgen05.FENCE_BEFORE)
    emitter.synchronise()
    with emitter.guarded(emitter.is_first_thread(), "arrive"):
        emitter.builder.asm(barriers.MBARRIER_ARRIVE, address)


@lowers(ops.BarrierWait)
def _barrier_wait(emitter: Emitter, op: ops.BarrierWait) -> None:
    address = barrier_address(emitter, op.barrier, op.index)
    parity = emitter.builder.cast("trunc", emitter.scalar(op.parity), "i32")
    emitter.builder.asm(barriers.MBARRIER_WAIT, address, parity)
    if emitter.extra[op.barrier]:
        emitter.builder.asm(tcgen05.FENCE_AFTER)


@lowers(ops.BarrierTest)
def _barrier_test(emitter: Emitter, op: ops.BarrierTest) -> None:
    """Say the same to all threads: one may see the end of a phase before another does."""
    address = barrier_address(emitter, op.barrier, op.index)
    parity = emitter.builder.cast("trunc", emitter.scalar(op.parity), "i32")
    (mine,) = emitter.builder.asm(barriers.MBARRIER_TEST_WAIT, address, parity)
    done = emitter.crew.agree(mine)
    if emitter.extra[op.barrier]:
        emitter.builder.asm(tcgen05.FENCE_AFTER)
    emitter.define(op.result, placed(emitter, op.result), [done])


@lowers(ops.BlockBarrier)
def _block_barrier(emitter: Emitter, op: ops.BlockBarrier) -> None:
    emitter.synchronise()


@lowers(ops.ProxyFence)
def _proxy_fence(emitter: Emitter, op: ops.ProxyFence) -> None:
    emitter.builder.asm(_PROXY_FENCES[op.space])


@lowers(ops.SetMaxRegisters)
def _set_max_registers(emitter: Emitter, op: ops.SetMaxRegisters) -> None:
    emitter.builder.asm(set_max_registers(op.count, increase=op.increase))
