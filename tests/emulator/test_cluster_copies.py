"""Copies and barriers that reach other blocks of a cluster."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from astdsl.emulator import TensorMap, run
from tests.emulator.asm import faulting, kernel, map_address, wait

COMPLETIONS = ["late", "early", 11]
BYTES = 4096
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
# Makes the barrier behind the data and lets the cluster see it; %r9 is the rank.
BEGIN = f"""
  mov.u32 %r0, %tid.x;
  setp.eq.u32 %p0, %r0, 0;
  mov.u32 %r1, smem;
  add.u32 %r2, %r1, {BYTES};
  mov.u32 %r9, %cluster_ctarank;
  setp.eq.u32 %p2, %r9, 0;
  @%p0 mbarrier.init.shared::cta.b64 [%r2], {{count}};
  @%p0 fence.mbarrier_init.release.cluster;
  {SYNC}
"""
# Every block copies {n} bytes of its shared memory to its part of the first argument.
OUT = f"""
  ld.param.u64 %d1, [a0];
  mov.u32 %r8, %ctaid.x;
  mul.wide.u32 %d2, %r8, {BYTES};
  add.u64 %d1, %d1, %d2;
  mul.wide.u32 %d2, %r0, 4;
  add.u64 %d1, %d1, %d2;
  shl.b32 %r3, %r0, 2;
  add.u32 %r4, %r1, %r3;
LOOP:
  setp.ge.u32 %p1, %r3, {{n}};
  @%p1 bra DONE;
  ld.shared.u32 %r6, [%r4];
  st.global.u32 [%d1], %r6;
  add.u32 %r4, %r4, 128;
  add.u64 %d1, %d1, 128;
  add.u32 %r3, %r3, 128;
  bra LOOP;
DONE:
  {SYNC}
"""


def launch(
    body: str, arguments: list[Any], kinds: list[str], n: int = BYTES, grid: int = 4,
    cluster: int = 2, count: int = 1, **schedule: Any,
) -> np.ndarray[Any, Any]:  # fmt: skip
    out = np.zeros((grid, BYTES), np.uint8)
    text = kernel(
        BEGIN.format(count=count) + body + OUT.format(n=n), ["u64", *kinds],
        target="sm_100a", shared_bytes=BYTES + 16,
    )  # fmt: skip
    run(text, "k", (grid,), (32,), [out, *arguments], cluster=(cluster,), **schedule)
    return out[:, :n]


fault = faulting(launch)
EXPECT = "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {bytes};"
LOAD = """
  @%p0 cp.async.bulk.tensor.2d{group}.shared::cluster.global.tile.mbarrier::complete_tx::bytes
       .multicast::cluster [%r11], [%d5, {{0, %r10}}], [%r2], %h1;
"""


def multicast(size: int, mask: int, group: str = "") -> str:
    """Return code in which every block loads 8 rows of 32 bytes, for the blocks of the mask."""
    load = LOAD.replace("\n       .multi", ".multi").format(group=group)
    return f"""
      {map_address("%d5", 1)}
      mov.b16 %h1, {mask};
      mov.u32 %r12, %ctaid.x; shl.b32 %r10, %r12, 3;
      shl.b32 %r11, %r9, 8; add.u32 %r11, %r1, %r11;
      {EXPECT.format(bytes=256 * size)}
      {load}
      {wait("%r2", 0)}
    """


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("size", [2, 4])
def test_a_multicast_reaches_every_block_of_its_mask(size: int, completion: Any) -> None:
    array = np.arange(4 * 8 * 32, dtype=np.uint8).reshape(32, 32)
    tensor_map = TensorMap.of(array, (8, 32))
    body = multicast(size, (1 << size) - 1)
    out = launch(body, [tensor_map], ["map"], 256 * size, cluster=size, completion=completion)
    for block in range(4):
        first = block // size * size
        expected = array[8 * first : 8 * (first + size)].reshape(-1)
        assert (out[block] == expected).all()


def test_a_mask_of_a_block_outside_the_cluster_is_a_fault() -> None:
    tensor_map = TensorMap.of(np.zeros((32, 32), np.uint8), (8, 32))
    fault("E257", multicast(2, 0b101), [tensor_map], ["map"], 512)


def test_a_block_that_expects_its_own_part_alone_waits_or_gets_too_much() -> None:
    tensor_map = TensorMap.of(np.zeros((32, 32), np.uint8), (8, 32))
    body = multicast(2, 0b11).replace("[%r2], 512", "[%r2], 256")
    for completion in ("late", "early"):
        with pytest.raises(Exception, match=r"E2[1-5]"):
            launch(body, [tensor_map], ["map"], 512, completion=completion)


PAIRED = f"""
  {map_address("%d5", 1)}
  shl.b32 %r10, %r9, 3;
  and.b32 %r13, %r2, 0xFEFFFFFF;
  setp.eq.and.u32 %p3, %r9, 0, %p0;
  @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
  @%p0 cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%r1], [%d5, {{{{0, %r10}}}}], [%r13];
  @%p2 bra LEADER;
  bra JOIN;
