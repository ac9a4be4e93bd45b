"""Making the launches of a kernel: which axes of its outermost pipelines become thread blocks.

Before
    pipeline (i, j, r) { body }
    store o[...], a
After
    launch grid { count of i * count of j } (block) {
      i, j from block
      pipeline (r) { body }
    }
    launch grid { 1 } (block) { store o[...], a }

Invariant: a block recomputes what stands outside the pipelines; only scalars known on the host
decide how many blocks there are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from astdsl.errors import BadPipeline, UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import Block, Module, Op, Value
from astdsl.ir.ops.control import yielded
from astdsl.ir.rewrite import clone_op, replace_body, replace_fields
from astdsl.ir.types import INDEX
from astdsl.lowering.host import known_on_host
from astdsl.lowering.schedule.build import Maker
from astdsl.lowering.schedule.independence import spread_axes
from astdsl.lowering.schedule.orders import try_order
from astdsl.lowering.schedule.segments import Segment, cut, cut_grids
from astdsl.lowering.windows import Form, Forms

# What stands outside of launches in a scheduled kernel.
OF_THE_CALL = (ops.Assert, ops.AllocGmem)


class SerialPipeline(UserWarning):
    """An outermost pipeline that runs in one block, since its steps are not proved independent."""


def form_launches(module: Module) -> Module:
    """Return the module with its body in launches, one after the other."""
    of_the_call = [op for op in module.body.ops if isinstance(op, OF_THE_CALL)]
    body = [op for op in module.body.ops if not isinstance(op, OF_THE_CALL)]
    host = known_on_host(body)
    _require_known_extents(
        of_the_call, {*module.body.args, *(v for op in host for v in op.results)}
    )
    launches = _Launches(module, body, Forms(module.body))
    made = [_placed(launches.make(segment), module) for segment in launches.segments]
    every = (*host, *of_the_call, *launches.scratch.values(), *made)
    return replace_body(module, Block(args=module.body.args, ops=every))


def _placed(launch: ops.Launch, module: Module) -> ops.Launch:
    """Say who runs a launch, where that is the program's choice."""
    if not module.warpgroups:
        return launch
    return replace_fields(launch, warpgroups=module.warpgroups, per_warpgroup=True)


def _require_known_extents(of_the_call: Iterable[Op], known: set[Value]) -> None:
    for op in of_the_call:
        if isinstance(op, ops.AllocGmem) and not known.issuperset(op.dims):
            raise UnsupportedFeature(
                "the extents of `GMEM` must be known on the host",
                (op.span, "an extent that memory holds"),
                help="compute it from shapes, scalars and constants, or allocate its largest size",
            )


@dataclass(slots=True)
class _Launches:
    """The launches of a kernel, and the scratch that hands results of one to later ones."""

    module: Module
    body: Sequence[Op]
    forms: Forms
    segments: list[Segment] = field(init=False)
    scratch: dict[Value, ops.AllocGmem] = field(init=False)

    def __post_init__(self) -> None:
        whole = Segment(tuple(range(len(self.body))), (), (), is_spread=False)
        cut_up = cut_grids if self.module.warpgroups else cut
        self.segments = cut_up(self.body) or [whole]
        received = (v for segment in self.segments for v in segment.received)
        self.scratch = {v: self._scratch(v) for v in received}

    def _scratch(self, value: Value) -> ops.AllocGmem:
        # No memory is without an axis: a scalar is kept in an array of one element.
        shape, dtype = value.tile.shape or (1,), value.tile.dtype
        label = value.hint or "result"
        span = self.forms.makers[value].span
        return ops.AllocGmem(span=span, dims=(), shape=shape, dtype=dtype, label=label)

    def make(self, segment: Segment) -> ops.Launch:
        """Return a launch; it first reads what it receives, and last stores what others do."""
        own = [self.body[k] for k in segment.acts]
        inside = Maker(own[0].span if segment.is_spread else self.module.span)
        mapping = {v: self._read(inside, v) for v in segment.received}
        if segment.is_spread:
            (pipeline,) = own
            assert isinstance(pipeline, ops.Pipeline), "only a pipeline spreads"
            outside = [self.body[k] for k in segment.recomputed]
            return _spread(pipeline, outside, inside, mapping, self.forms)
        for op in own:
            if isinstance(op, ops.Pipeline) and op.order:
                _refuse_order(op, (False,) * len(op.axes))
        for k in sorted((*segment.acts, *segment.recomputed)):
            inside.add_op(clone_op(self.body[k], mapping))
        for value in (v for op in own for v in op.results if v in self.scratch):
            inside.add_op(ops.Store(**self._window(inside, value), value=mapping[value]))
        return _one_block(self.module, inside)

    def _read(self, maker: Maker, value: Value) -> Value:
        return maker.add_op(ops.Load(**self._window(maker, value))).result

    def _window(self, maker: Maker, value: Value) -> dict[str, Any]:
        """Return the window that is all of a value's scratch."""
        scratch, is_tile = self.scratch[value], bool(value.tile.shape)
        sizes = value.tile.shape or (1,)
        return {
            "span": scratch.span,
            "ref": scratch.result,
            "starts": tuple(maker.number(0) for _ in sizes),
            "sizes": sizes,
            "steps": (1,) * len(sizes),
            "kept": (is_tile,) * len(sizes),
        }


