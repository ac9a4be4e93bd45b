"""Pipelines as rings of slots that are filled ahead: prologue, steady state, epilogue.

Before
    pipeline (k) { a = load x[k]; ... }
After
    prologue { for the first `ahead` steps: copy_in x[k] -> slot[c % stages], full[c % stages] }
    steady   { for every step: wait full; ... slot ...; when it is free: copy_in `ahead` later }
    epilogue { products are done; the ring's counter moves on }

One formula gives everything: the copy with number c, counted on this ring since the block began,
goes to slot `c % stages` and completes phase `c // stages` of that slot's barrier.

Invariant: a slot is refilled only after the barrier of the block that follows its last reader; a
product in flight is a reader until it has been waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from astdsl.ir import ops
from astdsl.ir.core import Block, Value
from astdsl.ir.types import GMEM
from astdsl.lowering.buffers import RING_LABEL
from astdsl.lowering.schedule.accumulation import Accumulation, accumulations, begin, finish
from astdsl.lowering.schedule.block import BlockScheduler, LoopFrame, Slot, inside, schedules
from astdsl.lowering.schedule.build import Maker, loop, recompute
from astdsl.lowering.schedule.independence import indices_of
from astdsl.lowering.schedule.odometer import Odometer
from astdsl.lowering.schedule.slots import read_slot
from astdsl.lowering.tensor_maps import why_not

MOST_AUTOMATIC_STAGES = 4
# Kept free for what leaves the block, and for tiles that change their layout.
RESERVED_BYTES = 68 * 1024
# For barriers and the alignment of buffers.
MARGIN_BYTES = 4 * 1024
# A smaller window is loaded into registers straight away: a copy and its barrier cost more.
LEAST_COPY_BYTES = 2048


@dataclass(slots=True)
class Ring:
    """The buffers of a pipeline's staged loads, one slot a stage, and their full barriers."""

    loads: list[ops.Load]
    stages: int
    ahead: int
    counter: Value
    buffers: list[Value]
    full: Value
    base: Value | None = None

    def place(self, maker: Maker, step: Value) -> tuple[Value, Value]:
        """Return the slot and the parity of the copy for a step of this execution."""
        assert self.base is not None, "the ring's counter has been read"
        number, stages = maker.add(self.base, step), maker.number(self.stages)
        slot = maker.remainder(number, stages)
        parity = maker.remainder(maker.divide(number, stages), maker.number(2))
        slot.hint, parity.hint = "slot", "parity"
        return slot, parity


@schedules(ops.Pipeline)
def _pipeline(scheduler: BlockScheduler, op: ops.Pipeline) -> None:
    _Expansion(scheduler, op).write()


