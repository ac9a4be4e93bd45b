"""What a kernel must not do with its outputs, checked on the program as it was written.

A plain `Out` starts unwritten: each of its windows that is read must have been written, in the
same step or in the first step of the axes that revisit it. So does scratch. Windows of one output
in one step are the same or disjoint.

An array that an earlier launch writes may be read by a later one. That the earlier one wrote every
element that is read is not proved here: the reference and the emulator, which mark what is
unwritten, report it.

Invariant: an error names both places; what is not proved written is refused, but for the above.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from math import gcd

from astdsl.errors import OverlappingWindows, ScatteredAccumulation, UnwrittenRead
from astdsl.ir import ops
from astdsl.ir.core import OUT, Block, Module, Op, Value, walk
from astdsl.ir.types import GMEM
from astdsl.lowering.schedule.branches import holds_launch
from astdsl.lowering.schedule.coverage import (
    Axis,
    axes_of,
    covers,
    loop_covers,
    same_window,
    scatter_covers,
)
from astdsl.lowering.schedule.first_step import Decider
from astdsl.lowering.schedule.independence import extents
from astdsl.lowering.windows import Form, Forms


@dataclass(frozen=True, slots=True)
class _Access:
    """An access, the loops around it, and where in the kernel's body the operation around it is."""

    op: ops.Window
    axes: tuple[Axis, ...]
    position: int


def check_outputs(module: Module) -> None:
    """Refuse reads of unwritten windows, scattered accumulation and overlapping windows."""
    forms = Forms(module.body)
    accesses = _accesses(module.body)
    stores = [a for a in accesses if isinstance(a.op, ops.WRITERS)]
    # On-chip memory is written and read where the program says, by no copy of the schedule.
    written = {a.op.ref for a in stores if a.op.ref.ref.space == GMEM}
    _check_overlaps([a for a in accesses if a.op.ref in written], forms)
    plain = starting_unwritten(module)
    for access in accesses:
        is_read = isinstance(access.op, ops.READERS) and access.op.ref in plain
        if is_read and not _follows_a_launch(access, stores, module.body):
            _check_read(access, module.body, forms)


def check_written(module: Module) -> None:
    """Refuse an `Out` that starts unwritten and that nothing writes, in a module as it was traced.

    Of dims that are 0 the passes leave no store.
    """
    written = {op.ref for op in walk(module.body) if isinstance(op, ops.WRITERS)}
    for param in module.params:
        if param.role == OUT and param.initial is None and param.value not in written:
            raise UnwrittenRead(
                f"the output `{param.name}` is returned, and nothing writes it",
                (param.span, "it starts unwritten"),
                help=f"`{param.name}[...] = value` writes it, `{param.name} = value` only names a "
                "value; an initial value, `Out[..., 0]`, may stay as it is",
            )


def starting_unwritten(module: Module) -> set[Value]:
    """Return the arrays whose contents no kernel may read before it wrote them."""
    outputs = {p.value for p in module.params if p.role == OUT and p.initial is None}
    return outputs | {op.result for op in module.body.ops if isinstance(op, ops.AllocGmem)}


def _follows_a_launch(access: _Access, stores: list[_Access], body: Block) -> bool:
    """Whether an earlier launch stores to what is read: one of the two is in a pipeline."""
    return any(
        store.op.ref is access.op.ref
        and store.position < access.position
        and any(holds_launch(body.ops[a.position]) for a in (store, access))
        for store in stores
    )


def _accesses(body: Block) -> list[_Access]:
    return [
        _Access(op, axes, position)
        for position, outermost in enumerate(body.ops)
        for op, axes in _inside(outermost, ())
    ]


def _inside(op: Op, axes: tuple[Axis, ...]) -> Iterator[tuple[ops.Window, tuple[Axis, ...]]]:
    if isinstance(op, (ops.Load, ops.Store, ops.Indexed)):
        yield op, axes
    for region in op.regions:
        for inner in region.ops:
            yield from _inside(inner, (*axes, *axes_of(op)))


# Overlaps


def _check_overlaps(accesses: list[_Access], forms: Forms) -> None:
    for first, second in combinations(accesses, 2):
        a, b = first.op, second.op
        if a.ref is not b.ref or first.axes != second.axes or not _in_pipeline(first):
            continue
        if isinstance(a, ops.Indexed) or isinstance(b, ops.Indexed):
            continue  # what indices name is not held on chip: it happens in program order
        stores = isinstance(a, ops.Store) or isinstance(b, ops.Store)
        if stores and not same_window(a, b, forms) and not _disjoint(a, b, forms):
            raise OverlappingWindows(
                f"two windows of `{a.ref.hint}` in one step are neither the same nor disjoint",
                (b.span, "this window"),
                (a.span, "may overlap this one"),
                help="index both by the same expressions, or use windows that never meet",
            )


def _in_pipeline(access: _Access) -> bool:
    """Whether a pipeline is around an access; what none is around happens in program order."""
    return any(isinstance(axis.owner, ops.Pipeline) for axis in access.axes)


def _disjoint(a: ops.Window, b: ops.Window, forms: Forms) -> bool:
    sides = zip(a.starts, b.starts, extents(a), extents(b), a.steps, b.steps, strict=True)
    for x, y, n, m, step, other in sides:
        apart = forms[y] - forms[x]
        if not apart.is_constant:
            continue
        # Steps that share a divisor keep windows apart that do not start at its multiples.
        interleaved = apart.constant % gcd(step, other)
        if interleaved or apart.constant >= n or -apart.constant >= m:
            return True
    return False


