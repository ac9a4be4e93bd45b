"""Whether a store, or the steps of a loop of stores, writes all that a later window reads.

A loop does if its windows lie side by side from one end of the array to the other; or if the loops
around the read have the same bounds and visit the same windows.

Invariant: "covers" is proved; what is not proved does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value
from astdsl.lowering.windows import Form, Forms


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop around an access: its index, its bounds, and the region that it repeats."""

    index: Value
    low: Value
    high: Value
    step: Value
    body: Block
    owner: Op

    @property
    def name(self) -> str:
        """The index's name, else the axis's number."""
        hint = self.index.hint
        return f"`{hint}`" if hint else str(self.body.args.index(self.index))

    def bounds(self, forms: Forms) -> tuple[Form, Form, Form]:
        """Return the forms of low, high and step."""
        return forms[self.low], forms[self.high], forms[self.step]

    def count(self, forms: Forms) -> int:
        """Return how many steps there are, 0 where that is not known."""
        low, high, step = self.bounds(forms)
        length = high - low
        if not (length.is_constant and step.is_constant and step.constant):
            return 0
        return max(0, -(-length.constant // step.constant))


def axes_of(op: Op) -> Iterator[Axis]:
    """Yield the axes of a pipeline or of a `for`; of anything else none."""
    if isinstance(op, ops.Pipeline):
        bounds = zip(op.body.args, op.lows, op.highs, op.steps, strict=False)
        yield from (Axis(*each, op.body, op) for each in bounds)
    elif isinstance(op, ops.For):
        yield Axis(op.body.args[0], op.low, op.high, op.step, op.body, op)


def same_window(a: ops.Window, b: ops.Window, forms: Forms) -> bool:
    """Whether two windows of a ref are equal in every step."""
    return _is_same(a, b, forms, {})


def _is_same(a: ops.Window, b: ops.Window, forms: Forms, places: Mapping[Value, Form]) -> bool:
    """Whether a window is another one where some of its indices have other places."""
    if (a.sizes, a.steps) != (b.sizes, b.steps):
        return False
    starts = zip(a.starts, b.starts, strict=True)
    return all(forms[x].substituted(places) == forms[y] for x, y in starts)


def covers(store: ops.Store, read: ops.Window, forms: Forms) -> bool:
    """Whether a store writes all that may be read: the same window, or the whole array."""
    starts = [forms[v] for v in store.starts]
    whole = store.sizes == store.ref.ref.shape and all(s == Form(0) for s in starts)
    return whole or (not _is_anywhere(read) and same_window(store, read, forms))


def scatter_covers(scatter: ops.Scatter, read: ops.Window, forms: Forms) -> bool:
    """Whether a scatter writes each element that the same indices read in the same step."""
    if not isinstance(read, ops.Indexed) or not same_window(scatter, read, forms):
        return False
    a, b = ((x.shape, x.indexed, x.along, x.limited) for x in (scatter, read))
    limits = zip(scatter.limits, read.limits, strict=True) if a == b else ()
    return (
        a == b
        and all(x is y for x, y in zip(scatter.indices, read.indices, strict=True))
        and all(forms[x] == forms[y] for x, y in limits)
        and scatter.mask in ((), read.mask)
    )


def _is_anywhere(read: ops.Window) -> bool:
    """Whether tiles of indices say where an access goes."""
    return isinstance(read, ops.Indexed) and bool(read.indexed)


def loop_covers(op: Op, read: ops.Window, around: tuple[Axis, ...], forms: Forms) -> bool:
    """Whether the steps of a loop write all that is read behind it, in loops `around` the read."""
    for store, axes in _stores_of_every_step(op, ()):
        if store.ref is not read.ref:
            continue
        used = [a for a in axes if any(a.index in forms[s].values() for s in store.starts)]
        if not all(a.count(forms) for a in axes if a not in used):
            continue
        if _fills(store, used, forms):
            return True
        if not _is_anywhere(read) and _visits_the_same(store, used, read, around, forms):
            return True
    return False


def _stores_of_every_step(
    op: Op, axes: tuple[Axis, ...]
) -> Iterator[tuple[ops.Store, tuple[Axis, ...]]]:
    """Yield the stores that no condition guards, with the loops around them."""
    inner = (*axes, *axes_of(op))
    if len(inner) == len(axes):
        return
    for each in inner[-1].body.ops:
        if isinstance(each, ops.Store):
            yield each, inner
        yield from _stores_of_every_step(each, inner)


def _fills(store: ops.Store, used: list[Axis], forms: Forms) -> bool:
    """Whether the windows of all steps lie side by side over the whole array."""
    left = {a.index: a for a in used}
    sides = zip(store.starts, store.sizes, store.steps, store.ref.ref.shape, strict=True)
    for value, size, step, extent in sides:
        start = forms[value]
        axis = next((left.pop(v) for v in [*start.values()] if v in left), None)
        reach = _reach(start, size, axis, forms)
        if extent is None or step != 1 or reach < extent:
            return False
    return not left


def _reach(start: Form, size: int, axis: Axis | None, forms: Forms) -> int:
    """Return how many elements from the first on windows of one axis cover, 0 if not known."""
    if axis is None:
        return size if start == Form(0) else 0
    stride = start.coefficient(axis.index) or 0
    low, _, step = axis.bounds(forms)
    first = start.substituted({axis.index: low})
    apart = stride * step.constant
    if first != Form(0) or not axis.count(forms) or not 0 < apart <= size:
        return 0
    return (axis.count(forms) - 1) * apart + size


def _visits_the_same(
    store: ops.Store,
    used: list[Axis],
    read: ops.Window,
    around: tuple[Axis, ...],
    forms: Forms,
) -> bool:
    """Whether each step around a read has one of the store in which the windows are the same."""
    for chosen in product(around, repeat=len(used)):
        places = {a.index: forms[b.index] for a, b in zip(used, chosen, strict=True)}
        bounds = [
            (x.substituted(places), y)
            for a, b in zip(used, chosen, strict=True)
            for x, y in zip(a.bounds(forms), b.bounds(forms), strict=True)
        ]
        if all(x == y for x, y in bounds) and _is_same(store, read, forms, places):
            return True
    return False