class _Expansion:
    """One pipeline being turned into phases."""

    def __init__(self, scheduler: BlockScheduler, op: ops.Pipeline) -> None:
        self.scheduler = scheduler
        self.op = op
        self.inside = inside(op.body)
        # What stands for the values outside, before the walk of the body adds its own.
        self.outside = dict(scheduler.values)
        self.rank = len(op.lows)
        self.loads = [load for load in _loads(op.body) if self._is_staged(load)]
        self.products: list[Accumulation] = accumulations(scheduler, op)
        maker = scheduler.maker
        bounds = zip(*map(scheduler.each, (op.lows, op.highs, op.steps)), strict=True)
        self.counts = [maker.trip_count(*axis) for axis in bounds]
        self.odometer = Odometer(self.counts)
        self.total = self.counts[0]
        for count in self.counts[1:]:
            self.total = maker.multiply(self.total, count)
        self.total.hint = "steps"
        scheduler.trip_counts.append(self.total)

    def _is_staged(self, op: ops.Load) -> bool:
        """Whether a load is issued ahead: nothing in an unfinished step can change its window."""
        if not is_unchanging(self.scheduler, op):
            return False
        indices = set(self.op.body.args[: self.rank])
        sources = set().union(*map(self.scheduler.forms.sources, op.starts))
        return bool(sources & indices) and not sources & self.inside - indices

    # Writing

    def write(self) -> None:
        """Write the pipeline; one with products in a branch of its own, taken if it has steps.

        There the wait for the products follows them on every way, so that nothing but products
        defines their registers in flight (else ptxas serialises wgmma, C7515).
        """
        if not self.products:
            self._phases()
            return
        scheduler, outer = self.scheduler, self.scheduler.maker
        runs = outer.compare("gt", self.total, outer.number(0))
        initial = scheduler.each(self.op.initial)
        with scheduler.writing(Maker(self.op.span)) as then:
            self._phases()
        done = outer.add_op(
            ops.If(
                span=self.op.span,
                condition=runs,
                then=then.block(scheduler.each(self.op.results)),
                otherwise=Maker(self.op.span).block(initial),
            )
        )
        scheduler.values.update(zip(self.op.results, done.results, strict=True))

    def _phases(self) -> None:
        """Write the three phases."""
        ring = self._ring() if self.loads else None
        for product in self.products:
            begin(self.scheduler, product)
        carried = self._carried_positions()
        initial = [self.scheduler.value(self.op.initial[k]) for k in carried]
        issued: tuple[Value, ...] = ()
        if ring:
            ring.base = self._read(ring)
            issued = self._prologue(ring)
        results = self._steady(ring, initial, issued)
        self._epilogue(ring)
        for k, result in zip(carried, results, strict=False):
            self.scheduler.values[self.op.results[k]] = result

    def _carried_positions(self) -> list[int]:
        held = {product.position for product in self.products}
        return [k for k in range(len(self.op.initial)) if k not in held]

    def _read(self, ring: Ring) -> Value:
        maker = self.scheduler.maker
        base = maker.add_op(ops.CounterRead(span=maker.span, counter=ring.counter)).result
        base.hint = "base"
        return base

    def _ring(self) -> Ring:
        """Allocate the ring: at the start of the block, once."""
        resting = self.scheduler.slots.keys() - self.inside
        reads_ahead = all(p.reads_slots(self.loads, resting) for p in self.products)
        stages = self.op.stages or self._automatic_stages()
        in_flight = 1 if self.products and reads_ahead and stages > 1 else 0
        maker = self.scheduler.allocations
        span = self.op.span
        buffers = [
            maker.add_op(
                ops.AllocSmem(
                    span=load.span,
                    shape=(stages, *load.window_type.shape),
                    dtype=load.window_type.dtype,
                    label=f"{RING_LABEL} {load.ref.hint or 'window'}",
                )
            ).result
            for load in self.loads
        ]
        full = maker.add_op(
            ops.AllocBarrier(span=span, count=stages, arrivals=len(self.loads), label="full")
        ).result
        counter = maker.add_op(ops.Counter(span=span)).result
        for load, buffer in zip(self.loads, buffers, strict=True):
            buffer.hint = f"{load.ref.hint}_ring"
        full.hint, counter.hint = "full", "copies"
        return Ring(self.loads, stages, stages - in_flight, counter, buffers, full)

    def _automatic_stages(self) -> int:
        """Return as many stages as fit, at most four."""
        each = sum(load.window_type.elements * load.window_type.dtype.bytes for load in self.loads)
        reserved = max(RESERVED_BYTES, self.scheduler.other_bytes + MARGIN_BYTES)
        limit = self.scheduler.target.shared_bytes_per_block - reserved
        share = limit // max(1, self.scheduler.pipelines)
        return max(1, min(MOST_AUTOMATIC_STAGES, share // max(1, each)))

    def _prologue(self, ring: Ring) -> tuple[Value, ...]:
        """Fill the first `ahead` slots; return the odometer behind them."""
        outer = self.scheduler.maker
        phase = Maker(self.op.span)
        count = phase.minimum(self.total, phase.number(ring.ahead))

        def fill(body: Maker, step: Value, carried: Sequence[Value]) -> Sequence[Value]:
            self._issue(body, ring, step, self.odometer.numbers(step, carried))
            return self.odometer.advance(body, carried)

        numbers = loop(phase, count, self.odometer.start(phase), fill)
        return _phase(outer, "prologue", phase, numbers)

    def _issue(self, maker: Maker, ring: Ring, step: Value, numbers: Sequence[Value]) -> None:
        """Write the copies of one step."""
        slot, _ = ring.place(maker, step)
        indices = self._indices(maker, numbers)
        mapping = dict(self.outside)
        mapping.update(zip(self.op.body.args[: self.rank], indices, strict=True))
        for load, buffer in zip(ring.loads, ring.buffers, strict=True):
            starts = tuple(self._start(maker, start, mapping) for start in load.starts)
            maker.add_op(
                ops.CopyIn(
                    span=load.span,
                    ref=self.scheduler.value(load.ref),
                    starts=starts,
                    sizes=load.sizes,
                    steps=load.steps,
                    kept=load.kept,
                    buffer=buffer,
                    slot=(slot,),
                    barrier=ring.full,
                    index=slot,
                )
            )

    def _indices(self, maker: Maker, numbers: Sequence[Value]) -> list[Value]:
        found = []
        for axis, number in enumerate(numbers):
            low, step = self.scheduler.each((self.op.lows[axis], self.op.steps[axis]))
            index = maker.add(low, maker.multiply(number, step))
            index.hint = self.op.body.args[axis].hint
            found.append(index)
        return found

    def _start(self, maker: Maker, start: Value, mapping: dict[Value, Value]) -> Value:
        return recompute(maker, start, self.scheduler.forms, self.inside, mapping)

    def _steady(
        self, ring: Ring | None, initial: Sequence[Value], issued: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        outer, phase = self.scheduler.maker, Maker(self.op.span)
        start = self.odometer.start(phase)
        carried = [*initial, *start, *issued]

        def step(body: Maker, number: Value, values: Sequence[Value]) -> Sequence[Value]:
            user = values[: len(initial)]
            mine = values[len(initial) : len(initial) + len(start)]
            theirs = values[len(initial) + len(start) :]
            self._bind(body, self._indices(body, self.odometer.numbers(number, mine)), user)
            self._body(body, ring, number, theirs)
            leaving = ops.yielded(self.op.body)
            kept = [self.scheduler.value(leaving[k]) for k in self._carried_positions()]
            moved = self.odometer.advance(body, mine)
            return [*kept, *moved, *(self.odometer.advance(body, theirs) if ring else ())]

        with self.scheduler.loop(*self._frames()):
            results = loop(phase, self.total, carried, step, "step")
        return _phase(outer, "steady", phase, results)

    def _frames(self) -> list[LoopFrame]:
        """Describe the loop: one frame an axis."""
        indices = indices_of(self.op, self.scheduler.forms)
        return [LoopFrame(index, self.inside) for index in indices]

    def _bind(self, body: Maker, indices: Sequence[Value], user: Sequence[Value]) -> None:
        args = self.op.body.args
        values = self.scheduler.values
        values.update(zip(args[: self.rank], indices, strict=True))
        places = (args[self.rank + k] for k in self._carried_positions())
        values.update(zip(places, user, strict=True))

    def _body(self, body: Maker, ring: Ring | None, number: Value, theirs: Sequence[Value]) -> None:
        """Write one step: wait, work, and refill what is free."""
        program = self.op.body.ops[:-1]
        with self.scheduler.writing(body):
            if ring is None:
                self.scheduler.run(program)
                self._wait_for_products(body)
                return
            slot, parity = ring.place(body, number)
            body.add_op(
                ops.BarrierWait(span=self.op.span, barrier=ring.full, index=slot, parity=parity)
            )
            for load, buffer in zip(ring.loads, ring.buffers, strict=True):
                self.scheduler.slots[load.result] = Slot(buffer, (slot,))
            cut = self._last_reader(program)
            self.scheduler.run(program[:cut])
            self._wait_for_products(body, in_flight=ring.stages - ring.ahead)
            self._refill(body, ring, number, theirs)
            self.scheduler.run(program[cut:])

    def _wait_for_products(self, body: Maker, in_flight: int = 0) -> None:
        if self.products:
            pending = in_flight * len(self.products)
            body.add_op(ops.ProductWait(span=self.op.span, pending=pending))

    def _last_reader(self, program: Sequence[object]) -> int:
        """Return where every slot has been read: behind the last load, or at the end."""
        staged = {load.result for load in self.loads}
        users = [u for value in staged for u in self.scheduler.users[value]]
        if self.products or any(isinstance(u, (ops.Dot, ops.Transpose)) for u in users):
            return len(program)
        return 1 + max(k for k, op in enumerate(program) if op in self.loads)

    def _refill(self, body: Maker, ring: Ring, number: Value, theirs: Sequence[Value]) -> None:
        """Issue the copies of the step that is `ahead`, once every thread is done with the slot."""
        body.add_op(ops.BlockBarrier(span=self.op.span))
        following = body.add(number, body.number(ring.ahead))
        more = body.compare("lt", following, self.total)
        numbers = self.odometer.numbers(following, theirs)
        body.when(more, lambda then: self._issue(then, ring, following, numbers))

    def _epilogue(self, ring: Ring | None) -> None:
        maker, phase = self.scheduler.maker, Maker(self.op.span)
        with self.scheduler.writing(phase):
            if ring:
                add = ops.CounterAdd(span=self.op.span, counter=ring.counter, amount=self.total)
                phase.add_op(add)
            read = finish(self.scheduler, self.products)
        values = _phase(maker, "epilogue", phase, read)
        for product, value in zip(self.products, values, strict=True):
            self.scheduler.values[self.op.results[product.position]] = value


def _loads(block: Block) -> Iterator[ops.Load]:
    return (op for op in block.ops if isinstance(op, ops.Load))


def _phase(maker: Maker, name: str, body: Maker, values: Sequence[Value]) -> tuple[Value, ...]:
    """Write a phase whose results are `values`."""
    op = ops.Phase(span=body.span, name=name, body=body.block(values))
    results: tuple[Value, ...] = maker.add_op(op).results
    for result, value in zip(results, values, strict=True):
        result.hint = value.hint
    return results


@schedules(ops.Load)
def _load(scheduler: BlockScheduler, op: ops.Load) -> None:
    """Read a staged tile from its slot, unless only products use it: they read it there."""
    slot = scheduler.slots.get(op.result)
    only_products = reads_only_in_products(scheduler, op.result)
    if slot is None and is_unchanging(scheduler, op) and (only_products or _is_large(op)):
        wait, slot = stage_once(scheduler, op)
        scheduler.defer(op.result, lambda: _arrived(scheduler, op, wait, slot, only_products))
    elif slot is None:
        scheduler.copy(op)
    elif not only_products:
        read_slot(scheduler, op, slot)


def _is_large(op: ops.Load) -> bool:
    tile = op.window_type
    return tile.elements * tile.dtype.bytes >= LEAST_COPY_BYTES


def _arrived(
    scheduler: BlockScheduler, op: ops.Load, wait: ops.BarrierWait, slot: Slot, in_place: bool
) -> None:
    scheduler.maker.add_op(wait)
    if not in_place:
        read_slot(scheduler, op, slot)


def is_unchanging(scheduler: BlockScheduler, op: ops.Load) -> bool:
    """Whether TMA can read the window, and no write of the launch touches the array."""
    if op.ref.ref.space != GMEM or op.fill != 0 or op.ref in scheduler.written:
        return False
    return not why_not(op.ref.ref, op.sizes, op.steps)


def stage_once(scheduler: BlockScheduler, op: ops.Load) -> tuple[ops.BarrierWait, Slot]:
    """Start copying a window into a buffer of its own; return the wait for it, and the slot."""
    tile, before, span = op.window_type, scheduler.allocations, op.span
    label = f"copy of {op.ref.hint or 'window'}"
    buffer = before.add_op(
        ops.AllocSmem(span=span, shape=tile.shape, dtype=tile.dtype, label=label)
    ).result
    full = before.add_op(ops.AllocBarrier(span=span, count=1, arrivals=1, label="full")).result
    counter = before.add_op(ops.Counter(span=span)).result
    buffer.hint, full.hint, counter.hint = f"{op.ref.hint}_copy", "full", "copies"
    maker = scheduler.maker
    if scheduler.loops:  # somebody may still read what the last execution copied
        maker.add_op(ops.BlockBarrier(span=span))
    number = maker.add_op(ops.CounterRead(span=span, counter=counter)).result
    zero = maker.number(0)
    fields = {n: getattr(op, n) for n in ("span", "sizes", "steps", "kept")}
    maker.add_op(
        ops.CopyIn(
            **fields,
            ref=scheduler.value(op.ref),
            starts=scheduler.each(op.starts),
            buffer=buffer,
            barrier=full,
            index=zero,
        )
    )
    parity = maker.remainder(number, maker.number(2))
    maker.add_op(ops.CounterAdd(span=span, counter=counter, amount=maker.number(1)))
    slot = scheduler.slots[op.result] = Slot(buffer, ())
    return ops.BarrierWait(span=span, barrier=full, index=zero, parity=parity), slot


def reads_only_in_products(scheduler: BlockScheduler, value: Value) -> bool:
    """Whether every use of a tile is a product, perhaps of its transpose."""
    users = scheduler.users[value]
    return bool(users) and all(
        isinstance(user, ops.Dot)
        or (isinstance(user, ops.Transpose) and reads_only_in_products(scheduler, user.result))
        for user in users
    )


@schedules(ops.Transpose)
def _transpose(scheduler: BlockScheduler, op: ops.Transpose) -> None:
    """Leave out a transpose that a product does by its descriptor."""
    if op.x in scheduler.slots and reads_only_in_products(scheduler, op.result):
        return
    scheduler.copy(op)
