"""`atom` and `red`: read-modify-write of memory (PTX ISA 9.7.13.5, 9.7.13.6).

Invariant: lanes that meet at one address take their turns in lane order, as if alone one after the
other; scopes and orders say what the races of other accesses are judged by, no more, since every
access of the emulator is seen by all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import numerics
from astdsl.emulator.clocks import scope_number
from astdsl.emulator.deadlock import Polls
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.memory import SPACES, extended, space_of, strength_of, strongly
from astdsl.emulator.ledger import Strength
from astdsl.emulator.memory import WINDOW_SHIFT, WINDOWS
from astdsl.emulator.scalars import UNSIGNED, Array, Scalar, all_of
from astdsl.emulator.syntax import Vector
from astdsl.emulator.undefined import (
    Undefined,
    bits_read,
    mark,
    read_here,
    undefined_fault,
    wholly,
)

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands

# (value in memory, operand, second operand of cas) -> new value.
Update = Callable[[Any, Any, Any], Any]

_UPDATES: dict[str, Update] = {
    "add": lambda old, b, c: old + b,
    "min": lambda old, b, c: np.minimum(old, b),
    "max": lambda old, b, c: np.maximum(old, b),
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "exch": lambda old, b, c: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
    "inc": lambda old, b, c: np.where(old >= b, 0, old + old.dtype.type(1)),
    "dec": lambda old, b, c: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
}
_WORDS = ("relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys", "noftz",
          "ftz", "shared::cta", "shared::cluster", "L2::cache_hint")  # fmt: skip
_VECTORS = ("v2", "v4", "v8")
# Addresses in windows have no bits from here on.
_CLUSTER_SHIFT = 48
_SHARED = WINDOWS["shared"] >> WINDOW_SHIFT


@executes("atom", tracks=True)
def prepare_atom(ops: Operands) -> Execute:
    """`atom{.sem}{.scope}{.space}.op.type d, [a], b{, c}`: d is the value before."""
    return _atomic(ops, ops.args[1:], ops.args[0])


@executes("red", tracks=True)
def prepare_red(ops: Operands) -> Execute:
    """`red{.sem}{.scope}{.space}.op.type [a], b`: without the value before."""
    return _atomic(ops, ops.args, None)


def _atomic(ops: Operands, args: Any, result: Any) -> Execute:
    ops.allow(*SPACES, *_UPDATES, *_WORDS, *_VECTORS)
    if ops.last_type().name == "b128":
        return _wide(ops, args, result)
    if not isinstance(args[1], Vector):
        return _Atomic(ops, args, result).execute
    # Each element of a vector is an atomic of its own, in any order.
    results = [None] * len(args[1].elements) if result is None else result.elements
    size = ops.last_type().bytes
    parts = [
        _Atomic(ops, (args[0], element), each, i * size)
        for i, (element, each) in enumerate(zip(args[1].elements, results, strict=True))
    ]

    def execute(m: Machine, lanes: Lanes) -> None:
        for part in parts:
            part.execute(m, lanes)

    return execute


def _wide(ops: Operands, args: Any, result: Any) -> Execute:
    """`atom.{exch,cas}.b128`: pairs of 64-bit words."""
    compares = ops.has("cas")
    if not compares and not ops.has("exch"):
        raise ops.refuse("128-bit atomics are exch and cas")
    space, address = space_of(ops, args[0]), ops.address(args[0])
    value, other = ops.source(args[1], "b128"), None
    if compares:
        other = ops.source(args[2], "b128")
    ops.sensitive += ops.reads
    write = ops.destination(result, "b128") if result is not None else None
    places = () if result is None else ops.registers(result)
    strength = _strength(ops)

    def execute(m: Machine, lanes: Lanes) -> None:
        addresses = np.broadcast_to(address(m, lanes), lanes.n)
        operands = np.broadcast_to(value(m, lanes), (lanes.n, 2))
        before, after, unknown = (np.zeros((lanes.n, 2), np.uint64) for _ in range(3))
        words = _words(m, lanes, space, addresses)
        for turn in swaps(words, operands, after) if compares else turns(words):
            some = Turn(lanes, turn)
            with strongly(m, strength.scope):
                old, missing = m.memory.load(
                    m, some.lanes, space, addresses[some.at], np.dtype(np.uint64), 2
                )
                unknown[some.at] = 0 if missing is None else missing
                before[some.at] = old
                new = operands[some.at]
                if other is not None:
                    third = np.broadcast_to(other(m, some.lanes), old.shape)
                    new = np.where((old == new).all(axis=1)[:, None], third, old)
                version = m.memory.version
                left = read_here(m, wholly(missing)) if compares else None
                m.memory.store(m, some.lanes, space, addresses[some.at], new, left)
                if np.array_equal(new, old):
                    m.memory.version = version
            after[some.at] = new
            _signal(m, some.lanes, space, addresses[some.at], strength)
        m.state(Polls).note_memory(m, lanes, space, addresses, before if write else None)
        m.wake = True
        if write is not None:
            write(m, lanes, before)
            for place in places:
                mark(m, place, lanes, unknown)

    return execute


class _Atomic:
    """One `atom` or `red`; `result` is None for `red`."""

    def __init__(self, ops: Operands, args: Any, result: Any, offset_bytes: int = 0) -> None:
        self.offset = np.int64(offset_bytes)
        word = next((w for w in ops.modifiers if w in _UPDATES), None)
        if word is None:
            raise ops.refuse("no operation is named")
        scalar = self.scalar = ops.last_type()
        self.space, self.address = space_of(ops, args[0]), ops.address(args[0])
        self.value = ops.source(args[1], scalar.name)
        self.third = ops.source(args[2], scalar.name) if word == "cas" else None
        given = (
            place for operand in args[1 : 2 + (word == "cas")] for place in ops.registers(operand)
        )
        self.given = [(place, scalar.bits) for place in given]
        self.keeps = word != "exch"
        self.write = None if result is None else ops.destination(result, scalar.name)
        self.to = () if result is None else ops.registers(result)
        self.update = _typed(word, scalar)
        self.strength = _strength(ops)

    def execute(self, m: Machine, lanes: Lanes) -> None:
        """Take turns at the addresses; give each lane the value before its turn."""
        found = bits_read(m, lanes, self.given) if m.undefined else None
        if found is not None:
            bits = next(iter(found[0].values()))
            raise undefined_fault(m, lanes, Undefined(bits, found[1]), "an operand of an atomic")
        addresses = np.broadcast_to(self.address(m, lanes) + self.offset, lanes.n)
        operands = _spread(self.value(m, lanes), lanes.n, self.scalar)
        others = None
        if self.third is not None:
            others = _spread(self.third(m, lanes), lanes.n, self.scalar)
        before = np.empty(operands.shape, self.scalar.dtype)
        unknown = np.zeros(lanes.n, UNSIGNED[self.scalar.bits])
        after, words = np.empty_like(before), _words(m, lanes, self.space, addresses)
        for turn in turns(words) if others is None else swaps(words, operands, after):
            some = Turn(lanes, turn)
            third = None if others is None else others[some.at]
            before[some.at], after[some.at], missing = self._exchange(
                m, some.lanes, addresses[some.at], operands[some.at], third
            )
            unknown[some.at] = 0 if missing is None else missing
        answers = before if self.write else None
        m.state(Polls).note_memory(m, lanes, self.space, addresses, answers)
        m.wake = True
        if self.write is not None:
            self.write(m, lanes, before)
            for place in self.to:
                mark(m, place, lanes, extended(unknown, self.scalar, place))

    def _exchange(
        self, m: Machine, lanes: Lanes, addresses: Array, operand: Array, third: Array | None
    ) -> tuple[Array, Array, Array | None]:
        """Update addresses; return what they held, what they hold, and the undefined bits of that.

        They are distinct, or nothing changes.
        """
        dtype = UNSIGNED[self.scalar.bits]
        with strongly(m, self.strength.scope):
            raw, missing = m.memory.load(m, lanes, self.space, addresses, dtype)
            old = _seen(raw, self.scalar)
            new = self.update(old, operand, third)
            stored = np.ascontiguousarray(new, self.scalar.dtype).view(dtype).reshape(-1)
            version = m.memory.version
            left = read_here(m, wholly(missing)) if self.keeps else None
            m.memory.store(m, lanes, self.space, addresses, stored, left)
        if np.array_equal(stored, np.ravel(raw)):
            # A lock that stays taken: nothing has changed.
            m.memory.version = version
        _signal(m, lanes, self.space, addresses, self.strength)
        return old, _seen(stored, self.scalar), missing


def _strength(ops: Operands) -> Strength:
    """Return how an atomic orders others: relaxed, at the scope of the GPU, unless it says so."""
    return strength_of(ops) or Strength(False, False, scope_number(ops.modifiers))


def _signal(m: Machine, lanes: Lanes, space: str, addresses: Array, strength: Strength) -> None:
    """Note that lanes have read and written words: they learn first, and then tell."""
    if m.guard is not None:
        m.guard.signal(lanes, space, addresses, strength, reads=True)
        m.guard.signal(lanes, space, addresses, strength, reads=False)


class Turn:
    """Some of the lanes: `at` their places among all, all of them when `turn` is None."""

    __slots__ = ("at", "lanes")

    def __init__(self, lanes: Lanes, turn: Array | None) -> None:
        self.at: Any = slice(None) if turn is None else turn
        self.lanes = lanes if turn is None else type(lanes).of(lanes.index[turn])


def _words(m: Machine, lanes: Lanes, space: str, addresses: Array) -> Array:
    """Return a number for the word that each lane reaches: the same for the same word."""
    if space not in ("", "generic", "shared"):
        return addresses
    # Shared memory is of a block, or of a cluster, whose blocks are told apart by the address.
    clusters = m.block_of[lanes.sel] // m.launch.cluster_size
    inside = True if space == "shared" else addresses >> WINDOW_SHIFT == _SHARED
    words: Array = addresses + (clusters * inside << _CLUSTER_SHIFT)
    return words


def swaps(words: Array, wanted: Array, held: Array) -> Iterator[Array | None]:
    """Split places so that each lane compares as if alone, in order; None = all at once.

    Whoever finds in its word what it does not want changes nothing: those that follow each other
    there do so in one turn. After each turn `held` says what is in the words of its lanes.
    """
    order = np.argsort(words, kind="stable")
    ranked, wanted = words[order], wanted[order]
    starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    n = len(ranked)
    ends = np.append(starts[1:], n)
    if len(starts) == n:
        yield None
        return
    place, each = np.arange(n), np.repeat(np.arange(len(starts)), ends - starts)
    following = starts.copy()
    while (left := following < ends).any():
        first = following[left]
        yield np.sort(order[first])
        now = held[order[np.minimum(following, ends - 1)]]
        following[left] += 1
        equal = wanted == now[each]
        finds = equal if equal.ndim == 1 else equal.all(axis=1)
        stop = np.where(finds & (place >= following[each]), place, n)
        stop = np.minimum(np.minimum.reduceat(stop, starts), ends)
        failing = (place >= following[each]) & (place < stop[each])
        if failing.any():
            yield np.sort(order[failing])
        following = stop


def turns(words: Array) -> Iterator[Array | None]:
    """Split places so that no word occurs twice in one turn, in order; None = all at once."""
    order = np.argsort(words, kind="stable")
    ranked = words[order]
    new = np.ones(len(ranked), np.bool_)
    new[1:] = ranked[1:] != ranked[:-1]
    if all_of(new):
        yield None
        return
    starts = np.flatnonzero(new)
    rank = np.arange(len(ranked)) - np.repeat(starts, np.diff([*starts, len(ranked)]))
    by_rank = np.argsort(rank, kind="stable")
    for part in np.split(by_rank, np.cumsum(np.bincount(rank))[:-1]):
        yield np.sort(order[part])


def _spread(value: Any, n: int, scalar: Scalar) -> Array:
    return np.broadcast_to(value, (n, 2) if scalar.count == 2 else n)


def _seen(raw: Array, scalar: Scalar) -> Array:
    typed = np.ascontiguousarray(raw).view(scalar.dtype)
    return typed.reshape(-1, 2) if scalar.count == 2 else typed


def _typed(word: str, scalar: Scalar) -> Update:
    """Return the update for a type: bfloat16 goes through float32, float extremes skip NaNs."""
    update = _UPDATES[word]
    if not scalar.is_float or word in ("exch", "cas"):
        return update
    if word in ("min", "max"):
        choose = np.fmin if word == "min" else np.fmax
        update = lambda old, b, c: choose(old, b)  # noqa: E731
    if scalar.kind != "bf":
        return update
    widen = numerics.bf16_to_f32
    return lambda old, b, c: numerics.f32_to_bf16(update(widen(old), widen(b), c))
