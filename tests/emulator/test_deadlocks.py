"""What is reported of threads that wait or ask for ever, and that those which do not are let be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import run, watch
from astdsl.emulator.machine import Group, Machine
from tests.emulator.asm import faulting, kernel, wait

BEGIN = """
  .loc 1 1 1
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.lt.u32 %p2, %r0, 32; mov.u32 %r1, smem;
  add.u32 %r2, %r1, 64; ld.param.u64 %d0, [a0]; mov.u32 %r19, %cluster_ctarank;
  mov.u32 %r18, %ctaid.x; setp.eq.u32 %p3, %r18, 0; mov.u32 %r30, 0; mov.u32 %r31, 32;
"""
BARRIERS = """
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 1; @%p0 mbarrier.init.shared::cta.b64 [%r2+8], 1;
  fence.mbarrier_init.release.cluster; bar.sync 0;
"""
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, "
CLUSTER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
# In fewer rounds each run of these tests ends, or is found to go round for ever.
MOST_ROUNDS = 1 << 15


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test fail whose run would never end."""
    tick = watch.Watch.tick

    def counted(self: watch.Watch, *arguments: Any) -> None:
        assert self._rounds < MOST_ROUNDS, "nobody has found that this goes round for ever"
        tick(self, *arguments)

    monkeypatch.setattr(watch.Watch, "tick", counted)


def launch(body: str, blocks: int = 1, threads: int = 64, **options: Any) -> None:
    out = np.zeros(64, np.uint32)
    text = kernel(BEGIN + body + "\nEND:", ["u64"], shared_bytes=128)
    run(text + '\n.file 1 "kernel.py"\n', "k", (blocks,), (threads,), [out], **options)


fault = faulting(launch)


def test_a_cycle_of_waits_names_each_warp_its_barrier_and_line() -> None:
    first = f"@%p2 bra A; .loc 1 5 1\n {wait('%r2+8', 0, 'x')} {ARRIVE} [%r2]; bra END;"
    said = fault("E210", f"{BARRIERS} {first} A: .loc 1 6 1\n {wait('%r2', 0, 'y')}")
    for warp, offset, line in ((1, 0x48, 5), (0, 0x40, 6)):
        waits = (
            f"warp {warp} of block (0, 0, 0) (32 threads): waits for a phase of parity 0 of the "
        )
        state = f"mbarrier at shared {offset:#x}: phase 0 incomplete, 1 of 1 arrivals missing"
        assert waits + state in said
        assert f"(kernel.py:{line}:1, PTX line" in said


def test_each_block_of_a_cluster_is_named() -> None:
    remote = """xor.b32 %r21, %r19, 1; mapa.shared::cluster.u32 %r20, %r2, %r21;
      @%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r20];"""
    body = BARRIERS + CLUSTER + wait("%r2", 0, "y") + remote + CLUSTER
    said = fault("E210", body, 2, cluster=(2,))
    assert all(f"warps 0-1 of block ({k}, 0, 0) (64 threads): waits" in said for k in (0, 1))


def test_warps_that_have_ended_are_named() -> None:
    body = BARRIERS + "@!%p2 bra END; .loc 1 4 1\n" + wait("%r2", 0, "y")
    assert "warp 1 of block (0, 0, 0): ended" in fault("E210", body)


def test_of_many_blocks_some_are_named_and_all_are_counted() -> None:
    said = fault("E210", BARRIERS + wait("%r2", 0, "y"), 40)
    assert said.count(": waits") == 12
    assert "and others: threads of 40 blocks wait in all" in said


@pytest.mark.parametrize(("blocks", "shown"), [(3, 2), (2, 2)])
def test_blocks_that_lines_have_no_room_for_are_counted(blocks: int, shown: int) -> None:
    places = "".join(
        f"setp.ne.u32 %p20, %r40, {warp}; @%p20 bra S{warp};{wait('%r2', 0, f'y{warp}')} S{warp}:\n"
        for warp in range(5)
    )
    said = fault("E210", f"{BARRIERS} shr.u32 %r40, %r0, 5;\n {places}", blocks, threads=160)
    assert said.count(": waits") == 5 * shown
    assert ("and others: threads of 3 blocks wait in all" in said) == (blocks > shown)


ASKS = {
    "plain": "L: {ask} @!%p9 bra L;",
    "with a pause": "L: {ask} @%p9 bra END; nanosleep.u32 %r31; min.u32 %r31, %r31, 512;"
    "shl.b32 %r31, %r31, 1; bra L;",
    "counted": "L: {ask} @%p9 bra END; add.u32 %r30, %r30, 1; bra L;",
    "met": "L: {ask} bar.red.and.pred %p9, 0, 64, %p9; @!%p9 bra L;",
    "met and counted": "L: {ask} bar.red.and.pred %p9, 0, 64, %p9; @%p9 bra END;"
    "add.u32 %r30, %r30, 1; bra L;",
}


