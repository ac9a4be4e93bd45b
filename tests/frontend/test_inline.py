"""A kernel called in a kernel is a part of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from astdsl import (
    In,
    InOut,
    Out,
    cdiv,
    exp,
    f16,
    f32,
    full,
    i32,
    kernel,
    maximum,
    pipeline,
    tile,
    zeros,
)
from astdsl.errors import (
    BadArgument,
    FailedAssertion,
    KernelError,
    NotConstant,
    TypeMismatch,
    UnsupportedFeature,
    UnsupportedSyntax,
    WrittenInput,
)
from tests.witnesses import agree


@kernel
def scale(
    x: In[f32, "M N"], o: Out[f32, "M N"], alpha: f32 = 2.0, *, bm: int = 16, bn: int = 32
) -> None:
    M, N = x.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        o[tile(i, bm), tile(j, bn)] = x[tile(i, bm), tile(j, bn)] * alpha


@kernel
def add_rows(x: In[f32, "N"], y: In[f32, "N"], o: Out[f32, "N"]) -> None:
    assert x.shape[0] % 32 == 0, "rows of whole warps"
    o[...] = x[...] + y[...]


@kernel
def total(x: In["M N"], o: Out[f32, "M"], *, bk: int = 16) -> None:
    acc = zeros((x.shape[0],), f32)
    with pipeline(cdiv(x.shape[1], bk)) as k:
        acc += x[:, tile(k, bk)].sum(axis=1)
    o[...] = acc


@kernel
def started(x: In[f32, "8"], o: Out[f32, "8", 1]) -> None:
    o[...] += x[...]


def data(*shape: int, dtype: Any = np.float32) -> Any:
    return (np.arange(np.prod(shape)) % 61).reshape(shape).astype(dtype)


@kernel
def scaled_twice(x: In[f32, "M N"], between: InOut[f32, "M N"], o: Out[f32, "M N"]) -> None:
    scale(x, between, 3.0)
    scale(between, o, bm=8)


def test_the_pipelines_of_the_callee_are_launches_one_after_another() -> None:
    x = data(40, 50)
    o, between = agree(scaled_twice, lambda: (x, np.zeros_like(x)))
    assert np.array_equal(between, x * 3)
    assert np.array_equal(o, x * 6)


@kernel
def by_rows(x: In[f32, "M 32"], o: Out[f32, "M 32"]) -> None:
    with pipeline(x.shape[0]) as i:
        add_rows(x.at[i], x[i], o.at[i])


def test_an_input_of_the_callee_may_be_a_view_or_a_tile() -> None:
    x = data(10, 32)
    assert np.array_equal(agree(by_rows, lambda: (x,)), x + x)


@kernel
def sums_of_blocks(x: In[f16 | f32, "B M N"], o: Out[f32, "B M"]) -> None:
    with pipeline(x.shape[0]) as b:
        total(x.at[b, 0:8], o.at[b, 0:8], bk=32)


@kernel
def doubled(x: In[f32, "N"], o: Out[f32, "N"]) -> None:
    o[...] = x[...] * 2


def test_a_view_of_any_kind_is_what_the_callee_sees() -> None:
    @kernel
    def reshaped(x: In[f32, "6 5"], o: Out[f32, "6 5"]) -> None:
        doubled(x.reshape(30), o.reshape(30))

    @kernel
    def picked(x: In[f32, "8"], o: Out[f32, "3"]) -> None:
        doubled(x.at[[5, 0, 3]], o.at[[2, 1, 0]])

    x = data(6, 5)
    np.testing.assert_array_equal(agree(reshaped, lambda: (x,)), x * 2)
    y = data(8)
    np.testing.assert_array_equal(agree(picked, lambda: (y,)), y[[3, 0, 5]] * 2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_pipeline_of_the_callee_nests_in_that_of_the_caller(dtype: Any) -> None:
    x = data(3, 8, 100, dtype=dtype)
    assert np.array_equal(agree(sums_of_blocks, lambda: (x,)), x.astype(np.float32).sum(axis=2))


@kernel
def through_a_start(x: In[f32, "8"], o: Out[f32, "8"]) -> None:
    returned = started(x, o)
    returned[...] = returned[...] * 2


def test_an_output_with_a_start_starts_so_and_is_returned() -> None:
    x = data(8)
    assert np.array_equal(agree(through_a_start, lambda: (x,)), (x + 1) * 2)


@kernel
def by_a_scalar_of_the_kernel(x: In[f32, "M N"], n: i32, o: Out[f32, "M N"]) -> None:
    scale(x, o, n + 1)


def test_a_scalar_of_the_callee_is_any_number_of_the_caller() -> None:
    x = data(16, 32)
    assert np.array_equal(agree(by_a_scalar_of_the_kernel, lambda: (x, 4)), x * 5)


class Model:
    """A kernel as a method."""

    alpha = 4.0

    @kernel
    def run(self, x: In[f32, "8"], o: Out[f32, "8"]) -> None:
        o[...] = x[...] * self.alpha


@kernel
def through_a_method(x: In[f32, "8"], o: Out[f32, "8"], *, model: Any) -> None:
    model.run(x, o)


def test_a_kernel_that_is_a_method_is_inlined_with_its_object() -> None:
    x = data(8)
    assert np.array_equal(agree(through_a_method, lambda: (x,), model=Model()), x * 4)


@kernel
def powers(x: In[f32, "8"], o: Out[f32, "8"], *, n: int) -> None:
    o[...] = x[...]
    if n > 1:
        powers(x, o, n=n - 1)
        o[...] = o[...] * x[...]


def test_a_kernel_calls_itself_with_other_constants() -> None:
    x = data(8)
    assert np.array_equal(agree(powers, lambda: (x,), n=3), x**3)


@kernel
def softmax(x: In[f32, "N"], o: Out[f32, "N"], *, b: int = 32) -> None:
    greatest, total = full((), -1e30, f32), full((), 0.0, f32)
    with pipeline(cdiv(x.shape[0], b)) as j:
        greatest = maximum(greatest, x[tile(j, b)].max())
    with pipeline(cdiv(x.shape[0], b)) as j:
        total += exp(x[tile(j, b)] - greatest).sum()
    with pipeline(cdiv(x.shape[0], b)) as j:
        o[tile(j, b)] = exp(x[tile(j, b)] - greatest) / total


@kernel
def softmax_of_rows(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
    with pipeline(x.shape[0]) as i:
        softmax(x.at[i], o.at[i])


def test_windows_of_a_row_may_cross_its_end_in_the_callee() -> None:
    x = data(3, 70) % 7
    wanted = np.exp(x - x.max(axis=1, keepdims=True))
    wanted /= wanted.sum(axis=1, keepdims=True)
    assert np.allclose(agree(softmax_of_rows, lambda: (x,), tolerance=1e-5), wanted, 1e-5)


@kernel
def biased(x: In[f32, "N"], o: Out[f32, "N"], bias: In[f32, "N"] | None = None) -> None:
    o[...] = x[...] + 1
    if bias is not None:
        o[...] += bias[...]


def applied(f: Any, x: Any, o: Any) -> None:
    f(x, o)


@kernel
def on_two_paths(x: In[f32, "8"], n: i32, o: Out[f32, "8"]) -> None:
    if n > 2:
        biased(x, o)
    else:
        applied(partial(biased, bias=x), x, o)


@pytest.mark.parametrize("n", [1, 3])
def test_an_optional_parameter_is_settled_by_each_call(n: int) -> None:
    x = data(8)
    wanted = x + 1 if n > 2 else x + x + 1
    assert np.array_equal(agree(on_two_paths, lambda: (x, n)), wanted)


@kernel
def repeated(x: In[f32, "8"], o: InOut[f32, "8"]) -> None:
    for _ in range(3):
        biased(o, o, x)


def test_a_call_in_a_loop_reads_what_the_last_one_wrote() -> None:
    x = data(8)
    assert np.array_equal(agree(repeated, lambda: (x, x.copy())), x + 3 * (x + 1))


def refused(body: Any, *arguments: Any) -> KernelError:
    with pytest.raises(KernelError) as caught:
        kernel(body).on("reference")(*arguments)
    return caught.value


def omits_the_output(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
    scale(x)


def writes_an_input(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
    scale(x, x)


def gives_other_extents(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
    scale(x.at[0:8, 0:8], o.at[0:8, 0:7])


def gives_another_rank(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
    scale(x.at[0], o)


def gives_another_dtype(x: In[f16, "M N"], o: Out[f32, "M N"]) -> None:
    scale(x, o)


def gives_an_unknown_constant(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
    scale(x, o, bq=1)


def gives_a_kernel_constant(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
    for k in range(x.shape[0]):
        scale(x, o, bm=k)


def gives_a_tile_for_a_scalar(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
    scale(x, o, x[0, 0:4])


def gives_a_number_for_an_array(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
    scale(1.0, o)


def gives_a_tile_for_an_output(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
    scale(x, x[0:8, 0:8])


def places_the_callee(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
    scale.on("emulator")(x, o)


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (places_the_callee, UnsupportedFeature, "on a device"),
        (omits_the_output, UnsupportedFeature, "without its output `o`"),
        (writes_an_input, WrittenInput, "`x` is an `In`"),
        (gives_other_extents, BadArgument, "`N` is 8 by axis 1 of `x`, and 7"),
        (gives_another_rank, BadArgument, "takes 2 axes"),
        (gives_another_dtype, BadArgument, "takes f32"),
        (gives_an_unknown_constant, BadArgument, "no parameter `bq`"),
        (gives_a_kernel_constant, NotConstant, "constant `bm`"),
        (gives_a_tile_for_a_scalar, BadArgument, "takes a number"),
        (gives_a_number_for_an_array, BadArgument, "takes a ref or a tile"),
        (gives_a_tile_for_an_output, BadArgument, "takes a ref, got"),
    ],
)
def test_what_the_callee_does_not_take_is_refused_at_the_call(
    body: Any, kind: type[KernelError], said: str
) -> None:
    x = data(16, 16, dtype=np.float16 if body is gives_another_dtype else np.float32)
    error = refused(body, x)
    assert type(error) is kind
    assert said in error.message
    assert error.span is not None
    assert error.span.line == body.__code__.co_firstlineno + 1 + (kind is NotConstant)
    assert error.help


def test_dims_that_are_known_at_the_launch_are_compared_there() -> None:
    def body(x: In[f32, "M N"], o: Out[f32, "N M"]) -> None:
        scale(x, o)

    assert kernel(body).on("reference")(data(8, 8)).shape == (8, 8)
    error = refused(body, data(8, 4))
    assert type(error) is FailedAssertion
    assert "both are `M`" in error.message


def test_an_assertion_of_the_callee_is_one_of_the_caller() -> None:
    def body(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
        with pipeline(x.shape[0]) as i:
            add_rows(x.at[i, 0:16], x[i, 0:16], o.at[i, 0:16])

    assert "rows of whole warps" in refused(body, data(8, 16)).message


def test_a_mistake_in_the_callee_shows_the_call() -> None:
    @kernel
    def inner(x: In[f32, "N"], o: Out[f32, "N"]) -> None:
        o[0:8] = x[0:8] + x[0:4]

    def body(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
        inner(x.at[0], o.at[0])

    error = refused(body, data(8, 8))
    assert error.span is not None
    assert [place.line for place in error.span.stack] == [body.__code__.co_firstlineno + 1]


def test_a_write_to_an_input_of_the_callee_is_refused() -> None:
    @kernel
    def inner(x: In[f32, "N"], o: Out[f32, "N"]) -> None:
        x[0:8] = o[0:8]

    def body(x: InOut[f32, "M N"], y: InOut[f32, "M N"]) -> None:
        inner(x.at[0], y.at[0])

    assert type(refused(body, data(8, 8), data(8, 8))) is WrittenInput


def test_a_kernel_that_returns_a_value_is_refused() -> None:
    @kernel
    def inner(x: In[f32, "N"], o: Out[f32, "N"]) -> Any:
        o[0:8] = x[0:8]
        return x

    def body(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
        inner(x.at[0], o.at[0])

    assert type(refused(body, data(8, 8))) is UnsupportedSyntax


def test_a_start_of_unknown_extent_is_refused() -> None:
    @kernel
    def inner(x: In[f32, "N"], o: Out[f32, "N", 0]) -> None:
        o[0:8] += x[0:8]

    def body(x: In[f32, "N"], o: Out[f32, "N"]) -> None:
        inner(x, o)

    assert type(refused(body, data(8))) is UnsupportedFeature


def test_operands_of_the_wrong_kind_stay_mistakes_of_types() -> None:
    def body(x: In[f32, "M N"], o: Out[f32, "M N"]) -> None:
        scale(x, o, "2")

    assert type(refused(body, data(8, 8))) is TypeMismatch
