"""Clusters that take over the work of others which have not been launched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from tests.emulator.asm import kernel, wait

SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
TRY = (
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
    ".multicast::cluster::all.b128"
)
# Each block of a cluster adds 1 to the places of its own block and of those taken over.
BODY = f"""
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, smem; add.u32 %r2, %r1, 16;
  mov.u32 %r9, %cluster_ctarank; setp.eq.and.u32 %p2, %r9, 0, %p0;
  mov.u32 %r10, %ctaid.x; mov.u32 %r11, %ctaid.y; mov.u32 %r12, 0; mov.u32 %r13, %nctaid.x;
  ld.param.u64 %d0, [a0];
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p0 fence.mbarrier_init.release.cluster;
  {SYNC}
AGAIN:
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16;
  @%p2 {TRY} [%r1], [%r2];
  mad.lo.u32 %r14, %r11, %r13, %r10; mul.wide.u32 %d1, %r14, 4; add.u64 %d1, %d0, %d1;
  @%p0 red.global.add.u32 [%d1], 1;
  {wait("%r2", "%r12")}
  ld.shared.b128 %q0, [%r1];
  clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q0;
  @!%p3 bra DONE;
  clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%r10, %r11, _, _}}, %q0;
  clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r15, %q0;
  add.u32 %r10, %r15, %r9; xor.b32 %r12, %r12, 1;
  fence.proxy.async;
  {SYNC}
  bra AGAIN;
DONE:
"""


@pytest.mark.parametrize("completion", ["late", "early", 3])
@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_every_block_is_done_once_launched_or_taken_over(cluster: int, completion: Any) -> None:
    out = np.zeros((3, 8), np.uint32)
    text = kernel(BODY, ["u64"], target="sm_100a", shared_bytes=32, registers=".reg .b128 %q<2>;")
    run(text, "k", (8, 3), (32,), [out], cluster=(cluster,), completion=completion)
    assert (out == 1).all()


def test_without_waiting_clusters_nothing_is_taken_over() -> None:
    out = np.zeros((1, 2), np.uint32)
    text = kernel(BODY, ["u64"], target="sm_100a", shared_bytes=32, registers=".reg .b128 %q<2>;")
    run(text, "k", (2,), (32,), [out], cluster=(2,))
    assert (out == 1).all()


@pytest.mark.parametrize("cluster", [2, 4])
def test_every_block_of_a_cluster_must_expect_its_answer(cluster: int) -> None:
    one_expects = BODY.replace("@%p0 mbarrier.arrive.expect_tx", "@%p2 mbarrier.arrive.expect_tx")
    assert one_expects != BODY
    out = np.zeros((1, 8), np.uint32)
    text = kernel(
        one_expects, ["u64"], target="sm_100a", shared_bytes=32, registers=".reg .b128 %q<2>;"
    )
    for completion in ("late", "early", 3):
        with pytest.raises(DeviceFault, match="arrivals") as caught:
            run(text, "k", (8,), (32,), [out], cluster=(cluster,), completion=completion)
        assert caught.value.code == "E210"
