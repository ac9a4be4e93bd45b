"""Kernels written as PTX, one for each kind of synchronisation that our own kernels do not use.

Each makes a new launch: text, blocks, threads, arguments (the result first), and what the result
must be. Invariant: every instruction of synchronisation in them is needed, or its deletion is
proved equivalent in `equivalence.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from astdsl.emulator import TensorMap
from tests.emulator.asm import kernel, map_address, wait

Array = np.ndarray[Any, Any]


class Launch(NamedTuple):
    """What `run` takes, and what the first argument holds after it."""

    ptx: str
    blocks: int
    threads: int
    arguments: list[Any]
    expected: Array
    options: dict[str, Any] = {}  # noqa: RUF012  never changed


START = """
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, smem; mov.u32 %r5, %ctaid.x;
  ld.param.u64 %d0, [a0]; ld.param.u64 %d1, [a1];
"""
# Slots of 1 KiB, of which each block of a pair loads half for both; the consumers of both blocks
# let both producers go on.
MULTICAST = f"""
  {START}
  setp.eq.u32 %p1, %r0, 32; setp.lt.u32 %p2, %r0, 32;
  add.u32 %r2, %r1, 2048; add.u32 %r3, %r1, 2064; mov.u32 %r4, %cluster_ctarank;
  add.u32 %r6, %r2, 8; add.u32 %r7, %r3, 8; mov.u32 %r8, 1; mov.u32 %r9, 2; mov.u32 %r30, 1024;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], %r8;
  @%p0 mbarrier.init.shared::cta.b64 [%r6], %r8;
  @%p0 mbarrier.init.shared::cta.b64 [%r3], %r9;
  @%p0 mbarrier.init.shared::cta.b64 [%r7], %r9;
  @%p0 fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
  mov.u32 %r10, 0; mov.u16 %h1, 3; mov.u32 %r31, 0; mov.u32 %r32, 1;
  @%p2 bra PRODUCER;
CONSUME:
  and.b32 %r11, %r10, 1; shr.u32 %r12, %r10, 1; and.b32 %r12, %r12, 1; shl.b32 %r13, %r11, 3;
  add.u32 %r14, %r2, %r13; add.u32 %r15, %r3, %r13;
  {wait("%r14", "%r12", "FULL")}
  sub.u32 %r17, %r0, 32; shl.b32 %r17, %r17, 5; shl.b32 %r16, %r11, 10; add.u32 %r16, %r1, %r16;
  add.u32 %r16, %r16, %r17;
  ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r16];
  ld.shared.v4.b32 {{%r24, %r25, %r26, %r27}}, [%r16+16];
  shl.b32 %r18, %r5, 12; shl.b32 %r19, %r10, 10; add.u32 %r18, %r18, %r19; add.u32 %r18, %r18, %r17;
  cvt.u64.u32 %d2, %r18; add.u64 %d2, %d0, %d2;
  st.global.v4.b32 [%d2], {{%r20, %r21, %r22, %r23}};
  st.global.v4.b32 [%d2+16], {{%r24, %r25, %r26, %r27}};
  bar.warp.sync 0xffffffff;
  mapa.shared::cluster.u32 %r28, %r15, %r31;
  mapa.shared::cluster.u32 %r29, %r15, %r32;
  @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r28];
  @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r29];
  add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 4; @%p3 bra CONSUME;
  bra END;
PRODUCER:
  @!%p0 bra END;
PRODUCE:
  and.b32 %r11, %r10, 1; shr.u32 %r12, %r10, 1; xor.b32 %r12, %r12, 1; and.b32 %r12, %r12, 1;
  shl.b32 %r13, %r11, 3; add.u32 %r14, %r2, %r13; add.u32 %r15, %r3, %r13;
  {wait("%r15", "%r12", "EMPTY", ".acquire.cluster")}
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r14], %r30;
  shl.b32 %r16, %r10, 1; add.u32 %r16, %r16, %r4; shl.b32 %r16, %r16, 9;
  cvt.u64.u32 %d2, %r16; add.u64 %d2, %d1, %d2;
  shl.b32 %r17, %r11, 10; shl.b32 %r18, %r4, 9; add.u32 %r17, %r17, %r18; add.u32 %r17, %r1, %r17;
  mov.u32 %r19, 512;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r17], [%d2], %r19, [%r14], %h1;
  add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 4; @%p3 bra PRODUCE;
END:
  barrier.cluster.arrive.release;
  barrier.cluster.wait.acquire;
