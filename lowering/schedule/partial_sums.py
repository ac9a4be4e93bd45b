"""Sums whose steps run in parts on blocks of their own: what the ways to cut them share.

Before
    pipeline (i) { pipeline (k of K, split) carries acc = a { acc += f }; store o[i], acc }
After
    parts = scratch [...]
    a launch whose blocks run the steps of a part from 0 on and store what they add up in `parts`
    pipeline (i) { pipeline (p of the parts of i) carries acc = a { acc += parts[...] };
                   store o[i], acc }

Invariant: the parts are added in order of their steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from astdsl.errors import BadPipeline
from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.effects import changes_memory
from astdsl.ir.ops.control import yielded
from astdsl.ir.rewrite import (
    clone_block,
    clone_op,
    count_uses,
    free_values,
    replace_fields,
    with_ops,
)
from astdsl.ir.types import INDEX, TileType
from astdsl.lowering.schedule.build import Maker
from astdsl.lowering.windows import Form, Forms

# Writes, of a pipeline of so many steps, the first of a part and the first behind it.
Bounds: TypeAlias = Callable[[Maker, Value], tuple[Value, Value]]

HELP = "put it directly into the body of the outermost pipeline, whose steps are independent"


@dataclass(frozen=True, slots=True)
class Nest:
    """A split pipeline, `inner`, in the body of an outermost one, `outer`.

    `params` are what the kernel is called with.
    """

    outer: ops.Pipeline
    inner: ops.Pipeline
    forms: Forms
    params: Sequence[Value]

    def check(self) -> None:
        """Refuse a pipeline that does more than add, and parts that depend on each other.

        Errors: BadPipeline.
        """
        _require_sums(self.inner)
        if self.outer.initial:
            raise BadPipeline(
                "`split` stands in a pipeline that carries values from step to step",
                (self.inner.span, ""),
                (self.outer.span, "these steps run in order"),
                help=HELP,
            )
        needed = [*self.needed(), self.inner]
        acts = next((op for op in needed if changes_memory(op)), None)
        if acts is not None:
            raise BadPipeline(
                "a part of a `split` pipeline changes memory",
                (_first_act(acts).span, "here"),
                (self.inner.span, "every part would do it"),
                help="carry sums, and store them after the pipeline",
            )
        stores = {op.ref: op for op in walk(self.outer.body) if isinstance(op, ops.WRITERS)}
        for load in walk(Block(ops=tuple(needed))):
            if isinstance(load, ops.READERS) and load.ref in stores:
                raise BadPipeline(
                    f"a part of a `split` pipeline reads `{load.ref.hint}`, which its step writes",
                    (load.span, "read by every part"),
                    (stores[load.ref].span, "written by the step"),
                    help="leave `split` out, or write to an array that the parts do not read",
                )

    def positions(self, maker: Maker, indices: Sequence[Value]) -> Iterator[Value]:
        """Write which step of each axis an index is; mostly it is the number itself."""
        for index, low, step in zip(indices, self.outer.lows, self.outer.steps, strict=True):
            is_number = self.forms[low] == Form(0) and self.forms[step] == Form(1)
            yield index if is_number else maker.divide(maker.subtract(index, low), step)

    def needed(self) -> list[Op]:
        """Return what stands before the inner pipeline and gives it values, in order."""
        position = self.outer.body.ops.index(self.inner)
        wanted = {*self.inner.operands, *free_values(self.inner.body)}
        found: list[Op] = []
        for op in reversed(self.outer.body.ops[:position]):
            if not wanted.isdisjoint(op.results):
                found.insert(0, op)
                wanted.update(op.operands)
                wanted.update(v for region in op.regions for v in free_values(region))
        return found

    def steps(self, maker: Maker, values: dict[Value, Value], bounds: Bounds) -> ops.Pipeline:
        """Return the steps of a part: of all of the inner pipeline's, those within bounds."""
        ends = (self.inner.lows[0], self.inner.highs[0], self.inner.steps[0])
        low, high, step = (values.get(v, v) for v in ends)
        numbers = bounds(maker, maker.trip_count(low, high, step))
        first, last = (maker.add(low, maker.multiply(step, number)) for number in numbers)
        return replace_fields(
            self.inner,
            initial=tuple(_zeros(maker, v.tile) for v in self.inner.initial),
            lows=(first,),
            highs=(last,),
            steps=(step,),
            body=clone_block(self.inner.body, values),
            split=0,
            streams=False,
        )

    def window(self, maker: Maker, ref: Value, place: Sequence[Value]) -> dict[str, Any]:
        """Return the window of a part of one step."""
        shape = ref.ref.shape[len(place) :]
        return {
            "span": self.inner.span,
            "ref": ref,
            "starts": (*place, *(maker.number(0) for _ in shape)),
            "sizes": ((1,) * len(place)) + tuple(n or 0 for n in shape),
            "steps": (1,) * ref.ref.rank,
            "kept": (*(False for _ in place), *(True for _ in shape)),
        }


