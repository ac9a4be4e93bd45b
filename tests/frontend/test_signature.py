"""What a kernel's parameters take, which argument is which, and shapes against annotations."""

# Annotations of kernels are arrays, which a type checker takes for no types.

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astdsl.errors import BadArgument, BadSignature, KernelError
from astdsl.frontend.binding import Bound, bind, scalar_converter, scalar_dtype
from astdsl.frontend.dims import Fitted, fit
from astdsl.frontend.signature import Signature, _parameters, signature_of
from astdsl.ir.dtypes import DType, bf16, boolean, f8e4m3, f16, f32, f64, i8, i32, i64, tf32
from astdsl.lang.annotations import In, InOut, Out


@dataclass(frozen=True)
class Shape:
    """An array, as a signature sees it."""

    shape: tuple[int, ...]
    dtype: DType = f32


def read(function: Callable[..., Any]) -> Signature:
    assert isinstance(function, FunctionType)
    return signature_of(function)


def fitted(
    function: Callable[..., Any], *shapes: tuple[int, ...] | Shape, **constants: Any
) -> Fitted:
    params = read(function).params
    given = [s if isinstance(s, Shape) else Shape(s) for s in shapes]
    arrays = dict(zip((p.name for p in params), given, strict=False))
    return fit(params, arrays, constants)


def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Bound:
    return bind(read(function), args, kwargs)


def matmul(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, bm=128): ...


def scale(x: In["N"], o: Out["N"], alpha: f32 = 1.0, n=3): ...


def optional(x: In[f32, "N"], bias: In[f32, "N"] | None = None): ...


def test_text_annotations_are_read_where_the_function_stands() -> None:
    assert read(matmul).roles == {"a": "in", "b": "in", "c": "out"}
    assert read(scale).roles == {"x": "in", "o": "out", "alpha": "scalar", "n": "scalar"}
    assert [c.name for c in read(matmul).constants] == ["bm"]


def quoted(x: "In[f32, 'N']", y: "'Out[f32, \"N\"]'", alpha: "f32" = 1.0): ...


def test_annotations_in_quotes_are_read_where_annotations_are_text() -> None:
    assert read(quoted).roles == {"x": "in", "y": "out", "alpha": "scalar"}


def test_text_annotations_see_the_closure() -> None:
    dtype = f16

    def inner(x: In[dtype, "N"]) -> Any:
        return dtype

    (x,) = read(inner).params
    assert x.spec is not None
    assert x.spec.dtypes == (f16,)


def test_a_name_that_a_text_annotation_cannot_see_is_named_with_the_way_out() -> None:
    def other(x: In[missing, "N"]): ...

    with pytest.raises(BadSignature, match="a name that is not known here") as caught:
        read(other)
    assert caught.value.span is not None
    assert "test_signature.py" in str(caught.value.span)


def test_a_parameter_has_the_span_of_its_name_and_annotation() -> None:
    c = read(matmul).params[2]
    line = Path(c.span.file).read_text(encoding="utf-8").splitlines()[c.span.line - 1]
    assert line[c.span.column : c.span.end_column] == 'c: Out[f32, "M N"]'


def test_the_name_of_the_function_has_a_span() -> None:
    span = read(matmul).span
    assert span.end_column - span.column == len("matmul")


def varied(*x: In[f32, "N"]): ...


def unknown(x: "str"): ...


def defaulted(x: In[f32, "N"] = 3): ...


def never_none(x: In[f32, "N"] = None): ...


def wrong_dims(x: In[f32, "M,N"]): ...


def by_position(x: In[f32, "N"], /): ...


def unsupported(x: f8e4m3): ...


