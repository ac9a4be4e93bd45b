"""Trying an author's order of blocks on small grids, before anything is launched with it.

Invariant: what is refused is no permutation of some grid; what depends on more than the grid is
left to the reference, which tries the grid of the call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.evaluate import evaluate_pure
from astdsl.ir.evaluate.control import require_permutation
from astdsl.ir.evaluate.table import Array
from astdsl.ir.ops.control import yielded
from astdsl.ir.rewrite import free_values
from astdsl.lowering.windows import Forms

# Extents of the first axes of each grid: with and without a remainder by widths like 2, 3 and 8.
_GRIDS = ((3, 5, 2, 2, 2), (4, 1, 3, 2, 2), (1, 4, 2, 3, 1), (9, 10, 1, 1, 1))


def try_order(pipeline: ops.Pipeline, forms: Forms) -> None:
    """Refuse an order that leaves out a step of a small grid, or does one twice."""
    (order,) = pipeline.order
    known = {v: forms.makers.get(v) for v in free_values(order)}
    if not all(isinstance(maker, ops.Constant) for maker in known.values()):
        return
    if not all(isinstance(op, (ops.Constant, ops.Elementwise)) for op in order.ops[:-1]):
        return
    rank = len(pipeline.axes)
    for extents in _GRIDS if rank <= len(_GRIDS[0]) else ():
        grid = extents[:rank]
        values = {v: evaluate_pure(maker, ()) for v, maker in known.items() if maker}
        require_permutation(pipeline, grid, _places(pipeline, grid, values))


def _places(pipeline: ops.Pipeline, grid: Sequence[int], values: dict[Value, Array]) -> Array:
    """Return where the order puts the steps of a grid, all at once."""
    (order,) = pipeline.order
    steps = np.arange(math.prod(grid), dtype=np.int64)
    values.update(zip(order.args, (steps, *(np.array(n) for n in grid)), strict=True))
    for op in order.ops[:-1]:
        values[op.result] = evaluate_pure(op, [values[v] for v in op.operands])
    return np.stack([np.broadcast_to(values[v], steps.shape) for v in yielded(order)], axis=1)
