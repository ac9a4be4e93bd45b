"""Tests of loads, stores, state spaces and what is checked at each access."""

import mmap
from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, VirtualBuffer, run
from tests.emulator.running import bits_of, evaluate, module

REGISTERS = ".reg .b64 %d<16>; .reg .b32 %r<32>; .reg .b16 %h<16>; .reg .pred %p<8>;"


def launch(
    body: str,
    args: Any,
    *,
    threads: Any = 32,
    grid: Any = 1,
    kinds: Any = None,
    declarations: str = "",
    outside: str = "",
    **keywords: Any,
) -> None:
    """Run a kernel whose parameters are pointers (or `kinds`)."""
    kinds = kinds or ["u64"] * len(args)
    text = module(body, kinds, REGISTERS + declarations, outside)
    run(text, "k", (grid,), (threads,), args, **keywords)


def aligned(size_bytes: Any, to: int = 32) -> Any:
    """Return zeroed bytes at an address that is a multiple of `to`."""
    raw = np.zeros(size_bytes + to, np.uint8)
    skip = -raw.ctypes.data % to
    return raw[skip : skip + size_bytes]


def fault(*args: Any, **keywords: Any) -> Any:
    with pytest.raises(DeviceFault) as error:
        launch(*args, **keywords)
    return error.value


@pytest.mark.parametrize("kind", ["s8", "u8", "s16", "u16"])
def test_narrow_loads_extend_by_their_type(kind: str) -> None:
    size = int(kind[1:]) // 8
    dtype = np.dtype({"s": "i", "u": "u"}[kind[0]] + str(size))
    a = bits_of(64, dtype)
    out = np.zeros(64, np.int32)
    launch(
        f"""ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; mov.u32 %r0, %tid.x;
        mad.wide.u32 %d2, %r0, {size}, %d0; mad.wide.u32 %d3, %r0, 4, %d1;
        ld.global.{kind} %r1, [%d2]; st.global.b32 [%d3], %r1;""",
        [a, out],
        threads=64,
    )
    assert out.tolist() == a.astype(np.int32).tolist()


@pytest.mark.parametrize(
    ("vector", "bits"), [("v2", 32), ("v4", 32), ("v2", 64), ("v4", 16), ("v8", 32)]
)
def test_vectors_are_moved_whole(vector: Any, bits: int) -> None:
    count = int(vector[1])
    step = count * bits // 8
    a, out = (aligned(32 * step).view(f"u{bits // 8}") for _ in range(2))
    a[:] = bits_of(32 * count, f"u{bits // 8}")
    prefix = {16: "h", 32: "r", 64: "d"}[bits]
    names = ", ".join(f"%{prefix}{k + 4}" for k in range(count))
    launch(
        f"""ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; mov.u32 %r0, %tid.x;
        mad.wide.u32 %d2, %r0, {step}, %d0; mad.wide.u32 %d3, %r0, {step}, %d1;
        ld.global.{vector}.b{bits} {{{names}}}, [%d2];
        st.global.{vector}.b{bits} [%d3], {{{names}}};""",
        [a, out],
    )
    assert out.tolist() == a.tolist()


def test_a_guard_leaves_other_lanes_alone() -> None:
    a = np.arange(64, dtype=np.uint32)
    got = evaluate("mov.b32 %d, 7; setp.lt.u32 %p, %a, 3; @%p add.u32 %d, %a, 100;", "b32", "u4",
                   a=("b32", a))  # fmt: skip
    assert got.tolist() == [100, 101, 102] + [7] * 61