"""  # noqa: E501  an instruction is one line


def multicast() -> Launch:
    """Fill a ring of two blocks of a cluster for each other, halves by multicast."""
    x, out = np.arange(1024, dtype=np.uint32), np.zeros((4, 1024), np.uint32)
    text = kernel(MULTICAST, ["u64", "u64"], shared_bytes=2080)
    return Launch(text, 4, 64, [out, x], np.tile(x, (4, 1)), {"cluster": (2,)})


# Each thread writes to the other block of its pair, twice: ordered by the cluster's barrier, then
# by arrivals at an mbarrier of the block that reads.
EXCHANGE = f"""
  {START}
  add.u32 %r2, %r1, 512; mov.u32 %r4, %cluster_ctarank; xor.b32 %r3, %r4, 1; mov.u32 %r6, 64;
  shl.b32 %r7, %r0, 2; add.u32 %r8, %r1, %r7; mov.u32 %r9, 0;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], %r6;
  @%p0 fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
  mapa.shared::cluster.u32 %r10, %r8, %r3;
  mad.lo.u32 %r11, %r5, 64, %r0; mul.wide.u32 %d2, %r11, 4; add.u64 %d3, %d1, %d2;
  ld.global.b32 %r12, [%d3];
  st.shared::cluster.b32 [%r10], %r12;
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
  xor.b32 %r13, %r7, 252; add.u32 %r14, %r1, %r13;
  ld.shared.b32 %r15, [%r14];
  add.u32 %r16, %r15, 1;
  st.shared::cluster.b32 [%r10+256], %r16;
  mapa.shared::cluster.u32 %r17, %r2, %r3;
  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r17];
  {wait("%r2", "%r9", "GOT", ".acquire.cluster")}
  ld.shared.b32 %r18, [%r14+256];
  add.u64 %d4, %d0, %d2; st.global.b32 [%d4], %r18;
"""


def exchange() -> Launch:
    """Store words in another block's shared memory, seen after two kinds of barriers."""
    x, out = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    text = kernel(EXCHANGE, ["u64", "u64"], shared_bytes=520)
    # Block b gets what its neighbour read, reversed twice.
    expected = x.reshape(4, 64) + 1
    return Launch(text, 4, 64, [out, x], expected.reshape(-1), {"cluster": (2,)})


# Two slots of 1 KiB; every thread copies 16 bytes of them, all threads read what others copied.
RING_OF_GROUPS = f"""
  {START}
  shl.b32 %r2, %r0, 4; add.u32 %r3, %r1, %r2; xor.b32 %r4, %r2, 1008; add.u32 %r4, %r1, %r4;
  cvt.u64.u32 %d2, %r2; add.u64 %d3, %d1, %d2; add.u64 %d4, %d0, %d2; mov.u32 %r10, 0;
  cp.async.cg.shared.global [%r3], [%d3], 16;
  cp.async.commit_group;
STEP:
  bar.sync 0;
  add.u32 %r11, %r10, 1; setp.lt.u32 %p1, %r11, 4;
  and.b32 %r12, %r11, 1; shl.b32 %r12, %r12, 10; add.u32 %r13, %r3, %r12;
  mul.wide.u32 %d5, %r11, 1024; add.u64 %d6, %d3, %d5;
  @%p1 cp.async.cg.shared.global [%r13], [%d6], 16;
  cp.async.commit_group;
  cp.async.wait_group 1;
  bar.sync 0;
  and.b32 %r14, %r10, 1; shl.b32 %r14, %r14, 10; add.u32 %r15, %r4, %r14;
  ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r15];
  mul.wide.u32 %d7, %r10, 1024; add.u64 %d8, %d4, %d7;
  st.global.v4.b32 [%d8], {{%r20, %r21, %r22, %r23}};
  mov.u32 %r10, %r11; @%p1 bra STEP;
"""


def groups() -> Launch:
    """Fill a ring by `cp.async`, counted in groups."""
    x, out = np.arange(1024, dtype=np.uint32), np.zeros(1024, np.uint32)
    text = kernel(RING_OF_GROUPS, ["u64", "u64"], shared_bytes=2048)
    return Launch(text, 1, 64, [out, x], x.reshape(4, 64, 4)[:, ::-1].reshape(-1))


