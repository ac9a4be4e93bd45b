"""What the second opinion on order finds, and what it does not."""

from __future__ import annotations

import numpy as np
import pytest

from astdsl.emulator import run
from tests.emulator.asm import kernel, wait
from tests.emulator.ordering import disorder

# Each thread stores a word, and loads that of a thread of another warp.
START = """
mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, smem; add.u32 %r2, %r1, 1024;
shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; xor.b32 %r5, %r3, 128; add.u32 %r5, %r1, %r5;
ld.param.u64 %d0, [a0]; add.u32 %r8, %r2, 8;
@%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
@%p0 mbarrier.init.shared::cta.b64 [%r8], 64;
fence.mbarrier_init.release.cluster;
bar.sync 1, 64;
"""
STORE = "st.shared.b32 [%r4], %r0;"
LOAD = "ld.shared.b32 %r6, [%r5];"
BAR = "bar.sync 0;"
FILL = """
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
@%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d0], 256, [%r2];
"""
WAIT = wait("%r2", 0)
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r8];"
MEET = ARRIVE + wait("%r8", 0, "all")


def found(body: str, without: str, *, gone: bool = False) -> list[str]:
    """Return what is not ordered in a kernel without its last line that holds a text."""
    text = kernel(START + body, ["u64"], shared_bytes=2048)
    lines = [at for at, line in enumerate(text.splitlines()) if without in line]
    x = np.zeros(64, np.uint32)
    return disorder(lambda: run(text, "k", (2,), (64,), [x]), lines[-1], gone=gone)


@pytest.mark.parametrize("body", [f"{STORE}\n{BAR}\n{LOAD}", f"{FILL}{WAIT}{LOAD}", MEET])
def test_nothing_is_found_where_no_order_is_left_out(body: str) -> None:
    assert not found(body, "ret")


@pytest.mark.parametrize(
    ("body", "without", "what"),
    [
        (f"{STORE}\n{BAR}\n{LOAD}", BAR, "ld.shared.b32: a write of another warp"),
        (f"{STORE}\n{BAR}\n{LOAD}\n{BAR}\n{STORE}", BAR, "st.shared.b32: a read of another warp"),
        (f"{STORE}\n{MEET}\n{LOAD}", "try_wait", "ld.shared.b32: a write of another warp"),
        (f"{STORE}\n{MEET}\n{LOAD}", "arrive.shared", "ld.shared.b32: a write of another warp"),
        (f"{FILL}{WAIT}{LOAD}", "try_wait", "ld.shared.b32: an operation that fills it"),
        (f"{LOAD}\n{BAR}\n{FILL}{WAIT}", BAR, "complete_tx::bytes: a read of another warp"),
        (FILL + WAIT, "bar.sync 1", "try_wait.parity.shared::cta.b64: a write of another warp"),
    ],
)  # fmt: skip
def test_what_a_line_alone_orders_is_found(body: str, without: str, what: str) -> None:
    start = f"{STORE}\nfence.proxy.async;\nbar.sync 2, 64;\n" if body.startswith(LOAD) else ""
    text = found(start + body, without)
    assert any(what in line for line in text), text


@pytest.mark.parametrize(
    ("body", "without"),
    [
        (f"{STORE}\n{BAR}\n{MEET}\n{LOAD}", BAR),
        (f"{STORE}\n{BAR}\n{MEET}\n{LOAD}", "try_wait"),
        (f"{STORE}\n{BAR}\nst.shared.b32 [%r4+512], %r0;", BAR),
        (f"{FILL}{WAIT}{BAR}\n{LOAD}", BAR),
    ],
)
def test_what_something_else_orders_too_is_not_found(body: str, without: str) -> None:
    assert not found(body, without)


def test_who_waits_for_an_arrival_that_is_gone_waits_in_vain() -> None:
    assert not found(ARRIVE, "arrive.shared", gone=True)
    text = found(MEET, "arrive.shared", gone=True)
    assert {line.partition(": ")[2] for line in text} == {
        "a wait for a phase that the line arrives in"
    }
