"""Kernels of clusters written as PTX: products of pairs, work taken over, words sent to neighbours.

As in `written.py` every instruction of synchronisation in them is needed, or its deletion is proved
equivalent. `griddepcontrol` has none: it orders a grid after another, and launches on the emulator
follow each other in any case.
"""

from __future__ import annotations

import numpy as np

from astdsl.emulator.formats.descriptors import encode_tcgen05_descriptor
from astdsl.emulator.formats.instruction import MMA_KINDS, InstructionDescriptor
from astdsl.emulator.formats.swizzle import Swizzle
from tests.emulator.asm import kernel, wait
from tests.emulator.test_wgmma import descriptor_of, place
from tests.emulator.written import START, Launch

MEET = """
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
"""
A_BYTES, B_BYTES, N = 4096, 1024, 64
ROUND_BYTES = A_BYTES + B_BYTES
# Each block fills its halves of A and B, twice; when both have, the first block multiplies, and
# tells both that they may fill again, and at the end that the product is there.
PAIR = f"""
  {START}
  setp.eq.u32 %p1, %r0, 32; setp.lt.u32 %p2, %r0, 32; mov.u32 %r4, %cluster_ctarank;
  setp.eq.and.u32 %p3, %r4, 0, %p1; mov.u32 %r30, {ROUND_BYTES}; mov.u32 %r31, 0; mov.u16 %h1, 3;
  add.u32 %r2, %r1, {ROUND_BYTES}; add.u32 %r3, %r2, 8; add.u32 %r6, %r2, 16; add.u32 %r7, %r2, 24;
  mov.u32 %r8, 1; mov.u32 %r9, 2; mov.u32 %r10, 0;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], %r8;
  @%p0 mbarrier.init.shared::cta.b64 [%r3], %r9;
  @%p0 mbarrier.init.shared::cta.b64 [%r6], %r8;
  @%p0 mbarrier.init.shared::cta.b64 [%r7], %r8;
  @%p0 fence.mbarrier_init.release.cluster;
  @%p2 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r2 + 32], {N};
  @%p2 tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
  {MEET}
  ld.shared.b32 %r11, [%r2 + 32];
  @%p3 bra MULTIPLY;
  @!%p0 bra LAST;
FILL:
  setp.eq.u32 %p4, %r10, 0; @%p4 bra FREE;
  {wait("%r6", "%r31", "EMPTY")}
FREE:
  mad.lo.u32 %r12, %r5, 2, %r10; mul.wide.u32 %d2, %r12, {ROUND_BYTES}; add.u64 %d2, %d1, %d2;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r30;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d2], %r30, [%r2];
  {wait("%r2", "%r10", "CAME")}
  mapa.shared::cluster.u32 %r13, %r3, %r31;
  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r13];
  add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 2; @%p5 bra FILL;
  bra LAST;
MULTIPLY:
  {wait("%r3", "%r10", "READY", ".acquire.cluster")}
  setp.ne.u32 %p6, %r10, 0; mov.u32 %r14, {{bits}}; mov.b64 %d10, {{a}}; mov.b64 %d11, {{b}};
  tcgen05.mma.cta_group::2.kind::f16 [%r11], %d10, %d11, %r14, %p6;
  @%p6 bra ALL;
  tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r6], %h1;
  add.u32 %r10, %r10, 1; bra MULTIPLY;
ALL:
  tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r7], %h1;
LAST:
  {wait("%r7", "%r31", "DONE")}
  tcgen05.fence::after_thread_sync;
  and.b32 %r15, %r0, 96; shl.b32 %r15, %r15, 16; add.u32 %r15, %r11, %r15;
  tcgen05.ld.sync.aligned.32x32b.x{N}.b32 {{{{{", ".join(f"%r{200 + i}" for i in range(N))}}}}}, [%r15];
  tcgen05.wait::ld.sync.aligned;
  mad.lo.u32 %r16, %r5, 128, %r0; mul.wide.u32 %d3, %r16, {4 * N}; add.u64 %d3, %d0, %d3;
  {"".join(f"st.global.b32 [%d3 + {4 * i}], %r{200 + i};" for i in range(N))}
  {MEET}
  @%p2 tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r11, {N};
"""  # noqa: E501  an instruction is one line