# The same memory, but the copies arrive at mbarriers, and readers at others.
RING_OF_ARRIVALS = f"""
  {START}
  add.u32 %r2, %r1, 2048; add.u32 %r3, %r2, 16; mov.u32 %r4, 64; setp.lt.u32 %p2, %r0, 64;
  add.u32 %r6, %r2, 8; add.u32 %r7, %r3, 8;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], %r4;
  @%p0 mbarrier.init.shared::cta.b64 [%r6], %r4;
  @%p0 mbarrier.init.shared::cta.b64 [%r3], %r4;
  @%p0 mbarrier.init.shared::cta.b64 [%r7], %r4;
  bar.sync 0;
  and.b32 %r8, %r0, 63; shl.b32 %r8, %r8, 4; mov.u32 %r10, 0;
  @%p2 bra COPY;
READ:
  and.b32 %r11, %r10, 1; shr.u32 %r12, %r10, 1; and.b32 %r12, %r12, 1; shl.b32 %r13, %r11, 3;
  add.u32 %r14, %r2, %r13; add.u32 %r15, %r3, %r13;
  {wait("%r14", "%r12", "FULL")}
  shl.b32 %r16, %r11, 10; xor.b32 %r17, %r8, 1008; add.u32 %r16, %r16, %r17;
  add.u32 %r16, %r1, %r16;
  ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r16];
  mbarrier.arrive.shared::cta.b64 _, [%r15];
  shl.b32 %r18, %r10, 10; add.u32 %r18, %r18, %r8; cvt.u64.u32 %d2, %r18; add.u64 %d2, %d0, %d2;
  st.global.v4.b32 [%d2], {{%r20, %r21, %r22, %r23}};
  add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 4; @%p3 bra READ;
  bra END;
COPY:
  and.b32 %r11, %r10, 1; shr.u32 %r12, %r10, 1; xor.b32 %r12, %r12, 1; and.b32 %r12, %r12, 1;
  shl.b32 %r13, %r11, 3; add.u32 %r14, %r2, %r13; add.u32 %r15, %r3, %r13;
  {wait("%r15", "%r12", "EMPTY")}
  shl.b32 %r16, %r11, 10; add.u32 %r16, %r16, %r8; add.u32 %r16, %r1, %r16;
  shl.b32 %r18, %r10, 10; add.u32 %r18, %r18, %r8; cvt.u64.u32 %d2, %r18; add.u64 %d2, %d1, %d2;
  cp.async.ca.shared.global [%r16], [%d2], 16;
  cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r14];
  add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 4; @%p3 bra COPY;
END:
"""


def arrivals() -> Launch:
    """Fill a ring by `cp.async`, whose copies arrive at mbarriers."""
    x, out = np.arange(1024, dtype=np.uint32), np.zeros(1024, np.uint32)
    text = kernel(RING_OF_ARRIVALS, ["u64", "u64"], shared_bytes=2080)
    expected = x.reshape(4, 64, 4)[:, ::-1].reshape(-1)
    return Launch(text, 1, 128, [out, x], expected)


# Two warps make words and two use them: barriers 1 and 2 say "full", 3 and 4 "empty".
NAMED = f"""
  {START}
  and.b32 %r2, %r0, 63; shl.b32 %r3, %r2, 2; setp.lt.u32 %p2, %r0, 64; mov.u32 %r10, 0;
  cvt.u64.u32 %d2, %r3; add.u64 %d3, %d1, %d2; add.u64 %d4, %d0, %d2;
  @%p2 bra MAKE;
  barrier.arrive 3, 128;
  barrier.arrive 4, 128;
USE:
  and.b32 %r11, %r10, 1; add.u32 %r12, %r11, 1; add.u32 %r13, %r11, 3; shl.b32 %r14, %r11, 8;
  barrier.sync %r12, 128;
  xor.b32 %r15, %r3, 252; add.u32 %r15, %r15, %r14; add.u32 %r15, %r1, %r15;
  ld.shared.b32 %r16, [%r15];
  mul.wide.u32 %d5, %r10, 256; add.u64 %d6, %d4, %d5; st.global.b32 [%d6], %r16;
  setp.lt.u32 %p3, %r10, 2;
  @%p3 barrier.arrive %r13, 128;
  add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 4; @%p4 bra USE;
  bra END;
MAKE:
  and.b32 %r11, %r10, 1; add.u32 %r12, %r11, 1; add.u32 %r13, %r11, 3; shl.b32 %r14, %r11, 8;
  mul.wide.u32 %d5, %r10, 256; add.u64 %d6, %d3, %d5; ld.global.b32 %r16, [%d6];
  barrier.sync %r13, 128;
  add.u32 %r15, %r3, %r14; add.u32 %r15, %r1, %r15;
  st.shared.b32 [%r15], %r16;
  barrier.arrive %r12, 128;
  add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 4; @%p4 bra MAKE;
END:
"""


