"""The last accesses of shared memory, and which of them an access is not ordered after.

Ordinary accesses are stamped by 4-byte word, asynchronous ones by 16-byte chunk.  Invariant: an
access is reported only if no chain of barriers leads from the other to it; accesses narrower than a
word are not compared with each other, since neighbours in a word may belong to different warps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.clocks import Clocks

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["SharedRaces"]

WORD_BYTES = 4
WORDS_PER_CHUNK = 4
Index = tuple[Any, Any]


class SharedRaces:
    """Stamps of the accesses of a machine's shared memory."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        shared = m.memory.shared
        n, words = len(shared.data), shared.row_bytes // WORD_BYTES
        self._m = m
        self._clocks = clocks
        self._written = np.zeros((n, words), np.int32)
        self._read = np.zeros((n, words), np.int32)
        # Of each chunk: the last ordinary accesses, and when the async proxy wrote or read it last.
        self.stored = np.zeros((n, words // WORDS_PER_CHUNK), np.int32)
        self._loaded = np.zeros_like(self.stored)
        self._copied = np.zeros_like(self.stored)
        self._fetched = np.zeros_like(self.stored)
        # When each of these happened last, anywhere: what every warp knows of needs no look.
        self._newest_write = self._newest_read = self._newest_copy = self._newest_fetch = 0
        # Up to when the ordinary writes of each warp of a cluster are covered by a proxy fence.
        self._size = m.launch.cluster_size
        self._covered = np.zeros((n // self._size, clocks.n_actors - 1), np.int32)
        # The same for mbarriers that they made, which another fence covers as well.
        self._shown = np.zeros_like(self._covered)

    # Ordinary accesses.

    def read(self, lanes: Lanes, rows: Array, offsets: Array, width: int) -> None:
        """Check and note an ordinary read of `width` bytes at each place."""
        clocks = self._clocks
        floor, async_floor = clocks.floor(lanes)
        if self._newest_write > floor:
            place = self._words(rows, offsets, width)
            bad = clocks.unordered(self._written[place], self._known(lanes))
            self._check(lanes, bad, place, self._written)
        if self._newest_copy > async_floor:
            what = ("read", (self._copied,))
            self._check_async(lanes, rows, offsets, self._known(lanes), what)
        self._newest_read = clocks.tick()
        made = clocks.stamps(*clocks.warps(lanes))
        self._stamp(self._read, rows, offsets, width, made)
        self._loaded.reshape(-1)[self._chunk(rows, offsets)] = made

    def write(self, lanes: Lanes, rows: Array, offsets: Array, width: int) -> None:
        """Check and note an ordinary write."""
        clocks = self._clocks
        floor, async_floor = clocks.floor(lanes)
        # Two warps may write one word in any order: compilers store replicated values that way.
        if width >= WORD_BYTES and self._newest_read > floor:
            place = self._words(rows, offsets, width)
            bad = clocks.unordered(self._read[place], self._known(lanes))
            self._check(lanes, bad, place, self._read)
        if max(self._newest_copy, self._newest_fetch) > async_floor:
            what = ("written", (self._copied, self._fetched))
            self._check_async(lanes, rows, offsets, self._known(lanes), what)
        self._newest_write = clocks.tick()
        made = clocks.stamps(*clocks.warps(lanes))
        self._stamp(self._written, rows, offsets, width, made if width >= WORD_BYTES else made * 0)
        self.stored.reshape(-1)[self._chunk(rows, offsets)] = made

    def _chunk(self, rows: Array, offsets: Array) -> Array:
        """Return the place of each access's chunk among those of all blocks."""
        place: Array = rows * self.stored.shape[1] + (offsets >> 4)
        return place

    def _known(self, lanes: Lanes) -> Array:
        known: Array = self._clocks.known[self._clocks.warps(lanes)]
        return known

    def _stamp(self, times: Array, rows: Array, offsets: Array, width: int, made: Array) -> None:
        """Stamp the words of accesses; whole chunks go as one element, which NumPy does fastest."""
        if width == WORD_BYTES * WORDS_PER_CHUNK:
            chunks = np.repeat(made, WORDS_PER_CHUNK).view(np.complex128)
            times.reshape(-1).view(np.complex128)[self._chunk(rows, offsets)] = chunks
        elif width <= WORD_BYTES:
            times.reshape(-1)[rows * times.shape[1] + (offsets >> 2)] = made
        else:
            times[self._words(rows, offsets, width)] = made[:, None]

    def touch(self, lanes: Lanes, rows: Array, offsets: Array, size_bytes: int) -> None:
        """Check that memory was made ready by a warp that came before: an mbarrier's init."""
        known = self._clocks.known[self._clocks.warps(lanes)]
        place = self._words(rows, offsets, size_bytes)
        self._check(
            lanes, self._clocks.unordered(self._written[place], known), place, self._written
        )

    def made(self, lanes: Lanes, rows: Array, offsets: Array, size_bytes: int) -> None:
        """Note that warps made an object in shared memory."""
        self._newest_write = self._clocks.tick()
        stamps = self._clocks.stamps(*self._clocks.warps(lanes))
        self._written[self._words(rows, offsets, size_bytes)] = stamps[:, None]

    def _words(self, rows: Array, offsets: Array, width: int) -> tuple[Array, Array]:
        first = (offsets >> 2)[..., None]
        return rows[:, None], first + np.arange(max(width // WORD_BYTES, 1))

    # The async proxy.

    def fence(self, lanes: Lanes, *, barriers_only: bool = False) -> None:
        """Run fence.proxy.async: what the warps know of and did themselves is covered.

        fence.mbarrier_init covers the mbarriers that they made.
        """
        clocks = self._clocks
        rows, warps = np.nonzero(clocks.mask(lanes))
        mine = clocks.known[rows, warps, :-1]
        mine[np.arange(len(rows)), clocks.actors(rows, warps)] = clocks.now
        np.maximum.at(self._shown, rows // self._size, mine)
        if not barriers_only:
            np.maximum.at(self._covered, rows // self._size, mine)

    def hidden(self, rows: Array, offsets: Array) -> BoolArray:
        """Say which mbarriers were made without a fence that shows them to others since then."""
        stamps = self._written[rows, offsets >> 2]
        time, actor = np.divmod(stamps, self._clocks.n_actors)
        late: BoolArray = (time > self._shown[rows // self._size, actor]) & (stamps > 0)
        return late

    def uncovered(self, index: Index) -> BoolArray:
        """Say which chunks have an ordinary write that no proxy fence covers."""
        stamps = self.stored[index]
        if not stamps.any():
            return np.zeros(stamps.shape, np.bool_)
        time, warp = np.divmod(stamps.reshape(len(stamps), -1), self._clocks.n_actors)
        clusters = self._rows(index) // self._size
        covered = np.take_along_axis(self._covered[clusters], warp, axis=1)
        late: BoolArray = time > covered
        return late.reshape(stamps.shape)

    def unordered(self, lanes: Lanes, index: Index, *, writes: bool) -> BoolArray:
        """Say which chunks an operation uses without an order after the accesses before it."""
        clocks, rows = self._clocks, self._rows(index)
        known = clocks.issuers(lanes, rows)
        copied = self._copied[index]
        latest = known[:, -1].reshape(-1, *(1,) * (copied.ndim - 1))
        bad: BoolArray = copied > latest
        if writes:
            bad |= self._fetched[index] > latest
        for times in (self.stored, self._loaded) if writes else (self.stored,):
            stamps = times[index]
            if stamps.any():
                bad |= clocks.unordered(stamps, known)
        return bad

    def done(self, index: Index, place: str, *, writes: bool) -> None:
        """Note that an operation issued at `place` has read or written chunks now."""
        time = self._clocks.tick(place)
        if not writes:
            self._fetched[index] = time
            self._newest_fetch = time
            return
        self._copied[index] = time
        self._newest_copy = time
        if self.stored[index].any():
            self.stored[index] = 0
            self._written.reshape(*self.stored.shape, WORDS_PER_CHUNK)[index] = 0

    def _rows(self, index: Index) -> Array:
        rows = index[0]
        if isinstance(rows, slice):
            return np.arange(len(self.stored))
        return np.asarray(rows).reshape(len(rows))

    # Reports.

    def _check(self, lanes: Lanes, bad: BoolArray, place: Index, stamps: Array) -> None:
        if bad.any():
            at, word = np.unravel_index(int(np.argmax(bad)), bad.shape)
            row, column = (int(np.broadcast_to(p, bad.shape)[at, word]) for p in place)
            time, warp = divmod(int(stamps[row, column]), self._clocks.n_actors)
            verb = "writes" if stamps is self._written else "reads"
            who = self._clocks.place_of(row, warp)
            raise self._m.fault(
                "E232",
                f"shared memory at {WORD_BYTES * column:#x}: {who} {verb} it "
                f"({self._clocks.place_text(time)}), and no barrier orders that before this access",
                int(lanes.index[at]),
                help="put a barrier between the two accesses",
            )

    def _check_async(
        self, lanes: Lanes, rows: Array, offsets: Array, known: Array, what: tuple[str, Any]
    ) -> None:
        verb, arrays = what
        chunks = offsets >> 4
        for times in arrays:
            bad = times[rows, chunks] > known[:, -1]
            if bad.any():
                at = int(np.argmax(bad))
                offset = int(np.broadcast_to(offsets, len(bad))[at])
                past = "wrote" if times is self._copied else "read"
                time = int(times[int(rows[at]), offset >> 4])
                place = self._clocks.place_text(time)
                raise self._m.fault(
                    "E233",
                    f"shared memory at {offset:#x} is {verb}, but this warp has not waited for the "
                    f"asynchronous operation that {past} it ({place})",
                    int(lanes.index[at]),
                    help="wait for its mbarrier or its group, or pass a barrier after who did",
                )
