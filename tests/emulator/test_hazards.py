"""One kernel for each hazard; what is reported of it is a golden."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, TensorMap, run
from tests.emulator.asm import kernel, map_address, wait
from tests.goldens import Golden

START = """
  .loc 1 1 1
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.lt.u32 %p2, %r0, 32;
  setp.eq.u32 %p3, %r0, 32; mov.u32 %r1, smem; add.u32 %r2, %r1, 4096; ld.param.u64 %d0, [a0];
  shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; xor.b32 %r5, %r3, 128; add.u32 %r5, %r1, %r5;
"""
BARRIER = """
  .loc 1 2 1
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
  fence.mbarrier_init.release.cluster;
  bar.sync 0;
"""
LOAD = f"""
  .loc 1 3 1
  {map_address("%d5", 1)}
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {{bytes}};
  .loc 1 4 1
  @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
    [%r1], [%d5, {{{{0, 0}}}}], [%r2];
"""
STORE = f"""
  .loc 1 5 1
  st.shared.b32 [%r4], %r0;
  {{fence}}
  bar.sync 0;
  {map_address("%d5", 1)}
  .loc 1 6 1
  @%p0 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d5, {{{{0, 0}}}}], [%r1];
  cp.async.bulk.commit_group;
"""
FENCE = "fence.proxy.async.shared::cta;"
OWN = "mul.wide.u32 %d1, %r0, 4; add.u64 %d2, %d0, %d1;"
COPY_OUT = f"""
  st.shared.b32 [%r4], %r0; {FENCE} bar.sync 0;
  .loc 1 8 1
  @%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], 256;
  cp.async.bulk.commit_group;
