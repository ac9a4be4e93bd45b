"""Tests of what the device runtime provides: printf, assert, malloc, and of the stack."""

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from tests.emulator.running import module

REGISTERS = """.reg .b64 %d<16>; .reg .b32 %r<32>; .reg .f64 %g<4>; .reg .pred %p<8>;
.local .align 8 .b8 buffer[64];"""
DECLARED = """
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d,
  .param .b64 e);
.extern .func (.param .b64 r) malloc(.param .b64 a);
.extern .func free(.param .b64 a);
"""
PRINT = """mov.u64 %d1, text; cvta.global.u64 %d1, %d1; mov.u64 %d2, buffer;
  cvta.local.u64 %d2, %d2;
  { .param .b64 a; .param .b64 b; .param .b32 c; st.param.b64 [a], %d1; st.param.b64 [b], %d2;
  call.uni (c), vprintf, (a, b); ld.param.b32 %r9, [c]; }
  ld.param.u64 %d0, [p0]; mad.wide.u32 %d3, %r0, 4, %d0; st.global.b32 [%d3], %r9;"""
MALLOC = """{ .param .b64 a; .param .b64 c; st.param.b64 [a], %d1; call.uni (c), malloc, (a);
  ld.param.b64 %d2, [c]; }"""
FREE = "{ .param .b64 a; st.param.b64 [a], %d2; call.uni free, (a); }"
START = "mov.u32 %r0, %tid.x;"


def text(name: str, content: str) -> str:
    octets = content.encode() + b"\0"
    return f".global .align 1 .b8 {name}[{len(octets)}] = {{{', '.join(map(str, octets))}}};"


def launch(body: str, *args: Any, threads: int = 2, outside: str = "") -> None:
    whole = module(START + body, ["u64"] * len(args), REGISTERS, DECLARED + outside)
    run(whole, "k", (1,), (threads,), list(args))


def printed(form: str, stores: str, capsys: Any) -> tuple[str, list[int]]:
    counts = np.zeros(2, np.int32)
    launch(stores + PRINT, counts, outside=text("text", form) + text("name", "warp"))
    return capsys.readouterr().out, counts.tolist()


def test_printf_prints_each_thread_and_gives_the_number_of_values(capsys: Any) -> None:
    stores = """st.local.b32 [buffer], %r0; mov.b64 %d5, 0d3FF8000000000000;
      st.local.b64 [buffer+8], %d5; st.local.b32 [buffer+16], 97; mov.u64 %d4, name;
      cvta.global.u64 %d4, %d4; st.local.b64 [buffer+24], %d4; st.local.b64 [buffer+32], -1;"""
    out, counts = printed("%d %.2f %c%% %-6s|%llx\n", stores, capsys)
    assert out == "0 1.50 a% warp  |ffffffffffffffff\n1 1.50 a% warp  |ffffffffffffffff\n"
    assert counts == [5, 5]


@pytest.mark.parametrize(
    ("form", "expected"),
    [("%u", "4294967295"), ("%hhu", "255"), ("%i", "-1"), ("%5d|", "   -1|"), ("%hd", "-1")],
)
def test_printf_reads_integers_as_their_size_and_sign_say(
    form: str, expected: str, capsys: Any
) -> None:
    assert printed(form, "st.local.b32 [buffer], -1;", capsys)[0] == expected * 2


def test_printf_takes_widths_and_precisions_from_its_values(capsys: Any) -> None:
    stores = """st.local.b32 [buffer], 8; st.local.b32 [buffer+4], 3;
      mov.b64 %d5, 0d3FF0000000000000; st.local.b64 [buffer+8], %d5;"""
    assert printed("%*.*f|", stores, capsys) == ("   1.000|" * 2, [3, 3])


def test_printf_without_values_gives_none(capsys: Any) -> None:
    assert printed("hello\n", "", capsys) == ("hello\nhello\n", [0, 0])


def test_printing_what_nothing_has_written_is_a_fault(capsys: Any) -> None:
    with pytest.raises(DeviceFault) as error:
        printed("%d", "", capsys)
    assert error.value.code == "E230"


def test_an_assertion_that_fails_is_a_fault_with_its_text() -> None:
    body = """setp.lt.u32 %p0, %r0, 40; @%p0 bra OK; mov.u64 %d1, text; mov.u64 %d2, file;
      mov.u64 %d3, name;
      { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
      st.param.b64 [a], %d1; st.param.b64 [b], %d2; st.param.b32 [c], 12; st.param.b64 [d], %d3;
      st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }
      OK:"""
    outside = text("text", "i < n") + text("file", "x.cu") + text("name", "copy")
    with pytest.raises(DeviceFault, match=r"thread 40: .*`i < n` of `copy` \(x.cu:12\)") as error:
        launch(body, threads=64, outside=outside)
    assert (error.value.code, error.value.warp) == ("E212", 1)


