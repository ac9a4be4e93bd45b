"""Elementary functions out of libdevice, and their cache."""

import re
from pathlib import Path

import pytest

from astdsl import store
from astdsl.errors import DeviceUnavailable
from astdsl.lowering.nvptx import assemble, libdevice, pipeline, tools
from astdsl.lowering.nvptx.values import LV, constant, i32
from astdsl.lowering.target import SM_90A, TARGETS, Target
from tests.lowering.nvptx.kernels import begin, element, ptx_of
from tests.lowering.nvptx.test_asm import lower_in_child

OVERHEAD = re.compile(r"\t(ld\.param|ld\.global|st\.global|ret)")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the user's cache out of the tests."""
    monkeypatch.setenv(store.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(store.SWITCH, raising=False)
    libdevice.entities.cache_clear()
    return tmp_path / "cache"


def instructions(kernel: str) -> int:
    lines = [line for line in kernel.splitlines() if re.match(r"\t(@%\w+ )?[a-z].*;$", line)]
    return sum(not OVERHEAD.match(line) for line in lines)


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_every_function_lowers_inline_and_costs_what_the_table_says(target: Target) -> None:
    ptx = lower_in_child("functions", target)
    assert assemble.assemble(ptx, target).image
    assert "call" not in ptx
    kernels = ptx.split(".entry function_")[1:]
    for kernel, function in zip(kernels, libdevice.FUNCTIONS.values(), strict=True):
        assert function.instructions * 0.6 <= instructions(kernel) <= function.instructions


def test_a_function_is_extracted_once_and_then_read_from_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = libdevice.entities("__nv_expf", SM_90A)
    libdevice.entities.cache_clear()
    monkeypatch.setattr(libdevice, "extract", pytest.fail)
    assert libdevice.entities("__nv_expf", SM_90A) == first
    assert len(list(folder.iterdir())) == 1


def test_a_cached_text_that_llvm_does_not_read_is_made_again(folder: Path) -> None:
    first = libdevice.entities("__nv_expf", SM_90A)
    libdevice.entities.cache_clear()
    key = libdevice._key("__nv_expf", SM_90A)
    store.write(key, b"define nonsense")
    assert libdevice.entities("__nv_expf", SM_90A) == first
    assert store.read(key) != b"define nonsense"


def test_a_cached_text_of_another_function_is_made_again() -> None:
    key = libdevice._key("__nv_expf", SM_90A)
    store.write(key, libdevice.extract("__nv_logf", SM_90A).encode())
    names = [entity.name for entity in libdevice.entities("__nv_expf", SM_90A)]
    assert "__nv_expf" in names


def test_extracted_text_asks_nothing_and_exports_nothing() -> None:
    text = libdevice.extract("__nv_sinf", SM_90A)
    assert "__nvvm_reflect" not in text
    assert "define internal float @__nv_sinf" in text
    assert "!" not in text.replace("!=", "")


def test_subnormals_are_kept() -> None:
    assert ".ftz.f(" not in libdevice.extract("__nv_log2f", SM_90A)


def test_two_calls_share_one_definition() -> None:
    module, builder = begin()
    value = builder.load("float", element(builder, "x"), 4)
    for name in ("exp", "exp", "tanh", "sin", "cos"):
        value = libdevice.call(builder, name, value, target=SM_90A)
    builder.store(value, element(builder, "y"), 4)
    builder.ret()
    assert module.text().count("define internal float @__nv_expf") == 1
    assert "call" not in ptx_of(module)


def test_debug_lines_survive_inlining() -> None:
    module, builder = begin()
    builder.debug("/home/me/kernel.py", 1)
    builder.locate("/home/me/kernel.py", 4, 2)
    value = builder.load("double", element(builder, "x", "double"), 8)
    result = libdevice.call(builder, "sin", value, target=SM_90A)
    builder.store(result, element(builder, "y", "double"), 8)
    builder.ret()
    assert pipeline.generate(module.text(), SM_90A).count(".loc\t1 4 2") >= 1


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("gamma", [constant("float", 1)]),
        ("exp", [constant("half", 1)]),
        ("exp", [i32(1)]),
        ("pow", [constant("float", 1)]),
        ("pow", [constant("float", 1), constant("double", 1)]),
    ],
)
def test_functions_and_types_outside_the_table_are_refused(name: str, operands: list[LV]) -> None:
    _, builder = begin()
    with pytest.raises(AssertionError):
        libdevice.call(builder, name, *operands, target=SM_90A)


def test_a_missing_libdevice_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_package_roots", list)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with pytest.raises(DeviceUnavailable, match="pip install nvidia-nvvm"):
        tools.find_file("nvvm/libdevice/libdevice.10.bc", "nvidia-nvvm")