def named() -> Launch:
    """Let producer and consumer warps take turns by named barriers."""
    x, out = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    text = kernel(NAMED, ["u64", "u64"], shared_bytes=512)
    return Launch(text, 1, 128, [out, x], x.reshape(4, 64)[:, ::-1].reshape(-1))


# Every block leaves a sum; the last to come adds them up.
LAST_BLOCK = f"""
  {START}
  ld.param.u64 %d2, [a2]; ld.param.u64 %d3, [a3]; mov.u32 %r2, %nctaid.x;
  mad.lo.u32 %r3, %r5, 64, %r0; mul.wide.u32 %d4, %r3, 4; add.u64 %d5, %d1, %d4;
  ld.global.nc.b32 %r4, [%d5]; add.u32 %r4, %r4, 1;
  add.u64 %d6, %d2, %d4; st.global.b32 [%d6], %r4;
  fence.acq_rel.gpu;
  bar.sync 0;
  @!%p0 bra JOIN;
  atom.relaxed.gpu.global.add.u32 %r6, [%d3], 1;
  st.shared.b32 [%r1], %r6;
JOIN:
  bar.sync 0;
  ld.shared.b32 %r7, [%r1]; sub.u32 %r8, %r2, 1; setp.ne.u32 %p1, %r7, %r8; @%p1 exit;
  fence.acq_rel.gpu;
  mov.u32 %r10, 0; mov.u32 %r11, 0;
SUM:
  mad.lo.u32 %r12, %r10, 64, 63; sub.u32 %r12, %r12, %r0; mul.wide.u32 %d7, %r12, 4;
  add.u64 %d8, %d2, %d7; ld.global.b32 %r13, [%d8]; add.u32 %r11, %r11, %r13;
  add.u32 %r10, %r10, 1; setp.lt.u32 %p2, %r10, %r2; @%p2 bra SUM;
  mul.wide.u32 %d9, %r0, 4; add.u64 %d9, %d0, %d9; st.global.b32 [%d9], %r11;
"""


def last_block() -> Launch:
    """Sum over blocks in the last one, which a counter and fences tell."""
    x, out = np.arange(256, dtype=np.uint32), np.zeros(64, np.uint32)
    scratch, counter = np.zeros(256, np.uint32), np.zeros(1, np.uint32)
    text = kernel(LAST_BLOCK, ["u64"] * 4, shared_bytes=16)
    expected = (x.reshape(4, 64)[:, ::-1] + 1).sum(axis=0).astype(np.uint32)
    return Launch(text, 4, 64, [out, x, scratch, counter], expected)


# Each block adds its part to what the block before it left behind a flag.
CHAIN = f"""
  {START}
  ld.param.u64 %d2, [a2]; ld.param.u64 %d3, [a3];
  mul.wide.u32 %d4, %r0, 4; mul.wide.u32 %d5, %r5, 4; add.u64 %d6, %d3, %d5;
  mad.lo.u32 %r2, %r5, 64, %r0; mul.wide.u32 %d7, %r2, 4; add.u64 %d8, %d1, %d7;
  ld.global.nc.b32 %r3, [%d8]; mov.u32 %r4, 0; setp.eq.u32 %p1, %r5, 0; @%p1 bra FIRST;
SPIN:
  ld.acquire.gpu.global.b32 %r6, [%d6+-4];
  setp.eq.u32 %p2, %r6, 0; @%p2 bra SPIN;
  add.u64 %d9, %d2, %d7; xor.b32 %r7, %r2, 63; sub.u32 %r7, %r7, 64; mul.wide.u32 %d10, %r7, 4;
  add.u64 %d10, %d2, %d10; ld.global.b32 %r4, [%d10];
FIRST:
  add.u32 %r8, %r3, %r4; add.u64 %d9, %d2, %d7; st.global.b32 [%d9], %r8;
  add.u64 %d11, %d0, %d7; st.global.b32 [%d11], %r8;
  bar.sync 0;
  mov.u32 %r9, 1;
  @%p0 st.release.gpu.global.b32 [%d6], %r9;
"""


