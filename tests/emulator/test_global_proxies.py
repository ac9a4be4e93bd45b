"""Tests of global memory that threads and bulk copies use by turns: proxy fences and waits."""

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, TensorMap, run
from tests.emulator.asm import faulting, kernel, map_address, wait

SCHEDULES: list[dict[str, Any]] = [
    {}, {"completion": "early", "order": "max-pc"}, {"completion": 3, "order": 1},
]  # fmt: skip
# Two warps, an array of 8 x 8 words in global memory (%d0, a word of each thread at %d1), the map
# of it (%d5), an area of shared memory (%r1), full of ones, and an mbarrier (%r2).
START = f"""
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r0, 32;
  mov.u32 %r9, %ctaid.x; setp.eq.u32 %p2, %r9, 0; and.pred %p3, %p0, %p2;
  setp.ne.u32 %p4, %r9, %nctaid.x;
  mov.u32 %r1, smem; add.u32 %r2, %r1, 4096; ld.param.u64 %d0, [a0];
  mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1; xor.b32 %r10, %r0, 32;
  mul.wide.u32 %d2, %r10, 4; add.u64 %d2, %d0, %d2;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
  shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; mov.u32 %r5, 1; st.shared.b32 [%r4], %r5;
  add.u32 %r6, %r0, 7; fence.proxy.async.shared::cta; bar.sync 0; {map_address("%d5", 1)}
"""
WRITE = "st.global.b32 [%d1], %r6;"
READ = "ld.global.b32 %r7, [%d1];"
READ_OTHER = "ld.global.b32 %r7, [%d2];"
ADD = "red.global.add.u32 [%d1], %r6;"
BAR = "bar.sync 0;"
FENCE = "fence.proxy.async.global;"
LOAD = """
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
  @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
    [%r1], [%d5, {0, 0}], [%r2];
"""
BULK_LOAD = """
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
  @%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d0], 256, [%r2];
"""
LOADED = wait("%r2", 0)
STORE = """
  @%p0 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d5, {0, 0}], [%r1];
  cp.async.bulk.commit_group;
"""
REDUCE = """
  @%p0 cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group
    [%d5, {0, 0}], [%r1];
  cp.async.bulk.commit_group;
"""
WRITTEN = "cp.async.bulk.wait_group 0;"
ALL_BUT_ONE = "cp.async.bulk.wait_group 1;"
SOURCE_READ = "cp.async.bulk.wait_group.read 0;"


def launch(*body: str, grid: int = 1, **options: Any) -> Any:
    """Run a body; return the array."""
    memory = np.zeros((8, 8), np.uint32)
    text = kernel(START + " ".join(body), ["u64", "map"], shared_bytes=4112)
    run(text, "k", (grid,), (64,), [memory, TensorMap.of(memory, (8, 8))], **options)
    return memory


fault = faulting(launch)


def unwaited(*body: str, **options: Any) -> str:
    """Return the fault of who comes too early: reported there, or when the copy is done."""
    with pytest.raises(DeviceFault) as caught:
        launch(*body, **options)
    assert caught.value.code in {"E250", "E251"}, str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("load", [LOAD, BULK_LOAD])
@pytest.mark.parametrize("write", [WRITE, ADD])
def test_a_copy_reads_what_threads_have_written_behind_a_fence(
    write: str, load: str, options: Any
) -> None:
    for fenced in (FENCE + BAR, BAR + FENCE, "fence.proxy.async;" + BAR):
        launch(write, fenced, load, LOADED, **options)
    for bare in (BAR, "fence.proxy.async.shared::cta;" + BAR):
        text = fault("E252", write, bare, load, LOADED, **options)
        assert "load reads global memory at" in text
        assert "ordinary store by warp" in text
    fault("E252", FENCE, write, BAR, load, LOADED, **options)


def test_a_fence_of_one_warp_does_not_cover_what_it_knows_nothing_of() -> None:
    fault("E252", WRITE, "@%p0", FENCE, BAR, LOAD, LOADED)
    launch(WRITE, BAR, "@%p1", FENCE, BAR, LOAD, LOADED)


