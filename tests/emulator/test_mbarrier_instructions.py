"""Tests of the mbarrier instructions, by kernels of one block."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from astdsl.emulator import DeviceFault, run
from astdsl.emulator.asynchronous import Completion
from tests.emulator.asm import faulting, kernel, wait

COMPLETIONS = ["late", "early", 11]
BEGIN = """
  mov.u32 %r0, %tid.x;
  setp.eq.u32 %p0, %r0, 0;
  mov.u32 %r1, smem;
  ld.param.u64 %d0, [a0];
  mul.wide.u32 %d1, %r0, 4;
  add.u64 %d0, %d0, %d1;
  @%p0 mbarrier.init.shared::cta.b64 [%r1], {count};
  fence.mbarrier_init.release.cluster;
  bar.sync 0;
"""


def launch(
    body: str,
    count: int = 64,
    threads: int = 64,
    completion: Completion = "late",
    grid: int = 1,
    order: Any = "min-pc",
) -> NDArray[Any]:
    """Run a body after making one barrier; return what each thread stored."""
    out = np.zeros(threads, np.uint32)
    ptx = kernel(BEGIN.format(count=count) + body, ["u64"], shared_bytes=64)
    run(ptx, "k", (grid,), (threads,), [out], completion=completion, order=order)
    return out


fault = faulting(launch)


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_every_thread_passes_once_all_have_arrived(completion: Completion) -> None:
    body = """
  st.shared.u32 [%r1 + 16], 5;
  mbarrier.arrive.shared::cta.b64 %d2, [%r1];
W: mbarrier.try_wait.shared::cta.b64 %p1, [%r1], %d2;
  @!%p1 bra W;
  mbarrier.arrive.shared::cta.b64 _, [%r1];
""" + wait("%r1", 1) + "st.global.u32 [%d0], 1;"  # fmt: skip
    assert launch(body, completion=completion).all()


def test_arrivals_may_count_for_several() -> None:
    body = "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r1], 64;" + wait("%r1", 0)
    assert launch(body + "st.global.u32 [%d0], 7;")[63] == 7


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_loop_on_test_wait_lets_the_others_go_on(completion: Completion) -> None:
    body = """
  setp.lt.u32 %p2, %r0, 32;
  @%p2 bra POLL;
  mbarrier.arrive.shared::cta.b64 _, [%r1];
  bra DONE;
POLL: mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], 0;
  @!%p1 bra POLL;
DONE: st.global.u32 [%d0], 1;
"""
    assert launch(body, count=32, completion=completion).all()


def test_a_test_that_fails_says_so() -> None:
    body = "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], 0; selp.u32 %r2, 1, 2, %p1;"
    assert launch(body + "st.global.u32 [%d0], %r2;")[5] == 2


def test_bytes_can_be_expected_and_completed_by_instructions() -> None:
    body = """
  @%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 48;
  @%p0 mbarrier.arrive.shared::cta.b64 _, [%r1];
  @%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 48;
""" + wait("%r1", 0)  # fmt: skip
    assert launch(body + "st.global.u32 [%d0], 3;", count=1)[9] == 3


def test_a_generic_address_names_a_barrier_too() -> None:
    body = """
  cvt.u64.u32 %d3, %r1;
  cvta.shared.u64 %d3, %d3;
  mbarrier.arrive.b64 %d2, [%d3];
""" + wait("%r1", 0)  # fmt: skip
    assert launch(body + "st.global.u32 [%d0], 3;")[9] == 3


def test_a_thread_that_drops_out_is_not_waited_for_again() -> None:
    body = """
  setp.lt.u32 %p2, %r0, 32;
  @%p2 mbarrier.arrive_drop.shared::cta.b64 _, [%r1];
  @%p2 bra DONE;
  mbarrier.arrive.shared::cta.b64 _, [%r1];
"""
    body += wait("%r1", 0) + "mbarrier.arrive.shared::cta.b64 _, [%r1];" + wait("%r1", 1, "b")
    assert launch(body + "DONE: st.global.u32 [%d0], 3;")[63] == 3


def test_a_deadlock_names_phase_arrivals_and_lines() -> None:
    text = fault("E210", "@!%p0 mbarrier.arrive.shared::cta.b64 _, [%r1];" + wait("%r1", 0))
    assert "phase 0" in text
    assert "1 of 64 arrivals" in text
    assert "PTX line" in text


def test_too_many_arrivals_are_a_fault() -> None:
    fault("E244", "mbarrier.arrive.shared::cta.b64 _, [%r1], 40;")


def test_a_count_out_of_range_is_a_fault() -> None:
    fault("E240", "", count=0)
    fault("E240", "", count=1 << 20)


def test_too_many_bytes_are_a_fault() -> None:
    fault("E246", "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 1048576;")


def test_a_barrier_that_is_not_there_is_a_fault() -> None:
    fault("E243", "mbarrier.arrive.shared::cta.b64 _, [%r1 + 8];")


def test_a_misaligned_barrier_is_a_fault() -> None:
    fault("E247", "mbarrier.arrive.shared::cta.b64 _, [%r1 + 4];")


def test_a_phase_counter_passed_for_a_parity_is_a_fault() -> None:
    assert "not 2" in fault("E248", wait("%r1", 2))


@pytest.mark.parametrize("access", ["ld.shared.u32 %r3, [%r1 + 4];", "st.shared.u32 [%r1], %r0;"])
def test_an_ordinary_access_of_a_live_barrier_is_a_fault(access: str) -> None:
    fault("E253", access)


def test_memory_of_an_ended_barrier_is_ordinary() -> None:
    body = "@%p0 mbarrier.inval.shared::cta.b64 [%r1]; bar.sync 0;"
    body += "st.shared.u32 [%r1], 9; bar.sync 0; ld.shared.u32 %r3, [%r1];"
    body += "st.global.u32 [%d0], %r3;"
    assert launch(body)[0] == 9


def test_blocks_have_barriers_of_their_own() -> None:
    body = """
  mov.u32 %r5, %ctaid.x;
  setp.eq.u32 %p3, %r5, 0;
  @%p3 mbarrier.arrive.shared::cta.b64 _, [%r1];
  @%p3 bra DONE;
  mbarrier.arrive.shared::cta.b64 _, [%r1];
