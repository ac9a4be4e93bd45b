"""Branches, calls, ends, block barriers (PTX ISA 9.7.12, 9.7.13.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import lanes as lane_sets
from astdsl.emulator.barriers import N_BARRIERS
from astdsl.emulator.clocks import scope_number
from astdsl.emulator.convergence import together, warps_of
from astdsl.emulator.isa import Control, Execute, controls, executes
from astdsl.emulator.lanes import WARP_THREADS
from astdsl.emulator.machine import Condition
from astdsl.emulator.scalars import any_of
from astdsl.emulator.syntax import Immediate, Symbol

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands, Setter
    from astdsl.emulator.scalars import Array, BoolArray


@controls("bra")
def prepare_bra(ops: Operands) -> Control:
    """`bra target`: the guard decides who jumps."""
    ops.allow("uni")
    target = _label(ops, ops.args[0])

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        m.jump(lanes, target)
        return lane_sets.NONE

    return execute


def _label(ops: Operands, operand: Any) -> int:
    target = ops.site.label(operand.name) if isinstance(operand, Symbol) else None
    if target is None:
        raise ops.refuse(f"{operand} is not a label of this function")
    return target


@controls("brx.idx")
def prepare_brx(ops: Operands) -> Control:
    """`brx.idx index, list`: jump through a `.branchtargets` table."""
    ops.allow("idx", "uni")
    index, table = ops.source(ops.args[0], "u32"), ops.args[1]
    names = ops.function.branch_targets.get(table.name) if isinstance(table, Symbol) else None
    if names is None:
        raise ops.refuse(f"{table} is not a list of branch targets")
    ops.sensitive += ops.reads
    targets = [_label(ops, Symbol(name)) for name in names]

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        at = np.broadcast_to(index(m, lanes), lanes.n)
        outside = at >= len(targets)
        if any_of(outside):
            lane = int(lanes.index[np.argmax(outside)])
            raise m.fault("E211", f"brx.idx past its table of {len(targets)} targets", lane)
        for number in np.unique(at):
            m.jump(lanes.where(at == number), targets[number])
        return lane_sets.NONE

    return execute


@controls("exit")
def prepare_exit(ops: Operands) -> Control:
    """`exit`: end the threads."""

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        m.end(lanes)
        return lane_sets.NONE

    return execute


@controls("trap")
def prepare_trap(ops: Operands) -> Control:
    """`trap`: abort the launch (PTX ISA 9.7.19.5)."""

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        raise m.fault("E212", "the kernel executed `trap`", int(lanes.index[0]))

    return execute


_FENCE_WORDS = (
    "sc", "acq_rel", "acquire", "release", "cta", "cluster", "gpu", "gl", "sys", "proxy", "alias",
    "sync_restrict::shared::cta", "sync_restrict::shared::cluster",
)  # fmt: skip


@executes("membar", "fence")
def prepare_fence(ops: Operands) -> Execute:
    """`fence{.acq_rel,.sc,.acquire,.release}.scope`, `membar.{cta,gl,sys}` (PTX ISA 9.7.13.4).

    With relaxed accesses it makes what a release and an acquire are. Other proxies than the async
    one count as generic.
    """
    ops.allow(*_FENCE_WORDS)
    number = scope_number(ops.modifiers)
    if ops.has("proxy"):
        return lambda m, lanes: None

    def execute(m: Machine, lanes: Lanes) -> None:
        if m.guard is not None:
            m.guard.fence_memory(lanes, number)

    return execute


@executes("createpolicy")
def prepare_policy(ops: Operands) -> Execute:
    """`createpolicy.{fractional,range,cvt}.L2...b64 d, ...`: a cache policy, which is a hint."""
    write = ops.destination(ops.args[0], "b64")
    return lambda m, lanes: write(m, lanes, np.uint64(0))


@controls("nanosleep")
def prepare_nanosleep(ops: Operands) -> Control:
    """`nanosleep.u32 t`: let others go first, such as the one that holds a lock (9.7.19.2)."""
    ops.allow()
    ops.sensitive += ops.registers(ops.args[0])

    def execute(m: Machine, lanes: Lanes) -> None:
        m.give_way()

    return execute


@executes(
    "griddepcontrol",
    "pmevent",
    "prefetch",
    "prefetchu",
    "discard",
    "applypriority",
    "brkpt",
)
def prepare_nothing(ops: Operands) -> Execute:
    """Hints: every access of the emulator is seen by all at once."""

    def execute(m: Machine, lanes: Lanes) -> None:
        """Do nothing."""

    return execute


class _Barrier:
    """The operands of one `bar`/`barrier` instruction, and its waiting.

    An `.aligned` one is executed by all lanes of a warp that have not ended, and counts as the
    arrival of all its threads: it "waits for all non-exited threads from its warp and marks
    warps' arrival" (PTX ISA 9.7.13.1).
    """

    def __init__(self, ops: Operands, first: int, n_after: int) -> None:
        args = ops.args[first : len(ops.args) - n_after]
        self.number = ops.source(args[0], "u32") if args else None
        self.is_aligned = ops.instruction.opcode.startswith("bar.") or ops.has("aligned")
        self.uniform = not args or isinstance(args[0], Immediate)
        self.count = ops.source(args[1], "u32") if len(args) > 1 else None
        ops.sensitive += ops.reads

    def step(self, execute: Control) -> Control:
        """Return the step of the instruction: of whole warps, if it is `.aligned`."""
        return together(execute) if self.is_aligned else execute

    def arrive(self, m: Machine, lanes: Lanes, votes: BoolArray | None) -> None:
        """Count the lanes in, barrier by barrier."""
        numbers = self._numbers(m, lanes)
        state = m.state(_Arrivals)
        state.barrier[lanes.sel] = numbers
        state.generation[lanes.sel] = m.barriers.generation[m.block_of[lanes.sel], numbers]
        for number in numbers[:1] if self.uniform else np.unique(numbers):
            some = lanes if self.uniform else lanes.where(numbers == number)
            vote = None if votes is None else votes if self.uniform else votes[numbers == number]
            self._arrive_at(m, some, int(number), vote)
        if m.guard is not None:
            now = m.barriers.generation[m.block_of[lanes.sel], numbers]
            m.guard.arrive(lanes, numbers, now != state.generation[lanes.sel])
        m.wake = True

    def everyone(self, m: Machine, lanes: Lanes) -> bool:
        """Say whether every live thread of every block is here, so that nobody need wait."""
        if not self.uniform or lanes.n != m.barriers.total_live:
            return False
        number = self._number(m, lanes)
        if self.count is not None and any_of(m.barriers.live != self._expected(m, lanes)):
            return False
        return not any_of(m.barriers.arrived[:, number])

    def meet(self, m: Machine, lanes: Lanes) -> None:
        """Pass the barrier, at which everyone is."""
        m.barriers.generation[:, self._number(m, lanes)] += 1
        if m.guard is not None:
            numbers = self._numbers(m, lanes)
            m.guard.arrive(lanes, numbers, completed=True)
            m.guard.passed(lanes, numbers)

    def _expected(self, m: Machine, lanes: Lanes) -> int:
        """Return the number of threads that the instruction names."""
        if self.count is None:
            raise AssertionError("the barrier waits for every thread")
        expected = int(np.atleast_1d(self.count(m, lanes))[0])
        if expected % 32 or not expected:
            text = f"a barrier's thread count is a multiple of 32, not {expected}"
            raise m.fault("E213", text, int(lanes.index[0]))
        return expected

    def _number(self, m: Machine, lanes: Lanes) -> int:
        """Return the number of the barrier of all lanes, which is a constant."""
        number = 0 if self.number is None else int(self.number(m, lanes))
        if number >= N_BARRIERS:
            raise self._beyond(m, lanes)
        return number

    def _numbers(self, m: Machine, lanes: Lanes) -> Array:
        if self.uniform:
            return np.full(lanes.n, self._number(m, lanes), np.int64)
        number = 0 if self.number is None else self.number(m, lanes)
        numbers = np.broadcast_to(np.asarray(number, np.int64), lanes.n)
        if numbers.size and numbers.max() >= N_BARRIERS:
            raise self._beyond(m, lanes)
        return numbers

    def _beyond(self, m: Machine, lanes: Lanes) -> Exception:
        return m.fault("E213", "there are 16 barriers, 0 to 15", int(lanes.index[0]))

    def _arrive_at(self, m: Machine, lanes: Lanes, number: int, votes: BoolArray | None) -> None:
        blocks = m.block_of[lanes.sel]
        counts = np.bincount(blocks, minlength=m.n_blocks)
        true = counts * 0 if votes is None else np.bincount(blocks[votes], minlength=m.n_blocks)
        expected = absent = None
        if self.count is not None:
            expected = self._expected(m, lanes)
            if self.is_aligned:
                absent = WARP_THREADS * np.bincount(warps_of(m, lanes)[0], minlength=m.n_blocks)
                absent -= counts
        wrong = m.barriers.arrive(counts, number, expected, true, absent)
        if wrong is not None:
            lane = int(lanes.index[np.argmax(blocks == wrong)])
            text = f"barrier {number}: more arrivals than expected, or counts that disagree"
            raise m.fault("E213", text, lane)


class _Arrivals:
    """Of each lane, the barrier that it came to last, and its phase then."""

    def __init__(self, m: Machine) -> None:
        self.barrier = np.zeros(m.n_lanes, np.int64)
        self.generation = np.zeros(m.n_lanes, np.int64)


def _barrier_ready(m: Machine, lanes: Lanes) -> BoolArray:
    state = m.state(_Arrivals)
    now = m.barriers.generation[m.block_of[lanes.sel], state.barrier[lanes.sel]]
    return now != state.generation[lanes.sel]  # type: ignore[no-any-return]


def _barrier_text(m: Machine, lanes: Lanes) -> str:
    lane = int(lanes.index[0])
    block, number = int(m.block_of[lane]), int(m.state(_Arrivals).barrier[lane])
    arrived, expected = m.barriers.arrived[block, number], m.barriers.expected[block, number]
    return f"waits at barrier {number}, {arrived} of {expected} threads have arrived"


def _barrier_passed(m: Machine, lanes: Lanes) -> None:
    if m.guard is not None:
        m.guard.passed(lanes, m.state(_Arrivals).barrier[lanes.sel])


_WAIT = Condition(_barrier_ready, _barrier_text, passed=_barrier_passed, meets=True)
_BARRIER_WORDS = ("cta", "sync", "arrive", "aligned", "red", "popc", "and", "or")


@controls("bar.sync", "barrier.sync", "bar.cta.sync", "barrier.cta.sync")
def prepare_bar_sync(ops: Operands) -> Control:
    """`barrier{.cta}.sync a{, b}`: arrive, and wait for all."""
    ops.allow(*_BARRIER_WORDS)
    barrier = _Barrier(ops, 0, 0)

    def execute(m: Machine, lanes: Lanes) -> Lanes | None:
        if barrier.everyone(m, lanes):
            barrier.meet(m, lanes)
            return None
        barrier.arrive(m, lanes, None)
        m.block(lanes, _WAIT)
        return lane_sets.NONE

    return barrier.step(execute)


@controls("bar.arrive", "barrier.arrive", "bar.cta.arrive", "barrier.cta.arrive")
def prepare_bar_arrive(ops: Operands) -> Control:
    """`barrier{.cta}.arrive a, b`: arrive and go on."""
    ops.allow(*_BARRIER_WORDS)
    barrier = _Barrier(ops, 0, 0)

    def execute(m: Machine, lanes: Lanes) -> None:
        barrier.arrive(m, lanes, None)

    return barrier.step(execute)


@controls("bar.red", "barrier.red", "bar.cta.red", "barrier.cta.red")
def prepare_bar_red(ops: Operands) -> Control:
    """`barrier{.cta}.red.op d, a{, b}, {!}c`: wait for all, and combine their predicates."""
    ops.allow(*_BARRIER_WORDS)
    vote = ops.source(ops.args[-1], "pred")
    barrier = _Barrier(ops, 1, 1)
    name = next(word for word in ("popc", "and", "or") if ops.has(word))
    write = ops.destination(ops.args[0], "u32" if name == "popc" else "pred")
    reduce = _reducer(name, write)
    condition = Condition(_barrier_ready, _barrier_text, reduce, _barrier_passed, meets=True)

    def execute(m: Machine, lanes: Lanes) -> Lanes:
        barrier.arrive(m, lanes, np.broadcast_to(vote(m, lanes), lanes.n))
        m.block(lanes, condition)
        return lane_sets.NONE

    return barrier.step(execute)


def _reducer(name: str, write: Setter) -> Any:
    def resume(m: Machine, lanes: Lanes) -> None:
        at = m.block_of[lanes.sel], m.state(_Arrivals).barrier[lanes.sel]
        votes, arrived = m.barriers.result_votes[at], m.barriers.result_arrived[at]
        write(m, lanes, {"popc": votes, "and": votes == arrived, "or": votes > 0}[name])

    return resume
