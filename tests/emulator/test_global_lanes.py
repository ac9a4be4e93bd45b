"""Lanes of one warp that come to the same global memory without `bar.warp.sync` between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import run
from tests.emulator.asm import faulting, kernel

# Lane t stores the word at %d1, and lane t ^ 1 comes to it.
START = """
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r0, 1; add.u32 %r4, %r0, 7;
  shl.b32 %r3, %r0, 2; cvt.u64.u32 %d1, %r3; ld.param.u64 %d0, [a0]; add.u64 %d1, %d0, %d1;
  xor.b32 %r9, %r3, 4; cvt.u64.u32 %d3, %r9; add.u64 %d3, %d0, %d3; {bar}
"""
MEET = "bar.warp.sync 0xffffffff;"
SCHEDULES: list[dict[str, Any]] = [
    {}, {"order": "max-pc", "completion": "early"}, {"order": "round-robin"}, {"order": 3},
]  # fmt: skip


def launch(body: str, *, bar: str = "bar.sync 0;", **options: Any) -> None:
    text = kernel(START.format(bar=bar) + body, ["u64"])
    run(text, "k", (1,), (32,), [np.zeros(128, np.uint32)], **options)


fault = faulting(launch)

PAIRS = {
    "read after write": ("st.global.b32 [%d1], %r4;", "ld.global.b32 %r7, [%d3];"),
    "write after read": ("ld.global.b32 %r7, [%d3];", "st.global.b32 [%d1], %r4;"),
    "write after write": ("@%p0 st.global.b32 [%d0], 5;", "@%p1 st.global.b32 [%d0], 6;"),
    "atomic after write": ("@%p0 st.global.b32 [%d0], 5;", "@%p1 red.global.add.u32 [%d0], 6;"),
    "wide after narrow": ("st.global.b32 [%d1], %r4;", "@%p0 ld.global.v2.b32 {%r7,%r8}, [%d0];"),
}


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("pair", PAIRS)
def test_lanes_of_a_warp_race_in_global_memory(pair: str, options: Any) -> None:
    first, second = PAIRS[pair]
    said = fault("E232", first + second, **options)
    assert "and no `bar.warp.sync` orders that before this access" in said
    assert "of warp" in said
    launch(first + MEET + second, **options)


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize(
    "body",
    [
        # One value in one place; a lane alone; what a lane has released another acquires.
        "@%p0 st.global.b32 [%d0], 5; @%p1 st.global.b32 [%d0], 5;",
        "st.global.b32 [%d1], %r4; ld.global.b32 %r7, [%d1]; st.global.b32 [%d1], %r3;",
        "@%p0 red.global.add.u32 [%d0], 1; @%p1 red.global.add.u32 [%d0], 1;",
        """@%p0 st.global.b32 [%d0], 5; @%p0 st.release.gpu.global.b32 [%d0+256], 1;
        @%p1 ld.acquire.gpu.global.b32 %r7, [%d0+256]; @%p1 ld.global.b32 %r7, [%d0];""",
        """@%p0 st.global.b32 [%d0], 5; @%p0 fence.acq_rel.gpu;
        @%p0 st.relaxed.gpu.global.b32 [%d0+256], 1;
        @%p1 ld.relaxed.gpu.global.b32 %r7, [%d0+256]; @%p1 fence.acq_rel.gpu;
        @%p1 ld.global.b32 %r7, [%d0];""",
    ],
)
def test_lanes_of_a_warp_do_not_race_where_something_orders_them(body: str, options: Any) -> None:
    launch(body, **options)


def test_lanes_are_looked_at_where_warps_are() -> None:
    # Without any barrier nothing of the program could order them.
    body = "".join(PAIRS["read after write"])
    launch(body, bar="")
    assert "lane 1 of warp 0" in fault("E232", body, bar="", strict=True)
    launch(body, strict=False)
