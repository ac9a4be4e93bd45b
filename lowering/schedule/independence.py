"""Which axes of an outermost pipeline may run as separate blocks.

An axis is independent if nothing is carried over it, no two of its steps write overlapping
windows, and none reads what another writes. Two windows are disjoint for different steps if along
some axis of the array their starts move with the step by at least their extent, and with nothing
else that the pipeline changes but smaller digits; or if a guard (`if j == 0:`) lets both happen
in the same one step only.

Invariant: "independent" is proved; what is not proved is not independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TypeAlias

from astdsl.errors import ParallelConflict
from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.ops.control import yielded
from astdsl.ir.rewrite import count_uses, values_made
from astdsl.ir.types import GMEM
from astdsl.lowering.schedule.first_step import reads_carried
from astdsl.lowering.windows import Form, Forms


def spread_axes(pipeline: ops.Pipeline, forms: Forms) -> list[bool]:
    """Return of each axis whether its steps go to separate blocks."""
    analysis = _Analysis(pipeline, forms)
    return [
        _author_says(pipeline, axis, analysis)
        or (mode == ops.INFERRED and analysis.is_independent(axis))
        for axis, mode in enumerate(pipeline.axes)
    ]


def _author_says(pipeline: ops.Pipeline, axis: int, analysis: _Analysis) -> bool:
    """Whether the axis is `parallel`; a proved conflict is refused."""
    if pipeline.axes[axis] != ops.SPREAD:
        return False
    store = analysis.proved_conflict(axis)
    if store is not None:
        raise ParallelConflict(
            f"every step along axis {axis} of this `parallel` writes the same window",
            (store.span, "written by every step"),
            (pipeline.span, "the steps run side by side here"),
            help="index the window by that axis, or use `pipeline`, which keeps the order",
        )
    carried = analysis.carried_over(axis)
    if carried:
        name = pipeline.body.args[len(pipeline.axes) + carried[0]].hint
        left = yielded(pipeline.body)[carried[0]]
        maker = analysis.forms.makers.get(left, pipeline)
        raise ParallelConflict(
            f"{f'`{name}`' if name else 'a name'} is carried over axis {axis} of this `parallel`",
            (maker.span, "what a step leaves for the next one"),
            (pipeline.span, "the steps run side by side here"),
            help="assign it in the body before it is read; `pipeline` keeps the order of its steps",
        )
    return True


class _Analysis:
    def __init__(self, pipeline: ops.Pipeline, forms: Forms) -> None:
        self.pipeline = pipeline
        self.forms = forms
        self.inside = set(values_made(pipeline.body))
        self.indices = [*indices_of(pipeline, forms), *self._indices_inside()]
        windows = [w for w in walk(pipeline.body) if isinstance(w, ops.Window)]
        # What a step allocates is its own.
        shared = [w for w in windows if w.ref not in self.inside]
        self.stores = [w for w in shared if isinstance(w, ops.WRITERS)]
        written = {s.ref for s in self.stores}
        self.loads = [w for w in shared if w not in self.stores and w.ref in written]
        self.guards = dict(_guards(pipeline.body, ()))

    def _indices_inside(self) -> Iterator[Index]:
        """Describe the loops inside that begin at the same index in every step."""
        for op in walk(self.pipeline.body):
            for value, low, high, step in self._bounds(op):
                if not low.values() & self.inside:
                    yield index_of(value, low, high, step)

    def _bounds(self, op: Op) -> list[tuple[Value, Form, Form, Form]]:
        """Return the indices of a loop with the forms of their bounds; of others none."""
        if isinstance(op, ops.For):
            bounds = [(op.body.args[0], op.low, op.high, op.step)]
        elif isinstance(op, ops.Pipeline):
            bounds = list(zip(op.body.args, op.lows, op.highs, op.steps, strict=False))
        else:
            return []
        forms = self.forms
        return [(value, forms[low], forms[high], forms[step]) for value, low, high, step in bounds]

    def is_independent(self, axis: int) -> bool:
        if self.carried_over(axis):
            return False
        pairs: list[tuple[ops.Window, ops.Window]]
        pairs = [*combinations_with_replacement(self.stores, 2)]
        pairs += [(load, store) for load in self.loads for store in self.stores]
        return all(
            self._disjoint(axis, a, b)
            for a, b in pairs
            if a.ref is b.ref and not (isinstance(a, ops.Atomic) and isinstance(b, ops.Atomic))
        )

    def carried_over(self, axis: int) -> list[int]:
        """Return the carried values that the first step of the inner axes may not overwrite."""
        return [
            k
            for k in range(len(self.pipeline.initial))
            if reads_carried(self.pipeline, axis + 1, k, self.forms)
        ]

    def _disjoint(self, axis: int, a: ops.Window, b: ops.Window) -> bool:
        index = self.pipeline.body.args[axis]
        if index in separated(a, b, self.indices, self.inside, self.forms):
            return True
        only = [self._only_step(axis, w) for w in (a, b)]
        return only[0] is not None and only[0] == only[1]

    def _only_step(self, axis: int, window: ops.Window) -> Form | None:
        """Return the index less the one value at which a guard lets the access happen."""
        conditions = list(self.guards[window])
        while conditions:
            condition, holds = conditions.pop()
            maker = self.forms.makers.get(condition)
            if isinstance(maker, ops.Invert):
                conditions.append((maker.x, not holds))
            elif isinstance(maker, ops.BitAnd if holds else ops.BitOr):
                conditions += [(operand, holds) for operand in maker.operands]
            elif isinstance(maker, ops.Compare):
                predicate = maker.predicate if holds else _NEGATED[maker.predicate]
                apart = self._from_only(axis, predicate, self.forms[maker.x] - self.forms[maker.y])
                if apart is not None:
                    return apart
        return None

    def _from_only(self, axis: int, predicate: str, apart: Form) -> Form | None:
        """Return `index - value` if `apart` compares so with 0 for this one value alone."""
        op, forms = self.pipeline, self.forms
        index, low = Form.unknown(op.body.args[axis]), forms[op.lows[axis]]
        sign = apart.coefficient(op.body.args[axis])
        if sign not in (1, -1) or apart.values() & self.inside - index.values():
            return None
        if sign == -1:
            apart, predicate = apart.scaled(-1), _MIRRORED[predicate]
        if predicate == "eq":
            return apart
        # At most the first index, or at least the last one.
        last = forms[op.highs[axis]] - Form(forms[op.steps[axis]].constant)
        ends = {"le": (low, 0), "lt": (low, 1), "ge": (last, 0), "gt": (last, -1)}
        if predicate not in ends or forms[op.steps[axis]] != Form(1):
            return None
        end, strict = ends[predicate]
        return index - end if apart + Form(strict) == index - end else None

    def proved_conflict(self, axis: int) -> ops.Window | None:
        """Return a store that every step does, to a window that no index of the axis moves.

        On-chip memory is each block's own.
        """
        index = self.pipeline.body.args[axis]
        # What indices name, and whether atomics meet, is known only at run time.
        stores = [
            store
            for store in self.stores
            if store.ref.ref.space == GMEM and not isinstance(store, ops.Indexed)
        ]
        for op, same in self._surely_run(self.pipeline.body, frozenset(self.pipeline.body.args)):
            if op in stores and not any(self._depends(start, index, same) for start in op.starts):
                return op
        return None

    def _surely_run(
        self, block: Block, same: frozenset[Value]
    ) -> Iterator[tuple[Op, frozenset[Value]]]:
        """Yield what every step does, with the indices that take the same values in every step."""
        for op in block.ops:
            yield op, same
            bounds = self._bounds(op)
            if bounds and all(_runs_alike(*each) for each in bounds):
                (body,) = op.regions
                yield from self._surely_run(body, same | {value for value, *_ in bounds})

    def _depends(self, start: Value, index: Value, same: frozenset[Value]) -> bool:
        sources = self.forms.sources(start)
        return index in sources or any(s in self.inside and s not in same for s in sources)


def _runs_alike(value: Value, low: Form, high: Form, step: Form) -> bool:
    """Whether a loop takes the same steps wherever it stands, and one at least."""
    count = index_of(value, low, high, step).count
    return low.is_constant and count is not None and count.is_constant and count.constant > 0


_Guards: TypeAlias = tuple[tuple[Value, bool], ...]


def _guards(block: Block, conditions: _Guards) -> Iterator[tuple[Op, _Guards]]:
    """Yield each operation with the conditions around it, and whether they hold where it runs."""
    for op in block.ops:
        yield op, conditions
        for region in op.regions:
            inner = conditions
            if isinstance(op, ops.If):
                inner = (*conditions, (op.condition, region is op.then))
            yield from _guards(region, inner)


_NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "ge": "le", "gt": "lt", "le": "ge"}


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a loop: what a step adds to it, and how many steps there are, where known."""

    value: Value
    step: int | None
    count: Form | None