def test_shared_memory_belongs_to_the_block() -> None:
    out = np.zeros(4 * 64, np.uint32)
    launch(
        """ld.param.u64 %d0, [p0]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
        mad.lo.u32 %r2, %r1, 1000, %r0; shl.b32 %r3, %r0, 2; mov.u32 %r4, smem;
        add.u32 %r5, %r4, %r3;
        st.shared.b32 [%r5], %r2; bar.sync 0;
        xor.b32 %r6, %r3, 252; add.u32 %r6, %r6, %r4; ld.shared.b32 %r7, [%r6];
        mad.lo.u32 %r8, %r1, 64, %r0; mad.wide.u32 %d1, %r8, 4, %d0; st.global.b32 [%d1], %r7;""",
        [out],
        threads=64,
        grid=4,
        outside=".extern .shared .align 16 .b8 smem[];",
        shared_bytes=256,
    )
    assert out.reshape(4, 64).tolist() == [[b * 1000 + 63 - t for t in range(64)] for b in range(4)]


def test_static_arrays_come_before_dynamic_shared_memory() -> None:
    out = np.zeros(2, np.uint32)
    launch(
        """ld.param.u64 %d0, [p0]; mov.u32 %r0, fixed; mov.u32 %r1, dynamic;
        st.global.v2.b32 [%d0], {%r0, %r1};""",
        [out],
        threads=1,
        declarations=".shared .align 8 .b8 fixed[40];",
        outside=".extern .shared .align 32 .b8 dynamic[];",
        shared_bytes=16,
    )
    assert out.tolist() == [0, 64]


def test_generic_addresses_reach_every_space() -> None:
    out = np.zeros(4, np.uint32)
    launch(
        """ld.param.u64 %d0, [p0];
        mov.u64 %d1, sh; cvta.shared.u64 %d2, %d1; st.b32 [%d2], 5; ld.shared.b32 %r0, [sh];
        mov.u64 %d3, lo; cvta.local.u64 %d4, %d3; st.b32 [%d4], 6; ld.local.b32 %r1, [lo];
        mov.u64 %d5, table; cvta.global.u64 %d6, %d5; ld.b32 %r2, [%d6+4];
        isspacep.shared %p0, %d2; isspacep.global %p1, %d2; selp.u32 %r3, 1, 0, %p0;
        @%p1 add.u32 %r3, %r3, 10;
        st.global.v4.b32 [%d0], {%r0, %r1, %r2, %r3};""",
        [out],
        threads=1,
        declarations=".shared .align 8 .b8 sh[8]; .local .align 8 .b8 lo[8];",
        outside=".global .align 4 .u32 table[2] = {8, 9};",
    )
    assert out.tolist() == [5, 6, 9, 1]


def test_lanes_may_load_from_different_spaces_at_once() -> None:
    out = np.zeros(32, np.uint32)
    launch(
        """ld.param.u64 %d0, [p0]; mov.u32 %r0, %tid.x; st.shared.b32 [sh], 5;
        mov.u64 %d1, sh; cvta.shared.u64 %d2, %d1; mov.u64 %d3, table;
        setp.lt.u32 %p0, %r0, 16; selp.b64 %d4, %d2, %d3, %p0; ld.b32 %r1, [%d4];
        mad.wide.u32 %d5, %r0, 4, %d0; st.global.b32 [%d5], %r1;""",
        [out],
        declarations=".shared .align 8 .b8 sh[8];",
        outside=".const .align 4 .u32 table[1] = {77};",
    )
    assert out.tolist() == [5] * 16 + [77] * 16


def test_a_variable_may_hold_the_address_of_another() -> None:
    out = np.zeros(1, np.uint32)
    launch(
        """ld.param.u64 %d0, [p0]; mov.u64 %d1, pointer; ld.global.u64 %d2, [%d1];
        ld.b32 %r0, [%d2]; st.global.b32 [%d0], %r0;""",
        [out],
        threads=1,
        outside=".global .u32 one = 11; .global .u64 pointer = one;",
    )
    assert out.tolist() == [11]


def test_kernel_parameters_are_converted_to_their_type() -> None:
    out = np.zeros(4, np.uint32)
    launch(
        """ld.param.u64 %d0, [p0]; ld.param.b32 %r0, [p1]; ld.param.s8 %r1, [p2];
        ld.param.u16 %r2, [p3]; ld.param.b32 %r3, [p4];
        st.global.v4.b32 [%d0], {%r0, %r1, %r2, %r3};""",
        [out, 1.5, -2, np.uint16(7), np.float32(0.5)],
        threads=1,
        kinds=["u64", "f32", "s8", "u16", "b32"],
    )
    assert out.tolist() == [0x3FC00000, 0xFFFFFFFE, 7, 0x3F000000]


