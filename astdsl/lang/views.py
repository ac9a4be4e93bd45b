"""Views: what a ref shows of each axis of its root, and which of it is outside.

Invariant: a place along an axis of the root is inside where every one of its ranges holds it: the
root's own, and those of the views whose windows may cross their ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from astdsl.errors import TypeMismatch
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import INT, UINT, i32, i64
from astdsl.lang.elementwise import convert, expand
from astdsl.lang.indices import form_of, index_value
from astdsl.lang.masks import inside_mask
from astdsl.lang.ragged import ZERO, Edges, HalfSpace
from astdsl.lang.shapes import index
from astdsl.lang.symbolic import Form
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Operand, Tile
from astdsl.records import dataclass

# From a low place on, and below a high one.
Range: TypeAlias = tuple[Form, Form]


@dataclass(frozen=True, slots=True, eq=False)
class AxisView:
    """What a view shows of one axis of its root.

    `size` None is an extent that is known at run time only: `extent`, or all of the axis if it is
    `whole`. `fences` are the ranges, beside the root's own, beyond which elements are outside.
    `index` is the tile of indices that picks along the axis, counted from `start`.
    """

    start: Operand
    size: int | None
    step: int
    kept: bool
    whole: bool
    extent: Form | None = None
    fences: tuple[Range, ...] = ()
    index: Tile | None = None

    @property
    def range(self) -> Range:
        """The places that the view shows, without those between its steps."""
        length = Form.of(self.size) if self.size is not None else self.extent
        assert length is not None, "a whole axis is bounded by its root alone"
        first = form_of(self.start)
        last = first + (length - Form.of(1)).scaled(self.step)
        return first, last + Form.of(1)

    def picked(self, tile: Tile) -> AxisView:
        """Return the axis with each place picked by a tile of indices."""
        fences = self.fences if self.whole else (*self.fences, self.range)
        return AxisView(
            self.start, 1, self.step, kept=False, whole=False, fences=fences, index=tile
        )


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Where tiles of indices stand in what they pick: axes of `shape` before axis `place`.

    The indices are computed where a window of a reshaped array is no window of the array.
    """

    shape: tuple[int, ...]
    place: int
    is_computed: bool = False

    def place_of(self, axis: int) -> int:
        """Return where an axis of the window is among all axes."""
        return axis if axis < self.place else axis + len(self.shape)

    def with_grid(self, sizes: Sequence[Any]) -> tuple[Any, ...]:
        """Return the extents of a window with those of the indices at their place."""
        return (*sizes[: self.place], *self.shape, *sizes[self.place :])


NO_GRID = Grid((), 0)


def index_edges(axes: Sequence[AxisView], grid: Grid) -> list[HalfSpace]:
    """Return the half spaces of tiles of indices, along the axes of what they pick."""
    found: dict[HalfSpace, None] = {}
    for axis in axes:
        if axis.index is not None:
            edges = axis.index.edges.broadcast(axis.index.shape, grid.shape)
            places = {k: k + grid.place for k in range(len(grid.shape))}
            found.update(dict.fromkeys(edges.renumbered(places)))
    return list(found)


def indexed_fields(
    axes: Sequence[AxisView],
    order: Sequence[int],
    grid: Grid,
    shape: tuple[int, ...],
    spaces: Sequence[HalfSpace],
) -> dict[str, Any]:
    """Return the fields of an indexed access beside those of a window.

    `order` are the kept axes as the tile has them; where one of `spaces` does not hold, an element
    is left out.
    """
    picking = [k for k, axis in enumerate(axes) if axis.index is not None]
    limited = [k for k, axis in enumerate(axes) if axis.fences]
    return {
        "shape": shape,
        "indexed": tuple(picking),
        "indices": tuple(_spread(axes[k].index, grid, shape) for k in picking),
        "along": tuple(grid.place_of(order.index(k)) for k in sorted(order)),
        "limited": tuple(limited),
        "limits": tuple(v for k in limited for v in _limits(axes[k].fences)),
        "mask": (inside_mask(shape, spaces),) if spaces else (),
    }


def _spread(tile: Tile | None, grid: Grid, shape: tuple[int, ...]) -> Value:
    """Return indices as i32 or i64, repeated over the axes of the window."""
    assert tile is not None, "the axis is picked"
    own = tile.value.tile.dtype
    wide = own.bits > i32.bits or (own.kind == UINT and own.bits == i32.bits)
    converted = Tile(convert(tile, i64 if wide else i32))
    after = len(shape) - grid.place - len(grid.shape)
    missing = len(grid.shape) - tile.ndim
    key = (*(None,) * missing, Ellipsis, *(None,) * after)
    return expand(index(converted, key).value, shape)


def _limits(fences: Sequence[Range]) -> tuple[Value, Value]:
    """Return the place from which on, and the one below which, all ranges hold."""
    lows, highs = zip(*fences, strict=True)
    low, high = index_value(lows[0]), index_value(highs[0])
    for form in lows[1:]:
        low = emit(ops.Maximum, x=low, y=index_value(form)).result
    for form in highs[1:]:
        high = emit(ops.Minimum, x=high, y=index_value(form)).result
    return low, high


def window_edges(
    axes: Sequence[AxisView], order: Sequence[int], extents: Sequence[Form], grid: Grid
) -> Edges:
    """Return the half spaces of a window that are not proved, elements outside holding zeros."""
    found = {}
    for k, axis in enumerate(axes):
        if axis.index is not None:
            continue
        place = grid.place_of(order.index(k)) if axis.kept else None
        assert axis.size is not None, "what is read has constant extents"
        for h in _half_spaces(axis, place, ((Form.of(0), extents[k]), *axis.fences)):
            if not h.holds_for(axis.size):
                found[h] = ZERO
    return Edges(found)


def _half_spaces(axis: AxisView, place: int | None, ranges: Sequence[Range]) -> Iterator[HalfSpace]:
    """Yield the conditions that a window's elements are within each of `ranges`."""
    start = form_of(axis.start)
    for low, high in ranges:
        room = high - Form.of(1) - start
        for form, step in ((start - low, axis.step), (room, -axis.step)):
            yield HalfSpace(form, place, step if axis.kept else 0)


def require_indices(tile: Tile, name: str) -> None:
    """Refuse tiles of indices that are no integers."""
    if tile.kind not in (INT, UINT):
        raise fault(
            TypeMismatch,
            f"tiles of indices of `{name}` hold integers, got {tile}",
            (tile.value, f"{tile} comes from here"),
            help="`x.astype(i32)` converts a float towards zero; `where(mask, x[window], 0)` picks "
            "by bools",
        )
