"""Annotations of parameters: what they say, and that they never raise where they are written."""

from __future__ import annotations

from typing import Any

import pytest

from astdsl.errors import BadSignature
from astdsl.ir.dtypes import bf16, f16, f32, tf32
from astdsl.lang.annotations import ArraySpec, Dim, In, InOut, Out


def spec(role: Any, *key: Any) -> ArraySpec:
    found = role[key if len(key) > 1 else key[0]]
    assert isinstance(found, ArraySpec), "brackets make a spec"
    return found


def dims_of(found: ArraySpec) -> list[str]:
    return [dim.text for dim in found.dims or ()]


def test_an_annotation_names_dtype_and_dims() -> None:
    found = spec(In, f16, "M 3 _")
    assert (found.role, found.dtypes, dims_of(found)) == ("in", (f16,), ["M", "3", "_"])
    assert found.problem is None


def test_dtype_and_dims_may_be_left_out() -> None:
    assert spec(In, "M").dtypes == ()
    assert spec(InOut, f32).dims is None
    assert spec(Out, "").dims == ()


@pytest.mark.parametrize("union", [f16 | bf16, f16 | bf16 | f32])
def test_a_union_allows_each_of_its_dtypes(union: Any) -> None:
    assert spec(In, union, "M").dtypes == union
    assert spec(In, union).dtypes == union


def test_dots_in_front_take_any_rank() -> None:
    found = spec(In, "... M N")
    assert found.any_rank
    assert dims_of(found) == ["M", "N"]


@pytest.mark.parametrize("initial", [0, 1.5, -1, True])
def test_an_output_may_start_with_a_number(initial: Any) -> None:
    assert spec(Out, f32, "M", initial).initial is initial


def test_none_makes_an_array_optional() -> None:
    assert (spec(In, f32, "M") | None).optional
    assert (None | spec(In, "M")).optional
    bare: Any = In
    assert (bare | None).optional


def test_a_dim_is_a_name_a_number_anything_or_an_expression() -> None:
    assert Dim("M").name == "M"
    assert Dim("64").extent == 64
    assert Dim("_").is_anything
    assert not Dim("_").name
    assert Dim("cdiv(M,bm)").is_expression
    assert set(Dim("cdiv(M,bm)+G").names) == {"M", "bm", "G"}


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (In, "In"),
        (spec(In, f32), "In[f32]"),
        (spec(In, f16 | bf16, "M 3 _ cdiv(K,32)"), 'In[f16 | bf16, "M 3 _ cdiv(K,32)"]'),
        (spec(InOut, "... M"), 'InOut["... M"]'),
        (spec(In, f32, ""), 'In[f32, ""]'),
        (spec(Out, f32, "M N", 0), 'Out[f32, "M N", 0]'),
        (spec(In, bool, "M") | None, 'In[bool, "M"] | None'),
    ],
    ids=lambda _: "",
)
def test_an_annotation_prints_as_it_is_written(annotation: Any, text: str) -> None:
    assert repr(annotation) == text


WRONG = [
    ("comma", In, (f32, "M,N"), "is no dim"),
    ("call", In, (f32, "f(M)"), "is no dim"),
    ("float", In, ("M/2",), "is no dim"),
    ("dots", In, ("M ...",), "stands in front"),
    ("initial", In, (f32, "M", 0), "starts with what is passed"),
    ("dtype", In, (tf32, "M"), "tf32"),
    ("unknown", In, (f32, "M", "N"), "does not know"),
    ("order", In, ("M", f32), "does not know"),
]


@pytest.mark.parametrize(("role", "key", "said"), [row[1:] for row in WRONG], ids=lambda _: "")
def test_what_is_wrong_is_kept_for_the_call(role: Any, key: Any, said: str) -> None:
    problem = spec(role, *key).problem
    assert isinstance(problem, BadSignature)
    assert said in problem.message
    assert problem.help


def test_an_annotation_is_joined_with_none_only() -> None:
    joined = spec(In, f32, "M") | 3
    assert isinstance(joined.problem, BadSignature)
