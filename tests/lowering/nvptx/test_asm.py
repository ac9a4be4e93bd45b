"""Inline-PTX rows: what each effect lets the optimiser do, and that every row assembles."""

import subprocess
import sys

import pytest

from astdsl.lowering.nvptx import assemble
from astdsl.lowering.nvptx.asm import arith, barriers, control, copies, tcgen05, warp, wgmma
from astdsl.lowering.nvptx.asm.row import AsmRow, Effect
from astdsl.lowering.nvptx.llvm import LaunchBounds
from astdsl.lowering.nvptx.values import LV, constant, i1, i32, i64
from astdsl.lowering.target import SM_90A, SM_100A, TARGETS, Target
from tests.lowering.nvptx.kernels import begin, element, loop, ptx_of
from tests.lowering.nvptx.samples import F16, made_rows, multiply, rows_for, unused_makers


def lower_in_child(what: str, target: Target) -> str:
    command = [sys.executable, "-m", "tests.lowering.nvptx.samples", what, target.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_every_row_assembles_on_the_targets_that_have_it(target: Target) -> None:
    ptx = lower_in_child("rows", target)
    assert ptx.count(".entry row_") == len(rows_for(target))
    assert assemble.assemble(ptx, target).image


def test_each_target_has_rows_that_the_other_lacks() -> None:
    only_90 = {row.name for row in rows_for(SM_90A)} - {row.name for row in rows_for(SM_100A)}
    only_100 = {row.name for row in rows_for(SM_100A)} - {row.name for row in rows_for(SM_90A)}
    assert {name.split(".")[0] for name in only_90} == {"wgmma"}
    assert {name.split(".")[0] for name in only_100} == {"redux", "tcgen05"}


def test_every_function_that_makes_rows_is_sampled() -> None:
    wgmma.wait.cache_clear()
    assert unused_makers() >= {wgmma.wait.__module__ + ".wait"}
    assert list(made_rows())
    assert unused_makers() == set()


def test_an_unused_pure_row_disappears_and_an_equal_one_is_shared() -> None:
    module, builder = begin()
    value = builder.load("float", element(builder, "x"), 4)
    builder.asm(arith.LG2_APPROX, value)
    (first,), (second,) = (builder.asm(arith.EX2_APPROX, value) for _ in range(2))
    total = builder.binary("fadd", first, second)
    builder.store(total, element(builder, "y"), 4)
    builder.ret()
    ptx = ptx_of(module)
    assert "lg2.approx" not in ptx
    assert ptx.count("ex2.approx") == 1


def test_an_unused_acting_row_stays_and_an_equal_one_is_repeated() -> None:
    clock = AsmRow(
        name="clock64", text="mov.u64 $now, %clock64;", effect=Effect.ACTS, outputs={"now": "i64"}
    )
    module, builder = begin()
    for _ in range(2):
        builder.asm(clock)
    builder.ret()
    assert ptx_of(module).count("%clock64") == 2


def test_a_converging_row_is_not_moved_into_a_branch() -> None:
    module, builder = begin()
    value = builder.load("i32", element(builder, "x", "i32"), 4)
    (other,) = builder.asm(warp.shuffle("bfly"), value, i32(1), i32(31), i32(-1))
    with builder.guarded(builder.icmp("eq", value, i32(0))):
        builder.store(other, element(builder, "y", "i32"), 4)
    builder.ret()
    ptx = ptx_of(module)
    assert ptx.index("shfl.sync") < ptx.index("bra")


def test_an_acting_row_keeps_loads_and_stores_on_their_side() -> None:
    module, builder = begin()
    builder.store(i32(1), builder.shared(0), 4)
    builder.asm(barriers.bar_sync(0, 128))
    builder.store(builder.load("i32", builder.shared(0), 4), element(builder, "y", "i32"), 4)
    builder.ret()
    ptx = ptx_of(module)
    assert ptx.index("st.shared") < ptx.index("bar.sync") < ptx.index("ld.shared")


def test_text_and_operands_of_a_row_must_agree() -> None:
    with pytest.raises(AssertionError, match="text and operands disagree"):
        AsmRow(name="bad", text="mov.b32 $a, $b;", effect=Effect.PURE, outputs={"a": "i32"})


def test_a_tied_register_need_not_be_named() -> None:
    row = AsmRow(name="wait", text="nop;", effect=Effect.ACTS, outputs={"d": "float"}, tied=1)
    assert row.operand_types == row.result_types == ("float",)


def test_a_row_cannot_tie_more_inputs_than_it_has_outputs() -> None:
    with pytest.raises(AssertionError, match="more tied inputs"):
        AsmRow(name="bad", text="nop;", effect=Effect.ACTS, tied=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: copies.tma_load(6),
        lambda: multiply(12, F16),
        lambda: wgmma.mma(("%acc0_0",), 8, F16),
        lambda: wgmma.Accumulator(0, "float", 4).names(2, 3),
        lambda: multiply(40, wgmma.Types("s32", "s8", "s8")),
        lambda: multiply(64, wgmma.Types("f32", "f32", "f32")),
        lambda: multiply(64, wgmma.Types("f16", "bf16", "bf16")),
        lambda: multiply(64, wgmma.Types("f32", "tf32", "tf32"), transpose_b=True),
        lambda: multiply(64, F16, a_in_registers=True, transpose_a=True),
        lambda: tcgen05.mma("f64"),
        lambda: tcgen05.scaled_mma("f16"),
        lambda: tcgen05.load(3),
        lambda: tcgen05.store(64, tcgen05.HALF),
        lambda: warp.shuffle("left"),
        lambda: warp.redux("mul.s32"),
        lambda: warp.vote("most"),
        lambda: warp.load_matrix(3),
        lambda: control.set_max_registers(100, increase=True),
    ],
)
def test_parameters_that_no_instruction_has_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(AssertionError):
        make()


