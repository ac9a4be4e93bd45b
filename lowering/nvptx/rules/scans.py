"""Lowering of `Scan` and `Fold`: an axis is gone through level by level, neighbours first.

At each level neighbouring runs of elements become one: those in a thread's registers one after the
other, those of lanes by `shfl` in log2(lanes) rounds, those of warps through shared memory. Of
every run a thread knows the total, and for a scan each element's prefix within its run.

Invariant: operands keep their order. Padding stands behind the last element, so it only ever
reaches prefixes of padding; a fold takes of a run of padding nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Block
from astdsl.lowering.layout.inference import combined_layout
from astdsl.lowering.layout.levels import Holder, Level, levels_along, thread_levels
from astdsl.lowering.layout.registers import Layout, splat
from astdsl.lowering.nvptx.function import Emitter, lowers
from astdsl.lowering.nvptx.lanes import shuffled
from astdsl.lowering.nvptx.rules.control import placed
from astdsl.lowering.nvptx.rules.exchange import Board, State
from astdsl.lowering.nvptx.values import LV, i1, i32

Combination: TypeAlias = Callable[[State, State], State]


@lowers(ops.Scan)
def _scan(emitter: Emitter, op: ops.Scan) -> None:
    layout, states = _states(emitter, op)
    walk = _Walk(emitter, layout, op.axis, states, _combination(emitter, op))
    for number, level in enumerate(walk.levels, 1):
        _SCANS[level.holder](walk, level, number < len(walk.levels))
    for k, result in enumerate(op.results):
        registers = tuple(prefix[k] for prefix in walk.prefixes)
        own = placed(emitter, result)
        emitter.define(result, own, emitter.converted(registers, result.tile, layout, own))


@lowers(ops.Fold)
def _fold(emitter: Emitter, op: ops.Fold) -> None:
    layout, states = _states(emitter, op)
    combine = _combination(emitter, op)
    if layout.padded[op.axis] > op.shape[op.axis]:
        combine = _unless_padding(emitter, combine)
        valid = [emitter.is_inside(layout, k, [op.axis]) or i1(True) for k in range(len(states))]
        states = [(*state, inside) for state, inside in zip(states, valid, strict=True)]
    walk = _Walk(emitter, layout, op.axis, states, combine)
    for level in walk.levels:
        _TOTALS[level.holder](walk, level)
    kept = dict(zip(layout.kept_registers([op.axis]), walk.totals, strict=True))
    totals, reduced = [kept[k] for k in range(len(kept))], layout.without([op.axis])
    for k, result in enumerate(op.results):
        registers = tuple(total[k] for total in totals)
        own = placed(emitter, result)
        emitter.define(result, own, emitter.converted(registers, result.tile, reduced, own))


def _states(emitter: Emitter, op: ops.Combining) -> tuple[Layout, list[State]]:
    """Return the layout in which the elements are combined, and each register's state."""
    layout = combined_layout(op, emitter.placements, emitter.threads)
    return layout, list(zip(*(emitter.get(x, layout) for x in op.xs), strict=True))


def _combination(emitter: Emitter, op: ops.Combining) -> Combination:
    """Return the function that writes the operations of `combine` for two states."""
    captured = tuple(emitter.scalar(v) for v in op.captured)
    body = Block(args=op.combine.args, ops=op.combine.ops[:-1])
    scalar = splat((), emitter.threads)

    def combine(left: State, right: State) -> State:
        with emitter.scope():
            for value, register in zip(body.args, (*left, *right, *captured), strict=True):
                emitter.define(value, scalar, [register])
            emitter.block(body)
            return tuple(emitter.scalar(v) for v in ops.yielded(op.combine))

    return combine


def _unless_padding(emitter: Emitter, combine: Combination) -> Combination:
    """Return the combination of states with a last register: whether the run has an element."""

    def combined(left: State, right: State) -> State:
        *values, valid = left
        made = combine(left[:-1], right[:-1])
        choices = zip(made, values, strict=True)
        return (*(emitter.builder.select(right[-1], x, y) for x, y in choices), valid)

    return combined


