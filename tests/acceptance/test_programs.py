"""Control flow, Python around kernel values, and signatures, on every witness."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import pytest

from astdsl import (
    In,
    InOut,
    Out,
    cdiv,
    clip,
    f32,
    full,
    i32,
    i64,
    kernel,
    maximum,
    ones,
    pipeline,
    tile,
    where,
    zeros,
)
from astdsl.errors import FailedAssertion, KernelError
from tests.arrays import whole
from tests.witnesses import agree

ONE = ("sm_90a",)


# control flow


@kernel
def collatz(x: In[i32, "N"], o: Out[i32, "N"]):
    with pipeline(x.shape[0]) as i:
        n = x[i]
        steps = 0
        while n != 1:
            half = n // 2
            if n == 2 * half:
                n = half
            else:
                n *= 3
                n += 1
            steps += 1
        o[i] = steps


@kernel
def first_negative(x: In[f32, "M N"], o: Out[i32, "M"]):
    M, N = x.shape
    with pipeline(M) as i:
        found = -1
        for j in range(N):
            if x[i, j] < 0:
                found = j
                break
        o[i] = found


@kernel
def odd_sum(x: In[f32, "M N"], o: Out[f32, "M"]):
    M, N = x.shape
    with pipeline(M) as i:
        total = 0.0
        for j in range(N):
            if j % 2 == 0:
                continue
            total += x[i, j]
        o[i] = total


@kernel
def saturated(x: In[f32, "N"], limit: f32, o: Out[f32, "N"], *, b=32):
    with pipeline(cdiv(x.shape[0], b)) as i:
        t = x[tile(i, b)]
        t = clip(t, -limit, limit) if limit > 0 else t
        o[tile(i, b)] = t


@kernel
def only_if_wanted(x: In[f32, "N"], o: InOut[f32, "N"], wanted: i32, *, b=32):
    if wanted == 0:
        return
    with pipeline(cdiv(x.shape[0], b)) as i:
        o[tile(i, b)] = x[tile(i, b)]


@kernel
def chained(x: In[f32, "N"], low: f32, high: f32, o: Out[i32, "N"]):
    with pipeline(x.shape[0]) as i:
        v = x[i]
        if (low <= v <= high and not (v == 0 and v >= 0)) or v > 100:
            o[i] = 1
        elif v < low:
            o[i] = -1
        else:
            o[i] = 0


@kernel
def newton(x: In[f32, "N"], o: Out[f32, "N"], *, b=32):
    with pipeline(cdiv(x.shape[0], b)) as i:
        t = x[tile(i, b)].filled(1)
        r = maximum(t, 1)
        for _ in range(8):
            r = 0.5 * (r + t / r)
        o[tile(i, b)] = r


@kernel
def fibonacci(o: Out[i64, "N"]):
    a, b = 0, 1
    a, b = full((), 0, i64), full((), 1, i64)
    for i in range(o.shape[0]):
        o[i] = a
        a, b = b, a + b


@kernel
def matched(x: In[f32, "N"], o: Out[f32, "N"], *, mode="relu"):
    t = x[0:64]
    match mode:
        case "relu":
            o[0:64] = maximum(t, 0)
        case "square":
            o[0:64] = t * t
        case _:
            o[0:64] = t


@kernel
def nested_loops(x: In[f32, "A B C"], o: Out[f32, "1"]):
    A, B, C = x.shape
    total = 0.0
    for a in range(A):
        for b in range(a, B):
            c = 0
            while c < C:
                if x[a, b, c] > 5:
                    break
                total += x[a, b, c]
                c += 1
    o[0] = total


def test_a_loop_whose_length_memory_decides() -> None:
    x = np.array([1, 2, 3, 7, 27, 97], np.int32)
    np.testing.assert_array_equal(agree(collatz, lambda: (x,)), [0, 1, 7, 16, 111, 118])


def test_break_and_continue() -> None:
    x = whole(6, 9, low=-2, high=9)
    x[0] = 1
    expected = [next((j for j, v in enumerate(r) if v < 0), -1) for r in x]
    np.testing.assert_array_equal(agree(first_negative, lambda: (x,)), expected)
    np.testing.assert_array_equal(agree(odd_sum, lambda: (x,)), x[:, 1::2].sum(1))


@pytest.mark.parametrize("limit", [0.0, 3.0])
def test_a_conditional_expression_chooses_a_tile(limit: float) -> None:
    x = whole(70)
    expected = np.clip(x, -limit, limit) if limit else x
    np.testing.assert_array_equal(agree(saturated, lambda: (x, limit)), expected)


@pytest.mark.parametrize("wanted", [0, 1])
def test_an_early_return_skips_the_pipeline(wanted: int) -> None:
    x, o = whole(70), np.full(70, 50, np.float32)
    for device in ("reference", "emulator"):
        mine = o.copy()
        only_if_wanted.on(device)(x, mine, wanted)
        np.testing.assert_array_equal(mine, x if wanted else o)


def test_chained_comparisons_and_short_circuits() -> None:
    x = np.array([-5, -1, 0, 1, 2, 3, 200], np.float32)
    expected = [-1, 1, 0, 1, 1, 0, 1]
    np.testing.assert_array_equal(agree(chained, lambda: (x, -1.0, 2.0)), expected)


def test_a_loop_refines_a_tile() -> None:
    x = np.arange(1, 71, dtype=np.float32)
    np.testing.assert_allclose(agree(newton, lambda: (x,)), np.sqrt(x), 1e-4)


def test_tuples_are_carried_and_swapped() -> None:
    found = agree(fibonacci, lambda: (np.zeros(60, np.int64),))
    np.testing.assert_array_equal(found[:9], [0, 1, 1, 2, 3, 5, 8, 13, 21])
    assert found[59] == 956722026041


@pytest.mark.parametrize("mode", ["relu", "square", "none"])
def test_match_on_constants(mode: str) -> None:
    x = whole(64)
    meant = {"relu": np.maximum(x, 0), "square": x * x, "none": x}[mode]
    np.testing.assert_array_equal(agree(matched, lambda: (x,), targets=ONE, mode=mode), meant)


def test_loops_in_loops_in_loops() -> None:
    x = whole(3, 4, 5, high=9)
    total = 0
    for a in range(3):
        for b in range(a, 4):
            for c in range(5):
                if x[a, b, c] > 5:
                    break
                total += x[a, b, c]
    np.testing.assert_array_equal(agree(nested_loops, lambda: (x,)), [total])


# pipelines in places


@kernel
def pipelines_in_branches(x: In[f32, "R N"], sign: i32, o: Out[f32, "N"], *, bn=64):
    R, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        acc = zeros((bn,), f32)
        if sign > 0:
            with pipeline(R, stages=3) as r:
                acc += x[r, tile(j, bn)]
        elif sign < 0:
            with pipeline(R, stages=2) as r:
                acc -= x[r, tile(j, bn)]
        o[tile(j, bn)] = acc


@kernel
def growing_pipelines(x: In[f32, "R N"], o: Out[f32, "R N"], *, bn=64):
    R, N = x.shape
    with pipeline(cdiv(N, bn)) as j:
        for last in range(R):
            acc = zeros((bn,), f32)
            with pipeline(last + 1, stages=3) as r:
                acc += x[r, tile(j, bn)]
            o[last, tile(j, bn)] = acc


@kernel
def triangle_of_steps(x: In[f32, "R N"], o: Out[f32, "R N"], *, bn=64):
    R, N = x.shape
    with pipeline(R, cdiv(N, bn)) as (i, j):
        acc = zeros((bn,), f32)
        with pipeline(range(i, R), stages=3) as r:
            acc += x[r, tile(j, bn)] * (r - i)
        o[i, tile(j, bn)] = acc


@kernel
def two_rings(x: In[f32, "R N"], y: In[f32, "S N"], o: Out[f32, "N"], *, bn=64):
    R, N = x.shape
    S, _ = y.shape
    with pipeline(cdiv(N, bn)) as j:
        acc = zeros((bn,), f32)
        with pipeline(R, stages=2) as r:
            acc += x[r, tile(j, bn)]
        with pipeline(S, stages=4) as s:
            acc = acc * 2 + y[s, tile(j, bn)]
        o[tile(j, bn)] = acc


@kernel
def loop_in_pipeline(x: In[f32, "R N"], o: Out[f32, "R N"], *, bn=64):
    R, N = x.shape
    with pipeline(1):
        with pipeline(R, stages=3) as r:
            t = x[r, 0:bn]
            for k in range(r):
                t = t * 2 + k
            o[r, 0:bn] = t


@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_a_pipeline_in_each_branch(sign: int) -> None:
    x = whole(5, 100)
    found = agree(pipelines_in_branches, lambda: (x, sign), targets=ONE)
    np.testing.assert_array_equal(found, sign * x.sum(0))


def test_a_pipeline_whose_length_a_loop_decides() -> None:
    x = whole(6, 70)
    np.testing.assert_array_equal(agree(growing_pipelines, lambda: (x,)), np.cumsum(x, 0))


def test_a_pipeline_from_an_outer_index_on() -> None:
    x = whole(6, 70)
    expected = [sum(x[r] * (r - i) for r in range(i, 6)) for i in range(6)]
    np.testing.assert_array_equal(agree(triangle_of_steps, lambda: (x,)), expected)


def test_two_pipelines_in_a_block() -> None:
    x, y = whole(5, 70), whole(3, 70)
    expected = ((x.sum(0) * 2 + y[0]) * 2 + y[1]) * 2 + y[2]
    np.testing.assert_array_equal(agree(two_rings, lambda: (x, y)), expected)


def test_a_loop_inside_a_pipeline() -> None:
    x = whole(6, 64)
    expected = []
    for r in range(6):
        t = x[r]
        for k in range(r):
            t = t * 2 + k
        expected.append(t)
    np.testing.assert_array_equal(agree(loop_in_pipeline, lambda: (x,)), expected)


# Python around kernel values


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Moments:
    total: Any
    squares: Any

    def with_more(self, t: Any) -> Moments:
        return dataclasses.replace(self, total=self.total + t, squares=self.squares + t * t)

    @property
    def spread(self) -> Any:
        return self.squares - self.total * self.total


def relu(t, slope=0.0):
    return where(t > 0, t, t * slope)


def composed(*functions):
    def run(t):
        for f in functions:
            t = f(t)
        return t

    return run


def absolute(t):
    if t < 0:
        return -t
    return t


@kernel
def by_helpers(x: In[f32, "N"], o: Out[f32, "N"], *, b=32, activation=relu):
    scale = 3
    shifted = lambda t, by=1: t * scale + by  # noqa: E731
    chain = composed(shifted, activation, functools.partial(relu, slope=0.5))
    with pipeline(cdiv(x.shape[0], b)) as i:
        o[tile(i, b)] = chain(x[tile(i, b)])


@kernel
def by_objects(x: In[f32, "R N"], o: Out[f32, "N"], p: Out[f32, "N"], *, b=32):
    R, N = x.shape
    with pipeline(cdiv(N, b)) as j:
        moments = Moments(zeros((b,), f32), zeros((b,), f32))
        pair = Point(x=zeros((b,), f32), y=ones((b,), f32))
        with pipeline(R, stages=2) as r:
            moments = moments.with_more(x[r, tile(j, b)])
            pair = Point(pair.x + pair.y, pair.y * 2)
        o[tile(j, b)] = moments.spread
        p[tile(j, b)] = pair.x


@kernel
def comprehended(x: In[f32, "4 N"], o: Out[f32, "N"], *, weights=(1, 2, 3, 4)):
    parts = [w * x[k, 0:64] for k, w in enumerate(weights) if w != 3]
    table = {f"part{k}": p for k, p in enumerate(parts)}
    total, *rest = table.values()
    for p in rest:
        total = total + p
    if (n := len(parts)) == 3:
        total *= n
    o[0:64] = total


@kernel
def scalar_helpers(x: In[f32, "N"], o: Out[f32, "N"]):
    with pipeline(x.shape[0]) as i:
        o[i] = max(absolute(x[i]), 2.0) + min(x[i], 1) + abs(x[i]) + float(i)


def added(t, times):
    return t if times == 0 else added(t + 1, times - 1)


@kernel
def by_recursion(x: In[f32, "N"], o: Out[f32, "N"]):
    o[0:64] = added(x[0:64], 3)


def test_a_helper_may_call_itself() -> None:
    x = whole(64)
    np.testing.assert_array_equal(agree(by_recursion, lambda: (x,), targets=ONE), x + 3)


@kernel
def triple(t: In[f32, "N"], o: Out[f32, "N"]):
    with pipeline(cdiv(t.shape[0], 32)) as i:
        o[tile(i, 32)] = 3 * t[tile(i, 32)]


class Scaled:
    """A class with a kernel as a method; its fields are constants of the trace."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @kernel
    def run(self, x: In[f32, "N"], o: Out[f32, "N"]):
        with pipeline(cdiv(x.shape[0], 32)) as i:
            o[tile(i, 32)] = self.scaled(x[tile(i, 32)])

    def scaled(self, t: Any) -> Any:
        return t * self.factor

    @staticmethod
    @kernel
    def doubled(x: In[f32, "N"], o: Out[f32, "N"]):
        o[0:64] = x[0:64] * 2


