"""Launches that the target forbids, and registers that warps hand to each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import run
from tests.emulator.asm import faulting, kernel

BODY = """
  ld.param.u64 %d0, [a0];
  mov.u32 %r0, %tid.x;
  setp.ne.u32 %p0, %r0, 0;
  mov.u32 %r1, 1;
  @%p0 bra DONE;
  st.global.u32 [%d0], %r1;
DONE:
"""
TEXT = kernel(BODY, ["u64"])
fault = faulting(run)


@pytest.mark.parametrize(
    ("grid", "block", "options", "said"),
    [
        ((1,), (2048,), {}, "1 to 1024 threads, not 2048"),
        ((1,), (1, 1, 128), {}, "1 to 64 along z, not 128"),
        ((1, 70000), (1,), {}, "0 to 65535 along y, not 70000"),
        ((-1,), (1,), {}, "negative extent"),
        ((1, 1, 1, 1), (1,), {}, "one to three integers, not (1, 1, 1, 1)"),
        ((1,), (1.5,), {}, "one to three integers, not (1.5,)"),
        ((3,), (1,), {"cluster": (2,)}, "not a multiple of the cluster"),
        ((32,), (1,), {"cluster": (32,)}, "1 to 16 blocks, not 32"),
        ((1,), (1,), {"shared_bytes": 232449}, "at most 232448 bytes of shared memory"),
    ],
)
def test_a_launch_that_the_target_forbids_is_refused(
    grid: Any, block: Any, options: Any, said: str
) -> None:
    assert said in fault("E202", TEXT, "k", grid, block, [np.zeros(1, np.uint32)], **options)


def with_directives(directives: str, text: str = TEXT) -> str:
    return text.replace(")\n{", f")\n{directives}\n{{", 1)


@pytest.mark.parametrize(
    ("directives", "said"),
    [
        (".reqntid 64", "requires blocks of"),
        (".maxntid 16", "allows (16,) threads"),
        (".maxnreg 128", "need more than 65536"),
        (".explicitcluster\n.reqnctapercluster 3, 1, 1", "not a multiple of the cluster (3, 1, 1)"),
    ],
)
def test_a_launch_against_the_directives_of_the_kernel_is_refused(
    directives: str, said: str
) -> None:
    text = with_directives(directives)
    assert said in fault("E202", text, "k", (1,), (1024,), [np.zeros(1, np.uint32)])


def test_the_clusters_that_a_kernel_requires_need_not_be_asked_for() -> None:
    body = "ld.param.u64 %d0, [a0]; mov.u32 %r0, %cluster_nctarank; st.global.u32 [%d0], %r0;"
    text = with_directives(".explicitcluster\n.reqnctapercluster 2, 1, 1", kernel(body, ["u64"]))
    out = np.zeros(1, np.uint32)
    run(text, "k", (2,), (1,), [out])
    assert out == [2]


MOVE = """
  ld.param.u64 %d0, [a0];
  mov.u32 %r0, %tid.x;
  setp.lt.u32 %p0, %r0, 128;
  @%p0 bra TAKE;
  {give}
  bra DONE;
TAKE:
  setmaxnreg.inc.sync.aligned.u32 {taken};
DONE:
  st.global.u32 [%d0], 1;
"""


def moving(taken: int, give: str = "setmaxnreg.dec.sync.aligned.u32 40;") -> str:
    text = kernel(MOVE.format(taken=taken, give=give), ["u64"])
    return with_directives(".maxntid 256\n.minnctapersm 2", text)


def test_a_warpgroup_gets_the_registers_that_another_releases() -> None:
    run(moving(216), "k", (2,), (256,), [np.zeros(1, np.uint32)], order="min-pc")
    run(moving(216), "k", (2,), (256,), [np.zeros(1, np.uint32)], order="max-pc")


def test_a_warpgroup_waits_for_ever_for_registers_that_nobody_releases() -> None:
    out = np.zeros(1, np.uint32)
    assert "waits for 224 registers" in fault("E210", moving(224), "k", (1,), (256,), [out])
    assert "waits for 216 registers" in fault("E210", moving(216, ""), "k", (1,), (256,), [out])


def test_threads_start_with_no_more_registers_than_any_asks_for() -> None:
    # 65,536 registers are 256 a thread; the second count is what nobody has released.
    text = moving(232, "").replace(".minnctapersm 2", ".minnctapersm 1")
    run(text, "k", (1,), (256,), [np.zeros(1, np.uint32)])


def test_registers_are_shared_out_to_whole_warpgroups() -> None:
    # 65,536 registers are 204 a thread for 320 threads, and 168 for the 384 of whole warpgroups.
    text = moving(200, "").replace(".maxntid 256\n.minnctapersm 2", ".minnctapersm 1")
    said = fault("E210", text, "k", (1,), (320,), [np.zeros(1, np.uint32)])
    assert "waits for 200 registers" in said


def test_a_warp_cannot_release_registers_that_it_does_not_have() -> None:
    text = moving(128, "setmaxnreg.dec.sync.aligned.u32 232;")
    assert "has 128" in fault("E216", text, "k", (1,), (256,), [np.zeros(1, np.uint32)])


@pytest.mark.parametrize(
    ("code", "target", "wanted"),
    [
        ("wgmma.fence.sync.aligned;", "sm_100a", "sm_90a"),
        ("tcgen05.wait::ld.sync.aligned;", "sm_90a", "sm_100a or sm_100f"),
        ("tcgen05.wait::ld.sync.aligned;", "sm_100", "sm_100a or sm_100f"),
    ],
)
def test_instructions_of_another_architecture_are_refused(
    code: str, target: str, wanted: str
) -> None:
    text = kernel(code, ["u64"], target=target)
    said = fault("E201", text, "k", (1,), (128,), [np.zeros(1, np.uint32)])
    assert f"it needs .target {wanted}, not {target}" in said
