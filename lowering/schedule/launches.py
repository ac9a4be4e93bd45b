"""Making the launch of a kernel: which axes of its outermost pipeline become thread blocks.

Before
    %0 = constant ...
    pipeline (i, j, r) { body }
After
    launch grid { count of i * count of j } (block) {
      i, j from block
      pipeline (r) { body }
    }

Invariant: a block recomputes what stands outside the pipeline; only scalars known on the host
decide how many blocks there are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from astdsl.errors import UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import PURE, READS, Block, Module, Op, Value
from astdsl.ir.rewrite import clone_op, replace_body
from astdsl.ir.types import INDEX
from astdsl.lowering.schedule.build import Maker
from astdsl.lowering.schedule.independence import is_used, spread_axes
from astdsl.lowering.windows import Form, Forms, is_index_arithmetic


class SerialPipeline(UserWarning):
    """An outermost pipeline that runs in one block, since its steps are not proved independent."""


def form_launch(module: Module) -> Module:
    """Return the module with its body in one `Launch`."""
    body = [op for op in module.body.ops if not isinstance(op, ops.Assert)]
    checks = [op for op in module.body.ops if isinstance(op, ops.Assert)]
    pipeline = _outermost(body)
    if pipeline is None:
        launch = _single(module, body)
    else:
        launch = _spread(module, pipeline, body[: body.index(pipeline)])
    host = _known_on_host(body)
    return replace_body(module, Block(args=module.body.args, ops=(*host, *checks, launch)))


def _known_on_host(body: Sequence[Op]) -> list[Op]:
    """Return what is computed from dims and scalar parameters alone, and not from memory."""
    from_memory: set[Value] = set()
    known: list[Op] = []
    for op in body:
        if is_index_arithmetic(op) and from_memory.isdisjoint(op.operands):
            known.append(op)
        else:
            from_memory.update(op.results)
    return known


def _outermost(body: Sequence[Op]) -> ops.Pipeline | None:
    """Return the pipeline whose axes may become blocks; None where one block runs everything.

    That is where something outside writes memory, or uses what the pipeline carries.
    """
    found = [op for op in body if isinstance(op, ops.Pipeline)]
    if len(found) > 1:
        raise UnsupportedFeature(
            "a kernel has one outermost pipeline, this one has several",
            (found[1].span, "a second launch"),
            (found[0].span, "the first one"),
            help="write a kernel for each, and call them one after the other",
        )
    if not found:
        return None
    outside = [op for op in body if op is not found[0]]
    used = is_used(found[0].results, Block(ops=tuple(outside)))
    acts = any(op.effect not in (PURE, READS) for op in outside)
    return None if used or acts else found[0]


def _single(module: Module, body: Sequence[Op]) -> ops.Launch:
    """Return the launch of a kernel without outermost pipelines: one block."""
    grid, inside = Maker(module.span), Maker(module.span)
    one = grid.number(1)
    _copy(body, inside, {})
    return ops.Launch(
        span=module.span,
        grid=grid.block([one]),
        body=inside.block(args=[Value(INDEX, "block")]),
    )


def _copy(body: Iterable[Op], maker: Maker, mapping: dict[Value, Value]) -> dict[Value, Value]:
    for op in body:
        maker.add_op(clone_op(op, mapping))
    return mapping


def _spread(module: Module, pipeline: ops.Pipeline, before: Sequence[Op]) -> ops.Launch:
    forms = Forms(module.body)
    spread = spread_axes(pipeline, forms)
    wanted = any(a != ops.SEQUENTIAL for a in pipeline.axes)
    if wanted and not any(spread) and not _has_one_step(pipeline, forms):
        _warn(pipeline)
    axes = [a for a, s in enumerate(spread) if s]
    grid = Maker(pipeline.span)
    mapping = _copy(_known_on_host(before), grid, {})
    total = grid.number(1)
    for axis in axes:
        total = grid.multiply(total, _count(grid, pipeline, axis, mapping))
    return ops.Launch(
        span=pipeline.span,
        grid=grid.block([total]),
        body=_block_body(pipeline, before, axes),
    )


def _count(maker: Maker, pipeline: ops.Pipeline, axis: int, mapping: dict[Value, Value]) -> Value:
    bounds = (pipeline.lows[axis], pipeline.highs[axis], pipeline.steps[axis])
    missing = [b for b in bounds if b not in mapping]
    if missing:
        raise UnsupportedFeature(
            "the number of blocks must be known on the host",
            (pipeline.span, "an axis that counts what memory holds"),
            help='`axes="sequential"` runs its steps in order inside a block',
        )
    return maker.trip_count(*(mapping[b] for b in bounds))


def _block_body(pipeline: ops.Pipeline, before: Sequence[Op], axes: list[int]) -> Block:
    """Return what one block does: find its indices, then run the other axes in order."""
    maker = Maker(pipeline.span)
    block = Value(INDEX, "block")
    mapping = _copy(before, maker, {})
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
    """Write the indices of a block's step; divisions are 32 bit, as block numbers are."""
    indices: dict[int, Value] = {}
    rest = maker.to_i32(block) if len(axes) > 1 else block
    for axis in reversed(axes):
        number = rest
        if axis != axes[0]:
            count = maker.to_i32(_count(maker, pipeline, axis, mapping))
            number, rest = maker.remainder(rest, count), maker.divide(rest, count)
        wide = maker.to_index(number) if len(axes) > 1 else number
        low, step = mapping[pipeline.lows[axis]], mapping[pipeline.steps[axis]]
        indices[axis] = maker.add(low, maker.multiply(wide, step))
        indices[axis].hint = pipeline.body.args[axis].hint
    return [indices[a] for a in axes]


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
