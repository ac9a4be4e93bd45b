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


def test_nothing_that_a_launch_wrote_is_there_in_the_next_one_of_the_program() -> None:
    body = """ld.param.u64 %d0, [p0]; ld.global.b32 %r1, [%d0]; setp.eq.s32 %p0, %r1, 0;
    @%p0 bra SKIP; mov.b32 %r2, 5; st.shared.b32 [sh], %r2; SKIP:
    bar.sync 0; ld.shared.b32 %r0, [sh]; add.u32 %r0, %r0, %r2; st.global.b32 [%d0], %r0;"""
    x = np.ones(64, np.uint32)
    launch(body, [x])
    assert x[0] == 10
    with pytest.raises(DeviceFault, match="E230"):
        launch(body, [np.zeros(64, np.uint32)])


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


# In %r0 the lower half is 7, and the upper one is read from where nothing has written.
HALF_WORD = """ld.param.u64 %d0, [p0]; st.shared.b16 [sh+32], 7; bar.sync 0;
  ld.shared.b32 %r0, [sh+32];"""
VOTE = """setp.eq.b32 %p0, %r0, 0x10007; setp.{low}.u32 %p1, 1, 0; or.pred %p0, %p0, %p1;
  vote.sync.any.pred %p1, %p0, -1;"""
# What is done with the word, and then used of it where the lower or the upper half decides.
PARTS = {
    "masked": ("and.b32 %r1, %r0, {low};", "0xffff", "0xffff0000", "st.global.b32 [%d0], %r1;"),
    "overlaid": ("or.b32 %r1, %r0, {low};", "0xffff0000", "0xffff", "st.global.b32 [%d0], %r1;"),
    "shifted": ("{low} %r1, %r0, 16;", "shl.b32", "shr.u32", "st.global.b32 [%d0], %r1;"),
    "extracted": ("bfe.u32 %r1, %r0, {low}, 8;", "4", "12", "st.global.b32 [%d0], %r1;"),
    "inserted": ("bfi.b32 %r1, 1, %r0, 16, {low};", "16", "8", "st.global.b32 [%d0], %r1;"),
    "permuted": ("prmt.b32 %r1, %r0, 0, {low};", "0x4410", "0x4420", "st.global.b32 [%d0], %r1;"),
    "unpacked": ("mov.b32 {{%h0, %h1}}, %r0;", "%h0", "%h1", "st.global.b16 [%d0], {low};"),
    "cut": ("cvt.u{low}.u32 %r1, %r0;", "16", "32", "st.global.b32 [%d0], %r1;"),
    "stored in part": ("", "b16", "b32", "st.global.{low} [%d0], %r0;"),
    "chosen": ("setp.{low}.u32 %p0, 1, 0; selp.b32 %r1, 5, %r0, %p0;", "ne", "eq",
               "st.global.b32 [%d0], %r1;"),
    "compared": ("setp.eq.b32 %p0, %r0, {low};", "6", "7", "@%p0 bra L; mov.b32 %r2, 0; L:"),
    "measured": ("setp.gt.u32 %p0, %r0, {low};", "6", "7", "@%p0 bra L; mov.b32 %r2, 0; L:"),
    "put to the vote": (VOTE, "ne", "eq", "@%p1 bra L; mov.b32 %r2, 0; L:"),
    "exchanged": ("shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; mov.b32 {{%h0, %h1}}, %r1;", "%h0",
                  "%h1", "st.global.b16 [%d0], {low};"),
    "doubled in halves": ("add.rn.f16x2 %r1, %r0, %r0; mov.b32 {{%h0, %h1}}, %r1;", "%h0", "%h1",
                          "st.global.b16 [%d0], {low};"),
    "multiplied": ("mul.lo.u32 %r1, %r0, 3; and.b32 %r1, %r1, {low};", "0xffff", "0x1ffff",
                   "st.global.b32 [%d0], %r1;"),
    "kept in shared memory": ("st.shared.b32 [sh+36], %r0; ld.shared.b16 %h0, [sh+{low}];", "36",
                              "38", "st.global.b16 [%d0], %h0;"),
    "loaded with a sign": ("ld.shared.s8 %r1, [sh+{low}];", "33", "34",
                           "st.global.b32 [%d0], %r1;"),
    "an address": ("and.b32 %r1, %r0, {low}; cvt.u64.u32 %d1, %r1; add.s64 %d1, %d1, %d0;", "4",
                   "0x10004", "ld.global.b32 %r1, [%d1];"),
    "an operand of an atomic": ("", "and.b32 %r0, %r0, 255;", "",
                                "{low} atom.global.add.u32 %r1, [%d0], %r0;"),
}  # fmt: skip