def test_malloc_gives_each_thread_memory_of_its_own() -> None:
    out = np.zeros(64, np.uint32)
    body = f"""mov.b64 %d1, 16; {MALLOC} st.b32 [%d2+12], %r0; bar.sync 0; ld.b32 %r1, [%d2+12];
      {FREE} ld.param.u64 %d0, [p0]; mad.wide.u32 %d3, %r0, 4, %d0; st.global.b32 [%d3], %r1;"""
    launch(body, out, threads=64)
    assert out.tolist() == list(range(64))


@pytest.mark.parametrize(
    ("use", "code", "match"),
    [
        ("ld.b32 %r1, [%d2]; st.b32 [%d2], %r1;", "E230", "undefined"),
        ("mov.b32 %r1, 0; st.b32 [%d2+16], %r1;", "E220", "malloc"),
        (FREE + FREE, "E220", "it has been freed"),
        (FREE + "mov.b32 %r1, 0; st.b32 [%d2], %r1;", "E220", "outside"),
        ("add.u64 %d2, %d2, 4;" + FREE, "E220", "malloc did not give"),
    ],
)
def test_misuse_of_what_malloc_gave_is_a_fault(use: str, code: str, match: str) -> None:
    with pytest.raises(DeviceFault, match=match) as error:
        launch(f"mov.b64 %d1, 16; {MALLOC} {use}", threads=1)
    assert error.value.code == code


def test_malloc_gives_null_where_the_heap_is_full_and_free_takes_null() -> None:
    out = np.ones(1, np.uint64)
    body = f"""mov.b64 %d1, 100000000; {MALLOC} {FREE} ld.param.u64 %d0, [p0];
      st.global.b64 [%d0], %d2;"""
    launch(body, out, threads=1)
    assert out[0] == 0


def test_a_function_with_a_body_is_called_though_the_runtime_has_one() -> None:
    out = np.zeros(1, np.uint64)
    own = """.func (.param .b64 r) malloc(.param .b64 a) { .reg .b64 %d<2>; ld.param.b64 %d0, [a];
      add.u64 %d1, %d0, 5; st.param.b64 [r], %d1; ret; }"""
    body = f"mov.b64 %d1, 1; {MALLOC} ld.param.u64 %d0, [p0]; st.global.b64 [%d0], %d2;"
    launch(body, out, threads=1, outside=own)
    assert out[0] == 6


def test_alloca_gives_each_thread_as_much_as_it_asks_for() -> None:
    out = np.zeros(64, np.uint32)
    body = """and.b32 %r1, %r0, 3; add.u32 %r1, %r1, 1; shl.b32 %r2, %r1, 5; cvt.u64.u32 %d1, %r2;
      alloca.u64 %d2, %d1, 16; alloca.u64 %d4, 8; st.local.b32 [%d4], 1000;
      st.local.b32 [%d2], %r0; sub.u64 %d3, %d2, %d4; ld.local.b32 %r3, [%d2];
      ld.local.b32 %r4, [%d4]; add.u32 %r3, %r3, %r4; and.b64 %d2, %d2, 15;
      cvt.u32.u64 %r4, %d2; add.u32 %r3, %r3, %r4;
      ld.param.u64 %d0, [p0]; mad.wide.u32 %d3, %r0, 4, %d0; st.global.b32 [%d3], %r3;"""
    launch(body, out, threads=64)
    assert out.tolist() == [1000 + t for t in range(64)]


def test_what_is_allocated_again_counts_as_unwritten() -> None:
    out = np.zeros(1, np.uint32)
    body = """stacksave.u64 %d1; alloca.u64 %d2, 16; st.local.b32 [%d2], 7; stackrestore.u64 %d1;
      alloca.u64 %d3, 16; ld.local.b32 %r1, [%d3]; ld.param.u64 %d0, [p0];
      st.global.b32 [%d0], %r1;"""
    with pytest.raises(DeviceFault) as error:
        launch(body, out, threads=1)
    assert error.value.code == "E230"


def test_a_function_gives_back_what_it_allocated() -> None:
    own = """.func deep { .reg .b64 %d<2>; alloca.u64 %d0, 8000; ret; }"""
    launch("call.uni deep; call.uni deep; call.uni deep; call.uni deep;", outside=own)


def test_more_than_the_stack_has_is_a_fault() -> None:
    with pytest.raises(DeviceFault, match="alloca of 20000 bytes") as error:
        launch("alloca.u64 %d0, 20000;")
    assert error.value.code == "E220"