def test_a_warp_needs_a_fence_after_its_own_writes() -> None:
    mine = "@%p0 " + WRITE
    fault("E252", mine, LOAD, LOADED)
    launch(mine, FENCE, LOAD, LOADED)


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("store", [STORE, REDUCE])
def test_a_copy_over_what_threads_have_written_needs_a_fence(store: str, options: Any) -> None:
    launch(WRITE, FENCE, BAR, store, WRITTEN, **options)
    text = fault("E252", WRITE, BAR, store, WRITTEN, **options)
    assert "overwrites global memory" in text
    # One that comes after the copy was issued is too late.
    fault("E252", WRITE, BAR, store, FENCE, WRITTEN, **options)


def test_memory_that_threads_have_only_read_needs_no_fence() -> None:
    launch(READ, BAR, STORE, WRITTEN)
    launch(READ, BAR, LOAD, LOADED)


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("store", [STORE, REDUCE])
@pytest.mark.parametrize("after", [READ, WRITE, BAR + READ_OTHER])
def test_what_a_copy_writes_is_there_after_a_wait(store: str, after: str, options: Any) -> None:
    launch(store, WRITTEN, BAR, after, **options)
    # What is not waited for and happens early all the same is not told from what is.
    for weak in ("", SOURCE_READ, *[ALL_BUT_ONE] * (not options)):
        text = unwaited(store, weak, BAR, after, WRITTEN, **options)
        assert "still writes it" in text
        assert "without `.read`" in text


@pytest.mark.parametrize("options", SCHEDULES)
def test_a_copy_reads_what_another_has_written_after_a_wait(options: Any) -> None:
    launch(STORE, WRITTEN, LOAD, LOADED, **options)
    fault("E251", STORE, SOURCE_READ, LOAD, LOADED, WRITTEN, **options)


@pytest.mark.parametrize("options", SCHEDULES)
def test_a_copy_over_what_another_still_writes_is_a_fault(options: Any) -> None:
    launch(STORE, WRITTEN, STORE, WRITTEN, **options)
    assert (launch(REDUCE, REDUCE, WRITTEN, **options) == 2).all()
    # Of two stores of the same no order matters.
    launch(STORE, STORE, WRITTEN, **options)
    fault("E251", STORE, REDUCE, WRITTEN, **options)


@pytest.mark.parametrize("options", SCHEDULES)
def test_a_copy_that_another_warp_has_waited_for_may_be_overwritten(options: Any) -> None:
    launch(LOAD, LOADED, WRITE, **options)


# The second block reads what the first has written, once a word tells it.
TOLD = """
  {write} {before} bar.sync 0; @%p3 st.release.gpu.global.u32 [%d0+256], 1; @%p2 bra DONE;
WAITING: ld.acquire.gpu.global.u32 %r8, [%d0+256]; setp.eq.u32 %p5, %r8, 0; @%p5 bra WAITING;
  {after} bar.sync 0;
"""


def between_blocks(
    write: str, read: str, before: str = "", after: str = "", grid: int = 2, **options: Any
) -> None:
    """Let all blocks but the first read what that has written."""
    memory = np.zeros(65, np.uint32)
    body = START + TOLD.format(write=write, before=before, after=after) + read + "DONE:"
    text = kernel(body, ["u64", "map"], shared_bytes=4112)
    array = memory[:64].reshape(8, 8)
    run(text, "k", (grid,), (64,), [memory, TensorMap.of(array, (8, 8))], **options)


broken = faulting(between_blocks)
FIRST = "@%p2 " + WRITE
FIRST_STORE = STORE.replace("%p0", "%p3")


@pytest.mark.parametrize("options", SCHEDULES)
def test_either_of_two_blocks_may_execute_the_fence(options: Any) -> None:
    read = LOAD + LOADED
    between_blocks(FIRST, read, before=FENCE, **options)
    between_blocks(FIRST, read, after=FENCE, **options)
    assert "of block (0, 0, 0)" in broken("E252", FIRST, read, **options)


@pytest.mark.parametrize("grid", [600, 1100])
def test_a_fence_of_a_block_that_has_ended_covers_what_it_has_written(grid: int) -> None:
    read = LOAD + LOADED
    between_blocks(FIRST, read, before=FENCE, grid=grid)
    last = "setp.lt.u32 %p6, %r9, 599; @%p6 bra DONE;"
    text = broken("E252", FIRST, last + read, grid=600)
    assert "of block (0, 0, 0)" in text


def test_what_a_copy_wrote_is_seen_by_other_blocks_without_a_fence() -> None:
    for read, code in ((READ, "E250"), (LOAD + LOADED, "E251")):
        between_blocks(FIRST_STORE + WRITTEN, read)
        broken(code, FIRST_STORE + SOURCE_READ, read, completion="early")
