"""Tests of races: which orders of accesses are reported, and which are not."""

import re

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from astdsl.emulator.asynchronous import Completion
from tests.emulator.asm import kernel, wait
from tests.emulator.test_guard import (
    BAR,
    FENCE,
    LOAD,
    READ,
    STORE,
    WAIT_STORE,
    WRITE,
    fault,
    launch,
)
from tests.emulator.test_tcgen05 import BITS, COMMIT, END, product, store, tiles
from tests.emulator.test_tcgen05 import fault as tensor_fault
from tests.emulator.test_tcgen05 import launch as tensor_launch

# Thread t touches what thread 63 - t wrote.
MIRROR = "xor.b32 %r5, %r3, 1008; add.u32 %r5, %r1, %r5;"
READ_OTHER = MIRROR + "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r5];"
WRITE_OTHER = MIRROR + "st.shared.v4.u32 [%r5], {%r0, %r0, %r0, %r0};"
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r2 + 8];"
WAIT_ALL = wait("%r2 + 8", 0, "all")


def test_reading_what_another_warp_wrote_without_a_barrier_is_a_race() -> None:
    text = fault("E232", WRITE, READ_OTHER)
    assert "writes it" in text
    assert "no barrier orders that" in text


def test_overwriting_what_another_warp_read_without_a_barrier_is_a_race() -> None:
    assert "reads it" in fault("E232", WRITE, BAR, READ, WRITE_OTHER)


@pytest.mark.parametrize("order", [BAR, ARRIVE + WAIT_ALL, "bar.sync 3, 64;"])
def test_a_barrier_of_any_kind_orders_them(order: str) -> None:
    launch(WRITE, order, READ_OTHER)


def test_a_barrier_before_the_write_does_not_order_it() -> None:
    fault("E232", BAR, WRITE, READ_OTHER)


def test_one_warp_may_use_what_it_wrote_itself() -> None:
    launch(WRITE, READ, WRITE, READ)


def test_arriving_without_waiting_orders_nothing() -> None:
    fault("E232", WRITE, "bar.arrive 3, 128;", READ_OTHER)


# Each warp counts itself in at a word of shared memory, and waits until both have.
COUNTER = "@%p0 st.shared.u32 [%r1 + 1024], 0; bar.sync 0;"
COUNT = """
  bar.warp.sync 0xffffffff; and.b32 %r20, %r0, 31; setp.eq.u32 %p3, %r20, 0;
  {before} @%p3 red.{red}.shared.add.u32 [%r1 + 1024], 1;
SPIN:
  ld.{ld}.shared.u32 %r14, [%r1 + 1024]; setp.lt.u32 %p4, %r14, 2; @%p4 bra SPIN; {after}
"""
FENCES = {"before": "fence.acq_rel.cta;", "after": "fence.acq_rel.cta;"}
NO_FENCES = {"before": "", "after": ""}


@pytest.mark.parametrize(
    ("red", "ld", "fences"),
    [
        ("release.cta", "acquire.cta", NO_FENCES),
        ("relaxed.cta", "relaxed.cta", FENCES),
        ("relaxed.cta", "volatile", {"before": "membar.cta;", "after": "membar.gl;"}),
        ("relaxed.cta", "acquire.cta", {"before": "fence.sc.gpu;", "after": ""}),
    ],
)
def test_a_word_with_release_and_acquire_orders_them(
    red: str, ld: str, fences: dict[str, str]
) -> None:
    launch(COUNTER, WRITE, COUNT.format(red=red, ld=ld, **fences), READ_OTHER)


@pytest.mark.parametrize(
    ("red", "ld", "fences"),
    [
        ("relaxed.cta", "acquire.cta", NO_FENCES),
        ("release.cta", "relaxed.cta", NO_FENCES),
        ("relaxed.cta", "relaxed.cta", {"before": "", "after": "fence.acq_rel.cta;"}),
        ("relaxed.cta", "relaxed.cta", {"before": "fence.acq_rel.cta;", "after": ""}),
    ],
)
def test_a_word_without_one_of_them_orders_nothing(
    red: str, ld: str, fences: dict[str, str]
) -> None:
    fault("E232", COUNTER, WRITE, COUNT.format(red=red, ld=ld, **fences), READ_OTHER)


