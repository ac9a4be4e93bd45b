"""Tests of `cp.async`: zero fill, groups, and what is undefined until the wait."""

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from tests.emulator.running import module

REGISTERS = ".reg .b64 %d<16>; .reg .b32 %r<32>; .reg .pred %p<8>; .shared .align 16 .b8 sh[2048];"
START = """mov.u32 %r0, %tid.x; ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1];
  mad.wide.u32 %d2, %r0, {step}, %d0; mov.u32 %r1, sh; mad.lo.u32 %r2, %r0, {step}, %r1;"""
COMPLETIONS = ["late", "early", 3]


def copied(body: str, *, step: Any = 16, completion: Any = "late", n: int = 32) -> Any:
    """Return what the threads find at their place in shared memory."""
    source = np.arange(1, n * step // 4 + 1, dtype=np.uint32)
    out = np.zeros(n * step // 4, np.uint32)
    end = f"mad.wide.u32 %d3, %r0, {step}, %d1;" + "".join(
        f"ld.shared.b32 %r9, [%r2+{k}]; st.global.b32 [%d3+{k}], %r9;" for k in range(0, step, 4)
    )
    text = module(START.format(step=step) + body + end, ["u64", "u64"], REGISTERS)
    run(text, "k", (1,), (n,), [source, out], completion=completion)
    return source, out


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("size", [4, 8, 16])
def test_waiting_for_all_makes_the_copy_seen(size: int, completion: Any) -> None:
    level = "cg" if size == 16 else "ca"
    body = f"cp.async.{level}.shared.global [%r2], [%d2], {size}; cp.async.wait_all;"
    source, out = copied(body, step=size, completion=completion)
    assert out.tolist() == source.tolist()


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_bytes_past_the_source_size_are_zero(completion: Any) -> None:
    body = "cp.async.cg.shared.global [%r2], [%d2], 16, 6; cp.async.wait_all;"
    source, out = copied(body, completion=completion)
    expected = source.reshape(-1, 4) & np.array([0xFFFFFFFF, 0xFFFF, 0, 0], np.uint32)
    assert out.reshape(-1, 4).tolist() == expected.tolist()


def test_a_size_of_zero_reads_nothing() -> None:
    body = """setp.lt.u32 %p0, %r0, 16; selp.b32 %r3, 16, 0, %p0;
      @!%p0 mov.u64 %d2, 64; cp.async.cg.shared.global [%r2], [%d2], 16, %r3; cp.async.wait_all;"""
    source, out = copied(body)
    assert out.tolist() == source[:64].tolist() + [0] * 64


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_waiting_leaves_the_youngest_groups_pending(completion: Any) -> None:
    body = """cp.async.ca.shared.global [%r2], [%d2], 8; cp.async.commit_group;
      add.u32 %r3, %r2, 8; cp.async.ca.shared.global [%r3], [%d2+8], 8; cp.async.commit_group;
      cp.async.wait_group 1; ld.shared.b32 %r4, [%r2]; mad.wide.u32 %d5, %r0, 16, %d1;
      st.global.b32 [%d5], %r4; cp.async.wait_group 0;"""
    source, out = copied(body, completion=completion)
    assert out.tolist() == source.tolist()


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize(
    "ends",
    [
        "cp.async.commit_group;",
        "cp.async.wait_group 0;",
        "cp.async.commit_group; cp.async.wait_group 1;",
        "cp.async.commit_group; st.shared.b32 [%r2], %r0; cp.async.wait_group 0;",
        "cp.async.ca.shared.global [%r2], [%d2], 4; cp.async.wait_all;",
    ],
)
def test_what_a_copy_still_fills_may_not_be_touched(ends: str, completion: Any) -> None:
    with pytest.raises(DeviceFault) as error:
        copied("cp.async.cg.shared.global [%r2], [%d2], 16;" + ends, completion=completion)
    assert error.value.code == "E250"
    assert "the cp.async of 16 bytes (of warp 0 of block (0, 0, 0), PTX line" in str(error.value)


@pytest.mark.parametrize(
    ("code", "use"),
    [
        ("E250", "ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r1];"),
        ("E251", "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], 16;"),
    ],
)
def test_a_report_names_the_warp_that_fills_a_word_of_what_is_touched(code: str, use: str) -> None:
    # The warps fill every other word, and the first has waited.
    body = f"""
      and.b32 %r3, %r0, 31; shr.u32 %r8, %r0, 5; mad.lo.u32 %r3, %r3, 2, %r8;
      shl.b32 %r3, %r3, 2; add.u32 %r2, %r1, %r3; setp.eq.u32 %p0, %r0, 0;
      setp.eq.u32 %p1, %r8, 0; cp.async.ca.shared.global [%r2], [%d2], 4;
      @%p1 cp.async.wait_all; bar.sync 0; @%p0 {use} cp.async.wait_all;"""
    with pytest.raises(DeviceFault) as error:
        copied(body, step=4, n=64)
    assert error.value.code == code
    assert "the cp.async of 4 bytes (of warp 1 of block" in str(error.value)


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize(
    "ends",
    [
        "",
        "cp.async.wait_group 0;",
        "cp.async.commit_group;",
        "cp.async.commit_group; cp.async.wait_group 1;",
        "cp.async.commit_group; setp.lt.u32 %p0, %r0, 31; @%p0 cp.async.wait_group 0;",
    ],
)
def test_a_block_may_not_end_before_its_threads_have_waited(ends: str, completion: Any) -> None:
    text = module(
        START.format(step=16) + "cp.async.cg.shared.global [%r2], [%d2], 16;" + ends,
        ["u64", "u64"], REGISTERS,
    )  # fmt: skip
    words = np.zeros(128, np.uint32)
    with pytest.raises(DeviceFault, match=r"ends while the cp\.async of 16 bytes") as error:
        run(text, "k", (1,), (32,), [words, words], completion=completion)
    assert error.value.code == "E256"


def test_what_bypasses_the_first_cache_has_16_bytes() -> None:
    with pytest.raises(DeviceFault, match="copies 16 bytes, not 4") as error:
        copied("cp.async.cg.shared.global [%r2], [%d2], 4;")
    assert error.value.code == "E201"


def test_an_empty_group_counts_among_the_pending_ones() -> None:
    body = """cp.async.cg.shared.global [%r2], [%d2], 16; cp.async.commit_group;
      cp.async.commit_group; cp.async.wait_group 1;"""
    source, out = copied(body)
    assert out.tolist() == source.tolist()


def test_registers_may_change_after_the_issue() -> None:
    body = """mov.b32 %r3, 16; cp.async.cg.shared.global [%r2], [%d2], 16, %r3;
      mov.b32 %r3, 0; mov.b64 %d2, 0; cp.async.wait_all;"""
    source, out = copied(body)
    assert out.tolist() == source.tolist()


def test_a_misaligned_destination_is_a_fault() -> None:
    with pytest.raises(DeviceFault) as error:
        copied("cp.async.ca.shared.global [%r2+4], [%d2], 8; cp.async.wait_all;")
    assert error.value.code == "E221"


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize(("form", "count"), [(".noinc", 32), ("", 1)])
def test_an_mbarrier_is_told_when_the_copies_of_a_thread_are_done(
    form: str, count: int, completion: Any
) -> None:
    # Without `.noinc` the phase waits for the copies besides the arrival that it expects.
    own = "" if form else "bar.sync 0; @%p0 mbarrier.arrive.shared.b64 _, [sh+1024];"
    body = f"""setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [sh+1024], {count};
      bar.sync 0; cp.async.cg.shared.global [%r2], [%d2], 16;
      cp.async.mbarrier.arrive{form}.shared.b64 [sh+1024]; {own}
      WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [sh+1024], 0; @!%p1 bra WAIT;
      mbarrier.inval.shared.b64 [sh+1024];"""
    source, out = copied(
        body.replace("mbarrier.inval", "@%p0 mbarrier.inval"), completion=completion
    )
    assert out.tolist() == source.tolist()


# What thread t of 64 copies is %d2; of the other warp's thread t ^ 32, %d5.
SOURCES = f"""{START.format(step=16)}
  xor.b32 %r3, %r0, 32; mad.wide.u32 %d5, %r3, 16, %d0; st.shared.v4.b32 [%r2+1024],
  {{%r0, %r0, %r0, %r0}}; fence.proxy.async.shared::cta; setp.eq.u32 %p0, %r0, 0;
  add.u32 %r4, %r0, 1000; bar.sync 0;
"""
WIDER = REGISTERS.replace("2048", "4096")
ISSUE = "cp.async.cg.shared.global [%r2], [%d2], 16;"
WAIT = "cp.async.wait_all;"
BAR = "bar.sync 0;"
STORES = {
    "its own thread": "st.global.b32 [%d2+8], %r4;",
    "another warp": BAR + "st.global.b32 [%d5+12], %r4;",
    "an atomic": BAR + "@%p0 red.global.add.u32 [%d5], 1;",
    "bytes": BAR + "st.global.b8 [%d5+15], 99;",
    "many": BAR + "st.global.v4.b32 [%d5], {%r4, %r4, %r4, %r4};",
}
COPY = """@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d5], [%r1+1024], 16;
  @%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0;"""


def fetched(body: str, **options: Any) -> Any:
    words = np.arange(2 * 64 * 4, dtype=np.uint32)
    text = module(SOURCES + body, ["u64"], WIDER).replace("[p1]", "[p0]")
    run(text, "k", (1,), (64,), [words], **options)
    return words


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
@pytest.mark.parametrize("issue", [ISSUE, ISSUE + "cp.async.commit_group;"])
def test_what_is_read_in_flight_may_not_be_stored_to(
    issue: str, store: str, completion: Any
) -> None:
    with pytest.raises(DeviceFault, match=r"written while the cp\.async of 16 bytes") as error:
        fetched(issue + store + WAIT, completion=completion)
    assert error.value.code == "E250"
    assert "still reading it" in error.value.message


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_what_is_read_in_flight_may_not_be_copied_over(completion: Any) -> None:
    with pytest.raises(DeviceFault) as error:
        fetched(ISSUE + BAR + COPY + BAR + WAIT, completion=completion)
    assert error.value.code == "E251"


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize(
    "body",
    [
        ISSUE + WAIT + STORES["its own thread"],
        ISSUE + WAIT + STORES["another warp"],
        ISSUE + WAIT + BAR + COPY,
        # The older of two groups has been waited for.
        ISSUE + "cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 1;"
        + STORES["another warp"],
        # What is there already, and what lies beside it.
        ISSUE + "ld.global.b32 %r5, [%d2]; st.global.b32 [%d2], %r5;" + WAIT,
        "cp.async.ca.shared.global [%r2], [%d2], 8; st.global.b32 [%d2+8], %r4;" + WAIT,
        "cp.async.cg.shared.global [%r2], [%d2], 16, 4; st.global.b32 [%d2+4], %r4;" + WAIT,
        "cp.async.cg.shared.global [%r2], [%d2], 16, 0; st.global.b32 [%d2+4], %r4;" + WAIT,
        "cp.async.cg.shared.global [%r2], [%d2], 16, 6; st.global.b8 [%d2+6], 99;" + WAIT,
    ],
)  # fmt: skip
def test_what_is_not_read_in_flight_may_be_stored_to(body: str, completion: Any) -> None:
    fetched(body, completion=completion)


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("order", ["min-pc", "max-pc", "round-robin", 5])
def test_a_wait_that_nothing_orders_before_a_store_is_none(order: Any, completion: Any) -> None:
    body = ISSUE + BAR + "@%p0 bra WAITS; st.global.b32 [%d5], %r4; WAITS:" + WAIT
    with pytest.raises(DeviceFault) as error:
        fetched(body, completion=completion, order=order)
    assert error.value.code in ("E250", "E232")


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_store_that_nothing_orders_before_a_copy_is_a_race(completion: Any) -> None:
    body = "@%p0 st.global.b32 [%d5], %r4;" + ISSUE + BAR + WAIT
    with pytest.raises(DeviceFault, match="writes it") as error:
        fetched(body, completion=completion)
    assert error.value.code == "E232"


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("valid", [4, 6, 12])
def test_a_copy_reads_no_more_than_its_valid_bytes(valid: int, completion: Any) -> None:
    words = np.arange(2 * 64 * 4, dtype=np.uint32)
    end = words[: 63 * 4 + -(-valid // 4)]
    body = f"cp.async.cg.shared.global [%r2], [%d2], 16, {valid}; {WAIT}"
    text = module(SOURCES + body, ["u64"], WIDER).replace("[p1]", "[p0]")
    run(text, "k", (1,), (64,), [end], completion=completion)
