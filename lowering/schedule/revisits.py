"""Windows that do not move with every step: each is copied when its index moves, and no more.

Before
    pipeline (a, b) { y = load y[a]; x = load x[a, b]; ... }
After
    pipeline (a) { y = load y[a]; pipeline (b) { x = load x[a, b]; ... } }

A pipeline is split where a window stands still on the axes below, and loads that stand still in a
whole pipeline move in front of it. Invariant: steps keep their order, so the meaning is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.rewrite import map_regions, replace_fields, replace_uses, with_ops
from astdsl.ir.types import GMEM, INDEX
from astdsl.lowering.schedule.block import inside
from astdsl.lowering.schedule.build import Maker, recompute
from astdsl.lowering.windows import Forms


def separate_revisits(launch: ops.Launch) -> ops.Launch:
    """Return the launch with its pipelines split and their unmoving loads in front."""
    forms = Forms(launch.body)
    stores = (op for op in walk(launch.body) if isinstance(op, ops.WRITERS))
    arrange = _Arrangement(forms, {op.ref for op in stores})
    body = arrange.block(launch.body)
    return launch if body is launch.body else replace_fields(launch, body=body)


class _Arrangement:
    def __init__(self, forms: Forms, written: set[Value]) -> None:
        self.forms = forms
        self.written = written

    def block(self, block: Block) -> Block:
        """Arrange every pipeline of a block and of the regions inside it."""
        made: list[Op] = []
        for op in block.ops:
            inner = map_regions(op, self.block)
            made += self.pipeline(inner) if isinstance(inner, ops.Pipeline) else [inner]
        return with_ops(block, made)

    def pipeline(self, op: ops.Pipeline) -> list[Op]:
        """Return what stands for a pipeline: loads that do not move, then the pipeline."""
        cut = self._cut(op)
        if cut:
            op = self._split(op, cut)
        return self._in_front(op)

    def _cut(self, op: ops.Pipeline) -> int:
        """Return the axis before which to split, 0 for none."""
        rank = len(op.lows)
        place = {index: axis for axis, index in enumerate(op.body.args[:rank])}
        found = rank
        for window in _windows(op.body):
            sources = {s for start in window.starts for s in self.forms.sources(start)}
            axes = [place[s] for s in sources if s in place]
            if axes and not sources & inside(op.body) - place.keys():
                found = min(found, max(axes) + 1)
        return found if found < rank else 0

    def _split(self, op: ops.Pipeline, cut: int) -> ops.Pipeline:
        rank = len(op.lows)
        carried = op.body.args[rank:]
        outer = [Value(INDEX, index.hint) for index in op.body.args[:cut]]
        held = [Value(v.type, v.hint) for v in carried]
        inner = op.remade(
            {
                "initial": tuple(held),
                "lows": op.lows[cut:],
                "highs": op.highs[cut:],
                "steps": op.steps[cut:],
                "axes": op.axes[cut:],
                "names": op.names[cut:],
                "body": Block(args=op.body.args[cut:], ops=op.body.ops),
            }
        )
        renamed = dict(zip(op.body.args[:cut], outer, strict=True))
        end = ops.Yield(span=op.span, values=inner.results)
        body = replace_uses(Block(args=(*outer, *held), ops=(inner, end)), renamed)
        self.forms.learn(body)
        alone, last = body.ops
        assert isinstance(alone, ops.Pipeline), "the inner pipeline is alone in the outer one"
        arranged = Block(args=body.args, ops=(*self.pipeline(alone), last))
        return replace_fields(
            op,
            lows=op.lows[:cut],
            highs=op.highs[:cut],
            steps=op.steps[:cut],
            axes=op.axes[:cut],
            names=op.names[:cut],
            body=arranged,
        )

    def _in_front(self, op: ops.Pipeline) -> list[Op]:
        made = inside(op.body)
        still = [load for load in op.body.ops if self._stands_still(load, made)]
        if not still:
            return [op]
        maker = Maker(op.span)
        written: dict[Value, Value] = {}
        for load in still:
            assert isinstance(load, ops.Load), "only loads stand still"
            maker.span = load.span
            starts = tuple(recompute(maker, s, self.forms, made, written) for s in load.starts)
            maker.add_op(replace_fields(load, starts=starts))
        rest = [each for each in op.body.ops if each not in still]
        return [*maker.ops, replace_fields(op, body=with_ops(op.body, rest))]

    def _stands_still(self, op: Op, made: set[Value]) -> bool:
        """Whether a load reads the same in every step, and nothing writes what it reads."""
        if not isinstance(op, ops.Load) or op.ref.ref.space != GMEM or op.ref in self.written:
            return False
        sources = {s for start in op.starts for s in self.forms.sources(start)}
        return not sources & made


def _windows(block: Block) -> Iterable[ops.Window]:
    accesses: Sequence[type[Op]] = (ops.Load, ops.Store)
    return (
        op
        for op in walk(block)
        if isinstance(op, ops.Window) and type(op) in accesses and op.ref.ref.space == GMEM
    )
