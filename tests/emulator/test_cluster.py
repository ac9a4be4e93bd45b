"""Tests of clusters: their barrier, and shared memory of other blocks."""

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from tests.emulator.running import module

REGISTERS = """.reg .b64 %d<16>; .reg .b32 %r<32>; .reg .pred %p<8>;
.shared .align 16 .b8 sh[128];"""
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def launch(body: str, out: Any, *, grid: int = 4, cluster: int = 2) -> None:
    run(module(body, ["u64"], REGISTERS), "k", (grid,), (32,), [out], cluster=(cluster,))


@pytest.mark.parametrize("cluster", [2, 4])
def test_blocks_read_each_others_shared_memory(cluster: int) -> None:
    out = np.zeros((8, 32), np.uint32)
    body = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 100, %r0;
      shl.b32 %r3, %r0, 2; mov.u32 %r4, sh; add.u32 %r5, %r4, %r3; st.shared.b32 [%r5], %r2; {SYNC}
      mov.u32 %r6, %cluster_ctarank; mov.u32 %r7, %cluster_nctarank; add.u32 %r8, %r6, 1;
      rem.u32 %r8, %r8, %r7; mapa.shared::cluster.u32 %r9, %r5, %r8;
      ld.shared::cluster.b32 %r10, [%r9]; {SYNC}
      ld.param.u64 %d0, [p0]; mad.lo.u32 %r11, %r1, 32, %r0; mad.wide.u32 %d1, %r11, 4, %d0;
      st.global.b32 [%d1], %r10;"""
    launch(body, out, grid=8, cluster=cluster)
    neighbours = [b // cluster * cluster + (b + 1) % cluster for b in range(8)]
    assert out.tolist() == [[b * 100 + t for t in range(32)] for b in neighbours]


def test_the_rank_of_an_address_is_that_of_its_block() -> None:
    out = np.zeros(4, np.uint32)
    body = """mov.u32 %r0, %ctaid.x; mov.u64 %d2, sh; cvta.shared.u64 %d3, %d2;
      mapa.u64 %d4, %d3, 1; getctarank.u64 %r1, %d4; getctarank.u64 %r2, %d3;
      mad.lo.u32 %r3, %r1, 10, %r2; ld.param.u64 %d0, [p0]; mad.wide.u32 %d1, %r0, 4, %d0;
      st.global.b32 [%d1], %r3;"""
    launch(body, out)
    assert out.tolist() == [10, 11, 10, 11]


def test_an_address_of_a_rank_outside_the_cluster_is_a_fault() -> None:
    body = """mov.u32 %r4, sh; mapa.shared::cluster.u32 %r9, %r4, 2;
      st.shared::cluster.b32 [%r9], 0;"""
    with pytest.raises(DeviceFault) as error:
        launch(body, np.zeros(1, np.uint32))
    assert error.value.code == "E220"


def test_ended_blocks_do_not_hold_up_the_cluster() -> None:
    out = np.zeros(4, np.uint32)
    body = f"""mov.u32 %r0, %cluster_ctarank; setp.eq.u32 %p0, %r0, 1; @%p0 exit; {SYNC}
      mov.u32 %r1, %ctaid.x; ld.param.u64 %d0, [p0]; mad.wide.u32 %d1, %r1, 4, %d0;
      st.global.b32 [%d1], 7;"""
    launch(body, out)
    assert out.tolist() == [7, 0, 7, 0]


def test_a_block_that_never_arrives_is_a_deadlock() -> None:
    body = f"""mov.u32 %r0, %cluster_ctarank; setp.eq.u32 %p0, %r0, 1; @%p0 bra OTHER; {SYNC}
      bra DONE; OTHER: bar.sync 1, 64; DONE:"""
    with pytest.raises(DeviceFault) as error:
        launch(body, np.zeros(1, np.uint32))
    assert error.value.code == "E210"
    assert "32 of 64" in error.value.message


@pytest.mark.parametrize(
    "body", ["barrier.cluster.wait;", "barrier.cluster.arrive; barrier.cluster.arrive;"]
)
def test_arrive_and_wait_alternate(body: str) -> None:
    with pytest.raises(DeviceFault) as error:
        launch(body, np.zeros(1, np.uint32))
    assert error.value.code == "E213"


def test_blocks_of_a_cluster_are_neighbours_in_every_axis() -> None:
    out = np.zeros((4, 4, 3), np.uint32)
    body = """mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ctaid.y; mad.lo.u32 %r2, %r1, 4, %r0;
      mov.u32 %r3, %cluster_ctarank; mov.u32 %r4, %clusterid.x; mov.u32 %r5, %clusterid.y;
      ld.param.u64 %d0, [p0]; mad.wide.u32 %d1, %r2, 12, %d0; st.global.b32 [%d1], %r3;
      st.global.b32 [%d1+4], %r4; st.global.b32 [%d1+8], %r5;"""
    run(module(body, ["u64"], REGISTERS), "k", (4, 4), (1,), [out], cluster=(2, 2))
    expected = [[[x % 2 + 2 * (y % 2), x // 2, y // 2] for x in range(4)] for y in range(4)]
    assert out.tolist() == expected


ARRIVE_THERE = """mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r4, sh;
  @%p0 mbarrier.init.shared::cta.b64 [%r4], 1; {fence} {between}
  mov.u32 %r6, %cluster_ctarank; xor.b32 %r6, %r6, 1; mapa.shared::cluster.u32 %r9, %r4, %r6;
  @%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9];
  W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r4], 0; @!%p1 bra W;"""
RELAXED = SYNC.replace("arrive.", "arrive.relaxed.")
SHOW = "fence.mbarrier_init.release.cluster;"


@pytest.mark.parametrize(("fence", "between"), [(SHOW, RELAXED), ("", SYNC), (SHOW, SYNC)])
def test_another_block_may_arrive_once_the_cluster_has_met(fence: str, between: str) -> None:
    body = ARRIVE_THERE.format(fence=fence, between=between) + SYNC
    launch(body, np.zeros(1, np.uint32))


def test_an_arrival_that_may_come_before_the_init_is_a_race() -> None:
    with pytest.raises(DeviceFault, match="writes it") as error:
        launch(ARRIVE_THERE.format(fence="", between=RELAXED) + SYNC, np.zeros(1, np.uint32))
    assert error.value.code == "E232"


@pytest.mark.parametrize("between", ["", "bar.sync 0;"])
def test_another_block_that_may_not_have_started_is_not_reached(between: str) -> None:
    with pytest.raises(DeviceFault, match="nothing tells that it has started") as error:
        launch(ARRIVE_THERE.format(fence=SHOW, between=between) + SYNC, np.zeros(1, np.uint32))
    assert error.value.code == "E258"
