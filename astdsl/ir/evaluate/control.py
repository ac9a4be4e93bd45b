"""What structured control flow means: regions run in order, launches in any.

Invariant: every function that runs a region is a generator, so that several threads of a block
can take turns where they wait.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import GeneratorType
from typing import Any

import numpy as np

from astdsl.errors import BadPipeline, FailedAssertion, ProtocolError
from astdsl.ir import ops
from astdsl.ir.core import PURE, Block, Module, Op
from astdsl.ir.evaluate.state import WARPS, BlockState, Frame, Run, Shadow
from astdsl.ir.evaluate.table import EVALUATORS, evaluates
from astdsl.ir.evaluate.threads import run_alone, run_together
from astdsl.ir.ops.control import SPREAD
from astdsl.ir.printing import UNMET, failed_assertion, printed


def run_region(block: Block, arguments: tuple[Any, ...], frame: Frame) -> Run:
    """Run a region with `arguments`; the generator returns what it yields."""
    frame.values.update(zip(block.args, arguments, strict=True))
    yield from run_ops(block.ops[:-1], frame)
    return tuple(frame[v] for v in ops.yielded(block))


def run_ops(operations: tuple[Op, ...], frame: Frame) -> Run:
    """Run operations one after the other."""
    values, meanings = frame.values, frame.meanings
    for op in operations:
        meaning = meanings[type(op)]
        if op.effect == PURE:
            made = meaning(op, *(values[v] for v in op.operands))
        else:
            made = meaning(op, frame)
            if type(made) is GeneratorType:
                made = yield from made
        results = op.results
        if len(results) == 1 and type(made) is not tuple:
            values[results[0]] = made
        elif results:
            values.update(zip(results, made, strict=True))


def run_module(module: Module, frame: Frame) -> None:
    """Run a whole program: once, or where each warpgroup runs it, in blocks of warpgroups.

    There every step of an outermost `parallel` is a block, which begins with what stands before it.
    """
    operations = module.body.ops
    is_scheduled = any(isinstance(op, ops.Launch) for op in operations)
    if not module.warpgroups or is_scheduled:  # a launch has its blocks run themselves
        run_alone(run_ops(operations, frame))
        return
    run_alone(run_once(operations, frame))
    own = tuple(op for op in operations if frame.values.keys().isdisjoint(op.results))
    own = tuple(op for op in own if not isinstance(op, ops.Assert))
    grids = [op for op in own if isinstance(op, ops.Pipeline) and SPREAD in op.axes]
    outer = frame.block
    _watch(frame)
    if not grids:
        frame.step = 0
        run_block(frame, module.warpgroups, lambda inner: run_ops(own, inner))
    for grid in grids:
        before = own[: own.index(grid)]
        run_alone(_run_grid(grid, tuple(op for op in before if op not in grids), module, frame))
    _unwatch(frame)
    frame.block = outer


def run_once(operations: tuple[Op, ...], frame: Frame) -> Run:
    """Run what a call does once, before its blocks: checks, scratch, the grid's extents."""
    for op in operations:
        is_once = op.effect == PURE or isinstance(op, (ops.Assert, ops.AllocGmem))
        if is_once and frame.values.keys() >= set(op.operands):
            yield from run_ops((op,), frame)


def _run_grid(grid: ops.Pipeline, before: tuple[Op, ...], module: Module, frame: Frame) -> Run:
    for order in grid.order:
        yield from _require_permutation(grid, order, frame)
    for number, at in enumerate(steps_of(grid, frame)):
        indices = tuple(np.int64(index) for _, index in at)

        def run(inner: Frame, indices: tuple[Any, ...] = indices) -> Run:
            yield from run_ops(before, inner)
            yield from run_region(grid.body, (*indices, *_initial(grid, inner)), inner)

        frame.step = number
        run_block(frame, module.warpgroups, run)
    _watch(frame)


def run_block(frame: Frame, warpgroups: int, run: Callable[[Frame], Run]) -> None:
    """Run a block: each of its warpgroups runs the program for itself."""
    frames = frame.warpgroup_frames(warpgroups)
    if frame.order == "descending":
        frames.reverse()
    run_alone(*(run(each) for each in frames))
    frames[0].block.finish()


@evaluates(ops.Yield)
def _yield(op: ops.Yield, *values: Any) -> None:
    raise AssertionError("the owner of a region reads its Yield")


@evaluates(ops.If)
def _if(op: ops.If, frame: Frame) -> Run:
    return (yield from run_region(op.then if frame[op.condition] else op.otherwise, (), frame))