LEADER:
  {wait("%r2", 0)}
JOIN:
  {SYNC}
""".replace("{{", "{").replace("}}", "}")


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_both_blocks_of_a_pair_signal_the_barrier_of_the_even_one(completion: Any) -> None:
    array = np.arange(512, dtype=np.uint16).view(np.uint8)[:512].reshape(16, 32)
    out = launch(
        PAIRED, [TensorMap.of(array, (8, 32))], ["map"], 256, grid=2, completion=completion
    )
    assert (out.reshape(16, 32) == array).all()


def test_without_the_pair_a_load_signals_its_own_block_only() -> None:
    array = np.zeros((16, 32), np.uint8)
    body = PAIRED.replace(".cta_group::2", "")
    said = fault("E257", body, [TensorMap.of(array, (8, 32))], ["map"], 256, grid=2)
    assert "another block" in said


FILL = """
  mul.lo.u32 %r10, %r9, 1000; add.u32 %r10, %r10, %r0;
  shl.b32 %r11, %r0, 2; add.u32 %r11, %r1, %r11;
  st.shared.u32 [%r11], %r10;
  fence.proxy.async.shared::cta;
  bar.sync 0;
"""
SEND = f"""
  {FILL}
  xor.b32 %r12, %r9, 1;
  mapa.shared::cluster.u32 %r13, %r1, %r12;
  mapa.shared::cluster.u32 %r14, %r2, %r12;
  {EXPECT.format(bytes=128)}
  add.u32 %r13, %r13, 128;
  @%p0 {{copy}} [%r13], [%r1], 128, [%r14];
  {wait("%r2", 0)}
"""
COPY = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_bulk_copy_goes_to_the_shared_memory_of_another_block(completion: Any) -> None:
    out = launch(SEND.format(copy=COPY), [], [], 256, completion=completion).view(np.uint32)
    for block in range(4):
        own, other = block % 2 * 1000, (1 - block % 2) * 1000
        assert (out[block] == [*range(own, own + 32), *range(other, other + 32)]).all()


def test_the_source_of_a_copy_to_another_block_must_be_fenced() -> None:
    text = SEND.format(copy=COPY).replace("fence.proxy.async.shared::cta;", "")
    fault("E252", text, [], [], 256)


REDUCE = f"""
  {FILL}
  mov.u32 %r15, 5; st.shared.u32 [%r11 + 128], %r15;
  fence.proxy.async.shared::cta;
  {SYNC}
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {{bytes}};
  mov.u32 %r16, 0;
EACH:
  mapa.shared::cluster.u32 %r13, %r1, %r16;
  mapa.shared::cluster.u32 %r14, %r2, %r16;
  add.u32 %r13, %r13, 128;
  @%p0 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32
    [%r13], [%r1], 128, [%r14];
  add.u32 %r16, %r16, 1; setp.lt.u32 %p4, %r16, 2; @%p4 bra EACH;
  {wait("%r2", 0)}