def chain() -> Launch:
    """Pass sums from block to block behind flags."""
    x, out = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    scratch, flags = np.zeros(256, np.uint32), np.zeros(4, np.uint32)
    expected = x.reshape(4, 64).copy()
    for i in range(1, 4):
        expected[i] += expected[i - 1][::-1]
    text = kernel(CHAIN, ["u64"] * 4, shared_bytes=16)
    return Launch(text, 4, 64, [out, x, scratch, flags], expected.reshape(-1))


# In, changed in place, out, and added to what is there; in two rounds over one buffer.
BULK = f"""
  {START}
  ld.param.u64 %d2, [a2]; add.u32 %r2, %r1, 1024; mov.u32 %r3, 1; mov.u32 %r4, 256; mov.u32 %r10, 0;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], %r3;
  @%p0 fence.mbarrier_init.release.cluster;
  bar.sync 0;
  shl.b32 %r6, %r0, 2; add.u32 %r7, %r1, %r6;
ROUND:
  mul.wide.u32 %d3, %r10, 256; add.u64 %d4, %d1, %d3; add.u64 %d5, %d0, %d3;
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r4;
  @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d4], %r4, [%r2];
  {wait("%r2", "%r10", "CAME")}
  xor.b32 %r8, %r7, 128;
  ld.shared.b32 %r9, [%r8];
  add.u32 %r9, %r9, 7;
  bar.sync 0;
  st.shared.b32 [%r7], %r9;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  @%p0 cp.async.bulk.global.shared::cta.bulk_group [%d5], [%r1], %r4;
  @%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d2], [%r1], %r4;
  @%p0 cp.async.bulk.commit_group;
  @%p0 cp.async.bulk.wait_group.read 0;
  add.u32 %r10, %r10, 1; setp.lt.u32 %p1, %r10, 2; @%p1 bra ROUND;
  @%p0 cp.async.bulk.wait_group 0;
"""


def bulk() -> Launch:
    """Copy in and out of one buffer, and add to global memory."""
    x, out = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    total = np.zeros(64, np.uint32)
    text = kernel(BULK, ["u64"] * 3, shared_bytes=1040)
    expected = (x.reshape(2, 2, 32)[:, ::-1] + 7).reshape(-1)
    return Launch(text, 1, 64, [out, x, total], expected.astype(np.uint32))


# Sums of pairs of lanes by shared memory, warp by warp, and the leader's word by a shuffle.
WARPS = f"""
  {START}
  shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; xor.b32 %r4, %r2, 64; add.u32 %r4, %r1, %r4;
  cvt.u64.u32 %d2, %r2; add.u64 %d3, %d1, %d2; ld.global.b32 %r6, [%d3];
  st.shared.b32 [%r3], %r6;
  bar.warp.sync 0xffffffff;
  ld.shared.b32 %r7, [%r4];
  bar.warp.sync 0xffffffff;
  add.u32 %r8, %r6, %r7;
  st.shared.b32 [%r3], %r8;
  bar.warp.sync 0xffffffff;
  xor.b32 %r9, %r4, 4;
  ld.shared.b32 %r10, [%r9];
  add.u64 %d4, %d0, %d2; st.global.b32 [%d4], %r10;
"""


def warps() -> Launch:
    """Pass words between the lanes of a warp through shared memory."""
    x, out = np.arange(128, dtype=np.uint32) ** 2, np.zeros(128, np.uint32)
    text = kernel(WARPS, ["u64", "u64"], shared_bytes=512)
    lanes = np.arange(128)
    sums = x + x[lanes ^ 16]
    return Launch(text, 1, 128, [out, x], sums[lanes ^ 17].astype(np.uint32))


# A map is changed in shared memory, published, and used by another block behind a flag.
MAPS = f"""
  {START}
  ld.param.u64 %d2, [a2]; ld.param.u64 %d3, [a3]; {map_address("%d5", 4)}
  add.u32 %r2, %r1, 512; mov.u32 %r3, 128; mov.u32 %r12, 1; mov.u32 %r13, 0;
  mul.wide.u32 %d6, %r0, 4; cvt.u32.u64 %r4, %d6; add.u64 %d7, %d5, %d6; add.u32 %r6, %r1, %r4;
  setp.ne.u32 %p2, %r5, 0; @%p2 bra USER;
  ld.b32 %r7, [%d7];
  st.shared.b32 [%r6], %r7;
  bar.warp.sync 0xffffffff;
  @%p0 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1], %d1;
  bar.warp.sync 0xffffffff;
  tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d2], [%r1], 128;
  bar.warp.sync 0xffffffff;
  @%p0 st.release.gpu.global.b32 [%d3], %r12;
  bra END;
USER:
  @%p0 mbarrier.init.shared::cta.b64 [%r2], %r12;
  fence.mbarrier_init.release.cluster;
  bar.warp.sync 0xffffffff;
SPIN:
  ld.acquire.gpu.global.b32 %r8, [%d3];
  setp.eq.u32 %p3, %r8, 0; @%p3 bra SPIN;
  fence.proxy.tensormap::generic.acquire.gpu [%d2], 128;
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r3;
  @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%d2, {{%r13, %r13}}], [%r2];
  {wait("%r2", "%r13", "CAME")}
  ld.shared.b32 %r9, [%r6]; add.u64 %d8, %d0, %d6; st.global.b32 [%d8], %r9;
END:
"""  # noqa: E501  an instruction is one line


