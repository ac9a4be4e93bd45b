"""Options of a kernel: `approx_math`, and `CompilerParams` as a record of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    CompilerParams,
    In,
    Out,
    cos,
    exp,
    exp2,
    f16,
    f32,
    kernel,
    log,
    log2,
    pipeline,
    rsqrt,
    sin,
    sqrt,
    tanh,
    tile,
)
from astdsl.errors import BadSignature, KernelError, UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import walk
from astdsl.ir.parser import parse_module
from astdsl.ir.printer import print_module
from astdsl.runtime.kept import code_key
from tests.witnesses import agree

X = np.linspace(0.25, 3, 128, dtype=np.float32)
ROWS: list[tuple[Any, str]] = [
    (exp, "ex2.approx.f32"), (exp2, "ex2.approx.f32"), (log, "lg2.approx.f32"),
    (log2, "lg2.approx.f32"), (tanh, "tanh.approx.f32"), (sqrt, "sqrt.approx.f32"),
    (rsqrt, "rsqrt.approx.f32"), (sin, "sin.approx.f32"), (cos, "cos.approx.f32"),
    (lambda x: 1 / x, "div.full.f32"),
]  # fmt: skip


def applied(x: In["N"], o: Out["N"], *, f: Any) -> None:
    o[...] = f(x[...])


def names_approximations(ptx: str) -> bool:
    return "tanh.approx" in ptx or "sqrt.approx" in ptx or "div.full" in ptx


@pytest.mark.parametrize(("f", "instruction"), ROWS, ids=lambda v: getattr(v, "__name__", v))
def test_approximate_mathematics_is_one_instruction_and_close(f: Any, instruction: str) -> None:
    fast = kernel(approx_math=True)(applied)
    assert instruction in fast.lower(X, f=f).ptx
    agree(fast, lambda: (X,), tolerance=2e-3, f=f)


def test_without_it_nothing_is_approximate() -> None:
    ptx = kernel(applied).lower(X, f=lambda x: tanh(x) + sqrt(x) / x).ptx
    assert not names_approximations(ptx)


def test_narrow_floats_are_approximate_too() -> None:
    x = X.astype(f16.numpy)
    assert "tanh.approx.f32" in kernel(approx_math=True)(applied).lower(x, f=tanh).ptx


@pytest.mark.parametrize(
    "options",
    [
        {"params": CompilerParams(approx_math=True)},
        {"params": CompilerParams(check=False), "approx_math": True},
    ],
)
def test_params_and_keywords_say_the_same(options: Any) -> None:
    assert "tanh.approx" in kernel(**options)(applied).lower(X, f=tanh).ptx


def test_a_keyword_wins_over_the_record() -> None:
    plain = kernel(params=CompilerParams(approx_math=True), approx_math=False)(applied)
    assert "tanh.approx" not in plain.lower(X, f=tanh).ptx


def test_it_is_part_of_the_module_and_of_the_key_on_disk() -> None:
    fast, plain = (kernel(approx_math=a)(applied).lower(X, f=tanh).module for a in (True, False))
    assert fast.approx_math
    assert parse_module(print_module(fast)).approx_math
    assert not parse_module(print_module(plain)).approx_math
    assert code_key(fast, "sm_90a", "c") != code_key(plain, "sm_90a", "c")


def by_blocks(x: In[f32, "M N"], o: Out[f32, "M N"], *, axes: Any = "auto") -> None:
    with pipeline(x.shape[0] // 8, x.shape[1] // 8, axes=axes) as (i, j):
        o[tile(i, 8), tile(j, 8)] = x[tile(i, 8), tile(j, 8)] + 1


def pipeline_of(params: CompilerParams, **constants: Any) -> ops.Pipeline:
    x = np.zeros((16, 16), np.float32)
    module = kernel(params=params)(by_blocks).lower(x, **constants).module
    (found,) = (op for op in walk(module.body) if isinstance(op, ops.Pipeline))
    return found


def test_concurrent_steps_are_the_stages_of_pipelines_that_state_none() -> None:
    assert pipeline_of(CompilerParams(max_concurrent_steps=3)).stages == 3
    assert pipeline_of(CompilerParams()).stages == 0


def test_dimension_semantics_are_the_axes_of_an_outermost_pipeline() -> None:
    params = CompilerParams(dimension_semantics=("parallel", "sequential"))
    assert pipeline_of(params).axes == ("spread", "sequential")
    assert pipeline_of(params, axes="sequential").axes == ("sequential", "sequential")
    x = np.arange(16 * 16, dtype=np.float32).reshape(16, 16)
    assert np.array_equal(agree(kernel(params=params)(by_blocks), lambda: (x,)), x + 1)


MISTAKES: list[tuple[Any, type[KernelError], str]] = [
    ({"params": 3}, BadSignature, "is a `CompilerParams`, got 3"),
    ({"approx_math": 1}, BadSignature, "True or False, got 1"),
    ({"params": CompilerParams(approx_math=1)}, BadSignature, "True or False"),  # type: ignore[arg-type]
    ({"params": CompilerParams(max_concurrent_steps=0)}, BadSignature, "from 1 on, got 0"),
    ({"params": CompilerParams(dimension_semantics=("any",))}, BadSignature, "sequential"),
    ({"params": CompilerParams(profile_dir="x")}, UnsupportedFeature, "profile_dir"),
    ({"params": CompilerParams(reduction_scratch_bytes=9)}, UnsupportedFeature, "scratch"),
]


@pytest.mark.parametrize(("options", "kind", "said"), MISTAKES)
def test_a_mistake_is_refused_at_the_call(options: Any, kind: type[KernelError], said: str) -> None:
    wrong = kernel(**options)(applied)
    with pytest.raises(kind, match=said) as caught:
        wrong(X, f=tanh)
    assert caught.value.help


def test_the_axes_must_be_as_many_as_the_words() -> None:
    with pytest.raises(KernelError, match="each axis, 2 axes here"):
        pipeline_of(CompilerParams(dimension_semantics=("parallel",)))
