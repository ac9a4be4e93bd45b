"""`split=n`: the steps of a nested pipeline in n contiguous parts, on n times as many blocks.

Before
    pipeline (i) { pipeline (k of K, split=n) carries acc = a { acc += f }; store o[i], acc }
After
    parts = scratch [count of i, n, ...]
    pipeline (i, p of n) { pipeline (k of part p of K) carries acc = 0 { acc += f };
                           store parts[i, p], acc }
    pipeline (i) { pipeline (p of n) carries acc = a { acc += parts[i, p] }; store o[i], acc }

Invariant: the parts are added in order, so the result depends on n and the data alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from astdsl.errors import BadPipeline
from astdsl.ir import ops
from astdsl.ir.core import Block, Module, Op, Value, walk
from astdsl.ir.effects import changes_memory
from astdsl.ir.ops.control import yielded
from astdsl.ir.rewrite import (
    clone_block,
    clone_op,
    count_uses,
    free_values,
    replace_body,
    replace_fields,
    with_ops,
)
from astdsl.ir.types import INDEX, TileType
from astdsl.lowering.schedule.build import Maker
from astdsl.lowering.windows import Form, Forms

HELP = "put it directly into the body of the outermost pipeline, whose steps are independent"


def split_pipelines(module: Module) -> Module:
    """Return the module with every `split` pipeline in two launches: its parts, and their sum."""
    if not any(_is_split(op) for op in walk(module.body)):
        return module
    made: list[Op] = []
    for op in module.body.ops:
        made += _launches(op, Forms(module.body))
    body = Block(args=module.body.args, ops=tuple(made))
    for left in filter(_is_split, walk(body)):
        raise BadPipeline("`split` stands inside a branch or loop", (left.span, ""), help=HELP)
    return replace_body(module, body)


def refuse_splits(module: Module) -> None:
    """Refuse `split` in a kernel of warpgroups, which says itself what its blocks do."""
    for op in filter(_is_split, walk(module.body)):
        raise BadPipeline(
            "`split` stands in a kernel that is written for warpgroups",
            (op.span, ""),
            help="leave `warpgroups=` out, or add partial sums up by `atomic_add`",
        )


def _launches(op: Op, forms: Forms) -> list[Op]:
    """Return the launches that an operation becomes, and their scratch."""
    made: list[Op] = []
    last = op
    while isinstance(last, ops.Pipeline) and any(map(_is_split, last.body.ops)):
        last = _Split.first_of(last, forms).write(made)
    return [*made, last]


def _is_split(op: Op) -> bool:
    return isinstance(op, ops.Pipeline) and op.split > 1


@dataclass(frozen=True, slots=True)
class _Split:
    """A split pipeline, `inner`, in the body of an outermost one, `outer`."""

    outer: ops.Pipeline
    inner: ops.Pipeline
    forms: Forms

    @classmethod
    def first_of(cls, outer: ops.Pipeline, forms: Forms) -> _Split:
        """Return the first split pipeline in a body, checked. Errors: BadPipeline."""
        inner = next(op for op in outer.body.ops if _is_split(op))
        assert isinstance(inner, ops.Pipeline), "only pipelines are split"
        _require_sums(inner)
        split = cls(outer, inner, forms)
        split.require_independent()
        return split

    def require_independent(self) -> None:
        """Refuse parts that see what the steps around them, or they themselves, write."""
        if self.outer.initial:
            raise BadPipeline(
                "`split` stands in a pipeline that carries values from step to step",
                (self.inner.span, ""),
                (self.outer.span, "these steps run in order"),
                help=HELP,
            )
        needed = [*self._needed(), self.inner]
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

    def write(self, before: list[Op]) -> ops.Pipeline:
        """Append the scratch and the launch of the parts; return the launch that adds them."""
        maker = Maker(self.inner.span)
        bounds = (self.outer.lows, self.outer.highs, self.outer.steps)
        counts = [maker.trip_count(*axis) for axis in zip(*bounds, strict=True)]
        scratch = [self._scratch(maker, counts, v) for v in self.inner.results]
        maker.add_op(self._parts(maker, scratch))
        before += maker.ops
        return self._sum(scratch)

    def _scratch(self, maker: Maker, counts: Sequence[Value], result: Value) -> Value:
        shape = (*(None,) * len(counts), self.inner.split, *result.tile.shape)
        label = f"parts of {result.hint}" if result.hint else "parts"
        op = ops.AllocGmem(
            span=self.inner.span,
            dims=tuple(counts),
            shape=shape,
            dtype=result.tile.dtype,
            label=label,
        )
        return maker.add_op(op).result

    def _needed(self) -> list[Op]:
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

    def _parts(self, outside: Maker, scratch: Sequence[Value]) -> ops.Pipeline:
        """Return the pipeline whose step is one part of one step."""
        maker, part = Maker(self.inner.span), Value(INDEX, "part")
        indices = [Value(INDEX, v.hint) for v in self.outer.body.args]
        values = dict(zip(self.outer.body.args, indices, strict=True))
        for op in self._needed():
            maker.add_op(clone_op(op, values))
        sums = maker.add_op(self._part(maker, part, values)).results
        for ref, value in zip(scratch, sums, strict=True):
            window = self._window(maker, ref, indices, part)
            maker.add_op(ops.Store(**window, value=value))
        zero, one = outside.number(0), outside.number(1)
        return ops.Pipeline(
            span=self.outer.span,
            initial=(),
            lows=(*self.outer.lows, zero),
            highs=(*self.outer.highs, outside.number(self.inner.split)),
            steps=(*self.outer.steps, one),
            body=maker.block(args=(*indices, part)),
            axes=(*self.outer.axes, ops.INFERRED),
        )

    def _part(self, maker: Maker, part: Value, values: dict[Value, Value]) -> ops.Pipeline:
        """Return the steps of one part: `count * part // n` up to `count * (part + 1) // n`."""
        ends = (self.inner.lows[0], self.inner.highs[0], self.inner.steps[0])
        low, high, step = (values.get(v, v) for v in ends)
        count, n = maker.trip_count(low, high, step), maker.number(self.inner.split)
        following = maker.add(part, maker.number(1))
        first, last = (
            maker.add(low, maker.multiply(step, maker.divide(maker.multiply(count, p), n)))
            for p in (part, following)
        )
        return replace_fields(
            self.inner,
            initial=tuple(_zeros(maker, v.tile) for v in self.inner.initial),
            lows=(first,),
            highs=(last,),
            steps=(step,),
            body=clone_block(self.inner.body, values),
            split=0,
        )

    def _sum(self, scratch: Sequence[Value]) -> ops.Pipeline:
        """Return the outer pipeline, in which the sum of the parts stands for the inner one."""
        made: list[Op] = []
        values: dict[Value, Value] = {}
        for op in self.outer.body.ops:
            if op is not self.inner:
                made.append(clone_op(op, values) if values else op)
                continue
            maker = Maker(self.inner.span)
            added = self._sum_of_parts(maker, scratch)
            made += maker.ops
            values.update(zip(self.inner.results, added, strict=True))
        return replace_fields(self.outer, body=with_ops(self.outer.body, made))

    def _sum_of_parts(self, maker: Maker, scratch: Sequence[Value]) -> Sequence[Value]:
        part = Value(INDEX, "part")
        carried = [Value(v.type, v.hint) for v in self.inner.initial]
        body = Maker(self.inner.span)
        windows = [self._window(body, ref, self.outer.body.args, part) for ref in scratch]
        loads = [body.add_op(ops.Load(**window)).result for window in windows]
        sums = [body.add(x, y) for x, y in zip(carried, loads, strict=True)]
        pipeline = ops.Pipeline(
            span=self.inner.span,
            initial=self.inner.initial,
            lows=(maker.number(0),),
            highs=(maker.number(self.inner.split),),
            steps=(maker.number(1),),
            body=body.block(sums, [part, *carried]),
            axes=(ops.SEQUENTIAL,),
        )
        return maker.add_op(pipeline).results

    def _window(
        self, maker: Maker, ref: Value, indices: Sequence[Value], part: Value
    ) -> dict[str, Any]:
        """Return the window of a part of one step."""
        places = [*self._positions(maker, indices), part]
        shape = ref.ref.shape[len(places) :]
        return {
            "span": self.inner.span,
            "ref": ref,
            "starts": (*places, *(maker.number(0) for _ in shape)),
            "sizes": ((1,) * len(places)) + tuple(n or 0 for n in shape),
            "steps": (1,) * ref.ref.rank,
            "kept": (*(False for _ in places), *(True for _ in shape)),
        }

    def _positions(self, maker: Maker, indices: Sequence[Value]) -> Iterator[Value]:
        """Write which step of each axis an index is; mostly it is the number itself."""
        for index, low, step in zip(indices, self.outer.lows, self.outer.steps, strict=True):
            is_number = self.forms[low] == Form(0) and self.forms[step] == Form(1)
            yield index if is_number else maker.divide(maker.subtract(index, low), step)


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
