"""Tests of the variables of a module: initial values, addresses in them, what is constant."""

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from tests.emulator.running import module

REGISTERS = ".reg .b64 %d<16>; .reg .b32 %r<32>; .reg .pred %p<8>;"


def words(variable: str, declarations: str, n: int, dtype: Any = np.uint32) -> Any:
    """Return the first `n` elements of a variable as a kernel sees them."""
    out = np.zeros(n, dtype)
    width = out.itemsize * 8
    register = "%d3" if width == 64 else "%r1"
    body = f"""ld.param.u64 %d0, [p0]; mov.u32 %r0, %tid.x; mov.u64 %d1, {variable};
      mad.wide.u32 %d2, %r0, {width // 8}, %d1; ld.global.b{width} {register}, [%d2];
      mad.wide.u32 %d2, %r0, {width // 8}, %d0; st.global.b{width} [%d2], {register};"""
    run(module(body, ["u64"], REGISTERS, declarations), "k", (1,), (n,), [out])
    return out


def test_decimal_numbers_take_the_type_of_the_variable() -> None:
    declared = ".global .f32 vals[4] = { 0.33, 0.25, -0.125 };"
    got = words("vals", declared, 4, np.float32)
    assert got.tolist() == np.array([0.33, 0.25, -0.125, 0], np.float32).tolist()
    assert words("x", ".global .f64 x = 0f3FC00000;", 1, np.float64)[0] == 1.5


def test_rows_that_end_early_are_filled_up() -> None:
    assert words("x", ".global .s32 x[3][2] = { {1,2}, {3} };", 6).tolist() == [1, 2, 3, 0, 0, 0]
    vectors = ".global .v4 .u32 x[2] = { {1,2}, {3,4,5,6} };"
    assert words("x", vectors, 8).tolist() == [1, 2, 0, 0, 3, 4, 5, 6]


def test_an_array_without_its_first_length_has_as_many_rows_as_values() -> None:
    declared = ".global .u32 x[][3] = {{1, 2, 3}, {4, 5}};"
    assert words("x", declared, 6).tolist() == [1, 2, 3, 4, 5, 0]
    with pytest.raises(DeviceFault, match="outside"):
        words("x", declared, 7)


def test_numbers_and_addresses_may_stand_in_one_list() -> None:
    declared = """.global .u32 bar[3] = {2, 3, 5};
    .global .align 8 .u64 table[4] = {7, generic(bar)+4, bar, 9 + 1 - 4};"""
    table = words("table", declared, 4, np.uint64)
    assert (int(table[0]), int(table[3])) == (7, 6)
    assert int(table[1]) - int(table[2]) == 4


def test_bytes_of_an_address_are_masked_out_of_it() -> None:
    masks = ", ".join(f"{0xFF << 8 * k:#X}(generic(x)+4)".replace("0X", "0x") for k in range(8))
    declared = f""".global .align 4 .u32 x[2] = {{1, 77}};
    .global .align 1 .u8 packed[11] = {{5, {masks}, 0xFF(1000 + 546), 0xFF00(131187)}};"""
    out = np.zeros(2, np.uint32)
    body = """ld.param.u64 %d0, [p0]; mov.u32 %r0, 0; mov.u64 %d1, packed; mov.b64 %d3, 0;
      LOOP: cvt.u64.u32 %d4, %r0; add.u64 %d5, %d1, %d4; ld.global.u8 %d6, [%d5+1];
      shl.b32 %r1, %r0, 3; shl.b64 %d6, %d6, %r1; or.b64 %d3, %d3, %d6;
      add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, 8; @%p0 bra LOOP;
      ld.u32 %r2, [%d3]; ld.global.u8 %r3, [%d1+9]; ld.global.u8 %r4, [%d1+10];
      mad.lo.u32 %r3, %r4, 256, %r3; st.global.v2.b32 [%d0], {%r2, %r3};"""
    run(module(body, ["u64"], REGISTERS, declared), "k", (1,), (1,), [out])
    assert out.tolist() == [77, (1546 & 0xFF) + 256 * (131187 >> 8 & 0xFF)]


def test_a_variable_has_the_alignment_that_it_declares() -> None:
    declared = ".global .align 4 .u32 x; .global .align 256 .b8 y[3]; .global .align 8 .u64 p = y;"
    assert int(words("p", declared, 1, np.uint64)[0]) % 256 == 0


def test_variables_that_the_kernel_does_not_name_may_point_at_what_is_missing() -> None:
    declared = """.extern .func missing; .global .align 8 .u64 table[1] = {missing};
    .global .u32 x = 3;"""
    assert words("x", declared, 1).tolist() == [3]


