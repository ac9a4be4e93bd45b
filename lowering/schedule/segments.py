"""Cutting a kernel's body into launches, in program order.

Before
    store o[...], a; pipeline (i) { ... }; pipeline (j) { ... }
After
    [store o[...], a] [pipeline (i) { ... }] [pipeline (j) { ... }]

An outermost pipeline is a launch of its own. What else acts on memory, and a pipeline that carries
something out, runs in one block: neighbours of that kind share a launch. Values are recomputed by
the launches that use them, if they read the same there; those that a launch alone can know are its
results, which later launches read from scratch. On-chip memory that one `parallel` alone uses is
allocated by each of its blocks; any other keeps the whole kernel in one block.

Invariant: what an operation reads was written by the same operations as in program order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from astdsl.ir import ops
from astdsl.ir.core import ACTS, Block, Op, Value, walk
from astdsl.ir.effects import changes_memory, effect_of
from astdsl.ir.rewrite import free_values


@dataclass(frozen=True, slots=True)
class Segment:
    """What one launch runs, in program order.

    `acts` are its own operations, positions in the body; `recomputed` are those of others' that it
    repeats, `received` the results of earlier launches that it uses.
    """

    acts: tuple[int, ...]
    recomputed: tuple[int, ...]
    received: tuple[Value, ...]
    is_spread: bool


def cut(body: Sequence[Op]) -> list[Segment]:
    """Return the launches of a kernel's body; none where nothing acts."""
    program = _Program(body)
    own = program.made_by_each_block()
    outside = (k for k, op in enumerate(body) if k not in own and not isinstance(op, ops.Pipeline))
    if any(effect_of(body[k]) == ACTS for k in outside):
        # Barriers, shared memory and groups of copies are a block's own.
        return [Segment(tuple(range(len(body))), (), (), is_spread=False)]
    acting = {k for k, op in enumerate(body) if k not in own and _acts(op)}
    while True:
        groups = program.groups(acting)
        segments = [program.segment(group, groups) for group in groups]
        pinned = {k for s in segments for k in program.misread(s, acting)}
        if not pinned:
            return segments
        acting |= pinned


def cut_grids(body: Sequence[Op]) -> list[Segment]:
    """Return the launches of a program that warpgroups run: each `parallel`, if there is one.

    A block begins with what stands before.
    """
    grids = [
        k for k, op in enumerate(body) if isinstance(op, ops.Pipeline) and ops.SPREAD in op.axes
    ]
    return [
        Segment((k,), tuple(n for n in range(k) if n not in grids), (), is_spread=True)
        for k in grids
    ]


def _acts(op: Op) -> bool:
    """Whether an operation is run once, and not by every launch that uses its results."""
    return isinstance(op, ops.Pipeline) or changes_memory(op)


# On-chip memory and barriers, which a block has for itself.
_ALLOCATIONS = (ops.AllocSmem, ops.AllocBarrier, ops.AllocAccumulator, ops.AllocTmem, ops.Counter)


class _Program:
    def __init__(self, body: Sequence[Op]) -> None:
        self.body = body
        self.makers = {v: k for k, op in enumerate(body) for v in op.results}

    @cached_property
    def used(self) -> set[Value]:
        """Every value that an operation uses."""
        return {v for op in walk(Block(ops=tuple(self.body))) for v in op.operands}

    def made_by_each_block(self) -> set[int]:
        """Return the allocations that only one `parallel` uses: its steps share nothing on chip."""
        users: dict[Value, set[int]] = {}
        for k, op in enumerate(self.body):
            for value in _uses(op):
                users.setdefault(value, set()).add(k)
        found = set()
        for k, op in enumerate(self.body):
            if isinstance(op, _ALLOCATIONS):
                used_by = users.get(op.result, set())
                if len(used_by) <= 1 and all(map(self._is_parallel, used_by)):
                    found.add(k)
        return found

    def _is_parallel(self, position: int) -> bool:
        op = self.body[position]
        return isinstance(op, ops.Pipeline) and ops.SPREAD in op.axes and self.is_alone(position)

    def groups(self, acting: Iterable[int]) -> list[tuple[int, ...]]:
        """Return the positions that act, by launch."""
        found: list[list[int]] = []
        was_alone = True
        for k in sorted(acting):
            is_alone = self.is_alone(k)
            if is_alone or was_alone:
                found.append([])
            found[-1].append(k)
            was_alone = is_alone
        return [tuple(group) for group in found]

    def is_alone(self, position: int) -> bool:
        """Whether an operation is a pipeline that may spread: nothing uses what it carries."""
        op = self.body[position]
        return isinstance(op, ops.Pipeline) and self.used.isdisjoint(op.results)

    def segment(self, group: tuple[int, ...], groups: Sequence[tuple[int, ...]]) -> Segment:
        """Return a launch with what its operations use."""
        elsewhere = {k for other in groups if other is not group for k in other}
        own = set(group)
        recomputed: set[int] = set()
        received: dict[Value, None] = {}
        pending = [self.body[k] for k in group]
        while pending:
            for value in _uses(pending.pop()):
                maker = self.makers.get(value)
                if maker is None or maker in own or maker in recomputed:
                    continue
                if maker in elsewhere:
                    received[value] = None
                else:
                    recomputed.add(maker)
                    pending.append(self.body[maker])
        is_spread = self.is_alone(group[0])
        return Segment(group, tuple(sorted(recomputed)), tuple(received), is_spread)

    def misread(self, segment: Segment, acting: Iterable[int]) -> set[int]:
        """Return what a launch must not recompute: it would read what was written meanwhile."""
        last = segment.acts[-1] if segment.is_spread else segment.acts[0] - 1
        reading = {k: _touched(self.body[k], ops.READERS) for k in segment.recomputed}
        reading = {k: refs for k, refs in reading.items() if refs}
        written = {q: _touched(self.body[q], ops.WRITERS) for q in acting if reading and q <= last}
        return {k for k, refs in reading.items() for q in written if k < q and refs & written[q]}


def _uses(op: Op) -> Iterable[Value]:
    inside = {v: None for region in op.regions for v in free_values(region)}
    return (*op.operands, *inside)


def _touched(op: Op, kinds: tuple[type[ops.Window], ...]) -> set[Value]:
    """Return the memory that an operation accesses in one of some ways."""
    return {w.ref for w in walk(Block(ops=(op,))) if isinstance(w, kinds)}