def test_accumulators_stay_in_their_registers_with_one_product_in_flight() -> None:
    module, builder = begin()
    columns = 256
    accumulator = wgmma.Accumulator(0, "float", columns // 2)
    builder.declare(wgmma.declare(accumulator))
    builder.asm(wgmma.write(accumulator), *[constant("float", 0)] * accumulator.size)

    def multiply_and_wait_for_the_one_before(_step: LV) -> None:
        builder.asm(wgmma.FENCE)
        row = wgmma.mma(accumulator.names(0, accumulator.size), columns, F16)
        builder.asm(row, i64(1), i64(2), i1(True))
        builder.asm(wgmma.COMMIT)
        builder.asm(wgmma.wait(1))

    count = builder.load("i32", element(builder, "x", "i32"), 4)
    loop(builder, count, multiply_and_wait_for_the_one_before)
    builder.asm(wgmma.wait(0))
    for place, result in enumerate(builder.asm(wgmma.read(accumulator))):
        builder.store(result, builder.gep("float", element(builder, "y"), i64(128 * place)), 4)
    builder.ret()
    cubin = assemble.assemble(ptx_of(module), SM_90A)
    assert (cubin.messages, cubin.spill_bytes) == ((), 0)
    assert cubin.registers <= 168


def test_a_wait_that_is_missing_is_noticed_by_the_assembler() -> None:
    module, builder = begin()
    accumulator = wgmma.Accumulator(0, "float", 4)
    builder.declare(wgmma.declare(accumulator))
    builder.asm(wgmma.FENCE)
    builder.asm(wgmma.mma(accumulator.names(0, 4), 8, F16), i64(1), i64(2), i1(False))
    builder.asm(wgmma.COMMIT)
    results = builder.asm(wgmma.read(accumulator))
    builder.store(builder.binary("fadd", results[0], results[1]), element(builder, "y"), 4)
    builder.ret()
    messages = assemble.assemble(ptx_of(module), SM_90A).messages
    assert any("C7517" in message for message in messages)


def test_a_product_in_tensor_memory_assembles_without_messages() -> None:
    module, builder = begin(bounds=LaunchBounds(threads=128, blocks_per_multiprocessor=1))
    bar = builder.shared_address(builder.shared(0))
    place = builder.shared_address(builder.shared(8))
    first_warp = builder.icmp("ult", builder.special_register("tid.x"), i32(32))
    with builder.guarded(first_warp, "allocate"):
        builder.asm(tcgen05.alloc(64), place)
        builder.asm(tcgen05.RELINQUISH)
    builder.asm(barriers.bar_sync(0, 128))
    columns = builder.load("i32", builder.shared(8), 4)
    (leader,) = builder.asm(warp.ELECT, i32(-1))
    with builder.guarded(builder.and_(first_warp, leader), "multiply"):
        builder.asm(tcgen05.mma("f16"), columns, i64(1), i64(2), i32(3), i1(False))
        builder.asm(tcgen05.COMMIT, bar)
    builder.asm(barriers.MBARRIER_WAIT, bar, i32(0))
    builder.asm(tcgen05.FENCE_AFTER)
    cells = builder.asm(tcgen05.load(64), columns)
    for k, cell in enumerate(builder.asm(tcgen05.wait_load(64), *cells)):
        builder.store(cell, builder.gep("i32", element(builder, "y"), i64(128 * k)), 4)
    builder.asm(tcgen05.FENCE_BEFORE)
    builder.asm(barriers.bar_sync(0, 128))
    with builder.guarded(first_warp, "free"):
        builder.asm(tcgen05.dealloc(64), columns)
    builder.ret()
    cubin = assemble.assemble(ptx_of(module, SM_100A), SM_100A)
    assert (cubin.messages, cubin.spill_bytes) == ((), 0)
    assert cubin.registers <= 88


def test_a_loop_around_a_wait_has_one_copy_of_its_label() -> None:
    module, builder = begin()
    bar = builder.shared_address(builder.shared(0))
    for _ in range(2):
        loop(builder, 3, lambda step: builder.asm(barriers.MBARRIER_WAIT, bar, step))
    builder.ret()
    ptx = ptx_of(module)
    assert ptx.count("waiting:") == 2
    assert assemble.assemble(ptx, SM_90A).messages == ()
