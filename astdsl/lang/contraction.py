"""What a product reads of tiles that are outside of an array: zeros along the contracted axis.

Invariant: elements outside along k take no part; those outside along m or n are in the result too.
"""

from __future__ import annotations

from astdsl.ir.core import IN, Value
from astdsl.lang.masks import masked
from astdsl.lang.ragged import LOST, ZERO, Edges
from astdsl.lang.values import Tile
from astdsl.records import replace


def contracted(left: Tile, right: Tile) -> tuple[Value, Value, Edges]:
    """Return (m, k) and (k, n) as a product takes them, and the edges of the product."""
    a, b = _as_contracted(left, 1), _as_contracted(right, 0)
    pairs = {
        "a": {replace(h, axis=0): s for h, s in a.edges.outside.items() if h.axis == 1},
        "b": {h: s for h, s in b.edges.outside.items() if h.axis == 0},
    }
    every = [*dict.fromkeys([*pairs["a"], *pairs["b"]])]
    rows = masked(a, [replace(h, axis=1) for h in every if pairs["a"].get(h) != ZERO], 0)
    columns = masked(b, [h for h in every if pairs["b"].get(h) != ZERO], 0)
    outside = {h: LOST for h in a.edges if h.axis != 1} | {h: LOST for h in b.edges if h.axis != 0}
    return rows, columns, Edges(outside)


def _as_contracted(x: Tile, axis: int) -> Tile:
    """Return a view's window with what the array holds where only the view has ended.

    That matters along the contracted `axis` alone: what else is outside is so in the product too.
    The array must be an input, since memory that is written may not be looked at.
    """
    if x.origin is None or x.origin.root.role != IN:
        return x
    return Tile(x.origin.unfenced(axis).read().value, edges=x.edges)