def _one_block(module: Module, inside: Maker) -> ops.Launch:
    grid = Maker(module.span)
    one = grid.number(1)
    block = inside.block(args=[Value(INDEX, "block")])
    return ops.Launch(span=module.span, grid=grid.block([one]), body=block)


def _copy(body: Iterable[Op], maker: Maker, mapping: dict[Value, Value]) -> dict[Value, Value]:
    for op in body:
        maker.add_op(clone_op(op, mapping))
    return mapping


def _spread(
    pipeline: ops.Pipeline,
    before: Sequence[Op],
    inside: Maker,
    mapping: dict[Value, Value],
    forms: Forms,
) -> ops.Launch:
    """Return the launch of a pipeline, with `before` recomputed by every block.

    `inside` and `mapping` hold what each block begins with.
    """
    spread = spread_axes(pipeline, forms)
    wanted = any(a != ops.SEQUENTIAL for a in pipeline.axes)
    if wanted and not any(spread) and not _has_one_step(pipeline, forms):
        _warn(pipeline)
    axes = [a for a, s in enumerate(spread) if s]
    if pipeline.order and not all(spread):
        _refuse_order(pipeline, spread)
    if pipeline.order:
        try_order(pipeline, forms)
    grid = Maker(pipeline.span)
    known = _copy(known_on_host(before, mapping), grid, {})
    total = grid.number(1)
    for axis in axes:
        total = grid.multiply(total, _count(grid, pipeline, axis, known))
    _copy(before, inside, mapping)
    return ops.Launch(
        span=pipeline.span,
        grid=grid.block([total]),
        body=_block_body(pipeline, inside, mapping, axes),
    )


def _count(maker: Maker, pipeline: ops.Pipeline, axis: int, mapping: dict[Value, Value]) -> Value:
    bounds = (pipeline.lows[axis], pipeline.highs[axis], pipeline.steps[axis])
    if any(b not in mapping for b in bounds):
        raise UnsupportedFeature(
            "the number of blocks must be known on the host",
            (pipeline.span, "an axis that counts what memory holds"),
            help='`axes="sequential"` runs its steps in order inside a block',
        )
    return maker.trip_count(*(mapping[b] for b in bounds))


def _block_body(
    pipeline: ops.Pipeline, maker: Maker, mapping: dict[Value, Value], axes: list[int]
) -> Block:
    """Return what one block does: find its indices, then run the other axes in order."""
    block = Value(INDEX, "block")
    indices = _indices(maker, pipeline, axes, block, mapping)
    inner = [a for a in range(len(pipeline.lows)) if a not in axes]
    values = dict(mapping)
    values.update(zip((pipeline.body.args[a] for a in axes), indices, strict=True))
    if inner:
        clone = _inner_pipeline(pipeline, inner, values)
        maker.add_op(clone)
        return maker.block(args=[block])
    rank = len(pipeline.lows)
    values.update(
        (arg, values.get(v, v))
        for arg, v in zip(pipeline.body.args[rank:], pipeline.initial, strict=True)
    )
    _copy(pipeline.body.ops[:-1], maker, values)
    return maker.block(args=[block])


