"""The machine: groups of lanes that run a prepared program, split, block, resume and merge.

Invariant: every live lane is in exactly one group, runnable (`_ready`) or blocked (`_blocked`);
groups at one program counter with one call stack are one group. A launch of more blocks than fit
is run as several machines, one after the other (device.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from astdsl.emulator.asynchronous import Asynchronous, Completion
from astdsl.emulator.barriers import BlockBarriers
from astdsl.emulator.deadlock import deadlock
from astdsl.emulator.faults import DeviceFault
from astdsl.emulator.guard import SharedGuard
from astdsl.emulator.in_flight import RegistersInFlight
from astdsl.emulator.lanes import WARP_THREADS, Lanes
from astdsl.emulator.orders import Order, chooser
from astdsl.emulator.registers import RegisterFile
from astdsl.emulator.scalars import Array, BoolArray, all_of
from astdsl.emulator.stragglers import Stragglers
from astdsl.emulator.watch import Watch

if TYPE_CHECKING:
    from astdsl.emulator.memory import Memory
    from astdsl.emulator.program import Program
    from astdsl.emulator.special import Specials, Triple
    from astdsl.emulator.waiting import WaitingClusters

T = TypeVar("T")
Stack = tuple[Hashable, ...]
Sums = Literal["exact", "hardware"]


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """What blocked lanes wait for; made once per instruction, so that groups can merge on it.

    `ready(m, lanes)` says for each lane whether it may go on; `describe` says for the first of the
    lanes what it waits for (barrier, phase, arrivals missing); `resume` runs on lanes that go on,
    and `passed` tells what they have learnt of others by then.
    With `again` they execute the instruction again instead of going on to the next. `awaits` gives
    the places in shared memory of the mbarriers that they wait for. With `meets` they only wait for
    each other, which may happen again and again while nothing changes.
    """

    ready: Callable[[Machine, Lanes], BoolArray]
    describe: Callable[[Machine, Lanes], str]
    resume: Callable[[Machine, Lanes], None] | None = None
    passed: Callable[[Machine, Lanes], None] | None = None
    again: bool = False
    awaits: Callable[[Machine, Lanes], set[int]] | None = None
    meets: bool = False


@dataclass(slots=True, eq=False)
class Group:
    """Lanes that stand at one program counter; `condition` is what they wait for, if they do.

    `polling` is `ASKING` or `AWAITING` if they have asked in vain, and let others go first.
    """

    pc: int
    lanes: Lanes
    stack: Stack = ()
    condition: Condition | None = None
    waited: int = 0
    polling: int = 0


@dataclass(frozen=True, slots=True)
class Fences:
    """Of what some programs leave out, what this one may not.

    `barriers`: those between accesses of global memory by the warps of a block. `accumulators`:
    `wgmma.fence` between moves to an accumulator and a product that reads it. `loads`:
    `tcgen05.wait::ld` where a register of the load has been used.
    """

    tcgen05: bool = False
    mbarrier_init: bool = False
    barriers: bool = False
    accumulators: bool = False
    loads: bool = False

    @classmethod
    def every(cls, said: bool) -> Fences:
        """Return all of them, or none."""
        return cls(**dict.fromkeys((each.name for each in fields(cls)), said))


@dataclass(frozen=True, slots=True)
class Launch:
    """The blocks that one machine runs: their linear numbers in the grid, cluster by cluster."""

    grid: Triple
    block: Triple
    cluster: Triple
    index: tuple[Array, Array, Array]
    completion: Completion
    check: bool = True
    order: Order = "min-pc"
    fences: Fences = field(default_factory=Fences)
    waiting: WaitingClusters | None = None
    fp8_accumulate: Sums = "exact"

    @property
    def n_threads(self) -> int:
        """Return the number of threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def n_warps(self) -> int:
        """Return the number of warps of a block, of which the last may lack threads."""
        return -(-self.n_threads // WARP_THREADS)

    def block_index(self, row: int) -> Triple:
        """Return the index in the grid of one of the blocks."""
        x, y, z = (int(axis[row]) for axis in self.index)
        return x, y, z

    @property
    def cluster_size(self) -> int:
        """Return the number of blocks of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]


# Scheduling rounds after which a thread that polls no longer lets every other go first.
POLITENESS = 256
# Lanes poll memory, which other threads change; or what an operation may complete, or time.
ASKING, AWAITING = 1, 2


class Machine:
    """Runs a program for the blocks of a launch; see the module docstring.

    Executors use: `views` (registers), `memory`, `special`, `block_of` and `thread_of` (by lane),
    `asynchronous`, `barriers`, `state(...)`, `fault(...)`, and of control: `block`, `jump`, `end`.
    """

    def __init__(
        self,
        program: Program,
        launch: Launch,
        registers: RegisterFile,
        memory: Memory,
        special: Specials,
    ) -> None:
        self.program = program
        self.launch = launch
        self.registers = registers
        self.views = registers.views
        self.undefined = registers.undefined
        self.memory = memory
        self.special = special
        self.n_blocks = len(launch.index[0])
        self.n_threads, self.n_warps = launch.n_threads, launch.n_warps
        self.n_lanes = self.n_blocks * self.n_threads
        self.block_of = np.tile(np.arange(self.n_blocks), self.n_threads)
        self.thread_of = np.repeat(np.arange(self.n_threads), self.n_blocks)
        self.live = np.ones(self.n_lanes, np.bool_)
        self.asynchronous = Asynchronous(launch.completion)
        self.barriers = BlockBarriers(self.n_blocks, self.n_threads)
        self.pc = 0
        self.clock = 0
        self.wake = False
        self.polling = 0
        self.group = Group(program.entry, Lanes.span(0, self.n_lanes))
        self._choose = chooser(launch.order)
        self._stragglers: Stragglers | None = None
        if isinstance(launch.order, int):
            self._stragglers = Stragglers(self, launch.order)
        self._watch = Watch()
        self.wakes = 0
        self._ready: list[Group] = [self.group]
        self._blocked: list[Group] = []
        self._states: dict[object, Any] = {}
        self.in_flight = RegistersInFlight(self)
        self.end_hooks: list[Callable[[Lanes], None]] = []
        self.exit_checks: list[Callable[[Array, Lanes], None]] = []
        self.guard: SharedGuard | None = None
        if launch.check:
            self.guard = SharedGuard(self)
        memory.guard = self.guard

    # What executors of every family may use.

    def state(self, make: Callable[[Machine], T]) -> T:
        """Return this machine's one object made by `make` (a class that takes the machine)."""
        found = self._states.get(make)
        if found is None:
            found = self._states[make] = make(self)
        return found

    def fault(self, code: str, message: str, lane: int, help: str | None = None) -> DeviceFault:
        """Return a fault of the current instruction at a lane, with its place filled in."""
        instruction = self.program.instructions[self.pc]
        return DeviceFault(
            code,
            message,
            kernel_line=instruction.kernel_line,
            ptx_line=instruction.ptx_line,
            block=self.block_index(lane),
            warp=int(self.thread_of[lane]) // WARP_THREADS,
            help=help,
        )

    def warp_of(self, lanes: Lanes) -> int:
        """Return the number in its block of the warp of the first lane."""
        return int(self.thread_of[lanes.index[0]]) // WARP_THREADS

    def block_index(self, lane: int) -> Triple:
        """Return the index in the grid of a lane's block."""
        return self.launch.block_index(int(self.block_of[lane]))

    def warp_text(self, row: int, warp: int) -> str:
        """Return which warp of which block that is, for reports; `row` counts this launch's."""
        return f"warp {warp} of block {self.launch.block_index(row)}"

    def lane_text(self, lane: int) -> str:
        """Return which warp of which block a lane belongs to, for reports."""
        return self.warp_text(int(self.block_of[lane]), int(self.thread_of[lane]) // WARP_THREADS)

    def symbol_address(self, space: str, start: int, lanes: Lanes) -> Any:
        """Return the address of a variable in its own state space, as int64."""
        if space == "global":
            return np.int64(self.memory.variable_addresses[start])
        if space == "shared" and self.launch.cluster_size > 1:
            rank = self.special["%cluster_ctarank"]
            return (np.asarray(rank)[lanes.sel].astype(np.int64) << 24) + start
        return np.int64(start)

    def place_text(self, pc: int) -> str:
        """Return where an instruction stands, for reports: kernel line and PTX line."""
        return self.program.place_text(pc)

    @contextmanager
    def at(self, pc: int) -> Iterator[None]:
        """Do what an instruction has begun before: reports name that one."""
        here, self.pc = self.pc, pc
        yield
        self.pc = here

    # What control instructions may use.

    def jump(self, lanes: Lanes, pc: int, stack: Stack | None = None) -> None:
        """Send lanes to another place of the program."""
        if lanes.n:
            stack = self.group.stack if stack is None else stack
            self._add(self._ready, Group(pc, lanes, stack, polling=self.polling))

    def block(self, lanes: Lanes, condition: Condition) -> None:
        """Make lanes wait at the current instruction until the condition lets them go on."""
        if lanes.n:
            stack, polling = self.group.stack, self.polling
            self._add(self._blocked, Group(self.pc, lanes, stack, condition, polling=polling))
            self.wake = True

    def waiting(self) -> Iterator[tuple[int, Lanes]]:
        """Yield where lanes are blocked, and which."""
        yield from ((group.pc, group.lanes) for group in self._blocked)

    def give_way(self) -> None:
        """Let every other group and a pending operation go first: this one is polling."""
        self.polling = AWAITING

    def let_others_ask(self) -> None:
        """Let every other group go first: this one has found memory as it was."""
        self.polling = max(self.polling, ASKING)

    def end(self, lanes: Lanes) -> None:
        """End lanes; barriers no longer wait for them."""
        self.live[lanes.sel] = False
        counts = np.bincount(self.block_of[lanes.sel], minlength=self.n_blocks)
        self.barriers.leave(counts)
        for hook in self.end_hooks:
            hook(lanes)
        self._check_exit(np.flatnonzero((counts > 0) & (self.barriers.live == 0)), lanes)
        self.wake = True

    def _check_exit(self, blocks: Array, lanes: Lanes) -> None:
        """Fault if one of the blocks, which have ended, leaves work or memory behind."""
        if not len(blocks):
            return
        for operation in (*self.asynchronous.held, *self.asynchronous.pending):
            if operation.blocks is None:
                continue
            left = np.intersect1d(operation.blocks, blocks)
            if len(left):
                raise self.fault(
                    "E256",
                    f"the block ends while the {operation.what} "
                    f"({operation.issue.text(self, int(left[0]))}) is in flight",
                    int(lanes.index[np.argmax(self.block_of[lanes.sel] == left[0])]),
                    help="wait for it before the end",
                )
        for check in self.exit_checks:
            check(blocks, lanes)

    # The scheduler.

    def run(self) -> None:
        """Run until every lane has ended; raises DeviceFault."""
        with np.errstate(all="ignore"):
            while True:
                if self.wake:
                    self._resume()
                group = self._next()
                if group is None:
                    break
                if self._stragglers is not None:
                    group = self._stragglers.part(self, group, self._ready)
                self._advance(group)
            while self.asynchronous.complete_one():
                pass

    def _next(self) -> Group | None:
        self.asynchronous.tick()
        while not self._ready:
            if not self._blocked:
                return None
            if not self.asynchronous.complete_one(self._awaited()):
                self._resume()
                if self._ready:
                    break
                raise deadlock(self, self._blocked)
            self._resume()
        ready = self._ready
        self._watch.tick(self, ready, self._blocked)
        if len(ready) == 1 and not ready[0].polling:
            return ready.pop()
        eager = [group for group in ready if not group.polling]
        if not eager:
            return self._next_of_polling()
        if len(eager) < len(ready):
            # Not all that spin on memory are known to; what they wait for may come from who polls.
            for group in ready:
                group.waited += group.polling > 0
                if group.waited >= POLITENESS:
                    group.polling = 0
        best = eager[self._choose(eager)]
        ready.remove(best)
        return best

    def _awaited(self) -> set[int]:
        """Return the places of the mbarriers that blocked lanes wait for."""
        found: set[int] = set()
        for group in self._blocked:
            if group.condition is not None and group.condition.awaits is not None:
                self.pc = group.pc
                found |= group.condition.awaits(self, group.lanes)
        return found

    def _next_of_polling(self) -> Group:
        """Everyone polls: let something happen, then take the one that has waited longest."""
        if any(group.polling == AWAITING for group in self._ready):
            self.asynchronous.complete_one()
            self.wake = True
        elif any(group.condition and not group.condition.meets for group in self._blocked):
            # Those that ask for memory wait, perhaps, for one of these.
            self.wake |= self.asynchronous.complete_one(self._awaited())
        for group in self._ready:
            group.polling = 0
        if self.wake:
            self._resume()
        return self._ready.pop(0)

    def _advance(self, group: Group) -> None:
        """Run a group through straight-line code to the next place where groups may meet."""
        self.group = group
        self.polling = 0
        program = self.program
        lanes, undefined = group.lanes, self.undefined
        stop = program.segment_ends[group.pc]
        pieces = program.native.pieces(group.pc, stop, lanes.n)
        if pieces is None:
            self._step(group.pc, stop, lanes)
        else:
            for piece in pieces:
                if piece.run is None or not piece.run.execute(self, lanes):
                    self._step(piece.start, piece.stop, lanes)
        self.clock += stop - group.pc
        control = program.controls[stop]
        rest: Lanes | None = lanes
        if control is not None and (stop == group.pc or not program.labelled[stop]):
            self.pc = stop
            self.clock += 1
            if undefined:
                program.check_control(self, stop, lanes)
            rest = control(self, lanes)
            stop += 1
        if rest is None:
            rest = lanes
        if rest.n:
            group.pc, group.lanes, group.waited, group.polling = stop, rest, 0, self.polling
            self._add(self._ready, group)

    def _step(self, start: int, stop: int, lanes: Lanes) -> None:
        """Execute instructions of straight-line code one by one."""
        program, undefined, in_flight = self.program, self.undefined, self.in_flight.uses
        for pc in range(start, stop):
            self.pc = pc
            if in_flight:
                self.in_flight.check(pc, lanes)
            (program.tracked if undefined else program.steps)[pc](self, lanes)

    def _add(self, groups: list[Group], group: Group) -> None:
        for other in groups:
            if (
                other.pc == group.pc
                and other.condition is group.condition
                and other.stack == group.stack
            ):
                other.lanes = other.lanes.union(group.lanes)
                other.polling = max(other.polling, group.polling)
                return
        groups.append(group)

    def _resume(self) -> None:
        """Let blocked lanes go on whose condition has come true."""
        self.wake = False
        blocked, self._blocked = self._blocked, []
        for group in blocked:
            condition = group.condition
            if condition is None:
                raise AssertionError("a blocked group waits for nothing")
            self.group, self.pc = group, group.pc
            mask = condition.ready(self, group.lanes)
            if all_of(mask):
                going = group.lanes
            else:
                going = group.lanes.where(mask)
                group.lanes = group.lanes.where(~mask)
                self._add(self._blocked, group)
            if going.n:
                self.wakes += not condition.meets
                if condition.passed is not None:
                    condition.passed(self, going)
                if condition.resume is not None:
                    condition.resume(self, going)
                # Who has asked in vain, and met the others since, asks again: these go first.
                pc, polling = group.pc + (not condition.again), group.polling
                self._add(self._ready, Group(pc, going, group.stack, polling=polling))
