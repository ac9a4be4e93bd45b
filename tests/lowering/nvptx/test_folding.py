"""Instructions with constant operands give what LLVM's would, and are not written."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astdsl.lowering.nvptx import folding
from astdsl.lowering.nvptx.values import INTEGER_BITS, LV, constant, i32, i64, undefined

VALUE = LV("i32", "%v")
FOLDED: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
}
WORDS = st.integers(-(1 << 63), (1 << 63) - 1)


def bits(value: LV) -> int:
    number = folding.number_of(value)
    assert number is not None
    return number & ((1 << INTEGER_BITS[value.type]) - 1)


@given(st.sampled_from(sorted(FOLDED)), st.sampled_from(["i1", "i8", "i32", "i64"]), WORDS, WORDS)
def test_numbers_are_computed_and_wrapped(operation: str, type: str, x: int, y: int) -> None:
    mask = (1 << INTEGER_BITS[type]) - 1
    folded = folding.binary(operation, constant(type, x & mask), constant(type, y & mask))
    assert folded is not None
    assert bits(folded) == FOLDED[operation](x, y) & mask


@pytest.mark.parametrize(
    ("operation", "left", "right", "wanted"),
    [
        ("add", VALUE, i32(0), VALUE),
        ("add", i32(0), VALUE, VALUE),
        ("sub", VALUE, i32(0), VALUE),
        ("mul", i32(1), VALUE, VALUE),
        ("mul", VALUE, i32(0), i32(0)),
        ("and", VALUE, i32(-1), VALUE),
        ("or", VALUE, i32(-1), i32(-1)),
        ("shl", VALUE, i32(0), VALUE),
        ("udiv", VALUE, i32(1), VALUE),
        ("sub", i32(0), VALUE, None),
        ("shl", i32(0), VALUE, None),
        ("udiv", i32(1), VALUE, None),
        ("sdiv", i32(8), i32(0), None),
        ("add", VALUE, i32(2), None),
        ("add", undefined("i32"), i32(2), None),
    ],
)
def test_neutral_and_decisive_operands_need_no_instruction(
    operation: str, left: LV, right: LV, wanted: LV | None
) -> None:
    assert folding.binary(operation, left, right) == wanted


@given(st.sampled_from(["zext", "sext", "trunc"]), st.integers(-128, 127))
def test_constants_are_cast(operation: str, number: int) -> None:
    source, target = ("i8", "i1") if operation == "trunc" else ("i8", "i64")
    cast = folding.cast(operation, constant(source, number), target)
    assert cast is not None
    unsigned = operation == "zext"
    mask = (1 << INTEGER_BITS[target]) - 1
    assert bits(cast) == (number & 0xFF if unsigned else number) & mask


def test_only_known_comparisons_are_decided() -> None:
    assert folding.compare("slt", i64(-1), i64(0)) == constant("i1", True)
    assert folding.compare("eq", i64(64), i64(0)) == constant("i1", False)
    assert folding.compare("ult", i64(-1), i64(0)) is None
    assert folding.compare("eq", VALUE, i32(0)) is None


def test_a_choice_that_is_none_is_not_written() -> None:
    condition = LV("i1", "%c")
    assert folding.select(condition, VALUE, VALUE) == VALUE
    assert folding.select(constant("i1", False), VALUE, i32(3)) == i32(3)
    assert folding.select(condition, VALUE, i32(3)) is None
