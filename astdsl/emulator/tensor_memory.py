"""Tensor memory of all blocks: 128 lanes x 512 columns of 32-bit cells, allocated by columns.

Invariant: only allocated columns are accessed, and only columns up to the last that a block has
ever allocated have cells; cells that a product in flight writes or reads, and
those of loads and stores not yet waited for, are known by column and group of 16 lanes.  Registers
that a load fills may be used at once: their true dependence is honoured, as compilers rely on.
Source: PTX ISA 9.7.16.1 "Tensor Memory", 9.7.16.7 "Allocation", 9.7.16.6 "Memory consistency".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.formats.fragments import TMEM_COLUMNS, TMEM_LANES
from astdsl.emulator.scalars import all_of, any_of
from astdsl.emulator.tensor_races import TensorRaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from astdsl.emulator.asynchronous import Operation
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["Cells", "TensorMemory"]

LANE_SHIFT = 16
COLUMN_MASK = 0xFFFF
GROUP_LANES = 16
N_GROUPS = TMEM_LANES // GROUP_LANES
_POISON = 0x7FC0DEAD
_APART_COLUMNS = 16

# A rectangle of tensor memory: blocks, groups of 16 lanes, columns [first, end).
Cells = tuple["Array", "Array", slice]
# The same, or many at once, as an index of arrays [blocks, groups, columns].
Where = tuple[Any, Any, Any]


class _Unwaited:
    """Cells whose loads, or stores, no wait covers yet, and which groups of lanes have some."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.cells = np.zeros(shape, np.bool_)
        self._groups = np.zeros(shape[:2], np.bool_)

    def has(self, where: Where) -> bool:
        """Say whether some of the cells are among them."""
        return any_of(self._groups) and any_of(self.cells[where])

    def note(self, where: Where) -> None:
        """Add cells."""
        self.cells[where] = self._groups[where[:2]] = True

    def wait(self, rows: Array, warps: Array) -> None:
        """Take out those of warps, which access the 32 lanes of their place in four."""
        where = rows[:, None], 2 * (warps[:, None] % 4) + np.arange(2)
        if any_of(self._groups[where]):
            self.cells[where] = self._groups[where] = False


