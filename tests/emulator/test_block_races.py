"""Tests of races in global memory: between blocks, in a block, and of asynchronous copies."""

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import TensorMap, run
from tests.emulator.asm import faulting, kernel, map_address, wait

START = """
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r9, smem;
  setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r1, 0; and.pred %p2, %p0, %p1;
  setp.lt.u32 %p3, %r0, 32;
  mad.lo.u32 %r3, %r1, %r2, %r0; add.u32 %r4, %r3, 1;
  ld.param.u64 %d0, [a0]; mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1;
  mul.wide.u32 %d2, %r3, 4; add.u64 %d2, %d0, %d2;
"""
# Words of the block itself, and the words of block 0 that all blocks reach.
WRITE_OWN = "st.global.u32 [%d2], %r4;"
WRITE_FIRST = "@%p1 st.global.u32 [%d2], %r4;"
READ_FIRST = "ld.global.u32 %r5, [%d1];"
BAR = "bar.sync 0;"
SCHEDULES: list[dict[str, Any]] = [
    {}, {"order": "max-pc", "completion": "early"}, {"order": 3, "completion": 5},
]  # fmt: skip


def launch(body: str, *, grid: int = 3, threads: int = 64, words: int = 0, **options: Any) -> Any:
    """Run a body; return the memory that all of its blocks share."""
    out = np.zeros(max(grid * threads + 64, words), np.uint32)
    text = kernel(START + body, ["u64"], shared_bytes=1024)
    run(text, "k", (grid,), (threads,), [out], **options)
    return out


fault = faulting(launch)


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("body", [WRITE_FIRST + READ_FIRST, READ_FIRST + WRITE_FIRST])
def test_reading_what_another_block_writes_is_a_race(body: str, options: Any) -> None:
    text = fault("E232", body, **options)
    assert "of block (" in text
    assert "PTX line" in text
    assert "blocks of a launch run in any order" in text


@pytest.mark.parametrize("options", SCHEDULES)
def test_blocks_may_read_what_they_wrote_themselves(options: Any) -> None:
    read = "ld.global.u32 %r5, [%d2]; add.u32 %r5, %r5, %r5; st.global.u32 [%d2], %r5;"
    assert launch(WRITE_OWN + read, **options)[5] == 12


def test_blocks_that_do_not_run_at_the_same_time_race_too() -> None:
    body = "setp.eq.u32 %p4, %r1, 2999; @%p4 st.global.u32 [%d0], %r4; @%p0 ld.global.u32 %r5, "
    assert "reads it" in fault("E232", body + "[%d0];", grid=3000, threads=32)
    first = "@%p2 st.global.u32 [%d0], %r4; setp.eq.u32 %p4, %r1, 2999; @%p4 ld.global.u32 %r5, "
    assert "block (0, 0, 0) writes it" in fault("E232", first + "[%d0];", grid=3000, threads=32)


def test_a_reader_is_not_forgotten_for_those_that_come_after_it() -> None:
    again = BAR + "@%p1 ld.global.u32 %r6, [%d1]; @%p1 ld.global.u32 %r7, [%d1];"
    text = fault("E232", WRITE_OWN + READ_FIRST.replace("ld", "@!%p1 ld") + again)
    assert "warp" in text
    fault("E232", READ_FIRST + again + WRITE_FIRST)


def test_storing_what_is_there_already_is_no_race() -> None:
    launch("mov.u32 %r6, 0; st.global.u32 [%d1], %r6; ld.global.u32 %r5, [%d1];")
    launch("mov.u32 %r6, 7; st.global.u32 [%d1], %r6;")


@pytest.mark.parametrize("options", SCHEDULES)
def test_two_blocks_that_store_different_values_in_one_place_race(options: Any) -> None:
    assert "writes it" in fault("E232", "st.global.u32 [%d1], %r4;", **options)
    late = f"@%p1 bra SKIP; {BAR} {BAR} SKIP: @%p0 st.global.u32 [%d0], %r4;"
    fault("E232", late, **options)


@pytest.mark.parametrize("between", ["", BAR])
def test_warps_of_a_block_are_ordered_by_its_barriers(between: str) -> None:
    body = WRITE_OWN + between + "xor.b32 %r6, %r3, 32; mul.wide.u32 %d3, %r6, 4;"
    body += "add.u64 %d3, %d0, %d3; ld.global.u32 %r5, [%d3];"
    if between:
        launch(body)
    else:
        assert "put a barrier between them" in fault("E232", body + BAR)
        fault("E232", body, strict=True)
        # A program without any barrier does not mean to order its warps.
        launch(body)