def test_atomics_do_not_race_with_each_other_but_with_what_is_weak() -> None:
    count = "red.shared.add.u32 [%r1 + 1024], 1;"
    launch(COUNTER, count, BAR, "ld.shared.u32 %r14, [%r1 + 1024];")
    fault("E232", COUNTER, count, "ld.shared.u32 %r14, [%r1 + 1024];")
    fault("E232", "@%p0 st.shared.u32 [%r1 + 1024], 0;", count)


# Lanes of a warp swap words with their neighbours.
SWAP = "xor.b32 %r5, %r3, 16; add.u32 %r5, %r1, %r5;"
READ_NEIGHBOUR = SWAP + "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r5];"
TOGETHER = "bar.warp.sync 0xffffffff;"


@pytest.mark.parametrize(
    ("first", "second"),
    [(TOGETHER, TOGETHER), (BAR, BAR), (ARRIVE + WAIT_ALL, ARRIVE + wait("%r2 + 8", 1, "again"))],
)
def test_lanes_of_a_warp_are_ordered_by_what_brings_them_together(first: str, second: str) -> None:
    launch(WRITE, first, READ_NEIGHBOUR, second, WRITE)


def test_lanes_of_a_warp_race_with_each_other() -> None:
    text = fault("E232", WRITE, READ_NEIGHBOUR)
    assert re.search(r"lane \d+ of warp 0 of block \(0, 0, 0\) writes it", text)
    text = fault("E232", WRITE, TOGETHER, READ_NEIGHBOUR, WRITE)
    assert re.search(r"lane \d+ of warp 0 of block \(0, 0, 0\) reads it", text)
    assert "bar.warp.sync" in text


def test_replicated_values_may_be_stored_by_several_warps() -> None:
    launch("st.shared.u32 [%r1], 5;", BAR, "ld.shared.u32 %r10, [%r1];")


def test_different_values_may_not_be_stored_by_several_warps() -> None:
    text = fault("E232", "st.shared.u32 [%r1], %r0;")
    assert re.search(r"warp \d of block \(0, 0, 0\) writes another value there", text)
    launch("setp.lt.u32 %p2, %r0, 32; @%p2 st.shared.u32 [%r1], %r0;")


def test_overwriting_what_another_warp_wrote_without_a_barrier_is_a_race() -> None:
    assert "writes it" in fault("E232", WRITE, WRITE_OTHER)
    launch(WRITE, BAR, WRITE_OTHER)
    fault("E232", WRITE, MIRROR + "st.shared.u8 [%r5 + 1], 7;")
    # What is there already may be stored again: 64 threads write zeros over each other's.
    zeros = "mov.u32 %r14, 0; st.shared.v4.u32 [%r4], {%r14, %r14, %r14, %r14};"
    launch(zeros, MIRROR + "st.shared.u8 [%r5 + 1], 0;")


def test_waiting_for_the_stores_of_another_warp_is_no_wait() -> None:
    stored = (WRITE, FENCE, BAR, STORE, "cp.async.bulk.wait_group.read 0;")
    text = fault("E233", *stored, WRITE, WAIT_STORE)
    assert "has not waited for the TMA store that read it" in text
    launch(*stored, BAR, WRITE, WAIT_STORE)


@pytest.mark.parametrize("completion", ["late", "early"])
def test_a_store_of_what_other_warps_wrote_needs_a_barrier(completion: Completion) -> None:
    text = fault("E234", WRITE, FENCE, STORE, WAIT_STORE, completion=completion)
    assert "of another warp that no barrier orders before it" in text


@pytest.mark.parametrize("completion", ["late", "early"])
def test_a_refill_of_what_other_warps_read_needs_a_barrier(completion: Completion) -> None:
    again = LOAD + wait("%r2", 1, "b")
    fault("E234", LOAD, wait("%r2", 0), READ, again, completion=completion)


def test_reading_a_load_that_has_completed_unseen_is_reported() -> None:
    text = fault("E233", LOAD, READ, completion="early")
    assert "has not waited for the TMA load that wrote it (of warp 0 of block (0," in text


def test_a_wait_by_one_warp_and_a_barrier_is_enough() -> None:
    only = "@!%p0 bra JOIN;" + wait("%r2", 0) + "JOIN:"
    launch(LOAD, only, BAR, READ)


