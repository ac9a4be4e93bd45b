"""Mutants that are neither found nor proved equivalent yet, by program: how many of each kind.

Invariant: nobody has judged what stands here, so it counts as neither; the numbers only get
smaller. A kind is a change and an instruction, whatever the numbers of its registers; one more of
a kind than stands here has survived.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from tests.emulator.mutants import Mutant

UNJUDGED: dict[str, dict[str, int]] = {
    "ring": {
        'relaxed: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], %r;': 1,
    },
    "attention sm_90a": {
        'deleted: bar.sync 0, 128;': 1,
        'relaxed: mbarrier.try_wait.parity.shared::cta.b64 done, [%r], %r;': 1,
    },
    "attention sm_100a": {
        'deleted: bar.sync 0, 128;': 1,
        'deleted: mbarrier.try_wait.parity.shared::cta.b64 done, [%r], %r;': 1,
        'relaxed: mbarrier.try_wait.parity.shared::cta.b64 done, [%r], %r;': 2,
    },
    "sums in parts": {
        'deleted: bar.sync 0, 128;': 2,
        'deleted: fence.proxy.async.shared::cta;': 1,
        'deleted: mbarrier.init.shared::cta.b64 [%r], %r;': 2,
        'one arrival more: mbarrier.init.shared::cta.b64 [%r], %r;': 2,
    },
    "split by atomics": {
        'relaxed: mbarrier.try_wait.parity.shared::cta.b64 done, [%r], %r;': 1,
    },
    "traded registers": {
        'deleted: setmaxnreg.inc.sync.aligned.u32 232;': 1,
        'other barrier: bar.sync 1, 128;': 1,
    },
    "wgmma of warpgroups": {
        'deleted: mbarrier.arrive.shared::cta.b64 _, [%r];': 1,
        'deleted: setmaxnreg.inc.sync.aligned.u32 232;': 1,
        'deleted: wgmma.fence.sync.aligned;': 2,
        'deleted: wgmma.wait_group.sync.aligned 0;': 1,
        'one group more in flight: wgmma.wait_group.sync.aligned 0;': 1,
        'relaxed: mbarrier.arrive.shared::cta.b64 _, [%r];': 1,
    },
    "roles of warps": {
        'deleted: bar.sync 1, 128;': 1,
    },
    "turns": {
        'deleted: bar.sync 1, 128;': 2,
    },
    "spinning": {
        'deleted: mbarrier.test_wait.parity.shared::cta.b64 %p, [%r], %r;': 2,
        'deleted: mbarrier.try_wait.parity.shared::cta.b64 done, [%r], %r;': 1,
        'relaxed: mbarrier.try_wait.parity.shared::cta.b64 done, [%r], %r;': 1,
    },
    "warps side by side": {
        'deleted: @own bar.sync 2, 128;': 1,
        'deleted: bar.warp.sync %r;': 1,
        'other barrier: bar.sync 1, 128;': 1,
        'relaxed: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], %r;': 1,
    },
    "conversions": {
        'deleted: @own bar.sync 1, 128;': 2,
        'deleted: @own bar.sync 2, 128;': 2,
    },
    "two grids": {
        'deleted: @own bar.sync 1, 128;': 3,
        'deleted: @own bar.sync 2, 128;': 3,
        'deleted: fence.proxy.async.shared::cta;': 1,
    },
    "ring by hand, wgmma": {
        'deleted: wgmma.fence.sync.aligned;': 2,
    },
    "operand in registers": {
        'deleted: bar.sync 0, 256;': 1,
        'deleted: wgmma.fence.sync.aligned;': 3,
    },
    "tensor memory": {
        'deleted: bar.sync 0, 128;': 2,
    },
    "tensor memory in turns": {
        'deleted: tcgen05.fence::before_thread_sync;': 1,
        'relaxed: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], %r;': 1,
    },
    "round trip": {
        'deleted: bar.sync 0, 128;': 2,
        'deleted: tcgen05.fence::before_thread_sync;': 1,
    },
}  # fmt: skip


def survivors(name: str, lost: Iterable[Mutant]) -> list[Mutant]:
    """Return those of a program's mutants for which nothing speaks that are not on the list."""
    left = Counter(UNJUDGED.get(name, {}))
    found = []
    for mutant in lost:
        kind = re.sub(r"%([a-z]+)\d+", r"%\1", f"{mutant.change}: {mutant.before[:100]}")
        left[kind] -= 1
        if left[kind] < 0:
            found.append(mutant)
    return found
