"""Vector clocks of the warps of every block: what each warp knows of the others' past.

Time counts the accesses of the machine.  A warp learns of others when it passes a barrier at which
they arrived.  The actors of a cluster (or of all blocks, where these meet in global memory) are the
warps of its blocks, block after block, then groups of blocks that have ended, where these may be
known, and last the async proxy: as it is learnt of through waits for the groups of each warpgroup,
and through mbarriers.  Invariant: `known[b, w, a]` is a time up to which everything that actor `a`
did is ordered before what warp `w` of block `b` does next; where that is not clear it is taken as
ordered.
Source: PTX ISA 8.9 "Causality order", 8.9.3 "Synchronizes-with", 8.8 "Release and
acquire patterns".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

from astdsl.emulator.issues import Issue
from astdsl.emulator.knowing import Knowing
from astdsl.emulator.lanes import WARP_THREADS, WARPGROUP_WARPS
from astdsl.emulator.meetings import Meetings

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.scalars import Array, BoolArray

__all__ = [
    "BY_MBARRIER",
    "SCOPES",
    "BlockClocks",
    "Channel",
    "Clocks",
    "Who",
    "by_group",
    "scope_number",
]

_ALWAYS = 1 << 30
# The async proxy among the actors, from the end: what an mbarrier tells of it, and before that what
# each warpgroup waits for in groups of its own.
BY_MBARRIER = -1
# From the narrowest to the widest; `sys` is as wide as `gpu` here.
SCOPES = ("cta", "cluster", "gpu")
# Blocks, and the warps in them.
Numbers = TypeVar("Numbers", int, "Array")
Who: TypeAlias = "tuple[Array, Array]"


def scope_number(words: Iterable[str], default: str = "gpu") -> int:
    """Return how wide the scope is that an opcode names, as a place in `SCOPES`."""
    found = next((word for word in words if word in SCOPES), default)
    return SCOPES.index(found)


def by_group(warpgroup: Numbers) -> Numbers:
    """Return which actor the async proxy is for what a warpgroup waits for in groups."""
    return BY_MBARRIER - 1 - warpgroup


class Clocks:
    """The clocks of a machine's blocks; a stamp packs a time and an actor in one number.

    `reach` neighbouring blocks know of each other: those of a cluster, unless told otherwise.
    Time begins after `start`; `n_ended` groups of blocks have ended before.
    """

    # Whether the lanes of a warp are told apart.
    tells_lanes = True

    def __init__(
        self,
        m: Machine,
        reach: int | None = None,
        n_warps: int | None = None,
        *,
        start: int = 0,
        n_ended: int = 0,
    ) -> None:
        self._m = m
        self.n_warps = m.n_warps if n_warps is None else n_warps
        self.reach = reach = m.launch.cluster_size if reach is None else reach
        self._start = start
        self.n_async = 1 + -(-self.n_warps // WARPGROUP_WARPS)
        # The first of the groups of blocks that have ended, among the actors.
        self.first_ended = reach * self.n_warps
        self.n_actors = self.first_ended + n_ended + self.n_async
        self.known = np.zeros((m.n_blocks, self.n_warps, self.n_actors), np.int32)
        # The number of each block's first warp among the actors.
        self.base = np.arange(m.n_blocks) % reach * self.n_warps
        # What relaxed accesses pass on, by scope: what was known at the last fence, and what has
        # been seen since, for the next fence.
        self._released: dict[int, Array] = {}
        self._seen: dict[int, Array] = {}
        # What is known to have come before, though nothing tells of its memory: what a copy waited
        # for that has completed elsewhere.
        self._begun: dict[int, Array] = {}
        rows, own = np.arange(m.n_blocks)[:, None], np.arange(self.n_warps)
        self.known[rows, own, self.actors(rows, own)] = _ALWAYS
        self.places: list[int | Issue] = [0]
        self.meetings = Meetings(m, self)
        self.knowing = Knowing(m, self)

    @property
    def now(self) -> int:
        """Return the present time."""
        return self._start + len(self.places) - 1

    def tick(self, issue: Issue | None = None) -> int:
        """Begin the next moment, at the current instruction, or when what was issued is done."""
        self.places.append(self._m.pc if issue is None else issue)
        return self.now

    def place_text(self, time: int) -> str:
        """Return where what happened at a time was issued, for reports."""
        place = self.places[time - self._start]
        return place.place if isinstance(place, Issue) else self._m.place_text(place)

    def issued(self, time: int, row: int, offset: int | None = None) -> tuple[str, str]:
        """Return what was done at a time, and who issued what reaches a byte of block `row`."""
        issue = self.places[time - self._start]
        if not isinstance(issue, Issue):
            raise AssertionError("a time at which no asynchronous operation was done")
        return issue.what, issue.text(self._m, row, offset)

    def warps(self, lanes: Lanes) -> tuple[Array, Array]:
        """Return the block and the warp in it of every lane."""
        return self._m.block_of[lanes.sel], self._m.thread_of[lanes.sel] >> 5

    def actors(self, rows: Array, warps: Array) -> Array:
        """Return the numbers of warps of blocks among the actors of their clusters."""
        found: Array = self.base[rows] + warps
        return found

    def place_of(self, row: int, actor: int) -> str:
        """Return which warp of which block an actor is, for reports of block `row`."""
        rank, warp = divmod(actor, self.n_warps)
        return self._m.warp_text(row // self.reach * self.reach + rank, warp)

    def maker(self, row: int, stamp: int) -> str:
        """Return which warp made a stamp of block `row`, and where, for reports."""
        time, actor = divmod(stamp, self.n_actors)
        return f"{self.place_of(row, actor)} ({self.place_text(time)})"

    def mask(self, lanes: Lanes) -> BoolArray:
        """Return which warps, [blocks, warps], some of the lanes belong to."""
        mask = np.zeros(self.known.shape[:2], np.bool_)
        mask[self.warps(lanes)] = True
        return mask

    def floor(self, lanes: Lanes) -> tuple[int, Array]:
        """Return up to when every lane's warp knows all warps' past, and each async actor's.

        What is older needs no look at single stamps.
        """
        warps = slice(None)
        if lanes.contiguous:
            span, width = cast(slice, lanes.sel), WARP_THREADS * len(self.known)
            warps = slice(span.start // width, (span.stop - 1) // width + 1)
        known = self.knowing.least(warps)
        by_actor: Array = known[..., -self.n_async :].min(axis=(0, 1))
        return int(known[..., : -self.n_async].min()), by_actor

    def stamps(self, rows: Array, warps: Array) -> Array:
        """Return the stamps of accesses that warps of blocks make now."""
        made: Array = (self.now * self.n_actors + self.actors(rows, warps)).astype(np.int32)
        return made

    def unordered(self, stamps: Array, known: Array) -> BoolArray:
        """Say which stamps, [n, ...], are not known: `known` is [n, actors]."""
        newest = int(stamps.max())
        if newest < (int(known[:, : -self.n_async].min()) + 1) * self.n_actors:
            return np.zeros(stamps.shape, np.bool_)
        flat = stamps.reshape(len(stamps), -1)
        time, actor = np.divmod(flat, self.n_actors)
        late = time > np.take_along_axis(known, actor, axis=1)
        return late.reshape(stamps.shape)

    def issuers(self, lanes: Lanes, rows: Array) -> Array:
        """Return what those know who issue an operation on blocks, [rows, actors].

        One lane for each of the rows, or all warps of the lanes that the row's block has; a block
        without a lane counts as knowing everything.
        """
        n_blocks = len(self.known)
        if lanes.n == len(rows) and not (lanes.contiguous and lanes.n == n_blocks):
            each: Array = self.known[self.warps(lanes)]
            return each
        if lanes.contiguous:
            span, width = cast(slice, lanes.sel), WARP_THREADS * n_blocks
            first, last = span.start // width, (span.stop - 1) // width
            if first == last and lanes.n == n_blocks:
                one: Array = self.known[rows, first]
                return one
            if lanes.n % width == 0 and span.start % width == 0:
                whole: Array = self.known[:, first : last + 1].min(axis=1)
                return whole[rows]
        known: Array = np.where(self.mask(lanes)[:, :, None], self.known, _ALWAYS).min(axis=1)
        return known[rows]

    def past(self, who: Who) -> Array:
        """Return what warps know and did, up to now."""
        mine: Array = self.known[who]
        at = np.arange(len(mine)), self.actors(*who)
        mine[at] = self.now
        return mine

    def fence(self, lanes: Lanes, scope: int) -> None:
        """Run a memory fence of warps: relaxed accesses before it acquire, those after release."""
        who = cast("Who", np.nonzero(self.mask(lanes)))
        rows, warps = self.warps(lanes)
        for width in range(scope + 1):
            if width in self._seen:
                self.knowing.learn(lanes, who, self._seen[width][who])
                own = self._seen[width][rows, warps, self.actors(rows, warps)]
                self.meetings.hear(lanes, own)
        self.meetings.tell(lanes)
        past = self.past(who)
        for width in range(scope + 1):
            self._released.setdefault(width, np.zeros_like(self.known))[who] = past

    def released(self, who: Who, scope: int) -> Array | None:
        """Return what relaxed accesses of warps pass on at a scope; None if there was no fence."""
        found = self._released.get(scope)
        return None if found is None else found[who]

    def relayed(self) -> list[tuple[str, Array]]:
        """Return, by name, what barriers pass on besides what warps know.

        A fence of one thread and the relaxed access of another, with a barrier between them, are
        taken for the fence of the other (`__threadfence(); __syncthreads(); atomicAdd(...)`).
        """
        stores = (("released", self._released), ("seen", self._seen), ("begun", self._begun))
        return [(f"{name} {scope}", x) for name, store in stores for scope, x in store.items()]

    def relay(self, name: str) -> Array:
        """Return what `relayed` gives by a name."""
        kind, scope = name.split()
        store = {"released": self._released, "seen": self._seen, "begun": self._begun}[kind]
        return store.setdefault(int(scope), np.zeros_like(self.known))

    def has_released(self, scope: int) -> bool:
        """Say whether any warp has executed a fence of at least this scope."""
        return scope in self._released

    def see(self, who: Who, vectors: Array, scope: int) -> None:
        """Keep what relaxed accesses of warps have seen, for their next fence."""
        np.maximum.at(self._seen.setdefault(scope, np.zeros_like(self.known)), who, vectors)

    def know_async(self, lanes: Lanes) -> None:
        """Let warps know what their warpgroups' groups have done so far: they waited for one."""
        rows, warps = self.warps(lanes)
        self.known[rows, warps, by_group(warps // WARPGROUP_WARPS)] = self.now


class BlockClocks(Clocks):
    """Clocks of whole blocks: what one warp of a block knows, all of them do."""

    tells_lanes = False

    def __init__(self, m: Machine, *, start: int = 0, n_ended: int = 0) -> None:
        super().__init__(m, reach=m.n_blocks, n_warps=1, start=start, n_ended=n_ended)

    def warps(self, lanes: Lanes) -> tuple[Array, Array]:
        """Return the block of every lane, and its one actor."""
        blocks = self._m.block_of[lanes.sel]
        return blocks, np.zeros_like(blocks)


# What `relayed` calls the knowledge that orders no memory.
_BEGUN = "begun 0"


class Channel:
    """Knowledge that waits to be taken over, [blocks, objects, actors], for one kind of barrier."""

    def __init__(self, clocks: Clocks, n_blocks: int) -> None:
        self._clocks = clocks
        self._held = np.zeros((n_blocks, 1, clocks.n_actors), np.int32)
        self._relayed: dict[str, Array] = {}

    def _reach(self, columns: Array) -> None:
        need = int(columns.max()) + 1
        have = self._held.shape[1]
        if need > have:
            self._held = _wider(self._held, 2 * need)
            self._relayed = {k: _wider(held, 2 * need) for k, held in self._relayed.items()}

    def _distinct(self, who: Who, objects: tuple[Array, Array]) -> Any:
        """Return each pair of a warp and an object once: block and warp, row and column."""
        (blocks, warps), (rows, columns) = who, objects
        if len(columns) == 1:
            return who, objects
        n_warps, shape = self._clocks.n_warps, self._held.shape
        key = ((blocks * n_warps + warps) * shape[0] + rows) * shape[1] + columns
        _, first = np.unique(key, return_index=True)
        return (blocks[first], warps[first]), (rows[first], columns[first])

    def give(
        self,
        who: Who,
        rows: Array,
        columns: Array,
        *,
        relaxed: int | None = None,
    ) -> None:
        """Add what warps know, and their own past, to the objects at which they arrive.

        Relaxed arrivals, of a scope, add only what a fence before them has released.
        """
        self._reach(columns)
        who, objects = self._distinct(who, (rows, columns))
        clocks = self._clocks
        given = clocks.past(who) if relaxed is None else clocks.released(who, relaxed)
        if given is not None:
            np.maximum.at(self._held, objects, given)
        if relaxed is None:
            for name, store in clocks.relayed():
                held = self._relayed.setdefault(name, np.zeros_like(self._held))
                np.maximum.at(held, objects, store[who])

    def tell(self, who: Who, rows: Array, columns: Array) -> None:
        """Add what warps did themselves up to now to objects, and not what they know of others."""
        self._reach(columns)
        clocks = self._clocks
        self._held[rows, columns, clocks.actors(*who)] = clocks.now

    def known(self, rows: Array, column: int) -> Array:
        """Return what was given to one object of some blocks, [rows, actors]."""
        self._reach(np.array([column]))
        found: Array = self._held[rows, column]
        return found

    def begin(self, who: Who, rows: Array, columns: Array) -> None:
        """Note that copies, which warps begin, end at objects: what waits there comes later.

        That orders no memory: a copy does not release what its thread has done.
        """
        self._reach(columns)
        before = np.maximum(self._clocks.past(who), self._clocks.relay(_BEGUN)[who])
        held = self._relayed.setdefault(_BEGUN, np.zeros_like(self._held))
        np.maximum.at(held, (rows, columns), before)

    def before(self, rows: Array, column: int) -> Array:
        """Return what has come before what was given to one object of some blocks."""
        known, begun = self.known(rows, column), self._relayed.get(_BEGUN)
        return known if begun is None else np.maximum(known, begun[rows, column])

    def told(self, columns: Array) -> dict[str, Array]:
        """Return what was given to objects of the first row, [objects, actors], and is relayed."""
        self._reach(columns)
        named = {"": self._held, **self._relayed}
        return {name: held[0, columns] for name, held in named.items()}

    def remember(self, columns: Array, told: dict[str, Array]) -> None:
        """Give objects of the first row what they have told before, of blocks that have ended."""
        self._reach(columns)
        first = self._clocks.first_ended
        for name, vectors in told.items():
            held = self._held
            if name:
                held = self._relayed.setdefault(name, np.zeros_like(self._held))
            held[0, columns, first : first + vectors.shape[1]] = vectors

    def heard(self, who: Who, rows: Array, columns: Array) -> Array:
        """Return up to when objects tell warps of themselves."""
        self._reach(columns)
        found: Array = self._held[rows, columns, self._clocks.actors(*who)]
        return found

    def give_async(self, rows: Array, columns: Array) -> None:
        """Add that the async proxy has come to now: an operation has completed there."""
        self._reach(columns)
        self._held[rows, columns, BY_MBARRIER] = self._clocks.now

    def take(
        self, who: Who, rows: Array, columns: Array, *, relaxed: int | None = None,
        lanes: Lanes | None = None,
    ) -> None:  # fmt: skip
        """Let warps that pass an object know what was given to it; relaxed, after their fence.

        If only some lanes do, `lanes` are these.
        """
        self._reach(columns)
        who, objects = self._distinct(who, (rows, columns))
        if relaxed is not None:
            self._clocks.see(who, self._held[objects], relaxed)
            return
        self._clocks.knowing.learn(lanes, who, self._held[objects])
        for name, held in self._relayed.items():
            np.maximum.at(self._clocks.relay(name), who, held[objects])


def _wider(held: Array, n_columns: int) -> Array:
    wider = np.zeros((len(held), n_columns, held.shape[2]), np.int32)
    wider[:, : held.shape[1]] = held
    return wider
