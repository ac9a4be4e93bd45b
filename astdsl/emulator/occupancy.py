"""What asynchronous operations and mbarriers hold of shared memory, by 16-byte chunk.

Invariant: an operation holds its chunks from its issue until it has ended, which for those that
belong to groups is when somebody has waited for it; `cp.async` holds words, and a live mbarrier
its chunk. Source: PTX ISA 9.7.9.25 "Data movement: asynchronous copy".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.filling import Filling
from astdsl.emulator.scalars import first_of

if TYPE_CHECKING:
    from astdsl.emulator.asynchronous import Operation
    from astdsl.emulator.faults import DeviceFault
    from astdsl.emulator.issues import Issue
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = [
    "CHUNK_BYTES", "CHUNK_SHIFT", "WAIT_FOR_FILL", "Index", "Occupancy", "Use", "chunk_index",
]  # fmt: skip

CHUNK_BYTES = 16
CHUNK_SHIFT = 4
WAIT_FOR_FILL = "let the thread that issues it wait (`cp.async.wait_group`), then pass a barrier"
# Indexes an array [blocks, chunks]: (rows, chunks), broadcast against each other.
Index = tuple[Any, Any]


def chunk_index(rows: Array, chunks: Any, n_rows: int, *, per_row: bool = False) -> Index:
    """Return the index of `chunks` in each of the rows.

    `chunks` is a slice or an array for all rows, or `per_row` an array whose first axis is the
    rows.  Rows that are all blocks in order become a slice, which NumPy serves much faster.
    """
    if per_row:
        return rows.reshape(-1, *(1,) * (chunks.ndim - 1)), chunks
    whole = len(rows) == n_rows and bool((rows == np.arange(n_rows)).all())
    if whole:
        return slice(None), chunks
    if isinstance(chunks, slice):
        return rows, chunks
    return rows.reshape(-1, *(1,) * chunks.ndim), chunks


@dataclass(slots=True, eq=False)
class Use:
    """The chunks that an operation reads or writes."""

    operation: Operation
    index: Index
    writes: bool


class Occupancy:
    """Who holds each chunk of a machine's shared memory, [blocks, chunks]."""

    def __init__(self, m: Machine, shape: tuple[int, int]) -> None:
        self._m = m
        self.shape = shape
        self._writing = np.zeros(shape, np.uint16)
        self._reading = np.zeros(shape, np.uint16)
        # How many live mbarriers are in a chunk.
        self._n_barriers = np.zeros(shape, np.uint8)
        self._uses: list[Use] = []
        # What `cp.async` fills, once there is one.
        self._filling: Filling | None = None

    def begin(self, operation: Operation, index: Index, *, writes: bool) -> None:
        """Let an operation hold chunks."""
        (self._writing if writes else self._reading)[index] += 1
        self._uses.append(Use(operation, index, writes))

    def end(self, operation: Operation) -> list[Use]:
        """Free all chunks that an operation holds; return what they were."""
        ended = [use for use in self._uses if use.operation is operation]
        for use in ended:
            self._uses.remove(use)
            (self._writing if use.writes else self._reading)[use.index] -= 1
        return ended

    def end_some(self, operation: Operation, rest: Index | None) -> None:
        """Free what an operation reads, but for the chunks that are the rest."""
        use = next(use for use in self._uses if use.operation is operation)
        self._reading[use.index] -= 1
        if rest is None:
            self._uses.remove(use)
        else:
            use.index = rest
            self._reading[rest] += 1

    def begin_fill(self, rows: Array, offsets: Array, size: int, issue: Issue) -> None:
        """Let `cp.async` hold `size` bytes at each place."""
        if self._filling is None:
            self._filling = Filling(self.shape)
        self._filling.begin(rows, offsets, size, issue)

    def end_fill(self, rows: Array, offsets: Array, size: int) -> None:
        """Free what `cp.async` held."""
        if self._filling is not None:
            self._filling.end(rows, offsets, size)

    def count_barriers(self, rows: Array, offsets: Array, change: int) -> None:
        """Note that mbarriers are made or end, one at each place."""
        np.add.at(self._n_barriers, (rows, offsets >> CHUNK_SHIFT), np.uint8(change & 0xFF))

    # Ordinary accesses.

    def check_read(self, lanes: Lanes, rows: Array, offsets: Array, width: int) -> None:
        """Fault if lanes read what an operation in flight writes."""
        if self._uses:
            busy = self._writing[rows, offsets >> CHUNK_SHIFT] > 0
            if busy.any():
                raise self._collision(lanes, rows, offsets, busy, "read")
        self._check_filled(lanes, rows, offsets, width, "read")

    def check_write(self, lanes: Lanes, rows: Array, offsets: Array, width: int) -> None:
        """Fault if lanes write what an operation in flight reads or writes."""
        if self._uses:
            place = rows, offsets >> CHUNK_SHIFT
            busy = (self._writing[place] > 0) | (self._reading[place] > 0)
            if busy.any():
                raise self._collision(lanes, rows, offsets, busy, "written")
        self._check_filled(lanes, rows, offsets, width, "written")

    def _check_filled(
        self, lanes: Lanes, rows: Array, offsets: Array, width: int, verb: str
    ) -> None:
        """Fault if lanes come to what `cp.async` still fills."""
        if self._filling is None:
            return
        busy = self._filling.reached(rows, offsets, width)
        if busy.any():
            at, row, offset = first_of(busy, rows, offsets)
            word, issue = self._filling.first(row, offset, width)
            raise self._m.fault(
                "E250", f"shared memory at {offset:#x} is {verb} while "
                f"{self._still(issue, row, word, writes=True)}", int(lanes.index[at]),
                help=WAIT_FOR_FILL,
            )  # fmt: skip

    def _collision(
        self, lanes: Lanes, rows: Array, offsets: Array, busy: BoolArray, verb: str
    ) -> DeviceFault:
        at, row, offset = first_of(busy, rows, offsets)
        writes = bool(self._writing[row, offset >> CHUNK_SHIFT])
        issue = self._user(row, offset, writes).issue
        return self._m.fault(
            "E250",
            f"shared memory at {offset:#x} is {verb} while "
            f"{self._still(issue, row, offset, writes=writes)}",
            int(lanes.index[at]),
            help="wait for the operation first: its mbarrier, or its group",
        )

    def _still(self, issue: Issue, row: int, offset: int, *, writes: bool) -> str:
        """Return what holds a byte, and how, for reports."""
        doing = "writing" if writes else "reading"
        return f"the {issue.what} ({issue.text(self._m, row, offset)}) is still {doing} it"

    # Operations.

    def check_operation(self, operation: Operation, lanes: Lanes, index: Index, verb: str) -> None:
        """Fault if others hold what an operation "reads", "overwrites" or "changes".

        Several may change it at a time.
        """
        self._check_no_barriers(operation, lanes, index, verb)
        self._check_filled_chunks(operation, lanes, index, verb)
        if verb != "changes":
            self._check_idle(operation, lanes, index, self._writing, verb)
        if verb != "reads":
            self._check_idle(operation, lanes, index, self._reading, verb)

    def _check_filled_chunks(
        self, operation: Operation, lanes: Lanes, index: Index, verb: str
    ) -> None:
        """Fault if an operation comes to what `cp.async` still fills."""
        if self._filling is None:
            return
        busy = self._filling.reached_chunks(index)
        if busy.any():
            row, offset = self.place(index, busy)
            word, issue = self._filling.first(row, offset, CHUNK_BYTES)
            raise self.fault(
                "E251", f"the {operation.what} {verb} shared memory at {offset:#x} while "
                f"{self._still(issue, row, word, writes=True)}", lanes, row, WAIT_FOR_FILL,
            )  # fmt: skip

    def _check_no_barriers(
        self, operation: Operation, lanes: Lanes, index: Index, verb: str
    ) -> None:
        """Fault if an operation comes to a live mbarrier as to data."""
        held = self._n_barriers[index] > 0
        if held.any():
            row, offset = self.place(index, held)
            raise self.fault(
                "E253", f"the {operation.what} {verb} shared memory at {offset:#x}, in whose "
                f"{CHUNK_BYTES} bytes there is a live mbarrier", lanes, row,
            )  # fmt: skip

    def _check_idle(
        self, operation: Operation, lanes: Lanes, index: Index, counts: Array, verb: str
    ) -> None:
        busy = counts[index] > 0
        if busy.any():
            row, offset = self.place(index, busy)
            writes = counts is self._writing
            issue = self._user(row, offset, writes).issue
            raise self.fault(
                "E251", f"the {operation.what} {verb} shared memory at {offset:#x} while "
                f"{self._still(issue, row, offset, writes=writes)}", lanes, row,
            )  # fmt: skip

    def _user(self, row: int, offset: int, writes: bool) -> Operation:
        """Return an operation in flight that uses a chunk."""
        for use in self._uses:
            mask = np.zeros(self._writing.shape, np.bool_)
            mask[use.index] = True
            if use.writes == writes and mask[row, offset >> CHUNK_SHIFT]:
                return use.operation
        raise AssertionError("a busy chunk without an operation that uses it")

    def place(self, index: Index, wrong: BoolArray) -> tuple[int, int]:
        """Return row and byte offset of the first chunk of an index that is wrong."""
        n_rows, n_chunks = self.shape
        at = int(np.argmax(wrong))
        rows = np.broadcast_to(np.arange(n_rows)[:, None], (n_rows, n_chunks))[index]
        chunks = np.broadcast_to(np.arange(n_chunks)[None, :], (n_rows, n_chunks))[index]
        return int(rows.reshape(-1)[at]), int(chunks.reshape(-1)[at]) * CHUNK_BYTES

    def fault(
        self, code: str, message: str, lanes: Lanes, row: int, help: str | None = None
    ) -> DeviceFault:
        """Return the fault of those of the lanes that belong to a block."""
        lane = int(lanes.index[np.argmax(self._m.block_of[lanes.index] == row)])
        return self._m.fault(code, message, lane, help=help)
