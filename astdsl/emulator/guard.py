"""Hazards of shared memory between ordinary accesses and the async proxy, by 16-byte chunk.

Three states are kept for every chunk of every block: asynchronous writes in flight, asynchronous
reads in flight, and the last ordinary write that no `fence.proxy.async` has covered yet.
Invariant: correct programs are never reported: where the order of two accesses is not known, they
count as ordered.  Source: PTX ISA 8.6 "Proxies", 9.7.13.4 "fence.proxy".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.mbarriers import BARRIER_BYTES, mbarriers_of

if TYPE_CHECKING:
    from astdsl.emulator.asynchronous import Operation
    from astdsl.emulator.faults import DeviceFault
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.memory import RowMemory
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["CHUNK_BYTES", "Index", "SharedGuard", "chunk_index", "define"]

CHUNK_BYTES = 16
_CHUNK_SHIFT = 4
_ALL_DEFINED = np.frombuffer(b"\x01" * CHUNK_BYTES, np.complex128)[0]

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


def define(shared: RowMemory, index: Index) -> None:
    """Count chunks of shared memory as written."""
    shared.defined.view(np.complex128)[index] = _ALL_DEFINED


@dataclass(slots=True, eq=False)
class _Use:
    operation: Operation
    index: Index
    writes: bool


class SharedGuard:
    """The states of all chunks of a machine's shared memory; see the module docstring."""

    def __init__(self, m: Machine) -> None:
        shared = m.memory.shared
        shape = shared.data.shape[0], shared.row_bytes // CHUNK_BYTES
        self._m = m
        self._barriers = mbarriers_of(m)
        self._defined = shared.defined.view(np.complex128)
        self._writing = np.zeros(shape, np.uint16)
        self._reading = np.zeros(shape, np.uint16)
        # Last unfenced ordinary write: site * warps + warp, 0 = none; sites count from 1.
        self._unfenced = np.zeros(shape, np.int32)
        self._n_warps = -(-m.n_threads // 32)
        self._sites = [0]
        self._acquired = np.zeros((shape[0], self._n_warps), np.int32)
        self._uses: list[_Use] = []

    # Ordinary accesses.

    def read(self, lanes: Lanes, rows: Array, offsets: Array, width: int) -> None:
        """Check an ordinary read of `width` bytes at each (row, offset)."""
        self._check_barriers(lanes, rows, offsets, width)
        if self._uses:
            busy = self._writing[rows, offsets >> _CHUNK_SHIFT] > 0
            if busy.any():
                raise self._collision(lanes, rows, offsets, busy, "read")

    def write(self, lanes: Lanes, rows: Array, offsets: Array, width: int) -> None:
        """Check an ordinary write, and note that no proxy fence covers it yet."""
        self._check_barriers(lanes, rows, offsets, width)
        place = rows, offsets >> _CHUNK_SHIFT
        if self._uses:
            busy = (self._writing[place] > 0) | (self._reading[place] > 0)
            if busy.any():
                raise self._collision(lanes, rows, offsets, busy, "written")
        self._sites.append(self._m.pc)
        site = (len(self._sites) - 1) * self._n_warps
        self._unfenced[place] = site + (self._m.thread_of[lanes.sel] >> 5)

    def acquire(self, lanes: Lanes) -> None:
        """Note that warps passed a barrier: what was written before may now be theirs to fence."""
        place = self._m.block_of[lanes.sel], self._m.thread_of[lanes.sel] >> 5
        self._acquired[place] = len(self._sites) - 1

    def fence(self, lanes: Lanes) -> None:
        """Run `fence.proxy.async`: cover the warps' own writes, and those before their barrier."""
        if len(self._sites) == 1:
            return
        if lanes.n == self._m.n_lanes:
            self._unfenced.fill(0)
            return
        warps = self._m.thread_of[lanes.sel] >> 5
        rows = self._m.block_of[lanes.sel]
        own = np.zeros(self._acquired.shape, np.bool_)
        own[rows, warps] = True
        until = np.where(own, self._acquired, 0).max(axis=1)
        blocks = np.unique(rows)
        stamps = self._unfenced[blocks]
        covered = own[blocks[:, None], stamps % self._n_warps]
        covered |= stamps // self._n_warps <= until[blocks, None]
        stamps[covered] = 0
        self._unfenced[blocks] = stamps

    # Asynchronous accesses.

    def begin_read(self, operation: Operation, lanes: Lanes, index: Index) -> None:
        """Check that an operation may read chunks, which it does until `end`."""
        self._check_fenced(operation, lanes, index)
        self._check_idle(operation, lanes, index, self._writing, "reads")
        undefined = self._defined[index] != _ALL_DEFINED
        if undefined.any():
            row, offset = self._place(index, undefined)
            raise self._fault(
                "E231", f"the {operation.what} reads shared memory at {offset:#x} that nothing has "
                "written", lanes, row,
            )  # fmt: skip
        self._reading[index] += 1
        self._uses.append(_Use(operation, index, writes=False))

    def begin_write(self, operation: Operation, lanes: Lanes, index: Index) -> None:
        """Check that an operation may overwrite chunks, which are undefined until `end`."""
        self._check_fenced(operation, lanes, index)
        self._check_idle(operation, lanes, index, self._writing, "overwrites")
        self._check_idle(operation, lanes, index, self._reading, "overwrites")
        self._writing[index] += 1
        self._defined[index] = 0
        self._uses.append(_Use(operation, index, writes=True))

    def end(self, operation: Operation) -> None:
        """End all accesses of an operation; what it wrote is defined."""
        for use in [u for u in self._uses if u.operation is operation]:
            self._uses.remove(use)
            counts = self._writing if use.writes else self._reading
            counts[use.index] -= 1
            if use.writes:
                self._defined[use.index] = _ALL_DEFINED

    # Reports.

    def _check_barriers(self, lanes: Lanes, rows: Array, offsets: Array, width: int) -> None:
        low, high = self._barriers.bounds()
        near = (offsets < high) & (offsets + width > low)
        if not near.any():
            return
        touched = self._barriers.overlaps(rows, offsets, width)
        if touched.any():
            at = int(np.argmax(touched))
            offset = int(np.broadcast_to(offsets, len(touched))[at])
            raise self._m.fault(
                "E253",
                f"an ordinary access of {width} bytes at shared {offset:#x} touches a live mbarrier"
                f" ({BARRIER_BYTES} bytes); end it with mbarrier.inval first",
                int(lanes.index[at]),
            )

    def _check_fenced(self, operation: Operation, lanes: Lanes, index: Index) -> None:
        stamps = self._unfenced[index]
        if not stamps.any():
            return
        row, offset = self._place(index, stamps > 0)
        site = int(self._unfenced[row, offset >> _CHUNK_SHIFT]) // self._n_warps
        raise self._fault(
            "E252",
            f"the {operation.what} accesses shared memory at {offset:#x} after an ordinary store "
            f"({self._m.place_text(self._sites[site])}) without fence.proxy.async between them",
            lanes, row,
            "execute `fence.proxy.async` after the store and before the barrier",
        )  # fmt: skip

    def _check_idle(
        self, operation: Operation, lanes: Lanes, index: Index, counts: Array, verb: str
    ) -> None:
        busy = counts[index] > 0
        if busy.any():
            row, offset = self._place(index, busy)
            other = self._user(row, offset, counts is self._writing)
            doing = "writing" if counts is self._writing else "reading"
            raise self._fault(
                "E251", f"the {operation.what} {verb} shared memory at {offset:#x} while the "
                f"{other.what} ({other.place}) is still {doing} it", lanes, row,
            )  # fmt: skip

    def _collision(
        self, lanes: Lanes, rows: Array, offsets: Array, busy: BoolArray, verb: str
    ) -> DeviceFault:
        at = int(np.argmax(busy))
        row = int(np.broadcast_to(rows, len(busy))[at])
        offset = int(np.broadcast_to(offsets, len(busy))[at])
        writes = bool(self._writing[row, offset >> _CHUNK_SHIFT])
        other = self._user(row, offset, writes)
        doing = "writing" if writes else "reading"
        return self._m.fault(
            "E250",
            f"shared memory at {offset:#x} is {verb} while the {other.what} "
            f"({other.place}) is still {doing} it",
            int(lanes.index[at]),
            help="wait for the operation first: its mbarrier, or its group",
        )

    def _user(self, row: int, offset: int, writes: bool) -> Operation:
        """Return an operation in flight that uses a chunk."""
        for use in self._uses:
            mask = np.zeros(self._writing.shape, np.bool_)
            mask[use.index] = True
            if use.writes == writes and mask[row, offset >> _CHUNK_SHIFT]:
                return use.operation
        raise AssertionError("a busy chunk without an operation that uses it")

    def _place(self, index: Index, wrong: BoolArray) -> tuple[int, int]:
        """Return row and byte offset of the first chunk of an index that is wrong."""
        n_rows, n_chunks = self._writing.shape
        at = int(np.argmax(wrong))
        rows = np.broadcast_to(np.arange(n_rows)[:, None], (n_rows, n_chunks))[index]
        chunks = np.broadcast_to(np.arange(n_chunks)[None, :], (n_rows, n_chunks))[index]
        return int(rows.reshape(-1)[at]), int(chunks.reshape(-1)[at]) * CHUNK_BYTES

    def _fault(
        self, code: str, message: str, lanes: Lanes, row: int, help: str | None = None
    ) -> DeviceFault:
        lane = int(lanes.index[np.argmax(self._m.block_of[lanes.index] == row)])
        return self._m.fault(code, message, lane, help=help)
