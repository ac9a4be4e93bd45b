"""What is called in a kernel: helpers, methods, classes, builtins, libraries."""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from astdsl import pipeline
from astdsl.errors import NotConstant, TypeMismatch, UnsupportedSyntax
from astdsl.ir.dtypes import i32
from astdsl.lang.tracing import NeedsConstant
from tests.frontend.tracing import agrees, array, error_of, on_numbers, trace


def sign(x: Any) -> Any:
    if x > 3:
        return 1
    return -1


@dataclass
class Pair:
    left: Any
    right: Any = 4

    def larger(self) -> Any:
        return max(self.right, self.left)


class Point(NamedTuple):
    x: Any
    y: Any


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def around(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) + 1

    return around


@decorated
def wrapped(x: Any) -> Any:
    if x > 3:
        return x
    return 0


class Scaled:
    __factor = 3

    def __init__(self, x: Any) -> None:
        y = x
        if x > 2:
            y = x * self.__factor
        self.x = y

    def __call__(self, y: Any) -> Any:
        __z = y
        if y > 1:
            __z = y + self.x
        return __z

    @staticmethod
    def doubled(x: Any) -> Any:
        return x * 2 if x > 4 else x

    @classmethod
    def tripled(cls, x: Any) -> Any:
        return x * cls.__factor if x > 4 else x


class Child(Scaled):
    def __call__(self, y: Any) -> Any:
        return super().__call__(y) + 1


def helpers(n: Any, o: Any) -> None:
    o[0] = sign(n)
    o[1] = wrapped(n)
    o[2] = functools.partial(max, 2)(n)
    o[3] = functools.reduce(operator.add, [n, 1, n])


def containers(n: Any, o: Any) -> None:
    pair = Pair(n)
    o[0] = pair.larger()
    o[1] = replace(pair, left=n + 2).larger()
    point = Point(n, 2)
    o[2] = point.x if point.x > point.y else point._replace(x=5).x
    get: Any = lambda d: d["a"] if d["a"] > 1 else 0  # noqa: E731
    o[3] = get({"a": n})


def objects(n: Any, o: Any) -> None:
    scaled = Scaled(n)
    o[0] = scaled(n)
    o[1] = Child(n)(n)
    o[2] = Scaled.doubled(n) + Scaled.tripled(n)


def closures(n: Any, o: Any) -> Any:
    def add(x: Any = n, *, y: Any = n) -> Any:
        return x + y if x > 2 else x

    o[0] = add()
    o[1] = add(3, y=1)


def local_classes(n: Any, o: Any) -> None:
    class Local:
        def __init__(self, x: Any) -> None:
            self.x = x if x > 2 else 0

        def plus(self, y: Any) -> Any:
            if y > n:
                return self.x
            return self.x + y * n

    o[0] = Local(n).plus(3)


@pytest.mark.parametrize("kernel", [helpers, containers, objects, closures, local_classes])
@pytest.mark.parametrize("n", [0, 1, 3, 4, 7])
def test_a_call_does_what_python_does(kernel: Any, n: int) -> None:
    agrees(kernel, n)


def plain_only(k: int) -> int:
    try:
        return [1, 2, 3].index(k)
    except ValueError:
        return 9


def test_a_helper_without_kernel_values_is_plain_python() -> None:
    def kernel(n: Any, o: Any) -> None:
        o[0] = plain_only(3) + n
        o[1] = plain_only(7)

    assert on_numbers(kernel, 1).tolist()[:2] == [3, 9]


def test_a_function_of_numpy_or_math_names_ours() -> None:
    def by_math(n: Any, o: Any) -> None:
        o[0] = math.exp(n)

    def by_numpy(n: Any, o: Any) -> None:
        o[0] = np.exp(n)

    def by_numpy_function(n: Any, o: Any) -> None:
        o[0] = np.sum(n)

    for kernel, ours in ((by_math, "exp"), (by_numpy, "exp"), (by_numpy_function, "sum")):
        error = error_of(kernel, n=i32, o=array(4))
        assert isinstance(error, TypeMismatch)
        assert f"astdsl.{ours}" in error.help


@pytest.mark.parametrize("name", ["locals", "globals", "eval", "vars"])
def test_what_looks_at_its_caller_is_refused(name: str) -> None:
    def kernel(n: Any, o: Any) -> None:
        getattr(builtins, name)()

    error = error_of(kernel, n=i32, o=array(4))
    assert isinstance(error, UnsupportedSyntax)
    assert name in error.message


def test_a_comprehension_over_a_kernel_range_is_refused() -> None:
    def kernel(n: Any, o: Any) -> None:
        o[0] = max([k + 1 for k in range(n)], default=0)

    assert isinstance(error_of(kernel, n=i32, o=array(4)), NotConstant)


def test_an_exception_of_a_helper_passes_through() -> None:
    def kernel(n: Any, o: Any) -> None:
        o[0] = {"a": n}["b"]

    with pytest.raises(KeyError):
        on_numbers(kernel, 1)


def test_a_context_may_be_made_before_it_is_entered() -> None:
    def kernel(n: Any, o: Any) -> None:
        rows = pipeline(3)
        for _ in range(n):
            with rows as i:
                o[i] = i + n

    assert on_numbers(kernel, 2).tolist()[:3] == [2, 3, 4]


def test_a_dim_as_a_key_is_asked_for_as_a_constant() -> None:
    def kernel(x: Any, o: Any) -> None:
        o[0] = {8: 3}[x.shape[0]]

    with pytest.raises(NeedsConstant) as caught:
        trace(kernel, x=array(None), o=array(4))
    assert caught.value.wanted == {("x", 0)}


def test_a_kernel_value_is_looked_for_among_keys() -> None:
    def kernel(n: Any, o: Any) -> None:
        names: dict[int, str] = {2: "two", 4: "four"}
        nothing: list[dict[int, str]] = [{}]
        o[0] = 1 if n in names else 0
        o[1] = 1 if n in nothing[0] else 0
        o[2] = 1 if n not in nothing[1:] else 0
        o[3] = 1 if 3 in {n + 1, 5} else 0
        o[4] = 1 if n not in {2, n + n} else 0

    for n in (1, 2, 4):
        agrees(kernel, n)


@dataclass
class Mutable:
    items: list[Any] = field(default_factory=list)


def test_objects_may_change_outside_of_blocks() -> None:
    def kernel(n: Any, o: Any) -> None:
        state = Mutable()
        for k in (1, 2):
            state.items.append(n * k)
        o[0] = state.items[1]

    assert on_numbers(kernel, 4)[0] == 8
