"""`@kernel` on what is no function: a kernel where that has a meaning, else a way out."""

import abc
import functools
from typing import Any

import numpy as np
import pytest

import astdsl
from astdsl import In, Out, f32, i32, kernel
from astdsl.errors import BadArgument, BadSignature, UnsupportedSyntax
from tests.frontend.tracing import text

X = np.arange(8, dtype=np.float32)
# What is given to it here has no type that it takes.
decorate: Any = kernel


def scaled(x: In[f32, "8"], o: Out[f32, "8"], *, by=2):
    o[...] = x[...] * by


class Scale:
    """An object that is called."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: In[f32, "8"], o: Out[f32, "8"], *, more=0):
        o[...] = x[...] * self.by + more


class Static:
    @staticmethod
    def __call__(x: In[f32, "8"], o: Out[f32, "8"]):
        o[...] = x[...] * 8


class OfClass:
    factor = 11

    @classmethod
    def __call__(cls, x: In[f32, "8"], o: Out[f32, "8"]):
        o[...] = x[...] * cls.factor


class Done:
    @kernel
    def __call__(self, x: In[f32, "8"], o: Out[f32, "8"]):
        o[...] = x[...]


class Abstract(metaclass=abc.ABCMeta):  # noqa: B024  (only its metaclass is wanted)
    factor = 2


class Family:
    factor = 5

    @kernel
    @staticmethod
    def static(x: In[f32, "8"], o: Out[f32, "8"]):
        o[...] = x[...] * 3

    @kernel
    @classmethod
    def of_class(cls, x: In[f32, "8"], o: Out[f32, "8"]):
        o[...] = x[...] * cls.factor

    @property
    def read(self) -> int:
        return 3


class Child(Family):
    factor = 7


@pytest.mark.parametrize(
    ("made", "factor"),
    [
        (kernel(Scale(4)), 4), (kernel(Scale(6).__call__), 6),
        (kernel(approx_math=True)(Scale(2)), 2), (kernel(Static()), 8), (kernel(OfClass()), 11),
        (Family.static, 3), (Family().static, 3), (Family.of_class, 5), (Child.of_class, 7),
        (Child().of_class, 7), (kernel(staticmethod(scaled)), 2),
        (functools.partial(kernel(scaled), by=9), 9),
    ],
)  # fmt: skip
def test_what_is_called_like_a_function_makes_a_kernel(made: Any, factor: int) -> None:
    with astdsl.device("reference"):
        assert np.array_equal(made(X), X * factor)


def test_a_callable_has_constants_and_places() -> None:
    made = kernel(Scale(2))
    assert np.array_equal(made.on("reference")(X, more=1), X * 2 + 1)
    assert made.lower(X).module.name == "__call__"


def summed(x: i32, o: Out[i32, "1"]):
    o[0] = x
    yield x


async def waiting(x: In[f32, "8"], o: Out[f32, "8"]):
    o[...] = x[...]


REFUSED = [
    (lambda: decorate(Scale), "the class `Scale`", "before a method"),
    (lambda: decorate(functools.partial(scaled, by=5)), "partial` of `scaled`", "kernel(f)"),
    (lambda: decorate(functools.partialmethod(scaled)), "`functools.partialmethod`", "kernel(f)"),
    (lambda: decorate(functools.cache(scaled)), "_lru_cache_wrapper around `scaled`", "nearest"),
    (lambda: decorate(len), "`len`, which has no text", "write a function around it"),
    (lambda: decorate(np.add), "`add`, which has no text", "write a function around it"),
    (lambda: decorate(Family.__dict__["read"]), "a property", "write a method"),
    (lambda: decorate(kernel(scaled)), "the kernel `scaled`", "`.on(...)`"),
    (lambda: decorate(kernel(scaled).on("reference")), "the kernel `scaled`", "`.on(...)`"),
    (lambda: decorate(Done()), "the kernel `__call__`", "one `@kernel` makes it one"),
    (lambda: decorate("scaled"), "'scaled'", "nearest to the `def`"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "said", "help"), REFUSED)
def test_what_is_no_function_is_refused_at_the_decorator(make: Any, said: str, help: str) -> None:
    made = make()
    with pytest.raises(BadSignature) as caught:
        made(X)
    assert said in caught.value.message
    assert help in caught.value.help
    assert caught.value.span is not None
    assert text(caught.value.span).startswith("decorate(")


@pytest.mark.parametrize("function", [summed, waiting])
def test_functions_that_suspend_are_refused(function: Any) -> None:
    with pytest.raises(UnsupportedSyntax) as caught:
        kernel(function).on("reference")(1 if function is summed else X)
    assert caught.value.span is not None
    assert caught.value.help


def test_a_lambda_takes_scalars_and_no_arrays() -> None:
    with pytest.raises(BadArgument) as caught:
        kernel(lambda x, o: None)(X, X)
    assert "a `lambda` cannot" in caught.value.help


@pytest.mark.parametrize("kind", [Family, Abstract])
def test_a_class_method_around_a_kernel_names_the_other_order(kind: type) -> None:
    def of_class(cls, x: In[f32, "8"], o: Out[f32, "8"]):
        o[...] = x[...] * cls.factor

    with pytest.raises(BadArgument) as caught:
        kernel(of_class)(kind, X)
    assert "above `@classmethod`" in caught.value.help
