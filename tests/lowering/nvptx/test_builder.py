"""The builder refuses what does not fit, and what it writes means what it says."""

import pytest

from astdsl.lowering.nvptx.asm import barriers, wgmma
from astdsl.lowering.nvptx.values import constant, i1, i32, i64, undefined
from tests.lowering.nvptx.kernels import begin, element, loop, ptx_of


def test_operands_of_different_types_are_refused_at_once() -> None:
    _, builder = begin()
    with pytest.raises(AssertionError, match="add: expected i32, got i64 1"):
        builder.add(i32(1), i64(1))


def test_an_operation_of_the_wrong_kind_is_refused() -> None:
    _, builder = begin()
    with pytest.raises(AssertionError, match="add does not apply to float"):
        builder.add(constant("float", 1), constant("float", 1))


def test_an_unknown_cast_is_refused() -> None:
    _, builder = begin()
    with pytest.raises(AssertionError, match="widen is not a cast"):
        builder.cast("widen", i32(1), "i64")


def test_a_cast_to_the_same_type_writes_nothing() -> None:
    _, builder = begin()
    assert builder.cast("trunc", i32(1), "i32") == i32(1)


def test_nothing_follows_the_end_of_a_block() -> None:
    _, builder = begin()
    builder.ret()
    with pytest.raises(AssertionError, match="block entry has ended"):
        builder.ret()


def test_a_block_without_an_end_is_refused_when_printed() -> None:
    module, _ = begin()
    with pytest.raises(AssertionError, match="block entry does not end"):
        module.text()


def test_a_lane_outside_the_vector_is_refused() -> None:
    _, builder = begin()
    with pytest.raises(AssertionError, match="no lane 4"):
        builder.extract(undefined("<4 x float>"), 4)


def test_the_arm_of_a_phi_has_the_type_of_the_phi() -> None:
    _, builder = begin()
    phi = builder.phi("i32")
    with pytest.raises(AssertionError, match="phi: expected i32"):
        phi.add(i64(0), builder.current)


def test_rows_refuse_operands_of_the_wrong_type() -> None:
    _, builder = begin()
    with pytest.raises(AssertionError, match=r"mbarrier.init takes operands \(i32, i32\), got"):
        builder.asm(barriers.MBARRIER_INIT, i64(0), i32(1))


def test_rows_refuse_a_wrong_number_of_operands() -> None:
    _, builder = begin()
    with pytest.raises(AssertionError, match="takes operands"):
        builder.asm(wgmma.wait(0, ("float",) * 2), constant("float", 0))


def test_a_guarded_body_runs_under_its_predicate_only() -> None:
    module, builder = begin()
    first = builder.icmp("eq", builder.special_register("tid.x"), i32(0))
    with builder.guarded(first, "leader"):
        builder.asm(barriers.MBARRIER_INIT, builder.shared_address(builder.shared(0)), i32(1))
    builder.asm(barriers.bar_sync(0, 128))
    builder.ret()
    ptx = ptx_of(module)
    assert ptx.index("bra") < ptx.index("mbarrier.init") < ptx.index("bar.sync")


def test_vectors_are_packed_unpacked_splatted_and_shuffled() -> None:
    module, builder = begin()
    address = element(builder, "x", "<4 x float>")
    lanes = builder.unpack(builder.load("<4 x float>", address, 16))
    packed = builder.pack(lanes[::-1])
    doubled = builder.binary("fadd", packed, builder.splat(lanes[0], 4))
    swapped = builder.shuffle(doubled, packed, (1, 0, 5, 4))
    builder.store(swapped, element(builder, "y", "<4 x float>"), 16)
    builder.ret()
    ptx = ptx_of(module)
    assert "ld.global.nc.v4" in ptx
    assert "st.global.v4" in ptx


def test_a_loop_keeps_its_body_once() -> None:
    module, builder = begin()
    bar = builder.shared_address(builder.shared(0))
    loop(builder, 4, lambda step: builder.asm(barriers.MBARRIER_WAIT, bar, step))
    builder.ret()
    assert ptx_of(module).count("mbarrier.try_wait") == 1


def test_a_variable_becomes_registers() -> None:
    module, builder = begin()
    place = builder.variable(constant("float", 0))
    count = builder.load("i32", element(builder, "x", "i32"), 4)

    def accumulate(_step: object) -> None:
        value = builder.load("float", element(builder, "y"), 4)
        total = builder.binary("fadd", builder.load("float", place, 4), value)
        builder.store(total, place, 4)
        builder.asm(barriers.bar_sync(0, 128))

    loop(builder, count, accumulate)
    builder.store(builder.load("float", place, 4), element(builder, "y"), 4)
    builder.ret()
    assert ".local" not in ptx_of(module)


def test_a_barrier_is_not_copied_into_the_arms_of_a_branch() -> None:
    module, builder = begin()
    tid = builder.special_register("tid.x")
    value = constant("float", 1)
    small, large, after = (builder.block(hint) for hint in ("small", "large", "after"))
    builder.cond_br(builder.icmp("ult", tid, i32(64)), small, large)
    for label in (small, large):
        builder.position(label)
        builder.store(value, element(builder, "y"), 4)
        value = constant("float", 2)
        builder.br(after)
    builder.position(after)
    builder.asm(barriers.bar_sync(0, 128))
    builder.ret()
    assert ptx_of(module).count("bar.sync") == 1


def test_a_place_in_shared_memory_is_an_address_ptx_can_use() -> None:
    module, builder = begin()
    builder.store(constant("float", 1), builder.shared(64), 4)
    builder.ret()
    assert "[smem$+64]" in ptx_of(module)


def test_only_shared_pointers_have_shared_addresses() -> None:
    _, builder = begin()
    with pytest.raises(AssertionError, match="shared_address"):
        builder.shared_address(builder.parameters["x"])


def test_branches_need_a_predicate() -> None:
    _, builder = begin()
    with pytest.raises(AssertionError, match="cond_br"):
        builder.cond_br(i32(1), builder.block(), builder.block())


def test_select_compare_and_negate_apply_to_vectors() -> None:
    module, builder = begin()
    value = builder.load("<2 x float>", element(builder, "x", "<2 x float>"), 8)
    negative = builder.fcmp("olt", value, constant("<2 x float>", 0))
    assert negative.type == "<2 x i1>"
    absolute = builder.select(negative, builder.fneg(value), value)
    builder.store(absolute, element(builder, "y", "<2 x float>"), 8)
    builder.ret()
    assert "st.global.v2" in ptx_of(module)


def test_a_trap_ends_a_path() -> None:
    module, builder = begin()
    bad, good = builder.block("bad"), builder.block("good")
    builder.cond_br(i1(False), bad, good)
    builder.position(bad)
    builder.unreachable()
    builder.position(good)
    builder.ret()
    assert "ret;" in ptx_of(module)