def make_adder(amount: float) -> Any:
    @kernel
    def add(x: In[f32, "N"], o: Out[f32, "N"]):
        o[0:64] = x[0:64] + amount

    return add


def test_helpers_lambdas_partials_and_defaults() -> None:
    x = whole(70)
    t = x * 3 + 1
    t = np.where(t > 0, t, 0)
    np.testing.assert_array_equal(agree(by_helpers, lambda: (x,)), t)
    found = agree(by_helpers, lambda: (x,), targets=ONE, activation=abs)
    np.testing.assert_array_equal(found, np.abs(x * 3 + 1))


def test_dataclasses_and_named_tuples_are_carried() -> None:
    x = whole(5, 50)
    o, p = agree(by_objects, lambda: (x,))
    np.testing.assert_array_equal(o, (x * x).sum(0) - x.sum(0) ** 2)
    np.testing.assert_array_equal(p, np.full(50, 31))


def test_comprehensions_dicts_stars_and_walruses() -> None:
    x = whole(4, 64)
    found = agree(comprehended, lambda: (x,), targets=ONE)
    np.testing.assert_array_equal(found, 3 * (x[0] + 2 * x[1] + 4 * x[3]))


def test_helpers_and_builtins_on_scalars() -> None:
    x = whole(20)
    expected = np.maximum(np.abs(x), 2) + np.minimum(x, 1) + np.abs(x) + np.arange(20)
    np.testing.assert_array_equal(agree(scalar_helpers, lambda: (x,)), expected)


