"""Mutants that are neither found nor proved equivalent yet, by program.

Invariant: nobody has judged what stands here, so it counts as neither; the list only gets shorter.
A mutant is known by its change and its instruction, whatever the numbers of registers.
"""

from __future__ import annotations

import re

from tests.emulator.mutants import Mutant

UNJUDGED: dict[str, frozenset[str]] = {
    "ring": frozenset({
        'relaxed: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], %r;',
    }),
    "attention sm_90a": frozenset({
        'deleted: bar.sync 0, 128;',
        'relaxed: mbarrier.try_wait.parity.shared::cta.b64 done, [%r], %r;',
    }),
    "attention sm_100a": frozenset({
        'deleted: bar.sync 0, 128;',
        'deleted: mbarrier.try_wait.parity.shared::cta.b64 done, [%r], %r;',
        'relaxed: mbarrier.try_wait.parity.shared::cta.b64 done, [%r], %r;',
    }),
    "sums in parts": frozenset({
        'deleted: bar.sync 0, 128;',
        'deleted: fence.proxy.async.shared::cta;',
        'deleted: mbarrier.init.shared::cta.b64 [%r], %r;',
        'one arrival more: mbarrier.init.shared::cta.b64 [%r], %r;',
    }),
    "split by atomics": frozenset({
        'relaxed: mbarrier.try_wait.parity.shared::cta.b64 done, [%r], %r;',
    }),
    "traded registers": frozenset({
        'deleted: setmaxnreg.inc.sync.aligned.u32 232;',
        'other barrier: bar.sync 1, 128;',
    }),
    "wgmma of warpgroups": frozenset({
        'deleted: mbarrier.arrive.shared::cta.b64 _, [%r];',
        'deleted: setmaxnreg.inc.sync.aligned.u32 232;',
        'deleted: wgmma.fence.sync.aligned;',
        'deleted: wgmma.wait_group.sync.aligned 0;',
        'one group more in flight: wgmma.wait_group.sync.aligned 0;',
        'relaxed: mbarrier.arrive.shared::cta.b64 _, [%r];',
    }),
    "roles of warps": frozenset({
        'deleted: bar.sync 1, 128;',
    }),
    "turns": frozenset({
        'deleted: bar.sync 1, 128;',
    }),
    "spinning": frozenset({
        'deleted: mbarrier.test_wait.parity.shared::cta.b64 %p, [%r], %r;',
        'deleted: mbarrier.try_wait.parity.shared::cta.b64 done, [%r], %r;',
        'relaxed: mbarrier.try_wait.parity.shared::cta.b64 done, [%r], %r;',
    }),
    "warps side by side": frozenset({
        'deleted: @own bar.sync 2, 128;',
        'deleted: bar.warp.sync %r;',
        'other barrier: bar.sync 1, 128;',
        'relaxed: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], %r;',
    }),
    "conversions": frozenset({
        'deleted: @own bar.sync 1, 128;',
        'deleted: @own bar.sync 2, 128;',
    }),
    "two grids": frozenset({
        'deleted: @own bar.sync 1, 128;',
        'deleted: @own bar.sync 2, 128;',
        'deleted: fence.proxy.async.shared::cta;',
    }),
    "ring by hand, wgmma": frozenset({
        'deleted: wgmma.fence.sync.aligned;',
    }),
    "operand in registers": frozenset({
        'deleted: bar.sync 0, 256;',
        'deleted: wgmma.fence.sync.aligned;',
    }),
    "tensor memory": frozenset({
        'deleted: bar.sync 0, 128;',
    }),
    "tensor memory in turns": frozenset({
        'deleted: tcgen05.fence::before_thread_sync;',
        'relaxed: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], %r;',
    }),
    "round trip": frozenset({
        'deleted: bar.sync 0, 128;',
        'deleted: tcgen05.fence::before_thread_sync;',
    }),
    "matmul-sm_90a": frozenset({
        'deleted: bar.sync \t0;',
        'deleted: wgmma.wait_group.sync.aligned 1;',
        'one group more in flight: wgmma.wait_group.sync.aligned 1;',
    }),
    "matmul-sm_100a": frozenset({
        'deleted: bar.sync \t0;',
        'deleted: barrier.sync \t0;',
        'relaxed: mbarrier.try_wait.parity.shared::cta.b64 complete, [%r], %r;',
    }),
    "matmul_pairs-sm_100a": frozenset({
        'deleted: bar.sync \t0;',
        'deleted: barrier.cluster.wait.aligned;',
        'deleted: barrier.sync \t0;',
        'relaxed: mbarrier.try_wait.parity.shared::cta.b64 complete, [%r], %r;',
    }),
    "attention-sm_90a": frozenset({
        'deleted: bar.sync \t0;',
        'deleted: fence.proxy.async.shared::cta;',
        'relaxed: mbarrier.try_wait.parity.shared::cta.b64 complete, [%r], %r;',
    }),
    "histogram-sm_90a": frozenset({
        'relaxed: @%p atom.global.gpu.acq_rel.add.u32 %r, [ %rd + 0 ], %r;',
    }),
}  # fmt: skip


def is_unjudged(name: str, mutant: Mutant) -> bool:
    """Say whether a mutant of a program is on the list."""
    change = f"{mutant.change}: {mutant.before[:100]}"
    return re.sub(r"%([a-z]+)\d+", r"%\1", change) in UNJUDGED.get(name, frozenset())
