"""Loads that state how many slots their ring has: each must be one that a ring can hold.

A load has a ring if it stands in the body of a pipeline, its window moves with the pipeline's steps
and with nothing that a step computes, and nothing around it writes what it reads.

Invariant: what a program says decides, not the classes of its arguments, nor where steps run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from astdsl.errors import BadPipeline
from astdsl.ir import ops
from astdsl.ir.core import Block, Module, Op, walk
from astdsl.lowering.schedule.block import inside
from astdsl.lowering.windows import Forms

# A load or a gather that states its stages.
_Stated: TypeAlias = ops.Load | ops.Gather


def check_stages(module: Module) -> None:
    """Refuse `load(..., stages=)` where no ring can be. Errors: BadPipeline."""
    forms: Forms | None = None
    for top in module.body.ops:
        for load, around in _stated(Block(ops=(top,)), ()):
            forms = forms or Forms(module.body)
            _require_pipeline(load, around)
            _require_moving(load, around[-1], forms)
            _require_unwritten(load, top)


def _stated(block: Block, around: tuple[Op, ...]) -> Iterator[tuple[_Stated, tuple[Op, ...]]]:
    """Yield the loads that state their stages, each with the operations around it."""
    for op in block.ops:
        if isinstance(op, _Stated) and op.stages:
            yield op, around
        for region in op.regions:
            yield from _stated(region, (*around, op))


def _require_pipeline(load: _Stated, around: tuple[Op, ...]) -> None:
    if around and isinstance(around[-1], ops.Pipeline):
        return
    if not any(isinstance(op, ops.Pipeline) for op in around):
        raise BadPipeline(
            "`load(..., stages=)` stands outside of a pipeline, and a ring holds windows of steps",
            (load.span, ""),
            help="leave `stages` out, or load it in a `with pipeline(...)`",
        )
    raise BadPipeline(
        "`load(..., stages=)` stands in a branch or loop, and is not copied ahead",
        (load.span, ""),
        (around[-1].span, "inside this"),
        help="load it in the body of the pipeline itself, or leave `stages` out",
    )


def _require_moving(load: _Stated, pipeline: Op, forms: Forms) -> None:
    assert isinstance(pipeline, ops.Pipeline), "the load stands in a pipeline"
    indices = set(pipeline.body.args[: len(pipeline.lows)])
    sources = set().union(*map(forms.sources, load.starts))
    if not sources & indices:
        raise BadPipeline(
            "`load(..., stages=)` of a window that is the same in every step",
            (load.span, "copied once"),
            (pipeline.span, "no index of this pipeline moves it"),
            help="leave `stages` out, or load it in the pipeline whose steps move it",
        )
    if sources & inside(pipeline.body) - indices:
        raise BadPipeline(
            "`load(..., stages=)` of a window that a step computes, which is not copied ahead",
            (load.span, "where it is depends on a value of the step"),
            (pipeline.span, "steps of this pipeline"),
            help="leave `stages` out, or compute the window from indices, shapes and scalars",
        )


def _require_unwritten(load: _Stated, top: Op) -> None:
    """Refuse to copy ahead what the outermost pipeline writes."""
    writers = (op for op in walk(Block(ops=(top,))) if isinstance(op, ops.WRITERS))
    store = next((op for op in writers if op.ref is load.ref), None)
    if store is not None:
        raise BadPipeline(
            f"`load(..., stages=)` of `{load.ref.hint}`, which is written here too and not copied "
            "ahead",
            (load.span, ""),
            (store.span, "written here"),
            help="leave `stages` out, or write to another array",
        )