DONE:
""" + wait("%r1", 0)  # fmt: skip
    assert launch(body + "st.global.u32 [%d0], 4;", grid=3)[1] == 4


@pytest.mark.parametrize("arrive", ["arrive", "arrive_drop"])
def test_an_arrival_that_does_not_complete_tells_what_was_pending_before_it(arrive: str) -> None:
    body = f"mbarrier.{arrive}.noComplete.release.cta.shared::cta.b64 %d2, [%r1], 2;"
    body += "mbarrier.pending_count.b64 %r2, %d2; st.global.u32 [%d0], %r2;"
    body += "bar.sync 0; @%p0 mbarrier.inval.shared::cta.b64 [%r1];"
    assert launch(body, count=200).tolist() == list(range(200, 200 - 128, -2))


def test_the_state_of_such_an_arrival_is_that_of_its_phase() -> None:
    body = """
  mbarrier.arrive.noComplete.shared::cta.b64 %d2, [%r1], 1;
  bar.sync 0; @%p0 mbarrier.arrive.shared::cta.b64 %d3, [%r1];
W: mbarrier.try_wait.shared::cta.b64 %p1, [%r1], %d2;
  @!%p1 bra W; st.global.u32 [%d0], 1;
"""
    assert launch(body, count=65).all()


def test_an_arrival_that_completes_although_it_must_not_is_a_fault() -> None:
    text = fault("E244", "mbarrier.arrive.noComplete.shared::cta.b64 %d2, [%r1], 1;")
    assert "with .noComplete completes phase 0" in text


def test_the_state_of_another_arrival_has_no_count() -> None:
    body = "mbarrier.arrive.shared::cta.b64 %d2, [%r1]; mbarrier.pending_count.b64 %r2, %d2;"
    assert "is not the state of an arrival with .noComplete" in fault("E248", body)


@pytest.mark.parametrize("word", ["noComplete.expect_tx", "shared::gpu"])
def test_forms_that_are_not_modelled_are_refused_before_the_run(word: str) -> None:
    fault("E201", f"mbarrier.arrive.{word}.b64 %d2, [%r1];")


# One thread writes a word and arrives; the others ask, and read it.
ASKED = """
  @%p0 st.shared.u32 [%r1 + 16], 0; bar.sync 1; setp.ne.u32 %p2, %r0, 32; @%p2 bra ASK;
  st.shared.u32 [%r1 + 16], 5;
  mbarrier.arrive.shared::cta.b64 _, [%r1];
ASK: {ask}
  ld.shared.u32 %r2, [%r1 + 16]; st.global.u32 [%d0], %r2;
"""
ONCE = "mbarrier.{wait}.parity.shared::cta.b64 {answer}, [%r1], 0;"
SCHEDULES = [("late", "max-pc"), ("early", "round-robin"), (1, "max-pc"), (2, 3)]


@pytest.mark.parametrize(("completion", "order"), SCHEDULES)
@pytest.mark.parametrize("answer", ["%p1", "_"])
@pytest.mark.parametrize("which", ["try_wait", "test_wait"])
def test_who_does_not_look_at_the_answer_has_not_waited(
    which: str, answer: str, completion: Completion, order: Any
) -> None:
    ask = ONCE.format(wait=which, answer=answer)
    fault("E232", ASKED.format(ask=ask), count=1, completion=completion, order=order)
    seen = ONCE.format(wait=which, answer="%p1") + "@!%p1 bra W;"
    whole = launch(ASKED.format(ask="W:" + seen), count=1, completion=completion, order=order)
    assert (whole == 5).all()


def test_a_wait_may_give_up_at_random() -> None:
    """Code after an answer that is false is executed under some seed, and its fault is found."""
    ask = ONCE.format(wait="try_wait", answer="%p1") + "@%p1 bra GO; bra GO; GO:"
    found = set()
    for seed in range(8):
        try:
            launch(ASKED.format(ask=ask), count=1, completion=seed, order="max-pc")
        except DeviceFault as error:
            found.add(error.code)
    assert found == {"E232"}
    launch(ASKED.format(ask=ask), count=1, order="max-pc")
