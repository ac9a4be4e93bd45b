"""Waits for groups of bulk copies cover what they name, whenever the copies happen."""

import re
from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from tests.emulator.asm import kernel

# Two groups of thread 0: words 0 to 63 from smem, words 64 to 127 from smem + 1024.
START = """
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r0, 1; mov.u32 %r1, smem;
  ld.param.u64 %d0, [a0]; shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; setp.eq.u32 %p2, %r0, 32;
  add.u32 %r5, %r0, 64;
  st.shared.b32 [%r4], %r0; st.shared.b32 [%r4+1024], %r5; fence.proxy.async.shared::cta;
  bar.sync 0;
  @%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], 256;
  @%p0 cp.async.bulk.commit_group;
  @%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0+256], [%r1+1024], 256;
"""
COMMIT = "@%p0 cp.async.bulk.commit_group;"
BAR = "bar.sync 0;"
REFILL = ["st.shared.b32 [%r4], %r3;", "st.shared.b32 [%r4+1024], %r3;"]
READ = ["@%p2 ld.global.b32 %r6, [%d0+4];", "@%p2 ld.global.b32 %r6, [%d0+260];"]
AGAIN = """
  @%p2 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1+1024], 256;
  @%p2 cp.async.bulk.commit_group; @%p2 cp.async.bulk.wait_group 0;
"""
SCHEDULES: list[dict[str, Any]] = [
    {}, {"completion": "early", "order": "max-pc"}, {"completion": 1},
    {"completion": 2, "order": 3},
]  # fmt: skip


def wait(keep: int, *, reads: bool = False, who: str = "%p0") -> str:
    return f"@{who} cp.async.bulk.wait_group{'.read' if reads else ''} {keep};"


END = wait(0)


def launch(body: str, **options: Any) -> Any:
    out = np.zeros(128, np.uint32)
    run(kernel(START + body, ["u64"], shared_bytes=2048), "k", (1,), (64,), [out], **options)
    return out


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize(
    "body",
    [
        COMMIT + wait(1, reads=True) + BAR + REFILL[0] + END,
        COMMIT + wait(0, reads=True) + BAR + REFILL[0] + REFILL[1],
        COMMIT + wait(1) + BAR + READ[0] + END,
        COMMIT + wait(0) + BAR + READ[1],
        COMMIT + wait(0) + BAR + AGAIN,
        # Nothing needs a wait for what it writes, at the end.
        COMMIT + wait(0, reads=True),
    ],
)
def test_what_a_wait_covers_may_be_used(body: str, options: Any) -> None:
    assert launch(body, **options)[64:].tolist() == list(range(64, 128))


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize(
    ("codes", "body"),
    [
        ("E250", COMMIT + wait(1, reads=True) + BAR + REFILL[1] + END),
        ("E250", wait(0, reads=True) + BAR + REFILL[1] + COMMIT + END),
        ("E250", COMMIT + wait(0, who="%p1") + BAR + REFILL[0] + END),
        ("E250 E251", COMMIT + wait(1) + BAR + READ[1] + END),
        ("E250 E251", COMMIT + wait(0, reads=True) + BAR + READ[0] + END),
        ("E250 E251", COMMIT + wait(0, who="%p1") + BAR + READ[0] + END),
        ("E251 E232", COMMIT + wait(0, reads=True) + BAR + AGAIN + END),
        ("E256", COMMIT + wait(1, reads=True)),
        ("E256", wait(0)),
        ("E256", COMMIT + wait(0, who="%p1")),
    ],
)
def test_what_no_wait_covers_is_reported(codes: str, body: str, options: Any) -> None:
    # Which of two copies, or of a copy and an access, is reported says which came later.
    with pytest.raises(DeviceFault) as caught:
        launch(body, **options)
    assert caught.value.code in codes.split()
    assert re.search(r"warp [01] of block \(0, 0, 0\)", caught.value.message)
