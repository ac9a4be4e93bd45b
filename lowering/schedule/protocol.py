"""Checking a schedule when it is built: slots, parities, readers, for every short trip count.

The launch's body is run on numbers alone: tiles have no values, memory no contents, and what a
dim or a load would give is made up. What is kept is the state of every slot (filled by which
phase, read by whom), of every barrier (arrivals, phase, what was waited for), of the products and
the groups of copies in flight. Copies complete at once, so a wait that is not satisfied when it
is reached never will be.

Invariant: a schedule that breaks a rule is our bug, an AssertionError that says which rule, at
which trip count.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.types import SMEM, TileType

# What stands for a dim or an element: large enough that no window of a test is outside.
_MADE_UP = 1 << 20
_OUTER_TRIPS = 2
# Operations that one run looks at: those of loops in loops are many.
_MOST_OPERATIONS = 50_000
Number: TypeAlias = int | float | bool | None
SlotKey: TypeAlias = tuple[Value, int]
_Rule: TypeAlias = Callable[["_Run", Any], None]


def check_protocol(body: Block, trip_counts: Sequence[Value], runners: int = 1) -> None:
    """Run a block's schedule with 0, 1, ..., 2S + 1 steps of its innermost pipelines.

    `trip_counts` are the values that say how many steps each pipeline has, outer before inner;
    S is the largest number of slots of a ring. Of longer loops only the first and last steps are
    run. With `runners`, so many warpgroups run the body, each for itself. Barriers by hand, which
    have no label, are not looked at.
    """
    depths = _depths(body, trip_counts)
    deepest = max(depths.values())
    most = max((op.count for op in walk(body) if isinstance(op, ops.AllocBarrier)), default=0)
    script = _Script(frozenset(depths), 2 * most + 2)
    for trips, runner in product(range(script.longest), range(runners)):
        counts = {v: trips if d == deepest else _OUTER_TRIPS for v, d in depths.items()}
        run = _Run(script, counts, f"{trips} steps", taken=True, warpgroup=runner)
        run.body(body)
        if run.guessed:
            _Run(script, counts, f"{trips} steps", taken=False, warpgroup=runner).body(body)


def _depths(body: Block, wanted: Sequence[Value]) -> dict[Value, int]:
    """Return how many loops are around the making of each trip count."""
    found: dict[Value, int] = {}

    def visit(block: Block, depth: int) -> None:
        for op in block.ops:
            found.update((v, depth) for v in op.results if v in wanted)
            for region in op.regions:
                visit(region, depth + isinstance(op, ops.Loop))

    visit(body, 0)
    return found


@dataclass(slots=True)
class _Slot:
    """A slot of a buffer: the (barrier, index, phase) that fills it, and who still reads it."""

    filled_by: tuple[Value, int, int] | None = None
    readers: int = 0
    read_by_products: set[int] = field(default_factory=set)
    read_by_groups: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Barrier:
    arrivals: int
    pending: int
    phase: int = 0
    waited: int = 0


class _Enough(Exception):
    """A run has looked at as many operations as it may, and found nothing wrong."""


class _Script:
    """What the runs do: the operations of each block that matter, each with its rule.

    No loop of a pipeline has as many as `longest` steps.
    """

    def __init__(self, counted: frozenset[Value], longest: int) -> None:
        self._counted = counted
        self.longest = longest
        self._steps: dict[int, tuple[tuple[_Rule, Op], ...]] = {}

    def steps(self, block: Block) -> tuple[tuple[_Rule, Op], ...]:
        """Return them in order; they are looked for once, since a loop comes back to its block."""
        if id(block) not in self._steps:
            found = ((self._rule(op), op) for op in block.ops)
            self._steps[id(block)] = tuple((rule, op) for rule, op in found if rule)
        return self._steps[id(block)]

    def _rule(self, op: Op) -> _Rule | None:
        rule = _RULES.get(type(op))
        if rule or not op.results or not isinstance(op.results[0].type, TileType):
            return rule
        if op.results[0] in self._counted:
            return _count
        is_number = op.results[0].tile.shape == () and type(op) in _COMPUTE
        return _compute if is_number else None


class _Run:
    """One run over numbers; a condition that they do not decide goes as `taken` says."""

    def __init__(
        self,
        script: _Script,
        counts: dict[Value, int],
        what: str,
        *,
        taken: bool,
        warpgroup: int = 0,
    ) -> None:
        self.script = script
        self.counts = counts
        self.warpgroup = warpgroup
        self.what = what
        self.taken = taken
        self.guessed = False
        self.numbers: dict[Value, Number] = {}
        self.slots: dict[SlotKey, _Slot] = {}
        self.barriers: dict[tuple[Value, int], _Barrier] = {}
        self.counters: dict[Value, int] = {}
        self.looked_at = 0
        self.products = self.groups = 0
        self.products_done = self.groups_done = 0

    def body(self, block: Block) -> None:
        """Run a block, and check that it leaves nothing behind."""
        try:
            self.run(block)
        except _Enough:
            return
        self.demand(self.products_done == self.products, "products in flight at the exit")
        self.demand(self.groups_done == self.groups, "copies out in flight at the exit")
        for (barrier, index), state in self.barriers.items():
            clean = state.waited == state.phase and state.pending == state.arrivals
            self.demand(clean, f"barrier {barrier}[{index}] is left with copies nobody waits for")

    def run(self, block: Block) -> tuple[Number, ...]:
        """Run the operations of a region; return what it yields."""
        steps = self.script.steps(block)
        self.looked_at += len(steps)
        if self.looked_at > _MOST_OPERATIONS:
            raise _Enough
        for rule, op in steps:
            rule(self, op)
        last = block.ops[-1] if block.ops else None
        return tuple(map(self.numbers.get, last.values)) if isinstance(last, ops.Yield) else ()

    def demand(self, holds: bool, complaint: str) -> None:
        """Fail unless a rule holds."""
        assert holds, f"a schedule is wrong with {self.what}: {complaint}"

    def number(self, value: Value) -> int:
        """Return an index as a number; one that memory would tell is made up."""
        found = self.numbers.get(value)
        return _MADE_UP if found is None else int(found)

    def is_by_hand(self, op: Any) -> bool:
        """Whether an operation names a barrier that is not the schedule's."""
        return (op.barrier, 0) not in self.barriers

    def barrier(self, op: Any) -> _Barrier:
        """Return the barrier that an operation names, and check its index."""
        key = (op.barrier, self.number(op.index))
        self.demand(key in self.barriers, f"there is no barrier {key}")
        return self.barriers[key]

    def slot(self, buffer: Value, lead: Iterable[Value]) -> _Slot:
        """Return a slot of a buffer."""
        numbers = [self.number(v) for v in lead]
        return self.slots.setdefault((buffer, numbers[0] if numbers else 0), _Slot())

    def release(self) -> None:
        """Let every thread pass a barrier of the block: what it has read, it has read."""
        for slot in self.slots.values():
            slot.readers = 0

    def writable(self, slot: _Slot, what: str) -> None:
        """Demand that nobody reads a slot any more."""
        self.demand(not slot.readers, f"{what} overwrites a slot that threads may still read")
        products = {n for n in slot.read_by_products if n >= self.products_done}
        self.demand(not products, f"{what} overwrites a slot that a product still reads")
        groups = {n for n in slot.read_by_groups if n >= self.groups_done}
        self.demand(not groups, f"{what} overwrites a slot that a copy out still reads")

    def readable(self, slot: _Slot, what: str) -> None:
        """Demand that a slot has been filled, and the filling waited for."""
        if slot.filled_by is None:
            return
        barrier, index, phase = slot.filled_by
        waited = self.barriers[barrier, index].waited
        self.demand(waited > phase, f"{what} reads a slot before its copy was waited for")