@dataclass(slots=True)
class _Walk:
    """The state of going through one axis.

    `totals` is of each register the total of its run, `prefixes` that of the run's elements up to
    its own; registers of one run have one and the same total.
    """

    emitter: Emitter
    layout: Layout
    axis: int
    totals: list[State]
    combination: Combination
    prefixes: list[State] = field(init=False)
    made: dict[tuple[State, State], State] = field(default_factory=dict)
    levels: list[Level] = field(init=False)

    def __post_init__(self) -> None:
        levels = levels_along(self.layout, self.axis)
        assert levels is not None, f"axis {self.axis} of {self.layout} is not in order"
        self.levels = levels
        self.prefixes = list(self.totals)

    def combine(self, left: State, right: State) -> State:
        """Combine two states, the same ones once."""
        if (left, right) not in self.made:
            self.made[left, right] = self.combination(left, right)
        return self.made[left, right]

    def chosen(self, condition: LV, x: State, y: State) -> State:
        """Return `x` where the condition holds, else `y`."""
        pairs = zip(x, y, strict=True)
        return tuple(self.emitter.builder.select(condition, a, b) for a, b in pairs)

    def from_lane(self, state: State, mode: str, lane: LV) -> State:
        """Return another lane's state."""
        return tuple(shuffled(self.emitter.builder, value, mode, lane) for value in state)

    def digit(self, level: Level) -> LV:
        """Return the number of the thread's run at a level of threads."""
        return self.emitter.thread_digit(level.divisor, level.extent)

    def before(self, level: Level, carries: dict[State, State]) -> None:
        """Put what came before each run, by the run's total, in front of its prefixes."""
        builder = self.emitter.builder
        is_later = builder.icmp("ne", self.digit(level), i32(0))
        done: dict[tuple[State, State], State] = {}
        for k, pair in enumerate(zip(self.totals, self.prefixes, strict=True)):
            if pair not in done:
                total, prefix = pair
                joined = self.combine(carries[total], prefix)
                done[pair] = self.chosen(is_later, joined, prefix)
            self.prefixes[k] = done[pair]

    def replace_totals(self, new: dict[State, State]) -> None:
        """Put the totals of longer runs in place of those that they are made of."""
        self.totals = [new[total] for total in self.totals]

    def board(self, level: Level) -> Board:
        """Return where the warps of a level meet."""
        below = self.levels[: self.levels.index(level)]
        threads = thread_levels(self.layout)
        same = [v for v in threads if v.is_copy or v in below]
        kept = [v for v in threads if v not in same and v != level]
        return Board(self.emitter, across=[level], kept=kept, same=same)

    def runs(self, level: Level) -> list[list[int]]:
        """Return the registers that differ in a level of registers alone, in order."""
        firsts = (k for k in range(len(self.totals)) if not k // level.divisor % level.extent)
        return [[k + d * level.divisor for d in range(level.extent)] for k in firsts]


def _scan_registers(walk: _Walk, level: Level, goes_on: bool) -> None:
    del goes_on
    totals = list(walk.totals)
    for first, *rest in walk.runs(level):
        running = walk.totals[first]
        for k in rest:
            walk.prefixes[k] = walk.combine(running, walk.prefixes[k])
            running = walk.combine(running, walk.totals[k])
        for k in (first, *rest):
            totals[k] = running
    walk.totals = totals


def _scan_lanes(walk: _Walk, level: Level, goes_on: bool) -> None:
    """Combine with the totals 1, 2, 4, ... runs below; what came before is one run below."""
    builder, digit = walk.emitter.builder, walk.digit(level)
    running = {total: total for total in walk.totals}
    distance = 1
    while distance < level.extent:
        reaches = builder.icmp("uge", digit, i32(distance))
        for total, own in running.items():
            other = walk.from_lane(own, "up", i32(distance * level.divisor))
            running[total] = walk.chosen(reaches, walk.combine(other, own), own)
        distance *= 2
    if walk.prefixes == walk.totals:
        walk.prefixes = [running[total] for total in walk.totals]
    else:
        below = i32(level.divisor)
        walk.before(level, {t: walk.from_lane(s, "up", below) for t, s in running.items()})
    if goes_on:
        last = builder.or_(walk.emitter.thread, i32((level.extent - 1) * level.divisor))
        walk.replace_totals({t: walk.from_lane(s, "idx", last) for t, s in running.items()})


def _scan_warps(walk: _Walk, level: Level, goes_on: bool) -> None:
    """Combine the totals of all warps in every thread, keeping what is before its own."""
    builder, digit = walk.emitter.builder, walk.digit(level)
    totals = list(dict.fromkeys(walk.totals))
    carries, joined = {}, {}
    for total, states in zip(totals, walk.board(level).exchanged(totals), strict=True):
        running = carry = states[0]
        for number, state in enumerate(states[1:-1], 2):
            running = walk.combine(running, state)
            carry = walk.chosen(builder.icmp("eq", digit, i32(number)), running, carry)
        carries[total] = carry
        joined[total] = walk.combine(running, states[-1]) if goes_on else running
    walk.before(level, carries)
    walk.replace_totals(joined)


def _total_registers(walk: _Walk, level: Level) -> None:
    for run in walk.runs(level):
        total = reduce(walk.combine, (walk.totals[k] for k in run))
        for k in run:
            walk.totals[k] = total


def _total_lanes(walk: _Walk, level: Level) -> None:
    """Combine runs 1, 2, 4, ... apart; of each two the lower one is on the left."""
    builder, distance = walk.emitter.builder, level.divisor
    while distance < level.divisor * level.extent:
        bit = builder.and_(walk.emitter.thread, i32(distance))
        is_upper = builder.icmp("ne", bit, i32(0))
        joined = {}
        for own in dict.fromkeys(walk.totals):
            other = walk.from_lane(own, "bfly", i32(distance))
            left, right = walk.chosen(is_upper, other, own), walk.chosen(is_upper, own, other)
            joined[own] = walk.combine(left, right)
        walk.replace_totals(joined)
        distance *= 2


def _total_warps(walk: _Walk, level: Level) -> None:
    totals = list(dict.fromkeys(walk.totals))
    exchanged = walk.board(level).exchanged(totals)
    joined = (reduce(walk.combine, states) for states in exchanged)
    walk.replace_totals(dict(zip(totals, joined, strict=True)))


_SCANS: dict[Holder, Callable[[_Walk, Level, bool], None]] = {
    Holder.REGISTERS: _scan_registers,
    Holder.LANES: _scan_lanes,
    Holder.WARPS: _scan_warps,
}
_TOTALS: dict[Holder, Callable[[_Walk, Level], None]] = {
    Holder.REGISTERS: _total_registers,
    Holder.LANES: _total_lanes,
    Holder.WARPS: _total_warps,
}