# Reads of what is not written


def written_before_read(body: Block, forms: Forms) -> dict[Op, bool]:
    """Return of each load whether its window is written before it, on every way through the body.

    That is in the same step, or in the first step of the axes that revisit the window.
    """
    return {
        access.op: _is_written_first(access, body, forms)
        for access in _accesses(body)
        if isinstance(access.op, ops.Load)
    }


def _is_written_first(access: _Access, body: Block, forms: Forms) -> bool:
    depth = _depth(access, forms)
    scope = access.axes[depth - 1].body if depth else body
    revisits = access.axes[depth:]
    return any(_is_written(access, scope, first, forms) for first in ((), revisits))


def _check_read(access: _Access, body: Block, forms: Forms) -> None:
    if _is_written(access, body, (), forms):
        return
    depth = _depth(access, forms)
    scope = access.axes[depth - 1].body if depth else body
    revisits = [a for k, a in enumerate(access.axes) if k >= depth]
    others = [
        a
        for a in access.axes[:depth]
        if not _depends(access.op, a, forms) and forms[a.high] - forms[a.low] != Form(1)
    ]
    if _is_written(access, scope, revisits, forms):
        if others:
            raise _scattered(access, others, body)
        return
    outer = _outermost(access, others, body)
    if others and _is_written(access, outer, [*others, *revisits], forms):
        raise _scattered(access, others, body)
    is_output = access.op.ref in body.args
    way_out = "write the window first (`if k == 0: out[...] = 0`), carry a tile"
    if isinstance(access.op, ops.Indexed) and is_output:
        way_out = 'give it an initial value (`Out[f32, "M N", 0]`), write it in a pipeline before'
    last = "declare `InOut`" if is_output else "write it in an outermost pipeline before this one"
    raise UnwrittenRead(
        f"`{access.op.ref.hint}` is read here before this window is written",
        (access.op.span, f"{'an `Out`' if is_output else '`GMEM`'} starts unwritten"),
        help=f"{way_out}, or {last}",
    )


def _scattered(access: _Access, others: list[Axis], body: Block) -> ScatteredAccumulation:
    is_output = access.op.ref in body.args
    return ScatteredAccumulation(
        f"`{access.op.ref.hint}` is accumulated into again after other windows came between",
        (access.op.span, "this window comes back after others"),
        (others[0].owner.span, f"axis {others[0].name} does not move it"),
        help="move that axis last, declare the output `InOut`, or use `atomic_add`"
        if is_output
        else "move that axis last, or carry a tile",
    )


def _outermost(access: _Access, others: list[Axis], body: Block) -> Block:
    for axis in access.axes:
        if axis in others:
            return axis.body
    return body


def _depends(op: ops.Window, axis: Axis, forms: Forms) -> bool:
    return any(axis.index in forms.sources(start) for start in op.starts)


def _depth(access: _Access, forms: Forms) -> int:
    """Return how many of the loops around a window decide where it is."""
    moving = [k for k, axis in enumerate(access.axes) if _depends(access.op, axis, forms)]
    return moving[-1] + 1 if moving else 0


def _is_written(access: _Access, scope: Block, first: Iterable[Axis], forms: Forms) -> bool:
    """Whether the window is written on every way to the read.

    The `first` axes have their first value.
    """
    decider = Decider(forms, {a.index: forms[a.low] for a in first}, access.axes)
    path = _Path(access.op, access.axes, decider, is_one_step=not first)
    reached = path.visit(scope, is_written=False)
    assert reached, "the access is in its scope"
    return path.answer


class _Path:
    """A walk in program order to one read, noting whether its window was written.

    Indices may be others in another step: what they name counts if the walk `is_one_step`.
    """

    def __init__(
        self, read: ops.Window, around: tuple[Axis, ...], decider: Decider, *, is_one_step: bool
    ) -> None:
        self.read = read
        self.around = around
        self.decider = decider
        self.is_one_step = is_one_step
        self.answer = False
        self.is_written = False

    def visit(self, block: Block, *, is_written: bool) -> bool:
        """Return whether the read was reached; leave in `is_written` what holds at the end."""
        for op in block.ops:
            if op is self.read:
                self.answer = is_written
                return True
            if isinstance(op, (ops.Store, ops.Scatter)) and op.ref is self.read.ref:
                is_written = is_written or self._covers(op)
            elif op.regions:
                if self._regions(op, is_written):
                    return True
                is_written = self.is_written
        self.is_written = is_written
        return False

    def _covers(self, op: ops.Store | ops.Scatter) -> bool:
        if isinstance(op, ops.Store):
            return covers(op, self.read, self.decider.forms)
        return self.is_one_step and scatter_covers(op, self.read, self.decider.forms)

    def _regions(self, op: Op, is_written: bool) -> bool:
        if isinstance(op, ops.If):
            return self._branches(op, is_written)
        reached = any(self.visit(region, is_written=is_written) for region in op.regions)
        # A loop may run no step.
        self.is_written = is_written or loop_covers(op, self.read, self.around, self.decider.forms)
        return reached

    def _branches(self, op: ops.If, is_written: bool) -> bool:
        truth = self.decider.decide(op.condition)
        ends = []
        for side, taken in ((op.then, True), (op.otherwise, False)):
            if self.visit(side, is_written=is_written):
                # What the first step does not reach cannot read unwritten memory there.
                self.answer = self.answer or truth not in (taken, None)
                return True
            if truth in (taken, None):
                ends.append(self.is_written)
        self.is_written = all(ends)
        return False
