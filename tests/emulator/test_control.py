"""Tests of branches, calls, barriers, scheduling and deadlock."""

from typing import Any

import numpy as np
import pytest

from astdsl.emulator import DeviceFault, run
from astdsl.emulator.faults import Unsupported
from tests.emulator.running import module

REGISTERS = ".reg .b64 %d<16>; .reg .b32 %r<32>; .reg .b16 %h<16>; .reg .pred %p<8>;"
STORE = "ld.param.u64 %d0, [p0]; mad.wide.u32 %d1, %r0, 4, %d0; st.global.b32 [%d1], %r9;"
START = "mov.u32 %r0, %tid.x;"


def launch(
    body: str,
    *args: Any,
    threads: Any = 64,
    grid: Any = 1,
    declarations: str = "",
    outside: str = "",
    **keywords: Any,
) -> None:
    text = module(body, ["u64"] * len(args), REGISTERS + declarations, outside)
    run(text, "k", (grid,), (threads,), list(args), **keywords)


def results(body: str, n: int = 64, **keywords: Any) -> Any:
    """Return %r9 of every thread of one block."""
    out = np.zeros(n, np.uint32)
    launch(START + body + STORE, out, threads=n, **keywords)
    return out.tolist()


def test_threads_that_part_meet_again() -> None:
    body = """and.b32 %r1, %r0, 1; setp.eq.u32 %p0, %r1, 0;
      @%p0 bra EVEN; add.u32 %r9, %r0, 1000; bra DONE;
      EVEN: add.u32 %r9, %r0, 2000; DONE:"""
    assert results(body) == [t + (1000 if t % 2 else 2000) for t in range(64)]


