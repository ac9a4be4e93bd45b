"""Compute what depends on constants alone, by the functions that define the operations.

Before:
    %a: i64 = Constant value=3
    %b: i64 = Multiply %a, %a

After:
    %a: i64 = Constant value=3
    %b: i64 = Constant value=9

Elementwise operations on tiles with one number everywhere are folded as scalars; an `If` on a
constant becomes the region that runs, a loop that never runs its initial values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from astdsl.ir import ops
from astdsl.ir.core import Block, Module, Op, Value
from astdsl.ir.effects import is_movable
from astdsl.ir.evaluate import evaluate_pure
from astdsl.ir.evaluate.rounding import number
from astdsl.ir.rewrite import Emit, replace_body, rewrite_block
from astdsl.ir.types import TileType
from astdsl.records import dataclass, field

# A tile with one number everywhere stays one, wherever its elements go.
_MOVES = (ops.Broadcast, ops.Reshape, ops.Transpose, ops.Slice)


def fold_constants(module: Module) -> Module:
    """Return the module with constants in place of what they determine."""
    folding = _Folding()
    return replace_body(module, rewrite_block(module.body, folding.fold))


@dataclass(slots=True)
class _Folding:
    constants: dict[Value, Any] = field(default_factory=dict)

    def fold(self, op: Op, emit: Emit) -> Sequence[Value] | None:
        """Return the constants or values that replace an operation's results, or None."""
        if isinstance(op, ops.Constant):
            self.constants[op.result] = op.value
            return None
        structured = _STRUCTURED.get(type(op))
        if structured is not None:
            return structured(op, self.constants, emit)
        if not is_movable(op) or not op.operands:
            return None
        if any(v not in self.constants for v in op.operands):
            return None
        value = self._value(op)
        return None if value is None else (self._constant(op, value, emit),)

    def _value(self, op: Op) -> Any:
        if isinstance(op, _MOVES):
            return self.constants[op.x]
        is_scalar = all(not v.tile.shape for v in (*op.operands, *op.results))
        if not is_scalar and not isinstance(op, ops.Elementwise):
            return None
        operands = [np.asarray(number(self.constants[v], v.tile.dtype)) for v in op.operands]
        return _python_number(evaluate_pure(op, operands), op.result.tile)

    def _constant(self, op: Op, value: Any, emit: Emit) -> Value:
        made = emit(ops.Constant(span=op.span, value=value, type=op.result.tile)).result
        made.hint = op.result.hint or made.hint
        self.constants[made] = value
        found: Value = made
        return found


def _python_number(value: Any, kind: TileType) -> float | int | bool:
    number = np.asarray(value)[()]
    if kind.dtype.is_float:
        return float(number)
    return int(number) if kind.dtype.is_integer else bool(number)


def _fold_if(op: ops.If, constants: dict[Value, Any], emit: Emit) -> Sequence[Value] | None:
    if op.condition not in constants:
        return None
    return _emit_region(op.then if constants[op.condition] else op.otherwise, emit)


def _emit_region(region: Block, emit: Emit) -> tuple[Value, ...]:
    """Move a region without arguments to where its operation stands."""
    for op in region.ops[:-1]:
        emit(op)
    return ops.yielded(region)


def _fold_for(op: ops.For, constants: dict[Value, Any], _emit: Emit) -> Sequence[Value] | None:
    return op.initial if _never_runs((op.low, op.high, op.step), constants) else None


def _fold_pipeline(
    op: ops.Pipeline, constants: dict[Value, Any], _emit: Emit
) -> Sequence[Value] | None:
    axes = zip(op.lows, op.highs, op.steps, strict=True)
    return op.initial if any(_never_runs(axis, constants) for axis in axes) else None


def _never_runs(bounds: tuple[Value, ...], constants: dict[Value, Any]) -> bool:
    if any(v not in constants for v in bounds):
        return False
    low, high, step = (constants[v] for v in bounds)
    # A step of 0 fails the assertion that stands before the loop.
    return step == 0 or len(range(low, high, step)) == 0


_STRUCTURED: dict[type[Op], Callable[[Any, dict[Value, Any], Emit], Sequence[Value] | None]] = {
    ops.If: _fold_if,
    ops.For: _fold_for,
    ops.Pipeline: _fold_pipeline,
}
