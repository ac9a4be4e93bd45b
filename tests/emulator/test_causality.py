"""The second opinion on order finds also what the emulator does not, or is kept from finding."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from astdsl.emulator.barrier_ends import BarrierEnds
from astdsl.emulator.farewells import Farewells
from astdsl.emulator.overtaken import Overtaken
from astdsl.emulator.races import SharedRaces
from astdsl.emulator.unacquired import Unacquired
from tests.emulator.asm import kernel, wait
from tests.emulator.mutation import recorded
from tests.emulator.watching import unordered, without

START = """
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, smem; add.u32 %r2, %r1, 1024;
  ld.param.u64 %d0, [a0]; shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; mov.u32 %r5, 256;
  xor.b32 %r6, %r3, 128; add.u32 %r6, %r1, %r6; mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1;
"""
INIT = "@%p0 mbarrier.init.shared::cta.b64 [%r2], 1; fence.mbarrier_init.release.cluster;"
LOAD = """
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r5;
  @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], %r5, [%r2];
"""
STORE = """
  @%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], %r5;
  cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
"""
FENCE = "fence.proxy.async.shared::cta;"
SYNC, OTHER = "bar.sync 0;", "bar.sync 1;"
PUT, TAKE = "st.shared.b32 [%r4], %r0;", "ld.shared.b32 %r7, [%r6];"


def trial(body: str, threads: int = 64) -> str:
    text = kernel(START + body, ["u64"], shared_bytes=1040)
    try:
        run(text, "k", (2,), (threads,), [np.zeros(1024, np.uint32)])
    except DeviceFault as fault:
        return fault.code
    return ""


def found(body: str) -> str:
    """Return what the second opinion finds while the emulator looks for no races."""

    def nothing(*_: Any, **__: Any) -> Any:
        return np.zeros(1, np.bool_)

    with ExitStack() as stack:
        for name in ("_check", "_check_async", "unordered", "uncovered"):
            stack.enter_context(patch.object(SharedRaces, name, nothing))
        for judge in (Farewells, Overtaken):
            stack.enter_context(patch.object(judge, "check", nothing))
        for watched in (BarrierEnds, Unacquired):
            stack.enter_context(patch.object(watched, "of", lambda *_: None))
        return "; ".join(unordered(lambda: trial(body)))


READ = PUT + SYNC + "ld.shared.b32 %r7, [%r1];"
RELAXED = wait("%r2", 0).replace("parity", "parity.relaxed.cta")


@pytest.mark.parametrize(
    ("left_out", "ordered", "said"),
    [
        (SYNC, PUT + SYNC + TAKE, "read after it was written"),
        (OTHER, READ + OTHER + PUT, "written after it was read"),
        (FENCE, PUT + FENCE + SYNC + STORE, "in no order after what was written"),
        (SYNC, PUT + FENCE + SYNC + STORE, "in no order after what was written"),
        (SYNC, INIT + SYNC + LOAD + wait("%r2", 0), "touched after it was made"),
    ],
)
def test_what_is_not_ordered_is_found(left_out: str, ordered: str, said: str) -> None:
    assert not found(ordered)
    assert said in found(ordered.replace(left_out, ""))


def test_a_relaxed_wait_orders_no_access_after_a_copy() -> None:
    assert not found(INIT + SYNC + LOAD + wait("%r2", 0) + TAKE)
    assert "in no order with the bulk load" in found(INIT + SYNC + LOAD + RELAXED + TAKE)


def test_the_last_wait_must_come_before_the_barrier_ends() -> None:
    end = "@%p0 mbarrier.inval.shared::cta.b64 [%r2];"
    whole = INIT + SYNC + LOAD + wait("%r2", 0) + SYNC + end
    assert not found(whole)
    assert "made after it was touched" in found(INIT + SYNC + LOAD + wait("%r2", 0) + end)


def test_an_arrival_that_may_come_a_phase_too_early_is_found() -> None:
    again = "setp.eq.u32 %p1, %r0, 32; @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];"
    whole = INIT + SYNC + LOAD + wait("%r2", 0) + SYNC + again + wait("%r2", 1, "b")
    assert not found(whole)
    early = INIT + SYNC + LOAD + wait("%r2", 0) + again + wait("%r2", 1, "b")
    assert "may complete before all have seen the one before" in found(early)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("atom.global.add.u32 %r7, [%d0], 1; st.shared.b32 [%r4], %r7;", "lets a schedule decide"),
        ("cp.async.ca.shared.global [%r4], [%d1], 4; cp.async.wait_all;", "is not modelled"),
        ("st.global.b32 [%d0], 1;", "argument 0 is shared"),
    ],
)
def test_what_is_not_modelled_is_not_taken_for_ordered(body: str, said: str) -> None:
    assert said in "; ".join(unordered(lambda: trial(body)))


def test_atomics_may_meet_in_global_memory() -> None:
    assert not unordered(lambda: trial("red.global.add.u32 [%d0], 1;" + PUT))


@pytest.mark.parametrize("name", ["exchange", "multicast", "bulk copies", "matmul_pairs-sm_100a"])
def test_programs_of_clusters_and_copies_are_in_order(name: str) -> None:
    program = recorded(name)
    assert not unordered(lambda: program.trial(program.ptx, {}))


def test_fences_that_are_not_modelled_have_no_reason() -> None:
    assert without("bar.sync 0;", lambda: trial(PUT))
    assert not without("bar.sync 0;", lambda: trial(PUT + TAKE))
    assert not without("wgmma.fence.sync.aligned;", lambda: trial(PUT))