def _count(run: _Run, op: Op) -> None:
    run.numbers[op.results[0]] = run.counts[op.results[0]]


def _compute(run: _Run, op: Op) -> None:
    operands = [run.numbers.get(v) for v in op.operands]
    run.numbers[op.results[0]] = None if None in operands else _COMPUTE[type(op)](op, *operands)


def _if(run: _Run, op: ops.If) -> None:
    condition = run.numbers.get(op.condition)
    run.guessed = run.guessed or condition is None
    taken = run.taken if condition is None else bool(condition)
    run.numbers.update(zip(op.results, run.run(op.then if taken else op.otherwise), strict=True))


def _for(run: _Run, op: ops.For) -> None:
    carried = [run.numbers.get(v) for v in op.initial]
    low, high, step = (run.number(v) for v in (op.low, op.high, op.step))
    # A loop of unknown length is walked twice: enough to meet its own beginning.
    steps = range(_OUTER_TRIPS) if run.numbers.get(op.high) is None else range(low, high, step)
    long = len(steps) > run.script.longest
    for index in (*steps[:_OUTER_TRIPS], *steps[-_OUTER_TRIPS:]) if long else steps:
        run.numbers.update(zip(op.body.args, (index, *carried), strict=True))
        carried = list(run.run(op.body))
    run.numbers.update(zip(op.results, carried, strict=True))