def maps() -> Launch:
    """Change a tensor map in one block for another to use."""
    old, new = np.zeros((4, 8), np.uint32), np.arange(32, dtype=np.uint32).reshape(4, 8) + 1
    room, out, flag = np.zeros(24, np.uint64), np.zeros((4, 8), np.uint32), np.zeros(1, np.uint32)
    start = -room.ctypes.data % 64 // 8
    copy = room[start : start + 16]
    text = kernel(MAPS, ["u64", "u64", "u64", "u64", "map"], shared_bytes=1024)
    return Launch(text, 2, 32, [out, new, copy, flag, TensorMap.of(old, (4, 8))], new)


# What threads of one block store the other copies in by bulk, and what it copies out they load: by
# turns, behind flags.
TURNS = f"""
  {START}
  ld.param.u64 %d2, [a2]; ld.param.u64 %d3, [a3]; ld.param.u64 %d4, [a4];
  add.u32 %r2, %r1, 512; mov.u32 %r3, 256; mov.u32 %r12, 1; mul.wide.u32 %d5, %r0, 4;
  setp.ne.u32 %p1, %r5, 0; @%p1 bra COPIES;
  add.u64 %d6, %d1, %d5; ld.global.nc.b32 %r6, [%d6];
  add.u64 %d7, %d2, %d5; st.global.b32 [%d7], %r6;
  bar.sync 0;
  @!%p0 bra BACK;
  st.release.gpu.global.b32 [%d4], %r12;
SPIN:
  ld.acquire.gpu.global.b32 %r8, [%d4+4];
  setp.eq.u32 %p3, %r8, 0; @%p3 bra SPIN;
BACK:
  bar.sync 0;
  add.u64 %d8, %d3, %d5; ld.global.b32 %r9, [%d8];
  add.u64 %d9, %d0, %d5; st.global.b32 [%d9], %r9;
  bra END;
COPIES:
  @!%p0 bra COMES;
  mbarrier.init.shared::cta.b64 [%r2], %r12;
  fence.mbarrier_init.release.cluster;
WAITS:
  ld.acquire.gpu.global.b32 %r8, [%d4];
  setp.eq.u32 %p3, %r8, 0; @%p3 bra WAITS;
  fence.proxy.async.global;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r3;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d2], %r3, [%r2];
COMES:
  bar.sync 0;
  {wait("%r2", 0, "CAME")}
  shl.b32 %r6, %r0, 2; add.u32 %r7, %r1, %r6; xor.b32 %r8, %r7, 128;
  ld.shared.b32 %r9, [%r8]; add.u32 %r9, %r9, 7;
  bar.sync 0;
  st.shared.b32 [%r7], %r9;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  @!%p0 bra END;
  cp.async.bulk.global.shared::cta.bulk_group [%d3], [%r1], %r3;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
  st.release.gpu.global.b32 [%d4+4], %r12;
END:
"""


def turns() -> Launch:
    """Let threads and bulk copies of two blocks use global memory by turns."""
    x, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    first, second, flags = (np.zeros(n, np.uint32) for n in (64, 64, 2))
    text = kernel(TURNS, ["u64"] * 5, shared_bytes=1024)
    expected = x.reshape(2, 32)[::-1].reshape(-1) + 7
    return Launch(text, 2, 64, [out, x, first, second, flags], expected.astype(np.uint32))


WRITTEN = {
    "multicast": multicast,
    "exchange": exchange,
    "cp.async groups": groups,
    "cp.async arrivals": arrivals,
    "named barriers": named,
    "last block": last_block,
    "chain of blocks": chain,
    "bulk copies": bulk,
    "lanes": warps,
    "tensor maps": maps,
    "memory by turns": turns,
}