def wrong_start(x: In[f32, "N", 0]): ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (varied, "`x` takes any"),
        (unknown, "neither an array's nor a scalar's"),
        (defaulted, "has a default, and an array's can only be None"),
        (never_none, "has the default None, which its annotation does not allow"),
        (wrong_dims, "is no dim"),
        (wrong_start, "no meaning"),
        (by_position, "can only be passed by position"),
        (unsupported, "scalars of f8e4m3 are not in this version"),
    ],
)
def test_a_malformed_parameter_is_refused_at_its_place(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(BadSignature, match=message) as caught:
        read(function)
    assert caught.value.span is not None
    assert caught.value.span.line == function.__code__.co_firstlineno
    assert caught.value.help


def test_arguments_are_bound_by_position_and_by_name() -> None:
    bound = called(matmul, "a", c="c", b="b", bm=64)
    assert bound.given == {"a": "a", "b": "b", "c": "c"}
    assert bound.constants == {"bm": 64}


def test_constants_and_scalars_have_defaults() -> None:
    assert called(matmul, "a", "b").constants == {"bm": 128}
    assert called(scale, "x", "o").given["alpha"] == 1.0


def test_an_omitted_output_is_absent_and_an_omitted_optional_one_is_none() -> None:
    assert set(called(matmul, "a", "b").given) == {"a", "b"}
    assert called(optional, "x").given["bias"] is None


def test_an_output_given_as_none_is_omitted() -> None:
    assert set(called(matmul, "a", "b", None).given) == {"a", "b"}


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("a",), {}, "`matmul` needs `b`"),
        (("a", "b", "c", 64), {}, "takes 3 positional arguments, got 4"),
        (("a", "b"), {"bn": 64}, "no parameter `bn`"),
        (("a", "b"), {"a": "a"}, "`a` is given twice"),
        (("a", None), {}, "`b` takes an array, got None"),
        (("a", "b"), {"bm": [64]}, "the constant `bm` is a list, which has no hash"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadArgument, match=message):
        called(matmul, *args, **kwargs)


def test_a_misspelt_keyword_gets_the_right_name() -> None:
    with pytest.raises(BadArgument, match="did you mean `bm`"):
        called(matmul, "a", "b", bmm=64)


def needy(x: In[f32, "N"], *, block): ...


def test_a_constant_without_a_default_is_asked_for() -> None:
    with pytest.raises(BadArgument, match="needs the constant `block`"):
        called(needy, "x")


def test_a_name_that_disagrees_names_both_arguments() -> None:
    with pytest.raises(BadArgument) as caught:
        fitted(matmul, Shape((4, 8), f16), Shape((9, 5), f16))
    message = "`K` is 8 by axis 1 of `a`, and 9 by axis 0 of `b`"
    assert caught.value.message == message
    assert len(caught.value.places) == 2


def square(x: In[f32, "N N"]): ...


def test_a_name_used_twice_in_one_array_must_agree() -> None:
    with pytest.raises(BadArgument, match="`N` is 3 by axis 0 of `x`, and 4 by axis 1 of `x`"):
        fitted(square, (3, 4))


def fixed(x: In[f32, "8 _"]): ...


def test_an_integer_must_equal_and_anything_may_be_anything() -> None:
    assert fitted(fixed, (8, 5)).static == {"x": (8, None)}
    with pytest.raises(
        BadArgument, match="axis 0 of `x` has 7 elements, and its annotation says 8"
    ):
        fitted(fixed, (7, 5))


def test_the_rank_must_fit() -> None:
    with pytest.raises(BadArgument, match="`x` takes 2 axes, got an array of 1"):
        fitted(fixed, (8,))


def leading(x: In[f32, "... N"], o: Out[f32, "N"]): ...


def test_leading_dots_take_any_rank() -> None:
    found = fitted(leading, (2, 3, 5))
    assert found.names["x"] == ("", "", "N")
    assert found.shapes["o"] == (5,)
    with pytest.raises(BadArgument, match="at least 1 axis"):
        fitted(leading, ())


def grouped(x: In[f32, "M K"], o: Out[f32, "cdiv(M,bm) K+1"], p: Out[f32, "max(M,K)"], *, bm): ...


