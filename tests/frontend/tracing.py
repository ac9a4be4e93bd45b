"""Tracing plain functions in tests, and comparing what they do with what Python does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from astdsl.errors import KernelError
from astdsl.frontend.trace import Traced, TracedArgument, trace_kernel
from astdsl.ir.core import Op, walk
from astdsl.ir.dtypes import DType, f32, i32
from astdsl.ir.evaluate import evaluate
from astdsl.ir.types import GMEM, RefType, scalar
from astdsl.ir.verify import verify
from astdsl.source import Span, source_line

OUTPUTS = 8


def array(*shape: int | None, dtype: DType = f32) -> RefType:
    """Return the type of a row-major array; None is a runtime dim."""
    strides: list[int | None] = [1]
    for extent in reversed(shape[1:]):
        outer = strides[0]
        strides.insert(0, None if outer is None or extent is None else outer * extent)
    return RefType(shape, dtype, GMEM, tuple(strides[: len(shape)]))


def trace(function: Any, _roles: str = "", /, **parameters: Any) -> Traced:
    """Trace a function; types are arguments (`o...` are outputs), anything else is a constant."""
    arguments, constants = [], {}
    for name, given in parameters.items():
        if isinstance(given, RefType):
            role = "out" if name.startswith("o") else "in"
            arguments.append(TracedArgument(name, role, given))
        elif isinstance(given, DType):
            arguments.append(TracedArgument(name, "scalar", scalar(given)))
        else:
            constants[name] = given
    traced = trace_kernel(function, arguments, constants, function.__name__)
    verify(traced.module)
    return traced


def on_numbers(function: Any, *numbers: int, **constants: Any) -> np.ndarray[Any, Any]:
    """Run `function(a, b, ..., o)` as a kernel of i32 scalars, and return `o`."""
    names = function.__code__.co_varnames[: len(numbers)]
    output = np.full(OUTPUTS, -1, np.int32)
    parameters = {**dict.fromkeys(names, i32), "o": array(OUTPUTS, dtype=i32), **constants}
    evaluate(trace(function, **parameters).module, [*numbers, output])
    return output


def by_python(function: Any, *numbers: int, **constants: Any) -> np.ndarray[Any, Any]:
    """Run `function(a, b, ..., o)` as Python."""
    output = np.full(OUTPUTS, -1, np.int32)
    function(*numbers, output, **constants)
    return output


def agrees(function: Any, *numbers: int, **constants: Any) -> None:
    """Fail unless the kernel writes what Python writes."""
    expected = by_python(function, *numbers, **constants)
    got = on_numbers(function, *numbers, **constants)
    assert got.tolist() == expected.tolist(), f"{function.__name__}{numbers}"


def error_of(function: Any, **parameters: Any) -> KernelError:
    """Return the error that tracing a function raises."""
    with pytest.raises(KernelError) as caught:
        trace(function, **parameters)
    return caught.value


def text(span: Span) -> str:
    """Return the source text of a span, lines joined by newlines."""
    lines = [source_line(span.file, n).encode() for n in range(span.line, span.end_line + 1)]
    lines[-1] = lines[-1][: span.end_column]
    lines[0] = lines[0][span.column :]
    return b"\n".join(lines).decode()


def operations(traced: Traced, kind: type[Op]) -> Iterator[Any]:
    """Yield the operations of a kind, in order."""
    return (op for op in walk(traced.module.body) if isinstance(op, kind))


Kernel = Callable[..., None]
