"""Names that nested functions assign by `nonlocal` are carried as the kernel's own are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from astdsl import (
    BlockSpec,
    In,
    Out,
    emit_pipeline,
    f32,
    i32,
    kernel,
    pipeline,
    unroll,
    zeros,
)
from astdsl.errors import BranchMismatch, HiddenMutation
from tests.witnesses import agree

X = np.random.default_rng(0).integers(-4, 5, (6, 16)).astype(np.float32)


@kernel
def in_a_pipeline(x: In[f32, "M N"], o: Out[f32, "N"], *, n=16):
    total = zeros(n, f32)

    def add(i):
        nonlocal total
        total += x[i, 0:n]

    with pipeline(x.shape[0]) as i:
        add(i)
    o[...] = total


@kernel
def in_a_loop(x: In[f32, "M N"], o: Out[f32, "N"], *, n=16):
    total = zeros(n, f32)

    def add(i):
        nonlocal total
        total = total + x[i, 0:n]

    for i in range(x.shape[0]):
        add(i)
    o[...] = total


def each(count: Any, function: Any) -> None:
    """Call a function of the kernel's in a helper's loop."""
    for i in range(count):
        function(i)


@kernel
def in_the_loop_of_a_helper(x: In[f32, "M N"], o: Out[f32, "N"], *, n=16):
    total = zeros(n, f32)

    def add(i):
        nonlocal total
        total += x[i, 0:n]

    each(x.shape[0], add)
    o[...] = total


@kernel
def through_another_function(x: In[f32, "M N"], o: Out[f32, "N"], *, n=16):
    total = zeros(n, f32)

    def add(part):
        nonlocal total
        total += part

    def add_row(i):
        add(x[i, 0:n])

    with pipeline(x.shape[0]) as i:
        add_row(i)
    o[...] = total


@kernel
def as_a_body(x: In[f32, "M N"], o: Out[f32, "N"], *, n=16):
    total = zeros(n, f32)

    def body(_, block):
        nonlocal total
        total = total + block[0]

    spec = BlockSpec((1, n), lambda i: (i, 0))
    emit_pipeline(body, grid=(x.shape[0],), in_specs=[spec])(x)
    o[...] = total


@kernel
def from_a_list(x: In[f32, "M N"], o: Out[f32, "N"], *, n=16):
    total = zeros(n, f32)

    def add(i):
        nonlocal total
        total += x[i, 0:n]

    steps = [add]
    with pipeline(x.shape[0]) as i:
        for step in steps:
            step(i)
    o[...] = total


SUMS = [in_a_pipeline, in_a_loop, in_the_loop_of_a_helper, through_another_function, as_a_body,
        from_a_list]  # fmt: skip


@pytest.mark.parametrize("summed", SUMS, ids=lambda k: k.__name__)
def test_a_sum_that_a_closure_adds_to(summed: Any) -> None:
    assert np.array_equal(agree(summed, lambda: (X,)), X.sum(axis=0))


@kernel
def counted(x: In[f32, "M N"], o: Out[i32, "2"]):
    positive = negative = 0

    def note(value):
        nonlocal positive, negative
        if value > 0:
            positive += 1
        elif value < 0:
            negative += 1

    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            note(x[i, j])
    o[0] = positive
    o[1] = negative


def test_a_closure_counts_under_a_condition() -> None:
    assert agree(counted, lambda: (X,)).tolist() == [(X > 0).sum(), (X < 0).sum()]


@kernel
def two_counters(x: In[f32, "M N"], o: Out[i32, "2"]):
    def counter():
        count = 0

        def more(by):
            nonlocal count
            count += by
            return count

        return more

    first, second = counter(), counter()
    for i in range(x.shape[0]):
        if x[i, 0] > 0:
            first(1)
        else:
            second(2)
    o[0] = first(0)
    o[1] = second(0)


def test_closures_of_one_function_have_their_own_names() -> None:
    positive = (X[:, 0] > 0).sum()
    expected = [positive, 2 * (len(X) - positive)]
    assert agree(two_counters, lambda: (X,)).tolist() == expected


@kernel
def changes_type(x: In[f32, "M N"], o: Out[f32, "N"], *, n=16):
    total = zeros((), f32)

    def add(i):
        nonlocal total
        total = total + x[i, 0:n]

    for i in range(x.shape[0]):
        add(i)
    o[...] = total


def test_a_name_that_a_closure_gives_another_shape_is_refused() -> None:
    with pytest.raises(BranchMismatch, match=r"`total` is f32 before the loop") as caught:
        changes_type.on("reference")(X)
    assert caught.value.help
    assert caught.value.places


def factors() -> Iterator[float]:
    yield from (1.0, 2.0, 3.0)


ITERATORS: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: iter([1.0, 2.0, 3.0]),
    "generator": factors,
    "count": lambda: itertools.count(1),
    "map": lambda: map(abs, [1.0, 2.0, 3.0]),
    "enumerate": lambda: (x for _, x in enumerate([1.0, 2.0, 3.0])),
    "zip": lambda: (x for (x,) in zip([1.0, 2.0, 3.0], strict=True)),
    "reversed": lambda: reversed([1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_an_iterator_that_a_loop_of_the_kernel_takes_from_is_refused(name: str) -> None:
    make = ITERATORS[name]

    @kernel
    def taken(x: In[f32, "M N"], o: Out[f32, "M"]):
        factor = make()
        first = next(factor)
        for i in range(x.shape[0]):
            o[i] = x[i, 0] * next(factor) + first

    with pytest.raises(HiddenMutation, match="is changed inside a block") as caught:
        taken.on("reference")(X)
    assert caught.value.help


@kernel
def taken_outside(x: In[f32, "M N"], o: Out[f32, "M"]):
    factor = iter([1.0, 2.0, 3.0])
    first = next(factor)
    for i in range(x.shape[0]):
        o[i] = x[i, 0] * first + sum(part for part in (1, 2))
    for i in unroll(range(2)):
        o[i] = next(factor)


def test_an_iterator_that_python_alone_takes_from_is_pythons() -> None:
    expected = X[:, 0] + 3
    expected[:2] = 2, 3
    assert np.array_equal(agree(taken_outside, lambda: (X,)), expected)
