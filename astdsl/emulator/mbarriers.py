"""The mbarrier objects of all blocks of a batch: phases, arrivals and transaction bytes, exactly.

Invariant: a phase completes when no arrival is pending and the transaction count is zero, and only
then; the count of arrivals is then renewed.  An object exists from `init` to `invalidate`.
Source: PTX ISA 9.7.13.15 "mbarrier", sections "Phase", "Tracking asynchronous operations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from astdsl.emulator.scalars import all_of, any_of

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine

__all__ = [
    "BARRIER_BYTES", "LIMIT", "BarrierMisuse", "BarrierState", "Mbarriers", "mbarriers_of",
    "pending_counts", "phase_of",
]  # fmt: skip

BARRIER_BYTES = 8
LIMIT = (1 << 20) - 1
# A state token is the phase; of an arrival with `.noComplete` also the arrivals pending before it.
_PENDING_SHIFT = 40
_KNOWS_PENDING = np.uint64(1 << 63)
_PHASES = (1 << _PENDING_SHIFT) - 1
_COLUMNS = (
    "_live", "_seen", "_pending", "_expected", "_expected_bytes", "_arrived_bytes", "_phase",
)  # fmt: skip

Index = NDArray[np.int64]


class BarrierMisuse(Exception):
    """A program broke a rule of mbarriers; `at` is the position in the arrays of the call."""

    def __init__(self, code: str, message: str, at: int) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.at = at


class BarrierState(NamedTuple):
    """Show one barrier of one block, as reports name it."""

    offset_bytes: int
    phase: int
    pending: int
    expected: int
    expected_bytes: int
    arrived_bytes: int

    def __str__(self) -> str:
        return (
            f"mbarrier at shared {self.offset_bytes:#x}: phase {self.phase} incomplete, "
            f"{self.pending} of {self.expected} arrivals missing, {self.expected_bytes} bytes "
            f"expected and {self.arrived_bytes} arrived"
        )


class BarrierLeft(NamedTuple):
    """A barrier that a block leaves behind in the middle of a phase."""

    block: int
    state: BarrierState


class Mbarriers:
    """Hold the barriers of `n_blocks` blocks, one column per shared-memory offset in use.

    All methods take equally long arrays `blocks` and `offsets` (bytes in the block's shared
    memory); entries may repeat, and then act one after the other.
    """

    def __init__(self, n_blocks: int) -> None:
        self._n_blocks = n_blocks
        self._column: dict[int, int] = {}
        self._live = np.zeros((n_blocks, 0), np.bool_)
        # Whether a wait has seen the completion of the preceding phase.
        self._seen = self._live.copy()
        self._pending = np.zeros((n_blocks, 0), np.int64)
        self._expected = self._pending.copy()
        # What this phase expects and has got; the transaction count is the difference.
        self._expected_bytes = self._pending.copy()
        self._arrived_bytes = self._pending.copy()
        self._phase = self._pending.copy()
        self.version = 0

    def init(self, blocks: Index, offsets: Index, counts: Index) -> None:
        """Make barriers that expect `counts` arrivals per phase, at phase 0."""
        _check_aligned(offsets)
        _fault_where(
            (counts < 1) | (counts > LIMIT),
            lambda i: f"mbarrier.init with {counts[i]} arrivals; the count is 1 to {LIMIT}", "E240",
        )  # fmt: skip
        columns = self._columns(offsets, create=True)
        _fault_where(
            self._live[blocks, columns],
            lambda i: f"mbarrier at shared {offsets[i]:#x} is initialised again without "
            "mbarrier.inval", "E241",
        )  # fmt: skip
        where = blocks, columns
        self._live[where] = True
        self._seen[where] = True
        self._pending[where] = self._expected[where] = counts
        self._expected_bytes[where] = self._arrived_bytes[where] = self._phase[where] = 0

    def invalidate(self, blocks: Index, offsets: Index) -> None:
        """End barriers; their memory is ordinary again."""
        where = self._find(blocks, offsets)
        self._live[where] = False

    def drop(self, blocks: Index, offsets: Index, counts: Index) -> None:
        """Expect so many arrivals fewer from the next phase on; the arrivals follow."""
        where = self._find(blocks, offsets)
        np.subtract.at(self._expected, where, counts)
        left = self._expected[where]
        _fault_where(
            left < 0,
            lambda i: f"mbarrier at shared {offsets[i]:#x}: more participants drop than there are",
            "E244",
        )

    def expect_arrivals(self, blocks: Index, offsets: Index, counts: Index) -> None:
        """Let the current phase wait for so many more arrivals."""
        where = self._find(blocks, offsets)
        np.add.at(self._pending, where, counts)

    def arrive(self, blocks: Index, offsets: Index, counts: Index) -> NDArray[np.uint64]:
        """Count arrivals; return the state token of each: the phase before it."""
        where = self._find(blocks, offsets)
        _fault_where(
            (counts < 1) | (counts > LIMIT),
            lambda i: f"mbarrier arrive with count {counts[i]}; the count is 1 to {LIMIT}", "E242",
        )  # fmt: skip
        if self._repeats(where):
            return self._arrive_in_order(where, offsets, counts)
        self._check_arrivals(where, offsets, counts)
        tokens = self._phase[where].astype(np.uint64)
        self._pending[where] -= counts
        self._complete(where)
        return tokens

    def arrive_early(self, blocks: Index, offsets: Index, counts: Index) -> NDArray[np.uint64]:
        """Count arrivals which must not complete the phase; their tokens know the pending count."""
        tokens = np.empty(len(counts), np.uint64)
        for i in range(len(counts)):
            one = blocks[i : i + 1], offsets[i : i + 1]
            where = self._find(*one)
            pending, phase = int(self._pending[where][0]), int(self._phase[where][0])
            self.arrive(*one, counts[i : i + 1])
            if self._phase[where][0] != phase:
                text = f"mbarrier at shared {offsets[i]:#x}: an arrival with .noComplete completes "
                raise BarrierMisuse("E244", f"{text}phase {phase}", i)
            tokens[i] = phase | pending << _PENDING_SHIFT | int(_KNOWS_PENDING)
        return tokens

    def expect_bytes(self, blocks: Index, offsets: Index, sizes: Index) -> None:
        """Raise the transaction count: the current phase waits for so many more bytes."""
        self._transact(self._expected_bytes, blocks, offsets, sizes)

    def complete_bytes(self, blocks: Index, offsets: Index, sizes: Index) -> None:
        """Lower the transaction count: so many bytes have arrived."""
        self._transact(self._arrived_bytes, blocks, offsets, sizes)

    def is_complete(self, blocks: Index, offsets: Index, parity: Index) -> NDArray[np.bool_]:
        """Say for each whether the phase of that parity is complete: `phase & 1 != parity`.

        A fresh barrier is complete for parity 1.  A true answer counts as a successful wait.
        """
        where = self._find(blocks, offsets)
        return self._note(where, (self._phase[where] & 1) != (parity & 1))

    def has_passed(
        self, blocks: Index, offsets: Index, tokens: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Say for each whether the phase of the state token is complete."""
        where = self._find(blocks, offsets)
        phases = tokens & np.uint64(_PHASES)
        return self._note(where, self._phase[where].astype(np.uint64) != phases)

    def state(self, block: int, offset: int) -> BarrierState:
        """Return the state of one barrier, for reports."""
        column = self._column[offset]
        return BarrierState(
            offset,
            int(self._phase[block, column]),
            int(self._pending[block, column]),
            int(self._expected[block, column]),
            int(self._expected_bytes[block, column]),
            int(self._arrived_bytes[block, column]),
        )

    def phases(self, blocks: Index, columns: Index) -> Index:
        """Return the phases that barriers are in, by their columns."""
        found: Index = self._phase[blocks, columns]
        return found

    def live_offsets(self, block: int) -> list[int]:
        """Return the offsets at which a block has live barriers, ascending."""
        return sorted(o for o, column in self._column.items() if self._live[block, column])

    def half_arrived(self, blocks: Index) -> BarrierLeft | None:
        """Return a live barrier in the middle of a phase, None if there is none."""
        uneven = self._expected_bytes != self._arrived_bytes
        begun = (self._pending != self._expected) | uneven
        rows, columns = np.nonzero((self._live & begun)[blocks])
        if not len(rows):
            return None
        offsets = {column: offset for offset, column in self._column.items()}
        block = int(blocks[rows[0]])
        return BarrierLeft(block, self.state(block, offsets[int(columns[0])]))

    def columns(self, offsets: Index) -> Index:
        """Return a small number for each barrier's offset, the same in all blocks."""
        return self._columns(offsets)

    def overlaps(self, blocks: Index, first: Index, size_bytes: int) -> NDArray[np.bool_]:
        """Say for each access [first, first + size) whether it touches a live barrier."""
        touched = np.zeros(np.broadcast_shapes(blocks.shape, first.shape), np.bool_)
        for offset, column in self._column.items():
            near = (first < offset + BARRIER_BYTES) & (first + size_bytes > offset)
            if any_of(near):
                touched |= near & self._live[blocks, column]
        return touched

    def bounds(self) -> tuple[int, int]:
        """Return the range of offsets that have ever held a barrier; empty is (0, 0)."""
        if not self._column:
            return 0, 0
        return min(self._column), max(self._column) + BARRIER_BYTES

    def _column_of_all(self, offsets: Index) -> Index | None:
        """Return the column of every offset, if all are of one barrier."""
        column = self._column.get(int(offsets[0]))
        if column is None or not all_of(offsets == offsets[0]):
            return None
        return np.full(len(offsets), column, np.int64)

    def _columns(self, offsets: Index, create: bool = False) -> Index:
        """Return the column of every offset, -1 where there has never been a barrier."""
        found = self._column_of_all(offsets)
        if found is not None:
            return found
        distinct, inverse = np.unique(offsets, return_inverse=True)
        known = [self._column.get(int(o), -1) for o in distinct]
        if create and -1 in known:
            known = [self._add(int(o)) for o in distinct]
        return np.array(known, np.int64)[inverse]

    def _add(self, offset: int) -> int:
        column = self._column.setdefault(offset, len(self._column))
        if column >= self._live.shape[1]:
            wider = max(8, 2 * column)
            for name in _COLUMNS:
                old = getattr(self, name)
                new = np.zeros((self._n_blocks, wider), old.dtype)
                new[:, : old.shape[1]] = old
                setattr(self, name, new)
        return column

    def _find(self, blocks: Index, offsets: Index) -> tuple[Index, Index]:
        # Mostly one offset, of a barrier, which is aligned.
        columns = self._column_of_all(offsets)
        if columns is None:
            _check_aligned(offsets)
            columns = self._columns(offsets)
            live = (columns >= 0) & self._live[blocks, columns] if self._column else columns >= 0
        else:
            live = self._live[blocks, columns]
        _fault_where(
            ~live,
            lambda i: f"there is no initialised mbarrier at shared {offsets[i]:#x}", "E243",
        )  # fmt: skip
        return blocks, columns

    def _repeats(self, where: tuple[Index, Index]) -> bool:
        # Lanes ascend by block, so one lane of each block is the case at a glance.
        if len(where[0]) <= self._n_blocks and all_of(where[0][1:] > where[0][:-1]):
            return False
        keys = where[0] * self._live.shape[1] + where[1]
        return len(np.unique(keys)) < len(keys)

    def _check_arrivals(self, where: tuple[Index, Index], offsets: Index, counts: Any) -> None:
        pending = self._pending[where]
        _fault_where(
            counts > pending,
            lambda i: f"mbarrier at shared {offsets[i]:#x}: {counts[i]} arrivals, but the phase "
            f"waits for {pending[i]} more (of {self._expected[where][i]})", "E244",
        )  # fmt: skip
        # PTX ISA 9.7.13.15.1: a completed phase must have been waited for before the next arrival.
        _fault_where(
            ~self._seen[where],
            lambda i: f"mbarrier at shared {offsets[i]:#x}: an arrival in phase "
            f"{self._phase[where][i]} before any wait has seen the preceding phase complete",
            "E245",
        )  # fmt: skip

    def _arrive_in_order(
        self, where: tuple[Index, Index], offsets: Index, counts: Index
    ) -> NDArray[np.uint64]:
        """Arrive with repeated barriers: at once where all fit in the phase, else one by one."""
        keys = where[0] * self._live.shape[1] + where[1]
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        totals = np.bincount(inverse, weights=counts).astype(np.int64)
        once = where[0][first], where[1][first]
        if all_of(totals <= self._pending[once]):
            tokens = self._phase[where].astype(np.uint64)
            self._check_arrivals(once, offsets[first], totals)
            self._pending[once] -= totals
            self._complete(once)
            return tokens
        tokens = np.empty(len(counts), np.uint64)
        for i in range(len(counts)):
            one = where[0][i : i + 1], where[1][i : i + 1]
            self._check_arrivals(one, offsets[i : i + 1], counts[i : i + 1])
            tokens[i] = self._phase[one][0]
            self._pending[one] -= counts[i]
            self._complete(one)
        return tokens

    def _transact(self, counts: Index, blocks: Index, offsets: Index, sizes: Index) -> None:
        where = self._find(blocks, offsets)
        if self._repeats(where):
            np.add.at(counts, where, sizes)
        else:
            counts[where] += sizes
        _fault_where(
            np.abs(self._expected_bytes[where] - self._arrived_bytes[where]) > LIMIT,
            lambda i: f"{self.state(int(where[0][i]), int(offsets[i]))}; the transaction count, "
            f"which is their difference, is limited to {LIMIT}", "E246",
        )  # fmt: skip
        self._complete(where)

    def _complete(self, where: tuple[Index, Index]) -> None:
        """Begin the next phase of those that have neither arrivals nor bytes pending."""
        even = self._expected_bytes[where] == self._arrived_bytes[where]
        done = (self._pending[where] == 0) & even
        if any_of(done):
            blocks, columns = where[0][done], where[1][done]
            self._phase[blocks, columns] = self._phase[blocks, columns] + 1
            self._pending[blocks, columns] = self._expected[blocks, columns]
            self._seen[blocks, columns] = False
            self._expected_bytes[blocks, columns] = self._arrived_bytes[blocks, columns] = 0
            self.version += 1

    def _note(self, where: tuple[Index, Index], complete: NDArray[np.bool_]) -> NDArray[np.bool_]:
        if all_of(complete):
            self._seen[where] = True
        elif any_of(complete):
            self._seen[where[0][complete], where[1][complete]] = True
        return complete