def test_kernels_in_classes_and_functions() -> None:
    x = whole(64)
    for factor in (2.0, 5.0):
        np.testing.assert_array_equal(Scaled(factor).run(x), x * np.float32(factor))
        np.testing.assert_array_equal(make_adder(factor)(x), x + np.float32(factor))
    np.testing.assert_array_equal(Scaled.doubled(x), x * 2)


# assertions


@kernel
def asserting(x: In[f32, "N"], shift: i32, o: Out[f32, "N"], *, b=8):
    N = x.shape[0]
    assert b == 8
    assert shift >= 0, "the shift is negative"
    with pipeline(cdiv(N, b)) as i:
        assert N % b == 0, "N is no multiple of b"
        o[tile(i, b)] = x[tile(i, b)] + shift


def test_an_assertion_in_a_pipeline_is_checked_at_every_launch() -> None:
    x = whole(16)
    np.testing.assert_array_equal(agree(asserting, lambda: (x, 1), targets=ONE), x + 1)
    for device in ("reference", "emulator"):
        with pytest.raises(FailedAssertion, match="the shift is negative"):
            asserting.on(device)(x, -1)
        with pytest.raises(FailedAssertion, match="N is no multiple of b"):
            asserting.on(device)(whole(17), 1)


@kernel
def asserting_of_memory(x: In[f32, "N"], o: Out[f32, "N"]):
    with pipeline(x.shape[0]) as i:
        assert x[i] > 0, "positive"
        o[i] = x[i]


@kernel
def asserting_in_a_branch(x: In[f32, "N"], o: Out[f32, "N"]):
    if x.shape[0] > 4:
        assert x.shape[0] < 9, "short"
    o[0:8] = x[0:8]


@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_an_assertion_that_the_host_cannot_check_is_checked_where_it_stands(device: str) -> None:
    positive = whole(8, low=1)
    np.testing.assert_array_equal(asserting_of_memory.on(device)(positive), positive)
    with pytest.raises(KernelError, match="positive") as caught:
        asserting_of_memory.on(device)(positive - 9)
    assert caught.value.places
    for length in (3, 8):
        asserting_in_a_branch.on(device)(whole(length))
    with pytest.raises(KernelError, match="short"):
        asserting_in_a_branch.on(device)(whole(9))