def _indices(
    maker: Maker,
    pipeline: ops.Pipeline,
    axes: list[int],
    block: Value,
    mapping: dict[Value, Value],
) -> list[Value]:
    """Write the indices of a block's step."""
    find = _ordered_positions if pipeline.order else _row_major_positions
    indices = []
    for axis, position in zip(axes, find(maker, pipeline, axes, block, mapping), strict=True):
        low, step = mapping[pipeline.lows[axis]], mapping[pipeline.steps[axis]]
        indices.append(maker.add(low, maker.multiply(position, step)))
        indices[-1].hint = pipeline.body.args[axis].hint
    return indices


def _row_major_positions(
    maker: Maker,
    pipeline: ops.Pipeline,
    axes: list[int],
    block: Value,
    mapping: dict[Value, Value],
) -> list[Value]:
    """Write a block's position along each axis; divisions are 32 bit, as block numbers are."""
    if len(axes) < 2:
        return [block] * len(axes)
    counts = [maker.to_u32(_count(maker, pipeline, axis, mapping)) for axis in axes[1:]]
    return [maker.to_index(digit) for digit in maker.digits(maker.to_u32(block), counts)]


def _ordered_positions(
    maker: Maker,
    pipeline: ops.Pipeline,
    axes: list[int],
    block: Value,
    mapping: dict[Value, Value],
) -> list[Value]:
    """Write a block's position along each axis as the author's order gives it.

    That no position is negative is the author's word; here it is said so that it can be seen.
    """
    (order,) = pipeline.order
    counts = [_count(maker, pipeline, axis, mapping) for axis in axes]
    values = mapping | dict(zip(order.args, (block, *counts), strict=True))
    _copy(order.ops[:-1], maker, values)
    zero = maker.number(0)
    return [maker.maximum(values.get(v, v), zero) for v in yielded(order)]


def _refuse_order(pipeline: ops.Pipeline, spread: Sequence[bool]) -> NoReturn:
    kept = ", ".join(str(axis) for axis, s in enumerate(spread) if not s)
    raise BadPipeline(
        f"`order` moves independent steps, and those along axis {kept} run in order",
        (pipeline.span, ""),
        help="leave to the pipeline with `order` the independent axes, and run the others in a "
        "`pipeline` inside it",
    )


def _inner_pipeline(
    pipeline: ops.Pipeline, inner: list[int], values: dict[Value, Value]
) -> ops.Pipeline:
    """Return the pipeline over the axes that run in order."""

    def pick(found: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(values.get(found[a], found[a]) for a in inner)

    rank = len(pipeline.lows)
    indices = [Value(INDEX, pipeline.body.args[a].hint) for a in inner]
    carried = [Value(v.type, v.hint) for v in pipeline.body.args[rank:]]
    values.update(zip((pipeline.body.args[a] for a in inner), indices, strict=True))
    values.update(zip(pipeline.body.args[rank:], carried, strict=True))
    initial = tuple(values.get(v, v) for v in pipeline.initial)
    body = tuple(clone_op(op, values) for op in pipeline.body.ops)
    return ops.Pipeline(
        span=pipeline.span,
        initial=initial,
        lows=pick(pipeline.lows),
        highs=pick(pipeline.highs),
        steps=pick(pipeline.steps),
        body=Block(args=(*indices, *carried), ops=body),
        axes=tuple(ops.SEQUENTIAL for _ in inner),
        stages=pipeline.stages,
        schedule=pipeline.schedule,
    )


def _has_one_step(pipeline: ops.Pipeline, forms: Forms) -> bool:
    ends = zip(pipeline.lows, pipeline.highs, strict=True)
    return all(forms[high] - forms[low] == Form(1) for low, high in ends)


def _warn(pipeline: ops.Pipeline) -> None:
    # At the kernel's own line: no frame of the compiler's means anything to the reader.
    warnings.warn_explicit(
        f"{pipeline.span}: no axis of this pipeline is proved independent, so one block runs all "
        "of its steps in order; `parallel` states that steps are independent, "
        '`axes="sequential"` that their order is meant',
        SerialPipeline,
        pipeline.span.file,
        pipeline.span.line,
    )
