"""The last accesses of shared memory, and which of them an access is not ordered after.

Ordinary accesses are stamped by word, asynchronous ones by 16-byte chunk; a word has 4 bytes, or as
many as the program's narrowest access.  Invariant: an access is reported only if no chain of
barriers leads from the other to it.
Lanes of one warp are ordered by `bar.warp.sync` and by every barrier that they pass together (PTX
ISA 9.7.13.2). Strong accesses, such as atomics, do not race with each other (PTX ISA 8.7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from astdsl.emulator.clocks import BY_MBARRIER, Clocks
from astdsl.emulator.lanes import WARP_THREADS
from astdsl.emulator.occupancy import CHUNK_BYTES, CHUNK_SHIFT, Index
from astdsl.emulator.scalars import TYPES, first_of

if TYPE_CHECKING:
    from astdsl.emulator.faults import DeviceFault
    from astdsl.emulator.issues import Issue
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.program import Program
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = ["SharedRaces"]

WORD_BYTES = 4
_MEET = "let this lane wait, too, or execute `bar.warp.sync` after the wait of the other"
_ELSEWHERE = ("global", "param", "local", "const", "async", "bulk")


# Instead of a lane: the warp as a whole made this.
_EVERY_LANE = 255


class _Stamps:
    """The last write and read of each word: time and actor, and the lane of the warp."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.written = np.zeros(shape, np.int32)
        self.read = np.zeros(shape, np.int32)
        self.writer = np.zeros(shape, np.uint8)
        self.reader = np.zeros(shape, np.uint8)
        # When each happened last, anywhere: what every warp knows of needs no look.
        self.newest_write = self.newest_read = 0