"""
WAIT = wait("%r2", 0)
READ = ".loc 1 7 1\n ld.shared.b32 %r6, [%r4]; st.global.b32 [%d0], %r6;"
# Each lane stores, or loads, a word of another warp.
HAZARDS = {
    "race": "st.shared.b32 [%r4], %r0; .loc 1 8 1\n ld.shared.b32 %r6, [%r5];",
    "missing-proxy-fence": STORE.format(fence=""),
    "store-of-what-another-warp-writes": STORE.format(fence=FENCE).replace("bar.sync 0;", ""),
    "load-over-what-another-warp-reads": BARRIER + LOAD.format(bytes=256) + WAIT + READ
    + LOAD.format(bytes=256),
    "read-before-the-barrier": BARRIER + LOAD.format(bytes=256) + READ,
    "refill-of-a-slot-in-use": STORE.format(fence=FENCE) + ".loc 1 9 1\n st.shared.b32 [%r4], %r3;",
    "exit-with-work-in-flight": STORE.format(fence=FENCE),
    # Who waits knows only of its own group.
    "end-before-a-cp-async": OWN + ".loc 1 8 1\n cp.async.ca.shared.global [%r4], [%d2], 4;"
    "cp.async.commit_group; @%p2 cp.async.wait_group 0;",
    "bytes-too-few": BARRIER + LOAD.format(bytes=240) + WAIT + READ,
    "bytes-too-many": BARRIER + LOAD.format(bytes=272) + WAIT + READ,
    "over-arrival": BARRIER + "mbarrier.arrive.shared::cta.b64 _, [%r2];",
    "parity-as-a-counter": BARRIER + wait("%r2", 2),
    "deadlock": BARRIER + WAIT,
    "mbarrier-not-shown": BARRIER.replace("fence.mbarrier_init.release.cluster;", "")
    + LOAD.format(bytes=256) + "fence.mbarrier_init.release.cluster;" + WAIT + READ,
    "mbarrier-dirty-at-exit": BARRIER.replace("[%r2], 1", "[%r2], 2")
    + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r2];",
    "bytes-missing-at-exit": BARRIER
    + "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 64;"
    "@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 48;",
    "bytes-beyond-the-limit": BARRIER
    + "@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 48;"
    "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 0x100040;",
    # Of the first phase the second warp may still ask when the second is complete.
    "wait-overtaken": BARRIER + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r2];" + WAIT
    + ".loc 1 8 1\n @%p0 mbarrier.arrive.shared::cta.b64 _, [%r2];",
    "unwritten-shared-memory": "ld.shared.b32 %r6, [%r4]; .loc 1 8 1\n st.global.b32 [%d0], %r6;",
    "out-of-bounds": "mad.wide.u32 %d1, %r0, 4, %d0; .loc 1 8 1\n st.global.b32 [%d1+8], %r0;",
    "misaligned": "st.global.b32 [%d0+2], %r0;",
    "write-of-constants": "ld.global.nc.b32 %r6, [%d0]; .loc 1 8 1\n st.global.b32 [%d0], %r6;",
    "divided-warp": "@%p0 bra A; bar.sync 1; bra B; A: bar.sync 1; B:",
    "predicate-that-divides-a-warp": "setp.lt.u32 %p4, %r0, 5; .loc 1 8 1\n @%p4 bar.sync 1;",
    "race-between-lanes": "st.shared.b32 [%r4], %r0; xor.b32 %r5, %r3, 4; add.u32 %r5, %r1, %r5;"
    ".loc 1 8 1\n ld.shared.b32 %r6, [%r5];",
    "missing-proxy-fence-of-global-memory": BARRIER + OWN + """
      .loc 1 8 1
      st.global.b32 [%d2], %r0; bar.sync 0;
      @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
      .loc 1 9 1
      @%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d0], 256, [%r2];
      """ + WAIT,
    "copy-to-global-memory-not-awaited": COPY_OUT + "cp.async.bulk.wait_group.read 0;"
    ".loc 1 9 1\n @%p0 ld.global.b32 %r6, [%d0];",
    "race-in-global-memory": "@%p0 st.global.b32 [%d0], %r0; bar.sync 0;"
    "@%p0 st.global.b32 [%d0], 5; .loc 1 8 1\n @%p3 ld.global.b32 %r6, [%d0];"
    "red.global.add.u32 [%d0+8], 1;",
    "race-between-warps-in-global-memory": "mul.wide.u32 %d1, %r0, 4; add.u64 %d2, %d0, %d1;"
    "bar.sync 0; st.global.b32 [%d2], %r2; xor.b32 %r6, %r0, 32; mul.wide.u32 %d3, %r6, 4;"
    "add.u64 %d3, %d0, %d3; .loc 1 8 1\n ld.global.b32 %r6, [%d3];",
    "race-between-lanes-in-global-memory": OWN + "xor.b32 %r6, %r0, 1; mul.wide.u32 %d3, %r6, 4;"
    "add.u64 %d3, %d0, %d3; bar.sync 0; st.global.b32 [%d2], %r2; .loc 1 8 1\n"
    "ld.global.b32 %r6, [%d3];",
    "mixed-phases-of-a-barrier": "@%p2 bar.sync 1, 32; .loc 1 8 1\n @!%p2 bar.sync 1, 32;",
    "undefined-register": "@%p0 mov.b32 %r7, 1; .loc 1 8 1\n st.global.b32 [%d0], %r7;",
    "collective-without-its-warp": "@%p0 exit; .loc 1 8 1\n ldmatrix.sync.aligned.m8n8.x1"
    ".shared.b16 {%r6}, [%r1];",
    "use-of-no-mbarrier": "mbarrier.arrive.shared::cta.b64 _, [%r1+64];",
    "mbarrier-ended-early": BARRIER + LOAD.format(bytes=256) + WAIT + ".loc 1 8 1\n @%p0 mbarrier"
    ".inval.shared::cta.b64 [%r2];",
    "relaxed-wait": BARRIER + LOAD.format(bytes=256) + WAIT.replace("parity", "parity.relaxed.cta")
    + READ,
    "relaxed-wait-before-a-copy": BARRIER + LOAD.format(bytes=256)
    + (BARRIER + LOAD.format(bytes=256)).replace("[%r2]", "[%r2+8]").replace("[%r1]", "[%r1+1024]")
    + WAIT.replace("parity", "parity.relaxed.cta") + wait("%r2+8", 0, "b")
    + STORE.partition("bar.sync 0;")[2].format(),
    "copy-not-waited-for": BARRIER + LOAD.format(bytes=256) + READ,
    "copy-not-waited-for-by-all-lanes": BARRIER + LOAD.format(bytes=256) + "@!%p0 bra ON;" + WAIT
    + "ON: .loc 1 7 1\n @%p2 ld.shared.b32 %r6, [%r4];",
    "copy-not-waited-for-before-a-copy": BARRIER + LOAD.format(bytes=256)
    + STORE.format(fence=FENCE).partition("bar.sync 0;")[2].replace("@%p0", "@%p3"),
    "load-over-a-live-mbarrier": BARRIER + "@%p0 mbarrier.init.shared::cta.b64 [%r1+64], 1;"
    + LOAD.format(bytes=256),
    "mbarrier-over-what-another-warp-reads": "st.shared.b32 [%r4], %r0; bar.sync 0;"
    ".loc 1 7 1\n ld.shared.b32 %r6, [%r4]; .loc 1 8 1\n"
    "@%p3 mbarrier.init.shared::cta.b64 [%r1], 1;",
    "cp-async-not-waited-for": "mul.wide.u32 %d1, %r0, 4; add.u64 %d2, %d0, %d1; .loc 1 7 1\n"
    "cp.async.ca.shared.global [%r4], [%d2], 4; .loc 1 8 1\n ld.shared.b32 %r6, [%r4];",
    "store-to-what-cp-async-reads": OWN + ".loc 1 7 1\n cp.async.ca.shared.global [%r4], [%d2], 4;"
    "bar.sync 0; .loc 1 8 1\n @%p3 st.global.b32 [%d0], %r2; cp.async.wait_all;",
    "copy-over-what-cp-async-reads": OWN + "st.shared.b32 [%r4+1024], %r2;" + FENCE
    + ".loc 1 7 1\n cp.async.ca.shared.global [%r4], [%d2], 4; bar.sync 0; .loc 1 8 1\n"
    "@%p3 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1+1024], 256;"
    "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; bar.sync 0; cp.async.wait_all;",
    "group-not-committed": STORE.format(fence=FENCE).replace("cp.async.bulk.commit_group;", "")
    + "cp.async.bulk.wait_group 0; bar.sync 0; .loc 1 9 1\n st.shared.b32 [%r4], %r3;",
    "wait-of-a-lane-that-stores-nothing": COPY_OUT + "@%p3 cp.async.bulk.wait_group 0; bar.sync 0;"
    ".loc 1 9 1\n @%p3 ld.global.b32 %r6, [%d0];",
    "lane-outside-of-its-mask": ".loc 1 8 1\n shfl.sync.bfly.b32 %r6, %r0, 1, 31, 0xfffffffe;",
    "load-over-what-a-store-reads": BARRIER + STORE.format(fence=FENCE) + LOAD.format(bytes=256),
    "live-mbarrier-touched": BARRIER + ".loc 1 8 1\n @%p0 st.shared.b32 [%r2], %r0;",
    "reduction-of-a-constant": "ld.global.nc.b32 %r6, [%d0]; .loc 1 8 1\n"
    "red.global.add.u32 [%d0], 1;",
    "changed-map-not-acquired": f"""
      mov.b64 %d5, a1; cvta.param.u64 %d5, %d5; mul.wide.u32 %d6, %r0, 4; add.u64 %d7, %d5, %d6;
      @!%p2 bra END; ld.b32 %r7, [%d7]; st.shared.b32 [%r4], %r7; bar.warp.sync 0xffffffff;
      .loc 1 8 1
      tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
        [%d0+64], [%r1], 128;
      {BARRIER.replace("bar.sync 0", "bar.warp.sync 0xffffffff")}
      .loc 1 9 1
      add.u64 %d8, %d0, 64;
      @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r1], [%d8, {{0, 0}}], [%r2]; END:""",
}  # fmt: skip
# What is done early, although nobody has waited for it.
OPTIONS: dict[str, dict[str, Any]] = {
    name: {"completion": "early"} for name in HAZARDS if "not-waited-for" in name
}
# The same for products of sm_90a: %d10 and %d11 are descriptors of A and B, 64x16 and 8x16 of f16.
PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %d10, %d11, "
PRODUCT += "0, 1, 1, 0, 0;"
END = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
PRODUCTS = {
    "register-of-a-product-in-flight": f"wgmma.fence.sync.aligned; {PRODUCT} .loc 1 8 1\n"
    f"st.global.f32 [%d1], %f0; {END}",
    "missing-product-fence": f"mov.b32 %f0, 0f00000000; .loc 1 8 1\n {PRODUCT} {END}",
    "registers-of-two-products": f"wgmma.fence.sync.aligned; {PRODUCT} .loc 1 8 1\n"
    + PRODUCT.replace("%f0, %f1, %f2, %f3", "%f1, %f2, %f3, %f4")
    + END,
    "slot-refilled-under-a-product": f"wgmma.fence.sync.aligned; {PRODUCT} .loc 1 8 1\n"
    f"st.shared.b32 [%r4], %r0; {END}",
    "end-before-a-product": f"wgmma.fence.sync.aligned; .loc 1 8 1\n {PRODUCT}"
    "wgmma.commit_group.sync.aligned;",
    "descriptor-outside-of-shared-memory": "mov.b64 %d10, 0x4000000100003fff;"
    f"wgmma.fence.sync.aligned; .loc 1 8 1\n {PRODUCT} {END}",
}
FILLED = """
  .loc 1 1 1
  mov.u32 %r0, %tid.x; mov.u32 %r1, smem; ld.param.u64 %d0, [a0]; shl.b32 %r3, %r0, 4;
  add.u32 %r4, %r1, %r3; mul.wide.u32 %d2, %r0, 4; add.u64 %d1, %d0, %d2; mov.u32 %r5, 0;
  st.shared.v4.b32 [%r4], {%r5, %r5, %r5, %r5}; st.shared.v4.b32 [%r4+2048], {%r5, %r5, %r5, %r5};
  fence.proxy.async.shared::cta; bar.sync 0;
  shr.u32 %r6, %r1, 4; cvt.u64.u32 %d10, %r6; or.b64 %d10, %d10, 0x0000001000080000;
  add.u64 %d11, %d10, 128;
