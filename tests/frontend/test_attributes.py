"""How Python finds attributes and makes objects, where kernel values decide what comes of it."""

from __future__ import annotations

import abc
import functools
from dataclasses import dataclass
from typing import Any

import pytest

from tests.frontend.tracing import agrees


class Number:
    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def size(self) -> Any:
        return self.value if self.value > 0 else -self.value

    @functools.cached_property
    def sign(self) -> Any:
        return 1 if self.value > 0 else -1

    def more(self, by: Any) -> Any:
        return self.value + by if self.value > 2 else by


class Twice(Number):
    @property
    def size(self) -> Any:
        return super().size * 2

    @functools.cached_property
    def sign(self) -> Any:
        return super().sign * 2

    def more(self, by: Any) -> Any:
        return super().more(by) + super(Twice, self).size  # noqa: UP008  (as some do)

    @classmethod
    def of(cls, value: Any) -> Any:
        return cls(value)


class Answers:
    known = 7

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("no"):
            raise AttributeError(name)
        return len(name) if self.value > 1 else -1


class AnswersAll:
    """What has an answer for every name, `__dict__` too."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:
        return len(name) if self.value > 1 else -1


class Doubled:
    """What doubles all that is read of it, `__dict__` too."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        return found * 2 if found > 1 else found


class Watched:
    def __init__(self, value: Any) -> None:
        object.__setattr__(self, "value", value)

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, "value")
        if name == "small":
            return 1 if value < 3 else 0
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value if value > 0 else 7)

    value: Any

    def __delattr__(self, name: str) -> None:
        self.value = 5 if self.value > 1 else 6


class Halved:
    """A descriptor."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, owner: Any, kind: type) -> Any:
        found = getattr(owner, self.name)
        return found // 2 if found > 1 else found

    def __set__(self, owner: Any, value: Any) -> None:
        setattr(owner, self.name, value if value > 2 else 10)

    def __delete__(self, owner: Any) -> None:
        setattr(owner, self.name, 8 if owner.half > 2 else 9)


class Default:
    """A descriptor that objects may hide."""

    def __get__(self, owner: Any, kind: type) -> Any:
        return 3 if owner.half > 2 else 4


class Described:
    half = Halved()
    default = Default()

    def __init__(self, value: Any) -> None:
        self.half = value


class Slotted:
    __slots__ = ("__value",)

    def __init__(self, value: Any) -> None:
        self.__value = value

    def __call__(self) -> Any:
        return self.__value if self.__value > 2 else 5


class Callable(Slotted):
    __slots__ = ()


@dataclass(slots=True)
class Kept:
    value: Any

    def size(self) -> Any:
        return self.value if self.value > 0 else -self.value


class Shape(abc.ABC):
    def __init__(self, value: Any) -> None:
        self.area = value if value > 2 else 6

    @abc.abstractmethod
    def scaled(self, by: Any) -> Any: ...


class Square(Shape):
    def scaled(self, by: Any) -> Any:
        return self.area * by if self.area > 3 else by


class Made:
    def __new__(cls, value: Any) -> Any:
        made = super().__new__(cls)
        made.first = value if value > 1 else 7
        return made

    def __init__(self, value: Any) -> None:
        self.second = self.first if value > 3 else 0

    first: Any


class Scale:
    """What only stands right of an operator."""

    def __init__(self, by: Any) -> None:
        self.by = by

    def __rmul__(self, other: Any) -> Any:
        return other * self.by if other > 1 else other

    def __radd__(self, other: Any) -> Any:
        return other + self.by

    def __rmatmul__(self, other: Any) -> Any:
        return other - self.by

    def __gt__(self, other: Any) -> Any:
        return other < self.by


class Counted:
    """A sequence without `__iter__`."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: int) -> Any:
        if key >= 3:
            raise IndexError
        return self.value if self.value > key else 20 + key


def by_super(n: Any, o: Any) -> None:
    o[0], o[1], o[2] = Twice(n).size, Twice.of(n).sign, Twice(n).more(1)


def by_any_name(n: Any, o: Any) -> None:
    a = Answers(n)
    o[0], o[1], o[2] = a.seven, a.known, getattr(a, "eleven")  # noqa: B009  (as some do)
    o[3] = getattr(a, "nothing", 5)
    o[4] = 1 if hasattr(a, "nothing") or not hasattr(a, "some") else 2


def by_all_names(n: Any, o: Any) -> None:
    a, d = AnswersAll(n), Doubled(n)
    o[0], o[1] = a.seven, d.value
    o[2] = 0
    if n > 2:
        o[2] = d.value + a.one


def by_every_name(n: Any, o: Any) -> None:
    w = Watched(n)
    o[0], o[1] = w.small, w.value
    w.value = n - 3
    o[2] = w.value
    del w.value
    o[3] = w.value


def by_descriptor(n: Any, o: Any) -> None:
    d = Described(n)
    o[0], o[1] = d.half, d.default
    d.default = 9
    setattr(d, "half", n - 1)  # noqa: B010  (as some do)
    o[2], o[3] = d.half, d.default
    del d.half
    o[4] = d.half


def by_slot(n: Any, o: Any) -> None:
    o[0], o[1], o[2] = Slotted(n)(), Callable(n)(), Kept(n).size()


def by_construction(n: Any, o: Any) -> None:
    o[0], o[1] = Square(n).scaled(3), Square(n).area
    o[2], o[3] = Made(n).first, Made(n).second


def by_the_right_operand(n: Any, o: Any) -> None:
    o[0] = n * Scale(3)
    o[1] = n @ Scale(3)
    x = n
    x += Scale(3)
    o[2] = x
    o[3] = 1 if n < Scale(3) else 2


def by_number(n: Any, o: Any) -> None:
    counted: Any = Counted(n)
    a, b, c = counted
    o[0], o[1], o[2] = a, b, c
    o[3] = sum(counted)
    o[4] = list(counted)[1]
    for item in counted:
        o[5] = item


KERNELS = [value for name, value in globals().items() if name.startswith("by_")]


@pytest.mark.parametrize("n", [-2, 0, 1, 2, 3, 4, 9])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_attributes_and_objects_are_those_of_python(kernel: Any, n: int) -> None:
    agrees(kernel, n)
