"""mbarrier instructions and the fences that go with them (PTX ISA 9.7.13.15, 9.7.13.4).

Invariant: `try_wait` blocks its lanes until the phase completes, so that a deadlock is found
exactly, but where completions are drawn from a seed it may give up now and then, as the hardware
does; `test_wait` never blocks. Who does not look at the answer has learnt nothing by either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from astdsl.emulator.clocks import scope_number
from astdsl.emulator.convergence import first_threads
from astdsl.emulator.deadlock import Polls
from astdsl.emulator.isa import Control, Execute, controls, executes
from astdsl.emulator.machine import Condition
from astdsl.emulator.mbarriers import (
    BARRIER_BYTES,
    BarrierMisuse,
    Mbarriers,
    mbarriers_of,
    pending_counts,
    phase_of,
)
from astdsl.emulator.scalars import all_of, any_of, one_a_lane
from astdsl.emulator.syntax import Address

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Getter, Operands
    from astdsl.emulator.scalars import Array, BoolArray

T = TypeVar("T")
Place = Callable[["Machine", "Lanes"], "tuple[Array, Array]"]
_SPACES = ("shared", "shared::cta", "shared::cluster")
# Of shared memory, as fences between proxies name it.
_FENCED_SPACES = (*_SPACES, "sync_restrict::shared::cta", "sync_restrict::shared::cluster")
_ORDERS = ("release", "acquire", "relaxed", "cta", "cluster", *_SPACES)


def barrier_place(ops: Operands, operand: Any) -> Place:
    """Return what gives (block row, byte offset) of the mbarrier at an address, for each lane."""
    address = ops.address(operand)

    def place(m: Machine, lanes: Lanes) -> tuple[Array, Array]:
        return m.memory.shared_place(m, lanes, address(m, lanes), BARRIER_BYTES)

    return place


def use(m: Machine, lanes: Lanes, action: Callable[[Mbarriers], T]) -> T:
    """Act on the machine's barriers; a misuse is a fault at the lane that did it."""
    barriers = mbarriers_of(m)
    before = barriers.version
    try:
        result = action(barriers)
    except BarrierMisuse as error:
        raise m.fault(error.code, error.message, int(lanes.index[error.at])) from None
    if barriers.version != before:
        m.wake = True
    return result


def _numbers(get: Getter | None, m: Machine, lanes: Lanes, default: int = 1) -> Array:
    value = default if get is None else get(m, lanes)
    return one_a_lane(np.asarray(value, np.int64), lanes.n)


@executes("mbarrier.init")
def prepare_init(ops: Operands) -> Execute:
    """`mbarrier.init.b64 [addr], count`."""
    ops.allow("init", *_SPACES)
    place, count = barrier_place(ops, ops.args[0]), ops.source(ops.args[1], "s32")

    def execute(m: Machine, lanes: Lanes) -> None:
        rows, offsets = place(m, lanes)
        counts = _numbers(count, m, lanes)
        use(m, lanes, lambda b: b.init(rows, offsets, counts))
        if m.guard is not None:
            m.guard.begin_mbarrier(lanes, rows, offsets)

    return execute


@executes("mbarrier.inval")
def prepare_inval(ops: Operands) -> Execute:
    """`mbarrier.inval.b64 [addr]`: the memory is ordinary again, and holds nothing."""
    ops.allow("inval", *_SPACES)
    place = barrier_place(ops, ops.args[0])

    def execute(m: Machine, lanes: Lanes) -> None:
        rows, offsets = place(m, lanes)
        use(m, lanes, lambda b: b.invalidate(rows, offsets))
        if m.guard is not None:
            m.guard.end_mbarrier(lanes, rows, offsets)

    return execute


def _address_at(ops: Operands) -> int:
    """Return which operand is the barrier: the state before it may be left out."""
    return 0 if isinstance(ops.args[0], Address) else 1


def _tokens(ops: Operands) -> Callable[[Machine, Lanes, Array], None]:
    """Return what writes the state tokens of an arrival, if the instruction wants them."""
    if _address_at(ops) == 0:
        return lambda m, lanes, tokens: None
    return ops.destination(ops.args[0], "b64")


@executes("mbarrier.arrive", "mbarrier.arrive_drop")
def prepare_arrive(ops: Operands) -> Execute:
    """`mbarrier.arrive{_drop}{.expect_tx}{.sem.scope}.b64 {state,} [addr]{, count or bytes}`.

    With `.noComplete` the arrival must leave others to come in its phase.
    """
    ops.allow("arrive", "arrive_drop", "expect_tx", "noComplete", *_ORDERS)
    at = _address_at(ops)
    place, write = barrier_place(ops, ops.args[at]), _tokens(ops)
    number = ops.source(ops.args[at + 1], "s32") if len(ops.args) > at + 1 else None
    expects, drops, early = (ops.has(x) for x in ("expect_tx", "arrive_drop", "noComplete"))
    if expects and early:
        raise ops.refuse("there is no .noComplete with .expect_tx")
    relaxed = _relaxed(ops)

    def execute(m: Machine, lanes: Lanes) -> None:
        rows, offsets = place(m, lanes)
        numbers = _numbers(number, m, lanes)

        def act(b: Mbarriers) -> Array:
            counts = np.ones(lanes.n, np.int64) if expects else numbers
            if expects:
                b.expect_bytes(rows, offsets, numbers)
            if drops:
                b.drop(rows, offsets, counts)
            return (b.arrive_early if early else b.arrive)(rows, offsets, counts)

        tokens = use(m, lanes, act)
        if m.guard is not None:
            m.guard.arrive_mbarrier(lanes, rows, offsets, relaxed=relaxed)
        write(m, lanes, tokens)

    return execute