"""
# And for tensor memory of sm_100a.
TENSOR = """
  .loc 1 1 1
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.lt.u32 %p2, %r0, 32; mov.u32 %r1, smem;
  ld.param.u64 %d0, [a0]; mul.wide.u32 %d2, %r0, 4; add.u64 %d1, %d0, %d2;
  .loc 1 2 1
  @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;
  bar.sync 0;
  shl.b32 %r5, %r0, 2; add.u32 %r5, %r1, %r5; st.shared.b32 [%r5+1024], %r0;
  fence.proxy.async.shared::cta; bar.sync 0;
  ld.shared.b32 %r2, [%r1]; and.b32 %r3, %r0, 96; shl.b32 %r3, %r3, 16; add.u32 %r4, %r2, %r3;
"""
FREE = ".loc 1 9 1\n bar.sync 0; @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;"
PUT = ".loc 1 3 1\n tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r0};"
GET = ".loc 1 4 1\n tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r4];"
USE = ".loc 1 5 1\n st.global.b32 [%d1], %r5;"
COPY = """
  add.u32 %r6, %r1, 1024; shr.u32 %r6, %r6, 4; cvt.u64.u32 %d10, %r6;
  or.b64 %d10, %d10, 0x0000400000080000;
  .loc 1 8 1
  @%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r2], %d10;
