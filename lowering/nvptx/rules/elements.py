"""Lowering element by element: a function of one register of each operand, over all of them.

Invariant: what is written for a register depends on these operands only, so registers that are
spelt alike (copies of a broadcast) are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from astdsl.ir.core import Op
from astdsl.ir.dtypes import DType, f32
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.nvptx.function import Emitter, lowers_tile
from astdsl.lowering.nvptx.values import LV

# What an operation writes for one element: from it and its operands, or from their dtype.
OpRule: TypeAlias = Callable[..., LV]
ElementRule: TypeAlias = Callable[..., LV]


def lowers_elements(*kinds: type[Op]) -> Callable[[OpRule], OpRule]:
    """Register `rule(emitter, op, *operands)`, which writes one element, for operations."""

    def register(rule: OpRule) -> OpRule:
        def lower(emitter: Emitter, op: Any, layout: Layout) -> Sequence[LV]:
            columns = [emitter.get(value, layout) for value in op.operands]
            made: dict[tuple[LV, ...], LV] = {}
            for row in zip(*columns, strict=True):
                if row not in made:
                    made[row] = rule(emitter, op, *row)
            return [made[row] for row in zip(*columns, strict=True)]

        lowers_tile(*kinds)(lower)
        return rule

    return register


def is_narrow(dtype: DType) -> bool:
    """Whether arithmetic is done in f32 and rounded once."""
    return dtype.is_float and dtype.bits < f32.bits


def in_single(rule: ElementRule) -> ElementRule:
    """Return the rule `(emitter, dtype, *operands)` that computes narrow floats in f32."""

    def widened(emitter: Emitter, dtype: DType, *operands: LV) -> LV:
        if not is_narrow(dtype):
            return rule(emitter, dtype, *operands)
        wide = [emitter.builder.cast("fpext", x, "float") for x in operands]
        return emitter.builder.cast("fptrunc", rule(emitter, f32, *wide), operands[0].type)

    return widened
