"""Words that are stored, or reduced, in the shared memory of another block of a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import run
from tests.emulator.asm import faulting, kernel, wait

# Thread t of each block writes word t of the other, 8 bytes apart; %r13 and %r14 are over there.
BODY = """
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, smem; add.u32 %r2, %r1, 1024;
  ld.param.u64 %d0, [a0]; mov.u32 %r9, %cluster_ctarank; mov.u32 %r5, %ctaid.x;
  shl.b32 %r3, %r0, 3; add.u32 %r4, %r1, %r3; xor.b32 %r12, %r9, 1;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p0 fence.mbarrier_init.release.cluster;
  {before}
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  mapa.shared::cluster.u32 %r13, %r4, %r12; mapa.shared::cluster.u32 %r14, %r2, %r12;
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {bytes};
  mad.lo.u32 %r10, %r5, 100, %r0; add.u32 %r11, %r10, 1000; cvt.u64.u32 %d4, %r10;
  {access}
  {wait}
  ld.shared.v2.b32 {{%r15, %r16}}, [%r4];
  mad.lo.u32 %r17, %r5, 64, %r0; mul.wide.u32 %d2, %r17, 8; add.u64 %d2, %d0, %d2;
  st.global.v2.b32 [%d2], {{%r15, %r16}};
"""
STORE = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
REDUCE = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"
TWO = f"{STORE}.v2.b32 [%r13], {{%r10, %r11}}, [%r14];"
CLEAR = "mov.u32 %r20, 7; st.shared.v2.b32 [%r4], {%r20, %r20};"


def launch(
    access: str, *, total: int = 512, before: str = "", waits: str = wait("%r2", 0),
    cluster: int = 2, **schedule: Any,
) -> Any:  # fmt: skip
    out = np.zeros((2, 64, 2), np.uint32)
    body = BODY.format(access=access, bytes=total, before=before, wait=waits)
    text = kernel(body, ["u64"], target="sm_100a", shared_bytes=1040)
    run(text, "k", (2,), (64,), [out], cluster=(cluster,), **schedule)
    return out


fault = faulting(launch)
ANY = ["late", "early", 7]
OTHER = np.array([[100], [0]]) + np.arange(64)


@pytest.mark.parametrize("completion", ANY)
def test_words_are_stored_in_another_block_and_counted_there(completion: Any) -> None:
    out = launch(TWO, completion=completion)
    assert (out == np.stack([OTHER, OTHER + 1000], axis=2)).all()
    wide = launch(f"{STORE}.b64 [%r13], %d4, [%r14];", completion=completion)
    assert (wide == np.stack([OTHER, 0 * OTHER], axis=2)).all()


@pytest.mark.parametrize("completion", ANY)
@pytest.mark.parametrize(
    ("operation", "expected"),
    [("add.u32", 7 + OTHER), ("max.s32", np.maximum(7, OTHER)), ("xor.b32", 7 ^ OTHER),
     ("inc.u32", np.where(OTHER <= 7, 0, 8)), ("min.u32", np.minimum(7, OTHER))],
)  # fmt: skip
def test_words_are_combined_in_another_block(
    operation: str, expected: Any, completion: Any
) -> None:
    access = f"{REDUCE}.{operation} [%r13], %r10, [%r14];"
    out = launch(access, total=256, before=CLEAR, completion=completion)
    assert (out[..., 0] == expected).all()


def test_reductions_at_one_word_add_up() -> None:
    access = f"mapa.shared::cluster.u32 %r13, %r1, %r12; {REDUCE}.add.u64 [%r13], %d4, [%r14];"
    out = launch(access, total=512, before="st.shared.v2.b32 [%r4], {0, 0};")
    assert out[:, 0, 0].tolist() == OTHER.sum(axis=1).tolist()


def test_too_few_or_too_many_bytes_are_reported() -> None:
    assert "576 bytes expected and 512 arrived" in fault("E210", TWO, total=576)
    fault("E244", TWO + "mbarrier.arrive.shared::cta.b64 _, [%r2];", total=512)


def test_reading_before_the_barrier_is_reported() -> None:
    fault("E232", TWO, waits="", completion="late")
    fault("E232", TWO, waits="", completion="early")


def test_the_words_must_be_free_to_be_written() -> None:
    read = CLEAR + "bar.sync 0; ld.shared.v2.b32 {%r21, %r22}, [%r4];"
    launch(TWO, before=read)
    late = "ld.shared.v2.b32 {%r21, %r22}, [%r4];"
    fault("E232", late + TWO, before=CLEAR)


def test_the_barrier_lies_in_the_block_that_is_written_to() -> None:
    assert "lie in one block" in fault("E257", TWO.replace("%r14", "%r2"))
    own = TWO.replace("%r13", "%r4").replace("%r14", "%r2")
    assert "a cluster of more than one block" in fault("E257", own, cluster=1)


def test_the_forms_on_global_memory_are_refused() -> None:
    fault("E201", "st.async.release.gpu.global.b32 [%d0], %r10;")
    fault("E201", f"{REDUCE}.add.f32 [%r13], %f1, [%r14];")
