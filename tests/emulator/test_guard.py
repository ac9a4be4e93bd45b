"""Tests of the hazards between ordinary and asynchronous accesses of shared memory."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from astdsl.emulator import DeviceFault, run
from astdsl.emulator.asynchronous import Completion
from astdsl.emulator.formats.tensormap import TensorMap
from tests.emulator.asm import faulting, kernel, map_address, wait

# 64 threads; shared memory: two slots of 1 KiB at 0 and 1024, two barriers behind them.
BEGIN = f"""
  mov.u32 %r0, %tid.x;
  setp.eq.u32 %p0, %r0, 0;
  mov.u32 %r1, smem;
  add.u32 %r2, %r1, 2048;
  shl.b32 %r3, %r0, 4;
  add.u32 %r4, %r1, %r3;
  {map_address("%d5", 0)}
  {map_address("%d6", 1)}
  mov.u32 %r20, 0;
  mov.u32 %r21, 0;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p0 mbarrier.init.shared::cta.b64 [%r2 + 8], 64;
  fence.mbarrier_init.release.cluster;
  bar.sync 0;
"""
LOAD = """
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;
  @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
       [%r1], [%d5, {%r20, %r21}], [%r2];
"""
STORE = """
  @%p0 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d6, {%r20, %r21}], [%r1];
  @%p0 cp.async.bulk.commit_group;
"""
WAIT_STORE = "@%p0 cp.async.bulk.wait_group 0;"
READ = "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r4];"
WRITE = "st.shared.v4.u32 [%r4], {%r0, %r0, %r0, %r0};"
FENCE = "fence.proxy.async.shared::cta;"
BAR = "bar.sync 0;"


def launch(
    *parts: str, completion: Completion = "late", grid: int = 1
) -> tuple[NDArray[Any], NDArray[Any]]:
    source = np.arange(512, dtype=np.uint16).reshape(32, 16)
    target = np.zeros((32, 16), np.uint16)
    ptx = kernel(BEGIN + "\n".join(parts), ["map", "map"], shared_bytes=2048 + 64)
    maps = [TensorMap.of(array, (32, 16)) for array in (source, target)]
    run(ptx, "k", (grid,), (64,), maps, completion=completion)
    return source, target


fault = faulting(launch)


@pytest.mark.parametrize("completion", ["late", "early", 1, 2, 3])
@pytest.mark.parametrize("grid", [1, 3])
def test_a_load_changed_and_stored_is_clean(completion: Completion, grid: int) -> None:
    parts = (LOAD, wait("%r2", 0), READ, BAR, WRITE, FENCE, BAR, STORE, WAIT_STORE)
    _, target = launch(*parts, completion=completion, grid=grid)
    expected = np.repeat(np.arange(64, dtype=np.uint32), 4).view(np.uint16).reshape(32, 16)
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("completion", ["late", "early", 4])
def test_a_load_stored_without_a_touch_needs_no_fence(completion: Completion) -> None:
    source, target = launch(LOAD, wait("%r2", 0), STORE, WAIT_STORE, completion=completion)
    assert np.array_equal(source, target)


def test_a_fence_by_the_issuer_after_the_barrier_covers_the_others() -> None:
    launch(WRITE, BAR, "@%p0 fence.proxy.async.shared::cta;", STORE, WAIT_STORE)


def test_a_fence_by_the_issuer_before_the_barrier_covers_its_own_warp_only() -> None:
    text = fault("E252", WRITE, "@%p0 fence.proxy.async.shared::cta;", BAR, STORE, WAIT_STORE)
    assert "at 0x200" in text


def test_a_store_after_the_fence_is_not_covered() -> None:
    fault("E252", FENCE, WRITE, BAR, STORE, WAIT_STORE)


def test_a_refill_of_a_slot_that_was_only_read_needs_no_fence() -> None:
    again = LOAD + wait("%r2", 1, "b")
    launch(LOAD, wait("%r2", 0), READ, BAR, again)


def test_a_refill_of_a_slot_that_was_written_needs_a_fence() -> None:
    again = LOAD + wait("%r2", 1, "b")
    fault("E252", LOAD, wait("%r2", 0), WRITE, BAR, again)
    launch(LOAD, wait("%r2", 0), WRITE, FENCE, BAR, again)


def test_a_refill_while_the_store_still_reads_the_slot_is_a_fault() -> None:
    text = fault("E251", LOAD, wait("%r2", 0), STORE, LOAD, wait("%r2", 1, "b"), WAIT_STORE)
    assert "TMA load overwrites shared memory at 0x0 while the TMA store (of warp 0 of" in text


def test_a_store_of_a_slot_still_being_filled_is_a_fault() -> None:
    fault("E251", LOAD, STORE, wait("%r2", 0), WAIT_STORE)


def test_a_store_of_memory_that_nothing_has_written_is_a_fault() -> None:
    fault("E231", STORE, WAIT_STORE)


def test_writing_into_a_slot_being_filled_is_a_fault() -> None:
    fault("E250", LOAD, WRITE, wait("%r2", 0))


def test_a_neighbouring_slot_may_be_used_meanwhile() -> None:
    other = "st.shared.v4.u32 [%r4 + 1024], {%r0, %r0, %r0, %r0};"
    launch(LOAD, other, wait("%r2", 0))


def test_ending_with_a_load_in_flight_is_a_fault() -> None:
    text = fault("E256", LOAD)
    assert "the block ends while the TMA load (of warp 0 of block (0, 0, 0), PTX line" in text


def test_ending_with_an_unread_store_is_a_fault() -> None:
    fault("E256", WRITE, FENCE, BAR, STORE)


def test_ending_once_the_source_is_read_is_clean() -> None:
    read = "@%p0 cp.async.bulk.wait_group.read 0;"
    _, target = launch(WRITE, FENCE, BAR, STORE, read)
    assert target[31, 15] == 0
    assert target[31, 14] == 63


def test_an_unwritten_output_stays_unwritten_through_a_load() -> None:
    source = np.zeros((32, 16), np.uint16)
    body = BEGIN + LOAD + wait("%r2", 0) + STORE + WAIT_STORE
    ptx = kernel(body, ["map", "map"], shared_bytes=2048 + 64)
    maps = [TensorMap.of(source, (32, 16)), TensorMap.of(np.zeros_like(source), (32, 16))]
    with pytest.raises(DeviceFault, match="that nothing has written"):
        run(ptx, "k", (1,), (64,), maps, uninitialised=[source])


def test_checks_can_be_left_out() -> None:
    ptx = kernel(BEGIN + WRITE + BAR + STORE + WAIT_STORE, ["map", "map"], shared_bytes=2112)
    target = np.zeros((32, 16), np.uint16)
    maps = [TensorMap.of(target, (32, 16))] * 2
    run(ptx, "k", (1,), (64,), maps, check=False)
    assert target[31, 14] == 63