@pytest.mark.parametrize("what", PARTS)
def test_a_word_of_which_a_half_is_undefined_may_be_used_where_that_does_not_matter(
    what: str,
) -> None:
    work, fine, wrong, use = PARTS[what]
    body = HALF_WORD + work + use
    launch(body.format(low=fine), [np.zeros(64, np.uint32)])
    with pytest.raises(DeviceFault) as caught:
        launch(body.format(low=wrong), [np.zeros(64, np.uint32)])
    assert caught.value.code == "E230"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("st.global.b32 [%d0], %r0;", "its bits 16 to 31 come"),
        ("shr.u32 %r1, %r0, 16; st.global.b16 [%d0], %r1;", "it comes"),
        ("and.b32 %r1, %r0, 0x40007; st.global.b32 [%d0], %r1;", "its bit 18 comes"),
        ("and.b32 %r1, %r0, 0x50000; st.global.b32 [%d0], %r1;", "its bits 16 and 18 come"),
        ("and.b32 %r1, %r0, 0x1170000; st.global.b32 [%d0], %r1;",
         "its bits 16 to 18, 20 and 24 come"),
        ("and.b32 %r1, %r0, 0x55550000; st.global.b32 [%d0], %r1;",
         "its bits 16, 18, 20 and others come"),
        ("st.global.v2.b32 [%d0], {1, %r0};", "of its element 1 bits 16 to 31 come"),
    ],
)  # fmt: skip
def test_a_report_says_which_bits_are_undefined(body: str, part: str) -> None:
    with pytest.raises(DeviceFault) as caught:
        launch(HALF_WORD + body, [np.zeros(64, np.uint32)])
    assert f"stored to global memory: {part} from ld.shared.b32" in caught.value.message


def test_a_carry_is_undefined_where_what_it_comes_from_is() -> None:
    body = "add.cc.u32 %r1, {low}, 1; addc.u32 %r2, 0, 0; st.global.b32 [%d0], %r2;"
    launch(HALF_WORD + body.format(low="7"), [np.zeros(64, np.uint32)])
    assert code_of(body.format(low="%r0")) == "E230"


def test_a_carry_that_nothing_has_set_is_reported() -> None:
    with pytest.raises(DeviceFault, match=r"register CC\.CF, which nothing has written"):
        launch(START + "addc.u32 %r2, 0, 0; st.global.b32 [%d0], %r2;", [np.zeros(64, "u4")])


def test_what_an_exchange_puts_over_unwritten_memory_is_defined() -> None:
    body = "atom.shared.exch.b32 %r1, [sh+64], 5; bar.sync 0; ld.shared.b32 %r2, [sh+64];"
    body += "st.global.b32 [%d0], {low};"
    launch(START + body.format(low="%r2"), [np.zeros(64, np.uint32)])
    assert code_of(body.format(low="%r1")) == "E230"


def test_a_matrix_stored_by_a_warp_keeps_what_is_undefined() -> None:
    body = """mov.u32 %r2, %tid.x; shl.b32 %r3, %r2, 4; and.b32 %r3, %r3, 112; mov.u32 %r4, sh;
      add.u32 %r3, %r3, %r4; mov.b32 %r1, 1; setp.eq.u32 %p0, %r2, 0; @%p0 and.b32 %r1, %r0, 0xffff;
      @%p0 mov.b32 %r1, %r0; bar.sync 0;
      stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3], {%r1}; bar.sync 0;
      ld.shared.b16 %h0, [sh+{at}]; st.global.b16 [%d0], %h0;"""
    for fine in (0, 4, 6):
        launch(HALF_WORD + body.replace("{at}", str(fine)), [np.zeros(64, np.uint32)])
    with pytest.raises(DeviceFault) as caught:
        launch(HALF_WORD + body.replace("{at}", "2"), [np.zeros(64, np.uint32)])
    assert caught.value.code == "E230"