def test_an_address_of_what_has_none_is_refused() -> None:
    with pytest.raises(DeviceFault, match=r"`p` is initialised with `nowhere`"):
        words("p", ".global .align 8 .u64 p = nowhere;", 1, np.uint64)


FUNCTIONS = """
.func (.param .b32 y) one(.param .b32 x) { .reg .b32 %r<2>; ld.param.b32 %r0, [x];
  add.u32 %r1, %r0, 1; st.param.b32 [y], %r1; ret; }
.func (.param .b32 y) ten(.param .b32 x) { .reg .b32 %r<2>; ld.param.b32 %r0, [x];
  add.u32 %r1, %r0, 10; st.param.b32 [y], %r1; ret; }
.global .align 8 .u64 table[2] = {one, ten};
.global .align 8 .u64 tables[1] = {generic(table)};
"""


def test_functions_of_which_only_a_table_of_a_table_knows_are_called() -> None:
    out = np.zeros(64, np.uint32)
    body = """ld.param.u64 %d0, [p0]; mov.u32 %r0, %tid.x; ld.global.u64 %d1, [tables];
      and.b32 %r1, %r0, 1; mad.wide.u32 %d2, %r1, 8, %d1; ld.u64 %d3, [%d2];
      { .param .b32 a; .param .b32 c; st.param.b32 [a], %r0;
      proto: .callprototype (.param .b32 _) _ (.param .b32 _);
      call (c), %d3, (a), proto; ld.param.b32 %r9, [c]; }
      mad.wide.u32 %d2, %r0, 4, %d0; st.global.b32 [%d2], %r9;"""
    run(module(body, ["u64"], REGISTERS, FUNCTIONS), "k", (1,), (64,), [out])
    assert out.tolist() == [t + (10 if t % 2 else 1) for t in range(64)]


def test_functions_that_come_back_through_a_pointer_keep_their_variables() -> None:
    outside = """
    .func (.param .b32 y) sum(.param .b32 n);
    .global .align 8 .u64 table[1] = {sum};
    .func (.param .b32 y) sum(.param .b32 n) { .reg .b32 %r<5>; .reg .pred %p<2>; .reg .b64 %d<2>;
      ld.param.b32 %r0, [n]; mov.b32 %r1, 0; setp.eq.u32 %p0, %r0, 0; @%p0 bra OUT;
      sub.u32 %r2, %r0, 1; ld.global.u64 %d0, [table];
      { .param .b32 a; .param .b32 c; st.param.b32 [a], %r2;
        proto: .callprototype (.param .b32 _) _ (.param .b32 _);
        call (c), %d0, (a), proto; ld.param.b32 %r1, [c]; }
      add.u32 %r1, %r1, %r0; OUT: st.param.b32 [y], %r1; ret; }"""
    out = np.zeros(32, np.uint32)
    body = """ld.param.u64 %d0, [p0]; mov.u32 %r0, %tid.x;
      { .param .b32 a; .param .b32 c; st.param.b32 [a], %r0; call.uni (c), sum, (a);
      ld.param.b32 %r9, [c]; } mad.wide.u32 %d2, %r0, 4, %d0; st.global.b32 [%d2], %r9;"""
    run(module(body, ["u64"], REGISTERS, outside), "k", (1,), (32,), [out])
    assert out.tolist() == [t * (t + 1) // 2 for t in range(32)]


def test_constants_are_told_from_global_memory_and_not_written() -> None:
    declared = ".const .align 4 .u32 c[1] = {5}; .global .align 4 .u32 g[1] = {6};"
    out = np.zeros(4, np.uint32)
    asked = "".join(
        f"isspacep.{space} %p{k}, %d{d}; selp.u32 %r{k}, 1, 0, %p{k};"
        for k, (space, d) in enumerate([("const", 1), ("global", 1), ("const", 2), ("global", 2)])
    )
    body = f"""ld.param.u64 %d0, [p0]; mov.u64 %d1, c; cvta.const.u64 %d1, %d1; mov.u64 %d2, g;
      cvta.global.u64 %d2, %d2; {asked} st.global.v4.b32 [%d0], {{%r0, %r1, %r2, %r3}};"""
    run(module(body, ["u64"], REGISTERS, declared), "k", (1,), (1,), [out])
    assert out.tolist() == [1, 0, 0, 1]
    body = "mov.u64 %d1, c; cvta.const.u64 %d1, %d1; mov.u32 %r0, 1; st.b32 [%d1], %r0;"
    with pytest.raises(DeviceFault) as error:
        run(module(body, [], REGISTERS, declared), "k", (1,), (1,), [])
    assert error.value.code == "E222"
