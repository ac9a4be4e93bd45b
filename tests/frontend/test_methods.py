"""What Python calls by itself in a user's class, where kernel values decide what it does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from astdsl import pipeline
from astdsl.errors import NotConstant, OutOfScope
from astdsl.ir import ops
from astdsl.ir.dtypes import i32
from tests.frontend.tracing import agrees, array, error_of, on_numbers, operations, text, trace


class Number:
    """A number whose every method asks for its sign first."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def size(self) -> Any:
        if self.value > 0:
            return self.value
        return -self.value

    @functools.cached_property
    def kept(self) -> Any:
        return self.value if self.value > 0 else -self.value

    @property
    def double(self) -> Any:
        return self.value * 2

    @double.setter
    def double(self, value: Any) -> None:
        half = value // 2
        if value <= 4:
            half = -value
        self.value = half

    @double.deleter
    def double(self) -> None:
        self.value = 0 if self.value > 0 else 1

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Number):
            return NotImplemented
        return Number(self.value if self.value > 2 else other.value)

    def __radd__(self, other: Any) -> Any:
        return Number(other if self.value > 2 else self.value)

    def __sub__(self, other: Any) -> Any:
        return Number(self.value - other if self.value > 1 else other)

    def __isub__(self, other: Any) -> Any:
        return Number(self.value - other if self.value > 0 else other)

    def __divmod__(self, other: Any) -> Any:
        return (self.value, other) if self.value is other else (1 if self.value > other else 2, 3)

    def __neg__(self) -> Any:
        return Number(-self.value if self.value > 0 else self.value)

    def __abs__(self) -> Any:
        return self.size

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.value if self.value > key.start else key.stop
        return key if self.value > key + 1 else self.value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.value = value if self.value > key else key

    def __delitem__(self, key: Any) -> None:
        self.value = key if self.value > key else -1

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, Number):
            return NotImplemented
        if self.value > 2:
            return self.value == other.value
        return False

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: Any) -> Any:
        return self.value < other.value and self.value > 0

    def __bool__(self) -> Any:
        return bool(self.value > 2 and self.value < 9)

    def __contains__(self, item: Any) -> Any:
        return bool(item < self.value and item > 0)

    def __iter__(self) -> Iterator[Any]:
        first = self.value if self.value > 3 else 4
        return iter([first, self.value])

    def __call__(self, x: Any) -> Any:
        return x if self.value > x + 1 else self.value

    def __enter__(self) -> Any:
        return 1 if self.value > 2 else 2

    def __exit__(self, *error: object) -> None:
        self.value = 5 if self.value > 2 else 6


class Sized:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __len__(self) -> Any:
        return 4 if self.value > 2 else 0


class Larger(Number):
    def __radd__(self, other: Any) -> Any:
        return Number(100 if other.value > 2 else 200)


def by_property(n: Any, o: Any) -> None:
    a = Number(n)
    o[0] = a.size
    o[1] = a.kept + a.kept
    a.double = n
    o[2] = a.double
    a.double += 3
    o[3] = a.value
    del a.double
    o[4] = a.value


def by_operator(n: Any, o: Any) -> None:
    a, b = Number(n), Number(n + 3)
    o[0] = (a + b).value
    o[1] = (7 + a).value
    o[2] = (b - 1).value
    a -= 2
    o[3] = a.value
    o[4] = (-b).value
    o[5], o[6] = divmod(b, 4)
    o[7] = (a + Larger(n)).value


def by_comparison(n: Any, o: Any) -> None:
    a, b = Number(n), Number(3)
    o[0] = 1 if a == b else 2
    o[1] = 1 if a != b else 2
    o[2] = 1 if a < b else 2
    o[3] = 1 if b > a else 2
    o[4] = 1 if b < a < b else 2
    o[5] = 1 if a == 3 else 2


def by_truth(n: Any, o: Any) -> None:
    a, b = Number(n), Sized(n)
    if a:
        o[0] = 1
    else:
        o[0] = 2
    o[1] = 1 if not a else 2
    o[2] = 1 if b else 2
    o[3] = len(b)
    o[4] = abs(a)
    o[5] = 1 if bool(a) and n < 7 else 2
    k = n
    while Number(k):
        k -= 1
    o[6] = k


def by_element(n: Any, o: Any) -> None:
    a = Number(n)
    o[0] = a[2]
    o[1] = a[1:5]
    a[3] = 7
    o[2] = a.value
    a[4] += 1
    o[3] = a.value
    del a[6]
    o[4] = a.value
    o[5] = 1 if 2 in Number(n) else 2
    o[6] = 1 if n not in Number(3) else 2


def by_iteration(n: Any, o: Any) -> None:
    total = 0
    for item in Number(n):
        total = 2 * total + item
    o[0] = total
    first, second = Number(n + 1)
    o[2] = first + second
    o[3] = sum(item * 2 for item in Number(n))
    o[4] = Number(n)(4)


def by_context(n: Any, o: Any) -> None:
    a = Number(n)
    with a as entered:
        o[0] = entered
    o[1] = a.value


class Same(Number):
    """A subclass that answers no operator anew."""


