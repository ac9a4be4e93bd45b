"""Lowering of structured control flow: branches, loops, counters.

Invariant: conditions and bounds are the same in every thread of the block, so a barrier inside a
region is reached by all of them or by none.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.ir import ops
from astdsl.ir.core import Block, Value
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.nvptx.blocks import Phi
from astdsl.lowering.nvptx.crew import Crew, known_warpgroup, own_warp
from astdsl.lowering.nvptx.function import Emitter, llvm_type, lowers, lowers_tile
from astdsl.lowering.nvptx.rules.elements import unpacked, word_elements
from astdsl.lowering.nvptx.values import LV, Label, i64, vector


def placed(emitter: Emitter, value: Value) -> Layout:
    """Return the layout of a value that crosses a region's border."""
    placement = emitter.placements[value]
    assert isinstance(placement, Layout), f"{value} crosses a region without a layout"
    return placement


def _leaving(emitter: Emitter, values: Sequence[Value], results: Sequence[Value]) -> list[LV]:
    """Return the words of yielded values, in the layouts of the results."""
    found: list[LV] = []
    for value, result in zip(values, results, strict=True):
        registers = emitter.get(value, placed(emitter, result))
        found += emitter.builder.together(registers, _width(emitter, result))
    return found


def _width(emitter: Emitter, value: Value) -> int:
    """Return how many elements cross a border as one vector."""
    return word_elements(emitter, value.tile.dtype, placed(emitter, value))


def _phis(emitter: Emitter, values: Sequence[Value]) -> list[Phi]:
    """Begin a phi for every word of values that enter the current block."""
    phis: list[Phi] = []
    for value in values:
        kind, width = llvm_type(value.tile.dtype), _width(emitter, value)
        words = placed(emitter, value).register_count // width
        kind = vector(width, kind) if width > 1 else kind
        phis += [emitter.builder.phi(kind) for _ in range(words)]
    return phis


def _define(emitter: Emitter, values: Sequence[Value], words: Sequence[LV]) -> None:
    """Define values that cross a region's border from the run of their words."""
    start = 0
    for value in values:
        layout = placed(emitter, value)
        end = start + layout.register_count // _width(emitter, value)
        emitter.define(value, layout, unpacked(emitter, words[start:end]))
        start = end


def _feed(phis: Sequence[Phi], registers: Sequence[LV], source: Label) -> None:
    for phi, register in zip(phis, registers, strict=True):
        phi.add(register, source)


@lowers(ops.If)
def _if(emitter: Emitter, op: ops.If) -> None:
    builder = emitter.builder
    condition = emitter.scalar(op.condition)
    labels = (builder.block("then"), builder.block("else"))
    after = builder.block("endif")
    builder.cond_br(condition, *labels, is_likely=op.is_likely)
    arms = []
    crews = _crews(emitter, op)
    for label, region, crew in zip(labels, (op.then, op.otherwise), crews, strict=True):
        builder.position(label)
        with emitter.run_by(crew):
            emitter.block(region)
            leaving = _leaving(emitter, ops.yielded(region), op.results)
        arms.append((leaving, builder.current))
        builder.br(after)
    builder.position(after)
    phis = _phis(emitter, op.results)
    for leaving, source in arms:
        _feed(phis, leaving, source)
    _define(emitter, op.results, [phi.value for phi in phis])


def _crews(emitter: Emitter, op: ops.If) -> tuple[Crew, Crew]:
    """Return who runs the sides of a branch: on a warpgroup's number, one that is known.

    Of its warps each stays on its own: they do not meet the others.
    """
    crew, decided = emitter.crew, emitter.maker(op.condition)
    if crew.threads < emitter.target.threads_per_warpgroup:
        return crew, crew
    if not isinstance(decided, ops.Compare) or decided.predicate != "eq":
        return crew, crew
    if not isinstance(emitter.maker(decided.x), ops.WarpgroupId):
        return crew, crew
    number = emitter.known(decided.y)
    if not isinstance(number, int):
        return crew, crew
    return known_warpgroup(emitter.builder, crew, number), crew


@lowers(ops.Yield)
def _yield(emitter: Emitter, op: ops.Yield) -> None:
    """Write nothing: the operation that owns the region reads what is yielded."""


@lowers(ops.Phase)
def _phase(emitter: Emitter, op: ops.Phase) -> None:
    emitter.block(op.body)
    for value, result in zip(ops.yielded(op.body), op.results, strict=True):
        layout = placed(emitter, result)
        emitter.define(result, layout, emitter.get(value, layout))