"""
TENSORS = {
    "missing-wait-for-a-tensor-load": f"{PUT} tcgen05.wait::st.sync.aligned; {GET} {FREE} {USE}",
    "missing-wait-for-a-tensor-store": f"{PUT} {GET} tcgen05.wait::ld.sync.aligned; {USE} {FREE}",
    "unwritten-tensor-memory": f"{GET} tcgen05.wait::ld.sync.aligned; {USE} {FREE}",
    "tensor-memory-leaked": "",
    "tensor-memory-not-allocated": "add.u32 %r4, %r4, 64;" + PUT,
    "lanes-of-another-warp": "xor.b32 %r3, %r3, 0x200000; add.u32 %r4, %r2, %r3;" + PUT,
    "tensor-memory-freed-early": f"{PUT} tcgen05.wait::st.sync.aligned; {FREE} {GET}",
    "missing-tensor-fence": f"""{PUT} tcgen05.wait::st.sync.aligned; bar.sync 0;
      tcgen05.fence::after_thread_sync; {COPY}""",
    "missing-barrier-before-a-tensor-copy": f"{PUT} tcgen05.wait::st.sync.aligned; {COPY}",
    "missing-wait-before-a-tensor-copy": f"{PUT} bar.sync 0; {COPY}",
    "tensor-memory-freed-under-a-copy": f"{COPY} {FREE}",
}


# Of two blocks, which reach the same words.
BLOCKS = {
    "race-between-blocks": "@%p3 st.global.b32 [%d1], %r2; .loc 1 8 1\n ld.global.b32 %r6, [%d1];",
    "two-blocks-write": ".loc 1 8 1\n st.global.b32 [%d1], %r6;",
}
# Of a cluster of two blocks, the first of which reaches into the other.
CLUSTERS = {
    "memory-of-a-block-that-ends": "@!%p3 bra END; .loc 1 8 1\n st.shared::cluster.b32 [%r5], %r0;"
    "END:",
    "race-between-blocks-of-a-cluster": "st.shared::cluster.b32 [%r5], %r0; .loc 1 8 1\n"
    "ld.shared.b32 %r6, [%r4]; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
    "block-that-may-not-have-started": ".loc 1 8 1\n st.shared::cluster.b32 [%r5], %r0;"
    "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
}
CLUSTER = """
  .loc 1 1 1
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p3, %r1, 0; mov.u32 %r2, smem;
  shl.b32 %r3, %r0, 2; add.u32 %r4, %r2, %r3; xor.b32 %r6, %r1, 1;
  mapa.shared::cluster.u32 %r5, %r4, %r6; {meet}
