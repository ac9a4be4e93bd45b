"""One lane tells of its own past, and of the rest of its warp only up to when they met."""

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import run
from tests.emulator.asm import faulting, kernel, wait

START = """
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.lt.u32 %p2, %r0, 32; mov.u32 %r1, smem;
  add.u32 %r2, %r1, 1024; shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; ld.param.u64 %d0, [a0];
  mov.u32 %r5, %ctaid.x; setp.eq.u32 %p1, %r5, 0;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1; @%p0 fence.mbarrier_init.release.cluster;
  @%p0 st.shared.b32 [%r1+512], 7; bar.sync 0;
"""
ARRIVE = "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r2];"
MEET = "bar.warp.sync 0xffffffff;"
# The first warp writes 32 words, and lane 0 one more and arrives; the other warp waits.
TELLER = """
  @!%p2 bra OTHER; {before} @%p0 st.shared.b32 [%r1+512], %r2; {between} {arrive} bra DONE;
OTHER: {wait} {after}
DONE: {end}
"""
ALL = "st.shared.b32 [%r4], %r0;"
ONE, ANOTHER = "ld.shared.b32 %r6, [%r1+512];", "ld.shared.b32 %r6, [%r1+4];"
SCHEDULES: list[dict[str, Any]] = [
    {}, {"order": "max-pc", "completion": "early"}, {"order": "round-robin"}, {"order": 3},
]  # fmt: skip


def launch(body: str, *, threads: int = 64, grid: int = 1, **options: Any) -> None:
    text = kernel(START + body, ["u64"], shared_bytes=2048)
    run(text, "k", (grid,), (threads,), [np.zeros(512, np.uint32)], **options)


fault = faulting(launch)


def told(before: str, after: str, between: str = "", end: str = "") -> str:
    return TELLER.format(
        before=before, between=between, arrive=ARRIVE, wait=wait("%r2", 0), after=after, end=end
    )


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("end", ["", "bar.sync 1;"])
def test_others_learn_of_what_the_lane_that_arrives_did(end: str, options: Any) -> None:
    launch(told(ALL, ONE, end=end), **options)
    launch(told(ALL, ANOTHER, between=MEET, end=end), **options)
    launch(told(ALL + "bar.sync 2, 32;", ANOTHER, end=end), **options)


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("end", ["", "bar.sync 1;"])
def test_others_do_not_learn_of_what_another_lane_did(end: str, options: Any) -> None:
    assert "warp 0 of block (0, 0, 0) writes it" in fault(
        "E232", told(ALL, ANOTHER, end=end), **options
    )
    # What it read may not be overwritten either.
    body = told("@!%p0 ld.shared.b32 %r6, [%r1+512];", "st.shared.b32 [%r1+512], %r0;", end=end)
    assert "reads it" in fault(
        "E232", body.replace("@%p0 st.shared.b32 [%r1+512], %r2;", ""), **options
    )


@pytest.mark.parametrize("options", SCHEDULES)
def test_a_copy_does_not_see_what_another_lane_did(options: Any) -> None:
    copy = """
      setp.eq.u32 %p3, %r0, 32; @%p3 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], 128;
      @%p3 cp.async.bulk.commit_group; @%p3 cp.async.bulk.wait_group 0;
    """
    shown = ALL + "fence.proxy.async.shared::cta;"
    launch(told(shown, copy, between=MEET), **options)
    fault("E234", told(shown, copy), **options)


@pytest.mark.parametrize("options", SCHEDULES)
def test_lanes_learn_of_a_lane_of_their_own_warp_that_arrives(options: Any) -> None:
    body = """
      @!%p0 bra OTHER; st.shared.b32 [%r1+512], %r2; mbarrier.arrive.shared::cta.b64 _, [%r2];
      bra DONE;
    OTHER: {write} {wait} ld.shared.b32 %r6, [%r1+{offset}];
    DONE:
    """
    waiting = wait("%r2", 0)
    launch(body.format(write="", wait=waiting, offset=512), threads=32, **options)
    text = fault("E232", body.format(write="", wait="", offset=512), threads=32, **options)
    assert "no `bar.warp.sync`" in text
    # It tells nothing of what the others have done.
    third = "setp.eq.u32 %p3, %r0, 3; @%p3 st.shared.b32 [%r1+516], %r2;"
    fault("E232", body.format(write=third, wait=waiting, offset=516), threads=32, **options)


@pytest.mark.parametrize("options", SCHEDULES)
def test_a_release_of_one_lane_tells_other_blocks_of_its_own_stores(options: Any) -> None:
    body = """
      mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1; @!%p1 bra READER;
      st.global.b32 [%d1+256], %r2; @%p0 st.global.b32 [%d0+64], %r2; {between}
      @%p0 {release}; bra DONE;
    READER: ld.acquire.gpu.global.b32 %r6, [%d0]; setp.eq.u32 %p3, %r6, 0; @%p3 bra READER;
      ld.global.b32 %r7, [%d0+{offset}];
    DONE:
    """
    releases = (
        "st.release.gpu.global.b32 [%d0], 1",
        "fence.acq_rel.gpu; @%p0 st.relaxed.gpu.global.b32 [%d0], 1",
    )
    for release in releases:
        fence = body.format(between="", release=release, offset=64)
        launch(fence, grid=2, threads=32, **options)
        launch(
            body.format(between=MEET, release=release, offset=260), grid=2, threads=32, **options
        )
        other = body.format(between="", release=release, offset=260)
        fault("E232", other, grid=2, threads=32, **options)


@pytest.mark.parametrize("options", SCHEDULES)
def test_a_copy_over_what_another_lane_read_is_reported(options: Any) -> None:
    load = f"""
      setp.eq.u32 %p3, %r0, 32;
      @%p3 mbarrier.init.shared::cta.b64 [%r2+8], 1; @%p3 fence.mbarrier_init.release.cluster;
      @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2+8], 128;
      @%p3 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes
        [%r1], [%d0], 128, [%r2+8];
      bar.warp.sync 0xffffffff; {wait("%r2+8", 0, "filled")}
    """
    before = f"{ALL} fence.proxy.async.shared::cta; {MEET} ld.shared.b32 %r6, [%r4];"
    launch(told(before, load, between=MEET), **options)
    assert "reads it" in fault("E234", told(before, load), **options)
