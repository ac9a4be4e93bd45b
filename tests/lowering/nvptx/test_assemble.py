"""Assembling by both assemblers: costs, messages, errors; and disassembling."""

from pathlib import Path

import pytest

from astdsl.errors import DeviceUnavailable
from astdsl.lowering.nvptx import assemble, tools
from astdsl.lowering.nvptx.asm import barriers, control
from astdsl.lowering.nvptx.llvm import LaunchBounds
from astdsl.lowering.nvptx.ptxas import Ptxas
from astdsl.lowering.nvptx.values import i64
from astdsl.lowering.target import SM_90A, TARGETS, Target
from tests.lowering.nvptx.kernels import begin, element, ptx_of

WAYS = {"ptxas": assemble.assemble, "nvJitLink": assemble.assemble_by_nvjitlink}


@pytest.fixture
def ptx() -> str:
    module, builder = begin()
    value = builder.load("float", element(builder, "x"), 4)
    builder.store(builder.binary("fadd", value, value), element(builder, "y"), 4)
    builder.ret()
    return ptx_of(module)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_a_cubin_says_what_the_kernel_costs(ptx: str, way: str, target: Target) -> None:
    cubin = WAYS[way](ptx.replace(SM_90A.name, target.name), target)
    assert cubin.image.startswith(b"\x7fELF")
    assert 0 < cubin.registers <= target.registers_per_thread
    assert (cubin.spill_bytes, cubin.stack_bytes, cubin.messages) == (0, 0, ())
    assert cubin.assembler == way


@pytest.mark.parametrize("way", WAYS)
def test_a_rejected_instruction_is_shown_with_its_line(ptx: str, way: str) -> None:
    wrong = ptx.replace("add.rn.f32", "add.rn.q32")
    with pytest.raises(assemble.RejectedPTX, match=r"Unknown modifier[\s\S]*  \d+: add\.rn\.q32"):
        WAYS[way](wrong, SM_90A)


def spilling() -> str:
    """Return a kernel with too few registers for what it holds."""
    module, builder = begin(bounds=LaunchBounds(threads=128, registers_per_thread=24))
    offsets = [i64(128 * place) for place in range(64)]
    base = element(builder, "y")
    values = [builder.load("float", builder.gep("float", base, each), 4) for each in offsets]
    builder.asm(barriers.bar_sync(0, 128))
    for each, value in zip(offsets, reversed(values), strict=True):
        builder.store(value, builder.gep("float", base, each), 4)
    builder.ret()
    return ptx_of(module)


@pytest.mark.parametrize("way", WAYS)
def test_spills_are_counted(way: str) -> None:
    assert WAYS[way](spilling(), SM_90A).spill_bytes > 0


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (LaunchBounds(threads=128), ".maxntid 128\n.minnctapersm 1\n"),
        (LaunchBounds(threads=128, blocks_per_multiprocessor=2), ".minnctapersm 2\n"),
        (LaunchBounds(threads=128, registers_per_thread=24), ".maxnreg 24\n"),
    ],
)
def test_an_entry_that_spills_is_assembled_again_with_every_register(
    bounds: LaunchBounds, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assembler is made up: where it prefers spills to fewer blocks changes with versions."""
    given: list[str] = []

    def spills_beside_others(ptx: str, _ptxas: Ptxas) -> assemble.Cubin:
        given.append(ptx)
        alone = ".minnctapersm 1" in ptx
        return assemble.Cubin(
            image=b"",
            registers=128,
            spill_bytes=0 if alone else 8,
            stack_bytes=0,
            messages=(),
            assembler="ptxas",
            spilled=() if alone else ("k",),
        )

    monkeypatch.setattr(assemble, "find_tool", lambda name: name)
    monkeypatch.setattr(assemble, "assemble_by_ptxas", spills_beside_others)
    module, builder = begin(bounds=bounds)
    builder.ret()
    cubin = assemble.assemble(ptx_of(module), SM_90A)
    assert expected in given[-1]
    assert (cubin.spill_bytes == 0) == (".minnctapersm 1\n" in expected)


@pytest.mark.parametrize("way", WAYS)
def test_the_entries_that_spill_are_named(way: str) -> None:
    module, builder = begin(bounds=LaunchBounds(threads=128, registers_per_thread=24))
    builder.ret()
    assert WAYS[way](ptx_of(module), SM_90A).spilled == ()
    assert WAYS[way](spilling(), SM_90A).spilled == ("k",)


def test_a_dropped_instruction_leaves_a_message() -> None:
    module, builder = begin()
    builder.asm(control.set_max_registers(40, increase=False))
    builder.ret()
    cubin = assemble.assemble(ptx_of(module), SM_90A)
    assert any("C7508" in message for message in cubin.messages)


def test_register_budgets_take_effect_where_the_bounds_allow() -> None:
    module, builder = begin(bounds=LaunchBounds(threads=128, blocks_per_multiprocessor=1))
    builder.asm(control.set_max_registers(40, increase=False))
    builder.ret()
    assert assemble.assemble(ptx_of(module), SM_90A).messages == ()


def test_nvjitlink_says_that_it_ignores_register_budgets() -> None:
    module, builder = begin(bounds=LaunchBounds(threads=128, blocks_per_multiprocessor=1))
    builder.asm(control.set_max_registers(40, increase=False))
    builder.ret()
    cubin = assemble.assemble_by_nvjitlink(ptx_of(module), SM_90A)
    assert any("C7504" in message for message in cubin.messages)


def test_without_ptxas_the_assembler_is_nvjitlink(
    ptx: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble, "find_tool", lambda _name: None)
    assert assemble.assemble(ptx, SM_90A).assembler == "nvJitLink"


def test_machine_code_can_be_printed(ptx: str) -> None:
    if not (tools.find_tool("nvdisasm") or tools.find_tool("cuobjdump")):
        pytest.skip("neither nvdisasm nor cuobjdump is installed")
    assert "FADD" in assemble.disassemble(assemble.assemble(ptx, SM_90A))


def test_a_missing_disassembler_says_how_to_get_one(
    ptx: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cubin = assemble.assemble(ptx, SM_90A)
    monkeypatch.setattr(assemble, "find_tool", lambda _name: None)
    with pytest.raises(DeviceUnavailable, match="pip install nvidia-cuda-nvdisasm"):
        assemble.disassemble(cubin)


def test_tools_are_found_in_the_toolkit_that_cuda_home_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "made-up-tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert tools.find_tool.__wrapped__("made-up-tool") == str(tool)