class Cut(ABC):
    """A way to cut the steps into parts; it writes them, and their sum."""

    def __init__(self, nest: Nest, maker: Maker) -> None:
        self.nest = nest
        outer = nest.outer
        axes = zip(outer.lows, outer.highs, outer.steps, strict=True)
        self.counts = [maker.trip_count(*axis) for axis in axes]

    @property
    @abstractmethod
    def places(self) -> tuple[Sequence[Value], tuple[int | None, ...]]:
        """The axes of the scratch that say which part it is: extents, and `shape` as of a ref."""

    @abstractmethod
    def parts(self, outside: Maker, scratch: Sequence[Value]) -> ops.Pipeline:
        """Return the pipeline whose steps are the parts."""

    @abstractmethod
    def parts_of(self, maker: Maker, indices: Sequence[Value]) -> tuple[Value, Value]:
        """Write the first part that a step of the outer pipeline has, and the first behind them."""

    @abstractmethod
    def place(self, maker: Maker, indices: Sequence[Value], part: Value) -> list[Value]:
        """Write where the scratch keeps a part of one step of the outer pipeline."""

    def write(self, maker: Maker) -> ops.Pipeline:
        """Write the scratch and the launch of the parts; return the launch that adds them."""
        scratch = [self._scratch(maker, v) for v in self.nest.inner.results]
        maker.add_op(self.parts(maker, scratch))
        return self._sum(scratch)

    def write_part(
        self,
        maker: Maker,
        scratch: Sequence[Value],
        indices: Sequence[Value],
        place: Sequence[Value],
        bounds: Bounds,
    ) -> None:
        """Write the steps of one part of the step at `indices`, and store their sums at `place`."""
        values = dict(zip(self.nest.outer.body.args, indices, strict=True))
        for op in self.nest.needed():
            maker.add_op(clone_op(op, values))
        sums = maker.add_op(self.nest.steps(maker, values, bounds)).results
        for ref, value in zip(scratch, sums, strict=True):
            window = self.nest.window(maker, ref, place)
            maker.add_op(ops.Store(**window, value=value))

    def _scratch(self, maker: Maker, result: Value) -> Value:
        dims, leading = self.places
        op = ops.AllocGmem(
            span=self.nest.inner.span,
            dims=tuple(dims),
            shape=(*leading, *result.tile.shape),
            dtype=result.tile.dtype,
            label=f"parts of {result.hint}" if result.hint else "parts",
        )
        return maker.add_op(op).result

    def _sum(self, scratch: Sequence[Value]) -> ops.Pipeline:
        """Return the outer pipeline, in which the sum of the parts stands for the inner one."""
        made: list[Op] = []
        values: dict[Value, Value] = {}
        for op in self.nest.outer.body.ops:
            if op is not self.nest.inner:
                made.append(clone_op(op, values) if values else op)
                continue
            maker = Maker(self.nest.inner.span)
            added = self._sum_of_parts(maker, scratch)
            made += maker.ops
            values.update(zip(self.nest.inner.results, added, strict=True))
        return replace_fields(self.nest.outer, body=with_ops(self.nest.outer.body, made))

    def _sum_of_parts(self, maker: Maker, scratch: Sequence[Value]) -> Sequence[Value]:
        indices = self.nest.outer.body.args
        low, high = self.parts_of(maker, indices)
        part = Value(INDEX, "part")
        carried = [Value(v.type, v.hint) for v in self.nest.inner.initial]
        body = Maker(self.nest.inner.span)
        windows = [self.nest.window(body, ref, self.place(body, indices, part)) for ref in scratch]
        loads = [body.add_op(ops.Load(**window)).result for window in windows]
        sums = [body.add(x, y) for x, y in zip(carried, loads, strict=True)]
        pipeline = ops.Pipeline(
            span=self.nest.inner.span,
            initial=self.nest.inner.initial,
            lows=(low,),
            highs=(high,),
            steps=(maker.number(1),),
            body=body.block(sums, [part, *carried]),
            axes=(ops.SEQUENTIAL,),
        )
        return maker.add_op(pipeline).results


def _require_sums(inner: ops.Pipeline) -> None:
    """Refuse a split pipeline of several axes, or one that does more than add."""
    if len(inner.lows) > 1:
        raise BadPipeline(
            "`split` takes a pipeline of one axis",
            (inner.span, f"this one has {len(inner.lows)}"),
            help="count its steps along one axis, and compute the others by `//` and `%`",
        )
    for argument, result in zip(inner.body.args[1:], yielded(inner.body), strict=True):
        if not _only_adds(inner.body, argument, result):
            name = f"`{argument.hint}`" if argument.hint else "a name"
            raise BadPipeline(
                f"{name} is carried through a `split` pipeline, and not only added to",
                (inner.span, "its parts run on separate blocks"),
                help="`acc += x` of every step is what `split` can add up; leave it out otherwise",
            )


def _only_adds(body: Block, argument: Value, result: Value) -> bool:
    uses, value = count_uses(body), argument
    while value is not result:
        users = [op for op in body.ops if value in op.operands]
        if uses[value] != 1 or not users or not isinstance(users[0], ops.Add):
            return False
        value = users[0].result
    return uses[result] == 1


def _first_act(op: Op) -> Op:
    inner = [i for i in walk(Block(ops=(op,))) if not i.regions and changes_memory(i)]
    return inner[0] if inner else op


def _zeros(maker: Maker, kind: TileType) -> Value:
    value = 0.0 if kind.dtype.is_float else 0
    return maker.add_op(ops.Constant(span=maker.span, value=value, type=kind)).result
