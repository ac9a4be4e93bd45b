"""Windows: which elements of a ref an index names.

Invariant: a window of an axis is a start (any kernel integer), a constant extent and a constant
step, or the whole axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from astdsl.errors import BadWindow, KernelError, in_words
from astdsl.ir import ops
from astdsl.lang.indices import (
    as_index,
    form_of,
    index_value,
    known_index,
    plus,
    times,
    weak_integer,
)
from astdsl.lang.shapes import ONE_ELLIPSIS, as_extent
from astdsl.lang.symbolic import Form
from astdsl.lang.tracing import NeedsConstant, emit, fault
from astdsl.lang.values import Literal, Operand, Tile
from astdsl.records import dataclass

ZERO_START = Literal(0)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """`size` elements from `start` on, `step` apart. Made by `ds` and `tile`."""

    start: Operand
    size: int
    step: int = 1

    def as_slice(self) -> slice:
        """Return the window as a slice of a tile, which its start must be constant for."""
        start = self.start.number if isinstance(self.start, Literal) else self.start
        low = as_extent(start, "the start of a window of a tile")
        if low < 0:
            raise fault(
                BadWindow,
                f"a window of a tile starts at {low}",
                help="windows of tiles lie inside; only those of global arrays may cross an edge",
            )
        return slice(low, low + max((self.size - 1) * self.step + 1, 0), self.step)


@dataclass(frozen=True, slots=True, eq=False)
class Span1D:
    """A window of one axis as indexing gives it.

    `size` None is the whole axis, or with a `length` an extent that is known at run time.
    """

    start: Operand
    size: int | None
    step: int = 1
    kept: bool = True
    length: Form | None = None


def ds(start: object, size: object, step: object = 1) -> Window:
    """Return the window of `size` elements from `start` on, every `step`-th one.

    `start` is any kernel integer, negative too (a halo); `size` and `step` are compile-time
    constants. Elements outside a global array read as zero and are dropped on store.
    """
    extent, stride = as_extent(size, "the size of `ds`"), as_extent(step, "the step of `ds`")
    if extent < 0:
        raise _negative_size("ds", extent)
    _require_positive_step(stride)
    return Window(as_index(start, "the start of `ds`"), extent, stride)


def tile(i: object, size: object) -> Window:
    """Return block `i` of `size` elements: `ds(i * size, size)`, computed without wrapping."""
    extent = as_extent(size, "the size of `tile`")
    if extent < 0:
        raise _negative_size("tile", extent)
    return Window(times(as_index(i, "the index of `tile`"), extent), extent)


def _negative_size(function: str, size: int) -> KernelError:
    return fault(
        BadWindow,
        f"`{function}` takes a size of 0 or more, got {size}",
        help="the start may be negative, the size is a number of elements",
    )


def _require_positive_step(step: int) -> None:
    if step < 1:
        raise fault(
            BadWindow,
            f"the step of a window is 1 or more, got {step}",
            help="read the window forwards, and turn the tile: `t[::-1]`"
            if step
            else "`ds(start, size)` has step 1",
        )


def spelled_out(items: Sequence[object], rank: int, name: str) -> Iterator[object]:
    """Yield one item an axis: `...` and missing last axes are whole."""
    used = sum(item is not Ellipsis for item in items)
    if used > rank:
        raise fault(
            BadWindow,
            f"`{name}` has {in_words(rank, 'axis')}, and is indexed by {used}",
            help="one item an axis: `lo:hi`, `ds(start, size)`, `tile(i, size)`, `:`, an integer",
        )
    if len(items) - used > 1:
        raise fault(BadWindow, f"`...` stands twice in an index of `{name}`", help=ONE_ELLIPSIS)
    missing = rank - used
    for item in items if any(item is Ellipsis for item in items) else (*items, Ellipsis):
        if item is Ellipsis:
            yield from (slice(None),) * missing
            missing = 0
        else:
            yield item


def window_of(item: object, extent: Form, whole: int | None, name: str) -> Span1D:
    """Return the window that one item of an index names on an axis.

    `extent` is the axis's, as a form; `whole` is it as a number, None at run time.
    """
    if isinstance(item, Window):
        return Span1D(item.start, item.size, item.step)
    if isinstance(item, slice):
        return _slice_window(item, extent, whole, name)
    if item is None:
        raise fault(
            BadWindow,
            f"`None` adds an axis to a tile, not to the ref `{name}`",
            help=f"read first: `{name}[...][:, None]`",
        )
    refuse_negative(item, name)
    return Span1D(as_index(item, f"an index of `{name}`"), 1, kept=False)


def refuse_negative(item: Any, name: str) -> None:
    """Refuse a negative constant as an index of a ref. Errors: BadWindow."""
    if isinstance(item, int) and item < 0:
        raise fault(
            BadWindow,
            f"the constant {item} as an index of `{name}` is ambiguous: from the end, or before "
            "the start",
            help=f"from the end: `{name}.shape[axis] - {-item}`; before the start (a halo): "
            f"`ds({item}, size)`",
        )


def _slice_window(item: slice, extent: Form, whole: int | None, name: str) -> Span1D:
    step = 1 if item.step is None else as_extent(item.step, "the step of a window")
    _require_positive_step(step)
    if item.start is None and item.stop is None and step == 1:
        return Span1D(ZERO_START, whole)
    refuse_negative(item.start, name)
    refuse_negative(item.stop, name)
    start = ZERO_START if item.start is None else as_index(item.start, "the start of a window")
    low = form_of(start)
    high = extent if item.stop is None else form_of(as_index(item.stop, "the end of a window"))
    length = high - low
    size = length.constant
    if size is None and step == 1:
        return Span1D(start, None, length=length)
    if size is None:
        raise _runtime_steps(length, name)
    if size < 0:
        raise fault(
            BadWindow,
            f"a window of `{name}` ends {in_words(-size, 'element')} before it starts",
            help="`lo:hi` holds hi - lo elements",
        )
    return Span1D(start, -(-size // step), step)


def _runtime_steps(length: Form, name: str) -> BaseException:
    if length.dims:
        return NeedsConstant(length.dims)
    return fault(
        BadWindow,
        f"a view of `{name}` of runtime extent takes every element, and this one has a step",
        help="`ds(start, size, step)` states the size; `ref.at[lo:hi]` is a view, and windows of "
        "it take steps",
    )


def composed(start: Operand, outer: Operand, step: int) -> Operand:
    """Return where a window that starts at `start` of a view begins in what the view is of."""
    return plus(outer, times(start, step))


def last_form(start: Operand, size: int, step: int) -> Form:
    """Return the form of the index of a window's last element."""
    return form_of(start) + Form.of((size - 1) * step)


def length_of(form: Form) -> Operand:
    """Return an extent: what a form counts, nothing where it is negative, as NumPy's slices."""
    if form.is_nonnegative():
        return index_of_form(form)

    def make() -> Tile:
        value = emit(ops.Maximum, x=index_value(form), y=index_value(0)).result
        return Tile(value, weak=True, bounds=(0, max(0, form.bounds[1])), dims=form.dims)

    return known_index(("length", form), make)


def index_of_form(form: Form) -> Operand:
    """Return an index computed from a form: a Python number where it is constant."""
    number = form.constant
    return weak_integer(index_value(form), form) if number is None else Literal(number)