class _LoopFrame:
    """The blocks of a loop: head (phis and the test), body, exit."""

    def __init__(self, emitter: Emitter, carried: Sequence[Value], initial: list[LV]) -> None:
        self.emitter = emitter
        builder = emitter.builder
        self.head, self.body = builder.block("loop"), builder.block("body")
        self.exit = builder.block("endloop")
        before = builder.current
        builder.br(self.head)
        builder.position(self.head)
        self.phis = _phis(emitter, carried)
        _feed(self.phis, initial, before)

    def enter(self, goes_on: LV) -> None:
        """End the head with its test, and move to the body."""
        self.emitter.builder.cond_br(goes_on, self.body, self.exit)
        self.emitter.builder.position(self.body)

    def repeat(self, leaving: Sequence[LV]) -> None:
        """End the body, and move behind the loop."""
        builder = self.emitter.builder
        _feed(self.phis, leaving, builder.current)
        builder.back_br(self.head)
        builder.position(self.exit)


@lowers(ops.For)
def _for(emitter: Emitter, op: ops.For) -> None:
    builder = emitter.builder
    low, high, step = (emitter.scalar(v) for v in (op.low, op.high, op.step))
    carried = op.body.args[1:]
    initial = _leaving(emitter, op.initial, carried)
    frame = _LoopFrame(emitter, op.body.args, [low, *initial])
    registers = [phi.value for phi in frame.phis]
    frame.enter(_goes_on(emitter, registers[0], high, step))
    with emitter.scope():
        _define(emitter, op.body.args, registers)
        emitter.block(op.body)
        leaving = _leaving(emitter, ops.yielded(op.body), carried)
        following = builder.add(registers[0], step)
        frame.repeat([following, *leaving])
    _define(emitter, op.results, registers[1:])


def _goes_on(emitter: Emitter, index: LV, high: LV, step: LV) -> LV:
    builder = emitter.builder
    ascends = builder.icmp("sgt", step, i64(0))
    below, above = builder.icmp("slt", index, high), builder.icmp("sgt", index, high)
    return builder.select(ascends, below, above)


@lowers(ops.While)
def _while(emitter: Emitter, op: ops.While) -> None:
    initial = _leaving(emitter, op.initial, op.body.args)
    frame = _LoopFrame(emitter, op.body.args, initial)
    registers = [phi.value for phi in frame.phis]
    with emitter.scope():
        _define(emitter, op.condition.args, registers)
        frame.enter(_condition(emitter, op.condition))
    with emitter.scope():
        _define(emitter, op.body.args, registers)
        emitter.block(op.body)
        frame.repeat(_leaving(emitter, ops.yielded(op.body), op.body.args))
    _define(emitter, op.results, registers)


def _condition(emitter: Emitter, region: Block) -> LV:
    emitter.block(region)
    return emitter.scalar(ops.yielded(region)[0])


@lowers(ops.Counter)
def _counter(emitter: Emitter, op: ops.Counter) -> None:
    emitter.extra[op.result] = emitter.builder.variable(i64(0))


@lowers(ops.CounterRead)
def _counter_read(emitter: Emitter, op: ops.CounterRead) -> None:
    value = emitter.builder.held("i64", emitter.extra[op.counter])
    emitter.define(op.result, placed(emitter, op.result), [value])


@lowers(ops.CounterAdd)
def _counter_add(emitter: Emitter, op: ops.CounterAdd) -> None:
    builder, place = emitter.builder, emitter.extra[op.counter]
    total = builder.add(builder.held("i64", place), emitter.scalar(op.amount))
    builder.hold(place, total)


@lowers_tile(ops.WarpgroupId)
def _warpgroup_id(emitter: Emitter, op: ops.WarpgroupId, layout: Layout) -> Sequence[LV]:
    return (_crew_number(emitter),)


@lowers_tile(ops.WarpId)
def _warp_id(emitter: Emitter, op: ops.WarpId, layout: Layout) -> Sequence[LV]:
    return (_crew_number(emitter),)


def _crew_number(emitter: Emitter) -> LV:
    number = emitter.crew.number
    return i64(0) if number is None else emitter.builder.cast("zext", number, "i64")


@lowers(ops.Warps)
def _warps(emitter: Emitter, op: ops.Warps) -> None:
    """Let the warps go their ways once the warpgroup is here, and meet again at the end."""
    emitter.synchronise()
    with emitter.run_by(own_warp(emitter.builder, emitter.crew, emitter.target)):
        emitter.block(op.body)
    emitter.synchronise()