CLUSTER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


@pytest.mark.parametrize("between", ["", CLUSTER])
def test_blocks_of_a_cluster_are_ordered_by_its_barriers(between: str) -> None:
    other = "xor.b32 %r6, %r3, 64; mul.wide.u32 %d3, %r6, 4; add.u64 %d3, %d0, %d3;"
    body = WRITE_OWN + between + other + "ld.global.u32 %r5, [%d3];" + CLUSTER
    options: dict[str, Any] = {"grid": 4, "cluster": (2,)}
    if between:
        launch(body, **options)
        far = other.replace("64;", "128;")
        fault("E232", body.replace(other, far), **options)
    else:
        fault("E232", body, **options)


@pytest.mark.parametrize(("size", "bits"), [(1, 8), (2, 16)])
def test_neighbours_in_a_word_may_belong_to_two_blocks(size: int, bits: int) -> None:
    place = f"mul.wide.u32 %d3, %r3, {size}; add.u64 %d3, %d0, %d3; cvt.u16.u32 %h1, %r4;"
    move = f"st.global.b{bits} [%d3], %h1; ld.global.b{bits} %h2, [%d3];"
    launch(place + move, threads=33)
    other = place + move.replace("ld", "add.u64 %d3, %d3, {}; ld").format(size)
    fault("E232", other, threads=33)


def test_checks_can_be_left_out() -> None:
    launch(WRITE_FIRST + READ_FIRST, check=False)


def test_memory_that_may_only_be_read_is_not_kept_in_mind() -> None:
    source = np.arange(64, dtype=np.uint32)
    source.flags.writeable = False
    run(kernel(START + READ_FIRST, ["u64"], shared_bytes=64), "k", (3,), (64,), [source])


# Copies: %d6 and %d7 are maps of 32 x 32 words, which all blocks reach.
MAPS = map_address("%d6", 1) + f"""
  add.u32 %r10, %r9, 4096; setp.eq.u32 %p4, %r1, 1; and.pred %p5, %p0, %p4;
  @%p0 mbarrier.init.shared::cta.b64 [%r10], 1; fence.mbarrier_init.release.cluster;
  shl.b32 %r11, %r0, 6; add.u32 %r12, %r9, %r11;
  st.shared.u32 [%r12], %r4; fence.proxy.async; {BAR}
"""  # fmt: skip
LOAD = """
  @%p5 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 4096;
  @%p5 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
    [%r9], [%d6, {0, 0}], [%r10];
  @!%p4 bra DONE;
""" + wait("%r10", 0) + "DONE:"  # fmt: skip
STORE = """
  @%p2 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d6, {0, 0}], [%r9];
  @%p2 cp.async.bulk.commit_group; @%p2 cp.async.bulk.wait_group 0;
"""
ZERO = "mov.u32 %r6, 0; st.shared.u32 [%r12], %r6; fence.proxy.async; bar.sync 0;"
ADD = "@%p0 cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
ADD += " [%d6, {0, 0}], [%r9];"
ADD += "@%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0;"


def copying(body: str, *, grid: int = 2, atomics: bool = False, **options: Any) -> Any:
    """Run copies of one array of 32 x 32 words by all blocks."""
    memory = np.zeros((32, 32), np.uint32)
    extra = "@%p0 red.global.add.u32 [%d0+252], 1;" if atomics else ""
    ends = "st.shared.u32 [%r12], %r4;" if atomics else ""
    text = START + MAPS + _filled() + body + extra + ends
    text = kernel(text, ["u64", "map"], shared_bytes=4104)
    arguments = [np.zeros(256, np.uint32), TensorMap.of(memory, (32, 32))]
    run(text, "k", (grid,), (64,), arguments, **options)
    return memory


def _filled() -> str:
    """Return code that writes all of the 4096 bytes that are copied."""
    words = "".join(f"st.shared.u32 [%r12+{4 * i}], %r4;" for i in range(16))
    return words + "fence.proxy.async; bar.sync 0;"


copy_fault = faulting(copying)


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("atomics", [False, True])
def test_a_copy_of_what_another_block_writes_is_a_race(atomics: bool, options: Any) -> None:
    text = copy_fault("E232", STORE + LOAD, atomics=atomics, **options)
    assert "global memory at" in text


