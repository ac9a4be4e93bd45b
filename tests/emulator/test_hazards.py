"""One kernel for each hazard; what is reported of it is a golden."""

from __future__ import annotations

import re

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, TensorMap, run
from tests.emulator.asm import kernel, map_address, wait
from tests.goldens import Golden

START = """
  .loc 1 1 1
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.lt.u32 %p2, %r0, 32;
  mov.u32 %r1, smem; add.u32 %r2, %r1, 4096; ld.param.u64 %d0, [a0];
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
WAIT = wait("%r2", 0)
READ = ".loc 1 7 1\n ld.shared.b32 %r6, [%r4]; st.global.b32 [%d0], %r6;"
# Each lane stores, or loads, a word of another warp.
HAZARDS = {
    "race": "st.shared.b32 [%r4], %r0; .loc 1 8 1\n ld.shared.b32 %r6, [%r5];",
    "missing-proxy-fence": STORE.format(fence=""),
    "read-before-the-barrier": BARRIER + LOAD.format(bytes=256) + READ,
    "refill-of-a-slot-in-use": STORE.format(fence=FENCE) + ".loc 1 9 1\n st.shared.b32 [%r4], %r3;",
    "exit-with-work-in-flight": STORE.format(fence=FENCE),
    "bytes-too-few": BARRIER + LOAD.format(bytes=240) + WAIT + READ,
    "bytes-too-many": BARRIER + LOAD.format(bytes=272) + WAIT + READ,
    "over-arrival": BARRIER + "mbarrier.arrive.shared::cta.b64 _, [%r2];",
    "parity-as-a-counter": BARRIER + wait("%r2", 2),
    "deadlock": BARRIER + WAIT,
    "mbarrier-not-shown": BARRIER.replace("fence.mbarrier_init.release.cluster;", "")
    + LOAD.format(bytes=256) + "fence.mbarrier_init.release.cluster;" + WAIT + READ,
    "mbarrier-dirty-at-exit": BARRIER.replace("[%r2], 1", "[%r2], 2")
    + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r2];",
    "unwritten-shared-memory": "ld.shared.b32 %r6, [%r4]; .loc 1 8 1\n st.global.b32 [%d0], %r6;",
    "out-of-bounds": "mad.wide.u32 %d1, %r0, 4, %d0; .loc 1 8 1\n st.global.b32 [%d1+8], %r0;",
    "misaligned": "st.global.b32 [%d0+2], %r0;",
    "write-of-constants": "ld.global.nc.b32 %r6, [%d0]; .loc 1 8 1\n st.global.b32 [%d0], %r6;",
    "divided-warp": "@%p0 bra A; bar.sync 1; bra B; A: bar.sync 1; B:",
}  # fmt: skip


@pytest.mark.parametrize("name", HAZARDS)
def test_a_hazard_is_reported_with_both_accesses(name: str, golden: Golden) -> None:
    text = kernel(START + HAZARDS[name], ["u64", "map"], shared_bytes=4112)
    text += '\n.file 1 "kernel.py"\n'
    out, tensor = np.zeros(64, np.uint32), np.zeros((8, 8), np.uint32)
    with pytest.raises(DeviceFault) as error:
        run(text, "k", (1,), (64,), [out, TensorMap.of(tensor, (8, 8))])
    # Addresses of host memory differ from run to run.
    report = re.sub(r"0x[0-9a-f]{6,}", "0x...", str(error.value))
    golden(f"{report}\n", f"hazards/{name}.txt")