def pair() -> Launch:
    """Multiply twice in a pair of blocks, which both fill what one of them multiplies."""
    generator = np.random.default_rng(3)
    images = np.zeros((2, 2, ROUND_BYTES), np.uint8)
    expected = np.zeros((256, N), np.float32)
    bits = []
    for turn in range(2):
        a, b = (generator.integers(-3, 4, (rows, 16)).astype(np.float16) for rows in (256, N))
        expected += a.astype(np.float32) @ b.astype(np.float32).T
        for rank in range(2):
            for start, tile in ((0, a), (A_BYTES, b)):
                half = tile[rank * len(tile) // 2 : (rank + 1) * len(tile) // 2]
                descriptor = descriptor_of(start, half, Swizzle.B32)
                place(images[rank, turn], start, half, descriptor)
                bits.append(encode_tcgen05_descriptor(descriptor))
    kind = MMA_KINDS["f16"]
    fields = InstructionDescriptor(256, N, "f16", "f16", "f32").encode(kind)
    text = kernel(
        PAIR.format(bits=fields, a=bits[0], b=bits[1]), ["u64", "u64"], target="sm_100a",
        shared_bytes=ROUND_BYTES + 48,
    )  # fmt: skip
    out = np.zeros((256, N), np.float32)
    return Launch(text, 2, 128, [out, images], expected, {"cluster": (2,)})


# Each block of a cluster works for the blocks in its place of the clusters that it takes over.
CANCEL = f"""
  {START}
  add.u32 %r2, %r1, 16; mov.u32 %r4, %cluster_ctarank; setp.eq.and.u32 %p2, %r4, 0, %p0;
  mov.u32 %r6, 0; mov.u32 %r7, 16; mov.u32 %r8, 1;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], %r8;
  @%p0 fence.mbarrier_init.release.cluster;
  {MEET}
AGAIN:
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r7;
  @%p2 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [%r1], [%r2];
  mad.lo.u32 %r9, %r5, 32, %r0; mul.wide.u32 %d2, %r9, 4; add.u64 %d3, %d1, %d2;
  ld.global.nc.b32 %r10, [%d3]; add.u64 %d4, %d0, %d2; red.global.add.u32 [%d4], %r10;
  {wait("%r2", "%r6", "ANSWER")}
  ld.shared.b128 %q0, [%r1];
  clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q0;
  @!%p3 bra DONE;
  clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r5, %q0;
  add.u32 %r5, %r5, %r4; xor.b32 %r6, %r6, 1;
  {MEET}
  bra AGAIN;
DONE:
"""  # noqa: E501  an instruction is one line


def cancel() -> Launch:
    """Take over the work of clusters that have not been launched."""
    x, out = np.arange(384, dtype=np.uint32), np.zeros(384, np.uint32)
    text = kernel(
        CANCEL, ["u64", "u64"], target="sm_100a", shared_bytes=32, registers=".reg .b128 %q<2>;"
    )
    return Launch(text, 12, 32, [out, x], x, {"cluster": (2,)})


# Each thread sends a pair of words to its place in the other block, and adds to a word there.
SEND = f"""
  {START}
  add.u32 %r2, %r1, 2048; mov.u32 %r4, %cluster_ctarank; xor.b32 %r3, %r4, 1; mov.u32 %r6, 768;
  mov.u32 %r7, 1; mov.u32 %r8, 0; shl.b32 %r9, %r0, 3; add.u32 %r10, %r1, %r9;
  shl.b32 %r11, %r0, 2; add.u32 %r12, %r1, %r11; add.u32 %r12, %r12, 512;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], %r7;
  @%p0 fence.mbarrier_init.release.cluster;
  st.shared.b32 [%r12], %r0;
  {MEET}
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r6;
  mad.lo.u32 %r13, %r5, 64, %r0; mul.wide.u32 %d2, %r13, 4; add.u64 %d3, %d1, %d2;
  ld.global.nc.b32 %r14, [%d3]; add.u32 %r15, %r14, 1000;
  mapa.shared::cluster.u32 %r16, %r10, %r3;
  mapa.shared::cluster.u32 %r17, %r12, %r3;
  mapa.shared::cluster.u32 %r18, %r2, %r3;
  st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r16], {{%r14, %r15}}, [%r18];
  red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r17], %r14, [%r18];
  {wait("%r2", "%r8", "CAME")}
  xor.b32 %r19, %r9, 504; add.u32 %r19, %r1, %r19; ld.shared.v2.b32 {{%r20, %r21}}, [%r19];
  xor.b32 %r22, %r11, 252; add.u32 %r22, %r1, %r22; ld.shared.b32 %r23, [%r22 + 512];
  mul.wide.u32 %d4, %r13, 16; add.u64 %d4, %d0, %d4;
  st.global.v4.b32 [%d4], {{%r20, %r21, %r23, %r8}};
"""  # noqa: E501  an instruction is one line


def send() -> Launch:
    """Store and add words in a neighbour's memory, which counts them at an mbarrier of its own."""
    x, out = np.arange(256, dtype=np.uint32), np.zeros((256, 4), np.uint32)
    text = kernel(SEND, ["u64", "u64"], shared_bytes=3088)
    other = x.reshape(2, 2, 64)[:, ::-1, ::-1].reshape(-1)
    thread = 63 - np.arange(256, dtype=np.uint32) % 64
    expected = np.stack([other, other + 1000, other + thread, 0 * other], axis=1)
    return Launch(text, 4, 64, [out, x], expected.astype(np.uint32), {"cluster": (2,)})


WRITTEN_CLUSTERS = {
    "products of a pair": pair,
    "clusters taken over": cancel,
    "words sent": send,
}