def phase_of(token: int) -> int:
    """Return the phase of a state token."""
    return token & _PHASES


def pending_counts(tokens: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return the arrivals that were pending before those that gave the tokens."""
    _fault_where(
        (tokens & _KNOWS_PENDING) == 0,
        lambda i: f"{int(tokens[i]):#x} is not the state of an arrival with .noComplete", "E248",
    )  # fmt: skip
    counts = tokens >> np.uint64(_PENDING_SHIFT) & np.uint64(LIMIT)
    return counts.astype(np.uint32)


def _check_aligned(offsets: Index) -> None:
    _fault_where(
        (offsets & (BARRIER_BYTES - 1)) != 0,
        lambda i: f"mbarrier at shared {offsets[i]:#x} is not 8-byte aligned", "E247",
    )  # fmt: skip


def _fault_where(wrong: NDArray[np.bool_], message: Any, code: str) -> None:
    """Raise for the first entry that is wrong; `message` gives its sentence."""
    if any_of(wrong):
        at = int(np.argmax(wrong))
        raise BarrierMisuse(code, message(at), at)


def mbarriers_of(m: Machine) -> Mbarriers:
    """Return the barriers of a machine's blocks."""
    return m.state(_make)


def _make(m: Machine) -> Mbarriers:
    barriers = Mbarriers(m.n_blocks)

    def check(rows: Index, lanes: Lanes) -> None:
        # A phase that is complete and that nobody awaited is no fault: the last slots of a ring.
        left = barriers.half_arrived(rows) if m.guard is not None else None
        if left is not None:
            first = int(np.argmax(m.block_of[lanes.sel] == left.block))
            raise m.fault(
                "E249", f"the block ends in the middle of a phase: {left.state}",
                int(lanes.index[first]),
                help="let every arrival that the barrier expects happen, or expect fewer",
            )  # fmt: skip

    m.exit_checks.append(check)
    return barriers