STORE = "ld.param.u64 %d0, [p0]; mov.u32 %r0, %tid.x; mad.wide.u32 %d1, %r0, {step}, %d0;"


def test_a_store_past_the_end_is_named_with_address_thread_and_allocation() -> None:
    a = np.zeros(30, np.uint32)
    error = fault(STORE.format(step=4) + "st.global.b32 [%d1], %r0;", [a])
    assert error.code == "E220"
    assert f"{a.ctypes.data + 120:#x}" in error.message
    assert "thread 30" in error.message
    assert "argument 0" in error.message
    assert (error.block, error.warp) == ((0, 0, 0), 0)
    assert error.ptx_line is not None


def test_a_load_before_the_start_is_a_fault() -> None:
    a = np.zeros(32, np.uint32)
    assert fault(STORE.format(step=4) + "ld.global.b32 %r1, [%d1+-8];", [a]).code == "E220"


def test_an_access_across_the_end_is_a_fault() -> None:
    a = np.zeros(31, np.uint16)[:30]
    assert fault("ld.param.u64 %d0, [p0]; ld.global.b64 %d1, [%d0+56];", [a]).code == "E220"


def test_a_misaligned_access_is_a_fault() -> None:
    a = np.zeros(32, np.uint32)
    error = fault("ld.param.u64 %d0, [p0]; ld.global.b32 %r1, [%d0+2];", [a])
    assert error.code == "E221"
    assert "multiple of 4" in error.message


def test_a_vector_must_be_aligned_to_its_whole_width() -> None:
    a = np.zeros(32, np.uint32)
    body = "ld.param.u64 %d0, [p0]; ld.global.v2.b32 {%r1, %r2}, [%d0+4];"
    assert fault(body, [a]).code == "E221"


def test_a_store_to_a_read_only_array_is_a_fault() -> None:
    a = np.zeros(32, np.uint32)
    a.flags.writeable = False
    error = fault(STORE.format(step=4) + "st.global.b32 [%d1], %r0;", [a])
    assert error.code == "E222"


@pytest.mark.parametrize("address", ["%r9", "-4"])
def test_shared_accesses_stay_inside_the_block(address: Any) -> None:
    body = f"mov.u32 %r9, 64; st.shared.b32 [{address}], 0;"
    assert fault(body, [], shared_bytes=64).code == "E220"


def test_local_accesses_stay_inside_their_space() -> None:
    body = "mov.u64 %d0, lo; st.local.b32 [%d0+8], 1;"
    assert fault(body, [], declarations=".local .align 8 .b8 lo[8];").code == "E220"


def test_the_kernel_line_of_a_fault_comes_from_loc() -> None:
    body = ".loc 1 12 3\nld.param.u64 %d0, [p0];\n.loc 1 14 5\nld.global.b32 %r1, [%d0+400];"
    text = module(body, ["u64"], REGISTERS) + '\n.file 1 "kernel.py"\n'
    with pytest.raises(DeviceFault) as error:
        run(text, "k", (1,), (32,), [np.zeros(4, np.uint32)])
    assert error.value.kernel_line == ("kernel.py", 14, 5)


def test_arrays_of_any_strides_are_mapped_by_their_bytes() -> None:
    base = np.arange(64, dtype=np.uint32).reshape(8, 8)
    view = base[::-1, ::2].T
    out = np.zeros(1, np.uint32)
    launch(
        """ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1];
        ld.global.b32 %r0, [%d0+-32]; st.global.b32 [%d1], %r0;""",
        [view, out],
        threads=1,
    )
    assert out[0] == view[0, 1] == 48


