"""`inline_ptx`: a text for each element, with operands that are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    In,
    Out,
    bf16,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    inline_ptx,
    kernel,
    pipeline,
    tile,
    u32,
    where,
)
from astdsl.backend import tools
from astdsl.errors import DeviceError, KernelError, ShapeMismatch, TypeMismatch, UnsupportedFeature
from tests.witnesses import TARGETS, agree

RNG = np.random.default_rng(4)
X = RNG.integers(-50, 50, (48, 40)).astype(np.int32)


def shifted(x: Any, y: Any, z: Any) -> Any:
    return inline_ptx(
        "mad.lo.s32 $0, $1, $2, $3;", "=r,r,r,r", [x, y, z], i32, meaning=lambda a, b, c: a * b + c
    )


@kernel
def rows(x: In[i32, "M N"], o: Out[i32, "M N"]):
    with pipeline(x.shape[0] // 16) as i:
        t = x[tile(i, 16), 0:40]
        o[tile(i, 16), 0:40] = shifted(t, t[:, 0:1], 7)


def test_a_text_is_run_for_each_element_of_tiles_that_broadcast() -> None:
    found = agree(rows, lambda: [X])
    assert np.array_equal(found, X * X[:, :1] + 7)


@kernel
def several(x: In[u32, "N"], y: In[f64, "N"], o: Out[u32, "N"], p: Out[f64, "N"], q: Out[i64, "N"]):
    text = """{
        .reg .u32 low;
        and.b32 low, $3, 255;
        setp.lt.u32 $2, low, 128;
        mov.u32 $0, low;
        add.rn.f64 $1, $4, $4;
    }"""
    low, twice, small = inline_ptx(
        text,
        "=r,=d,=b,r,d,~{memory}",
        [x[...], y[...]],
        (u32, f64, bool),
        meaning=lambda a, b: (a & 255, b + b, (a & 255) < 128),
    )
    o[...], p[...] = low, twice
    q[...] = where(small, inline_ptx("neg.s64 $0, $1;", "=l,l", 5, i64, meaning=lambda n: -n), 1)


def test_a_text_gives_several_results_and_has_registers_of_its_own() -> None:
    x = RNG.integers(0, 2**32, 300, dtype=np.uint32)
    y = RNG.standard_normal(300)
    low, twice, chosen = agree(several, lambda: [x, y])
    assert np.array_equal(low, x & 255)
    assert np.array_equal(twice, y + y)
    assert np.array_equal(chosen, np.where(x & 255 < 128, -5, 1))


@kernel
def halves(x: In[f16, "64"], y: In[bf16, "64"], o: Out[f16, "64"], p: Out[bf16, "64"]):
    o[...] = inline_ptx("neg.f16 $0, $1;", "=h,h", [x[...]], f16, meaning=lambda a: -a)
    p[...] = inline_ptx("abs.bf16 $0, $1;", "=h,h", [y[...]], bf16, meaning=abs)


def test_elements_of_16_bits_have_a_class() -> None:
    x = RNG.standard_normal(64).astype(np.float16)
    y = RNG.standard_normal(64).astype(bf16.numpy)
    negated, absolute = agree(halves, lambda: [x, y])
    assert np.array_equal(negated, -x)
    assert np.array_equal(absolute.astype(np.float32), np.abs(y.astype(np.float32)))


@kernel
def without_meaning(x: In[f32, "64"], o: Out[f32, "64"]):
    o[...] = inline_ptx("mul.rn.f32 $0, $1, $1;", "=f,f", [x[...]], f32)


@pytest.mark.parametrize("target", TARGETS)
def test_a_text_without_a_meaning_is_run_where_ptx_is(target: str) -> None:
    x = RNG.standard_normal(64).astype(np.float32)
    assert np.array_equal(without_meaning.on("emulator", target=target)(x), x * x)
    with pytest.raises(UnsupportedFeature, match="is run without PTX") as caught:
        without_meaning.on("reference")(x)
    assert caught.value.help
    assert caught.value.places


@kernel
def acts(x: In[i32, "32"], o: Out[i32, "32"]):
    assert inline_ptx("prefetch.global.L2 [$0];", "l", [0]) is None
    o[...] = x[...] + 1


def test_a_text_may_give_nothing() -> None:
    assert "prefetch.global.L2 [" in acts.lower(X[0, :32], target="sm_90a").ptx


@kernel
def nonsense(x: In[i32, "32"], o: Out[i32, "32"]):
    o[...] = inline_ptx("nonsense $0, $1;", "=r,r", [x[...]], i32)


@pytest.mark.skipif(not tools()["ptxas"], reason="needs ptxas")
def test_a_text_that_the_assembler_does_not_take_is_named() -> None:
    with pytest.raises(UnsupportedFeature, match="Not a name of any known instruction") as caught:
        nonsense.lower(X[0, :32], target="sm_90a").cubin
    assert "o[...] = inline_ptx" in str(caught.value)
    with pytest.raises(DeviceError, match="nonsense"):
        nonsense.on("emulator")(X[0, :32])


WRONG: list[tuple[Any, type[KernelError], str]] = [
    (lambda x: inline_ptx(3, "=r,r", [x], i32), TypeMismatch, "is a string"),
    (lambda x: inline_ptx("$0 $1", "r,r", [x], i32), TypeMismatch, 'like "=r,r", got'),
    (lambda x: inline_ptx("$0 $1", "=r", [x], i32), TypeMismatch, "1 result and 1 operand"),
    (lambda x: inline_ptx("$0 $1", "=r,q", [x], i32), TypeMismatch, 'like "=r,r"'),
    (lambda x: inline_ptx("$0 $1", None, [x], i32), TypeMismatch, 'like "=r,r"'),
    (lambda x: inline_ptx("$0 $2", "=r,r", [x], i32), TypeMismatch, r"`\$1`, `\$2` are not so"),
    (lambda x: inline_ptx("$0 $1 $x", "=r,r", [x], i32), TypeMismatch, r"`\$` is not so"),
    (lambda x: inline_ptx("$0 $1", "=f,r", [x], i32), TypeMismatch, r"`\$0` .* is i32, and `f`"),
    (lambda x: inline_ptx("$0 $1", "=r,l", [x], i32), TypeMismatch, r"`\$1` .* is i32, and `l`"),
    (lambda x: inline_ptx("$0 $1", "=r,r", [x.astype(i8)], i32), TypeMismatch, "is i8"),
    (lambda x: inline_ptx("$0", "=r", [], i32), TypeMismatch, "an operand or more"),
    (
        lambda x: inline_ptx("$0 $1", "=r,r", [x], i32, meaning=lambda a: (a, a)),
        ShapeMismatch,
        "gives 2 values for 1 result",
    ),
    (
        lambda x: inline_ptx("$0 $1", "=r,r", [x], i32, meaning=lambda a: a.astype(f32)),
        TypeMismatch,
        "gives f32",
    ),
]


@pytest.mark.parametrize(("wrong", "kind", "said"), WRONG)
def test_wrong_operands_are_refused(wrong: Any, kind: type[KernelError], said: str) -> None:
    def calls(x: In[i32, "8"], o: Out[i32, "8"]) -> None:
        wrong(x[...])
        o[...] = x[...]

    with pytest.raises(kind, match=said) as caught:
        kernel(calls).on("reference")(np.zeros(8, np.int32))
    assert caught.value.help
    assert caught.value.places