@pytest.mark.parametrize("loop", ASKS)
def test_an_mbarrier_asked_for_ever_is_a_deadlock(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 1 << 10)
    ask = "mbarrier.test_wait.parity.shared::cta.b64 %p9, [%r2], 0;"
    said = fault("E210", f"{BARRIERS} .loc 1 7 1\n {ASKS[loop].format(ask=ask)}")
    assert "warps 0-1 of block (0, 0, 0) (64 threads): waits for a phase of parity 0 of the" in said
    assert "1 of 1 arrivals missing" in said
    assert "kernel.py:7:1" in said


@pytest.mark.parametrize("after", ["mov.u32 %r2, 5;", "add.u32 %r2, %r2, 8;"])
def test_a_barrier_is_named_whose_address_is_in_no_register_any_more(after: str) -> None:
    ask = "mbarrier.test_wait.parity.shared::cta.b64 %p9, [%r2], 0;"
    body = f"{BARRIERS} L: add.u32 %r2, %r1, 64; {ask} {after} @!%p9 bra L;"
    assert "waits for a phase of parity 0 of the mbarrier at shared 0x40" in fault("E210", body)


WORDS = {
    "volatile": "ld.volatile.global.u32 %r20, [%d0];",
    "acquire": "ld.acquire.gpu.global.u32 %r20, [%d0];",
    "generic": "ld.relaxed.gpu.u32 %r20, [%d0];",
    "atomic": "atom.global.or.b32 %r20, [%d0], 0;",
    # A lock that another thread holds and never gives back.
    "lock": "atom.acquire.gpu.global.cas.b32 %r20, [%d0], 1, 2;",
    "wide": "mov.u64 %d5, 1; mov.b128 %q0, {%d5, %d5}; atom.global.cas.b128 %q1, [%d0], %q0, %q0;"
    "mov.b128 {%d6, %d7}, %q1; cvt.u32.u64 %r20, %d6;",
}


@pytest.mark.parametrize("word", WORDS)
def test_a_word_read_for_ever_is_named(word: str) -> None:
    loop = f".reg .b128 %q<2>; L: {WORDS[word]} setp.eq.u32 %p9, %r20, 0; @%p9 bra L;"
    said = fault("E215", f"@!%p3 bra END; @!%p0 bra END; .loc 1 4 1\n {loop}", 2)
    assert "warp 0 of block (0, 0, 0) (1 thread): reads global memory at" in said
    assert "in argument 0 again and again (kernel.py:4:1" in said


def test_reads_that_are_counted_are_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 1 << 10)
    ask = f"setp.eq.u32 %p9, %r20, 1; {WORDS['volatile']}"
    fault("E215", "mov.u32 %r20, 0; @!%p0 bra END;" + ASKS["counted"].format(ask=ask), threads=32)


def test_two_blocks_that_wait_for_each_others_words_are_both_named() -> None:
    body = """xor.b32 %r21, %r18, 1; mul.wide.u32 %d5, %r18, 4; add.u64 %d5, %d0, %d5;
      mul.wide.u32 %d6, %r21, 4; add.u64 %d6, %d0, %d6; @!%p0 bra END;
      L: ld.acquire.gpu.global.u32 %r20, [%d5]; setp.eq.u32 %p9, %r20, 0; @%p9 bra L;
      st.release.gpu.global.u32 [%d6], 1;"""
    said = fault("E215", body, 2)
    assert all(f"warp 0 of block ({k}, 0, 0) (1 thread): reads" in said for k in (0, 1))


def test_a_block_that_spins_is_named_beside_those_that_wait() -> None:
    spin = f"@!%p3 bra B; L: {WORDS['acquire']} setp.eq.u32 %p9, %r20, 0; @%p9 bra L; bra END;"
    said = fault("E215", f"{spin} B: @!%p2 bra END; .loc 1 5 1\n bar.sync 1, 64;", 2)
    assert "warp 0 of block (1, 0, 0) (32 threads): waits at barrier 1, 32 of 64 threads" in said
    assert "warps 0-1 of block (0, 0, 0) (64 threads): reads global memory" in said


