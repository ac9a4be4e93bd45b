"""Lowering element by element: a function of one register of each operand, over all of them.

Invariant: what is written for a register depends on these operands only, so registers that are
spelt alike (copies of a broadcast) are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Op
from astdsl.ir.dtypes import DType, bf16, f16, f32
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.nvptx.function import Emitter, lowers_tile
from astdsl.lowering.nvptx.values import LV, lanes_of
from astdsl.lowering.target import PACKED_F32

# What an operation writes for one element: from it and its operands, or from their dtype.
OpRule: TypeAlias = Callable[..., LV]
ElementRule: TypeAlias = Callable[..., LV]


# What is written once for a vector where the operands are lanes of vectors, as they were loaded:
# LLVM has packed instructions for it or splits it at no cost, and has less to read.
_PACKED: frozenset[type[Op]] = frozenset(
    (
        *(ops.Add, ops.Subtract, ops.Multiply, ops.Fma, ops.Negate, ops.Absolute),
        *(ops.Minimum, ops.Maximum),
    )
)
PACKED_DTYPES = frozenset((f32, f16, bf16))


def lowers_elements(*kinds: type[Op]) -> Callable[[OpRule], OpRule]:
    """Register `rule(emitter, op, *operands)`, which writes one element, for operations."""

    def register(rule: OpRule) -> OpRule:
        def lower(emitter: Emitter, op: Any, layout: Layout) -> Sequence[LV]:
            return element_by_element(emitter, op, layout, rule)

        lowers_tile(*kinds)(lower)
        return rule

    return register


def element_by_element(emitter: Emitter, op: Any, layout: Layout, rule: OpRule) -> Sequence[LV]:
    """Write `rule(emitter, op, *operands)` for each register, or for vectors of them."""
    columns = [emitter.get(value, layout) for value in op.operands]
    if type(op) in _PACKED and op.result.tile.dtype in PACKED_DTYPES:
        rows = _rows_of_vectors(emitter, columns)
        if rows:
            return unpacked(emitter, [rule(emitter, op, *row) for row in rows])
    made: dict[tuple[LV, ...], LV] = {}
    for row in zip(*columns, strict=True):
        if row not in made:
            made[row] = rule(emitter, op, *row)
    return [made[row] for row in zip(*columns, strict=True)]


def unpacked(emitter: Emitter, vectors: Sequence[LV]) -> list[LV]:
    """Split vectors into scalars, one after the other; scalars stay."""
    unpack = emitter.builder.unpack
    return [
        lane for each in vectors for lane in (unpack(each) if lanes_of(each.type) > 1 else (each,))
    ]


def _rows_of_vectors(emitter: Emitter, columns: Sequence[Sequence[LV]]) -> list[tuple[LV, ...]]:
    """Return the operands as vectors of equal types; nothing if they are not."""
    wide = [emitter.builder.vectors(column) for column in columns]
    lanes = [lanes_of(each.type) for each in next(filter(None, wide), [])]
    spread = [
        found or _repeated(emitter, column, lanes)
        for found, column in zip(wide, columns, strict=True)
    ]
    is_alike = len({tuple(each.type for each in column) for column in spread}) == 1
    return list(zip(*spread, strict=True)) if is_alike else []


def _repeated(emitter: Emitter, column: Sequence[LV], lanes: Sequence[int]) -> list[LV]:
    """Return vectors of `lanes` of a column that is the same in all lanes of each, or nothing.

    Numbers cost nothing; registers are repeated where there are packed instructions.
    """
    made: dict[tuple[LV, int], LV] = {}
    found, place = [], 0
    packs = column[0].type != "float" or emitter.target.has(PACKED_F32)
    for count in lanes:
        first = column[place]
        if column[place : place + count].count(first) != count or not (packs or first.is_constant):
            return []
        if (first, count) not in made:
            made[first, count] = emitter.builder.splat(first, count)
        found.append(made[first, count])
        place += count
    return found


def has_pairs(layout: Layout) -> bool:
    """Whether registers two at a time are neighbours along an axis."""
    first = next(iter(layout.registers), None)
    return first is not None and first.stride == 1 and first.extent % 2 == 0


def word_elements(emitter: Emitter, dtype: DType, layout: Layout) -> int:
    """Return how many neighbours are best held as one vector: two where instructions take two."""
    packs = dtype.bits == f16.bits or (dtype is f32 and emitter.target.has(PACKED_F32))
    return 2 if packs and has_pairs(layout) else 1


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