class TensorMemory:
    """The cells of a machine's blocks, their allocation and the hazards on them."""

    def __init__(self, m: Machine) -> None:
        n = m.n_blocks
        self._m = m
        self.data = np.empty((n, TMEM_LANES, 0), np.uint32)
        self.allocated = np.zeros((n, TMEM_COLUMNS), np.bool_)
        self.sizes: list[dict[int, int]] = [{} for _ in range(n)]
        self.may_allocate = np.ones(n, np.bool_)
        shape = n, N_GROUPS, TMEM_COLUMNS
        self.defined = np.zeros(shape, np.bool_)
        self._writing = np.zeros(shape, np.uint8)
        self._reading = np.zeros(shape, np.uint8)
        self._stored, self._loaded = _Unwaited(shape), _Unwaited(shape)
        # The cells of each `tcgen05.ld`, where the use of its registers is the wait for it.
        self._by_load: dict[int, BoolArray] = {}
        self._users: list[tuple[Operation, Cells, bool]] = []
        self._races: TensorRaces | None = None
        if m.guard is not None:
            self._races = TensorRaces(m.guard.clocks, shape, m.launch.cluster_size)
        m.exit_checks.append(self._check_freed)

    # Allocation.

    def find_free(self, columns: int, together: int = 1) -> Array:
        """Return for each block the first aligned run of columns that is free, -1 without one.

        `together` neighbouring blocks take the same columns.
        """
        runs = self.allocated.reshape(-1, together, TMEM_COLUMNS // columns, columns)
        free = ~np.asarray(runs.any(axis=(1, 3)), np.bool_)
        first = np.where(free.any(axis=1), np.argmax(free, axis=1) * columns, -1)
        return np.repeat(first, together)

    def allocate(self, row: int, first: int, columns: int) -> None:
        """Give columns to a block; their contents are undefined."""
        self._reach(first + columns)
        self.allocated[row, first : first + columns] = True
        self.defined[row, :, first : first + columns] = False
        self.data[row, :, first : first + columns] = _POISON
        self.sizes[row][first] = columns

    def _reach(self, columns: int) -> None:
        """Have cells for so many columns; rows lie apart so that they meet in no set of a cache."""
        n, n_lanes, n_columns = self.data.shape
        if columns > n_columns:
            data = np.empty((n, n_lanes, columns + _APART_COLUMNS), np.uint32)
            data[:, :, :n_columns] = self.data
            self.data = data

    def free(self, row: int, first: int, columns: int, lanes: Lanes) -> None:
        """Take columns back, which must be exactly what was allocated, and no longer in use."""
        lane = int(lanes.index[0])
        if self.sizes[row].get(first) != columns:
            raise self._m.fault(
                "E273", f"tcgen05.dealloc of columns {first}..{first + columns - 1}, which are no "
                f"allocation of this block; it has {self.sizes[row]}", lane,
            )  # fmt: skip
        cells = np.array([row]), np.arange(N_GROUPS), slice(first, first + columns)
        where = self._index(cells)
        busy = (self._writing[where] > 0) | (self._reading[where] > 0)
        busy |= self._loaded.cells[where] | self._stored.cells[where]
        if any_of(busy):
            _, place = _first(busy, where)
            text = f"tensor memory is freed while {self._user_text(place)}"
            raise self._m.fault("E276", text, lane)
        self._check_operation(cells, lanes, "tcgen05.dealloc frees", writes=True, frees=True)
        self.allocated[row, first : first + columns] = False
        del self.sizes[row][first]

    def _check_freed(self, rows: Array, lanes: Lanes) -> None:
        for row in rows:
            if self.sizes[row]:
                lane = int(lanes.index[np.argmax(self._m.block_of[lanes.sel] == row)])
                sizes = ", ".join(f"{n} columns from {c}" for c, n in self.sizes[row].items())
                raise self._m.fault(
                    "E272", f"the block ends without freeing its tensor memory: {sizes}", lane,
                    help="execute tcgen05.dealloc before the end",
                )  # fmt: skip

    def require_allocated(self, rows: Array, columns: slice, lane: int, what: str) -> None:
        """Fault if a block uses columns that it has not allocated."""
        whole = columns.stop <= TMEM_COLUMNS and all_of(self.allocated[rows, columns])
        if not whole:
            raise self._m.fault(
                "E270", f"{what} uses columns {columns.start}..{columns.stop - 1} of tensor memory,"
                " which the block has not allocated", lane,
            )  # fmt: skip

    # Accesses of products and copies, which are asynchronous.

    def begin(self, operation: Operation, cells: Cells, lanes: Lanes, *, writes: bool) -> None:
        """Put cells in flight: an operation reads or writes them until `end`."""
        where = self._index(cells)
        for unwaited in (self._stored, self._loaded)[: 1 + writes]:
            if unwaited.has(where):
                _, place = _first(unwaited.cells[where], where)
                text = f"the {operation.what} uses tensor memory while {self._unwaited_text(place)}"
                raise self._m.fault("E275", text, int(lanes.index[0]))
        self._check_operation(cells, lanes, f"the {operation.what} uses", writes=writes)
        self._check_fences(cells, lanes, f"the {operation.what} uses", writes=writes)
        counts = self._writing if writes else self._reading
        counts[where] += 1
        self._users.append((operation, cells, writes))

    def _check_operation(
        self, cells: Cells, lanes: Lanes, what: str, *, writes: bool, frees: bool = False
    ) -> None:
        if self._races is not None and self._m.guard is not None:
            known = self._m.guard.clocks.issuers(lanes, cells[0])
            where = self._index(cells)
            unordered = self._races.unordered_operation(where, known, writes=writes)
            if frees:
                unordered |= self._races.unawaited(where, known)
            self._check_order(unordered, where, int(lanes.index[0]), what)

    def _check_fences(self, cells: Cells, lanes: Lanes, what: str, *, writes: bool) -> None:
        if self._races is None or not self._m.launch.fences.tcgen05:
            return
        # One thread issues for each block; that of the pair's even block for both of a pair.
        warps = self._m.thread_of[lanes.sel] >> 5
        where = self._index(cells)
        rows = self._m.block_of[lanes.sel]
        if all_of(rows == cells[0]):
            bad = self._races.unfenced_operation(where, warps, writes=writes)
            self._check_fenced(bad, where, int(lanes.index[0]), what)

    def fence(self, lanes: Lanes, *, after: bool) -> None:
        """Run tcgen05.fence::after_thread_sync, or ::before_thread_sync."""
        if self._races is not None:
            rows, warps = self._m.block_of[lanes.sel], self._m.thread_of[lanes.sel] >> 5
            self._races.fence(rows, warps, after=after)

    def end(self, operation: Operation) -> None:
        """End all accesses of an operation; what it wrote is defined."""
        mine = [user for user in self._users if user[0] is operation]
        self._users = [user for user in self._users if user[0] is not operation]
        for _, cells, writes in mine:
            if self._races is not None:
                self._races.done(self._index(cells), operation.issue, writes=writes)
            counts = self._writing if writes else self._reading
            counts[self._index(cells)] -= 1
            if writes:
                self.defined[self._index(cells)] = True

    def is_defined(self, cells: Cells) -> bool:
        """Say whether all cells have been written, or will be by products in flight before."""
        defined = self._at(self.defined, cells)
        return all_of(defined) or all_of(defined | (self._at(self._writing, cells) > 0))

    # Accesses of loads and stores, which warps execute: arrays of (row, group, column), or slices
    # of cells that nothing else uses.

    def is_busy(self, where: Where) -> bool:
        """Say whether something that is in flight uses some of the cells."""
        if self._users and (any_of(self._writing[where]) or any_of(self._reading[where])):
            return True
        return self._stored.has(where)

    def load(self, where: Where, leaders: Array) -> None:
        """Check and note a load by the warps of the lanes `leaders`; no wait covers it yet."""
        if self.is_busy(where):
            busy = (self._writing[where] > 0) | self._stored.cells[where]
            self._check_free(busy, where, leaders, "read")
        self._order_access(where, leaders, stores=False)
        self._loaded.note(where)
        if self._m.program.waits_by_registers:
            pc = self._m.pc
            self._by_load.setdefault(pc, np.zeros_like(self.defined))[where] = True

    def store(self, where: Where, leaders: Array) -> None:
        """Check and note a store by warps; no wait covers it yet."""
        if self._users:
            busy = (self._writing[where] > 0) | (self._reading[where] > 0)
            self._check_free(busy, where, leaders, "written")
        self._order_access(where, leaders, stores=True)
        self._stored.note(where)

    def _order_access(self, where: Where, leaders: Array, *, stores: bool) -> None:
        if self._races is None:
            return
        warps = self._m.thread_of[leaders] >> 5
        bad = self._races.unordered_access(where, warps, stores=stores)
        at = int(np.argmax(bad.reshape(len(leaders), -1).any(axis=1)))
        self._check_order(bad, where, int(leaders[at]), "this access uses")
        if self._m.launch.fences.tcgen05:
            bad = self._races.unfenced_access(where, warps)
            at = int(np.argmax(bad.reshape(len(leaders), -1).any(axis=1)))
            self._check_fenced(bad, where, int(leaders[at]), "this access uses")
        self._races.note(where, warps, stores=stores)

    def _check_free(self, busy: BoolArray, where: Where, leaders: Array, verb: str) -> None:
        if any_of(busy):
            at, place = _first(busy, where)
            raise self._m.fault(
                "E276", f"column {place[2]} of tensor memory is {verb} while "
                + self._user_text(place), int(leaders[at]),
            )  # fmt: skip

    def _check_order(self, bad: BoolArray, where: Where, lane: int, what: str) -> None:
        if any_of(bad) and self._races is not None:
            _, place = _first(bad, where)
            raise self._m.fault(
                "E277", f"{what} column {place[2]} of tensor memory, and nothing orders that after "
                f"its use before ({self._races.last(place)})", lane,
                help="wait for the commit's mbarrier, or put a barrier between the two",
            )  # fmt: skip

    def _check_fenced(self, bad: BoolArray, where: Where, lane: int, what: str) -> None:
        if any_of(bad) and self._races is not None:
            _, place = _first(bad, where)
            raise self._m.fault(
                "E279", f"{what} column {place[2]} of tensor memory; threads synchronise between "
                f"that and its use before ({self._races.last(place)}), without tcgen05.fence",
                lane,
            )  # fmt: skip

    def wait_stores(self, rows: Array, warps: Array) -> None:
        """Run tcgen05.wait::st of warps."""
        self._stored.wait(rows, warps)

    def wait_loads(self, rows: Array, warps: Array) -> None:
        """Run tcgen05.wait::ld of warps."""
        self._loaded.wait(rows, warps)

    def wait_registers(self, rows: Array, warps: Array, loads: Sequence[int]) -> None:
        """Let warps use registers that the loads at some places of the program fill."""
        where = rows[:, None], 2 * (warps[:, None] % 4) + np.arange(2)
        for pc in loads:
            cells = self._by_load.get(pc)
            if cells is not None:
                self._loaded.cells[where] &= ~cells[where]
                cells[where] = False

    def _user_text(self, place: tuple[int, int, int]) -> str:
        """Return which operation in flight uses a cell, for reports."""
        for operation, cells, _ in self._users:
            rows, groups, columns = cells
            inside = columns.start <= place[2] < columns.stop
            if inside and place[0] in rows and place[1] in groups:
                who = operation.issue.text(self._m, place[0])
                return f"the {operation.what} ({who}) is in flight"
        return self._unwaited_text(place)

    def _unwaited_text(self, place: tuple[int, int, int]) -> str:
        """Return which access of a cell by a warp has not been waited for, for reports."""
        stores = bool(self._stored.cells[place])
        short = "st" if stores else "ld"
        who = "" if self._races is None else f" ({self._races.accessed(place, stores=stores)})"
        return f"tcgen05.{short}{who} has not been waited for with tcgen05.wait::{short}"

    def _index(self, cells: Cells) -> Where:
        rows, groups, columns = cells
        whole = len(rows) == len(self.defined) and len(groups) == N_GROUPS
        if whole and self._races is None:
            # Faster; the races go by the order of the blocks.
            return slice(None), slice(None), columns
        return rows[:, None], groups[None, :], columns

    def _at(self, array: Array, cells: Cells) -> Array:
        values: Array = array[self._index(cells)]
        return values


def _first(bad: BoolArray, where: Where) -> tuple[int, tuple[int, int, int]]:
    """Return the leading position and the (block, group, column) of the first true element."""
    at = np.unravel_index(int(np.argmax(bad)), bad.shape)
    index = np.arange(bad.shape[2])
    columns = where[2]
    if isinstance(columns, slice):
        columns = columns.start + index
    rows, groups = where[0], where[1]
    if isinstance(rows, slice):
        rows, groups = np.ogrid[: bad.shape[0], : bad.shape[1]]
    if rows.ndim == 2:
        rows, groups = rows[:, :, None], groups[:, :, None]
    row, group, column = (int(np.broadcast_to(p, bad.shape)[at]) for p in (rows, groups, columns))
    return int(at[0]), (row, group, column)