class Declines:
    """A number that other methods and builtins answer for where its own do not."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __iadd__(self, other: Any) -> Any:
        return NotImplemented

    def __add__(self, other: Any) -> Any:
        return Declines(self.value + other if self.value > 2 else other)

    def __next__(self) -> Any:
        return self.__doubled

    @property
    def __doubled(self) -> Any:
        return 2 * self.value if self.value > 2 else 1


def by_others(n: Any, o: Any) -> None:
    o[0] = (Number(n) + Same(7)).value
    a = Declines(n)
    a += 4
    o[1] = a.value
    o[2] = next(a)
    o[3] = next(iter(Number(n)), 3)


KERNELS = [
    by_property, by_operator, by_comparison, by_truth, by_element, by_iteration, by_context,
    by_others,
]  # fmt: skip


@pytest.mark.parametrize("n", [-2, 0, 2, 3, 4, 9])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_methods_do_what_python_does(kernel: Any, n: int) -> None:
    agrees(kernel, n)


class Steps:
    def __init__(self, n: Any) -> None:
        self.n = n

    @property
    def total(self) -> Any:
        total = 0
        with pipeline(self.n) as i:
            total = total + i
        for k in range(self.n):
            total = total + k
        return total


def test_a_property_may_hold_pipelines_and_loops() -> None:
    def kernel(n: Any, o: Any) -> None:
        o[0] = Steps(n).total

    assert on_numbers(kernel, 5)[0] == 20
    assert len(list(operations(trace(kernel, n=i32, o=array(4, dtype=i32)), ops.Pipeline))) == 1


def test_a_helper_of_a_class_keeps_its_operators_beside_others() -> None:
    @dataclass
    class Pair:
        left: Any
        right: Any

    def kernel(n: Any, o: Any) -> None:
        pair = Pair(n, [n, 2])
        pair.right[1] += Number(n).size
        pair.left += 1
        o[0] = pair.right[1] ** 2 // 3 % 5
        o[1] = pair.left << 1 | 1
        o[2] = ~pair.left & 7 ^ 2
        o[3:5] = o[0:2]

    for n in (-3, 4):
        agrees(kernel, n)


# What stays plain Python


class Yields:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __iter__(self) -> Any:
        if self.value > 0:
            yield self.value


class Counts:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.value > 0:
            return 1
        raise StopIteration


@functools.total_ordering
class Ordered:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> Any:
        return NotImplemented

    def __lt__(self, other: Any) -> Any:
        if self.value < other.value:
            return True
        return self.value < 0

    __hash__ = None  # type: ignore[assignment]


def yielding(n: Any, o: Any) -> None:
    for item in Yields(n):
        o[0] = item


def counting(n: Any, o: Any) -> None:
    for item in Counts(n):
        o[0] = item


def sorting(n: Any, o: Any) -> None:
    o[0] = sorted([Ordered(n), Ordered(3)])[1].value


def ordering(n: Any, o: Any) -> None:
    o[0] = 1 if Ordered(n) > Ordered(3) else 2


def finding(n: Any, o: Any) -> None:
    o[0] = [Number(n), Number(3)].index(Number(n))


PLAIN: list[tuple[Callable[..., None], str, str, str]] = [
    (yielding, "Yields.__iter__", "self.value > 0", "return a list"),
    (counting, "Counts.__next__", "self.value > 0", "by its name"),
    (sorting, "Ordered.__lt__", "self.value < other.value", "by its name"),
    (ordering, "Ordered.__lt__", "self.value < other.value", "by its name"),
    (finding, "Number.__eq__", "self.value > 2", "by its name"),
]


@pytest.mark.parametrize(("kernel", "where", "condition", "help"), PLAIN)
def test_a_condition_that_stays_plain_python_is_refused_in_its_method(
    kernel: Any, where: str, condition: str, help: str
) -> None:
    error = error_of(kernel, n=i32, o=array(4, dtype=i32))
    assert isinstance(error, NotConstant)
    span, note = error.places[0]
    assert condition in text(span)
    assert where in note
    lines = kernel.__code__.co_firstlineno, kernel.__code__.co_firstlineno + 2
    assert lines[0] < error.places[1][0].line <= lines[1]
    assert help in error.help


def test_what_a_dataclass_compares_is_refused_at_the_comparison() -> None:
    @dataclass
    class Pair:
        left: Any

    def kernel(n: Any, o: Any) -> None:
        o[0] = 1 if Pair(n) == Pair(3) else 2

    error = error_of(kernel, n=i32, o=array(4, dtype=i32))
    assert text(error.places[0][0]) == "Pair(n) == Pair(3)"
    assert "compare the attributes" in error.help


def test_an_object_whose_truth_the_kernel_decides_is_no_operand_of_and() -> None:
    def kernel(n: Any, o: Any) -> None:
        if Number(n) and n > 2:
            o[0] = 1

    error = error_of(kernel, n=i32, o=array(4, dtype=i32))
    assert isinstance(error, NotConstant)
    assert "`bool(x) and y`" in error.help


def test_a_mistake_in_a_method_is_shown_there() -> None:
    class Wrong:
        def __add__(self, other: Any) -> Any:
            with pipeline(2) as i:
                pass
            return other + i

    def kernel(n: Any, o: Any) -> None:
        o[0] = Wrong() + n

    error = error_of(kernel, n=i32, o=array(4, dtype=i32))
    assert isinstance(error, OutOfScope)
    assert text(error.places[0][0]) == "other + i"
    assert error.places[0][0].stack
