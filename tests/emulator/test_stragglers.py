"""Warps that stand together may get different answers in an order that is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import run
from tests.emulator.asm import kernel

# A copy that 4 warps ask for once, and then wait for.
BODY = """
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, smem; add.u32 %r2, %r1, 64;
  ld.param.u64 %d0, [a0]; ld.param.u64 %d1, [a1]; mul.wide.u32 %d2, %r0, 4;
  add.u64 %d2, %d0, %d2; mov.u32 %r3, 64;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1; fence.mbarrier_init.release.cluster; bar.sync 0;
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 64;
  @%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d1], %r3, [%r2];
  mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r2], 0;
  selp.u32 %r4, 1, 0, %p1;
  st.global.u32 [%d2], %r4;
  W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0; @!%p1 bra W;
"""


def answers(**options: Any) -> set[int]:
    """Return what the warps were told; lanes of one warp are told the same."""
    out, source = np.zeros(128, np.uint32), np.zeros(16, np.uint32)
    ptx = kernel(BODY, ["u64", "u64"], shared_bytes=128)
    run(ptx, "k", (1,), (128,), [out, source], **options)
    warps = out.reshape(4, 32)
    assert (warps == warps[:, :1]).all()
    return set(warps[:, 0].tolist())


@pytest.mark.parametrize("completion", ["late", "early"])
def test_warps_ask_together_in_an_order_that_is_not_drawn(completion: Any) -> None:
    assert len(answers(completion=completion)) == 1


def test_of_warps_that_ask_some_may_be_told_no_and_some_yes() -> None:
    assert {0, 1} in [answers(completion=seed, order=seed) for seed in range(12)]
