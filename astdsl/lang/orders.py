"""Orders of independent steps: `order=` of a pipeline, and the curves that are given to it.

Invariant: an order is traced once, as arithmetic on the number of a step; what it permutes is
decided later, when steps become thread blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from astdsl.errors import BadPipeline, in_words
from astdsl.ir import ops
from astdsl.ir.core import Block
from astdsl.ir.types import INDEX
from astdsl.lang.arith import where
from astdsl.lang.indices import as_index, index_value, loop_index
from astdsl.lang.tracing import emit, fault, require_trace
from astdsl.lang.values import Literal, Tile


def trace_order(order: object, rank: int) -> tuple[Block, ...]:
    """Trace `order(linear, grid) -> index` over a grid of `rank` axes; None traces nothing.

    `linear` is the number of a step, `grid` the number of steps along each axis, and the index its
    position along each, from 0. Errors: BadPipeline.
    """
    if order is None:
        return ()
    if not callable(order):
        raise fault(
            BadPipeline,
            f"`order` is a function of a step's number and the grid, got {order!r}",
            help="`order=partial(planar_snake, minor_dim=1, tile_width=8)`",
        )
    trace = require_trace("`order`")
    if trace.loops:
        raise fault(
            BadPipeline,
            "`order` stands on a pipeline inside a loop or pipeline, whose steps run in order",
            help="`order` moves independent steps of an outermost pipeline; leave it out here",
        )
    with trace.builder.block([INDEX] * (rank + 1)) as opened:
        linear, *counts = (loop_index(v, *_ANY) for v in opened.args)
        found = order(linear, tuple(counts))
        emit(ops.Yield, values=tuple(index_value(as_index(i, _WHAT)) for i in _listed(found, rank)))
    return (opened.block,)


_ANY = (Literal(0), Literal(1 << 31), Literal(1))
_WHAT = "an index that `order` returns"


def _listed(found: object, rank: int) -> Sequence[object]:
    listed = tuple(found) if isinstance(found, tuple | list) else (found,)
    if len(listed) != rank:
        raise fault(
            BadPipeline,
            f"`order` returns an index of {in_words(rank, 'axis')}, got {len(listed)}",
            help="return one position for each axis of the pipeline, `return i, j`",
        )
    return listed


def planar_snake(lin_idx: Any, shape: Any, minor_dim: int, tile_width: int) -> tuple[Any, Any]:
    """Return where step `lin_idx` lies on a curve that snakes through a plane of `shape`.

    The plane is cut into strips of `tile_width` along axis `minor_dim`, of which the last may be
    narrower. A strip is walked row by row along its width; odd strips from the far end back, so
    that neighbours in the order share a row or a column, and what they read is still in cache. Of
    Python, NumPy and kernel integers. Errors: BadPipeline. Source: Pallas's `planar_snake`.
    """
    _require_plane(shape, minor_dim, tile_width)
    major_size, minor_size = shape[1 - minor_dim], shape[minor_dim]
    strip = lin_idx // (tile_width * major_size)
    inside = lin_idx - strip * (tile_width * major_size)
    width = _smaller(tile_width, minor_size - strip * tile_width)
    major, minor = inside // width, strip * tile_width + inside % width
    major = _choose(strip % 2 == 0, major, major_size - 1 - major)
    return (major, minor) if minor_dim == 1 else (minor, major)


def _require_plane(shape: Any, minor_dim: object, tile_width: object) -> None:
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        problem = f"`planar_snake` walks a plane of two axes, got shape {shape!r}"
    elif minor_dim not in (0, 1):
        problem = f"`minor_dim` is 0 or 1, got {minor_dim!r}"
    elif not isinstance(tile_width, int | np.integer) or tile_width < 1:
        problem = f"`tile_width` is a constant of 1 or more, got {tile_width!r}"
    else:
        return
    raise fault(BadPipeline, problem, help="`planar_snake(i, (m, n), minor_dim=1, tile_width=8)`")


def _smaller(x: Any, y: Any) -> Any:
    return _choose(x < y, x, y)


def _choose(condition: Any, x: Any, y: Any) -> Any:
    if isinstance(condition, Tile):
        return where(condition, x, y)
    return np.where(condition, x, y) if isinstance(condition, np.ndarray) else x if condition else y