"""
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
BLOCK = """
  .loc 1 1 1
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p3, %r1, 0; add.u32 %r2, %r0, 1;
  ld.param.u64 %d0, [a0]; mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1; add.u32 %r6, %r1, 7;
"""


def reported(
    text: str, threads: int, arguments: Sequence[Any], blocks: int = 1, **options: Any
) -> str:
    text += '\n.file 1 "kernel.py"\n'
    with pytest.raises(DeviceFault) as error:
        run(text, "k", (blocks,), (threads,), arguments, **options)
    # Addresses of host memory differ from run to run.
    return re.sub(r"0x[0-9a-f]{6,}", "0x...", str(error.value)) + "\n"


def told(name: str, **options: Any) -> str:
    """Return what is reported of a hazard of one block."""
    if name in HAZARDS:
        text = kernel(START + HAZARDS[name], ["u64", "map"], shared_bytes=4112)
        memory, tensor = np.zeros(80, np.uint32), np.zeros((8, 8), np.uint32)
        start = -memory.__array_interface__["data"][0] % 64 // 4
        out = memory[start : start + 64]
        return reported(text, 64, [out, TensorMap.of(tensor, (8, 8))], **options)
    if name in PRODUCTS:
        text = kernel(FILLED + PRODUCTS[name], ["u64"], shared_bytes=4096)
    else:
        text = kernel(TENSOR + TENSORS[name], ["u64"], target="sm_100a", shared_bytes=2048)
    return reported(text, 128, [np.zeros(128, np.uint32)], **options)


FOLDER = Path(__file__).parents[1] / "golden" / "hazards"
ONE_BLOCK = [*HAZARDS, *PRODUCTS, *TENSORS]


@pytest.mark.parametrize("name", ONE_BLOCK)
def test_a_hazard_is_reported_with_both_accesses(name: str, golden: Golden) -> None:
    golden(told(name, **OPTIONS.get(name, {})), f"hazards/{name}.txt")


# What may be done before anybody can ask for it, and all in another order.
SCHEDULES: list[dict[str, Any]] = [
    {"completion": "early", "order": "max-pc"}, {"completion": 1, "order": "round-robin"},
]  # fmt: skip
# What some schedules call something else: which side comes last, or comes to its end first.
ALSO = {
    "read-before-the-barrier": "E233", "copy-to-global-memory-not-awaited": "E250",
    "copy-not-waited-for": "E250", "copy-not-waited-for-by-all-lanes": "E250",
    "copy-not-waited-for-before-a-copy": "E251",
    "wait-of-a-lane-that-stores-nothing": "E250", "tensor-memory-freed-under-a-copy": "E277",
}  # fmt: skip


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("name", ONE_BLOCK)
def test_a_hazard_is_reported_whatever_completes_when(name: str, options: Any) -> None:
    known = (FOLDER / f"{name}.txt").read_text().partition(":")[0]
    assert told(name, **options).partition(":")[0] in (known, ALSO.get(name))


@pytest.mark.parametrize("name", BLOCKS)
def test_a_hazard_between_blocks_is_reported_with_both_accesses(name: str, golden: Golden) -> None:
    text = kernel(BLOCK + BLOCKS[name], ["u64"])
    found = reported(text, 64, [np.zeros(64, np.uint32)], blocks=2)
    golden(found, f"hazards/{name}.txt")
    alone = reported(text, 64, [np.zeros(64, np.uint32)], blocks=2, exclusive=True)
    golden(alone, f"hazards/{name}-of-ours.txt")


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_hazard_within_a_cluster_is_reported_with_both_accesses(
    name: str, golden: Golden
) -> None:
    start = CLUSTER.format(meet="" if "started" in name else MEET)
    text = kernel(start + CLUSTERS[name], [], shared_bytes=1024)
    golden(reported(text, 64, [], blocks=2, cluster=(2, 1, 1)), f"hazards/{name}.txt")


# What has one side, or lists each of them in lines of its own.
ONE_SIDED = {
    "block-that-may-not-have-started", "bytes-beyond-the-limit", "bytes-missing-at-exit",
    "bytes-too-few", "bytes-too-many",
    "collective-without-its-warp", "deadlock", "descriptor-outside-of-shared-memory",
    "lane-outside-of-its-mask", "lanes-of-another-warp", "live-mbarrier-touched",
    "load-over-a-live-mbarrier", "mbarrier-dirty-at-exit", "misaligned",
    "out-of-bounds", "over-arrival", "parity-as-a-counter", "predicate-that-divides-a-warp",
    "tensor-memory-freed-early",
    "tensor-memory-leaked", "tensor-memory-not-allocated", "undefined-register",
    "unwritten-shared-memory", "unwritten-tensor-memory", "use-of-no-mbarrier",
}  # fmt: skip
REPORTS = sorted(path.stem for path in FOLDER.glob("*.txt"))
PLACE = r"kernel\.py:\d+:1"
WARP = r"warp \d+ of block \(\d+, \d+, \d+\)"


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_names_line_warp_and_block_of_both_sides(name: str) -> None:
    first, *rest = (FOLDER / f"{name}.txt").read_text().splitlines()
    at = next(k for k, line in enumerate(rest) if line.startswith("  kernel:"))
    kernel_line, ptx_line, place, remedy = rest[at:]
    assert re.fullmatch(f"  kernel: {PLACE}", kernel_line)
    assert re.fullmatch(r"  PTX line \d+", ptx_line)
    assert re.fullmatch(r"  block \(\d+, \d+, \d+\), warp \d+", place)
    assert remedy.startswith("  help: ")
    found = re.search(WARP, first) and re.search(rf"{PLACE}, PTX line \d+", first)
    assert bool(found) == (name not in ONE_SIDED)