@executes("mbarrier.pending_count")
def prepare_pending_count(ops: Operands) -> Execute:
    """`mbarrier.pending_count.b64 count, state`: arrivals pending before that of the state."""
    ops.allow("pending_count")
    write, state = ops.destination(ops.args[0], "u32"), ops.source(ops.args[1], "b64")

    def execute(m: Machine, lanes: Lanes) -> None:
        tokens = one_a_lane(state(m, lanes), lanes.n)
        write(m, lanes, use(m, lanes, lambda _: pending_counts(tokens)))

    return execute


@executes("mbarrier.expect_tx", "mbarrier.complete_tx")
def prepare_transaction(ops: Operands) -> Execute:
    """`mbarrier.{expect,complete}_tx{.relaxed.scope}.b64 [addr], bytes`."""
    ops.allow("expect_tx", "complete_tx", *_ORDERS)
    place, number = barrier_place(ops, ops.args[0]), ops.source(ops.args[1], "s32")
    expects = ops.has("expect_tx")

    def execute(m: Machine, lanes: Lanes) -> None:
        rows, offsets = place(m, lanes)
        sizes = _numbers(number, m, lanes)

        def act(b: Mbarriers) -> None:
            (b.expect_bytes if expects else b.complete_bytes)(rows, offsets, sizes)

        use(m, lanes, act)

    return execute


class _Question(NamedTuple):
    """What lanes ask: whether barriers have passed a phase; `some` of the lanes ask for all."""

    lanes: Lanes
    some: Lanes
    rows: Array
    offsets: Array
    wanted: Array


class _Asked:
    """What blocked lanes have asked last, by instruction: their registers do not change."""

    def __init__(self, m: Machine) -> None:
        self.at: dict[int, _Question] = {}