@pytest.mark.parametrize("order", ["min-pc", "max-pc", "round-robin", 5])
def test_who_asks_is_not_starved_by_who_spins(order: Any) -> None:
    """Warp 1 spins on what warp 0 stores when it has seen warp 2 arrive."""
    body = f"""@%p0 st.shared.u32 [%r1], 0; {BARRIERS} shr.u32 %r40, %r0, 5;
      setp.eq.u32 %p20, %r40, 0; setp.eq.u32 %p21, %r40, 1; @%p20 bra A; @%p21 bra B;
      C: add.u32 %r30, %r30, 1; setp.lt.u32 %p22, %r30, 5; @%p22 bra C;
      setp.eq.u32 %p23, %r0, 64; @%p23 {ARRIVE} [%r2]; bra END;
      A: mbarrier.test_wait.parity.shared::cta.b64 %p9, [%r2], 0; @!%p9 bra A;
      @%p0 st.volatile.shared.u32 [%r1], 1; bra END;
      B: ld.volatile.shared.u32 %r44, [%r1]; setp.eq.u32 %p24, %r44, 0; @%p24 bra B;"""
    launch(body, threads=96, order=order)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that fills with the rounds of each group that a machine runs."""
    run_rounds: list[int] = []
    advance = Machine._advance

    def counted(self: Machine, group: Group) -> None:
        run_rounds.append(group.pc)
        advance(self, group)

    monkeypatch.setattr(Machine, "_advance", counted)
    return run_rounds


# The holder takes as many rounds as it counts; then it gives the lock back.
HOLD = """mov.u32 %r30, 0; L: add.u32 %r30, %r30, 1; setp.lt.u32 %p9, %r30, 20; @%p9 bra L;
  atom.release.gpu.global.exch.b32 %r22, [%d0], 0;"""
TAKE = "atom.acquire.gpu.global.cas.b32 %r20, [%d0], 0, 1; setp.ne.u32 %p8, %r20, 0;"
LOCKS = {
    "asked alone": f"@!%p0 bra END; T: {TAKE} @%p8 bra T; {HOLD}",
    "asked with pauses": f"@!%p0 bra END; T: {TAKE} @!%p8 bra H; nanosleep.u32 9; bra T; H: {HOLD}",
    "looked at first": "@!%p0 bra END; T: ld.volatile.global.u32 %r21, [%d0];"
    f"setp.ne.u32 %p8, %r21, 0; @%p8 bra T; {TAKE} @%p8 bra T; {HOLD}",
    "asked for a block": """@%p0 mov.u32 %r20, 0; T:
      @%p0 atom.acquire.gpu.global.cas.b32 %r20, [%d0], 0, 1; @%p0 st.shared.u32 [%r1], %r20;
      bar.sync 0; ld.shared.u32 %r21, [%r1]; bar.sync 0; setp.ne.u32 %p8, %r21, 0; @%p8 bra T;
      @!%p0 bra END;"""
    + HOLD,
    "of each lane": f"T: {TAKE} @%p8 bra N; {HOLD} bra END; N: bra T;",
}


@pytest.mark.parametrize("order", ["min-pc", "max-pc", "round-robin"])
@pytest.mark.parametrize("lock", LOCKS)
def test_who_asks_for_a_lock_in_vain_lets_its_holder_go_first(
    lock: str, order: Any, rounds: list[int]
) -> None:
    blocks, threads = (1, 32) if lock == "of each lane" else (6, 64)
    launch(LOCKS[lock], blocks, threads=threads, order=order)
    assert len(rounds) < 40 * (blocks if blocks > 1 else threads)


def test_who_asks_for_memory_lets_a_copy_that_others_wait_for_happen(rounds: list[int]) -> None:
    """Warp 1 waits for a copy, which happens as late as it may; warp 2 spins on its answer."""
    body = f"""@%p0 st.shared.u32 [%r1], 0; {BARRIERS} shr.u32 %r40, %r0, 5;
      setp.eq.u32 %p20, %r40, 1; setp.eq.u32 %p21, %r40, 2; @%p20 bra A; @%p21 bra B; bra END;
      A: setp.ne.u32 %p22, %r0, 32; @%p22 bra W; add.u32 %r41, %r1, 96;
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16;
      cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r41], [%d0], 16, [%r2];
      W: {wait("%r2", 0, "x")} setp.eq.u32 %p22, %r0, 32;
      @%p22 st.volatile.shared.u32 [%r1], 1; bra END;
      B: add.u32 %r30, %r30, 1; ld.volatile.shared.u32 %r44, [%r1];
      setp.eq.u32 %p24, %r44, 0; @%p24 bra B;"""
    launch(body, threads=96, completion="late")
    assert len(rounds) < 32


COUNT = "add.u32 %r30, %r30, 1; setp.lt.u32 %p9, %r30, {n}; @%p9 bra L;"
BUSY = {
    "before": f"{WORDS['volatile']} L: {COUNT.format(n=30000)}",
    "in": f"L: {WORDS['volatile']} setp.ne.u32 %p9, %r20, 0; @%p9 bra END; {COUNT.format(n=2000)}",
}


@pytest.mark.parametrize("where", BUSY)
def test_reads_before_or_in_a_long_loop_are_not_in_vain(where: str) -> None:
    launch(BUSY[where], threads=32)
