"""Structured control flow, and pipelines.

Invariant: a region ends in one `Yield` (a `While`'s condition region too); what it yields are the
operation's results, and the next iteration's carried values.
"""

from __future__ import annotations

from astdsl.ir.core import ACTS, READS, WRITES, Block, Op, Value
from astdsl.ir.types import CONDITION, INDEX, CounterType, Type


class Yield(Op):
    """End a region with its values."""

    values: tuple[Value, ...]


def yielded(block: Block) -> tuple[Value, ...]:
    """Return the values that a region ends with."""
    end = block.ops[-1]
    assert isinstance(end, Yield), "a region ends in Yield"
    return end.values


def _types(values: tuple[Value, ...]) -> tuple[Type, ...]:
    return tuple(v.type for v in values)


class If(Op):
    """Run one of two regions without arguments; if `is_likely`, nearly always `then`."""

    effect = WRITES
    condition: Value
    then: Block
    otherwise: Block
    is_likely: bool = False

    def result_types(self) -> tuple[Type, ...]:
        return _types(yielded(self.then))

    def verify(self) -> None:
        assert self.condition.type == CONDITION, f"If: condition is {self.condition.type}"
        same = _types(yielded(self.then)) == _types(yielded(self.otherwise))
        assert same, "If: branches yield different types"


class Loop(Op):
    """An operation that carries values through a region. `initial` are the first ones."""

    effect = WRITES
    initial: tuple[Value, ...]

    def result_types(self) -> tuple[Type, ...]:
        return _types(self.initial)


class For(Loop):
    """Run `body(index, *carried)` for `range(low, high, step)`; scalars of i64; step is not 0."""

    low: Value
    high: Value
    step: Value
    body: Block

    def verify(self) -> None:
        assert _types((self.low, self.high, self.step)) == (INDEX,) * 3, "For: bounds are i64"
        assert _types(self.body.args) == (INDEX, *_types(self.initial)), "For: body arguments"
        assert _types(yielded(self.body)) == _types(self.initial), "For: carried types change"


class While(Loop):
    """Run `body(*carried)` as long as `condition(*carried)` yields true."""

    condition: Block
    body: Block

    def verify(self) -> None:
        carried = _types(self.initial)
        assert _types(self.condition.args) == carried, "While: condition arguments"
        assert _types(yielded(self.condition)) == (CONDITION,), "While: condition yields a bool"
        assert _types(self.body.args) == carried, "While: body arguments"
        assert _types(yielded(self.body)) == carried, "While: carried types change"


SPREAD, SEQUENTIAL, INFERRED = "spread", "sequential", "inferred"


class Pipeline(Loop):
    """Run `body(*indices, *carried)` for every index of the axes, row-major, last axis fastest.

    Axis k is `range(lows[k], highs[k], steps[k])`. `axes` says of each where it may run:
    inferred, spread (the author's word that steps are independent) or sequential.
    `stages` is 0 for automatic. `names` are the axes' names, empty where not given. `order`, if
    there is one, yields the position along every axis of the step that is to run `linear`-th, from
    `(linear, *counts)`: a permutation, which only moves independent steps. With `split` parts, the
    steps run in as many contiguous parts, which begin at 0 and are added to `initial` in order.
    One that `streams` stands in the body of an outermost pipeline: all steps of it together, in
    row-major order of those around, run in `min(max(1, split), all)` contiguous parts, of step
    `all * p // parts` on; a part begins at 0 again with every step around.
    """

    lows: tuple[Value, ...]
    highs: tuple[Value, ...]
    steps: tuple[Value, ...]
    body: Block
    order: tuple[Block, ...] = ()
    axes: tuple[str, ...]
    names: tuple[str, ...] = ()
    stages: int = 0
    split: int = 0
    streams: bool = False
    schedule: str = "auto"

    def verify(self) -> None:
        rank = len(self.lows)
        assert rank == len(self.highs) == len(self.steps) == len(self.axes), "Pipeline: axes"
        expected = (*(INDEX,) * rank, *_types(self.initial))
        assert _types(self.body.args) == expected, "Pipeline: body arguments"
        assert _types(yielded(self.body)) == _types(self.initial), "Pipeline: carried types change"
        for order in self.order:
            assert _types(order.args) == (INDEX,) * (rank + 1), "Pipeline: arguments of order"
            assert _types(yielded(order)) == (INDEX,) * rank, "Pipeline: order yields positions"