class _Tester:
    """Tests the phase of barriers: the operands of one `try_wait` or `test_wait`."""

    def __init__(self, ops: Operands) -> None:
        ops.allow("try_wait", "test_wait", "parity", *_ORDERS)
        self._by_parity = ops.has("parity")
        self.place = barrier_place(ops, ops.args[1])
        self.phase = ops.source(ops.args[2], "u32" if self._by_parity else "b64")
        ops.sensitive += ops.reads
        self._places = frozenset(ops.sensitive)

    def ask(self, m: Machine, lanes: Lanes) -> _Question:
        """Return what lanes ask, and keep it as long as they are blocked."""
        # Threads of a block mostly ask the same: one of them does.
        some = first_threads(m, lanes, self._places) or lanes
        rows, offsets = self.place(m, some)
        wanted = one_a_lane(self.phase(m, some), some.n)
        if self._by_parity:
            _check_parity(m, some, wanted)
            wanted = wanted.astype(np.int64)
        question = _Question(lanes, some, rows, offsets, wanted)
        m.state(_Asked).at[m.pc] = question
        return question

    def asked(self, m: Machine, lanes: Lanes) -> _Question:
        """Return what blocked lanes ask."""
        found = m.state(_Asked).at.get(m.pc)
        return found if found is not None and found.lanes is lanes else self.ask(m, lanes)

    def answer(self, m: Machine, question: _Question) -> BoolArray:
        """Say for each lane whether the phase has passed."""
        lanes, some, rows, offsets, wanted = question
        if self._by_parity:
            passed = use(m, some, lambda b: b.is_complete(rows, offsets, wanted))
        else:
            passed = use(m, some, lambda b: b.has_passed(rows, offsets, wanted))
        return passed if some.n == lanes.n else passed[m.block_of[lanes.sel]]

    def describe(self, m: Machine, lanes: Lanes) -> str:
        """Return what the first of the lanes waits for."""
        rows, offsets = self.place(m, lanes)
        wanted = one_a_lane(self.phase(m, lanes), lanes.n)
        return self._text(m, int(rows[0]), int(offsets[0]), int(wanted[0]))

    def touch(self, m: Machine, lanes: Lanes) -> None:
        """Ask without looking at the answer."""
        if m.guard is not None:
            m.guard.touch_mbarrier(lanes, *self.place(m, lanes))

    def note(self, m: Machine, question: _Question, vain: BoolArray) -> None:
        """Keep what some of the lanes ask in vain, for reports of deadlocks."""
        lanes, some, *asked = question
        rows, offsets, wanted = (np.tile(x, lanes.n // some.n)[vain] for x in asked)
        polls = m.state(Polls)
        polls.note_barrier(m, lanes.where(vain), (rows, offsets), wanted, self._text)

    def _text(self, m: Machine, row: int, offset: int, wanted: int) -> str:
        state = mbarriers_of(m).state(row, offset)
        which = f"a phase of parity {wanted}" if self._by_parity else f"phase {phase_of(wanted)}"
        return f"waits for {which} of the {state}"


def _check_parity(m: Machine, lanes: Lanes, wanted: Array) -> None:
    wrong = wanted > 1
    if any_of(wrong):
        at = int(np.argmax(wrong))
        raise m.fault(
            "E248", f"the parity of a phase is 0 or 1, not {int(wanted[at])}", int(lanes.index[at]),
            help="pass `phase & 1`",
        )  # fmt: skip


def _relaxed(ops: Operands) -> int | None:
    """Return the scope of a relaxed instruction, None of one that acquires or releases."""
    return scope_number(ops.modifiers, "cta") if ops.has("relaxed") else None


def _learner(ops: Operands, place: Place) -> Callable[[Machine, Lanes], None]:
    """Return what lets lanes know what was done before the phase they saw complete."""
    relaxed = _relaxed(ops)

    def learn(m: Machine, lanes: Lanes) -> None:
        if m.guard is not None:
            m.guard.pass_mbarrier(lanes, *place(m, lanes), relaxed=relaxed)

    return learn


@executes("mbarrier.test_wait")
def prepare_test_wait(ops: Operands) -> Execute:
    """`mbarrier.test_wait{.parity}.b64 p, [addr], phase`: ask without waiting."""
    tester = _Tester(ops)
    write, learn = ops.destination(ops.args[0], "pred"), _learner(ops, tester.place)

    def execute(m: Machine, lanes: Lanes) -> None:
        question = tester.ask(m, lanes)
        if m.pc in m.program.unread:
            tester.touch(m, lanes)
            return
        passed = tester.answer(m, question)
        write(m, lanes, passed)
        if any_of(passed):
            learn(m, lanes.where(passed))
        if not all_of(passed):
            tester.note(m, question, ~passed)
            m.give_way()

    return execute


@controls("mbarrier.try_wait")
def prepare_try_wait(ops: Operands) -> Control:
    """`mbarrier.try_wait{.parity}.b64 p, [addr], phase{, hint}`: wait; the answer is mostly true.

    It is false where the wait takes too long.
    """
    tester = _Tester(ops)
    write = ops.destination(ops.args[0], "pred")

    def ready(m: Machine, lanes: Lanes) -> BoolArray:
        return tester.answer(m, tester.asked(m, lanes))

    def resume(m: Machine, lanes: Lanes) -> None:
        write(m, lanes, np.True_)

    def awaits(m: Machine, lanes: Lanes) -> set[int]:
        return set(tester.asked(m, lanes).offsets.tolist())

    learn = _learner(ops, tester.place)
    condition = Condition(ready, tester.describe, resume, learn, awaits=awaits)

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        question = tester.ask(m, lanes)
        if m.pc in m.program.unread:
            tester.touch(m, lanes)
            return lanes
        passed = tester.answer(m, question)
        if all_of(passed):
            resume(m, lanes)
            learn(m, lanes)
            return lanes
        gives_up = m.asynchronous.may_give_up()
        waiting = lanes.where(~passed) if any_of(passed) else lanes
        if gives_up:
            write(m, waiting, np.False_)
            tester.note(m, question, ~passed)
            m.give_way()
        else:
            m.block(waiting, condition)
        going = lanes.where(passed)
        if going.n:
            resume(m, going)
            learn(m, going)
        return lanes if gives_up else going

    return execute


@executes("fence.mbarrier_init")
def prepare_init_fence(ops: Operands) -> Execute:
    """`fence.mbarrier_init.release.cluster`: others see the barriers made before it."""
    ops.allow("mbarrier_init", "release", "cluster")

    def execute(m: Machine, lanes: Lanes) -> None:
        if m.guard is not None:
            m.guard.fence_barriers(lanes)

    return execute


@executes("fence.proxy.async", "fence.proxy.async::generic")
def prepare_proxy_fence(ops: Operands) -> Execute:
    """`fence.proxy.async{.space}`: ordinary accesses before it, asynchronous ones after it.

    Without a space it is of both. The forms of one direction, `.async::generic.{acquire,release}`
    of shared memory, count as the fence of both.
    """
    ops.allow("proxy", "async", "async::generic", "global", "acquire", "release", "cluster",
              *_FENCED_SPACES)  # fmt: skip

    of_shared = not ops.has("global")
    of_global = not any(ops.has(space) for space in _FENCED_SPACES)

    def execute(m: Machine, lanes: Lanes) -> None:
        if m.guard is not None and of_shared:
            m.guard.fence(lanes)
        if m.memory.globals.races is not None and of_global:
            m.memory.globals.races.proxies.covered.fence(lanes)

    return execute
