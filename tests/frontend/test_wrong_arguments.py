"""Whatever our functions are given, what they do not take is a mistake with a report."""

from __future__ import annotations

import itertools
from contextlib import suppress
from types import FunctionType
from typing import Any

import pytest

import astdsl
from astdsl.errors import KernelError
from astdsl.frontend.calls import call
from astdsl.frontend.hooks import HOOKS
from astdsl.frontend.locate import Codes
from astdsl.frontend.session import Session
from astdsl.ir.dtypes import f32, i32
from astdsl.ir.types import scalar
from astdsl.lang.tracing import NeedsConstant
from astdsl.lang.values import METHODS
from tests.frontend.tracing import array
from tests.lang.harness import a_trace

BUILTINS = ("sum", "min", "max", "any", "all", "abs", "round", "pow")
FUNCTIONS = [
    name
    for name in (*astdsl.__all__, *BUILTINS)
    if isinstance(found := getattr(astdsl, name), FunctionType)
    and found.__module__.startswith("astdsl.lang")
]
METHOD_NAMES = [name for name in METHODS if not name.startswith("__")]


def attempts(x: Any, n: Any, most: int) -> Any:
    """Yield arguments of every kind: up to two of any, then three that begin with a tile."""
    t = x[0:4]
    pool = [None, "a", 3, 1.5, -1, x, t, n, t > 0, [1, 2], {}, object(), slice(1, 2), f32, (t, t)]
    pool.append(lambda left, right: left)
    for count in range(most + 1):
        yield from itertools.product(pool, repeat=count)
    yield from itertools.product([t], pool[::2], pool[1::2])


def refuses_or_takes(session: Session, function: Any, arguments: Any) -> None:
    """Let any other exception fail the test."""
    with suppress(KernelError, NeedsConstant):
        call(session, function, *arguments)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_refuses_by_a_report(name: str) -> None:
    types = array(16), scalar(i32), array(16)
    with a_trace(*types, roles=("in", "in", "out")) as (trace, x, n, _):
        session = Session(HOOKS, trace, Codes())
        for arguments in attempts(x, n, 2):
            refuses_or_takes(session, getattr(astdsl, name), arguments)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_method_refuses_by_a_report(name: str) -> None:
    with a_trace(array(16), scalar(i32), roles=("in", "in")) as (trace, x, n):
        session = Session(HOOKS, trace, Codes())
        for arguments in attempts(x, n, 1):
            refuses_or_takes(session, getattr(x[0:4], name), arguments)