def _while(run: _Run, op: ops.While) -> None:
    carried = [run.numbers.get(v) for v in op.initial]
    for _ in range(_OUTER_TRIPS):
        run.numbers.update(zip(op.body.args, carried, strict=True))
        carried = list(run.run(op.body))
    run.numbers.update(zip(op.results, carried, strict=True))


def _phase(run: _Run, op: ops.Phase) -> None:
    run.numbers.update(zip(op.results, run.run(op.body), strict=True))


def _counter(run: _Run, op: ops.Counter) -> None:
    run.counters[op.result] = 0


def _counter_read(run: _Run, op: ops.CounterRead) -> None:
    run.numbers[op.result] = run.counters[op.counter]


def _counter_add(run: _Run, op: ops.CounterAdd) -> None:
    run.counters[op.counter] += run.number(op.amount)


def _alloc_barrier(run: _Run, op: ops.AllocBarrier) -> None:
    for index in range(op.count if op.label else 0):
        run.barriers[op.result, index] = _Barrier(op.arrivals, op.arrivals)


def _copy_in(run: _Run, op: ops.CopyIn) -> None:
    if run.is_by_hand(op):
        return
    slot, barrier = run.slot(op.buffer, op.slot), run.barrier(op)
    run.writable(slot, "copy_in")
    slot.filled_by = (op.barrier, run.number(op.index), barrier.phase)
    _arrive(run, barrier)


def _arrive(run: _Run, barrier: _Barrier) -> None:
    run.demand(barrier.waited == barrier.phase, "a phase begins before the last one was awaited")
    barrier.pending -= 1
    if barrier.pending == 0:
        barrier.phase += 1
        barrier.pending = barrier.arrivals


def _barrier_arrive(run: _Run, op: ops.BarrierArrive) -> None:
    run.release()
    if not run.is_by_hand(op):
        _arrive(run, run.barrier(op))


def _barrier_wait(run: _Run, op: ops.BarrierWait) -> None:
    if run.is_by_hand(op):
        return
    barrier = run.barrier(op)
    complete = barrier.phase % 2 != run.number(op.parity)
    run.demand(complete, "a wait for a phase that nothing completes")
    barrier.waited = barrier.phase


def _load(run: _Run, op: ops.Load) -> None:
    if op.ref.ref.space == SMEM:
        slot = run.slot(op.ref, _lead(op))
        run.readable(slot, "a load")
        slot.readers += 1
    run.numbers[op.result] = None


def _lead(op: ops.Window) -> Sequence[Value]:
    """Return the starts along the axes that a window drops in front: the slot."""
    return op.starts[: next((k for k, kept in enumerate(op.kept) if kept), len(op.kept))]


def _store(run: _Run, op: ops.Store) -> None:
    if op.ref.ref.space == SMEM:
        slot = run.slot(op.ref, _lead(op))
        run.writable(slot, "a store")
        slot.filled_by = None


def _indexed(run: _Run, op: ops.Indexed) -> None:
    """Read, or write, every slot that has been in use: indices may name any."""
    slots = [slot for (buffer, _), slot in run.slots.items() if buffer is op.ref]
    for slot in slots or [run.slot(op.ref, ())] if op.ref.ref.space == SMEM else ():
        run.readable(slot, "an indexed access")
        if isinstance(op, ops.WRITERS):
            run.writable(slot, "an indexed access")
        else:
            slot.readers += 1
    run.numbers.update(dict.fromkeys(op.results))


def _copy_out(run: _Run, op: ops.CopyOut) -> None:
    slot = run.slot(op.buffer, op.slot)
    run.readable(slot, "copy_out")
    slot.read_by_groups.add(run.groups)


