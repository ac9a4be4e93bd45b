"""Barriers that are `.aligned`: a warp executes them with all of its lanes that have not ended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import run
from tests.emulator.asm import faulting, kernel

# Of each warp, %p1 are lanes 0 to 4.
START = """
  mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31; setp.lt.u32 %p1, %r1, 5; setp.eq.u32 %p0, %r0, 0;
  ld.param.u64 %d0, [a0]; mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1;
"""
DONE = "st.global.b32 [%d1], 7;"
ORDERS = ["min-pc", "max-pc", "round-robin", 3]
BARRIERS = [
    "bar.sync 0;", "bar.sync 1, 64;", "barrier.sync.aligned 0;", "bar.cta.sync 0;",
    "bar.arrive 1, 128;", "bar.red.popc.u32 %r2, 0, %p1;", "barrier.cluster.arrive.aligned;",
]  # fmt: skip


def launch(body: str, threads: int = 64, **options: Any) -> Any:
    out = np.zeros(64, np.uint32)
    run(kernel(START + body, ["u64"]), "k", (1,), (threads,), [out], **options)
    return out


fault = faulting(launch)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("barrier", BARRIERS)
@pytest.mark.parametrize("guard", ["@%p1", "@!%p1"])
def test_a_predicate_that_divides_a_warp_is_reported(guard: str, barrier: str, order: Any) -> None:
    said = fault("E214", f"{guard} {barrier} {DONE}", order=order)
    assert "some lanes of warp 0 of block (0, 0, 0) execute this" in said


@pytest.mark.parametrize("order", ORDERS)
def test_a_predicate_that_is_the_same_for_a_warp_divides_none(order: Any) -> None:
    body = f"setp.lt.u32 %p2, %r0, 32; @%p2 bar.sync 1, 32; {DONE}"
    assert launch(body, order=order).tolist() == [7] * 64


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_may_come_to_other_barriers_that_are_not_aligned(order: Any) -> None:
    body = f"@%p1 barrier.sync 0; @!%p1 barrier.sync 0; {DONE}"
    assert launch(body, order=order).tolist() == [7] * 64


NEVER = """
  .shared .align 8 .b64 bar;
  @%p0 mbarrier.init.shared.b64 [bar], 1; bar.sync 0;
  @%p1 bra MEET;
  WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0; @!%p3 bra WAIT;
  MEET: bar.sync 0;
  @%p0 mbarrier.arrive.shared.b64 _, [bar];
"""


@pytest.mark.parametrize("order", ORDERS)
def test_a_warp_waits_for_lanes_that_do_not_come(order: Any) -> None:
    said = fault("E210", NEVER + DONE, order=order)
    assert "waits for the others of its 32 threads to execute this instruction too" in said


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ends", ["@%p1 exit;", "@%p1 ret;", "@%p1 bra END;"])
@pytest.mark.parametrize("barrier", ["bar.sync 0;", "bar.sync 1, 64;"])
def test_lanes_that_have_ended_are_not_waited_for(barrier: str, ends: str, order: Any) -> None:
    found = launch(f"{ends} {barrier} {DONE} END:", order=order)
    assert found.tolist() == ([0] * 5 + [7] * 27) * 2


def test_threads_that_a_warp_lacks_count_as_arrived_with_it() -> None:
    assert launch(f"bar.sync 1, 64; {DONE}", threads=48)[:48].tolist() == [7] * 48


@pytest.mark.parametrize(
    ("reduction", "result"),
    [("popc.u32 %r5, 1, 64, %p2", 40), ("popc.u32 %r5, 1, 64, !%p2", 14)],
)
def test_lanes_that_have_ended_vote_for_nothing(reduction: str, result: int) -> None:
    body = f"@%p1 exit; setp.lt.u32 %p2, %r0, 50; bar.red.{reduction}; st.global.b32 [%d1], %r5;"
    assert launch(body)[5:32].tolist() == [result] * 27


def test_lanes_that_have_ended_vote_against_nothing() -> None:
    body = f"@%p1 exit; setp.lt.u32 %p2, %r0, 64; bar.red.and.pred %p4, 1, 64, %p2; @%p4 {DONE}"
    assert launch(body).tolist() == ([0] * 5 + [7] * 27) * 2