def test_overlapping_views_are_one_allocation() -> None:
    base = np.arange(64, dtype=np.uint32)
    launch(
        """ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1];
        ld.global.b32 %r0, [%d0+4]; st.global.b32 [%d1+4], %r0;""",
        [base[:40], base[32:]],
        threads=1,
    )
    assert base[33] == 1


def test_an_empty_array_may_be_passed() -> None:
    launch("ld.param.u64 %d0, [p0];", [np.zeros(0, np.float32)])


def test_offsets_past_two_to_the_31_elements_reach_their_window() -> None:
    far = 4 * (2**31 + 5)
    window = np.array([1, 2, 3, 4], np.uint32)
    out = np.zeros(1, np.uint32)
    body = """ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; mov.u64 %d2, 2147483654;
        shl.b64 %d3, %d2, 2; add.s64 %d4, %d0, %d3; ld.global.b32 %r0, [%d4];
        st.global.b32 [%d1], %r0;"""
    launch(body, [VirtualBuffer(1 << 50, {far: window}), out], threads=1)
    assert out[0] == 2
    assert fault(body, [VirtualBuffer(1 << 50, {far + 8: window}), out], threads=1).code == "E220"


def test_pages_that_are_never_touched_cost_nothing() -> None:
    buffer = np.frombuffer(mmap.mmap(-1, 1 << 33), np.uint32)
    launch("ld.param.u64 %d0, [p0]; st.global.b32 [%d0+8589934588], 9;", [buffer], threads=1)
    assert buffer[-1] == 9


BULK = """
  ld.param.u64 %d0, [p0]; mov.u32 %r0, %tid.x; mov.u32 %r1, smem; mad.lo.u32 %r2, %r0, 4, %r1;
  st.shared.u32 [%r2], 9; st.shared.u32 [%r2+128], 9; bar.sync 0; setp.lt.u32 %p0, %r0, 2;
  mad.lo.u32 %r3, %r0, 40, %r1; mad.lo.u32 %r4, %r0, 16, {size}; cvt.u64.u32 %d3, %r3;
  cvta.shared.u64 %d3, %d3; cvt.u64.u32 %d4, %r4;
  @%p0 {store}; bar.sync 0;
  ld.shared.u32 %r5, [%r2]; mad.wide.u32 %d1, %r0, 4, %d0; st.global.u32 [%d1], %r5;"""
SHARED = ".shared .align 16 .b8 smem[256];"


@pytest.mark.parametrize(
    "store",
    [
        "st.bulk.weak.shared::cta [%r3+8], %r4, 0",
        "st.bulk [%d3+8], %d4, 0",
        "st.bulk.shared::cta [%r3+8], %d4, 0",
    ],
)
def test_a_bulk_store_fills_shared_memory_with_zeros(store: str) -> None:
    out = np.zeros(32, np.uint32)
    launch(BULK.format(store=store, size=8), [out], declarations=SHARED)
    assert np.flatnonzero(out == 0).tolist() == [2, 3, *range(12, 18)]


def test_a_bulk_store_keeps_to_its_rules() -> None:
    store = BULK.replace("{store}", "st.bulk.weak.shared::cta [%r3+8], %r4, 0")
    out = np.zeros(32, np.uint32)
    found = fault(store.format(size=12), [out], declarations=SHARED)
    assert (found.code, "st.bulk of 12 bytes" in str(found)) == ("E221", True)
    found = fault(store.format(size=248), [out], declarations=SHARED)
    assert found.code == "E220"
    ones = store.replace("%r4, 0", "%r4, 1").format(size=8)
    assert "the initial value must be 0" in str(fault(ones, [out], declarations=SHARED))


def test_a_bulk_store_races_like_any_other() -> None:
    ordered = BULK.format(store="st.bulk.weak.shared::cta [%r3+128], %r4, 0", size=8)
    options: Any = {"declarations": SHARED.replace("256", "512"), "threads": 64}
    launch(ordered, [np.zeros(64, np.uint32)], **options)
    unordered = ordered.replace("bar.sync 0;\n  ld", "ld")
    assert fault(unordered, [np.zeros(64, np.uint32)], **options).code == "E232"
