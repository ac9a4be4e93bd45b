"""Modules: parameters, launch bounds, line information."""

import pytest

from astdsl.lowering.nvptx.asm import barriers
from astdsl.lowering.nvptx.asm.row import AsmRow, Effect
from astdsl.lowering.nvptx.llvm import LaunchBounds, Module, Parameter
from astdsl.lowering.nvptx.values import constant, i1, i32, i64
from astdsl.lowering.target import SM_90A, TARGETS, Target
from tests.lowering.nvptx.kernels import begin, element, loop, ptx_of

ALL_BOUNDS = LaunchBounds(
    threads=384, blocks_per_multiprocessor=1, registers_per_thread=168, cluster=(2, 1, 1)
)


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_launch_bounds_become_directives(target: Target) -> None:
    module, builder = begin(bounds=ALL_BOUNDS)
    builder.ret()
    ptx = ptx_of(module, target)
    for directive in (".maxntid 384", ".minnctapersm 1", ".maxnreg 168", "nctapercluster 2, 1, 1"):
        assert directive in ptx


def test_exact_threads_become_reqntid() -> None:
    module, builder = begin(bounds=LaunchBounds(threads=64, exact_threads=True))
    builder.ret()
    ptx = ptx_of(module)
    assert ".reqntid 64" in ptx
    assert ".maxntid" not in ptx


def test_tensor_maps_are_read_where_the_launch_put_them() -> None:
    prefetch = AsmRow(
        name="prefetch.tensormap",
        text="prefetch.tensormap [$map];",
        effect=Effect.ACTS,
        inputs={"map": "ptr"},
    )
    module, builder = begin(Parameter.tensor_map("x_map"), Parameter.tensor_map("y_map"))
    for name in ("x_map", "y_map"):
        builder.asm(prefetch, builder.parameters[name])
    builder.ret()
    ptx = ptx_of(module)
    assert ".param .align 64 .b8 k_param_3[128]" in ptx
    assert ptx.count("cvta.param.u64") == 2
    assert ".local" not in ptx


def test_loads_of_read_only_arrays_skip_coherence_and_others_do_not() -> None:
    module, builder = begin()
    for array in "xy":
        value = builder.load("float", element(builder, array), 4)
        builder.store(value, builder.shared(64 * (array == "y")), 4)
    builder.ret()
    ptx = ptx_of(module)
    assert ptx.count("ld.global.nc.b32") + ptx.count("ld.global.nc.f32") == 1
    assert ptx.count("ld.global") == 2


def test_parameter_names_may_be_any_text() -> None:
    module, builder = begin(Parameter.scalar('größe "n"', "i64"), Parameter.scalar("v.1", "i64"))
    total = builder.add(builder.parameters['größe "n"'], builder.parameters["v.1"])
    builder.store(total, builder.parameters["y"], 8)
    builder.ret()
    assert "st.global" in ptx_of(module)


def test_a_kernel_name_that_ptx_cannot_spell_is_refused() -> None:
    with pytest.raises(AssertionError, match="not a PTX identifier"):
        Module().kernel("größe", [], LaunchBounds(threads=32))


def test_two_texts_for_one_name_are_refused() -> None:
    module = Module()
    module.globals.define("f", "one")
    module.globals.define("f", "one")
    with pytest.raises(AssertionError, match="two different texts for @f"):
        module.globals.define("f", "two")


def test_every_memory_operation_has_its_line_and_column() -> None:
    module, builder = begin()
    builder.debug("/home/me/größe/kernel.py", 3)

    def body(step: object) -> None:
        builder.locate("/home/me/größe/kernel.py", 5, 9)
        value = builder.load("float", element(builder, "y"), 4)
        builder.locate("/home/me/helper.py", 7, 2)
        builder.store(value, builder.shared(0), 4)
        builder.locate("/home/me/größe/kernel.py", 6, 1)
        builder.asm(barriers.bar_sync(0, 128))

    loop(builder, 4, body)
    builder.ret()
    ptx = ptx_of(module)
    assert r'.file	1 "/home/me/gr\303\266\303\237e/kernel.py"' in ptx
    assert '.file	2 "/home/me/helper.py"' in ptx
    where = {line: place for place, line in _placed(ptx)}
    assert where["ld.global"] == "1 5 9"
    assert where["st.shared"] == "2 7 2"
    assert where["bar.sync"] == "1 6 1"


def test_line_information_does_not_ask_for_debug_code() -> None:
    module, builder = begin()
    builder.debug("/home/me/kernel.py", 1)
    builder.ret()
    assert f".target {SM_90A.name}\n" in ptx_of(module)


def test_without_debug_there_is_no_line_information() -> None:
    module, builder = begin()
    builder.locate("/home/me/kernel.py", 1, 1)
    builder.ret()
    assert ".loc" not in ptx_of(module)


def test_one_place_has_one_debug_node() -> None:
    module, builder = begin()
    builder.debug("/home/me/kernel.py", 1)
    for _ in range(3):
        builder.locate("/home/me/kernel.py", 2, 1)
        builder.store(constant("float", 1), builder.shared(0), 4)
    builder.ret()
    assert module.text().count("line: 2, column: 1") == 1


def test_several_kernels_share_a_module() -> None:
    module = Module()
    for name in ("first", "second"):
        builder = module.kernel(name, [Parameter.array("y")], LaunchBounds(threads=32))
        builder.debug("/home/me/kernel.py", 1)
        builder.store(i32(1), builder.gep("i32", builder.parameters["y"], i64(0)), 4)
        builder.ret()
    ptx = ptx_of(module)
    assert ".entry first" in ptx
    assert ".entry second" in ptx


def test_text_is_the_same_when_printed_again() -> None:
    module, builder = begin()
    builder.debug("/home/me/kernel.py", 1)
    with builder.guarded(i1(True)):
        builder.store(i32(1), builder.parameters["y"], 4)
    builder.ret()
    assert module.text() == module.text()


def _placed(ptx: str) -> list[tuple[str, str]]:
    """Pair each memory instruction with the `.loc` above it."""
    place, pairs = "", []
    for line in ptx.splitlines():
        words = line.split()
        if words[:1] == [".loc"]:
            place = " ".join(words[1:4])
        elif words and words[0].startswith(("ld.global", "st.shared", "bar.sync")):
            pairs.append((place, ".".join(words[0].split(".")[:2])))
    return pairs