class Assert(Op):
    """Refuse the launch unless `condition`, a scalar known on the host, holds.

    What it then says are the values, between `pieces` of text, of which there is one more.
    """

    effect = ACTS
    condition: Value
    values: tuple[Value, ...] = ()
    pieces: tuple[str, ...] = ("",)

    def verify(self) -> None:
        assert self.condition.type == CONDITION, f"Assert: condition is {self.condition.type}"
        assert len(self.pieces) == len(self.values) + 1, "Assert: text around every value"


class DeviceAssert(Op):
    """Stop the kernel unless `condition`, a scalar of the running block, holds.

    What an assertion becomes that the host cannot check. Where it fails the call fails, saying the
    values between `pieces` of text; the block may go on until its end.
    """

    effect = WRITES
    condition: Value
    values: tuple[Value, ...] = ()
    pieces: tuple[str, ...] = ("",)

    def verify(self) -> None:
        assert self.condition.type == CONDITION, f"DeviceAssert: {self.condition.type}"
        assert len(self.pieces) == len(self.values) + 1, "DeviceAssert: text around every value"


class Print(Op):
    """Print one line: the values, between `pieces` of text, of which there is one more."""

    effect = WRITES
    values: tuple[Value, ...]
    pieces: tuple[str, ...]

    def verify(self) -> None:
        assert len(self.pieces) == len(self.values) + 1, "Print: text around every value"


class Launch(Op):
    """Run `body(block)` for every block number below what `grid` yields, in no order.

    Made by the schedule. `grid` is computed on the host, from dims and scalars alone. A launch of
    blocks that do nothing is still one. A block has `warpgroups` warpgroups, which run the body
    together; or, if `per_warpgroup`, each of them runs it for itself.
    """

    effect = ACTS
    grid: Block
    body: Block
    warpgroups: int = 1
    per_warpgroup: bool = False

    def verify(self) -> None:
        assert _types(yielded(self.grid)) == (INDEX,), "Launch: grid yields the block count"
        assert _types(self.body.args) == (INDEX,), "Launch: body takes the block number"


class Phase(Op):
    """Run `body` once; `name` says what part of a schedule it is (prologue, steady, epilogue)."""

    effect = WRITES
    name: str
    body: Block

    def result_types(self) -> tuple[Type, ...]:
        return _types(yielded(self.body))


class Counter(Op):
    """A new counter at 0, one for each block."""

    effect = ACTS

    def result_types(self) -> tuple[Type, ...]:
        return (CounterType(),)


class CounterRead(Op):
    """The counter's value now, i64."""

    effect = ACTS
    counter: Value

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


class CounterAdd(Op):
    """Add `amount` (i64) to the counter."""

    effect = ACTS
    counter: Value
    amount: Value


class WarpgroupId(Op):
    """The number of the warpgroup in its block, i64; only where each runs the program itself."""

    effect = READS  # not pure: warpgroups differ in it

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


class Multiprocessors(Op):
    """How many multiprocessors the target has, i64; 1 where no target has been settled."""

    effect = READS  # not pure: targets differ in it

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


class WarpId(Op):
    """The number of the warp in its warpgroup, i64, 0 to 3; only inside of `Warps`."""

    effect = READS  # not pure: warps differ in it

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


class Warps(Op):
    """Run `body` in each of the four warps of a warpgroup, side by side; they meet at its end.

    The body has scalars and asynchronous operations only, and gives nothing.
    """

    effect = ACTS
    body: Block

    def verify(self) -> None:
        assert not self.body.args, "Warps: body takes nothing"
        assert yielded(self.body) == (), "Warps: body yields nothing"
