"""Scheduling what one block does: a walk that rewrites pipelines, products and stores.

Before
    launch { pipeline (k) { a = load ...; acc' = acc + a @ b }; store c, acc }
After
    launch { ring, barriers; prologue { copy_in ... }; steady { wait; multiply; ... }; ... }

Invariant: operations are written in program order; only copies of windows that nothing in an
unfinished step can change are issued ahead of theirs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.rewrite import clone_op, replace_fields
from astdsl.ir.types import GMEM
from astdsl.lowering.schedule.build import Maker
from astdsl.lowering.schedule.copies_out import slots_of, tile_bytes
from astdsl.lowering.schedule.independence import Index, index_of
from astdsl.lowering.schedule.reach import runs_of
from astdsl.lowering.schedule.signs import Signs
from astdsl.lowering.target import Target
from astdsl.lowering.windows import Forms

_Handler: TypeAlias = Callable[["BlockScheduler", Any], None]
_HANDLERS: dict[type[Op], _Handler] = {}


def schedules(*kinds: type[Op]) -> Callable[[_Handler], _Handler]:
    """Register how an operation of the pipeline level is scheduled."""

    def register(handler: _Handler) -> _Handler:
        for kind in kinds:
            assert kind not in _HANDLERS, f"two schedules for {kind.__name__}"
            _HANDLERS[kind] = handler
        return handler

    return register


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a staged tile is: a buffer, and which of its slots."""

    buffer: Value
    slot: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class LoopFrame:
    """A loop being walked: its index, and the values that change in it."""

    index: Index
    inside: set[Value]


@dataclass(frozen=True, slots=True)
class Steps:
    """A pipeline whose steps are being written: the number of the present one, and of all.

    `outside` is what stands for the values around the pipeline.
    """

    op: ops.Pipeline
    number: Value
    total: Value
    outside: dict[Value, Value]


class BlockScheduler:
    """The state of scheduling one block: where to write, and what is known of the program."""

    def __init__(self, launch: ops.Launch, target: Target) -> None:
        self.target = target
        self.forms = Forms(launch.body)
        self.signs = Signs(launch.body, self.forms, launch.body.args, launch.warpgroups)
        self.values: dict[Value, Value] = {}
        self.slots: dict[Value, Slot] = {}
        self.accumulators: dict[Value, Value] = {}
        self.absorbed: set[Op] = set()
        # Products that are written where they are added to something, by their results.
        self.late_products: dict[Value, ops.Dot] = {}
        # The accumulators of products that are read as soon as they are done.
        self.computed: dict[Value, Value] = {}
        self._program: Sequence[Op] = ()
        self.loops: list[LoopFrame] = []
        self.steps: list[Steps] = []
        self.allocations = Maker(launch.span)
        self.stores_asynchronously = False
        self.trip_counts: list[Value] = []
        self._deferred: dict[Value, Callable[[], None]] = {}
        self.users: dict[Value, list[Op]] = defaultdict(list)
        self.written: set[Value] = set()
        self.read: set[Value] = set()
        # How many pipelines share what is left for rings.
        self.pipelines = 0
        # What shared memory holds besides rings: slots of copies out, and own buffers.
        self.other_bytes = 0
        self._makers: list[Maker] = []
        runs = runs_of(launch)
        repeated = set(_repeated(launch.body))
        for op in walk(launch.body):
            self._note(op, runs[op], op in repeated)

    def _note(self, op: Op, runs: int, is_in_loop: bool) -> None:
        """Note an operation that `runs` warpgroups run, each with rings of its own."""
        for operand in op.operands:
            self.users[operand].append(op)
        if isinstance(op, ops.WRITERS) and op.ref.ref.space == GMEM:
            self.written.add(op.ref)
            self.other_bytes += runs * _copied_out_bytes(op, is_in_loop)
        if isinstance(op, ops.READERS):
            self.read.add(op.ref)
        if isinstance(op, ops.AllocSmem):
            self.other_bytes += math.prod(op.shape) * op.dtype.bytes
        self.pipelines += runs * (isinstance(op, ops.Pipeline) and _may_have_rings(op))

    @property
    def maker(self) -> Maker:
        """Where operations are written now."""
        return self._makers[-1]

    @contextmanager
    def writing(self, maker: Maker) -> Iterator[Maker]:
        """Write to another list for a while."""
        self._makers.append(maker)
        yield maker
        self._makers.pop()

    def value(self, old: Value) -> Value:
        """Return what stands for a value of the program."""
        return self.values.get(old, old)

    def each(self, old: Sequence[Value]) -> tuple[Value, ...]:
        """Return what stands for several values."""
        return tuple(map(self.value, old))

    def run(self, program: Sequence[Op]) -> None:
        """Schedule operations one after the other; leave nothing deferred behind."""
        outer, self._program = self._program, program
        for op in program:
            self.step(op)
        self._program = outer
        self.catch_up()

    def only_user(self, value: Value) -> Op | None:
        """Return the one use of a value, if it is one and stands in the list being walked."""
        users = self.users[value]
        return users[0] if len(users) == 1 and users[0] in self._program else None

    def step(self, op: Op) -> None:
        """Schedule one operation; one without a rule is copied."""
        if self._deferred:
            self._catch_up(op)
        self.maker.span = op.span
        handler = _HANDLERS.get(type(op))
        if handler:
            handler(self, op)
        else:
            self.copy(op)

    def defer(self, value: Value, write: Callable[[], None]) -> None:
        """Write something only where a value is first used, or a region begins or ends."""
        self._deferred[value] = write

    def _catch_up(self, op: Op) -> None:
        """Write what was deferred and this operation needs."""
        needed = list(self._deferred) if op.regions else op.operands
        for value in needed:
            write = self._deferred.pop(value, None)
            if write:
                write()

    def catch_up(self) -> None:
        """Write everything that was deferred."""
        for value in list(self._deferred):
            self._deferred.pop(value)()

    def copy(self, op: Op) -> None:
        """Copy an operation; what its regions hold is scheduled too."""
        self.maker.add_op(clone_op(op, self.values))

    def region(self, block: Block) -> Block:
        """Schedule a region."""
        args = [Value(v.type, v.hint) for v in block.args]
        self.values.update(zip(block.args, args, strict=True))
        with self.writing(Maker(self.maker.span)) as maker:
            self.run(block.ops[:-1])
        return maker.block(self.each(ops.yielded(block)), args)

    @contextmanager
    def loop(self, *frames: LoopFrame) -> Iterator[None]:
        """Walk inside a loop, or inside several at once."""
        outside = self.loops
        self.loops = [*outside, *frames]
        yield
        self.loops = outside

    @contextmanager
    def stepping(self, steps: Steps) -> Iterator[None]:
        """Write a step of a pipeline."""
        self.steps.append(steps)
        yield
        self.steps.pop()