@pytest.mark.parametrize("options", SCHEDULES)
def test_reductions_of_several_blocks_add_up(options: Any) -> None:
    assert copying(ADD, grid=3, **options)[0, 0] == 1 + 65 + 129


@pytest.mark.parametrize("options", SCHEDULES)
def test_reading_what_blocks_reduce_is_a_race(options: Any) -> None:
    copy_fault("E232", LOAD + ADD.replace("@%p0", "@%p2"), **options)
    copy_fault("E232", STORE + ADD.replace("@%p0", "@%p5"), **options)


# The last block to come adds up what all have written.
LAST = """
  st.global.u32 [%d2], 1;
  {before} bar.sync 0;
  @%p0 atom.global.add.u32 %r5, [%d0+{counter}], 1;
  @%p0 st.shared.u32 [%r9], %r5; bar.sync 0; ld.shared.u32 %r5, [%r9];
  setp.ne.u32 %p4, %r5, {blocks}; @%p4 exit;
  {after} mov.u32 %r6, 0; mov.u32 %r7, 0;
NEXT:
  mad.lo.u32 %r8, %r7, %r2, %r0; mul.wide.u32 %d3, %r8, 4; add.u64 %d3, %d0, %d3;
  ld.global.u32 %r8, [%d3]; add.u32 %r6, %r6, %r8; add.u32 %r7, %r7, 1;
  setp.le.u32 %p4, %r7, %r5; @%p4 bra NEXT;
  bar.sync 0; st.global.u32 [%d1], %r6;
"""
MEMBAR = "membar.gl;"


def last_block(before: str, after: str, grid: int, threads: int, **options: Any) -> Any:
    """Let the last block write the number of blocks in its place of each thread."""
    counter = 4 * grid * threads
    body = LAST.format(before=before, after=after, counter=counter, blocks=grid - 1)
    return launch(body, grid=grid, threads=threads, **options)


# A few blocks; more warps than clocks of their own are made for; more blocks than run at a time.
SIZES = [(12, 64), (68, 992), (150, 128)]


@pytest.mark.parametrize(
    ("grid", "threads", "options"),
    [(*SIZES[0], options) for options in SCHEDULES] + [(*size, {}) for size in SIZES[1:]],
)
def test_the_last_block_may_read_what_all_have_released(
    grid: int, threads: int, options: Any
) -> None:
    out = last_block(MEMBAR, MEMBAR, grid, threads, **options)
    assert (out[:threads] == grid).all()


@pytest.mark.parametrize(("before", "after"), [("", MEMBAR), (MEMBAR, "")])
@pytest.mark.parametrize(("grid", "threads"), SIZES)
def test_the_last_block_needs_fences(before: str, after: str, grid: int, threads: int) -> None:
    fault_of_last = faulting(last_block)
    assert "st.release and ld.acquire" in fault_of_last("E232", before, after, grid, threads)


# The last block reads what the first has written, which ended before it began: of blocks of one
# warp 1024 run at a time.
LATE = """
  @%p2 st.global.u32 [%d0], %r4;
  {before} @%p2 {release} [%d0+{flag}], 1;
  setp.eq.u32 %p4, %r1, LAST; @!%p4 bra DONE;
WAIT:
  {acquire} %r5, [%d0+{flag}]; setp.eq.u32 %p5, %r5, 0; @%p5 bra WAIT;
  {after} ld.global.u32 %r6, [%d0]; DONE:
"""
STRONG = ("st.release.gpu.global.u32", "ld.acquire.gpu.global.u32")
RELAXED = ("st.relaxed.gpu.global.u32", "ld.relaxed.gpu.global.u32")


def late(words: tuple[str, str], before: str = "", after: str = "", grid: int = 1200) -> Any:
    """Let the last block read what the first has written."""
    release, acquire = words
    body = LATE.format(
        release=release, acquire=acquire, before=before, after=after, flag=4 * 32 * grid
    ).replace("LAST", str(grid - 1))
    return launch(body, grid=grid, threads=32)


late_fault = faulting(late)


@pytest.mark.parametrize("grid", [1500, 3000])
def test_blocks_of_another_batch_are_ordered_by_releases_and_acquires(grid: int) -> None:
    late(STRONG, grid=grid)
    late(RELAXED, MEMBAR, MEMBAR, grid=grid)


