"""Hazards of shared memory between ordinary accesses and the async proxy, by 16-byte chunk.

Every chunk of every block knows its asynchronous reads and writes in flight, and, through `races`,
the accesses before that no barrier or proxy fence orders before the next one.
Invariant: correct programs are never reported: where the order of two accesses is not known, they
count as ordered.  Source: PTX ISA 8.6 "Proxies", 9.7.13.4 "fence.proxy".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astdsl.emulator.barrier_ends import BarrierEnds
from astdsl.emulator.barrier_phases import BarrierPhases
from astdsl.emulator.clocks import BY_MBARRIER, Clocks
from astdsl.emulator.farewells import Farewells
from astdsl.emulator.ledger import Ledger, Strength, word_keys
from astdsl.emulator.mbarriers import BARRIER_BYTES, mbarriers_of
from astdsl.emulator.occupancy import CHUNK_BYTES, CHUNK_SHIFT, Index, Occupancy
from astdsl.emulator.overtaken import Overtaken
from astdsl.emulator.races import SharedRaces
from astdsl.emulator.scalars import any_of, first_of
from astdsl.emulator.unacquired import Unacquired

if TYPE_CHECKING:
    from astdsl.emulator.asynchronous import Operation
    from astdsl.emulator.issues import Issue
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.row_memory import RowMemory
    from astdsl.emulator.scalars import Array

__all__ = ["SharedGuard", "define"]

_RELAXED = "and a relaxed wait for its mbarrier orders nothing"
_ACQUIRE = "wait without `.relaxed`, or execute `fence.acq_rel` after the wait"
_ALL_DEFINED = np.frombuffer(b"\x01" * CHUNK_BYTES, np.complex128)[0]


def define(shared: RowMemory, index: Index) -> None:
    """Count chunks of shared memory as written."""
    shared.defined.view(np.complex128)[index] = _ALL_DEFINED


class SharedGuard:
    """The states of all chunks of a machine's shared memory; see the module docstring."""

    def __init__(self, m: Machine) -> None:
        shared = m.memory.shared
        shape = shared.data.shape[0], shared.row_bytes // CHUNK_BYTES
        self._m = m
        self._barriers = mbarriers_of(m)
        self._defined = shared.defined.view(np.complex128)
        self._occupancy = Occupancy(m, shape)
        # Chunks that a completed copy filled, and that nothing has written since: the common case.
        self._clean = np.zeros(shape, np.bool_)
        self.clocks = Clocks(m)
        self.races = SharedRaces(m, self.clocks)
        self._ledgers = [Ledger(m, self.clocks)]
        races = m.memory.globals.races
        wider = None if races is None else races.begin(m, self.clocks)
        if wider is not None:
            self._ledgers.append(wider)
        self._farewells = Farewells(m, self.clocks) if m.launch.cluster_size > 1 else None
        self._phases = BarrierPhases(m, self.clocks)
        self._ends = BarrierEnds.of(m, self.clocks)
        self._unacquired = Unacquired.of(m, shape)
        # None once something relaxed orders what the clocks do not know.
        self._overtaken: Overtaken | None = Overtaken(m, self.clocks)
        # The scope of what is accessed now, if it is strong: no race with what is strong too.
        self.scope: int | None = None
        m.exit_checks.append(self._check_awaited)

    def require_started(self, lanes: Lanes, rows: Array) -> None:
        """Check that the blocks whose memory lanes reach have started."""
        if self._farewells is not None:
            self._farewells.require_started(lanes, rows)

    # Ordinary accesses.

    def read(self, lanes: Lanes, rows: Array, offsets: Array, width: int) -> None:
        """Check an ordinary read of `width` bytes at each (row, offset)."""
        self._check_barriers(lanes, rows, offsets, width)
        self._occupancy.check_read(lanes, rows, offsets, width)
        self._check_acquired(lanes, rows, offsets)
        self.races.read(lanes, rows, offsets, width, strong=self.scope is not None)
        self._farewells_note(lanes, rows)

    def write(
        self, lanes: Lanes, rows: Array, offsets: Array, width: int, values: Array | None = None
    ) -> None:
        """Check an ordinary write, of values if they are known; no proxy fence covers it yet."""
        self._check_barriers(lanes, rows, offsets, width)
        self._occupancy.check_write(lanes, rows, offsets, width)
        self._check_acquired(lanes, rows, offsets)
        self._clean[rows, offsets >> CHUNK_SHIFT] = False
        self.races.write(lanes, rows, offsets, width, values, strong=self.scope is not None)
        self._farewells_note(lanes, rows)

    def fence(self, lanes: Lanes) -> None:
        """Run `fence.proxy.async` of warps."""
        self.races.fence(lanes)

    def fence_barriers(self, lanes: Lanes) -> None:
        """Run `fence.mbarrier_init` of warps."""
        self.races.fence(lanes, barriers_only=True)

    def require_shown(self, lanes: Lanes, rows: Array, offsets: Array) -> None:
        """Check that mbarriers may be seen by asynchronous work, and by other blocks."""
        if not self._m.launch.fences.mbarrier_init:
            return
        hidden = self.races.hidden(rows, offsets)
        if hidden.any():
            at, row, offset = first_of(hidden, rows, offsets)
            raise self._m.fault(
                "E259", f"the mbarrier at shared {offset:#x} is used before a fence lets "
                "asynchronous work and other blocks see that it was initialised by "
                f"{self.races.maker(row, offset)}", int(lanes.index[at]),
                help="execute `fence.mbarrier_init.release.cluster` after mbarrier.init",
            )  # fmt: skip

    def undefine(self, rows: Array, offsets: Array) -> None:
        """Note that bytes hold nothing, although a copy has come."""
        self._clean[rows, offsets >> CHUNK_SHIFT] = False

    # Barriers, fences and words of memory, by which warps learn of each other.

    def arrive(self, lanes: Lanes, numbers: Array, completed: Array | bool) -> None:
        """Note that warps arrive at block barriers; some of them may have completed a phase."""
        self._phases.arrive(lanes, numbers, completed)
        self._tell(lanes)
        for ledger in self._ledgers:
            who = ledger.clocks.warps(lanes)
            ledger.block_barriers.give(who, who[0], numbers)

    def passed(self, lanes: Lanes, numbers: Array) -> None:
        """Note that warps pass block barriers."""
        for ledger in self._ledgers:
            who = ledger.clocks.warps(lanes)
            ledger.block_barriers.take(who, who[0], numbers)
        self.meet(lanes)

    def arrive_cluster(self, lanes: Lanes, *, relaxed: int | None = None) -> None:
        """Note that warps arrive at the barriers of their clusters."""
        if relaxed is None:
            self._tell(lanes)
        for ledger in self._ledgers:
            who = ledger.clocks.warps(lanes)
            clusters = who[0] // self._m.launch.cluster_size
            ledger.cluster_barriers.give(who, clusters, clusters * 0, relaxed=relaxed)
        self.races.come(self._m.block_of[lanes.sel] // self._m.launch.cluster_size)
        if self._farewells is not None:
            self._farewells.arrive(lanes)

    def pass_cluster(self, lanes: Lanes) -> None:
        """Note that warps pass the barriers of their clusters."""
        for ledger in self._ledgers:
            who = ledger.clocks.warps(lanes)
            clusters = who[0] // self._m.launch.cluster_size
            ledger.cluster_barriers.take(who, clusters, clusters * 0)
        self.meet(lanes)
        self.races.meet_cluster(self._m.block_of[lanes.sel])
        if self._farewells is not None:
            self._farewells.met(lanes)

    def arrive_mbarrier(
        self, lanes: Lanes, rows: Array, offsets: Array, *, relaxed: int | None = None
    ) -> None:
        """Note that warps arrive at mbarriers."""
        self.races.touch(lanes, rows, offsets, BARRIER_BYTES)
        columns = self._barriers.columns(offsets)
        if self._ends is not None:
            self._ends.note(lanes, rows, columns)
        self._farewells_note(lanes, rows)
        if relaxed is None:
            self._tell(lanes)
        for ledger in self._ledgers:
            ledger.mbarriers.give(ledger.clocks.warps(lanes), rows, columns, relaxed=relaxed)
        if relaxed is not None:
            # What is ordered, though no memory is, the clocks do not know.
            self._overtaken = None
        if self._overtaken is not None:
            self._overtaken.arrive(lanes, rows, columns)
            self._overtaken.check(lanes, rows, columns, offsets)

    def touch_mbarrier(self, lanes: Lanes, rows: Array, offsets: Array) -> None:
        """Check that mbarriers have been made, as lanes that ask and learn nothing see it."""
        self.races.touch(lanes, rows, offsets, BARRIER_BYTES)

    def pass_mbarrier(
        self, lanes: Lanes, rows: Array, offsets: Array, *, relaxed: int | None = None
    ) -> None:
        """Note that warps have seen phases of mbarriers complete."""
        self.races.touch(lanes, rows, offsets, BARRIER_BYTES)
        columns = self._barriers.columns(offsets)
        if self._ends is not None:
            self._ends.note(lanes, rows, columns)
        if self._unacquired is not None and relaxed is None:
            self._unacquired.acquire(rows, columns)
        for ledger in self._ledgers:
            who = ledger.clocks.warps(lanes)
            ledger.mbarriers.take(who, rows, columns, relaxed=relaxed, lanes=lanes)
            if relaxed is None:
                ledger.clocks.meetings.hear(lanes, ledger.mbarriers.heard(who, rows, columns))
        if self._overtaken is None or relaxed is not None:
            self._overtaken = None
            self._meet_whole(lanes)
            return
        self.clocks.tick()
        self._meet_whole(lanes)
        self._overtaken.wait(
            lanes, rows, columns, self.clocks.meetings.met[self.clocks.warps(lanes)]
        )

    def _tell(self, lanes: Lanes) -> None:
        """Note that lanes signal what they have done."""
        for ledger in self._ledgers:
            ledger.clocks.meetings.tell(lanes)

    def meet(self, lanes: Lanes) -> None:
        """Note that the lanes of warps have come together."""
        for ledger in self._ledgers:
            ledger.clocks.meetings.meet(lanes)

    def _meet_whole(self, lanes: Lanes) -> None:
        """Note the same for those warps all of whose lanes are there."""
        for ledger in self._ledgers:
            ledger.clocks.meetings.meet_whole(lanes)

    def begin_mbarrier(self, lanes: Lanes, rows: Array, offsets: Array) -> None:
        """Note that lanes make mbarriers, which nobody else may use the memory of."""
        self._occupancy.check_write(lanes, rows, offsets, BARRIER_BYTES)
        self._occupancy.count_barriers(rows, offsets, 1)
        self._clean[rows, offsets >> CHUNK_SHIFT] = False
        self.races.check_write(lanes, rows, offsets, BARRIER_BYTES, makes=True)
        self.races.made(lanes, rows, offsets, BARRIER_BYTES)
        if self._overtaken is not None:
            self._overtaken.begin(rows, self._barriers.columns(offsets))

    def join(self, lanes: Lanes) -> None:
        """Note that lanes issue an operation together."""
        if self._overtaken is not None:
            self._overtaken.join(lanes)

    def count_bytes(self, lanes: Lanes, rows: Array, offsets: Array) -> None:
        """Note that lanes issue a copy that counts its bytes off mbarriers later."""
        self.require_shown(lanes, rows, offsets)
        if self._overtaken is not None and any_of(rows != self._m.block_of[lanes.sel]):
            who, columns = self.clocks.warps(lanes), self._barriers.columns(offsets)
            self._ledgers[0].mbarriers.begin(who, rows, columns)

    def announce(self, lanes: Lanes, rows: Array, offsets: Array) -> None:
        """Note that lanes let an operation arrive at mbarriers later."""
        self.require_shown(lanes, rows, offsets)
        if self._overtaken is not None:
            self._overtaken.announce(lanes, rows, self._barriers.columns(offsets))

    def end_mbarrier(self, lanes: Lanes, rows: Array, offsets: Array) -> None:
        """Check that lanes may end mbarriers: nobody comes to them any more."""
        self._occupancy.count_barriers(rows, offsets, -1)
        self.races.made(lanes, rows, offsets, BARRIER_BYTES)
        if self._ends is not None:
            self._ends.check(lanes, rows, self._barriers.columns(offsets), offsets)

    def complete_mbarrier(self, lanes: Lanes, pc: int, rows: Array, offsets: Array) -> None:
        """Note that what lanes issued at an instruction has completed at mbarriers, one a lane."""
        columns = self._barriers.columns(offsets)
        for ledger in self._ledgers:
            ledger.mbarriers.give_async(rows, columns)
        if self._overtaken is not None:
            with self._m.at(pc):
                self._overtaken.check(lanes, rows, columns, offsets)
        if self._unacquired is not None:
            self._unacquired.tell(rows, columns)

    def tell_write(
        self, lanes: Lanes, target: tuple[Array, Array], size: int, barriers: Array,
        *, strong: bool,
    ) -> None:  # fmt: skip
        """Note that what lanes wrote asynchronously is there, and told at mbarriers beside it."""
        self.races.written_late(lanes, *target, size, strong=strong)
        who, columns = self.clocks.warps(lanes), self._barriers.columns(barriers)
        self.clocks.meetings.tell(lanes)
        self._ledgers[0].mbarriers.tell(who, target[0], columns)
        self._farewells_note(lanes, target[0])

    def _farewells_note(self, lanes: Lanes, rows: Array) -> None:
        if self._farewells is not None:
            self._farewells.note(lanes, rows)

    def fence_memory(self, lanes: Lanes, scope: int) -> None:
        """Run a memory fence of warps."""
        for ledger in self._ledgers:
            ledger.clocks.fence(lanes, scope)
        if self._unacquired is not None:
            self._unacquired.fence(self._m.block_of[lanes.sel])

    def signal(
        self, lanes: Lanes, space: str, addresses: Array, strength: Strength, *, reads: bool
    ) -> None:
        """Note that warps read strong words, or write them, and what order that makes."""
        keys = word_keys(self._m, lanes, space, addresses)
        for ledger in self._ledgers:
            if reads:
                ledger.take(lanes, keys, strength)
            else:
                ledger.clocks.meetings.tell(lanes)
                ledger.give(ledger.clocks.warps(lanes), keys, strength)

    # Asynchronous accesses.

    def begin_fill(
        self, lanes: Lanes, rows: Array, offsets: Array, size: int, issue: Issue
    ) -> None:
        """Check that lanes may fill `size` bytes at each place by `cp.async` until they wait."""
        self.write(lanes, rows, offsets, size)
        self._occupancy.begin_fill(rows, offsets, size, issue)

    def end_fill(self, lanes: Lanes, rows: Array, offsets: Array, size: int) -> None:
        """Note that lanes have waited for what they fill."""
        self._occupancy.end_fill(rows, offsets, size)
        self.races.written_late(lanes, rows, offsets, size)

    def begin_read(
        self, operation: Operation, lanes: Lanes, index: Index, used_bytes: int = CHUNK_BYTES
    ) -> None:
        """Check that an operation may read chunks, which it does until `end`.

        It uses the first bytes of each; behind them is padding.
        """
        if not self._clean[index].all():
            self._occupancy.check_operation(operation, lanes, index, "reads")
            self._check_fenced(operation, lanes, index, "reads")
            self._check_defined(operation, lanes, index, used_bytes)
        self._check_ordered(operation, lanes, index, writes=False)
        self._occupancy.begin(operation, index, writes=False)

    def begin_write(self, operation: Operation, lanes: Lanes, index: Index) -> None:
        """Check that an operation may overwrite chunks, which are undefined until `end`."""
        self._occupancy.check_operation(operation, lanes, index, "overwrites")
        self._check_fenced(operation, lanes, index, "overwrites")
        self._check_ordered(operation, lanes, index, writes=True)
        self._occupancy.begin(operation, index, writes=True)
        self._clean[index] = False
        self._defined[index] = 0

    def begin_combine(self, operation: Operation, lanes: Lanes, index: Index) -> None:
        """Check that an operation may change what chunks hold; several may do so at a time."""
        self._check_defined(operation, lanes, index)
        self._check_fenced(operation, lanes, index, "changes")
        self._occupancy.check_operation(operation, lanes, index, "changes")
        self._occupancy.begin(operation, index, writes=True)

    def end(self, operation: Operation, by: int | None = BY_MBARRIER) -> None:
        """End all accesses of an operation; `by` is the actor that a wait for it tells of."""
        for use in self._occupancy.end(operation):
            if use.writes and self._unacquired is not None:
                self._unacquired.fill(use.index, operation.issue)
            if use.writes:
                self._defined[use.index] = _ALL_DEFINED
                self._clean[use.index] = True
            self.races.done(use.index, operation.issue, writes=use.writes, by=by)

    def end_some(self, operation: Operation, rest: Index | None) -> None:
        """End what an operation still reads, but for the chunks that are the rest."""
        self._occupancy.end_some(operation, rest)

    # Reports.

    def _check_awaited(self, blocks: Array, lanes: Lanes) -> None:
        """Fault if blocks have ended that do not know that copies have come."""
        # Who waits without acquiring knows of nothing, and that it has come all the same.
        if self._unacquired is not None:
            return
        for row in blocks.tolist():
            left = self.races.left(row)
            if left is not None:
                raise self._occupancy.fault(
                    "E256", f"the block ends, and nobody has waited for the {left}", lanes, row,
                    "wait for it before the end",
                )  # fmt: skip

    def _check_barriers(self, lanes: Lanes, rows: Array, offsets: Array, width: int) -> None:
        low, high = self._barriers.bounds()
        near = (offsets < high) & (offsets + width > low)
        if not near.any():
            return
        touched = self._barriers.overlaps(rows, offsets, width)
        if touched.any():
            at, offset = first_of(touched, offsets)
            raise self._m.fault(
                "E253",
                f"an ordinary access of {width} bytes at shared {offset:#x} touches a live mbarrier"
                f" ({BARRIER_BYTES} bytes); end it with mbarrier.inval first",
                int(lanes.index[at]),
            )

    def _check_acquired(self, lanes: Lanes, rows: Array, offsets: Array) -> None:
        """Fault if an ordinary access comes to what a relaxed wait alone has told of."""
        if self._unacquired is None:
            return
        unknown = self._unacquired.unknown((rows, offsets >> CHUNK_SHIFT))
        if unknown.any():
            at, row, offset = first_of(unknown, rows, offsets)
            text = f"shared memory at {offset:#x} holds what {self._brought(row, offset)}"
            raise self._m.fault("E233", text, int(lanes.index[at]), _ACQUIRE)

    def _brought(self, row: int, offset: int) -> str:
        """Return what has brought a byte that nobody has acquired."""
        if self._unacquired is None:
            raise AssertionError("every wait of the program acquires")
        issue = self._unacquired.issue(row, offset >> CHUNK_SHIFT)
        return f"the {issue.what} ({issue.text(self._m, row, offset)}) has brought, {_RELAXED}"

    def _check_defined(
        self, operation: Operation, lanes: Lanes, index: Index, used_bytes: int = CHUNK_BYTES
    ) -> None:
        defined = self._defined[index]
        undefined = defined != _ALL_DEFINED
        if used_bytes < CHUNK_BYTES:
            each = np.ascontiguousarray(defined).view(np.bool_).reshape(*defined.shape, CHUNK_BYTES)
            undefined = ~each[..., :used_bytes].all(axis=-1)
        if undefined.any():
            row, offset = self._occupancy.place(index, undefined)
            raise self._occupancy.fault(
                "E231", f"the {operation.what} reads shared memory at {offset:#x} that nothing has "
                "written", lanes, row,
            )  # fmt: skip

    def _check_fenced(self, operation: Operation, lanes: Lanes, index: Index, verb: str) -> None:
        """Fault if no proxy fence covers an ordinary write."""
        bare = self.races.uncovered(index)
        if bare.any():
            row, offset = self._occupancy.place(index, bare)
            who = self.clocks.maker(row, int(self.races.stored[row, offset >> CHUNK_SHIFT]))
            raise self._occupancy.fault(
                "E252",
                f"the {operation.what} {verb} shared memory at {offset:#x} after an ordinary store "
                f"by {who} without fence.proxy.async between them",
                lanes, row,
                "execute `fence.proxy.async` after the store and before the barrier",
            )  # fmt: skip

    def _check_ordered(
        self, operation: Operation, lanes: Lanes, index: Index, *, writes: bool
    ) -> None:
        """Fault if an access of another warp is not ordered before the operation."""
        unordered = self.races.unordered(lanes, index, writes=writes)
        if unordered.any():
            row, offset = self._occupancy.place(index, unordered)
            verb = "overwrites" if writes else "reads"
            other = self.races.culprit(lanes, row, offset, writes=writes)
            raise self._occupancy.fault(
                "E234", f"the {operation.what} {verb} shared memory at {offset:#x} after an access "
                f"of another warp that no barrier orders before it: {other}", lanes, row,
                "put a barrier between the two accesses",
            )  # fmt: skip
        unknown = None if self._unacquired is None else self._unacquired.unknown(index)
        if unknown is not None and unknown.any():
            row, offset = self._occupancy.place(index, unknown)
            text = f"the {operation.what} uses shared memory at {offset:#x}, which holds what "
            raise self._occupancy.fault(
                "E234", text + self._brought(row, offset), lanes, row, _ACQUIRE
            )