"""


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_bulk_reductions_of_all_blocks_add_up(completion: Any) -> None:
    out = launch(REDUCE.format(bytes=256), [], [], 256, completion=completion).view(np.uint32)
    assert (out[:, 32:] == 5 + 1000 + 2 * np.arange(32)).all()


ARRIVE = """
  shl.b32 %r11, %r0, 2; add.u32 %r11, %r1, %r11;
  xor.b32 %r12, %r9, 1;
  mapa.shared::cluster.u32 %r13, %r11, %r12;
  mapa.shared::cluster.u32 %r14, %r2, %r12;
  st.shared::cluster.u32 [%r13], %r9;
  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r14];
"""


def test_what_another_block_stores_is_seen_after_its_arrivals() -> None:
    body = ARRIVE + wait("%r2", 0)
    out = launch(body, [], [], 128, count=32, order="max-pc").view(np.uint32)
    assert (out == np.array([1, 0, 1, 0])[:, None]).all()


def test_what_another_block_stores_without_a_barrier_is_a_race() -> None:
    body = ARRIVE.replace("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r14];", "")
    said = fault("E232", body + "bar.sync 0;", [], [], 128, count=32)
    assert re.search(r"warp \d of block \([01], 0, 0\) writes it", said)


def test_a_relaxed_cluster_barrier_orders_nothing() -> None:
    start = ARRIVE.partition("mbarrier")[0]
    launch(start + SYNC, [], [], 128)
    relaxed = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"
    fault("E232", start + relaxed, [], [], 128)


def test_the_memory_of_a_block_that_has_ended_is_gone() -> None:
    body = "@!%p2 exit; mov.u32 %r12, 1; mapa.shared::cluster.u32 %r13, %r1, %r12;"
    last = "ld.shared::cluster.u32 %r14, [%r13];"
    for order in ("min-pc", "max-pc"):
        said = fault("E258", body + last, [], [], 128, order=order)
        assert "block (1, 0, 0), whose shared memory is accessed, has ended" in said


CHOSEN = f"""
  {map_address("%d5", 1)}
  {{group}}
  {EXPECT.format(bytes=128)}
  @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
    [%r1], [%d5, {{{{0, 3, 9, 1, 40}}}}], [%r2];
  {wait("%r2", 0)}
"""


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_four_rows_are_gathered(completion: Any) -> None:
    array = np.arange(32 * 32, dtype=np.uint16).view(np.uint8)[: 32 * 32].reshape(32, 32)
    tensor_map = TensorMap.of(array, (1, 32))
    out = launch(CHOSEN.format(group=""), [tensor_map], ["map"], 128, completion=completion)
    expected = np.concatenate([array[[3, 9, 1]], np.zeros((1, 32), np.uint8)])
    assert (out == expected.reshape(-1)).all()


def test_rows_are_gathered_by_boxes_of_one_row() -> None:
    tensor_map = TensorMap.of(np.zeros((32, 32), np.uint8), (4, 32))
    assert "one row" in fault("E255", CHOSEN.format(group=""), [tensor_map], ["map"], 128)


SCATTER = f"""
  {FILL}
  {map_address("%d5", 1)}
  setp.eq.and.u32 %p3, %r9, 0, %p0;
  @%p3 cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group
    [%d5, {{{{0, 3, 9, 1, 40}}}}], [%r1];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
