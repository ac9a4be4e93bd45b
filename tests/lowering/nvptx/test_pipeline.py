"""From LLVM text to PTX."""

import pytest

from astdsl.lowering.nvptx import pipeline
from astdsl.lowering.target import SM_90A, TARGETS, Target
from tests.lowering.nvptx.kernels import begin, element


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_ptx_has_the_version_and_target_that_were_asked_for(target: Target) -> None:
    module, builder = begin()
    builder.ret()
    ptx = pipeline.generate(module.text(), target)
    major, minor = pipeline.ptx_version()
    assert f".version {major}.{minor}\n.target {target.name}\n" in ptx


def test_another_header_than_asked_for_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    module, builder = begin()
    builder.ret()
    pipeline.generate(module.text(), SM_90A)
    monkeypatch.setattr(pipeline, "ptx_version", lambda: (7, 8))
    with pytest.raises(AssertionError, match="another PTX header"):
        pipeline.generate(module.text(), SM_90A)


def test_text_that_llvm_does_not_read_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="LLVM does not accept"):
        pipeline.generate("define nonsense", SM_90A)


def test_optimised_text_is_smaller_and_reads_back() -> None:
    module, builder = begin()
    unused = builder.load("float", element(builder, "y"), 4)
    builder.binary("fadd", unused, unused)
    builder.ret()
    text = module.text()
    llvm = pipeline.optimised(text, SM_90A)
    assert "fadd" not in llvm
    assert pipeline.generate(llvm, SM_90A) == pipeline.generate(text, SM_90A)


@pytest.mark.parametrize("type", ["<4 x float>", "<8 x half>", "<8 x bfloat>", "<2 x double>"])
def test_vectors_of_sixteen_bytes_move_in_one_instruction(type: str) -> None:
    module, builder = begin()
    value = builder.load(type, element(builder, "x", type), 16)
    total = builder.binary("fadd", value, value)
    builder.store(total, element(builder, "y", type), 16)
    builder.ret()
    ptx = pipeline.generate(module.text(), SM_90A)
    assert ptx.count("ld.global.nc.v") == ptx.count("ld.global") == 1
    assert ptx.count("st.global.v") == ptx.count("st.global") == 1


def test_arithmetic_is_rounded_and_not_contracted() -> None:
    module, builder = begin()
    value = builder.load("float", element(builder, "x"), 4)
    product = builder.binary("fmul", value, value)
    total = builder.binary("fadd", product, value)
    root = builder.intrinsic("llvm.sqrt", builder.binary("fdiv", total, product))
    builder.store(root, element(builder, "y"), 4)
    builder.ret()
    ptx = pipeline.generate(module.text(), SM_90A)
    for opcode in ("mul.rn.f32", "add.rn.f32", "div.rn.f32", "sqrt.rn.f32"):
        assert opcode in ptx
