"""Reductions and scans by a function, and `cumsum`: against NumPy, on every witness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astdsl import (
    In,
    Out,
    cdiv,
    cumsum,
    ds,
    f32,
    iota,
    kernel,
    maximum,
    pipeline,
    reduce,
    reshape,
    scan,
    tile,
)
from astdsl.errors import KernelError, ShapeMismatch, TypeMismatch, UnsupportedFeature
from astdsl.ir.types import TileType
from tests.lang.harness import a_trace, computed
from tests.witnesses import agree

DATA = (np.arange(60) * 7 % 23).astype(np.float32).reshape(3, 5, 4)


@pytest.mark.parametrize("axis", [0, 1, 2, -2, None])
def test_cumsum_is_numpys(axis: Any) -> None:
    assert np.array_equal(computed(lambda x: cumsum(x, axis), DATA), np.cumsum(DATA, axis))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int32, np.int64, np.uint32])
def test_cumsum_of_integers_is_of_the_dtype_of_sum(dtype: Any) -> None:
    x = (np.arange(20) % 3).astype(dtype)
    found = computed(lambda t: t.cumsum(), x)
    assert found.dtype == (dtype if np.dtype(dtype).itemsize >= 4 else np.int32)
    assert np.array_equal(found, np.cumsum(x))


def test_cumsum_of_narrow_floats_is_rounded_once() -> None:
    x = np.full(64, 0.1, np.float16)
    wanted = np.cumsum(x.astype(np.float32)).astype(np.float16)
    assert np.allclose(computed(cumsum, x).astype(np.float32), wanted.astype(np.float32), 1e-3)


def first_of(left: Any, right: Any) -> Any:
    """Return the operand on the left: associative, and not commutative."""
    del right
    return left


def last_of(left: Any, right: Any) -> Any:
    del left
    return right


@pytest.mark.parametrize("extent", [1, 2, 3, 5, 8, 13])
def test_the_order_of_operands_is_kept(extent: int) -> None:
    x = np.arange(extent, dtype=np.float32)
    assert computed(lambda t: reduce(t, 0, first_of), x) == 0
    assert computed(lambda t: reduce(t, 0, last_of), x) == extent - 1
    assert np.array_equal(computed(lambda t: scan(t, 0, last_of), x), x)
    assert np.array_equal(computed(lambda t: scan(t, 0, first_of), x), 0 * x)


def running_line(left: Any, right: Any) -> Any:
    """Compose two maps v -> a v + b, the left one first."""
    (a, b), (c, d) = left, right
    return a * c, b * c + d


def recurrence(a: In[f32, "N"], b: In[f32, "N"], o: Out[f32, "N"], last: Out[f32, "1"]) -> None:
    _, o[...] = scan((a[...], b[...]), 0, running_line)
    last[...] = reduce((a[...], b[...]), 0, running_line, keepdims=True)[1]


def test_a_linear_recurrence_is_a_scan_of_a_tuple() -> None:
    a = (np.arange(37) % 2 + 0.5).astype(np.float32)
    b = (np.arange(37) % 5).astype(np.float32)
    wanted, state = [], np.float32(0)
    for x, y in zip(a, b, strict=True):
        state = state * x + y
        wanted.append(state)
    found, last = agree(kernel(recurrence), lambda: (a, b))
    assert np.allclose(found, wanted, 1e-5)
    assert np.allclose(last, wanted[-1], 1e-5)


def branching(left: Any, right: Any) -> Any:
    """Use control flow on kernel values: a helper is rewritten wherever it is called."""
    if left < right:
        return right
    return left if left > right else right  # noqa: FURB136  (an `if` is what is tested)


def by_rows(x: In["M N"], o: Out["M N"], p: Out["M"], s: Out["M N"], *, b: int = 32) -> None:
    with pipeline(cdiv(x.shape[0], 8)) as i:
        rows = x[tile(i, 8), 0:b]
        o[tile(i, 8), 0:b] = scan(rows, 1, maximum)
        p[tile(i, 8)] = reduce(rows, 1, branching)
        s[tile(i, 8), 0:b] = cumsum(rows, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_windows_that_cross_an_edge_leave_the_outside_out(dtype: Any) -> None:
    x = (-1 - np.arange(20 * 21) * 11 % 17).astype(dtype).reshape(20, 21)
    running, greatest, total = agree(kernel(by_rows), lambda: (x,))
    assert np.array_equal(running, np.maximum.accumulate(x, 1))
    assert np.array_equal(greatest, x.max(axis=1))
    assert np.array_equal(total, np.cumsum(x, 1))


def scan_then_sum(x: In[f32, "N"], o: Out[f32, "1"]) -> None:
    o[0] = cumsum(x[0:16] + 1).sum()


def test_the_outside_of_a_scan_is_left_out_later() -> None:
    x = np.arange(11, dtype=np.float32)
    assert agree(kernel(scan_then_sum), lambda: (x,)) == np.cumsum(x + 1).sum()


def decayed(x: In[f32, "6 5"], alpha: f32, o: Out[f32, "6 5"], t: Out[f32, "5"]) -> None:
    beta = alpha * 2

    def then(left: Any, right: Any) -> Any:
        (a, p), (b, q) = left, right
        return a * beta + b, p + q

    o[...], _ = scan((x[...], iota(x.shape, 0)), 0, then)
    t[...] = reduce((x[...], iota(x.shape, 0)), 0, lambda a, b: b)[0]


def test_the_function_may_use_scalars_of_the_kernel() -> None:
    x = (np.arange(6 * 5) % 4).astype(np.float32).reshape(6, 5)
    wanted, state = [], 0 * x[0]
    for row in x:
        state = state + row
        wanted.append(state)
    found, last = agree(kernel(decayed), lambda: (x, 0.5))
    assert np.array_equal(found, wanted)
    assert np.array_equal(last, x[-1])


def scan_of_halo(x: In[f32, "N"], o: Out[f32, "16"]) -> None:
    o[...] = scan(x[ds(-3, 16)], 0, maximum).filled(9)


def test_elements_outside_before_the_first_one_take_no_part() -> None:
    x = -1 - np.arange(13, dtype=np.float32) % 5
    found = agree(kernel(scan_of_halo), lambda: (x,))
    assert np.array_equal(found, [9, 9, 9, *np.maximum.accumulate(x)])


def test_a_scan_along_one_axis_keeps_what_is_known_of_the_others() -> None:
    x = np.arange(20 * 16).astype(np.float32).reshape(20, 16)
    found = agree(kernel(flat_of_rows), lambda: (x,), tolerance=1e-6)
    assert np.allclose(found, np.cumsum(x[16:], 1).sum(), 1e-6)


def flat_of_rows(x: In[f32, "M 16"], o: Out[f32, "1"]) -> None:
    o[0] = reshape(cumsum(x[16:24, 0:16], 1), -1).sum()


MISTAKES: list[tuple[Any, type[KernelError], str]] = [
    (lambda x: reduce((x, x[0]), 0, running_line), ShapeMismatch, "one shape"),
    (lambda x: reduce((), 0, running_line), ShapeMismatch, "none"),
    (lambda x: reduce(x, 2, maximum), ShapeMismatch, "axis 2"),
    (lambda x: scan(x, 0, lambda a, b: (a, b)), TypeMismatch, "2 values for 1"),
    (lambda x: scan((x, x), 0, lambda a, b: a[0]), TypeMismatch, "1 value for 2 tiles"),
    (lambda x: scan(x, 0, lambda a, b: a > b), TypeMismatch, "gives bool"),
    (lambda x: scan(x, 0, lambda a, b: a + x), TypeMismatch, "single elements"),
    (lambda x: scan(x, 0, lambda a, b: a + x.sum()), UnsupportedFeature, "computes? with"),
    (lambda x: scan(x, 0, 3), TypeMismatch, "by a function"),
    (lambda x: scan(x, 0, lambda a: a), TypeMismatch, "two operands"),
    (lambda x: scan(x[0:0], 0, maximum), ShapeMismatch, "no elements"),
]


@pytest.mark.parametrize(("wrong", "kind", "said"), MISTAKES)
def test_a_mistake_says_what_to_do(wrong: Any, kind: type[KernelError], said: str) -> None:
    with a_trace(TileType((4, 3), f32)) as (_, x), pytest.raises(kind, match=said) as caught:
        wrong(x)
    assert caught.value.help
