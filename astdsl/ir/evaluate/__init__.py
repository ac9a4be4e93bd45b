"""The reference: what a module means, in NumPy; it covers pipelines and schedules alike.

Invariant: results are the program's, in program order; what is undefined on a GPU (unwritten
memory, conflicts of parallel steps, waits that cannot end) is reported with its source span.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# The families fill the table when they are imported.
from astdsl.ir.core import OUT, SCRATCH, Module, Op, Param
from astdsl.ir.evaluate import arith, control, indexed, memory, sync, tensor, tile, tmem
from astdsl.ir.evaluate.rounding import number
from astdsl.ir.evaluate.state import Frame, Memory
from astdsl.ir.evaluate.table import EVALUATORS, Array
from astdsl.ir.types import RefType

FAMILIES = (arith, control, indexed, memory, sync, tensor, tile, tmem)


def evaluate(module: Module, arguments: Sequence[Any], *, order: str | int = "ascending") -> None:
    """Run a kernel on NumPy arrays (any strides, changed in place) and numbers.

    There is one argument for each parameter. `order` is how a launch runs its blocks: ascending,
    descending, or the seed of a shuffle. Raises UnwrittenRead, ParallelConflict, ProtocolError,
    BadWindow or FailedAssertion, each with the spans involved.
    """
    assert len(arguments) == len(module.params), (
        f"{module.name} has {len(module.params)} parameters, got {len(arguments)} arguments"
    )
    frame = Frame(values={}, order=order)
    with np.errstate(all="ignore"):
        for param, argument in zip(module.params, arguments, strict=True):
            frame.values[param.value] = _argument(param, argument, frame)
        control.run_module(module, frame)


def evaluate_pure(op: Op, operands: Sequence[Any]) -> Any:
    """Return the result of an operation without effect, from its operands' values."""
    with np.errstate(all="ignore"):
        return EVALUATORS[type(op)](op, *operands)


def _argument(param: Param, argument: Any, frame: Frame) -> Any:
    if not isinstance(param.value.type, RefType):
        return number(argument, param.value.tile.dtype)
    memory = _memory(param, param.value.type, argument)
    frame.memories.append(memory)
    return memory


def _memory(param: Param, kind: RefType, data: Array) -> Memory:
    assert data.dtype == kind.dtype.numpy, f"{param.name} holds {data.dtype}, not {kind.dtype}"
    fits = len(data.shape) == kind.rank and all(
        k in (None, n) for k, n in zip(kind.shape, data.shape, strict=True)
    )
    assert fits, f"{param.name} has shape {data.shape}, not {kind}"
    memory = Memory(data=data, name=param.name, span=param.span)
    if param.initial is not None:
        data[...] = number(param.initial, kind.dtype)
    elif param.role in (OUT, SCRATCH):
        memory.written = np.zeros(data.shape, np.bool_)
    return memory


__all__ = ["evaluate", "evaluate_pure"]
