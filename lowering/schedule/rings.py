"""Pipelines as rings of slots that are filled ahead: prologue, steady state, epilogue.

Before
    pipeline (k) { a = load x[k]; ... }
After
    prologue { for the first `ahead` steps: copy_in x[k] -> slot[c % stages], full[c % stages] }
    steady   { for every step: wait full; ... slot ...; when it is free: copy_in `ahead` later }
    epilogue { products are done; the ring's counter moves on }

One formula gives everything: the copy with number c, counted on this ring since the block began,
goes to slot `c % stages` and completes phase `c // stages` of that slot's barrier. Windows with
as many stages share a ring; each step fills one slot of each, so one counter counts for all.

Invariant: a slot is refilled only after the barrier of the block that follows its last reader; a
product in flight is a reader until it has been waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from astdsl.errors import BadPipeline, in_words
from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value
from astdsl.lowering.buffers import RING_LABEL
from astdsl.lowering.schedule.accumulation import Accumulation, accumulations, begin, finish
from astdsl.lowering.schedule.block import (
    BlockScheduler,
    LoopFrame,
    Slot,
    Steps,
    inside,
    schedules,
)
from astdsl.lowering.schedule.build import Maker, loop, recompute
from astdsl.lowering.schedule.following import Execution, Following, following_of
from astdsl.lowering.schedule.independence import indices_of
from astdsl.lowering.schedule.loads import is_unchanging
from astdsl.lowering.schedule.odometer import Odometer

MOST_AUTOMATIC_STAGES = 4
# Kept free for what leaves the block, and for tiles that change their layout.
RESERVED_BYTES = 68 * 1024
# How a load says that its `delay_release` is not stated.
_DERIVED = -1
# For barriers and the alignment of buffers.
MARGIN_BYTES = 4 * 1024


@dataclass(frozen=True, slots=True)
class Ring:
    """Buffers with one slot a stage for some of a pipeline's loads, and their full barriers."""

    loads: Sequence[ops.Load]
    stages: int
    ahead: int
    buffers: Sequence[Value]
    full: Value
    # Counts the copies issued, where some of them are ahead of their execution.
    issued: Value | None = None

    def place(self, maker: Maker, number: Value) -> tuple[Value, Value]:
        """Return the slot and the parity of the copy of a number."""
        # No count is negative; where the division is no shift, it is cheaper to say so, and to
        # divide once.
        is_shift = self.stages & (self.stages - 1) == 0
        count = number if is_shift else maker.to_u64(number)
        stages = maker.number(self.stages, count.tile)
        turn = maker.divide(count, stages)
        parity = maker.remainder(turn, maker.number(2, count.tile))
        if is_shift:
            slot = maker.remainder(count, stages)
        else:
            slot = maker.to_index(maker.subtract(count, maker.multiply(turn, stages)))
            parity = maker.to_index(parity)
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
        self.present = Execution(self.outside, self.inside)
        self.rank = len(op.lows)
        self.loads = [load for load in _loads(op.body) if self._is_staged(load)]
        self.products: list[Accumulation] = accumulations(scheduler, op)
        # How many steps have products in flight where slots are refilled.
        self.in_flight = 0
        self.following: Following | None = None
        # Counts the copies on each ring, and what it held when this execution began.
        self.counter: Value | None = None
        self.base: Value | None = None
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
        self.following = following_of(self.scheduler, self.op, self.loads)
        rings = self._rings()
        for product in self.products:
            begin(self.scheduler, product)
        carried = self._carried_positions()
        initial = [self.scheduler.value(self.op.initial[k]) for k in carried]
        issued: tuple[Value, ...] = ()
        if rings:
            self._read_counter()
            issued = self._prologue(rings)
        results = self._steady(rings, initial, issued)
        self._epilogue(rings)
        for k, result in zip(carried, results, strict=False):
            self.scheduler.values[self.op.results[k]] = result

    def _carried_positions(self) -> list[int]:
        held = {product.position for product in self.products}
        return [k for k in range(len(self.op.initial)) if k not in held]

    def _read_counter(self) -> None:
        maker = self.scheduler.maker
        assert self.counter is not None, "the rings have a counter"
        self.base = maker.add_op(ops.CounterRead(span=maker.span, counter=self.counter)).result
        self.base.hint = "base"

    def _number(self, maker: Maker, step: Value) -> Value:
        """Write the number of the copies of a step of this execution."""
        assert self.base is not None, "the rings' counter has been read"
        return maker.add(self.base, step)

    def _rings(self) -> list[Ring]:
        """Allocate the rings: at the start of the block, once."""
        if not self.loads:
            return []
        groups: dict[tuple[int, int], list[ops.Load]] = {}
        longest = max(load.delay_release for load in self.loads)
        automatic = self.op.stages or max(self._automatic_stages(), longest + 1)
        for load in self.loads:
            key = (load.stages or automatic, load.delay_release)
            groups.setdefault(key, []).append(load)
        read = {value for product in self.products for value in product.in_place}
        fed = {key for key, loads in groups.items() if any(load.result in read for load in loads)}
        keeps = self._reads_ahead() and min(stages for stages, _ in fed) > 1
        held = {
            key: self._held_steps(key, loads, int(keeps and key in fed))
            for key, loads in groups.items()
        }
        rings = [self._ring(key[0], loads, key[0] - held[key]) for key, loads in groups.items()]
        self.in_flight = min((held[key] for key in fed), default=0) if keeps else 0
        self.counter = self.scheduler.allocations.add_op(ops.Counter(span=self.op.span)).result
        self.counter.hint = "copies"
        return rings

    def _held_steps(self, key: tuple[int, int], loads: Sequence[ops.Load], derived: int) -> int:
        """Return for how many steps more than its own a slot is held: as stated, or as derived."""
        stages, stated = key
        if stated == _DERIVED:
            return derived
        if stated < derived:
            raise BadPipeline(
                f"`delay_release={stated}` of a window that products in flight read for {derived} "
                "step more",
                (loads[0].span, "this window"),
                help=f"leave it out, or state {derived}",
            )
        if stated >= stages:
            raise BadPipeline(
                f"`delay_release={stated}` takes {in_words(stated + 1, 'stage')} or more, and "
                "there are "
                f"{stages}",
                (loads[0].span, "this window"),
                help="state more stages, or leave it out: it is derived",
            )
        return stated

    def _reads_ahead(self) -> bool:
        """Whether the products of a step may be in flight while those of the next are issued."""
        resting = self.scheduler.slots.keys() - self.inside
        ahead = (p.reads_slots(self.loads, resting) for p in self.products)
        return bool(self.products) and all(ahead)

    def _ring(self, stages: int, loads: Sequence[ops.Load], ahead: int) -> Ring:
        maker = self.scheduler.allocations
        span = self.op.span
        buffers = [
            maker.add_op(
                ops.AllocSmem(
                    span=load.span,
                    shape=(stages, *load.window_type.shape),
                    dtype=load.window_type.dtype,
                    label=f"{RING_LABEL} {load.ref.hint or 'window'}",
                    transforms=load.transforms,
                )
            ).result
            for load in loads
        ]
        full = maker.add_op(
            ops.AllocBarrier(span=span, count=stages, arrivals=len(loads), label="full")
        ).result
        for load, buffer in zip(loads, buffers, strict=True):
            buffer.hint = f"{load.ref.hint}_ring"
        full.hint = "full"
        if self.following is None:
            return Ring(loads, stages, ahead, buffers, full)
        issued = maker.add_op(ops.Counter(span=span)).result
        issued.hint = "issued"
        return Ring(loads, stages, ahead, buffers, full, issued)

    def _automatic_stages(self) -> int:
        """Return as many stages as fit beside the rings that state theirs, at most four."""
        each = sum(_slot_bytes(load) for load in self.loads if not load.stages)
        stated = sum(_slot_bytes(load) * load.stages for load in self.loads)
        reserved = max(RESERVED_BYTES, self.scheduler.other_bytes + MARGIN_BYTES)
        limit = self.scheduler.target.shared_bytes_per_block - reserved
        share = limit // max(1, self.scheduler.pipelines) - stated
        return max(1, min(MOST_AUTOMATIC_STAGES, share // max(1, each)))

    def _prologue(self, rings: Sequence[Ring]) -> tuple[Value, ...]:
        """Fill the first `ahead` slots of each ring; return the odometers behind them."""
        outer = self.scheduler.maker
        phase = Maker(self.op.span)
        numbers: list[Value] = []
        for ring in rings:
            if self.following is not None:
                self._fill_across(phase, ring, self.following)
                continue
            count = phase.minimum(self.total, phase.number(ring.ahead))
            fill = partial(self._fill, ring)
            numbers += loop(phase, count, self.odometer.start(phase), fill)
        return _phase(outer, "prologue", phase, numbers)

    def _fill(
        self, ring: Ring, body: Maker, step: Value, carried: Sequence[Value]
    ) -> Sequence[Value]:
        self._issue(body, ring, step, self.odometer.numbers(step, carried), self.present)
        return self.odometer.advance(body, carried)

    def _fill_across(self, phase: Maker, ring: Ring, following: Following) -> None:
        """Fill those of the first `ahead` slots that were not before, also for the execution after.

        There is one axis: the number of a step is the step.
        """
        ahead, zero = phase.number(ring.ahead), phase.number(0)
        first = phase.subtract(self._issued(phase, ring), self._number(phase, zero))
        own = phase.maximum(phase.subtract(phase.minimum(self.total, ahead), first), zero)
        rest = phase.maximum(phase.subtract(ahead, self.total), zero)

        def fill(body: Maker, step: Value, _carried: Sequence[Value]) -> Sequence[Value]:
            number = body.add(first, step)
            self._issue(body, ring, number, [number], self.present)
            return ()

        def fill_next(body: Maker, step: Value, _carried: Sequence[Value]) -> Sequence[Value]:
            self._issue(body, ring, body.add(self.total, step), [step], following.execution)
            return ()

        loop(phase, own, (), fill)
        loop(phase, phase.minimum(rest, following.total), (), fill_next)

    def _issued(self, maker: Maker, ring: Ring) -> Value:
        assert ring.issued is not None, "copies ahead of their execution are counted"
        return maker.add_op(ops.CounterRead(span=maker.span, counter=ring.issued)).result

    def _issue(
        self, maker: Maker, ring: Ring, step: Value, numbers: Sequence[Value], at: Execution
    ) -> None:
        """Write the copies of one step, counted in this execution, at step numbers of another."""
        slot, _ = ring.place(maker, self._number(maker, step))
        mapping = dict(at.values)
        indices = self._indices(maker, numbers, at)
        mapping.update(zip(self.op.body.args[: self.rank], indices, strict=True))
        forms = self.scheduler.forms
        for load, buffer in zip(ring.loads, ring.buffers, strict=True):
            starts = (recompute(maker, s, forms, at.unavailable, mapping) for s in load.starts)
            maker.add_op(
                ops.CopyIn(
                    span=load.span,
                    ref=self.scheduler.value(load.ref),
                    starts=tuple(starts),
                    sizes=load.sizes,
                    steps=load.steps,
                    kept=load.kept,
                    buffer=buffer,
                    slot=(slot,),
                    barrier=ring.full,
                    index=slot,
                )
            )

    def _indices(self, maker: Maker, numbers: Sequence[Value], at: Execution) -> list[Value]:
        found, mapping = [], dict(at.values)
        for axis, number in enumerate(numbers):
            low, step = (
                recompute(maker, v, self.scheduler.forms, at.unavailable, mapping)
                for v in (self.op.lows[axis], self.op.steps[axis])
            )
            index = maker.add(low, maker.multiply(number, step))
            index.hint = self.op.body.args[axis].hint
            found.append(index)
        return found

    def _steady(
        self, rings: Sequence[Ring], initial: Sequence[Value], issued: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        outer, phase = self.scheduler.maker, Maker(self.op.span)
        start = self.odometer.start(phase)
        carried = [*initial, *start, *issued]

        def step(body: Maker, number: Value, values: Sequence[Value]) -> Sequence[Value]:
            user, odometers = values[: len(initial)], values[len(initial) :]
            axes = len(start)
            mine, *theirs = (odometers[k * axes :][:axes] for k in range(1 + len(rings)))
            numbers = self.odometer.numbers(number, mine)
            self._bind(body, self._indices(body, numbers, self.present), user)
            with self.scheduler.stepping(Steps(self.op, number, self.total, self.outside)):
                self._body(body, rings, number, theirs)
            leaving = ops.yielded(self.op.body)
            kept = [self.scheduler.value(leaving[k]) for k in self._carried_positions()]
            return [*kept, *(v for o in (mine, *theirs) for v in self.odometer.advance(body, o))]

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

    def _body(
        self, body: Maker, rings: Sequence[Ring], number: Value, theirs: Sequence[Sequence[Value]]
    ) -> None:
        """Write one step: wait, work, and refill what is free."""
        program = self.op.body.ops[:-1]
        with self.scheduler.writing(body):
            if not rings:
                self.scheduler.run(program)
                self._wait_for_products(body)
                return
            for ring in rings:
                self._wait(body, ring, number)
            cut = self._last_reader(program)
            self.scheduler.run(program[:cut])
            self._wait_for_products(body, self.in_flight)
            body.add_op(ops.BlockBarrier(span=self.op.span))
            for ring, odometer in zip(rings, theirs, strict=True):
                self._refill(body, ring, number, odometer)
            self.scheduler.run(program[cut:])

    def _wait(self, body: Maker, ring: Ring, number: Value) -> None:
        """Wait until the slots of a step are full."""
        slot, parity = ring.place(body, self._number(body, number))
        body.add_op(
            ops.BarrierWait(span=self.op.span, barrier=ring.full, index=slot, parity=parity)
        )
        for load, buffer in zip(ring.loads, ring.buffers, strict=True):
            self.scheduler.slots[load.result] = Slot(buffer, (slot,))

    def _wait_for_products(self, body: Maker, in_flight: int = 0) -> None:
        if self.products:
            pending = in_flight * len(self.products)
            body.add_op(ops.ProductWait(span=self.op.span, pending=pending))

    def _last_reader(self, program: Sequence[Op]) -> int:
        """Return where every slot has been read: behind the last load, or at the end.

        What follows a load and leaves fewer registers than it takes comes first: all of them
        would be held while copies are issued.
        """
        staged = {load.result for load in self.loads}
        users = [u for value in staged for u in self.scheduler.users[value]]
        if self.products or any(isinstance(u, (ops.Dot, ops.Transpose)) for u in users):
            return len(program)
        cut = 1 + max(k for k, op in enumerate(program) if op in self.loads)
        held = staged | set(self.op.body.args)
        while cut < len(program) and self._condenses(program[cut], held):
            held.update(program[cut].results)
            cut += 1
        return cut

    def _condenses(self, op: Op, held: set[Value]) -> bool:
        """Whether an operation is the last use of more held bits than it gives."""
        if not isinstance(op, ops.Elementwise):
            return False
        users = self.scheduler.users
        last = (v for v in {*op.operands} & held if all(user is op for user in users[v]))
        return sum(map(_tile_bits, last)) > _tile_bits(op.results[0])

    def _refill(self, body: Maker, ring: Ring, number: Value, theirs: Sequence[Value]) -> None:
        """Issue the copies of the step that is `ahead`: every thread is done with the slot."""
        following = body.add(number, body.number(ring.ahead))
        more = body.compare("lt", following, self.total)
        numbers = self.odometer.numbers(following, theirs)

        def refill_next(otherwise: Maker) -> None:
            if self.following is None:
                return
            number, execution = otherwise.subtract(following, self.total), self.following.execution
            more = otherwise.compare("lt", number, self.following.total)
            otherwise.when(
                more, lambda then: self._issue(then, ring, following, [number], execution)
            )

        body.when(
            more,
            lambda then: self._issue(then, ring, following, numbers, self.present),
            refill_next,
        )

    def _epilogue(self, rings: Sequence[Ring]) -> None:
        maker, phase = self.scheduler.maker, Maker(self.op.span)
        with self.scheduler.writing(phase):
            if self.counter is not None:
                add = ops.CounterAdd(span=self.op.span, counter=self.counter, amount=self.total)
                phase.add_op(add)
            if self.following is not None:
                for ring in rings:
                    self._count_issued(phase, ring, self.following)
            read = finish(self.scheduler, self.products)
        values = _phase(maker, "epilogue", phase, read)
        for product, value in zip(self.products, values, strict=True):
            self.scheduler.values[self.op.results[product.position]] = value

    def _count_issued(self, maker: Maker, ring: Ring, following: Following) -> None:
        """Let the ring's counter stand behind the first copies of the next execution."""
        assert ring.issued is not None, "copies ahead of their execution are counted"
        further = maker.minimum(following.total, maker.number(ring.ahead))
        behind = self._number(maker, maker.add(self.total, further))
        amount = maker.subtract(behind, self._issued(maker, ring))
        maker.add_op(ops.CounterAdd(span=self.op.span, counter=ring.issued, amount=amount))


def _tile_bits(value: Value) -> int:
    return value.tile.elements * value.tile.dtype.bits


def _slot_bytes(load: ops.Load) -> int:
    return load.window_type.elements * load.window_type.dtype.bytes


def _loads(block: Block) -> Iterator[ops.Load]:
    return (op for op in block.ops if isinstance(op, ops.Load))


def _phase(maker: Maker, name: str, body: Maker, values: Sequence[Value]) -> tuple[Value, ...]:
    """Write a phase whose results are `values`."""
    op = ops.Phase(span=body.span, name=name, body=body.block(values))
    results: tuple[Value, ...] = maker.add_op(op).results
    for result, value in zip(results, values, strict=True):
        result.hint = value.hint
    return results
