"""Refs of another shape: the same elements, in row-major order, under other axes.

Invariant: axes are cut into groups of as many elements before as after. In a group of one axis
each, windows stay windows; where an axis is split and one of its parts has a window, they become
one; of all others the places are computed, so any strides will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from astdsl.errors import BadWindow, ShapeMismatch, UnsupportedFeature
from astdsl.ir.types import GMEM
from astdsl.lang.elementwise import as_tile
from astdsl.lang.indices import as_index, form_of, plus, times
from astdsl.lang.ragged import ZERO, Edges, HalfSpace
from astdsl.lang.shapes import iota
from astdsl.lang.symbolic import Form
from astdsl.lang.tracing import NeedsConstant, fault
from astdsl.lang.values import Tile
from astdsl.lang.views import AxisView, Grid
from astdsl.lang.windows import ZERO_START, Span1D, index_of_form, last_form, window_of
from astdsl.records import dataclass

if TYPE_CHECKING:
    from astdsl.lang.refs import Ref

ONE = Form.of(1)
Group: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """The extents of a reshaped ref, in the order in which it shows them.

    `groups` pair axes of the root with places in `extents`, of which `shown` says where each is.
    """

    extents: tuple[Form, ...]
    groups: tuple[Group, ...]
    shown: tuple[int, ...]

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents: Python integers where known, else weak kernel integers."""
        found = (index_of_form(self.extents[a]) for a in self.shown)
        return tuple(n if isinstance(n, Tile) else n.number for n in found)

    def permuted(self, numbers: Sequence[int]) -> Fold:
        """Return the fold that shows as axis k what this one shows as axis `numbers[k]`."""
        return Fold(self.extents, self.groups, tuple(self.shown[k] for k in numbers))


def fold_of(ref: Ref, old: Sequence[Form], shape: Sequence[object]) -> Fold:
    """Return how the axes of a ref, of extents `old`, become those of `shape`; one may be -1."""
    given = [form_of(as_index(n, "an extent of `reshape`")) for n in shape]
    extents = _completed(ref, old, given)
    groups: list[Group] = []
    a = b = 0
    while a < len(old) or b < len(extents):
        first, other, a, b = _group(ref, old, extents, (a, b))
        groups.append((tuple(ref.order[k] for k in first), tuple(other)))
    return Fold(tuple(extents), tuple(groups), tuple(range(len(extents))))


def _group(
    ref: Ref, old: Sequence[Form], new: Sequence[Form], start: tuple[int, int]
) -> tuple[range, range, int, int]:
    """Return the fewest next axes of both that have as many elements."""
    a, b = start
    for size in range(1, len(old) + len(new) + 1):
        for left in range(size + 1):
            i, j = a + left, b + size - left
            if i <= len(old) and j <= len(new) and _product(old[a:i]) == _product(new[b:j]):
                return range(a, i), range(b, j), i, j
    raise _unequal(ref, old, new)


def _product(extents: Sequence[Form]) -> Form:
    total = ONE
    for extent in extents:
        total = total * extent
    return total


def _completed(ref: Ref, old: Sequence[Form], new: Sequence[Form]) -> list[Form]:
    """Return the new extents, with the one that is left open."""
    open_places = [k for k, n in enumerate(new) if n.constant == -1]
    if len(open_places) > 1:
        raise _unequal(ref, old, new)
    if not open_places:
        return list(new)
    total, known = _product(old), _product([n for n in new if n.constant != -1])
    found = _quotient(total, known)
    if found is None:
        raise _unequal(ref, old, new)
    return [found if n.constant == -1 else n for n in new]


def _quotient(total: Form, known: Form) -> Form | None:
    """Divide by one product of atoms; None where that leaves a rest."""
    if len(known.terms) != 1:
        return None
    ((monomial, factor),) = known.terms.items()
    terms = {}
    for atoms, coefficient in total.terms.items():
        left = list(atoms)
        if coefficient % factor or any(a not in left for a in monomial):
            return None
        for atom in monomial:
            left.remove(atom)
        terms[tuple(left)] = coefficient // factor
    return Form(terms)


