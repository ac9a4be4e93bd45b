"""Trace functions by hand, without a front end, and run what they became on the reference.

Invariant: a function's frames are where the user stands; its text, if it was given as text, is
known to linecache as kernel.py.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Any

import numpy as np

from astdsl.ir.builder import Builder
from astdsl.ir.core import IN, INOUT, OUT, Module, Param, Value
from astdsl.ir.dtypes import BY_NUMPY
from astdsl.ir.evaluate import evaluate
from astdsl.ir.types import GMEM, INDEX, RefType, TileType
from astdsl.ir.verify import verify
from astdsl.lang.indices import loop_index
from astdsl.lang.refs import Ref, parameter_ref
from astdsl.lang.tracing import Trace, trace, tracing
from astdsl.lang.values import Literal, Tile
from astdsl.source import Span

HERE = Span("kernel.py", 1, 0, 1, 0)


@dataclass
class Argument:
    """An array that a traced function reads or writes, and how its dims are known."""

    data: np.ndarray[Any, Any]
    role: str = IN
    dims: tuple[str | None, ...] = ()
    static: bool = False

    @property
    def type(self) -> RefType:
        shape = self.data.shape if self.static else (None,) * self.data.ndim
        strides = (None,) * (self.data.ndim - 1) + (1,) * min(self.data.ndim, 1)
        dtype = BY_NUMPY[self.data.dtype]
        return RefType(shape, dtype, GMEM, strides=strides, small=True)


def given(data: Any, *dims: str | None, static: bool = False) -> Argument:
    """Give an input array."""
    return Argument(np.asarray(data), IN, dims, static)


def written(shape: Sequence[int], dtype: Any, *dims: str | None, static: bool = False) -> Argument:
    """Give an output array, zero at first."""
    return Argument(np.zeros(tuple(shape), dtype), INOUT, dims, static)


def locate() -> Span:
    """Return the place of the innermost frame of a test or of kernel.py."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == "kernel.py" or ("/tests/lang/test_" in name):
            positions = frame.f_code.co_positions()
            line, end, column, end_column = next(islice(positions, frame.f_lasti // 2, None))
            return Span(name, line or 0, column or 0, end or line or 0, end_column or 0)
        frame = frame.f_back
    return HERE


def names(arguments: Sequence[Any]) -> list[str]:
    """Name parameters: a, b, c, ..."""
    return [chr(ord("a") + k) for k in range(len(arguments))]


@contextmanager
def a_trace(*types: RefType | TileType, roles: Sequence[str] = (), dims: Any = None) -> Any:
    """Open a trace with parameters of `types`; give it and what the kernel sees of them."""
    values = [Value(t, n) for t, n in zip(types, names(types), strict=True)]
    made = Trace(Builder(values), locate)
    with tracing(made):
        shown: list[Any] = []
        for k, value in enumerate(values):
            if isinstance(value.type, TileType):
                shown.append(Tile(value))
            else:
                role = roles[k] if roles else IN
                shown.append(parameter_ref(value, value.hint, role, dims[k] if dims else ()))
        yield made, *shown


def traced(body: Callable[..., None], *arguments: Argument) -> Module:
    """Trace `body(*refs)` as a kernel without control flow."""
    values = [Value(a.type, n) for a, n in zip(arguments, names(arguments), strict=True)]
    builder = Builder(values)
    with tracing(Trace(builder, locate)):
        refs = [
            parameter_ref(v, v.hint, a.role, a.dims) for v, a in zip(values, arguments, strict=True)
        ]
        body(*refs)
    params = tuple(
        Param(value=v, name=v.hint, role=a.role, span=HERE)
        for v, a in zip(values, arguments, strict=True)
    )
    module = Module(name="kernel", params=params, body=builder.finish(), span=HERE)
    verify(module)
    return module


def run(body: Callable[..., None], *arguments: Argument) -> Any:
    """Trace a body and evaluate it; return what the last argument holds then."""
    evaluate(traced(body, *arguments), [a.data for a in arguments])
    return arguments[-1].data


def computed(function: Callable[..., Tile], *data: Any) -> Any:
    """Return what a function of tiles gives for whole arrays."""
    arguments = [given(d, static=True) for d in data]
    with a_trace(*(a.type for a in arguments)) as (_, *refs):
        result = function(*(ref[...] for ref in refs))
        shape, dtype = result.shape, result.dtype.numpy

    def body(*refs: Ref) -> None:
        *inputs, output = refs
        output[...] = function(*(ref[...] for ref in inputs))

    return run(body, *arguments, written(shape, dtype, static=True))


def from_text(source: str, name: str = "kernel") -> Callable[..., Any]:
    """Return the function `name` that a text defines, its text known as kernel.py."""
    linecache.cache["kernel.py"] = (len(source), None, source.splitlines(True), "kernel.py")
    space: dict[str, Any] = {}
    preamble = "from astdsl import *\nimport astdsl, numpy as np, math"
    exec(compile(preamble, "preamble", "exec"), space)  # noqa: S102  (the test's own text)
    exec(compile(source, "kernel.py", "exec"), space)  # noqa: S102
    function: Callable[..., Any] = space[name]
    return function


@contextmanager
def an_index(high: Any) -> Any:
    """Open a block whose argument is an index below `high`; give the index."""
    now = trace()
    assert now is not None, "an index needs a trace"
    stop = high if isinstance(high, Tile) else Literal(high)
    with now.builder.block([INDEX], ["i"]) as block:
        yield loop_index(block.args[0], Literal(0), stop, Literal(1))


__all__ = [
    "HERE",
    "OUT",
    "Argument",
    "a_trace",
    "an_index",
    "computed",
    "from_text",
    "given",
    "locate",
    "names",
    "run",
    "traced",
    "written",
]  # fmt: skip
