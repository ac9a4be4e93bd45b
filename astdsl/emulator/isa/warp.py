"""Collectives of a warp: shfl, vote, match, redux, elect, activemask (PTX ISA 9.7.9.6, 9.7.13).

Invariant: a `.sync` instruction runs when every live lane that its mask names is there; lanes that
come early are parked until the others arrive. Lane k of a warp's row is thread 32 * warp + k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import lanes as lane_sets
from astdsl.emulator.isa import Control, controls, executes
from astdsl.emulator.lanes import WARP_THREADS
from astdsl.emulator.machine import Condition
from astdsl.emulator.scalars import all_of, any_of, one_a_lane
from astdsl.emulator.syntax import Immediate
from astdsl.emulator.undefined import bits_read, mark
from astdsl.emulator.undefined_bits import both_ends, extremes, filled, tried

if TYPE_CHECKING:
    from astdsl.emulator.isa import Execute
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Getter, Operands
    from astdsl.emulator.scalars import Array, BoolArray
    from astdsl.emulator.undefined import Flow
    from astdsl.emulator.undefined_bits import Ends, Values

Body = Callable[["Machine", "Lanes", "Warps"], None]
_EVERY = (1 << WARP_THREADS) - 1
# The mask of what needs all lanes of a warp, and has no mask in the text.
WHOLE_WARP = Immediate(_EVERY)
_NAME_IT = "let all lanes of an operation name each other, and themselves, in one mask"
_WEIGHTS = np.uint32(1) << np.arange(WARP_THREADS, dtype=np.uint32)


class Warps:
    """The warps of a set of lanes, as rows of 32: `here[w, k]` = lane k of warp w takes part.

    Sets of whole warps that are one slice, the usual case, are reshaped; others are scattered.
    """

    def __init__(self, m: Machine, lanes: Lanes) -> None:
        self._n_blocks = m.n_blocks
        self._lanes = lanes
        self.whole = is_whole(m, lanes)
        self.n = lanes.n // WARP_THREADS
        self.complete = True
        self.at = np.empty(0, np.int64)
        if not self.whole:
            self._scatter(m, lanes)

    def _scatter(self, m: Machine, lanes: Lanes) -> None:
        """Give each warp a row; `at` holds the place of each lane in the rows."""
        threads = m.thread_of[lanes.sel]
        key = (threads >> 5) * m.n_blocks + m.block_of[lanes.sel]
        present = np.zeros(m.n_warps * m.n_blocks, np.bool_)
        present[key] = True
        self._warps = np.flatnonzero(present)
        self.n = len(self._warps)
        self.at = (np.cumsum(present) - 1)[key] * WARP_THREADS + (threads & 31)
        self.complete = lanes.n == self.n * WARP_THREADS

    @cached_property
    def here(self) -> BoolArray:
        """Say which lanes of each warp take part."""
        here = np.full(self.n * WARP_THREADS, self.whole)
        here[self.at] = True
        return here.reshape(self.n, WARP_THREADS)

    @cached_property
    def slots(self) -> Array:
        """Return the lane numbers, of absent lanes too."""
        if self.whole:
            return self.spread(self._lanes.index, np.int64)
        n = self._n_blocks
        first = (self._warps // n) * WARP_THREADS * n + self._warps % n
        slots: Array = first[:, None] + np.arange(WARP_THREADS) * n
        return slots

    def spread(self, values: Any, dtype: Any) -> Array:
        """Return one value a lane as rows of warps, side by side; absent lanes hold 0."""
        if self.whole:
            flat = one_a_lane(np.asarray(values, dtype), self._lanes.n)
            cube = flat.reshape(-1, WARP_THREADS, self._n_blocks)
            return np.ascontiguousarray(cube.swapaxes(1, 2).reshape(-1, WARP_THREADS))
        rows = np.zeros(self.n * WARP_THREADS, dtype)
        rows[self.at] = values
        return rows.reshape(self.n, WARP_THREADS)

    def gather(self, rows: Array) -> Array:
        """Return rows of warps as one value a lane, in the order of the lanes."""
        rows = np.broadcast_to(rows, (self.n, WARP_THREADS))
        if self.whole:
            return rows.reshape(-1, self._n_blocks, WARP_THREADS).swapaxes(1, 2).reshape(-1)
        return rows.reshape(-1)[self.at]


def is_whole(m: Machine, lanes: Lanes) -> bool:
    """Say whether lanes are whole warps of all blocks, as one slice."""
    step = WARP_THREADS * m.n_blocks
    return lanes.contiguous and lanes.n % step == 0 and lanes.sel.start % step == 0  # type: ignore[union-attr]


def _masks(lanes: BoolArray) -> Array:
    """Return rows of 32 booleans as masks."""
    masks: Array = (lanes * _WEIGHTS).sum(axis=1, dtype=np.uint32)
    return masks


class Members:
    """The member mask of a `.sync` instruction, and the parking of lanes that come early."""

    def __init__(self, ops: Operands, operand: Any) -> None:
        self.read: Getter = ops.source(operand, "u32")
        self._is_all = ops.is_literal(operand) and ops.immediate(operand) & _EVERY == _EVERY
        self.condition = Condition(self._ready, self._text, again=True)

    def together(self, m: Machine, lanes: Lanes) -> tuple[Lanes, Lanes]:
        """Return the lanes whose warps are all there, and the others."""
        if is_whole(m, lanes):
            return lanes, lane_sets.NONE
        ready = self._ready(m, lanes)
        if all_of(ready):
            return lanes, lane_sets.NONE
        return lanes.where(ready), lanes.where(~ready)

    def _ready(self, m: Machine, lanes: Lanes) -> BoolArray:
        warps = Warps(m, lanes)
        if warps.complete:
            return np.ones(lanes.n, np.bool_)
        masks = np.broadcast_to(self.read(m, lanes), lanes.n)
        ready: BoolArray = masks & self._absent(m, warps)[warps.at // WARP_THREADS] == 0
        return ready

    def _absent(self, m: Machine, warps: Warps) -> Array:
        """Return of each warp the mask of the live lanes that are not here."""
        # Slots past the block's last thread do not exist.
        exists = warps.slots < m.n_lanes
        alive = exists & m.live[np.minimum(warps.slots, m.n_lanes - 1)]
        return _masks(alive & ~warps.here)

    def groups(self, m: Machine, lanes: Lanes) -> Iterator[Lanes]:
        """Yield the lanes of each mask: those that take part in one operation of their warps."""
        if self._is_all:
            yield lanes
            return
        masks = one_a_lane(self.read(m, lanes), lanes.n)
        outside = masks >> (m.thread_of[lanes.sel] & (WARP_THREADS - 1)).astype(np.uint32) & 1 == 0
        if any_of(outside):
            at = int(np.argmax(outside))
            text = f"a lane executes this with mask {masks[at]:#010x}, which does not name it"
            raise m.fault("E214", text, int(lanes.index[at]), _NAME_IT)
        found = np.unique(masks)
        for mask in found:
            some = lanes if len(found) == 1 else lanes.where(masks == mask)
            if len(found) > 1:
                self._require_alone(m, some, mask)
            yield some

    def _require_alone(self, m: Machine, lanes: Lanes, mask: Any) -> None:
        """Fault if lanes that a mask names have come with another one."""
        warps = Warps(m, lanes)
        other = warps.gather((self._absent(m, warps) & mask)[:, None]) != 0
        if any_of(other):
            text = f"lanes that mask {mask:#010x} names execute this with another mask"
            raise m.fault("E214", text, lanes.first(other), _NAME_IT)

    def _text(self, m: Machine, lanes: Lanes) -> str:
        mask = int(np.broadcast_to(self.read(m, lanes), lanes.n)[0])
        warps = Warps(m, lanes)
        here = sum(1 << k for k in range(WARP_THREADS) if warps.here[0, k])
        return f"waits for the lanes of mask {mask:#010x}, of which {here:#010x} are there"


def collective(
    ops: Operands,
    mask: Any,
    body: Body,
    *,
    tracks: bool = False,
    bits: Flow | None = None,
) -> Control:
    """Return a step that parks early lanes and runs `body` on whole warps.

    With `tracks` the body marks undefined results itself; else they follow a rule, that all of a
    warp's results come from all that it reads unless there is another.
    """
    members = Members(ops, mask)
    ops.sensitive += ops.registers(mask)
    track = _Tracking(ops, bits)

    def execute(m: Machine, lanes: Lanes) -> Lanes | None:
        ready, early = members.together(m, lanes)
        if early.n:
            m.block(early, members.condition)
        for some in members.groups(m, ready) if ready.n else ():
            warps = Warps(m, some)
            if m.undefined and not tracks:
                track.run(m, some, warps, body)
            else:
                body(m, some, warps)
        return ready if early.n else None

    return execute


def _with_warps(body: Body, warps: Warps, m: Machine, lanes: Lanes) -> None:
    body(m, lanes, warps)


class _Tracking:
    """How undefined bits pass through a collective, from all lanes of a warp to all of them."""

    def __init__(self, ops: Operands, bits: Flow | None) -> None:
        self._reads = ops.looked_at()
        self._writes = tuple(ops.writes)
        self._flow = bits

    def run(self, m: Machine, lanes: Lanes, warps: Warps, body: Body) -> None:
        """Execute the body, and mark what it writes."""
        found = bits_read(m, lanes, self._reads)
        if found is None:
            body(m, lanes, warps)
            for place in self._writes:
                mark(m, place, lanes, None)
            return
        origins = warps.gather(warps.spread(found[1], found[1].dtype).max(axis=1)[:, None])
        if self._flow is None:
            results = [filled(m, place, lanes, origins != 0) for place in self._writes]
        else:
            step = partial(_with_warps, body, warps)
            results = [*self._flow(m, lanes, step, found[0])]
        body(m, lanes, warps)
        for place, bits in zip(self._writes, results, strict=True):
            mark(m, place, lanes, bits, origins)


@controls("shfl.sync")
def prepare_shfl(ops: Operands) -> Control:
    """`shfl.sync.{up,down,bfly,idx}.b32 d{|p}, a, b, c, mask` (PTX ISA 9.7.9.6)."""
    ops.allow("sync", *_SOURCES)
    return _Shuffle(ops).prepared


class _Shuffle:
    """One `shfl.sync`; lane and clamp that are constants are worked out once."""

    def __init__(self, ops: Operands) -> None:
        self.find = _SOURCES[ops.modifiers[1]]
        results = ops.pair(ops.args[0])
        self.place = ops.registers(ops.args[1])
        self.to = ops.registers(results[0])
        self.decides = [
            (place, 32) for operand in ops.args[2:4] for place in ops.registers(operand)
        ]
        self.value = ops.source(ops.args[1], "b32")
        self.lane, self.clamp = ops.source(ops.args[2], "u32"), ops.source(ops.args[3], "u32")
        self.write = ops.destination(results[0], "b32")
        self.write_valid = ops.destination(results[1], "pred") if len(results) == 2 else None
        self.valid = ops.registers(results[1]) if len(results) == 2 else ()
        self.constant: tuple[Array, Array] | None = None
        if ops.is_literal(ops.args[2]) and ops.is_literal(ops.args[3]):
            lane, clamp = ops.immediate(ops.args[2]) & 31, ops.immediate(ops.args[3])
            self.constant = self._sources(np.int64(lane), np.int64(clamp))
        self.prepared = collective(ops, ops.args[4], self._run, tracks=True)

    def _sources(self, lane: Any, clamp: Any) -> tuple[Array, Array]:
        """Return from which lane each lane takes its value, and whether that lane is in range."""
        own = np.arange(WARP_THREADS)
        segment, limit = clamp >> 8 & 31, clamp & 31
        source, valid = self.find(own, lane, segment, own & segment | limit & ~segment)
        return np.where(valid, source, own) & 31, valid

    def _run(self, m: Machine, lanes: Lanes, warps: Warps) -> None:
        if warps.whole and self.constant is not None and not m.undefined:
            source, valid = self.constant
            cube = one_a_lane(self.value(m, lanes), lanes.n).reshape(-1, WARP_THREADS, m.n_blocks)
            self.write(m, lanes, cube.take(source, axis=1).reshape(-1))
            if self.write_valid is not None:
                self.write_valid(m, lanes, warps.gather(valid))
            return
        rows = warps.spread(self.value(m, lanes), np.uint32)
        lane = warps.spread(self.lane(m, lanes), np.int64) & 31
        source, valid = self._sources(lane, warps.spread(self.clamp(m, lanes), np.int64))
        self._mark(m, lanes, warps, source)
        self.write(m, lanes, warps.gather(np.take_along_axis(rows, source, axis=1)))
        if self.write_valid is not None:
            self.write_valid(m, lanes, warps.gather(valid))

    def _mark(self, m: Machine, lanes: Lanes, warps: Warps, source: Array) -> None:
        """Follow undefined values from lane to lane; what an absent lane gives is undefined."""
        if warps.complete and not m.undefined:
            return
        absent = ~warps.here
        bits, origins = absent * np.uint32(_EVERY), absent * np.uint32(m.pc + 1)
        found = bits_read(m, lanes, [(place, 32) for place in self.place])
        if found is not None:
            given = found[0][self.place[0]].astype(np.uint32)
            bits |= warps.spread(given, np.uint32)
            origins = np.maximum(origins, warps.spread(found[1], np.uint32))
        bits, origins = (
            warps.gather(np.take_along_axis(rows, source, axis=1)) for rows in (bits, origins)
        )
        decides = bits_read(m, lanes, self.decides)
        if decides is not None:
            bits = bits | np.where(decides[1] != 0, np.uint32(_EVERY), np.uint32(0))
            origins = np.maximum(origins, decides[1])
        for place in self.to:
            mark(m, place, lanes, bits, origins)
        for place in self.valid:
            mark(m, place, lanes, None if decides is None else decides[1] != 0, origins)


Found = tuple[Any, Any]
_SOURCES: dict[str, Callable[[Any, Any, Any, Any], Found]] = {
    "up": lambda own, b, segment, limit: (own - b, own - b >= limit),
    "down": lambda own, b, segment, limit: (own + b, own + b <= limit),
    "bfly": lambda own, b, segment, limit: (own ^ b, (own ^ b) <= limit),
    "idx": lambda own, b, segment, limit: (
        own & segment | b & ~segment,
        (own & segment | b & ~segment) <= limit,
    ),
}


@controls("vote.sync")
def prepare_vote(ops: Operands) -> Control:
    """`vote.sync.{all,any,uni}.pred p, {!}a, mask`, `vote.sync.ballot.b32 d, {!}a, mask`."""
    ops.allow("sync", "all", "any", "uni", "ballot")
    mode = ops.modifiers[1]
    vote = ops.source(ops.args[1], "pred")
    write = ops.destination(ops.args[0], "b32" if mode == "ballot" else "pred")

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        votes = np.broadcast_to(vote(m, lanes), lanes.n)
        true, false = warps.spread(votes, np.bool_), warps.spread(~votes, np.bool_)
        if mode == "ballot":
            result: Any = _masks(true)
        elif mode == "any":
            result = true.any(axis=1)
        elif mode == "all":
            result = ~false.any(axis=1)
        else:
            result = ~(true.any(axis=1) & false.any(axis=1))
        write(m, lanes, warps.gather(result[:, None]))

    bits = tried(ops, _unlike, {}) if mode == "uni" else extremes(ops)
    return collective(ops, ops.args[2], body, bits=bits)


def _unlike(m: Machine, lanes: Lanes, ends: Ends) -> Iterator[Values]:
    """Give lanes the same, either way, and the first lane of each warp something else."""
    yield from both_ends(m, lanes, ends)
    warps = Warps(m, lanes)
    first = warps.gather(np.arange(WARP_THREADS) == np.argmax(warps.here, axis=1)[:, None])
    yield {place: np.where(first, low, high) for place, (low, high) in ends.items()}


@controls("match.any.sync", "match.all.sync")
def prepare_match(ops: Operands) -> Control:
    """`match.{any,all}.sync.type d{|p}, a, mask`: which lanes hold the same value."""
    ops.allow("sync", "any", "all")
    name = f"b{ops.last_type().bits}"
    value = ops.source(ops.args[1], name)
    results = ops.pair(ops.args[0])
    write = ops.destination(results[0], "b32")
    write_all = ops.destination(results[1], "pred") if len(results) == 2 else None
    every = ops.has("all")

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        rows = warps.spread(value(m, lanes), np.uint64)
        both = warps.here[:, :, None] & warps.here[:, None, :]
        same = (rows[:, :, None] == rows[:, None, :]) & both
        masks = (same * _WEIGHTS).sum(axis=2, dtype=np.uint32)
        if every:
            whole = (same | ~both).all(axis=(1, 2))[:, None]
            masks = np.where(whole, _masks(warps.here)[:, None], 0)
            if write_all is not None:
                write_all(m, lanes, warps.gather(whole))
        write(m, lanes, warps.gather(masks))

    return collective(ops, ops.args[2], body)


_REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@controls("redux.sync")
def prepare_redux(ops: Operands) -> Control:
    """`redux.sync.op{.abs}{.NaN}.type d, a, mask` (PTX ISA 9.7.13.12)."""
    ops.allow("sync", *_REDUCTIONS, "abs", "NaN")
    word, scalar = ops.modifiers[1], ops.last_type()
    value = ops.source(ops.args[1], scalar.name)
    write = ops.destination(ops.args[0], scalar.name)
    ufunc = _REDUCTIONS[word]
    absolute, takes_nan = ops.has("abs"), ops.has("NaN")

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        values = np.broadcast_to(value(m, lanes), lanes.n)
        rows = warps.spread(np.abs(values) if absolute else values, scalar.dtype)
        if scalar.kind == "f":
            result = _extreme_floats(ufunc, rows, warps.here, takes_nan)
        else:
            rows = np.where(warps.here, rows, _identity(word, scalar.dtype))
            result = ufunc.reduce(rows, axis=1, dtype=scalar.dtype)
        write(m, lanes, warps.gather(result[:, None]))

    return collective(ops, ops.args[2], body)


def _extreme_floats(ufunc: Any, rows: Array, here: BoolArray, takes_nan: bool) -> Array:
    """Return the least or greatest of each row, -0 below +0; NaN, the canonical one, or no NaN."""
    nan = np.isnan(rows)
    counts = here & ~nan
    bits = rows.view(np.int32)
    keys = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)
    info = np.iinfo(np.int32)
    neutral = info.max if ufunc is np.minimum else info.min
    found = ufunc.reduce(np.where(counts, keys, np.int32(neutral)), axis=1)
    result = np.where(found < 0, found ^ np.int32(0x7FFFFFFF), found).view(np.float32)
    is_nan = (nan & here).any(axis=1) if takes_nan else ~counts.any(axis=1)
    return np.where(is_nan, np.uint32(0x7FFFFFFF).view(np.float32), result)


def _identity(word: str, dtype: np.dtype[Any]) -> Any:
    if word in ("add", "or", "xor"):
        return dtype.type(0)
    if word == "and":
        return np.array(-1).astype(dtype)[()]
    info = np.iinfo(dtype)
    return dtype.type(info.max if word == "min" else info.min)


@controls("elect.sync")
def prepare_elect(ops: Operands) -> Control:
    """`elect.sync d|p, mask`: the lowest lane of the mask is the leader."""
    ops.allow("sync")
    results = ops.pair(ops.args[0])
    write = ops.destination(results[0], "b32")
    write_leader = ops.destination(results[1], "pred")

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        if warps.whole:
            write(m, lanes, np.uint32(0))
            write_leader(m, lanes, m.thread_of[lanes.sel] & (WARP_THREADS - 1) == 0)
            return
        leader = np.argmax(warps.here, axis=1)[:, None]
        write(m, lanes, warps.gather(leader.astype(np.uint32)))
        write_leader(m, lanes, warps.gather(np.arange(WARP_THREADS) == leader))

    return collective(ops, ops.args[1], body)


@controls("bar.warp.sync")
def prepare_bar_warp(ops: Operands) -> Control:
    """`bar.warp.sync mask`: wait for the lanes of the mask."""
    ops.allow("warp", "sync")

    def body(m: Machine, lanes: Lanes, warps: Warps) -> None:
        """Order what the lanes did before what they do next."""
        if m.guard is not None:
            m.guard.meet(lanes)

    return collective(ops, ops.args[0], body)


@executes("activemask")
def prepare_activemask(ops: Operands) -> Execute:
    """`activemask.b32 d`: which lanes of the warp run this instruction together."""
    ops.allow()
    write = ops.destination(ops.args[0], "b32")

    def execute(m: Machine, lanes: Lanes) -> None:
        warps = Warps(m, lanes)
        write(m, lanes, warps.gather(_masks(warps.here)[:, None]))

    return execute