def _unequal(ref: Ref, old: Sequence[Form], new: Sequence[Form]) -> BaseException:
    """Ask for dims that decide whether the shapes fit; where all are known, they do not."""
    dims: frozenset[tuple[str, int]] = frozenset()
    for form in (*old, *new):
        dims |= form.dims or frozenset()
    if dims:
        return NeedsConstant(dims)
    return fault(
        ShapeMismatch,
        f"`reshape` of `{ref.root.name}` from {tuple(old)} to {tuple(new)}",
        help="the elements stay the same; one extent may be -1",
    )


def folded_view(ref: Ref, fold: Fold, items: Sequence[object]) -> Ref:
    """Return the part of a reshaped ref that the items, one a shown axis, name."""
    windows: dict[int, Span1D] = {}
    for axis, item in zip(fold.shown, items, strict=True):
        if isinstance(item, Tile) and item.shape:
            raise fault(
                UnsupportedFeature,
                f"tiles of indices into a reshaped view of `{ref.root.name}`",
                (item.value, f"{item} comes from here"),
                help="compute the indices of the array's own axes: `i // n`, `i % n`",
            )
        windows[axis] = window_of(item, fold.extents[axis], fold.extents[axis].constant, "the view")
    return _Folding(ref, fold, windows).view()


class _Folding:
    """One view of a reshaped ref: the windows of its axes as those of the root's."""

    def __init__(self, ref: Ref, fold: Fold, windows: dict[int, Span1D]) -> None:
        self.ref, self.fold, self.windows = ref, fold, windows
        self.axes = list(ref.axes)
        self.kept = [a for a in fold.shown if windows[a].kept]

    def view(self) -> Ref:
        """Return the ref."""
        computed = [g for g in self.fold.groups if not self._stays(g)]
        is_turned = self.fold.shown != tuple(sorted(self.fold.shown))
        inside = [k for k, a in enumerate(self.kept) if any(a in new for _, new in computed)]
        together = not inside or inside[-1] - inside[0] == len(inside) - 1
        if (computed and is_turned) or not together:
            computed, inside = list(self.fold.groups), list(range(len(self.kept)))
        places = {self.kept[k]: n for n, k in enumerate(inside)}
        extents, place = tuple(self._size(a) for a in places), inside[0] if inside else 0
        grid = Grid(extents, place, is_computed=True)
        order: dict[int, int] = {}
        for group in self.fold.groups:
            if group in computed:
                self._compute(group, places, grid)
            else:
                order |= self._keep(group)
        shown = tuple(order[a] for a in self.kept if a in order)
        made = type(self.ref)
        return (
            made(self.ref.root, tuple(self.axes), shown, grid)
            if inside
            else made(self.ref.root, tuple(self.axes), shown)
        )

    def _size(self, axis: int) -> int:
        size = self.windows[axis].size
        if size is None:
            dims = self.fold.extents[axis].dims
            raise (
                NeedsConstant(dims)
                if dims
                else fault(
                    BadWindow,
                    "a reshaped view of runtime extent is not read whole",
                    help="take windows of it: `view[tile(i, 64)]`",
                )
            )
        return size

    def _stays(self, group: Group) -> bool:
        """Whether the windows of a group are one window of one axis of the root."""
        old, new = group
        if len(old) == len(new) == 1:
            return True
        if len(old) != 1 or sum(self.windows[a].kept for a in new) > 1:
            return False
        outer, *inner = new
        return all(self._is_proved(a) for a in inner if not self.windows[a].kept) and (
            self.windows[outer].size is not None
        )

    def _is_proved(self, axis: int) -> bool:
        start = form_of(self.windows[axis].start)
        room = self.fold.extents[axis] - ONE - start
        return start.is_nonnegative() and room.is_nonnegative()

    def _strides(self, new: Sequence[int]) -> dict[int, Form]:
        found, step = {}, ONE
        for axis in reversed(new):
            found[axis] = step
            step = step * self.fold.extents[axis]
        return found

    def _keep(self, group: Group) -> dict[int, int]:
        """Narrow the axis of the root; return which new axis it is, if it is kept."""
        (k,), new = group
        strides, old = self._strides(new), self.ref.axes[k]
        start: Any = ZERO_START
        for axis in new:
            moved = form_of(self.windows[axis].start) * strides[axis]
            start = plus(start, index_of_form(moved))
        shown = [a for a in new if self.windows[a].kept]
        size: int | None = 1
        step, fences, extent = 1, old.fences, None
        if shown:
            window, stride = self.windows[shown[0]], strides[shown[0]].constant
            if stride is None:
                raise NeedsConstant(strides[shown[0]].dims or frozenset())
            step, extent = window.step * stride, window.length
            size = window.size
            if len(new) > 1 and not self._is_within(shown[0]):
                fences = (*fences, self._row(k, shown[0], start, stride))
        whole = len(new) == 1 and self.windows[new[0]].start is ZERO_START and size == old.size
        self.axes[k] = AxisView(
            plus(old.start, times(start, old.step)),
            size,
            step * old.step,
            bool(shown),
            whole=whole and old.whole,
            extent=extent,
            fences=fences if old.whole or whole else (*fences, old.range),
        )
        return dict.fromkeys(shown, k)

    def _is_within(self, axis: int) -> bool:
        window, extent = self.windows[axis], self.fold.extents[axis]
        assert window.size is not None, "the window is of constant extent"
        last = last_form(window.start, window.size, window.step)
        return form_of(window.start).is_nonnegative() and (extent - ONE - last).is_nonnegative()

    def _row(self, k: int, axis: int, start: Any, stride: int) -> tuple[Form, Form]:
        """Return the places of the root's axis that one new axis runs through."""
        old = self.ref.axes[k]
        begin = form_of(start) - form_of(self.windows[axis].start).scaled(stride)
        first = form_of(old.start) + begin.scaled(old.step)
        length = (self.fold.extents[axis] - ONE).scaled(stride * old.step) + ONE
        return first, first + length

    def _compute(self, group: Group, places: dict[int, int], grid: Grid) -> None:
        """Pick the places of a group one by one."""
        old, new = group
        strides, number, edges = self._strides(new), as_tile(0), {}
        for axis in new:
            count, spaces = self._numbers(axis, places, grid)
            number = number + count * _operand(strides[axis])
            edges.update(dict.fromkeys(spaces, ZERO))
        for position, k in enumerate(reversed(old)):
            extent = _operand(self.ref.extent_of(k))
            is_first = position == len(old) - 1
            index = number if is_first else number % extent
            number = number // extent
            picked = as_tile(index)
            named = Tile(picked.value, weak=picked.weak, bounds=picked.bounds, edges=Edges(edges))
            self.axes[k] = self.ref.axes[k].picked(named)

    def _numbers(
        self, axis: int, places: dict[int, int], grid: Grid
    ) -> tuple[Any, list[HalfSpace]]:
        """Return the numbers of a window along its place in the grid, and where they end."""
        window, extent = self.windows[axis], self.fold.extents[axis]
        place = places.get(axis)
        start = form_of(window.start)
        room = extent - ONE - start
        step = window.step if place is not None else 0
        spaces = [HalfSpace(start, place, step), HalfSpace(room, place, -step)]
        size = 1 if place is None else self._size(axis)
        missing = [h for h in spaces if not h.holds_for(size)]
        begin = window.start if isinstance(window.start, Tile) else window.start.number
        ones = [1] * max(len(grid.shape), 1)
        if place is None:
            return iota(tuple(ones), 0) + begin, missing
        ones[place] = size
        return iota(tuple(ones), place) * window.step + begin, missing


def _operand(form: Form) -> Any:
    number = index_of_form(form)
    return number if isinstance(number, Tile) else number.number


def require_reshapable(ref: Ref) -> None:
    """Refuse to reshape what is no view of global memory by windows."""
    if ref.space != GMEM:
        raise fault(
            UnsupportedFeature,
            f"`reshape` of `{ref.root.name}`, which is on chip",
            help="allocate it in that shape, or reshape what is read: `ref[...].reshape(...)`",
        )
