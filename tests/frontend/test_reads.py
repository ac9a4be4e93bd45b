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
import functools, types
import numpy as np
SCALE = 2
TABLE = {"k": 1}
NESTED = [{"k": (1, [2])}]
PLAIN = types.SimpleNamespace(step=1)
NUMBERS = np.arange(4)
config = types.ModuleType("config")
config.factor = 5
class Options:
    bias = 1
    def unused(self):
        pass
class Held:
    shared = 3
    def __init__(self):
        self.own, self.parts, self.unread = 1, [1, 2], 0
    @property
    def computed(self):
        return self.parts[0] + LAST
    def method(self):
        return self.own + self.shared
LAST = 4
class Slotted:
    __slots__ = ("slot",)
    def __init__(self):
        self.slot = 1
held, slotted = Held(), Slotted()
bound = functools.partial(lambda options, x: x + options["k"], {"k": 1})
def plain():
    return DEEP
DEEP = 7
def helper(x, y=3, *, z=4):
    if x > SCALE:
        return x * y
    return x + z
def make(step):
    class local:
        step = 1
    def kernel(n, o):
        o[0] = helper(n) + step + plain() + config.factor + Options.bias + len(TABLE)
        o[1] = n + held.method() + held.computed + slotted.slot + PLAIN.step + bound(n)
        o[2] = n + NESTED[0]["k"][1][0] + int(NUMBERS[1])
        def step_of(kind):
            return kind.step
        o[3] = n + step_of(local)
    def change(value):
        nonlocal step
        step = value
    return kernel, change, local
kernel, change, local = make(1)
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
    "what a dict holds": lambda m: m.TABLE.update(j=2),
    "what a dict in a list holds": lambda m: m.NESTED[0].update(k=1),
    "what a list in a tuple holds": lambda m: m.NESTED[0]["k"][1].append(3),
    "what an array holds": lambda m: m.NUMBERS.put(1, 7),
    "an object's attribute": lambda m: setattr(m.held, "own", 2),
    "an attribute of an object's class": lambda m: setattr(m.Held, "shared", 4),
    "an attribute that hides its class's": lambda m: setattr(m.held, "shared", 4),
    "what an object's list holds": lambda m: m.held.parts.insert(0, 5),
    "a global of a property": lambda m: setattr(m, "LAST", 5),
    "a slot": lambda m: setattr(m.slotted, "slot", 2),
    "a namespace's name": lambda m: setattr(m.PLAIN, "step", 2),
    "an argument of a partial function": lambda m: m.bound.args[0].update(k=2),
    "an attribute of a class in a closure": lambda m: setattr(m.local, "step", 2),
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
    module.held.unread = module.PLAIN.unread = 7
    assert traced.is_valid()


def test_what_a_trace_changes_itself_counts_as_it_leaves_it(tmp_path: Path) -> None:
    module = module_of(
        tmp_path / "counts.py",
        """
made = []
class Counter:
    count = 0
counter = Counter()
def note(n):
    made.append(n)
    counter.count += 1
    return counter.count
def kernel(n, o):
    o[0] = n + note(1)
""",
    )
    traced = trace(module.kernel, n=i32, o=array(None, dtype=i32))
    assert traced.is_valid()
    module.made.append(2)
    assert not traced.is_valid()


def test_containers_and_arrays_of_any_size_may_be_read(tmp_path: Path) -> None:
    module = module_of(
        tmp_path / "large.py",
        """
import numpy as np
table, numbers = list(range(100_000)), np.arange(100_000)
table.append(table)
def kernel(n, o):
    o[0] = n + table[7] + int(numbers[8])
""",
    )
    traced = trace(module.kernel, n=i32, o=array(None, dtype=i32))
    assert traced.is_valid()
    vars(module).update(table=[])
    assert not traced.is_valid()
