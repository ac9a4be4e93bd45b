"""Arguments and constants of a command line."""

from typing import Any

import pytest

from astdsl import f16, f32, i32, spec
from astdsl.cli.arguments import read_arguments
from astdsl.errors import BadCommand
from tests.cli import kernels


def read(name: str, *given: str, const: tuple[str, ...] = ()) -> tuple[dict[str, Any], ...]:
    signature = getattr(kernels, name).signature
    return read_arguments(signature, given, const)


def report_of(name: str, *given: str, const: tuple[str, ...] = ()) -> str:
    with pytest.raises(BadCommand) as caught:
        read(name, *given, const=const)
    return caught.value.report()


def test_an_array_is_a_shape_and_a_dtype() -> None:
    arguments, _ = read("scale", "x=100:f16", "alpha=2")
    assert arguments == {"x": spec(100, f16), "alpha": 2}


def test_the_dtype_is_the_annotations_where_there_is_one() -> None:
    arguments, _ = read("add", "x=8x16", "y=8x16")
    assert arguments == {"x": spec((8, 16), f32), "y": spec((8, 16), f32)}


def test_a_shape_that_follows_from_another_argument_may_be_left_out() -> None:
    arguments, _ = read("add", "x=8x16")
    assert arguments["y"] == spec((8, 16), f32)


def test_a_shape_that_the_annotation_states_may_be_left_out() -> None:
    assert read("fixed") == ({"x": spec((8, 16), i32)}, {})


def test_constants_are_python_literals_dtypes_or_text() -> None:
    _, constants = read("add", "x=8x8", const=("bm=(1, 2)", "bn=f16"))
    assert constants == {"bm": (1, 2), "bn": f16}
    _, constants = read("add", "x=8x8", const=("bm=fast",))
    assert constants == {"bm": "fast"}


def test_a_missing_shape_is_asked_for_with_the_option_to_give() -> None:
    report = report_of("add")
    assert report.startswith("A701: the shape of `x` is not given\n")
    assert "^ parameter `x`" in report
    assert report.endswith("help: add `--arg x=256x256:f32`")


def test_a_missing_scalar_is_asked_for_with_the_option_to_give() -> None:
    assert report_of("scale", "x=8:f32").endswith("help: add `--arg alpha=1`")


def test_an_array_of_several_dtypes_needs_its_dtype() -> None:
    assert "`x` needs a dtype" in report_of("scale", "x=8")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("x=8y8", "`8y8` is no shape for `x`"),
        ("x=8x8:f23", "there is no dtype `f23`"),
        ("x", "`--arg x` has no value"),
        ("x=", "`--arg x=` has no value"),
        ("z=8x8", "the kernel has no argument `z`"),
    ],
)
def test_an_argument_that_cannot_be_read_is_refused(option: str, words: str) -> None:
    assert words in report_of("add", option)


def test_an_argument_that_is_given_twice_is_refused() -> None:
    assert "`--arg x` is given twice" in report_of("add", "x=8x8", "x=9x9")


def test_text_for_a_scalar_is_refused() -> None:
    assert "`fast` is no number, and `alpha` is a scalar" in report_of("scale", "alpha=fast")


def test_a_misspelt_constant_is_hinted_at() -> None:
    report = report_of("add", "x=8x8", const=("bmm=8",))
    assert "the kernel has no constant `bmm`\n  help: did you mean `bm`?" in report