""".replace("{{", "{").replace("}}", "}")


def test_four_rows_are_scattered() -> None:
    array = np.zeros((32, 8), np.uint32)
    launch(SCATTER, [TensorMap.of(array, (1, 8))], ["map"], 128, grid=2)
    expected = np.zeros_like(array)
    expected[[3, 9, 1]] = np.arange(24).reshape(3, 8)
    assert (array == expected).all()


def made_again(count: int) -> str:
    return f"""
      @%p0 mbarrier.inval.shared::cta.b64 [%r2];
      @%p0 mbarrier.init.shared::cta.b64 [%r2], {count};
    """


SHOW = "@%p0 fence.mbarrier_init.release.cluster;"
RELAXED = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"


def test_a_barrier_that_was_not_shown_to_copies_is_reported() -> None:
    tensor_map = TensorMap.of(np.zeros((32, 32), np.uint8), (8, 32))
    body = SYNC + multicast(2, 3)
    fault("E259", made_again(1) + body, [tensor_map], ["map"], 512)
    launch(made_again(1) + SHOW + body, [tensor_map], ["map"], 128)


def test_the_clusters_barrier_or_a_fence_shows_barriers_to_arrivals() -> None:
    body = ARRIVE + wait("%r2", 0)
    launch(made_again(32) + SYNC + body, [], [], 128)
    launch(made_again(32) + SHOW + RELAXED + body, [], [], 128)
    fault("E232", made_again(32) + RELAXED + body, [], [], 128)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_source_of_an_exchange_is_read_by_its_own_block(rank: int) -> None:
    """Both blocks send to each other; one writes over what it sends."""
    body = f"""
      {EXPECT.format(bytes=64)} shl.b32 %r20, %r0, 2; add.u32 %r20, %r20, %r1;
      setp.lt.u32 %p4, %r0, 16; @%p4 st.shared.u32 [%r20], %r0; fence.proxy.async; {SYNC}
      xor.b32 %r21, %r9, 1; add.u32 %r22, %r1, 1024;
      mapa.shared::cluster.u32 %r23, %r22, %r21; mapa.shared::cluster.u32 %r24, %r2, %r21;
      @%p0 {COPY} [%r23], [%r1], 64, [%r24];
      setp.eq.u32 %p5, %r9, {rank}; and.pred %p5, %p5, %p0; @%p5 st.shared.u32 [%r1], 7;
      {wait("%r2", 0, "W")}
    """
    said = fault("E250", body, [], [], grid=2)
    assert f"of warp 0 of block ({rank}, 0, 0)" in said
    assert "is still reading it" in said


def refilled(rounds: int, *, awaited: bool = True) -> str:
    """Return code in which block 1 sends to block 0, which says that it may send again.

    Only the bytes of a copy tell block 0 that block 1 has seen what it said before.
    """
    sent = [
        wait("%r15", k % 2 ^ 1, f"s{k}") + f"@%p0 {COPY} [%r13], [%r1], 128, [%r14];"
        for k in range(rounds)
    ]
    taken = [
        EXPECT.format(bytes=128)
        + (wait("%r2", k % 2, f"t{k}") if awaited else "")
        + "@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r14];"
        for k in range(rounds)
    ]
    return f"""
  add.u32 %r15, %r2, 8; xor.b32 %r12, %r9, 1;
  @%p0 mbarrier.init.shared::cta.b64 [%r15], 1; @%p0 fence.mbarrier_init.release.cluster;
  {FILL} st.shared.u32 [%r11 + 128], %r9; fence.proxy.async.shared::cta; {SYNC}
  @%p2 bra TAKE;
  mapa.shared::cluster.u32 %r13, %r1, %r12; mapa.shared::cluster.u32 %r14, %r2, %r12;
  add.u32 %r13, %r13, 128; {" ".join(sent)} bra TAKEN;
TAKE:
  mapa.shared::cluster.u32 %r14, %r15, %r12; {" ".join(taken)}
  {wait("%r2", (rounds - 1) % 2)}
TAKEN: {SYNC}
"""


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_who_has_copied_to_another_block_has_seen_what_it_waited_for(completion: Any) -> None:
    out = launch(refilled(4), [], [], 256, completion=completion).view(np.uint32)
    assert (out[0, 32:] == np.arange(1000, 1032)).all()


def test_who_does_not_wait_for_a_copy_does_not_know_what_its_thread_has_seen() -> None:
    fault("E245", refilled(4, awaited=False), [], [], 256)