def test_a_wait_by_one_warp_alone_is_not_enough() -> None:
    only = "setp.ge.u32 %p2, %r0, 32; @%p2 bra JOIN;" + wait("%r2", 0) + "JOIN:"
    with pytest.raises(DeviceFault) as caught:
        launch(LOAD, only, READ, completion="early")
    assert caught.value.code == "E233"


def test_using_a_barrier_before_its_init_is_seen_is_a_race() -> None:
    init = "@%p0 mbarrier.init.shared::cta.b64 [%r2 + 16], 1;"
    late = "mbarrier.test_wait.parity.shared::cta.b64 %p9, [%r2 + 16], 1;"
    fault("E232", init, late)
    launch(init, BAR, late)


PLAIN = """
  mov.u32 %r0, %tid.x; mov.u32 %r1, smem; shl.b32 %r3, %r0, 2;
  add.u32 %r4, %r1, %r3; st.shared.u32 [%r4], %r0;
  {between}
  xor.b32 %r5, %r3, 252; add.u32 %r5, %r1, %r5; ld.shared.u32 %r6, [%r5];
"""


def test_programs_without_asynchronous_work_are_checked_too() -> None:
    between, without = (PLAIN.format(between=code) for code in (BAR, ""))
    run(kernel(between, shared_bytes=256), "k", (2,), (64,), [])
    with pytest.raises(DeviceFault) as caught:
        run(kernel(without, shared_bytes=256), "k", (2,), (64,), [])
    assert caught.value.code == "E232"


# Tensor memory.


def test_a_product_on_what_other_warps_stored_needs_a_barrier() -> None:
    image, code, _ = tiles()
    code += "mov.u32 %r20, 0;" + store(32, "%r20")
    finish = COMMIT + wait("%r2", 0)
    text = tensor_fault("E277", code + product(BITS, "f16", keep=1) + finish, image=image)
    assert "nothing orders that" in text
    tensor_launch(code + "bar.sync 0;" + product(BITS, "f16", keep=1) + finish, image)


def test_freeing_what_other_warps_still_load_needs_a_barrier() -> None:
    access = store(4) + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r200}, [%r12];"
    early = END.replace("bar.sync 0;", "")
    waited = "tcgen05.wait::ld.sync.aligned;"
    text = tensor_fault("E276", access)
    assert re.search(r"freed while tcgen05.ld \(of .*\) has not been waited for", text)
    assert "dealloc frees" in tensor_fault("E277", access + waited, end=early)
    tensor_launch(access + waited)


def test_loading_a_product_that_has_completed_unseen_is_reported() -> None:
    image, code, _ = tiles()
    load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r200}, [%r12]; tcgen05.wait::ld.sync.aligned;"
    with pytest.raises(DeviceFault) as caught:
        tensor_launch(code + product(BITS, "f16") + load, image, completion="early")
    assert caught.value.code == "E277"
    assert isinstance(image, np.ndarray)


def test_a_barrier_whose_phase_before_may_not_be_over_is_reported() -> None:
    half = "setp.lt.u32 %p3, %r0, 32;"
    text = fault("E213", half, "@%p3 bar.sync 1, 32; @!%p3 bar.sync 1, 32;")
    assert "it may count in that one" in text
    launch(half, "@%p3 bar.sync 1, 32; bar.sync 0; @!%p3 bar.sync 1, 32;")
    launch(half, "@%p3 bar.sync 1, 32; @!%p3 bar.sync 2, 32;")


@pytest.mark.parametrize(("size", "bits"), [(1, 8), (2, 16)])
def test_accesses_narrower_than_a_word_race_too(size: int, bits: int) -> None:
    place = f"mul.lo.u32 %r5, %r0, {size}; add.u32 %r5, %r1, %r5; mov.b16 %h1, 1;"
    mirror = f"xor.b32 %r6, %r0, 63; mul.lo.u32 %r6, %r6, {size}; add.u32 %r6, %r1, %r6;"
    write, read = f"st.shared.b{bits} [%r5], %h1;", f"ld.shared.b{bits} %h2, [%r6];"
    launch(place + mirror, write, BAR, read)
    fault("E232", place + mirror, write, read)
    fault("E232", place + mirror, write, BAR, read, write)