def _initial(op: ops.Loop, frame: Frame) -> tuple[Any, ...]:
    return tuple(frame[v] for v in op.initial)


@evaluates(ops.For)
def _for(op: ops.For, frame: Frame) -> Run:
    carried = _initial(op, frame)
    for index in range(*frame.numbers((op.low, op.high, op.step))):
        carried = yield from run_region(op.body, (np.int64(index), *carried), frame)
    return carried


@evaluates(ops.While)
def _while(op: ops.While, frame: Frame) -> Run:
    carried = _initial(op, frame)
    while (yield from run_region(op.condition, carried, frame))[0]:
        carried = yield from run_region(op.body, carried, frame)
    return carried


def steps_of(op: ops.Pipeline, frame: Frame) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield, for each step, (ordinal, index) of every axis; the last axis is fastest."""
    return itertools.product(*(list(enumerate(r)) for r in _ranges(op, frame)))


def _ranges(op: ops.Pipeline, frame: Frame) -> list[range]:
    bounds = zip(op.lows, op.highs, op.steps, strict=True)
    return [range(*frame.numbers(axis)) for axis in bounds]


@evaluates(ops.Pipeline)
def _pipeline(op: ops.Pipeline, frame: Frame) -> Run:
    if op.split > 1 or op.streams:
        return (yield from _split_pipeline(op, frame))
    for order in op.order:
        yield from _require_permutation(op, order, frame)
    is_spread = [kind == SPREAD for kind in op.axes]
    watches = any(is_spread) and frame.step is None
    if watches:
        _watch(frame)
    carried = _initial(op, frame)
    spread: dict[tuple[int, ...], int] = {}
    total, outside = math.prod(map(len, _ranges(op, frame))), frame.around
    for number, at in enumerate(steps_of(op, frame)):
        if watches:
            key = tuple(n for (n, _), s in zip(at, is_spread, strict=True) if s)
            frame.step = spread.setdefault(key, len(spread))
        frame.around = (number, total)
        indices = (np.int64(index) for _, index in at)
        carried = yield from run_region(op.body, (*indices, *carried), frame)
    frame.around = outside
    if watches:
        _unwatch(frame)
    return carried


def _split_pipeline(op: ops.Pipeline, frame: Frame) -> Run:
    """Run the steps in parts that each begin at 0, and add these up in order."""
    total = _initial(op, frame)
    (steps,) = _ranges(op, frame)
    cut = _streamed_parts if op.streams else _equal_parts
    for first, last in cut(op, len(steps), frame):
        carried: tuple[Any, ...] = tuple(np.zeros_like(v) for v in total)
        for index in steps[first:last]:
            carried = yield from run_region(op.body, (np.int64(index), *carried), frame)
        total = tuple(
            _added(op, k, x, y) for k, (x, y) in enumerate(zip(total, carried, strict=True))
        )
    return total


def _equal_parts(op: ops.Pipeline, count: int, frame: Frame) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each part of a pipeline of `count` steps."""
    del frame
    for part in range(op.split):
        yield count * part // op.split, count * (part + 1) // op.split


