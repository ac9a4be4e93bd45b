"""A trace is valid while what it read of Python is what it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from astdsl.frontend.trace import Traced
from astdsl.ir.dtypes import i32
from tests.frontend.test_spans import module_of
from tests.frontend.tracing import array, trace

SOURCE = """
import types
SCALE = 2
TABLE = {"k": 1}
config = types.ModuleType("config")
config.factor = 5
class Options:
    bias = 1
    def unused(self):
        pass
def plain():
    return DEEP
DEEP = 7
def helper(x, y=3, *, z=4):
    if x > SCALE:
        return x * y
    return x + z
def make(step):
    def kernel(n, o):
        o[0] = helper(n) + step + plain() + config.factor + Options.bias + len(TABLE)
    def change(value):
        nonlocal step
        step = value
    return kernel, change
kernel, change = make(1)
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    return module_of(tmp_path / "reads.py", SOURCE)


@pytest.fixture
def traced(module: ModuleType) -> Traced:
    return trace(module.kernel, n=i32, o=array(None, dtype=i32))


def test_a_trace_is_valid_at_first(traced: Traced) -> None:
    assert traced.is_valid()


def other(x: Any) -> Any:
    return x


CHANGES: dict[str, Callable[[Any], object]] = {
    "a global of a helper": lambda m: setattr(m, "SCALE", 3),
    "a global of plain Python": lambda m: setattr(m, "DEEP", 8),
    "a helper": lambda m: setattr(m, "helper", other),
    "a helper's code": lambda m: setattr(m.helper, "__code__", other.__code__),
    "a default": lambda m: setattr(m.helper, "__defaults__", (9,)),
    "a keyword default": lambda m: m.helper.__kwdefaults__.update(z=5),
    "a closure's variable": lambda m: m.change(2),
    "a module's attribute": lambda m: setattr(m.config, "factor", 6),
    "a class's attribute": lambda m: setattr(m.Options, "bias", 2),
    "a builtin that is shadowed": lambda m: setattr(m, "len", other),
    "the type of a constant": lambda m: setattr(m, "SCALE", 2.0),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_was_read_ends_it(what: str, module: ModuleType, traced: Traced) -> None:
    CHANGES[what](module)
    assert not traced.is_valid()


def test_an_equal_constant_is_the_same(module: ModuleType, traced: Traced) -> None:
    vars(module).update(SCALE=int("2"), DEEP=int("7"))
    assert traced.is_valid()


def test_names_that_were_not_read_may_change(module: ModuleType, traced: Traced) -> None:
    vars(module).update(new_name=5)
    module.Options.unused = other
    assert traced.is_valid()
