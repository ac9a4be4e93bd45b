"""Tests of undefined values: where they come from, how far they go, where they are reported."""

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from tests.emulator.running import module

REGISTERS = ".reg .b64 %d<16>; .reg .b32 %r<32>; .reg .b16 %h<16>; .reg .pred %p<8>;"
SHARED = ".shared .align 16 .b8 sh[256];"
START = "ld.param.u64 %d0, [p0]; ld.shared.b32 %r0, [sh];"


def launch(body: str, args: Any, **keywords: Any) -> None:
    text = module(body, ["u64"] * len(args), REGISTERS + SHARED)
    run(text, "k", (1,), (32,), args, **keywords)


def code_of(body: str, **keywords: Any) -> Any:
    with pytest.raises(DeviceFault) as error:
        launch(START + body, [np.zeros(64, np.uint32)], **keywords)
    return error.value.code


USES = {
    "a store to global memory": "st.global.b32 [%d0], %r0;",
    "an address": "cvt.u64.u32 %d1, %r0; add.s64 %d1, %d1, %d0; ld.global.b32 %r1, [%d1];",
    "a branch": "setp.eq.s32 %p0, %r0, 0; @%p0 bra L; mov.b32 %r1, 0; L:",
    "a guard": "setp.eq.s32 %p0, %r0, 0; @%p0 mov.b32 %r1, 0;",
    "an atomic": "atom.global.add.u32 %r1, [%d0], %r0;",
    "a copy in registers": "mov.b32 %r1, %r0; add.u32 %r2, %r1, 1; st.global.b32 [%d0], %r2;",
    "a shuffle": "shfl.sync.idx.b32 %r1, %r0, 0, 31, -1; st.global.b32 [%d0], %r1;",
    "a copy in shared memory": "st.shared.b32 [sh+4], %r0; ld.shared.b32 %r1, [sh+4];"
    "st.global.b32 [%d0], %r1;",
    "what no operand decides": "setp.eq.s32 %p0, %r0, 0; setp.eq.u32 %p1, 1, 1;"
    "and.pred %p2, %p0, %p1; @%p2 bra L; mov.b32 %r1, 0; L:",
    "bits that are kept": "and.b32 %r1, %r0, 8; st.global.b32 [%d0], %r1;",
    "two of them": "and.b32 %r1, %r0, %r0; st.global.b32 [%d0], %r1;",
    "half of a vector": "mov.b64 %d1, {%r0, 7}; mov.b64 {%r1, %r2}, %d1; st.global.b32 [%d0], %r1;",
}


@pytest.mark.parametrize("use", USES)
def test_unwritten_shared_memory_is_reported_when_it_reaches(use: str) -> None:
    assert code_of(USES[use]) == "E230"


HARMLESS = {
    "never used": "",
    "overwritten": "mov.b32 %r0, 5; st.global.b32 [%d0], %r0;",
    "not selected": "setp.ne.s32 %p0, 0, 0; selp.b32 %r1, %r0, 3, %p0; st.global.b32 [%d0], %r1;",
    "written first": "bar.sync 0; st.shared.b32 [sh], 3; bar.sync 0; ld.shared.b32 %r0, [sh];"
    "st.global.b32 [%d0], %r0;",
    "absent from what another operand decides": "setp.eq.s32 %p0, %r0, 0; setp.eq.u32 %p1, 0, 1;"
    "and.pred %p2, %p0, %p1; not.pred %p3, %p1; or.pred %p4, %p3, %p0; and.pred %p5, %p4, %p2;"
    "selp.b32 %r1, 3, 4, %p5; and.b32 %r0, %r0, 0; or.b32 %r0, %r0, %r1;"
    "st.global.b32 [%d0], %r0;",
    "in a lane that is masked": "mov.u32 %r2, %tid.x; setp.gt.u32 %p0, %r2, 99;"
    "@%p0 st.global.b32 [%d0], %r0;",
}