class SharedRaces:
    """Stamps of the accesses of a machine's shared memory."""

    def __init__(self, m: Machine, clocks: Clocks) -> None:
        shared = m.memory.shared
        self._word_bytes = word_bytes = narrowest_bytes(m.program)
        self._words_per_chunk = CHUNK_BYTES // word_bytes
        n, words = len(shared.data), shared.row_bytes // word_bytes
        self._m = m
        self._clocks = clocks
        self._weak = _Stamps((n, words))
        self._strong: _Stamps | None = None
        self._meetings = clocks.meetings
        # Of each chunk: the last ordinary accesses, and when the async proxy wrote or read it last.
        self.stored = np.zeros((n, words // self._words_per_chunk), np.int32)
        self._loaded = np.zeros_like(self.stored)
        # Whether an object was made in a chunk, which is no ordinary write of it.
        self._has_object = np.zeros(self.stored.shape, np.bool_)
        self._copied = np.zeros_like(self.stored)
        # By how a read is waited for: the actor that a wait tells of.
        self._fetched = {BY_MBARRIER: np.zeros_like(self.stored)}
        self._newest_copy = self._newest_fetch = 0
        # Whether several warps have just written one word, by one instruction.
        self.contested = False
        # Up to when the ordinary writes of each warp of a cluster are covered by a proxy fence.
        self._size = m.launch.cluster_size
        self._covered = np.zeros((n // self._size, clocks.n_actors - clocks.n_async), np.int32)
        # The same for mbarriers that they made, which another fence covers as well.
        self._shown = np.zeros_like(self._covered)
        # The same as of the last arrival at each cluster's barrier; and as each block met there.
        self._came_shown = np.zeros_like(self._covered)
        self._met_shown = np.zeros((n, self._covered.shape[1]), np.int32)

    # Ordinary accesses.

    def read(
        self, lanes: Lanes, rows: Array, offsets: Array, width: int, *, strong: bool = False
    ) -> None:
        """Check and note an ordinary read of `width` bytes at each place."""
        clocks = self._clocks
        floor, async_floors = clocks.floor(lanes)
        for stamps in self._others(strong):
            if self._is_after(stamps.newest_write, floor, lanes, writes=True):
                place = self._words(rows, offsets, width)
                self._check(lanes, place, stamps.written, stamps.writer)
        if self._newest_copy > async_floors[BY_MBARRIER]:
            what = ("read", [(self._copied, BY_MBARRIER)])
            self._check_async(lanes, rows, offsets, self._known(lanes), what)
        mine = self._own(strong)
        mine.newest_read = clocks.tick()
        self._meetings.access(lanes, writes=False)
        made = clocks.stamps(*clocks.warps(lanes))
        self._stamp(mine.read, rows, offsets, width, made)
        self._stamp(mine.reader, rows, offsets, width, self._lane_numbers(lanes))
        self._loaded.reshape(-1)[self._chunk(rows, offsets)] = made

    def write(
        self, lanes: Lanes, rows: Array, offsets: Array, width: int, values: Array | None,
        *, strong: bool = False,
    ) -> None:  # fmt: skip
        """Check and note an ordinary write; `values` None are not known."""
        self.check_write(lanes, rows, offsets, width, values, strong=strong)
        clocks = self._clocks
        mine = self._own(strong)
        mine.newest_write = clocks.tick()
        self._meetings.access(lanes, writes=True)
        made = clocks.stamps(*clocks.warps(lanes))
        self._stamp(mine.written, rows, offsets, width, made)
        self._stamp_writers(mine.writer, lanes, rows, offsets, width)
        self.stored.reshape(-1)[self._chunk(rows, offsets)] = made
        first = rows * mine.written.shape[1] + offsets // self._word_bytes
        self.contested = not strong and bool((mine.written.reshape(-1)[first] != made).any())

    def check_write(
        self, lanes: Lanes, rows: Array, offsets: Array, width: int, values: Array | None = None,
        *, strong: bool = False, makes: bool = False,
    ) -> None:  # fmt: skip
        """Check an ordinary write, or with `makes` that of an object, which changes what is there.

        Other writes may come before values that are not known.
        """
        floor, async_floors = self._clocks.floor(lanes)
        chunks = self._chunk(rows, offsets)
        for stamps in self._others(strong):
            if self._is_after(stamps.newest_read, floor, lanes, writes=False) and (
                self._is_any_after(self._loaded, chunks, floor, lanes, writes=False)
            ):
                place = self._words(rows, offsets, width)
                self._check(lanes, place, stamps.read, stamps.reader, writes=False)
            if not self._is_after(stamps.newest_write, floor, lanes, writes=True):
                continue
            if makes:
                self._check(lanes, self._words(rows, offsets, width), stamps.written, stamps.writer)
            elif values is not None and (
                stamps is not self._weak or self._may_be_written(chunks, floor, lanes)
            ):
                # Several may store one value in any order: compilers do so with replicated ones.
                changed = self._m.memory.shared.differs(rows, offsets, values, self._word_bytes)
                if changed.any():
                    place = self._words(rows, offsets, width)
                    self._check(lanes, place, stamps.written, stamps.writer, where=changed)
        is_copied = self._newest_copy > async_floors[BY_MBARRIER]
        if is_copied or self._newest_fetch > async_floors.min():
            reads = [(times, by) for by, times in self._fetched.items()]
            what = ("written", [(self._copied, BY_MBARRIER), *reads])
            self._check_async(lanes, rows, offsets, self._known(lanes), what)

    def check_winners(self, lanes: Lanes, rows: Array, offsets: Array, values: Array) -> None:
        """Fault if warps have stored different values at one place by one instruction."""
        lost = self._m.memory.shared.differs(rows, offsets, values, self._word_bytes).any(axis=1)
        columns = offsets // self._word_bytes
        winners = self._weak.written[rows, columns] % self._clocks.n_actors
        lost &= winners != self._clocks.actors(*self._clocks.warps(lanes))
        if lost.any():
            at, row, column, winner = first_of(lost, rows, columns, winners)
            who = self._clocks.place_of(row, winner)
            raise self._m.fault(
                "E232",
                f"shared memory at {self._word_bytes * column:#x}: {who} writes another value "
                f"there ({self._m.place_text(self._m.pc)}), and no barrier orders the two",
                int(lanes.index[at]), help="put a barrier between the two accesses",
            )  # fmt: skip

    def written_late(
        self, lanes: Lanes, rows: Array, offsets: Array, width: int, *, strong: bool = False
    ) -> None:
        """Note that what lanes wrote asynchronously is there now."""
        mine = self._own(strong)
        mine.newest_write = self._clocks.tick()
        made = self._clocks.stamps(*self._clocks.warps(lanes))
        self._stamp(mine.written, rows, offsets, width, made)
        self._stamp_writers(mine.writer, lanes, rows, offsets, width)
        self.stored.reshape(-1)[self._chunk(rows, offsets)] = made
        self._meetings.access(lanes, writes=True)

    def _stamp_writers(
        self, writers: Array, lanes: Lanes, rows: Array, offsets: Array, width: int
    ) -> None:
        """Stamp words with the lanes that write them; those that several write, as all lanes'."""
        numbers = self._lane_numbers(lanes)
        self._stamp(writers, rows, offsets, width, numbers)
        first = rows * writers.shape[1] + offsets // self._word_bytes
        shared = writers.reshape(-1)[first] != numbers
        if shared.any():
            writers[self._words(rows[shared], offsets[shared], width)] = _EVERY_LANE

    def _own(self, strong: bool) -> _Stamps:
        if not strong:
            return self._weak
        if self._strong is None:
            self._strong = _Stamps(self._weak.written.shape)
        return self._strong

    def _others(self, strong: bool) -> list[_Stamps]:
        """Return the stamps of what an access may race with."""
        return [self._weak] if strong or self._strong is None else [self._weak, self._strong]

    def _lane_numbers(self, lanes: Lanes) -> Array:
        numbers: Array = (self._m.thread_of[lanes.sel] & 31).astype(np.uint8)
        return numbers

    def _is_after(self, time: int, floor: int, lanes: Lanes, *, writes: bool) -> bool:
        """Say whether reads, or writes, may not be ordered before what lanes do now."""
        if time > floor or self._meetings.may_be_untold(time, floor, writes=writes):
            return True
        met = self._meetings.met
        if lanes.contiguous:
            span, width = cast(slice, lanes.sel), WARP_THREADS * len(met)
            return bool(time > met[:, span.start // width : (span.stop - 1) // width + 1].min())
        return bool(time > met[self._clocks.warps(lanes)].min())

    def _is_any_after(
        self, times: Array, chunks: Array, floor: int, lanes: Lanes, *, writes: bool
    ) -> bool:
        """Say the same of the last accesses of chunks, which most writes find untouched."""
        newest = int(times.reshape(-1)[chunks].max(initial=0)) // self._clocks.n_actors
        return self._is_after(newest, floor, lanes, writes=writes)

    def _may_be_written(self, chunks: Array, floor: int, lanes: Lanes) -> bool:
        if self._is_any_after(self.stored, chunks, floor, lanes, writes=True):
            return True
        return bool(self._has_object.reshape(-1)[chunks].any())

    def _chunk(self, rows: Array, offsets: Array) -> Array:
        """Return the place of each access's chunk among those of all blocks."""
        place: Array = rows * self.stored.shape[1] + (offsets >> CHUNK_SHIFT)
        return place

    def _known(self, lanes: Lanes) -> Array:
        return self._clocks.knowing.of(lanes)

    def _stamp(self, times: Array, rows: Array, offsets: Array, width: int, made: Array) -> None:
        """Stamp the words of accesses; whole chunks go as one element, which NumPy does fastest."""
        if width == CHUNK_BYTES and self._word_bytes == WORD_BYTES:
            whole = np.complex128 if times.itemsize == WORD_BYTES else np.uint32
            chunks = np.repeat(made, self._words_per_chunk).view(whole)
            times.reshape(-1).view(whole)[self._chunk(rows, offsets)] = chunks
        elif width <= self._word_bytes:
            times.reshape(-1)[rows * times.shape[1] + offsets // self._word_bytes] = made
        else:
            times[self._words(rows, offsets, width)] = made[:, None]

    def touch(self, lanes: Lanes, rows: Array, offsets: Array, size_bytes: int) -> None:
        """Check that memory was made ready by a warp that came before: an mbarrier's init."""
        place = self._words(rows, offsets, size_bytes)
        self._check(lanes, place, self._weak.written, self._weak.writer, shown=True)

    def come(self, clusters: Array) -> None:
        """Note that warps arrive at the barriers of their clusters, also by relaxed arrivals."""
        self._came_shown[clusters] = self._shown[clusters]

    def meet_cluster(self, rows: Array) -> None:
        """Note that warps of blocks pass the barriers of their clusters."""
        self._met_shown[rows] = self._came_shown[rows // self._size]

    def made(
        self, lanes: Lanes, rows: Array, offsets: Array, size_bytes: int, *, alone: bool = True
    ) -> None:
        """Note that warps made an object in shared memory, each with one lane or as a whole."""
        self._weak.newest_write = self._clocks.tick()
        stamps = self._clocks.stamps(*self._clocks.warps(lanes))
        place = self._words(rows, offsets, size_bytes)
        self._weak.written[place] = stamps[:, None]
        self._weak.writer[place] = self._lane_numbers(lanes)[:, None] if alone else _EVERY_LANE
        self._has_object[place[0], place[1] // self._words_per_chunk] = True

    def _words(self, rows: Array, offsets: Array, width: int) -> tuple[Array, Array]:
        first = (offsets // self._word_bytes)[..., None]
        return rows[:, None], first + np.arange(max(width // self._word_bytes, 1))

    # The async proxy.

    def fence(self, lanes: Lanes, *, barriers_only: bool = False) -> None:
        """Run fence.proxy.async: what the warps know of and did themselves is covered.

        fence.mbarrier_init covers the mbarriers that they made.
        """
        clocks = self._clocks
        rows, warps = np.nonzero(clocks.mask(lanes))
        mine = clocks.known[rows, warps, : -clocks.n_async]
        mine[np.arange(len(rows)), clocks.actors(rows, warps)] = clocks.now
        np.maximum.at(self._shown, rows // self._size, mine)
        if not barriers_only:
            np.maximum.at(self._covered, rows // self._size, mine)

    def hidden(self, rows: Array, offsets: Array) -> BoolArray:
        """Say which mbarriers were made without a fence that shows them to others since then."""
        stamps = self._weak.written[rows, offsets // self._word_bytes]
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
        thin = (-1, *(1,) * (copied.ndim - 1))
        bad: BoolArray = copied > known[:, BY_MBARRIER].reshape(thin)
        for by, times in self._fetched.items() if writes else ():
            bad |= times[index] > known[:, by].reshape(thin)
        for times in (self.stored, self._loaded) if writes else (self.stored,):
            stamps = times[index]
            if stamps.any():
                bad |= clocks.unordered(stamps, known)
                newest = int(stamps.max()) // clocks.n_actors
                bad |= self._untold(lanes, index, known, newest, writes=times is self.stored)
        return bad

    def _untold(
        self, lanes: Lanes, index: Index, known: Array, newest: int, *, writes: bool
    ) -> BoolArray | bool:
        """Say which chunks lanes of other warps have written, or read, and not told of in time."""
        clocks, shape = self._clocks, (*self.stored.shape, self._words_per_chunk)
        floor = int(known[:, : -clocks.n_async].min())
        if not self._meetings.may_be_untold(newest, floor, writes=writes):
            return False
        weak = self._weak
        stamps, by_lane = (weak.written, weak.writer) if writes else (weak.read, weak.reader)
        time, actor = np.divmod(stamps.reshape(shape)[index], clocks.n_actors)
        numbers = by_lane.reshape(shape)[index].astype(np.int64)
        rows = self._rows(index).reshape(-1, *(1,) * (time.ndim - 1))
        of_actors = np.take_along_axis(known, actor.reshape(len(actor), -1), axis=1)
        found = self._meetings.untold(
            rows, (time, actor, numbers), of_actors.reshape(actor.shape), writes=writes
        )
        found &= ~np.isin(actor, clocks.actors(*clocks.warps(lanes)))
        bad: BoolArray = np.logical_or.reduce(found, axis=-1)
        return bad

    def maker(self, row: int, offset: int) -> str:
        """Return who made what begins at a place, and where."""
        return self._clocks.maker(row, int(self._weak.written[row, offset // self._word_bytes]))

    def culprit(self, lanes: Lanes, row: int, offset: int, *, writes: bool) -> str:
        """Return which access of a byte an operation of lanes is not ordered after: the last."""
        rows, warps = self._clocks.warps(lanes)
        own = rows == row
        # A lane of another block may issue what reaches this one.
        for some in (own, np.ones_like(own)):
            known = self._clocks.known[rows[some], warps[some]]
            found = self._unknown(known.min(axis=0), row, offset, writes) if some.any() else []
            if found:
                return max(found)[1]
        # One lane of a warp that has told of its other lanes has not told of this.
        at = row, offset >> CHUNK_SHIFT
        found = [(int(self.stored[at]), "writes")] + [(int(self._loaded[at]), "reads")] * writes
        stamp, verb = max(found)
        time, actor = divmod(stamp, self._clocks.n_actors)
        who, place = self._clocks.place_of(row, actor), self._clocks.place_text(time)
        return f"{who} {verb} it ({place})"

    def _unknown(self, known: Array, row: int, offset: int, writes: bool) -> list[tuple[int, str]]:
        """Return what is not known of the last accesses of a byte's chunk: when and what."""
        clocks, at = self._clocks, (row, offset >> CHUNK_SHIFT)
        found: list[tuple[int, str]] = []
        ordinary = [(self.stored, "writes")] + [(self._loaded, "reads")] * writes
        for times, verb in ordinary:
            time, actor = divmod(int(times[at]), clocks.n_actors)
            if time > known[actor]:
                who, place = clocks.place_of(row, actor), clocks.place_text(time)
                found.append((time, f"{who} {verb} it ({place})"))
        fetched = [(self._fetched[by], by, "read") for by in self._fetched]
        for times, by, verb in [(self._copied, BY_MBARRIER, "wrote"), *fetched * writes]:
            if int(times[at]) > known[by]:
                what, who = clocks.issued(int(times[at]), row, offset)
                found.append((int(times[at]), f"the {what} that {verb} it ({who})"))
        return found

    def done(self, index: Index, issue: Issue, *, writes: bool, by: int | None) -> None:
        """Note that an operation has read or written chunks now.

        `by` is the actor that a wait for it tells of; None where several do.
        """
        time = self._clocks.tick(issue)
        if not writes:
            if by is None:
                return
            self._fetched.setdefault(by, np.zeros_like(self.stored))[index] = time
            self._newest_fetch = time
            return
        self._copied[index] = time
        self._newest_copy = time
        if self.stored[index].any():
            self.stored[index] = 0
            by_chunk = *self.stored.shape, self._words_per_chunk
            self._weak.written.reshape(by_chunk)[index] = 0

    def left(self, row: int) -> str | None:
        """Return which operation has filled shared memory of a block, which nobody there knows."""
        clocks = self._clocks
        newest = int(self._copied[row].argmax())
        time = int(self._copied[row, newest])
        if time <= clocks.known[row, :, BY_MBARRIER].max():
            return None
        what, who = clocks.issued(time, row, newest * CHUNK_BYTES)
        return f"{what} ({who})"

    def _rows(self, index: Index) -> Array:
        rows = index[0]
        if isinstance(rows, slice):
            return np.arange(len(self.stored))
        return np.asarray(rows).reshape(len(rows))

    # Reports.

    def _check(
        self, lanes: Lanes, place: Index, stamps: Array, by_lane: Array, *, writes: bool = True,
        shown: bool = False, where: BoolArray | None = None,
    ) -> None:  # fmt: skip
        """Fault if writes, or reads, stamped at a place, are not ordered before what lanes do now.

        With `shown` it is enough that a fence has let others see them, which met at the barrier of
        the cluster since: objects that were made. `where` says which words count.
        """
        made = stamps[place]
        time, actor = np.divmod(made, self._clocks.n_actors)
        rows, warps = self._clocks.warps(lanes)
        known = np.take_along_axis(self._known(lanes), actor, axis=1)
        if shown:
            known = np.maximum(known, np.take_along_axis(self._met_shown[rows], actor, axis=1))
        own = actor == self._clocks.actors(rows, warps)[:, None]
        lane, other = self._lane_numbers(lanes)[:, None], by_lane[place].astype(np.int64)
        # Of its own warp a lane knows what came before they met, or what it has been told.
        met = np.maximum(self._meetings.met[rows, warps], self._meetings.heard[lanes.sel])
        known = np.where(own, met[:, None], known)
        untold = self._meetings.untold(rows[:, None], (time, actor, other), known, writes=writes)
        bad = (time > known) | (untold & (time > self._meetings.met[rows, warps][:, None] * own))
        bad &= ~own | ((other != lane) & (other != _EVERY_LANE))
        if where is not None:
            bad &= where
        if bad.any():
            at, word = np.unravel_index(int(np.argmax(bad)), bad.shape)
            raise self._race(lanes, place, (int(at), int(word)), made, other)

    def _race(
        self, lanes: Lanes, place: Index, at: tuple[int, int], made: Array, other: Array
    ) -> DeviceFault:
        row, column = (int(np.broadcast_to(p, made.shape)[at]) for p in place)
        time, actor = divmod(int(made[at]), self._clocks.n_actors)
        is_write = made[at] == self._weak.written[row, column] or (
            self._strong is not None and made[at] == self._strong.written[row, column]
        )
        who = self._clocks.place_of(row, actor)
        rows, warps = self._clocks.warps(lanes)
        inside = actor == int(self._clocks.actors(rows, warps)[at[0]])
        who = f"lane {int(other[at])} of {who}" if inside else who
        barrier = "no `bar.warp.sync`" if inside else "no barrier"
        verb = "writes" if is_write else "reads"
        known = self._clocks.known[rows[at[0]], warps[at[0]], actor]
        help = "put a barrier between the two accesses" if time > known else _MEET
        return self._m.fault(
            "E232",
            f"shared memory at {self._word_bytes * column:#x}: {who} {verb} it "
            f"({self._clocks.place_text(time)}), and {barrier} orders that before this access",
            int(lanes.index[at[0]]),
            help="put a `bar.warp.sync` between the two accesses" if inside else help,
        )  # fmt: skip

    def _check_async(
        self, lanes: Lanes, rows: Array, offsets: Array, known: Array, what: tuple[str, Any]
    ) -> None:
        verb, arrays = what
        issued, chunks = self._clocks.issued, offsets >> CHUNK_SHIFT
        for times, by in arrays:
            bad = times[rows, chunks] > known[:, by]
            if bad.any():
                at, row, offset = first_of(bad, rows, offsets)
                past = "wrote" if times is self._copied else "read"
                time = int(times[row, offset >> CHUNK_SHIFT])
                operation, who = issued(time, row, offset)
                waits, help = self._waits(lanes, at, by, time)
                raise self._m.fault(
                    "E233",
                    f"shared memory at {offset:#x} is {verb}, but {waits} for the "
                    f"{operation} that {past} it ({who})",
                    int(lanes.index[at]),
                    help=help,
                )

    def _waits(self, lanes: Lanes, at: int, actor: int, time: int) -> tuple[str, str]:
        """Return who does not know what an actor did at a time, a warp or a lane, and a remedy."""
        rows, warps = self._clocks.warps(lanes)
        if time > self._clocks.known[rows[at], warps[at], actor]:
            help = "wait for its mbarrier or its group, or pass a barrier after who did"
            return "this warp has not waited", help
        return "this lane has not waited, as others of its warp have,", _MEET


def narrowest_bytes(program: Program) -> int:
    """Return the width of the narrowest access that may reach shared memory, 4 bytes at most."""
    least = WORD_BYTES
    for instruction in program.instructions:
        base, *words = instruction.opcode.split(".")
        elsewhere = any(word in _ELSEWHERE for word in words)
        type_ = TYPES.get(words[-1]) if words else None
        if base in ("ld", "st", "atom", "red") and type_ is not None and not elsewhere:
            count = next((int(word[1:]) for word in words if word in ("v2", "v4", "v8")), 1)
            least = min(least, type_.bytes * count)
    return least
