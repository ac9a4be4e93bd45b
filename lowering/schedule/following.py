"""The execution of a pipeline that follows: the last steps of one fill slots for the next.

Before
    pipeline (t) { pipeline (k of n(t)) { a = load x[t, k]; ... } }
After
    pipeline (t) { ...; steady { ...; where no step of t is `ahead`: copy_in x[t + 1, ...] } }

So the rings stay full across the steps of the pipeline around.

Invariant: the copies are those that the next prologue would issue, in their order: copies are
counted on, and a slot is refilled as within one execution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.lowering.schedule.block import BlockScheduler, inside
from astdsl.lowering.schedule.build import recompute, select


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a pipeline: what stands for values around it, and which those are not."""

    values: Mapping[Value, Value]
    unavailable: set[Value]


@dataclass(frozen=True, slots=True)
class Following:
    """The execution after this one, and how many steps it has: none, if there is no such."""

    execution: Execution
    total: Value


def following_of(
    scheduler: BlockScheduler, op: ops.Pipeline, loads: Sequence[ops.Load]
) -> Following | None:
    """Write how many steps the next execution has; None where it cannot be known ahead.

    It can in the body of a pipeline of one axis, if that axis alone moves bounds and windows.
    """
    around = scheduler.steps[-1] if scheduler.steps else None
    if not loads or around is None or op not in around.op.body.ops:
        return None
    if len(op.lows) > 1 or len(around.op.lows) > 1:
        return None
    changing, index = inside(around.op.body), around.op.body.args[0]
    windows = (start for load in loads for start in load.starts)
    needed = (*op.lows, *op.highs, *op.steps, *windows)
    sources = set().union(*map(scheduler.forms.sources, needed))
    if sources & changing - {index, op.body.args[0]}:
        return None
    maker = scheduler.maker
    number = maker.add(around.number, maker.number(1))
    (low,), (step,) = around.op.lows, around.op.steps
    low, step = (around.outside.get(v, v) for v in (low, step))
    values = dict(around.outside)
    values[index] = maker.add(low, maker.multiply(number, step))
    bounds = (op.lows[0], op.highs[0], op.steps[0])
    ends = [recompute(maker, v, scheduler.forms, changing, values) for v in bounds]
    total = maker.trip_count(*ends)
    scheduler.trip_counts.append(total)
    exists = maker.compare("lt", number, around.total)
    return Following(Execution(values, changing), select(maker, exists, total, maker.number(0)))
