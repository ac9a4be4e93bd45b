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
