"""Lowering of comparisons, also of index tiles with what many of their elements are compared to.

A register's index is its thread's and a constant, `index <= limit` is `constant <= limit -
thread's`: one subtraction for a limit in place of an addition for each register.

Invariant: the subtraction does not wrap, for the limit is first led to where it decides the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import i32 as index_type
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.nvptx.function import Emitter, lowers_tile
from astdsl.lowering.nvptx.rules.elements import element_by_element
from astdsl.lowering.nvptx.values import LV, i32

# NaN is unordered: it differs from everything, itself too.
_FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_TURNED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
# No index is below 0: less than this, a limit decides what this does.
_LEAST_LIMIT = {"lt": 0, "ge": 0, "le": -1, "gt": -1}


@lowers_tile(ops.Compare)
def _compare(emitter: Emitter, op: ops.Compare, layout: Layout) -> Sequence[LV]:
    for index, other, predicate in (
        (op.x, op.y, op.predicate), (op.y, op.x, _TURNED[op.predicate]),
    ):  # fmt: skip
        iota = emitter.maker(index)
        if isinstance(iota, ops.Iota) and iota.dtype is index_type:
            found = _of_indices(emitter, layout, iota.axis, other, predicate)
            if found:
                return found
    return element_by_element(emitter, op, layout, _compare_element)


def _compare_element(emitter: Emitter, op: ops.Compare, x: LV, y: LV) -> LV:
    dtype = op.x.tile.dtype
    if dtype.is_float:
        return emitter.builder.fcmp(_FLOAT_PREDICATES[op.predicate], x, y)
    if op.predicate in ("eq", "ne"):
        return emitter.builder.icmp(op.predicate, x, y)
    return emitter.builder.icmp(("s" if dtype.is_signed else "u") + op.predicate, x, y)


def _of_indices(
    emitter: Emitter, layout: Layout, axis: int, other: Value, predicate: str
) -> list[LV]:
    """Return the comparisons `index predicate other`, nothing where additions are no more."""
    builder, limits = emitter.builder, emitter.get(other, layout)
    offsets = [offset[axis] for offset in layout.offsets]
    own = emitter.coordinate_base(layout, axis)
    if own.is_constant or 2 * len(set(limits)) >= len(set(offsets)):
        return []
    rests = {}
    for limit in dict.fromkeys(limits):
        near = limit
        if predicate in _LEAST_LIMIT:
            near = builder.intrinsic("llvm.smax", limit, i32(_LEAST_LIMIT[predicate]))
        rests[limit] = builder.sub(near, own)
    condition = _TURNED[predicate]
    if condition in _LEAST_LIMIT:
        condition = f"s{condition}"
    pairs = list(zip(limits, offsets, strict=True))
    made = {
        (limit, offset): builder.icmp(condition, rests[limit], i32(offset))
        for limit, offset in dict.fromkeys(pairs)
    }
    return [made[pair] for pair in pairs]
