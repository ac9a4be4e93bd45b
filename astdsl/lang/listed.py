"""Lists of indices in brackets, by NumPy's rules: `ref[[2, 0, 5]]`, `t[:, [2, 0, 5]]`.

Invariant: of a ref, a list is the tile of indices that holds its numbers; of a tile, whose indices
are constants, it is composed of slices. Tuples and ranges inside of an index, and NumPy's arrays of
integers, are lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from astdsl.errors import ShapeMismatch, TypeMismatch
from astdsl.ir.dtypes import INT, UINT
from astdsl.lang.parts import Numbers, as_runs, concat, numbers_of, places_inside, stack, take
from astdsl.lang.shapes import arange, index, reshape, spelled_out_of_tile, transpose
from astdsl.lang.tracing import fault
from astdsl.lang.values import Tile, as_operand, method
from astdsl.lang.windows import Window, refuse_negative


def is_list(item: object) -> bool:
    """Whether an item of an index picks several places by their numbers."""
    if isinstance(item, np.ndarray):
        return item.ndim > 0
    return isinstance(item, list | tuple | range)


def as_index_tile(item: Any, name: str) -> Tile:
    """Return the tile of indices that a list is; its elements may be kernel integers.

    Errors: TypeMismatch of other elements, BadWindow of negative constants.
    """
    what = f"a list of indices of `{name}`"
    parts = [_element(part, what) for part in item]
    for part in parts:
        refuse_negative(part, name)
    if not all(type(part) is int for part in parts):
        return stack([as_index_tile(p, name) if is_list(p) else p for p in parts])
    runs = [arange(run.start, run.stop, run.step) for run in as_runs(parts)]
    return concat(runs) if runs else arange(0)


def _element(part: Any, what: str) -> Any:
    """Return a Python number, a kernel integer, or a list."""
    if is_list(part):
        return part
    operand = as_operand(part, what)
    if operand.kind not in (INT, UINT) or operand.shape:
        raise _not_integers(what, operand)
    return operand if isinstance(operand, Tile) else operand.number


def _not_integers(what: str, found: object) -> BaseException:
    return fault(
        TypeMismatch,
        f"{what} holds integers, got {found}",
        help="`where(mask, x, 0)` selects by bools; `[i for i, m in enumerate(mask) if m]` lists "
        "the places of constants",
    )


@method("__getitem__")
def item(x: Tile, key: object) -> Tile:
    """Return what NumPy's rules pick by constants: integers, lists of them, slices, `...`, `None`.

    Lists are broadcast, and an integer beside one counts as one. Errors: BadWindow outside the
    tile, NotConstant for kernel values, ShapeMismatch.
    """
    items = key if isinstance(key, tuple) else (key,)
    if not any(is_list(i) for i in items):
        return index(x, key)
    spelled = list(spelled_out_of_tile(x, items))
    picking = [k for k, i in enumerate(spelled) if not _is_slice(i)]
    rest = tuple(slice(None) if k in picking else i for k, i in enumerate(spelled))
    lists = _broadcast([numbers_of(spelled[k], "an index of a tile") for k in picking])
    whole = index(x, rest)
    if len(picking) == 1:
        return take(whole, lists[0], picking[0])
    return _taken_together(whole, lists, picking)


def _is_slice(item: object) -> bool:
    return item is None or isinstance(item, slice | Window)


def _broadcast(lists: Sequence[Numbers]) -> list[Numbers]:
    try:
        return list(np.broadcast_arrays(*lists))
    except ValueError:
        shapes = " and ".join(str(each.shape) for each in lists)
        raise fault(
            ShapeMismatch,
            f"lists of indices of a tile cannot broadcast {shapes}",
            help="lists of one length pick element by element; `t[rows][:, columns]` picks a block",
        ) from None


def _taken_together(x: Tile, lists: Sequence[Numbers], axes: Sequence[int]) -> Tile:
    """Pick along several axes: they are merged into the first, and NumPy says where it goes."""
    kept = [a for a in range(x.ndim) if a not in axes]
    extents = [x.shape[a] for a in axes]
    places = [
        np.array(places_inside(x, map(int, each.flat), axis), np.int64).reshape(each.shape)
        for each, axis in zip(lists, axes, strict=True)
    ]
    merged = reshape(
        transpose(x, [*axes, *kept]), (math.prod(extents), *(x.shape[a] for a in kept))
    )
    flat = np.ravel_multi_index(places, extents) if places[0].size else places[0]
    taken = take(merged, flat, 0)
    rank = lists[0].ndim
    place = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    order = [*range(rank, rank + place), *range(rank), *range(rank + place, taken.ndim)]
    return transpose(taken, order)