def indices_of(pipeline: ops.Pipeline, forms: Forms) -> Iterator[Index]:
    """Describe the indices of a pipeline."""
    bounds = zip(pipeline.body.args, pipeline.lows, pipeline.highs, pipeline.steps, strict=False)
    for value, low, high, step in bounds:
        yield index_of(value, forms[low], forms[high], forms[step])


def index_of(value: Value, low: Form, high: Form, step: Form) -> Index:
    """Describe a loop's index by the forms of its bounds."""
    length = high - low
    size = step.constant if step.is_constant else None
    if size and length.is_constant:
        return Index(value, size, Form(-(-length.constant // size)))
    # Where a step runs at all, a count from 0 in steps of 1 is the length.
    return Index(value, size, length if size == 1 else None)


def separated(
    a: ops.Window, b: ops.Window, indices: Sequence[Index], inside: set[Value], forms: Forms
) -> set[Value]:
    """Return the indices of which different values put two windows of a ref apart.

    `inside` are the values that change between steps; no other of them may move the windows.
    Along one axis of the ref several indices separate like the digits of a number: each moves the
    start by more than all smaller ones together, and by the window's extent.
    """
    found: set[Value] = set()
    anywhere = {*indexed_axes(a), *indexed_axes(b)}
    for axis, (x, y, reach) in enumerate(zip(a.starts, b.starts, _reaches(a, b), strict=True)):
        if axis not in anywhere:
            found |= _separated_along(forms[x], forms[y], reach, indices, inside)
    return found


def indexed_axes(window: ops.Window) -> tuple[int, ...]:
    """Return the axes along which tiles of indices say where an access goes."""
    return window.indexed if isinstance(window, ops.Indexed) else ()


def _separated_along(
    x: Form, y: Form, reach: int, indices: Sequence[Index], inside: set[Value]
) -> set[Value]:
    apart = x - y
    moving = [i for i in indices if i.value in x.values() | y.values()]
    others = (x.values() | y.values()) & inside - {i.value for i in moving}
    if others or not apart.is_constant:
        return set()
    digits = [(d, i) for i in moving if (d := _moves(x, i, inside)) is not None]
    if len(digits) != len(moving):
        return set()
    digits.sort(key=lambda digit: (not digit[0].is_constant, digit[0].constant))
    needed: Form | None = Form(reach + abs(apart.constant))
    while digits:
        found = next((digit for digit in digits if _is_at_least(digit[0], needed)), None)
        if found is None:
            return set()
        digits.remove(found)
        needed = _with_digit(needed, *found, inside)
    return {index.value for index in moving}


def _with_digit(
    needed: Form | None, distance: Form, index: Index, inside: set[Value]
) -> Form | None:
    """Return how far apart larger digits must be; None if only the largest may be like this one."""
    if needed is None or index.count is None or index.count.values() & inside:
        return None
    return needed + distance * (index.count - Form(1))


def _is_at_least(distance: Form, needed: Form | None) -> bool:
    """Whether a distance is proved to be no less than another, in every step that runs.

    What is needed is positive there, so a distance that is as much has no sign to be known.
    """
    if needed is None:
        return False
    more = distance - needed
    return more.is_constant and bool(more.constant >= 0)


def _moves(form: Form, index: Index, inside: set[Value]) -> Form | None:
    """Return how far one step of an index moves a start, None if that is not known or nothing."""
    factor = form.factor(index.value)
    if factor is None or index.step is None or factor.values() & inside:
        return None
    distance = factor.scaled(index.step)
    if distance.is_constant:
        return Form(abs(distance.constant)) if distance.constant else None
    return distance


def _reaches(a: ops.Window, b: ops.Window) -> Iterable[int]:
    for first, second in zip(extents(a), extents(b), strict=True):
        yield max(first, second)


def extents(window: ops.Window) -> list[int]:
    """Return how far a window reaches along each axis of the ref."""
    return [(n - 1) * abs(s) + 1 for n, s in zip(window.sizes, window.steps, strict=True)]


def is_used(values: Iterable[Value], block: Block) -> bool:
    """Whether any of the values is an operand in the block."""
    uses = count_uses(block)
    return any(uses[v] for v in values)
