"""`split`: the steps of a nested pipeline in parts on blocks of their own, added in order.

Before
    pipeline (i) { pipeline (k of K, split=n) carries acc = a { acc += f }; store o[i], acc }
After
    parts = scratch [count of i, n, ...]
    pipeline (i, p of n) { pipeline (k of part p of K) carries acc = 0 { acc += f };
                           store parts[i, p], acc }
    pipeline (i) { pipeline (p of n) carries acc = a { acc += parts[i, p] }; store o[i], acc }

`split="stream"` is in `stream_k`.

Invariant: the parts are added in order, so the result depends on their number and the data alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.errors import BadPipeline
from astdsl.ir import ops
from astdsl.ir.core import Block, Module, Op, Value, walk
from astdsl.ir.rewrite import replace_body
from astdsl.ir.types import INDEX
from astdsl.lowering.schedule.build import Maker
from astdsl.lowering.schedule.partial_sums import HELP, Cut, Nest
from astdsl.lowering.schedule.stream_k import StreamedParts
from astdsl.lowering.windows import Forms


def split_pipelines(module: Module) -> Module:
    """Return the module with every `split` pipeline in two launches: its parts, and their sum."""
    if not any(_is_split(op) for op in walk(module.body)):
        return module
    made: list[Op] = []
    for op in module.body.ops:
        made += _launches(op, Forms(module.body), module.body.args)
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


def _launches(op: Op, forms: Forms, params: Sequence[Value]) -> list[Op]:
    """Return the launches that an operation becomes, and their scratch."""
    made: list[Op] = []
    last = op
    while isinstance(last, ops.Pipeline) and any(map(_is_split, last.body.ops)):
        inner = next(inner for inner in last.body.ops if _is_split(inner))
        assert isinstance(inner, ops.Pipeline), "only pipelines are split"
        nest = Nest(last, inner, forms, params)
        nest.check()
        maker = Maker(inner.span)
        cut = StreamedParts if inner.streams else _EqualParts
        last = cut(nest, maker).write(maker)
        made += maker.ops
    return [*made, last]


def _is_split(op: Op) -> bool:
    return isinstance(op, ops.Pipeline) and (op.split > 1 or op.streams)


class _EqualParts(Cut):
    """As many parts of every step as `split` says."""

    @property
    def places(self) -> tuple[Sequence[Value], tuple[int | None, ...]]:
        """One place for every step and part."""
        return self.counts, (*(None,) * len(self.counts), self.nest.inner.split)

    def parts(self, outside: Maker, scratch: Sequence[Value]) -> ops.Pipeline:
        """Return the pipeline around with one more axis, of the parts."""
        outer, n = self.nest.outer, self.nest.inner.split
        maker, part = Maker(self.nest.inner.span), Value(INDEX, "part")
        indices = [Value(INDEX, v.hint) for v in outer.body.args]

        def bounds(inner: Maker, count: Value) -> tuple[Value, Value]:
            """Write `count * part // n` and `count * (part + 1) // n`."""
            parts, following = inner.number(n), inner.add(part, inner.number(1))
            first, last = (inner.divide(inner.multiply(count, p), parts) for p in (part, following))
            return first, last

        self.write_part(maker, scratch, indices, self.place(maker, indices, part), bounds)
        zero, one = outside.number(0), outside.number(1)
        return ops.Pipeline(
            span=outer.span,
            initial=(),
            lows=(*outer.lows, zero),
            highs=(*outer.highs, outside.number(n)),
            steps=(*outer.steps, one),
            body=maker.block(args=(*indices, part)),
            axes=(*outer.axes, ops.INFERRED),
        )

    def parts_of(self, maker: Maker, indices: Sequence[Value]) -> tuple[Value, Value]:
        """Write that every step has all parts."""
        return maker.number(0), maker.number(self.nest.inner.split)

    def place(self, maker: Maker, indices: Sequence[Value], part: Value) -> list[Value]:
        """Return the numbers of the step, and the part."""
        return [*self.nest.positions(maker, indices), part]
