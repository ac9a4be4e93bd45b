"""`split="stream"`: the steps of all tiles in equal parts on one block a multiprocessor (stream-K).

Before
    pipeline (i of T) { pipeline (k of S, split="stream") carries acc = a { acc += f };
                        store o[i], acc }
After
    parts = scratch [T + P - 1, ...]
    pipeline (p of P) { pipeline (i of the tiles that part p reaches) {
        pipeline (k of the steps of i in part p) carries acc = 0 { acc += f };
        store parts[i + p], acc } }
    pipeline (i of T) { pipeline (p of the parts that reach i) carries acc = a
                        { acc += parts[i + p] }; store o[i], acc }

A tile is a step of the pipeline around; steps count through the tiles in row-major order, and
part p has those from `T*S*p // P` up to `T*S*(p + 1) // P`, with P = min(multiprocessors, T*S).
From one pair (tile, part) to the next, one of the two or both go up: their sum tells pairs apart.
Source: Osama et al., "Stream-K: work-centric parallel decomposition for dense matrix-matrix
multiplication on the GPU", 2023.

Invariant: the parts of a tile are added in order, so the result depends on T, S, P and the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from astdsl.errors import BadPipeline
from astdsl.ir import ops
from astdsl.ir.core import Module, Op, Value
from astdsl.ir.rewrite import Handler, replace_body, replace_fields, rewrite_block, values_made
from astdsl.ir.types import INDEX
from astdsl.lowering.schedule.build import Maker, recompute
from astdsl.lowering.schedule.partial_sums import Cut, Nest
from astdsl.lowering.target import Target


def settle_streams(module: Module, target: Target) -> Module:
    """Return the module for as many multiprocessors as a target has.

    Every stream has at most so many parts, and who asks for their number is told.
    """

    def told(op: ops.Multiprocessors, emit: Callable[[Op], Op]) -> tuple[Value, ...]:
        number = ops.Constant(span=op.span, value=target.multiprocessors, type=INDEX)
        return emit(number).results

    def settled(op: ops.Pipeline, emit: Callable[[Op], Op]) -> tuple[Value, ...] | None:
        if not op.streams:
            return None
        return emit(replace_fields(op, split=target.multiprocessors)).results

    changes: dict[type[Op], Handler] = {ops.Pipeline: settled, ops.Multiprocessors: told}
    return replace_body(module, rewrite_block(module.body, changes))


class StreamedParts(Cut):
    """Equal parts of the steps of all tiles; their number is 1 at least, so that it divides."""

    def __init__(self, nest: Nest, maker: Maker) -> None:
        super().__init__(nest, maker)
        _require_known(nest)
        inside, made = set(values_made(nest.outer.body)), dict[Value, Value]()
        bounds = (nest.inner.lows[0], nest.inner.highs[0], nest.inner.steps[0])
        ends = [recompute(maker, v, nest.forms, inside, made) for v in bounds]
        one = maker.number(1)
        self.steps = maker.trip_count(*ends)
        self.tiles = one
        for count in self.counts:
            self.tiles = maker.multiply(self.tiles, count)
        self.total = maker.multiply(self.tiles, self.steps)
        most = maker.number(max(1, nest.inner.split))
        self.number = maker.maximum(one, maker.minimum(most, self.total))
        self.kept = maker.subtract(maker.add(self.tiles, self.number), one)
        # What divides is no less than one where there is nothing to divide.
        self.some_steps = maker.maximum(one, self.steps)
        self.some_total = maker.maximum(one, self.total)

    @property
    def places(self) -> tuple[Sequence[Value], tuple[int | None, ...]]:
        """One place for every pair of a tile and a part that reaches it, by their sum."""
        return [self.kept], (None,)

    def parts(self, outside: Maker, scratch: Sequence[Value]) -> ops.Pipeline:
        """Return the pipeline of parts, each of which runs through its tiles in order."""
        outer = self.nest.outer
        maker, part = Maker(self.nest.inner.span), Value(INDEX, "part")
        first, last = self._begin(maker, part), self._begin(maker, maker.add(part, maker.number(1)))
        tiles = Maker(self.nest.inner.span)
        tile = Value(INDEX, "tile")
        begin = tiles.multiply(tile, self.steps)

        def bounds(inner: Maker, count: Value) -> tuple[Value, Value]:
            """Write where the part begins in the tile, and where it ends."""
            low = inner.maximum(inner.subtract(first, begin), inner.number(0))
            return low, inner.minimum(inner.subtract(last, begin), count)

        place = [tiles.add(tile, part)]
        self.write_part(tiles, scratch, self._indices(tiles, tile), place, bounds)
        one = outside.number(1)
        behind = maker.subtract(maker.add(last, self.some_steps), maker.number(1))
        maker.add_op(
            ops.Pipeline(
                span=outer.span,
                initial=(),
                lows=(maker.divide(first, self.some_steps),),
                highs=(maker.divide(behind, self.some_steps),),
                steps=(one,),
                body=tiles.block(args=(tile,)),
                axes=(ops.SEQUENTIAL,),
            )
        )
        return ops.Pipeline(
            span=outer.span,
            initial=(),
            lows=(outside.number(0),),
            highs=(self.number,),
            steps=(one,),
            body=maker.block(args=(part,)),
            axes=(ops.SPREAD,),
        )

    def parts_of(self, maker: Maker, indices: Sequence[Value]) -> tuple[Value, Value]:
        """Write the part of the tile's first step, and the part behind that of its last."""
        first = maker.multiply(self._tile(maker, indices), self.steps)
        behind = maker.add(first, self.steps)
        one = maker.number(1)
        return self._part(maker, maker.add(first, one)), maker.add(self._part(maker, behind), one)

    def place(self, maker: Maker, indices: Sequence[Value], part: Value) -> list[Value]:
        """Write the number of the tile plus that of the part."""
        return [maker.add(self._tile(maker, indices), part)]

    def _begin(self, maker: Maker, part: Value) -> Value:
        """Write the first step of a part."""
        return maker.divide(maker.multiply(self.total, part), self.number)

    def _part(self, maker: Maker, behind: Value) -> Value:
        """Write which part has the step before `behind`: `(behind * P - 1) // total`."""
        scaled = maker.multiply(behind, self.number)
        return maker.divide(maker.subtract(scaled, maker.number(1)), self.some_total)

    def _tile(self, maker: Maker, indices: Sequence[Value]) -> Value:
        """Write the row-major number of a step of the outer pipeline."""
        number, *rest = self.nest.positions(maker, indices)
        for position, count in zip(rest, self.counts[1:], strict=True):
            number = maker.add(maker.multiply(number, count), position)
        return number

    def _indices(self, maker: Maker, tile: Value) -> list[Value]:
        """Write the indices of the outer pipeline's step of a number."""
        outer, positions = self.nest.outer, maker.digits(tile, self.counts[1:])
        axes = zip(outer.body.args, outer.lows, outer.steps, positions, strict=True)
        found = []
        for arg, low, step, position in axes:
            found.append(maker.add(low, maker.multiply(step, position)))
            found[-1].hint = arg.hint
        return found


def _require_known(nest: Nest) -> None:
    """Refuse numbers of steps that differ between tiles, or that only memory holds."""
    for pipeline in (nest.outer, nest.inner):
        for bound in (*pipeline.lows, *pipeline.highs, *pipeline.steps):
            if not nest.forms.sources(bound) <= set(nest.params):
                raise BadPipeline(
                    '`split="stream"` divides the steps of all tiles before the launch, and their '
                    "number is not known there",
                    (pipeline.span, "an axis that depends on the tile, or on what memory holds"),
                    help="compute its bounds from shapes, scalars and constants, or use `split=n`, "
                    "which divides the steps of each tile",
                )
