"""Types and constants as LLVM text."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astdsl.lowering.nvptx import pipeline
from astdsl.lowering.nvptx.llvm import LaunchBounds, Module, Parameter
from astdsl.lowering.nvptx.values import (
    bits_of,
    constant,
    element_of,
    lanes_of,
    vector,
    zero,
)
from astdsl.lowering.target import SM_90A


@pytest.mark.parametrize(
    ("type", "value", "text"),
    [
        ("i32", -1, "-1"),
        ("i32", 0xFFFFFFFF, "-1"),
        ("i8", 200, "-56"),
        ("i1", True, "true"),
        ("half", 1.5, "0xH3E00"),
        ("bfloat", 1.5, "0xR3FC0"),
        ("float", 1.5, "0x3FF8000000000000"),
        ("double", -0.0, "0x8000000000000000"),
        ("half", math.inf, "0xH7C00"),
        ("half", 1e9, "0xH7C00"),
        ("half", 65519.9, "0xH7BFF"),
        ("float", -1e39, "0xFFF0000000000000"),
        ("bfloat", math.nan, "0xR7FC0"),
        ("half", math.nan, "0xH7E00"),
        ("bfloat", -math.inf, "0xRFF80"),
        ("float", math.nan, "0x7FF8000000000000"),
    ],
)
def test_constants_are_written_with_exact_bits(type: str, value: float, text: str) -> None:
    assert constant(type, value).name == text


@given(st.floats(width=32, allow_nan=False))
def test_a_float_constant_is_the_double_of_equal_value(value: float) -> None:
    bits = int(constant("float", value).name, 16)
    assert np.uint64(bits).view(np.float64) == value


def test_a_float_constant_is_rounded_to_nearest_even() -> None:
    assert constant("float", 0.1) == constant("float", float(np.float32(0.1)))


def test_a_vector_constant_repeats_a_scalar_in_every_lane() -> None:
    assert constant("<2 x i32>", 7).typed == "<2 x i32> <i32 7, i32 7>"


def test_zero_exists_for_aggregates_and_scalars() -> None:
    assert zero("<4 x float>").name == "zeroinitializer"
    assert zero("i64").name == "0"


def test_a_type_without_constants_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="no constant of type ptr"):
        constant("ptr", 0)


@pytest.mark.parametrize(
    ("type", "lanes", "element", "bits"),
    [
        ("i1", 1, "i1", 1),
        ("float", 1, "float", 32),
        ("ptr addrspace(3)", 1, "ptr addrspace(3)", 64),
        (vector(8, "half"), 8, "half", 128),
    ],
)
def test_types_tell_their_lanes_element_and_width(
    type: str, lanes: int, element: str, bits: int
) -> None:
    assert (lanes_of(type), element_of(type), bits_of(type)) == (lanes, element, bits)


def test_llvm_reads_every_kind_of_constant() -> None:
    module = Module()
    builder = module.kernel("k", [Parameter.array("y")], LaunchBounds(threads=32))
    for type in ("half", "bfloat", "float", "double", "<4 x bfloat>", "<2 x double>", "i8", "i64"):
        for value in (0.0, -0.0, math.inf, 1.5) if type[0] != "i" else (0, -1):
            builder.store(constant(type, value), builder.parameters["y"], 16)
    builder.ret()
    assert "ret;" in pipeline.generate(module.text(), SM_90A)