@pytest.mark.parametrize("use", HARMLESS)
def test_an_undefined_value_is_no_fault_when(use: str) -> None:
    launch(START + HARMLESS[use], [np.zeros(64, np.uint32)])


def test_only_the_lanes_that_read_unwritten_bytes_are_undefined() -> None:
    out = np.zeros(32, np.uint32)
    launch(
        """ld.param.u64 %d0, [p0]; mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, sh;
        add.u32 %r2, %r2, %r1; setp.lt.u32 %p0, %r0, 16; @%p0 st.shared.b32 [%r2], %r0;
        ld.shared.b32 %r3, [%r2]; mad.wide.u32 %d1, %r0, 4, %d0;
        @%p0 st.global.b32 [%d1], %r3;""",
        [out],
    )
    assert out.tolist() == [*range(16), *[0] * 16]


HALF = "mov.u32 %r2, %tid.x; setp.lt.u32 %p1, %r2, 16;"
THROUGH = "add.u32 %r1, %r1, 1; st.shared.b32 [sh+4], %r2; add.u32 %r1, %r1, %r2;"


@pytest.mark.parametrize(
    ("body", "origin"),
    [
        (
            f"ld.shared.b32 %r1, [sh+8];\n mov.b32 %r2, 3; {THROUGH}",
            "ld.shared.b32 (PTX line 9), which reads what nothing has written",
        ),
        (
            f"{HALF} @%p1 mov.b32 %r1, 0;\n {THROUGH}",
            "register %r1, which nothing has written",
        ),
        (
            f"{HALF} mov.b32 %r1, 0; @!%p1 bra L;\n shfl.sync.idx.b32 %r1, %r2, 20, 31, 0xffff; L:",
            "shfl.sync.idx.b32 (PTX line 10), which takes it from a lane that takes no part",
        ),
        # Of two, the one that comes last in the text.
        (
            "ld.shared.b32 %r1, [sh+8];\n ld.shared.b32 %r2, [sh+12]; add.u32 %r1, %r1, %r2;",
            "ld.shared.b32 (PTX line 10)",
        ),
    ],
)
def test_a_report_says_where_the_value_comes_from(body: str, origin: str) -> None:
    with pytest.raises(DeviceFault) as caught:
        launch(f"ld.param.u64 %d0, [p0];\n{body}\nst.global.b32 [%d0], %r1;", [np.zeros(64, "u4")])
    text = "an undefined value is used as a value stored to global memory: it comes from "
    assert caught.value.message.startswith(text + origin)


def test_reading_an_unwritten_output_is_reported() -> None:
    out, copy = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    body = """ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; ld.global.b32 %r0, [%d0];
      st.global.b32 [%d1], %r0;"""
    launch(body, [out, copy])
    with pytest.raises(DeviceFault) as error:
        launch(body, [out, copy], uninitialised=[out])
    assert error.value.code == "E230"


def test_an_output_may_be_read_back_after_it_was_written() -> None:
    out = np.zeros(32, np.uint32)
    launch(
        """ld.param.u64 %d0, [p0]; st.global.b32 [%d0], 4; ld.global.b32 %r0, [%d0];
        st.global.b32 [%d0+4], %r0;""",
        [out],
        uninitialised=[out],
    )
    assert out[:2].tolist() == [4, 4]


def test_elements_of_a_vector_are_undefined_apart() -> None:
    out = np.zeros(4, np.uint32)
    body = """ld.param.u64 %d0, [p0]; st.shared.b32 [sh], 7; st.shared.b32 [sh+8], 9; bar.sync 0;
      ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [sh]; st.global.b32 [%d0], %r0;
      st.global.b32 [%d0+8], %r2;"""
    launch(body, [out])
    assert out.tolist() == [7, 0, 9, 0]
    with pytest.raises(DeviceFault):
        launch(body + "st.global.b32 [%d0+4], %r1;", [out])