def test_expressions_are_computed_for_omitted_outputs() -> None:
    found = fitted(grouped, (10, 4), bm=4)
    assert found.shapes == {"o": (3, 5), "p": (10,)}


def test_expressions_are_checked_on_arguments() -> None:
    with pytest.raises(BadArgument, match=r"axis 1 of `o` has 9 elements, and `K\+1` is 5"):
        fitted(grouped, (10, 4), (3, 9), bm=4)


def ends(x: In[f32, "N"], e: In[i32, "2*G+1"], o: Out[f32, "G H"], *, H=3): ...


def test_an_extent_settles_the_name_that_stands_in_a_sum_alone() -> None:
    assert fitted(ends, (9,), Shape((7,), i32), H=3).shapes == {"o": (3, 3)}
    with pytest.raises(BadArgument, match=r"axis 0 of `e` has 8 .*, and no `G` makes `2\*G\+1`"):
        fitted(ends, (9,), Shape((8,), i32), H=3)
    with pytest.raises(BadArgument, match=r"no `G` makes `2\*G\+1` that"):
        fitted(ends, (9,), Shape((0,), i32), H=3)


def chained(x: In[f32, "H*(G-1)"], y: In[f32, "3-G cdiv(P,2)"], o: Out[f32, "G H P"]): ...


def test_names_are_settled_one_by_the_other() -> None:
    with pytest.raises(BadArgument, match="the dim `P` of the omitted output `o` is not known"):
        fitted(chained, (4,), (0, 5))
    with pytest.raises(BadArgument, match="`H` of the omitted output"):
        fitted(chained, (0,), (2, 5))
    with pytest.raises(BadArgument, match=r"axis 1 of `y` has 5 elements, and `cdiv\(P,2\)` is 2"):
        fitted(chained, (4,), (0, 5), (3, 2, 4))


def rest(x: In[f32, "... N"], y: In[f32, "... 2"], o: Out[f32, "... N 1"]): ...


def test_the_rest_of_an_omitted_output_is_that_of_the_arguments() -> None:
    assert fitted(rest, (4, 5, 3), (4, 5, 2)).shapes == {"o": (4, 5, 3, 1)}
    with pytest.raises(BadArgument, match=r"it is \(4, 5\) in `x` and \(\) in `y`"):
        fitted(rest, (4, 5, 3), (2,))


def lone(x: In[f32, "N"], o: Out[f32, "... N"]): ...


def test_a_rest_that_no_argument_has_is_asked_for() -> None:
    with pytest.raises(BadArgument, match=r"what `...` stands for .* no argument has one"):
        fitted(lone, (3,))


def test_an_expression_that_divides_by_zero_is_refused() -> None:
    with pytest.raises(BadArgument, match="divides by 0"):
        fitted(grouped, (10, 4), bm=0)


def tiled(x: In[f32, "bm N"], *, bm): ...


def test_a_constants_name_is_a_static_dim() -> None:
    assert fitted(tiled, (64, 9), bm=64).static == {"x": (64, None)}
    with pytest.raises(BadArgument, match="`bm` is 32 by the constant `bm`, and 64 by axis 0"):
        fitted(tiled, (64, 9), bm=32)


def unsettled(x: In[f32, "N"], o: Out[f32, "P"]): ...


def test_an_omitted_output_with_an_unknown_dim_is_asked_for() -> None:
    with pytest.raises(BadArgument, match="the dim `P` of the omitted output `o` is not known"):
        fitted(unsettled, (3,))


def unshaped(x: In[f32], o: Out[f32]): ...


def test_an_omitted_output_without_dims_is_asked_for() -> None:
    with pytest.raises(BadArgument, match="the shape of the omitted output `o` is not known"):
        fitted(unshaped, (3,))


def union(x: In[f16 | bf16, "N"], o: Out["N"], p: Out[f16 | f32, "N"]): ...


