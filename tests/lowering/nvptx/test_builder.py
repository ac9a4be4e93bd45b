"""The builder refuses what does not fit, and what it writes means what it says."""

import pytest

from astdsl.lowering.nvptx.asm import barriers, wgmma
from astdsl.lowering.nvptx.values import LV, constant, i1, i32, i64, undefined
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
        builder.asm(wgmma.write(wgmma.Accumulator(0, "float", 2)), constant("float", 0))


def test_a_guarded_body_runs_under_its_predicate_only() -> None:
    module, builder = begin()
    first = builder.icmp("eq", builder.special_register("tid.x"), i32(0))
    with builder.guarded(first, "leader"):
        builder.asm(barriers.MBARRIER_INIT, builder.shared_address(builder.shared(0)), i32(1))
    builder.asm(barriers.bar_sync(0, 128))
    builder.ret()
    ptx = ptx_of(module)
    assert ptx.index("bra") < ptx.index("mbarrier.init") < ptx.index("bar.sync")


def test_neighbouring_guards_of_one_predicate_are_one_branch() -> None:
    module, builder = begin()
    tid = builder.special_register("tid.x")
    first = builder.icmp("eq", tid, i32(0))
    count = builder.variable(i32(0))
    for offset_bytes in (0, 8):
        with builder.guarded(first, "leader"):
            address = builder.shared_address(builder.shared(offset_bytes))
            builder.asm(barriers.MBARRIER_INIT, address, i32(1))
        builder.hold(count, builder.add(builder.held("i32", count), tid))
    builder.store(builder.held("i32", count), element(builder, "y", "i32"), 4)
    builder.ret()
    assert module.text().count("br i1") == 1
    body = module.text().partition("\nleader.")[2].partition("br label")[0]
    assert body.count("mbarrier.init") == 2


@pytest.mark.parametrize("between", ["barrier", "memory", "another predicate"])
def test_guards_stay_apart_where_something_happens_between_them(between: str) -> None:
    module, builder = begin()
    tid = builder.special_register("tid.x")
    first = builder.icmp("eq", tid, i32(0))
    address = builder.shared_address(builder.shared(0))
    with builder.guarded(first, "leader"):
        builder.asm(barriers.MBARRIER_INIT, address, i32(1))
    if between == "barrier":
        builder.asm(barriers.bar_sync(0, 128))
    elif between == "memory":
        builder.load("i32", builder.shared(8), 4)
    else:
        first = builder.icmp("eq", tid, i32(1))
    with builder.guarded(first, "leader"):
        builder.asm(barriers.MBARRIER_INIT, address, i32(1))
    builder.ret()
    assert module.text().count("br i1") == 2


def test_a_value_is_computed_once_where_its_making_dominates() -> None:
    module, builder = begin()
    tid = builder.special_register("tid.x")
    first = builder.icmp("eq", tid, i32(0))
    outside = builder.add(tid, i32(1))
    with builder.guarded(first):
        assert builder.add(builder.special_register("tid.x"), i32(1)) == outside
        inside = builder.add(tid, i32(2))
        assert builder.add(tid, i32(2)) == inside
    builder.asm(barriers.bar_sync(0, 128))
    assert builder.add(tid, i32(1)) == outside
    assert builder.add(tid, i32(2)) != inside


def test_a_narrowed_value_that_was_widened_is_what_it_was() -> None:
    _, builder = begin()
    tid = builder.special_register("tid.x")
    assert builder.cast("trunc", builder.cast("zext", tid, "i64"), "i32") == tid


def test_what_a_variable_holds_is_known_until_ways_meet() -> None:
    _, builder = begin()
    tid = builder.special_register("tid.x")
    first = builder.icmp("eq", tid, i32(0))
    place = builder.variable(i32(7))
    assert builder.held("i32", place) == i32(7)
    builder.hold(place, tid)
    with builder.guarded(first):
        builder.asm(barriers.bar_sync(0, 128))
    assert builder.held("i32", place) == tid
    with builder.guarded(first):
        builder.hold(place, i32(8))
        assert builder.held("i32", place) == i32(8)
    seen = builder.held("i32", place)
    assert seen not in (tid, i32(7), i32(8))
    assert builder.held("i32", place) == seen


def test_what_a_nested_guard_puts_into_a_variable_is_not_overlooked() -> None:
    _, builder = begin()
    tid = builder.special_register("tid.x")
    place = builder.variable(i32(7))
    with builder.guarded(builder.icmp("ult", tid, i32(32))):
        with builder.guarded(builder.icmp("eq", tid, i32(0))):
            builder.hold(place, i32(8))
        assert builder.held("i32", place) not in (i32(7), i32(8))
    assert builder.held("i32", place) not in (i32(7), i32(8))


def test_a_variable_in_a_loop_holds_what_the_last_turn_left() -> None:
    _, builder = begin()
    place = builder.variable(i32(7))
    seen = []

    def turn(step: LV) -> None:
        seen.append(builder.held("i32", place))
        builder.hold(place, step)

    loop(builder, 4, turn)
    assert seen[0] != i32(7)
    assert builder.held("i32", place) not in (seen[0], i32(7))


def test_a_variable_that_nobody_reads_is_not_written() -> None:
    module, builder = begin()
    place = builder.variable(i32(0))
    builder.hold(place, builder.special_register("tid.x"))
    builder.ret()
    assert place.name not in module.text()


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


def test_a_branch_that_is_likely_says_so() -> None:
    module, builder = begin()
    yes, no = builder.block("yes"), builder.block("no")
    builder.cond_br(i1(True), yes, no, is_likely=True)
    for label in (yes, no):
        builder.position(label)
        builder.ret()
    text = module.text()
    assert "label %no.2, !prof !" in text
    assert '!{!"branch_weights", i32 2000, i32 1}' in text


def test_a_variable_becomes_registers() -> None:
    module, builder = begin()
    place = builder.variable(constant("float", 0))
    count = builder.load("i32", element(builder, "x", "i32"), 4)

    def accumulate(_step: object) -> None:
        value = builder.load("float", element(builder, "y"), 4)
        total = builder.binary("fadd", builder.held("float", place), value)
        builder.hold(place, total)
        builder.asm(barriers.bar_sync(0, 128))

    loop(builder, count, accumulate)
    builder.store(builder.held("float", place), element(builder, "y"), 4)
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
