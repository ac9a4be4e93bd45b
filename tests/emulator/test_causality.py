"""The second opinion on order finds also what the emulator does not, or is kept from finding."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from astdsl.emulator.asynchronous import Completion
from astdsl.emulator.barrier_ends import BarrierEnds
from astdsl.emulator.farewells import Farewells
from astdsl.emulator.guard import SharedGuard
from astdsl.emulator.overtaken import Overtaken
from astdsl.emulator.races import SharedRaces
from astdsl.emulator.tensor_memory import TensorMemory
from astdsl.emulator.unacquired import Unacquired
from tests.emulator.asm import kernel, wait
from tests.emulator.mutation import recorded
from tests.emulator.watching import unordered

START = """
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, smem; add.u32 %r2, %r1, 1024;
  ld.param.u64 %d0, [a0]; shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; mov.u32 %r5, 256;
  xor.b32 %r6, %r3, 128; add.u32 %r6, %r1, %r6; mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1;
  cvt.u64.u32 %d3, %r3; add.u32 %r8, %r2, 8; setp.eq.u32 %p2, %r0, 32; or.pred %p3, %p0, %p2;
  mov.u32 %r11, %ctaid.x; mul.wide.u32 %d4, %r11, 256; add.u64 %d5, %d0, %d4;
  add.u64 %d6, %d1, %d4; xor.b32 %r12, %r3, 128; cvt.u64.u32 %d7, %r12; add.u64 %d7, %d5, %d7;
"""
INIT = """
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1; @%p0 mbarrier.init.shared::cta.b64 [%r8], 64;
  fence.mbarrier_init.release.cluster;
"""
LOAD = """
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r5;
  @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], %r5, [%r2];
"""
COPY = "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d5], [%r1], %r5;"
COMMIT, READ_ALL = "cp.async.bulk.commit_group;", "cp.async.bulk.wait_group.read 0;"
STORE = COPY + COMMIT + "cp.async.bulk.wait_group 0;"
FENCE = "fence.proxy.async.shared::cta;"
SYNC, OTHER = "bar.sync 0;", "bar.sync 1;"
PUT, TAKE = "st.shared.b32 [%r4], %r0;", "ld.shared.b32 %r7, [%r6];"
OWN = "ld.shared.b32 %r7, [%r4];"
WAIT = wait("%r2", 0)
RELAXED = wait("%r2", 0, order=".relaxed.cta")
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r8];"
MEET = ARRIVE + wait("%r8", 0, "all")
FILL = INIT + SYNC + LOAD
# Thread 0 loads again what thread 32 has loaded after it, and waits for that one alone.
AGAIN = LOAD.replace("%p0", "%p2").replace("[%r2]", "[%r8]")
RELAYED = f"""
  {INIT.replace(", 64", ", 1")} {SYNC} {LOAD}
  @!%p2 bra NEXT; {wait("%r2", 0, "first")} {AGAIN}
NEXT:
  {wait("%r8", 0, "second")} {LOAD} {wait("%r2", 1, "third")}
"""
# Two stores of one thread, the second of other words.
STORES = f"""
  {PUT} st.shared.b32 [%r4+512], %r0; {FENCE} {SYNC} {COPY} {COMMIT}
  add.u32 %r9, %r1, 512; add.u64 %d8, %d5, 512;
  @%p0 cp.async.bulk.global.shared::cta.bulk_group [%d8], [%r9], %r5; {COMMIT}
"""
# Both warps store their own half, in one instruction.
HALVES = f"""
  mov.u32 %r9, 128; and.b32 %r12, %r3, 128; add.u32 %r10, %r1, %r12;
  cvt.u64.u32 %d9, %r12; add.u64 %d9, %d5, %d9;
  {PUT} {FENCE} {SYNC} @%p3 cp.async.bulk.global.shared::cta.bulk_group [%d9], [%r10], %r9;
"""


# Warp 0 stores in tensor memory what warp 4, whose place is the same, loads.
BEFORE, AFTER = "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"
CELLS = f"""
  setp.lt.u32 %p4, %r0, 32; shr.u32 %r13, %r0, 5; setp.eq.u32 %p5, %r13, 4;
  @%p4 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;
  bar.sync 2; ld.shared.b32 %r14, [%r1];
  @%p4 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r14], {{%r0}};
  tcgen05.wait::st.sync.aligned; {BEFORE} {SYNC} {AFTER}
  @%p5 tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r7}}, [%r14];
  tcgen05.wait::ld.sync.aligned; bar.sync 3;
  @%p4 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r14, 32;