def _commit_group(run: _Run, op: ops.CommitGroup) -> None:
    run.groups += 1


def _wait_group(run: _Run, op: ops.WaitGroup) -> None:
    run.groups_done = max(run.groups_done, run.groups - op.pending)
    if op.meets:
        run.release()


def _block_barrier(run: _Run, op: ops.BlockBarrier) -> None:
    run.release()


def _multiply(run: _Run, op: ops.MatrixMultiply) -> None:
    for buffer, lead in ((op.a, op.a_slot), (op.b, op.b_slot)):
        if isinstance(buffer.type, TileType):
            continue
        slot = run.slot(buffer, lead)
        run.readable(slot, "a product")
        slot.read_by_products.add(run.products)
        slot.readers += 1
    run.products += 1


def _multiply_scaled(run: _Run, op: ops.ScaledMultiply) -> None:
    for buffer, lead in ((op.a_scale, op.a_scale_slot), (op.b_scale, op.b_scale_slot)):
        slot = run.slot(buffer, lead)
        run.readable(slot, "a product")
        slot.read_by_products.add(run.products)
        slot.readers += 1
    _multiply(run, op)


def _shared_dot(run: _Run, op: ops.SharedDot) -> None:
    for buffer, lead in ((op.a, op.a_slot), (op.b, op.b_slot)):
        if isinstance(buffer.type, TileType):
            continue
        slot = run.slot(buffer, lead)
        run.readable(slot, "a product")
        slot.readers += 1


def _product_wait(run: _Run, op: ops.ProductWait) -> None:
    run.products_done = max(run.products_done, run.products - op.pending)


def _accumulator(run: _Run, op: Op) -> None:
    run.demand(
        run.products_done == run.products, "an accumulator is touched with products in flight"
    )


def _warpgroup_id(run: _Run, op: ops.WarpgroupId) -> None:
    run.numbers[op.result] = run.warpgroup


def _warps(run: _Run, op: ops.Warps) -> None:
    """Run what the warps do as one: a schedule writes nothing of its own there."""
    run.run(op.body)


_RULES: dict[type[Op], _Rule] = {
    ops.If: _if,
    ops.For: _for,
    ops.While: _while,
    ops.Phase: _phase,
    ops.Warps: _warps,
    ops.WarpgroupId: _warpgroup_id,
    ops.Counter: _counter,
    ops.CounterRead: _counter_read,
    ops.CounterAdd: _counter_add,
    ops.AllocBarrier: _alloc_barrier,
    ops.CopyIn: _copy_in,
    ops.CopyOut: _copy_out,
    ops.CommitGroup: _commit_group,
    ops.WaitGroup: _wait_group,
    ops.BarrierArrive: _barrier_arrive,
    ops.BarrierWait: _barrier_wait,
    ops.BlockBarrier: _block_barrier,
    ops.Load: _load,
    ops.Store: _store,
    ops.Gather: _indexed,
    ops.Scatter: _indexed,
    ops.Atomic: _indexed,
    ops.MatrixMultiply: _multiply,
    ops.ScaledMultiply: _multiply_scaled,
    ops.SharedDot: _shared_dot,
    ops.ProductWait: _product_wait,
    ops.AccumulatorRead: _accumulator,
    ops.AccumulatorWrite: _accumulator,
}

_COMPUTE: dict[type[Op], Callable[..., Number]] = {
    ops.Constant: lambda op: op.value,
    ops.Dim: lambda op: _MADE_UP,
    ops.Add: lambda op, x, y: x + y,
    ops.Subtract: lambda op, x, y: x - y,
    ops.Multiply: lambda op, x, y: x * y,
    ops.FloorDivide: lambda op, x, y: x // y if y else 0,
    ops.Remainder: lambda op, x, y: x % y if y else 0,
    ops.Negate: lambda op, x: -x,
    ops.Minimum: lambda op, x, y: min(x, y),
    ops.Maximum: lambda op, x, y: max(x, y),
    ops.Cast: lambda op, x: x,
    ops.Compare: lambda op, x, y: getattr(operator, op.predicate)(x, y),
    ops.Select: lambda op, c, x, y: x if c else y,
    ops.BitAnd: lambda op, x, y: x & y,
    ops.BitOr: lambda op, x, y: x | y,
    ops.Invert: lambda op, x: not x,
}
