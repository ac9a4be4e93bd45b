"""What one lane has waited for or acquired, the others of its warp know when they meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import run
from tests.emulator.asm import faulting, kernel, wait

START = """
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r0, 1; mov.u32 %r1, smem;
  setp.lt.u32 %p2, %r0, 32; add.u32 %r4, %r0, 7; shl.b32 %r3, %r0, 2; add.u32 %r5, %r1, %r3;
  xor.b32 %r6, %r3, 128; cvt.u64.u32 %d2, %r6; add.u32 %r6, %r1, %r6; cvt.u64.u32 %d1, %r3;
  ld.param.u64 %d0, [a0]; add.u64 %d1, %d0, %d1; add.u64 %d2, %d0, %d2; setp.eq.u32 %p3, %r0, 32;
  @%p0 mbarrier.init.shared::cta.b64 [%r1+1024], 32;
  @%p0 st.shared.b32 [%r1+1040], 0; bar.sync 0;
"""
# The second warp stores, and tells of it; the first reads what it has stored.
WORDS = """
  @%p2 bra READS; {store} {tell} bra DONE;
READS: {learn} {read}
DONE: {end}
"""
SHARED = ("st.shared.b32 [%r5], %r4;", "ld.shared.b32 %r7, [%r6];")
GLOBAL = ("st.global.b32 [%d1], %r4;", "ld.global.b32 %r7, [%d2];")
MEET = "bar.warp.sync 0xffffffff;"
# By an mbarrier; by a word with release and acquire; by one with fences.
SPIN = "SPIN: {load} %r8, [{word}]; setp.eq.u32 %p4, %r8, 0; @%p4 bra SPIN; {after}"
TELLS = {
    "mbarrier": ("mbarrier.arrive.shared::cta.b64 _, [%r1+1024];", wait("%r1+1024", 0)),
    "release": (
        f"{MEET} @%p3 st.release.gpu.shared.b32 [%r1+1040], 1;",
        SPIN.format(load="ld.acquire.gpu.shared.b32", word="%r1+1040", after=""),
    ),
    "fence": (
        f"{MEET} fence.acq_rel.gpu; @%p3 st.relaxed.gpu.shared.b32 [%r1+1040], 1;",
        SPIN.format(load="ld.relaxed.gpu.shared.b32", word="%r1+1040", after="fence.acq_rel.gpu;"),
    ),
}
SCHEDULES: list[dict[str, Any]] = [
    {}, {"order": "max-pc"}, {"order": "round-robin"}, {"order": 3},
]  # fmt: skip


def launch(body: str, **options: Any) -> None:
    text = kernel(START + body, ["u64"], shared_bytes=2048)
    run(text, "k", (1,), (64,), [np.zeros(128, np.uint32)], **options)


fault = faulting(launch)


def one(learn: str, who: str = "%p0") -> str:
    """Let one lane do what lets it learn."""
    return f"@!{who} bra ON; {learn} ON:"


def words(tell: str, learn: str, space: tuple[str, str], end: str = "") -> str:
    store, read = space
    return WORDS.format(store=store, tell=tell, learn=learn, read=read, end=end)


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("space", [SHARED, GLOBAL])
@pytest.mark.parametrize("how", TELLS)
def test_lanes_know_what_they_have_acquired_themselves(how: str, space: Any, options: Any) -> None:
    tell, learn = TELLS[how]
    launch(words(tell, learn, space), **options)
    launch(words(tell, one(learn), (space[0], f"@%p0 {space[1]}")), **options)


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("space", [SHARED, GLOBAL])
@pytest.mark.parametrize("how", TELLS)
def test_lanes_do_not_know_what_another_one_has_acquired(
    how: str, space: Any, options: Any
) -> None:
    tell, learn = TELLS[how]
    fault("E232", words(tell, one(learn), space), **options)
    # Of two, one has acquired.
    fault("E232", words(tell, one(learn), (space[0], f"@%p1 {space[1]}")), **options)


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("meet", [MEET, "bar.sync 1, 32;", "barrier.sync.aligned 2, 32;"])
@pytest.mark.parametrize("space", [SHARED, GLOBAL])
@pytest.mark.parametrize("how", TELLS)
def test_lanes_learn_from_each_other_when_they_meet(
    how: str, space: Any, meet: str, options: Any
) -> None:
    tell, learn = TELLS[how]
    launch(words(tell, one(learn) + meet, space), **options)


@pytest.mark.parametrize("options", SCHEDULES)
def test_some_lanes_learn_when_they_meet_the_one_that_knows(options: Any) -> None:
    tell, learn = TELLS["mbarrier"]
    store, read = SHARED
    meet = "setp.gt.u32 %p5, %r0, 1; @%p5 bra OVER; bar.warp.sync 3; OVER:"
    launch(words(tell, one(learn) + meet, (store, f"@%p1 {read}")), **options)
    others = (store, f"@%p5 {read}")
    fault("E232", words(tell, one(learn) + meet, others), **options)


@pytest.mark.parametrize("options", SCHEDULES)
def test_a_lane_tells_another_of_its_warp_by_a_word(options: Any) -> None:
    tell, learn = TELLS["mbarrier"]
    hand = """@%p0 st.release.cta.shared.b32 [%r1+1040], 1; @!%p1 bra OVER;
      SPIN: ld.acquire.cta.shared.b32 %r8, [%r1+1040]; setp.eq.u32 %p4, %r8, 0; @%p4 bra SPIN;
      OVER:"""
    launch(words(tell, one(learn) + hand, (SHARED[0], f"@%p1 {SHARED[1]}")), **options)


def test_lanes_that_have_ended_know_nothing() -> None:
    # The last lanes of the block are no whole warp.
    tell, learn = TELLS["mbarrier"]
    body = words(tell, learn, SHARED)
    text = kernel(START + body, ["u64"], shared_bytes=2048).replace("1024], 32", "1024], 16")
    run(text.replace("ld.shared.b32 %r7, [%r6]", "@%p0 ld.shared.b32 %r7, [%r6]"),
        "k", (1,), (48,), [np.zeros(128, np.uint32)])  # fmt: skip