def test_a_dtype_outside_the_union_is_refused_by_both_names() -> None:
    with pytest.raises(BadArgument, match="`x` takes f16 or bf16, got an array of f32"):
        fitted(union, Shape((3,), f32))


def test_a_generic_array_is_of_a_dtype_that_this_version_computes_with() -> None:
    with pytest.raises(BadArgument, match=r"`x` takes f64, .* or bool, got an array of tf32"):
        fitted(generic, Shape((3,), tf32))


def generic(x: In["N"]): ...


def test_an_omitted_generic_output_takes_the_first_arrays_dtype() -> None:
    assert fitted(union, Shape((3,), f16)).dtypes == {"x": f16, "o": f16, "p": f16}


def test_an_omitted_output_whose_union_lacks_that_dtype_is_asked_for() -> None:
    with pytest.raises(BadArgument, match="the dtype of the omitted output `p` is not known"):
        fitted(union, Shape((3,), bf16))


def scalars(a: i8, b: f16, c, d: boolean, e: f64): ...


@pytest.mark.parametrize(
    ("position", "value", "dtype", "converted"),
    [
        (0, 127, i8, 127),
        (0, np.int64(-128), i8, -128),
        (1, 0.1, f16, float(np.float16(0.1))),
        (1, 2, f16, 2.0),
        (2, 7, i32, 7),
        (2, 0.1, f32, float(np.float32(0.1))),
        (2, True, boolean, True),
        (2, math.inf, f32, math.inf),
        (3, 2, boolean, True),
        (4, 0.1, f64, 0.1),
    ],
)
def test_a_number_takes_the_annotated_dtype(
    position: int, value: Any, dtype: DType, converted: Any
) -> None:
    p = read(scalars).params[position]
    assert scalar_dtype(p, type(value)) is dtype
    result = scalar_converter(p, type(value))(value)
    assert (type(result), result) == (type(converted), converted)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, 128, "`a` is 128, which i8 does not hold"),
        (0, 1.5, "`a` takes i8, got a float"),
        (1, 1e6, r"`b` is 1000000.0, which f16 does not hold"),
        (2, 2**31, "which i32 does not hold"),
        (2, 1e39, "which f32 does not hold"),
        (2, "x", "`c` takes a number, got str"),
    ],
)
def test_a_number_that_its_dtype_does_not_hold_is_refused(
    position: int, value: Any, message: str
) -> None:
    p = read(scalars).params[position]
    with pytest.raises(BadArgument, match=message):
        scalar_converter(p, type(value))(value)


def written(x: InOut[f32, "N"], i: i64): ...


@given(st.integers(-(2**70), 2**70))
def test_an_integer_is_held_exactly_or_refused(value: int) -> None:
    convert = scalar_converter(read(written).params[1], int)
    if -(2**63) <= value < 2**63:
        assert convert(value) == value
    else:
        with pytest.raises(KernelError):
            convert(value)


def test_parameters_are_those_that_python_knows() -> None:
    def one(a, b=1, *rest, c, d=2, **more): ...
    def two(a, b, /, c=3, *, d): ...
    def three(*, a=1): ...
    def four(): ...

    for function in (one, two, three, four):
        wanted = list(inspect.signature(function).parameters.values())
        assert isinstance(function, FunctionType)
        assert list(_parameters(function)) == wanted


def test_a_method_leaves_its_first_parameter_out() -> None:
    class Owner:
        def method(self, x: In[f32, "N"]): ...

    method: Any = Owner.method
    found = signature_of(method, is_method=True)
    assert found.bound == "self"
    assert [p.name for p in found.params] == ["x"]


def flags(x: In[bool, "N"], o: Out[f32 | bool, "N"], on: bool = True): ...


def test_pythons_bool_names_the_dtype() -> None:
    x, o, on = read(flags).params
    assert x.spec is not None
    assert o.spec is not None
    assert (x.spec.dtypes, o.spec.dtypes, on.dtype) == ((boolean,), (f32, boolean), boolean)