def _streamed_parts(op: ops.Pipeline, count: int, frame: Frame) -> Iterator[tuple[int, int]]:
    """Yield the bounds of those parts of all steps that have steps of this execution."""
    tile, tiles = frame.around
    total, begin = tiles * count, tile * count
    parts = max(1, min(op.split, total))
    for part in range(parts):
        first, last = (total * p // parts - begin for p in (part, part + 1))
        if first < count and last > 0:
            yield max(first, 0), min(last, count)


def _added(op: ops.Pipeline, carried: int, x: Any, y: Any) -> Any:
    """Add two values of what is carried, as `Add` does."""
    value = op.initial[carried]
    return EVALUATORS[ops.Add](ops.Add(span=op.span, x=value, y=value), x, y)


def _require_permutation(op: ops.Pipeline, order: Block, frame: Frame) -> Run:
    """Refuse an order that does not reach every step once; it changes nothing else."""
    grid = [len(r) for r in _ranges(op, frame)]
    places = []
    for linear in range(math.prod(grid)):
        arguments = (np.int64(linear), *map(np.int64, grid))
        places.append((yield from run_region(order, arguments, frame)))
    require_permutation(op, grid, places)
    return ()


def require_permutation(
    op: ops.Pipeline, grid: Sequence[int], places: Iterable[Iterable[Any]]
) -> None:
    """Refuse the order of a pipeline if `places`, what it returns in turn, are not the grid's."""
    reached: dict[tuple[int, ...], int] = {}
    for linear, place in enumerate(places):
        at = tuple(int(i) for i in place)
        is_inside = all(0 <= i < n for i, n in zip(at, grid, strict=True))
        if not is_inside or at in reached:
            said = f"also for {reached[at]}" if at in reached else "which is outside"
            raise BadPipeline(
                f"`order` is no permutation of the grid {tuple(grid)}: for step {linear} it "
                f"returns {at}, {said}",
                (op.span, ""),
                help="return every position of the grid once, as `planar_snake` does",
            )
        reached[at] = linear


def _watch(frame: Frame) -> None:
    """Record from now on which step touches what, to find steps that depend on each other."""
    for memory in frame.memories:
        memory.shadow = Shadow.of(memory.data)


def _unwatch(frame: Frame) -> None:
    frame.step = None
    for memory in frame.memories:
        memory.shadow = None


@evaluates(ops.Assert)
def _assert(op: ops.Assert, frame: Frame) -> None:
    if not frame[op.condition]:
        raise FailedAssertion(
            printed(op.pieces, [frame[v] for v in op.values]) or UNMET,
            (op.span, ""),
            help="call it with arguments for which the assertion holds",
        )


@evaluates(ops.DeviceAssert)
def _device_assert(op: ops.DeviceAssert, frame: Frame) -> None:
    if not frame[op.condition]:
        raise failed_assertion(printed(op.pieces, [frame[v] for v in op.values]), op.span)


@evaluates(ops.Print)
def _print(op: ops.Print, frame: Frame) -> None:
    sys.stdout.write(printed(op.pieces, [frame[v] for v in op.values]))


def _blocks(count: int, order: str | int) -> list[int]:
    numbers = list(range(count))
    if order == "descending":
        numbers.reverse()
    elif order != "ascending":
        random.Random(order).shuffle(numbers)  # noqa: S311  (an order, not a secret)
    return numbers


@evaluates(ops.Launch)
def _launch(op: ops.Launch, frame: Frame) -> Run:
    (count,) = yield from run_region(op.grid, (), frame)
    outer = frame.block
    _watch(frame)
    for number in _blocks(int(count), frame.order):
        frame.block, frame.step = BlockState(), number
        arguments = (np.int64(number),)
        if op.per_warpgroup:
            run_block(frame, op.warpgroups, partial(run_region, op.body, arguments))
            continue
        run_alone(run_region(op.body, arguments, frame))
        frame.block.finish()
    _unwatch(frame)
    frame.block = outer


@evaluates(ops.Phase)
def _phase(op: ops.Phase, frame: Frame) -> Run:
    return (yield from run_region(op.body, (), frame))


@evaluates(ops.WarpgroupId)
def _warpgroup_id(op: ops.WarpgroupId, frame: Frame) -> Any:
    assert frame.warpgroups, f"{op.span}: the warpgroups of this block run as one"
    return np.int64(frame.warpgroup)


@evaluates(ops.Multiprocessors)
def _multiprocessors(op: ops.Multiprocessors, frame: Frame) -> Any:
    del op, frame
    return np.int64(1)


@evaluates(ops.WarpId)
def _warp_id(op: ops.WarpId, frame: Frame) -> Any:
    assert frame.warp is not None, f"{op.span}: the warps of this warpgroup run as one"
    return np.int64(frame.warp)


@evaluates(ops.Warps)
def _warps(op: ops.Warps, frame: Frame) -> Run:
    yield from run_together([run_region(op.body, (), each) for each in frame.warp_frames()])


@evaluates(ops.Counter)
def _counter(op: ops.Counter, frame: Frame) -> list[int]:
    """Return a count for each warp: they differ where warps have waited by themselves."""
    del op, frame
    return [0] * WARPS


@evaluates(ops.CounterRead)
def _counter_read(op: ops.CounterRead, frame: Frame) -> Any:
    counts: list[int] = frame[op.counter]
    if frame.warp is None and len(set(counts)) > 1:
        raise ProtocolError(
            "the warps of a warpgroup have waited differently often for its barrier",
            (op.span, f"the warps have waited {', '.join(map(str, counts))} times"),
            help="`barrier_wait(b, completion=n)` names the completion that is waited for",
        )
    return np.int64(counts[frame.warp or 0])


@evaluates(ops.CounterAdd)
def _counter_add(op: ops.CounterAdd, frame: Frame) -> None:
    counts: list[int] = frame[op.counter]
    for warp in range(WARPS) if frame.warp is None else [frame.warp]:
        counts[warp] += frame.number(op.amount)