"""


def trial(body: str, completion: Completion = "early") -> str:
    cells = "tcgen05" in body
    target, threads = ("sm_100a", 256) if cells else ("sm_90a", 64)
    text = kernel(START + body, ["u64"], shared_bytes=2048, target=target)
    try:
        run(text, "k", (2,), (threads,), [np.zeros(1024, np.uint32)], completion=completion)
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
        for name in ("_order_access", "_check_operation"):
            stack.enter_context(patch.object(TensorMemory, name, nothing))
        for name in ("begin_read", "end_some"):
            stack.enter_context(patch.object(SharedGuard, name, nothing))
        for checking in (Farewells, Overtaken):
            stack.enter_context(patch.object(checking, "check", nothing))
        for watched in (BarrierEnds, Unacquired):
            stack.enter_context(patch.object(watched, "of", lambda *_: None))
        return "; ".join(unordered(lambda: trial(body)))


@pytest.mark.parametrize(
    ("left_out", "ordered", "said"),
    [
        (SYNC, PUT + SYNC + TAKE, "read after it was written"),
        (OTHER, PUT + SYNC + TAKE + OTHER + PUT, "written after it was read"),
        (SYNC, INIT + SYNC + LOAD + WAIT, "touched after it was made"),
        (WAIT, FILL + WAIT + TAKE, "in no order with the bulk load"),
        (OTHER, INIT + PUT + FENCE + SYNC + TAKE + OTHER + LOAD + WAIT, "after what was read"),
        (FENCE, PUT + FENCE + SYNC + STORE, "in no order after what was written"),
        (SYNC, PUT + FENCE + SYNC + STORE, "in no order after what was written"),
        (BEFORE, CELLS, "tensor memory is read after it was made"),
        (AFTER, CELLS, "tensor memory is read after it was made"),
        (SYNC, CELLS, "tensor memory is read after it was made"),
        (wait("%r2", 0, "first"), RELAYED, "the bulk load is in no order with bulk load"),
        (READ_ALL, HALVES + COMMIT + READ_ALL + "bar.warp.sync -1;" + PUT, "with the bulk store"),
    ],
)
def test_what_is_not_ordered_is_found(left_out: str, ordered: str, said: str) -> None:
    assert not found(ordered)
    assert said in found(ordered.replace(left_out, ""))


@pytest.mark.parametrize("left_out", [ARRIVE, wait("%r8", 0, "all")])
def test_threads_that_meet_at_an_mbarrier_are_in_order(left_out: str) -> None:
    whole = INIT + SYNC + PUT + MEET + TAKE
    assert not found(whole)
    other = "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r8], 64;" if left_out == ARRIVE else ""
    assert "read after it was written" in found(whole.replace(left_out, other))


@pytest.mark.parametrize("left_out", [OTHER, wait("%r8", 0, "all")])
def test_what_something_else_orders_too_may_be_left_out(left_out: str) -> None:
    whole = INIT + SYNC + PUT + OTHER + MEET + TAKE
    assert not found(whole)
    assert not found(whole.replace(left_out, ""))


def test_accesses_of_different_words_need_no_order() -> None:
    assert not found(PUT + "ld.shared.b32 %r7, [%r6+512];" + OWN)


def test_warps_that_write_a_word_at_once_are_in_no_order() -> None:
    assert "written by several warps at once" in found("st.shared.b32 [%r1], %r0;")


@pytest.mark.parametrize(
    ("keep", "said"), [(1, ""), (2, "written in no order with the bulk store")]
)
def test_who_waits_for_groups_knows_the_older_ones_alone(keep: int, said: str) -> None:
    end = f"cp.async.bulk.wait_group.read {keep}; {SYNC} {PUT}"
    text = found(STORES + end + READ_ALL)
    assert said in text if said else not text


def test_threads_of_a_block_share_global_memory_in_order() -> None:
    put, take = "st.global.b32 [%d6], %r0;", "ld.global.b32 %r7, [%d7];"
    assert not found(put + SYNC + take)
    assert "read after it was written" in found(put + take)


def test_a_relaxed_wait_orders_no_access_after_a_copy() -> None:
    assert not found(FILL + WAIT + TAKE)
    assert "in no order with the bulk load" in found(FILL + RELAXED + TAKE)


def test_the_last_wait_must_come_before_the_barrier_ends() -> None:
    end = "@%p0 mbarrier.inval.shared::cta.b64 [%r2];"
    assert not found(FILL + WAIT + SYNC + end)
    assert "made after it was touched" in found(FILL + WAIT + end)


def test_an_arrival_that_may_come_a_phase_too_early_is_found() -> None:
    again = "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r2];"
    assert not found(FILL + WAIT + SYNC + again + wait("%r2", 1, "b"))
    early = FILL + WAIT + again + wait("%r2", 1, "b")
    assert "may complete before all have seen the one before" in found(early)


def test_lanes_that_wait_together_have_all_seen_what_one_of_them_tells() -> None:
    # One lane of each warp says that both have seen the phase before; or one of only one warp.
    two = INIT.replace("[%r2], 1", "[%r2], 2") + SYNC
    say = "@%p3 mbarrier.arrive.shared::cta.b64 _, [%r2];"
    assert not found(two + say + WAIT + say + wait("%r2", 1, "b"))
    twice = "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r2], 2;"
    early = found(two + say + WAIT + twice + wait("%r2", 1, "b"))
    assert "may complete before all have seen the one before" in early


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("atom.global.add.u32 %r7, [%d0], 1; st.shared.b32 [%r4], %r7;", "lets a schedule decide"),
        ("cp.async.ca.shared.global [%r4], [%d1], 4; cp.async.wait_all;", "is not modelled"),
        ("st.global.b32 [%d0], 1;", "argument 0 is shared"),
        (PUT + FENCE + SYNC + STORE.replace("%d5", "%d0"), "argument 0 is shared"),
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