@schedules(ops.If)
def _if(scheduler: BlockScheduler, op: ops.If) -> None:
    condition = scheduler.value(op.condition)
    then, otherwise = scheduler.region(op.then), scheduler.region(op.otherwise)
    new = replace_fields(op, condition=condition, then=then, otherwise=otherwise)
    scheduler.maker.add_op(new)
    scheduler.values.update(zip(op.results, new.results, strict=True))


@schedules(ops.For)
def _for(scheduler: BlockScheduler, op: ops.For) -> None:
    low, high, step = scheduler.each((op.low, op.high, op.step))
    bounds = (scheduler.forms[v] for v in (op.low, op.high, op.step))
    frame = LoopFrame(index_of(op.body.args[0], *bounds), inside(op.body))
    initial = scheduler.each(op.initial)
    with scheduler.loop(frame):
        body = scheduler.region(op.body)
    new = replace_fields(op, low=low, high=high, step=step, initial=initial, body=body)
    scheduler.maker.add_op(new)
    scheduler.values.update(zip(op.results, new.results, strict=True))


@schedules(ops.While)
def _while(scheduler: BlockScheduler, op: ops.While) -> None:
    initial = scheduler.each(op.initial)
    # No index tells the steps of a `while` apart: whatever it stores, it may store again.
    nothing = Value(op.condition.ops[-1].operands[0].type)
    with scheduler.loop(LoopFrame(Index(nothing, None, None), inside(op.body))):
        condition, body = scheduler.region(op.condition), scheduler.region(op.body)
    new = replace_fields(op, initial=initial, condition=condition, body=body)
    scheduler.maker.add_op(new)
    scheduler.values.update(zip(op.results, new.results, strict=True))


def inside(block: Block) -> set[Value]:
    """Return the values that a region makes, its arguments too."""
    found = set(block.args)
    for op in walk(block):
        found.update(op.results)
        for region in op.regions:
            found.update(region.args)
    return found


def _repeated(block: Block) -> Iterator[Op]:
    """Yield the operations that stand in loops."""
    for op in block.ops:
        for region in op.regions:
            yield from walk(region) if isinstance(op, ops.Loop) else _repeated(region)


def _may_have_rings(op: ops.Pipeline) -> bool:
    """Whether windows of global memory are loaded in the body of a pipeline."""
    loads = (load for load in op.body.ops if isinstance(load, ops.Load))
    return any(load.ref.ref.space == GMEM for load in loads)


def _copied_out_bytes(op: Op, is_in_loop: bool) -> int:
    """Return what the slots of a store's window take."""
    if not isinstance(op, ops.Store):
        return 0
    return slots_of(op.value.tile, is_in_loop=is_in_loop) * tile_bytes(op.value.tile)