@pytest.mark.parametrize(
    ("words", "before", "after"),
    [
        (RELAXED, MEMBAR, ""), (RELAXED, "", MEMBAR), ((STRONG[0], RELAXED[1]), "", ""),
        ((RELAXED[0], STRONG[1]), "", ""), (("st.release.cluster.global.u32", STRONG[1]), "", ""),
        (RELAXED, "membar.cta;", MEMBAR),
    ],
)  # fmt: skip
def test_what_a_batch_before_has_not_released_is_a_race(
    words: tuple[str, str], before: str, after: str
) -> None:
    assert "block (0, 0, 0) writes it" in late_fault("E232", words, before, after)


# A warp of each block: every lane of the first stores a word, and one lane tells the other block.
ONE_LANE = """
  @!%p1 bra READER; st.global.u32 [%d1+256], %r4; {between}
  @%p0 {tell}; bra END;
READER:
  ld.acquire.gpu.global.u32 %r5, [%d0]; setp.eq.u32 %p4, %r5, 0; @%p4 bra READER;
  bar.warp.sync 0xffffffff; ld.global.u32 %r6, [%d1+256]; st.global.u32 [%d1+512], %r6;
END:
"""
RELEASE = "st.release.gpu.global.u32 [%d0], 1"
TELLS = [RELEASE, "fence.acq_rel.gpu; @%p0 st.relaxed.gpu.global.u32 [%d0], 1"]


@pytest.mark.parametrize("tell", [*TELLS, "atom.release.gpu.global.add.u32 %r7, [%d0], 1"])
@pytest.mark.parametrize("options", SCHEDULES)
def test_one_lane_tells_what_the_others_did_before_they_met(tell: str, options: Any) -> None:
    out = launch(
        ONE_LANE.format(between="bar.warp.sync 0xffffffff;", tell=tell),
        grid=2, threads=32, words=256, **options,
    )  # fmt: skip
    assert out[128:160].tolist() == list(range(1, 33))
    text = fault(
        "E232", ONE_LANE.format(between="", tell=tell), grid=2, threads=32, words=256, **options
    )
    assert "writes it" in text


def test_an_arrival_of_one_lane_tells_of_global_memory_what_the_others_did_before() -> None:
    body = f"""
      @%p0 mbarrier.init.shared::cta.b64 [%r9], 1; fence.mbarrier_init.release.cluster; {BAR}
      @!%p3 bra READ; st.global.u32 [%d2], %r4; MEET
      @%p0 mbarrier.arrive.shared::cta.b64 _, [%r9]; bra DONE;
      READ: {wait("%r9", 0)} xor.b32 %r6, %r3, 32; mul.wide.u32 %d3, %r6, 4;
      add.u64 %d3, %d0, %d3; ld.global.u32 %r5, [%d3]; DONE:
    """
    launch(body.replace("MEET", "bar.warp.sync 0xffffffff;"), grid=1)
    fault("E232", body.replace("MEET", ""), grid=1)


NARROW = [
    "@%p0 red.relaxed.cta.global.add.u32 [%d0], 1;",
    "@%p0 atom.acq_rel.cta.global.add.u32 %r7, [%d0], 1;",
    "@%p2 st.relaxed.cta.global.u32 [%d0], 1; @!%p1 ld.relaxed.gpu.global.u32 %r7, [%d0];",
    "@%p2 st.relaxed.gpu.global.u32 [%d0], 1; @!%p1 ld.relaxed.cta.global.u32 %r7, [%d0];",
]


@pytest.mark.parametrize("body", NARROW)
@pytest.mark.parametrize("options", SCHEDULES)
def test_strong_accesses_need_a_scope_that_has_both_threads(body: str, options: Any) -> None:
    assert "of a scope that has both threads" in fault("E232", body, **options)
    for wide in ("gpu", "sys"):
        launch(body.replace(".cta", f".{wide}"), **options)
    # One block, and one cluster, are narrower scopes.
    launch(body, grid=1, **options)
    near = body.replace(".cta", ".cluster")
    launch(near, grid=2, cluster=(2,), **options)
    fault("E232", near, grid=4, cluster=(2,), **options)


def test_atomics_of_a_block_may_have_its_scope_where_each_block_has_its_own_word() -> None:
    own = "@%p0 red.relaxed.cta.global.add.u32 [%d2], 1; red.gpu.global.add.u32 [%d0], 1;"
    launch("add.u64 %d2, %d2, 64;" + own)
