"""Which axes of an outermost pipeline may run as separate blocks.

An axis is independent if nothing is carried over it, no two of its steps write overlapping
windows, and none reads what another writes. Two windows are disjoint for different steps if along
some axis of the array their starts move with the step by at least their extent, and with nothing
else that the pipeline changes.

Invariant: "independent" is proved; what is not proved is not independent.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations_with_replacement

from astdsl.errors import ParallelConflict
from astdsl.ir import ops
from astdsl.ir.core import Block, Value, walk
from astdsl.ir.rewrite import count_uses, values_made
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
    return True


class _Analysis:
    def __init__(self, pipeline: ops.Pipeline, forms: Forms) -> None:
        self.pipeline = pipeline
        self.forms = forms
        self.inside = set(values_made(pipeline.body))
        self.stores = list(_windows(pipeline.body, ops.Store))
        written = {s.ref for s in self.stores}
        self.loads = [w for w in _windows(pipeline.body, ops.Load) if w.ref in written]

    def is_independent(self, axis: int) -> bool:
        if not self._carries_nothing(axis):
            return False
        pairs = [*combinations_with_replacement(self.stores, 2)]
        pairs += [(load, store) for load in self.loads for store in self.stores]
        return all(self._disjoint(axis, a, b) for a, b in pairs if a.ref is b.ref)

    def _carries_nothing(self, axis: int) -> bool:
        """Whether every carried value is overwritten by the first step of the inner axes."""
        return not any(
            reads_carried(self.pipeline, axis + 1, k, self.forms)
            for k in range(len(self.pipeline.initial))
        )

    def _disjoint(self, axis: int, a: ops.Window, b: ops.Window) -> bool:
        index = self.pipeline.body.args[axis]
        step = self.forms[self.pipeline.steps[axis]]
        return move_apart(a, b, index, step, self.inside, self.forms)

    def proved_conflict(self, axis: int) -> ops.Window | None:
        """Return a store that every step does, to a window that no index of the axis moves."""
        index = self.pipeline.body.args[axis]
        for op in self.pipeline.body.ops:
            if isinstance(op, ops.Store) and not any(
                self._depends(start, index) for start in op.starts
            ):
                return op
        return None

    def _depends(self, start: Value, index: Value) -> bool:
        sources = self.forms.sources(start)
        return index in sources or any(
            s in self.inside and s not in self.pipeline.body.args for s in sources
        )


def move_apart(
    a: ops.Window, b: ops.Window, index: Value, step: Form, inside: set[Value], forms: Forms
) -> bool:
    """Whether two windows of one ref are disjoint whenever their steps have other indices.

    `inside` are the values that change between the steps.
    """
    if not step.is_constant:
        return False
    return any(
        _starts_apart(forms[x], forms[y], index, inside) * abs(step.constant) - distance >= reach
        for x, y, reach in zip(a.starts, b.starts, _reaches(a, b), strict=True)
        if (distance := _distance(forms[x], forms[y])) is not None
    )


def _starts_apart(x: Form, y: Form, index: Value, inside: set[Value]) -> int:
    """Return by how much both starts move with the index, 0 if with anything else too."""
    factor = x.coefficient(index)
    others = (x.values() | y.values()) & inside - {index}
    return 0 if not factor or others or y.coefficient(index) != factor else abs(factor)


def _distance(x: Form, y: Form) -> int | None:
    apart = x - y
    return abs(apart.constant) if apart.is_constant else None


def _reaches(a: ops.Window, b: ops.Window) -> Iterable[int]:
    for first, second in zip(extents(a), extents(b), strict=True):
        yield max(first, second)


def extents(window: ops.Window) -> list[int]:
    """Return how far a window reaches along each axis of the ref."""
    return [(n - 1) * abs(s) + 1 for n, s in zip(window.sizes, window.steps, strict=True)]


def _windows(block: Block, kind: type[ops.Window]) -> Iterable[ops.Window]:
    return (op for op in walk(block) if isinstance(op, kind))


def is_used(values: Iterable[Value], block: Block) -> bool:
    """Whether any of the values is an operand in the block."""
    uses = count_uses(block)
    return any(uses[v] for v in values)