def test_loops_run_as_often_as_each_thread_says() -> None:
    body = """mov.b32 %r9, 0; mov.b32 %r1, 0;
      LOOP: setp.ge.u32 %p0, %r1, %r0; @%p0 bra DONE;
      add.u32 %r9, %r9, %r1; add.u32 %r1, %r1, 1; bra LOOP; DONE:"""
    assert results(body) == [t * (t - 1) // 2 for t in range(64)]


def test_an_indirect_branch_takes_the_numbered_target() -> None:
    body = """rem.u32 %r1, %r0, 3; T: .branchtargets A, B, C; brx.idx %r1, T;
      A: mov.b32 %r9, 10; bra DONE; B: mov.b32 %r9, 20; bra DONE; C: mov.b32 %r9, 30; DONE:"""
    assert results(body) == [[10, 20, 30][t % 3] for t in range(64)]


def test_threads_may_end_early_without_holding_up_a_barrier() -> None:
    body = """mov.b32 %r9, 5; setp.lt.u32 %p0, %r0, 32; @%p0 bra ON; exit;
      ON: bar.sync 0; mov.b32 %r9, 6;"""
    assert results(body) == [6] * 32 + [0] * 32


def test_trap_is_a_fault_with_its_line() -> None:
    with pytest.raises(DeviceFault) as error:
        launch("mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 40; @%p0 trap;")
    assert (error.value.code, error.value.warp) == ("E212", 1)


FUNCTION = """
.func (.param .b32 result) twice_plus(.param .b32 x, .param .align 8 .b8 pair[16])
{ .reg .b32 %r<4>; .reg .b64 %d<2>;
  ld.param.b32 %r0, [x]; ld.param.b32 %r1, [pair+8]; mad.lo.u32 %r2, %r0, 2, %r1;
  st.param.b32 [result], %r2; ret; }
"""
CALL = """{ .param .b32 a; .param .align 8 .b8 b[16]; .param .b32 c;
  st.param.b32 [a], %r0; st.param.b64 [b], 0; st.param.b32 [b+8], 100;
  call.uni (c), twice_plus, (a, b); ld.param.b32 %r9, [c]; }"""


def test_functions_take_parameters_and_give_results() -> None:
    assert results(CALL, outside=FUNCTION) == [2 * t + 100 for t in range(64)]


def test_functions_called_by_some_threads_only() -> None:
    body = f"mov.b32 %r9, 1; setp.lt.u32 %p0, %r0, 40; @%p0 bra OVER; {CALL} OVER:"
    expected = [1] * 40 + [2 * t + 100 for t in range(40, 64)]
    assert results(body, outside=FUNCTION) == expected


def test_functions_with_register_parameters() -> None:
    outside = """.func (.reg .b32 y) next(.reg .b32 x) { add.u32 y, x, 1; ret; }"""
    assert results("call (%r9), next, (%r0);", outside=outside) == [t + 1 for t in range(64)]


def test_functions_called_through_a_pointer() -> None:
    outside = """
    .func (.param .b32 y) one(.param .b32 x) { .reg .b32 %r<2>; ld.param.b32 %r0, [x];
      add.u32 %r1, %r0, 1; st.param.b32 [y], %r1; ret; }
    .func (.param .b32 y) ten(.param .b32 x) { .reg .b32 %r<2>; ld.param.b32 %r0, [x];
      add.u32 %r1, %r0, 10; st.param.b32 [y], %r1; ret; }"""
    body = """mov.u64 %d2, one; mov.u64 %d3, ten; setp.lt.u32 %p0, %r0, 32;
      selp.b64 %d4, %d2, %d3, %p0;
      { .param .b32 a; .param .b32 c; st.param.b32 [a], %r0;
      proto: .callprototype (.param .b32 _) _ (.param .b32 _);
      call (c), %d4, (a), proto; ld.param.b32 %r9, [c]; }"""
    assert results(body, outside=outside) == [t + (1 if t < 32 else 10) for t in range(64)]


def test_functions_may_call_themselves() -> None:
    outside = """
    .func (.param .b32 y) triangle(.param .b32 n) { .reg .b32 %r<5>; .reg .pred %p<2>;
      ld.param.b32 %r0, [n]; mov.b32 %r1, 0; setp.eq.u32 %p0, %r0, 0; @%p0 bra OUT;
      sub.u32 %r2, %r0, 1;
      { .param .b32 a; .param .b32 c; st.param.b32 [a], %r2; call.uni (c), triangle, (a);
        ld.param.b32 %r1, [c]; }
      add.u32 %r1, %r1, %r0; OUT: st.param.b32 [y], %r1; ret; }"""
    body = """{ .param .b32 a; .param .b32 c; st.param.b32 [a], %r0; call.uni (c), triangle, (a);
      ld.param.b32 %r9, [c]; }"""
    assert results(body, outside=outside) == [t * (t + 1) // 2 for t in range(64)]


def test_a_function_without_body_is_refused_before_the_run() -> None:
    with pytest.raises(Unsupported, match="missing"):
        launch("call.uni missing;", outside=".extern .func missing;")


def test_an_unknown_opcode_is_refused_by_name_and_line() -> None:
    with pytest.raises(Unsupported, match=r"frobnicate\.b32") as error:
        launch("ret;\nfrobnicate.b32 %r0, %r1;")
    assert error.value.ptx_line is not None


def test_an_unknown_modifier_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match=r"\.sideways"):
        launch("add.sideways.u32 %r0, %r1, %r2;")


def test_barriers_order_what_is_written_before_with_what_is_read_after() -> None:
    body = """shl.b32 %r1, %r0, 2; mov.u32 %r2, sh; add.u32 %r3, %r2, %r1;
      setp.lt.u32 %p0, %r0, 32; @!%p0 bra LATE;
      st.shared.b32 [%r3], %r0; bar.sync 0; bra NEXT;
      LATE: mov.b32 %r4, 0; SPIN: add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 20; @%p1 bra SPIN;
      st.shared.b32 [%r3], %r0; bar.sync 0; NEXT:
      xor.b32 %r5, %r1, 252; add.u32 %r5, %r2, %r5; ld.shared.b32 %r9, [%r5];"""
    got = results(body, declarations=".shared .align 4 .b8 sh[256];")
    assert got == list(range(63, -1, -1))


def test_named_barriers_count_the_threads_they_are_told() -> None:
    body = """setp.lt.u32 %p0, %r0, 32; @%p0 bra PRODUCE;
      bar.sync 3, 64; ld.shared.b32 %r9, [sh]; bra DONE;
      PRODUCE: st.shared.b32 [sh], 9; bar.arrive 3, 64; mov.b32 %r9, 1; DONE:"""
    got = results(body, declarations=".shared .align 4 .b8 sh[4];")
    assert got == [1] * 32 + [9] * 32


@pytest.mark.parametrize(
    ("form", "type_name", "expected"),
    [("popc.u32", "u32", 10), ("and.pred", "pred", 0), ("or.pred", "pred", 1)],
)
def test_barriers_reduce_predicates(form: str, type_name: Any, expected: Any) -> None:
    result = "%r9" if type_name == "u32" else "%p1"
    body = f"setp.lt.u32 %p0, %r0, 10; barrier.red.{form} {result}, 0, %p0;"
    if type_name == "pred":
        body += "selp.u32 %r9, 1, 0, %p1;"
    assert results(body) == [expected] * 64


def test_a_barrier_that_someone_never_reaches_is_a_deadlock_with_the_counts() -> None:
    with pytest.raises(DeviceFault) as error:
        launch(START + "setp.lt.u32 %p0, %r0, 32; @%p0 bra W; bar.sync 1; W: bar.sync 2, 64;")
    assert error.value.code == "E210"
    assert "barrier 1, 32 of 64" in error.value.message
    assert "barrier 2, 32 of 64" in error.value.message


def test_counts_that_disagree_are_a_fault() -> None:
    with pytest.raises(DeviceFault) as error:
        launch(START + "setp.lt.u32 %p0, %r0, 32; @%p0 bra W; bar.sync 1, 96; W: bar.sync 1, 64;")
    assert error.value.code == "E213"


def test_barrier_counts_are_whole_warps() -> None:
    with pytest.raises(DeviceFault) as error:
        launch("bar.sync 1, 40;")
    assert error.value.code == "E213"


def test_a_thread_that_spins_on_memory_does_not_starve_the_one_it_waits_for() -> None:
    body = """setp.ge.u32 %p0, %r0, 32; @%p0 bra SET;
      WAIT: ld.volatile.shared.b32 %r1, [flag]; setp.eq.u32 %p1, %r1, 0; @%p1 bra WAIT;
      mov.b32 %r9, 4; bra DONE;
      SET: mov.b32 %r9, 3; st.volatile.shared.b32 [flag], 1; DONE:"""
    init = """setp.eq.u32 %p2, %r0, 0; @%p2 st.shared.b32 [flag], 0; bar.sync 0;"""
    got = results(init + body, declarations=".shared .align 4 .b8 flag[4];")
    assert got == [4] * 32 + [3] * 32


def test_grids_larger_than_a_batch_run_whole() -> None:
    n = 200_000
    out = np.zeros(n, np.uint32)
    launch(
        """mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
        mad.lo.u32 %r0, %r1, %r2, %r3; setp.ge.u32 %p0, %r0, 200000; @%p0 bra DONE;
        mov.b32 %r9, %r0;"""
        + STORE
        + "DONE:",
        out,
        threads=256,
        grid=-(-n // 256),
    )
    assert (out == np.arange(n)).all()


@pytest.mark.parametrize("grid", [(3,), (2, 3), (2, 2, 2), (0,)])
def test_blocks_know_their_place_in_the_grid(grid: Any) -> None:
    grid = (*grid, 1, 1, 1)[:3]
    total = grid[0] * grid[1] * grid[2]
    out = np.zeros((max(total, 1), 3), np.uint32)
    body = """mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ctaid.y; mov.u32 %r2, %ctaid.z;
      mov.u32 %r3, %nctaid.x; mov.u32 %r4, %nctaid.y; mad.lo.u32 %r5, %r2, %r4, %r1;
      mad.lo.u32 %r5, %r5, %r3, %r0; ld.param.u64 %d0, [p0]; mad.wide.u32 %d1, %r5, 12, %d0;
      st.global.b32 [%d1], %r0; st.global.b32 [%d1+4], %r1; st.global.b32 [%d1+8], %r2;"""
    run(module(body, ["u64"], REGISTERS), "k", grid, (1,), [out])
    expected = [[x, y, z] for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
    assert out.tolist() == (expected or [[0, 0, 0]])


def test_threads_know_their_place_in_the_block() -> None:
    out = np.zeros((24, 3), np.uint32)
    body = """mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z;
      mad.lo.u32 %r5, %r2, 3, %r1; mad.lo.u32 %r5, %r5, 4, %r0; ld.param.u64 %d0, [p0];
      mad.wide.u32 %d1, %r5, 12, %d0;
      st.global.b32 [%d1], %r0; st.global.b32 [%d1+4], %r1; st.global.b32 [%d1+8], %r2;"""
    run(module(body, ["u64"], REGISTERS), "k", (1,), (4, 3, 2), [out])
    assert out.tolist() == [[x, y, z] for z in range(2) for y in range(3) for x in range(4)]


@pytest.mark.parametrize(
    ("block", "cluster", "directive"),
    [
        ((2048,), (1,), ""),
        ((64,), (2,), ""),
        ((64,), (1,), ".reqntid 128"),
        ((64,), (1,), ".maxntid 32"),
    ],
)
def test_launches_that_the_target_forbids_are_refused(
    block: Any, cluster: Any, directive: str
) -> None:
    text = (
        f".version 8.8 .target sm_90a .address_size 64 .visible .entry k() {directive} {{ ret; }}"
    )
    with pytest.raises(DeviceFault) as error:
        run(text, "k", (3,), block, [], cluster=cluster)
    assert error.value.code == "E202"


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(DeviceFault) as error:
        run(module("", ["u64"]), "k", (1,), (1,), [])
    assert error.value.code == "E203"


def test_a_kernel_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(Unsupported, match="its kernels: k"):
        run(module("", []), "other", (1,), (1,), [])


def test_blocks_may_wait_for_later_blocks() -> None:
    out = np.zeros(101, np.uint32)
    body = """ld.param.u64 %d0, [p0]; mov.u32 %r0, %ctaid.x;
      atom.global.add.u32 %r1, [%d0+400], 1;
      WAIT: ld.acquire.gpu.global.b32 %r2, [%d0+400]; setp.lt.u32 %p0, %r2, 100; @%p0 bra WAIT;
      mad.wide.u32 %d1, %r0, 4, %d0; st.global.b32 [%d1], %r2;"""
    launch(body, out, threads=1, grid=100)
    assert out.tolist() == [100] * 101


@pytest.mark.parametrize("order", ["min-pc", "max-pc", "round-robin", 1, 2])
def test_results_do_not_depend_on_which_thread_goes_first(order: Any) -> None:
    body = """mov.b32 %r9, 0; mov.b32 %r1, 0;
      LOOP: setp.ge.u32 %p0, %r1, %r0; @%p0 bra DONE;
      add.u32 %r9, %r9, %r1; add.u32 %r1, %r1, 1; bra LOOP; DONE:
      shl.b32 %r2, %r0, 2; mov.u32 %r3, sh; add.u32 %r3, %r3, %r2; st.shared.b32 [%r3], %r9;
      bar.sync 0; xor.b32 %r2, %r2, 252; mov.u32 %r3, sh; add.u32 %r3, %r3, %r2;
      ld.shared.b32 %r4, [%r3]; shfl.sync.bfly.b32 %r9, %r4, 31, 31, -1;"""
    got = results(body, declarations=".shared .align 4 .b8 sh[256];", order=order)
    sums = [t * (t - 1) // 2 for t in range(64)]
    assert got == [sums[32 * (1 - t // 32) + t % 32] for t in range(64)]


@pytest.mark.parametrize("count", [20, 100, 264])
def test_register_counts_that_do_not_exist_are_refused(count: int) -> None:
    with pytest.raises(Unsupported, match="multiple of 8"):
        launch(f"setmaxnreg.inc.sync.aligned.u32 {count};")


@pytest.mark.parametrize(
    "loop",
    [
        "L: bra L;",
        "L: ld.volatile.shared.b32 %r1, [sh]; setp.eq.u32 %p0, %r1, 0; @%p0 bra L;",
        "and.b32 %r2, %r0, 1; L: add.u32 %r3, %r2, 1; setp.gt.u32 %p0, %r3, 0; @%p0 bra L;",
    ],
)
def test_threads_that_go_round_for_ever_are_reported(loop: str) -> None:
    init = "mov.u32 %r0, %tid.x; st.shared.b32 [sh], 0; bar.sync 0;"
    with pytest.raises(DeviceFault) as error:
        launch(init + loop, declarations=".shared .align 4 .b8 sh[4];")
    assert error.value.code == "E215"


def test_a_long_loop_is_not_one_for_ever() -> None:
    body = """mov.b32 %r9, 0; L: add.u32 %r9, %r9, 1; setp.lt.u32 %p0, %r9, 70000; @%p0 bra L;"""
    assert results(body, 32) == [70000] * 32


def test_a_warp_divided_between_two_barriers_is_a_fault() -> None:
    body = """mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 1; setp.eq.u32 %p0, %r1, 0;
      @%p0 bra EVEN; bar.sync 0; bra END; EVEN: bar.sync 0; END:"""
    text = module(body, ["u64"], ".reg .b32 %r<4>; .reg .pred %p<2>; .shared .b8 sh[16];")
    for order in ("min-pc", "max-pc"):
        with pytest.raises(DeviceFault, match="divided between two") as error:
            run(text, "k", (1,), (64,), [np.zeros(1)], order=order)
        assert error.value.code == "E214"
    run(text.replace("bar.sync", "barrier.sync"), "k", (1,), (64,), [np.zeros(1)])


def test_who_sleeps_lets_the_others_go_first() -> None:
    body = """mov.b32 %r9, 0; mov.u32 %r2, flag; setp.lt.u32 %p0, %r0, 32; @%p0 bra WORK;
      SPIN: add.u32 %r9, %r9, 1; nanosleep.u32 20; ld.acquire.cta.shared.b32 %r3, [%r2];
      setp.eq.s32 %p1, %r3, 0; @%p1 bra SPIN; bra DONE;
      WORK: mov.b32 %r4, 0; LOOP: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 20; @%p2 bra LOOP;
      mov.b32 %r5, 1; st.release.cta.shared.b32 [%r2], %r5; DONE:"""
    start = "mov.b32 %r8, 0; st.shared.b32 [flag], %r8; bar.sync 0;"
    got = results(start + body, declarations=".shared .align 4 .b32 flag;", order="min-pc")
    assert got[:32] == [0] * 32
    assert max(got) < 64
