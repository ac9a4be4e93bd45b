"""The table of intrinsics that are known to lower."""

import pytest

from astdsl.lowering.nvptx import assemble
from astdsl.lowering.nvptx.intrinsics import every_signature, signature
from astdsl.lowering.nvptx.values import constant, i32
from astdsl.lowering.target import TARGETS, Target
from tests.lowering.nvptx.kernels import begin
from tests.lowering.nvptx.test_asm import lower_in_child


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_every_intrinsic_of_the_table_lowers_and_assembles(target: Target) -> None:
    ptx = lower_in_child("intrinsics", target)
    assert ptx.count(".entry intrinsic_") == len(every_signature())
    assert assemble.assemble(ptx, target).image


def test_overloads_are_named_by_their_types() -> None:
    assert signature("llvm.fma", "<2 x half>").name == "llvm.fma.v2f16"
    assert signature("llvm.abs", "i32").declaration == "declare i32 @llvm.abs.i32(i32, i1 immarg)"
    assert signature("llvm.nvvm.read.ptx.sreg.tid.x").operands == ()


def test_saturating_conversions_are_overloaded_by_their_result_too() -> None:
    _, builder = begin()
    converted = builder.intrinsic("llvm.fptosi.sat", constant("bfloat", 1), result="i8")
    assert converted.type == "i8"
    assert signature("llvm.fptoui.sat", "float", "i32").name == "llvm.fptoui.sat.i32.f32"
    with pytest.raises(AssertionError, match="from float to i16x"):
        builder.intrinsic("llvm.fptosi.sat", constant("float", 1), result="i16x")


@pytest.mark.parametrize("name", ["llvm.exp", "llvm.sin", "llvm.pow", "llvm.tanh"])
def test_intrinsics_that_would_end_the_process_are_refused(name: str) -> None:
    _, builder = begin()
    with pytest.raises(AssertionError, match="not known to lower"):
        builder.intrinsic(name, constant("float", 1))


def test_types_that_would_end_the_process_are_refused() -> None:
    _, builder = begin()
    with pytest.raises(AssertionError, match=r"llvm\.exp2 is not known to lower for double"):
        builder.intrinsic("llvm.exp2", constant("double", 1))


def test_operands_of_the_wrong_type_are_refused() -> None:
    _, builder = begin()
    with pytest.raises(AssertionError, match=r"llvm.fma.f32 takes \(float, float, float\)"):
        builder.intrinsic("llvm.fma", constant("float", 1), i32(1), i32(2))
