"""Loops and pipelines: what a `with`, a `for` or a call of them means in a kernel.

Invariant: nothing here runs a body; a context or range hands it to `blocks`, which traces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from astdsl.errors import (
    BadPipeline,
    TypeMismatch,
    UnknownName,
    UnsupportedFeature,
    did_you_mean,
    in_words,
)
from astdsl.ir import ops
from astdsl.ir.ops import INFERRED, SEQUENTIAL, SPREAD
from astdsl.lang.blocks import BlockFunction, trace_for, trace_pipeline
from astdsl.lang.branching import as_condition
from astdsl.lang.indices import as_index, form_of, index_value, possible_zeros, weak_integer
from astdsl.lang.shapes import as_extent
from astdsl.lang.tracing import (
    MOST_OPERATIONS,
    emit,
    fault,
    must_be_used,
    require_trace,
    used,
)
from astdsl.lang.values import Literal, Operand

PLACEMENTS = {"sequential": SEQUENTIAL, "parallel": SPREAD, "auto": INFERRED}
NO_STEP = "the step of a range is not 0"
NO_DIVISOR = "the number of steps is not divided by 0"
SCHEDULES = ("auto", "multistage")
STREAM = "stream"
# Options that LANGUAGE.md has and this version has not, with what to do instead.
LATER = {
    "persistent": "leave it out: every step of the spread axes is a block",
    "dynamic": "leave it out: every step of the spread axes is a block",
    "warpgroups": "leave it out: the compiler chooses",
    "cluster": "leave it out: every step of the grid is one block",
}
OPTIONS = ("stages", "schedule", "axes", "names", "order", "split", *LATER)


class KernelRange:
    """`range(low, high, step)` of kernel integers: a loop of the kernel, or an axis."""

    __slots__ = ("start", "step", "stop")

    def __init__(self, start: Operand, stop: Operand, step: Operand) -> None:
        self.start = start
        self.stop = stop
        self.step = step

    def __kernel_for__(self, body: BlockFunction) -> None:
        trace_for(self.start, self.stop, self.step, body)

    def as_python(self) -> range:
        """Return Python's range, asking for dims as constants; other bounds are refused."""
        parts = (self.start, self.stop, self.step)
        numbers = [p.number if isinstance(p, Literal) else p for p in parts]
        return range(*(as_extent(n, "`range` outside a `for` of the kernel") for n in numbers))

    def __iter__(self) -> Iterator[int]:
        return iter(self.as_python())

    def __reversed__(self) -> range | KernelRange:
        """Return the range of the same numbers from the last one back, a loop of the kernel too."""
        parts = (self.start, self.stop, self.step)
        low, high, step = (p.number if isinstance(p, Literal) else p for p in parts)
        last: Any = low - (-(high - low) // step + 1) * step
        return kernel_range(last, low - step, -step)

    def __len__(self) -> int:
        return len(self.as_python())

    def __getitem__(self, index: Any) -> Any:
        return self.as_python()[index]


def kernel_range(*bounds: Any) -> range | KernelRange:
    """Return `range(stop)` or `range(start, stop, step)` of kernel integers; Python's of Python's.

    A `for` over it is a loop of the kernel; the index is a weak integer.
    """
    if all(isinstance(b, int | np.integer) for b in bounds) or not 1 <= len(bounds) <= 3:
        return range(*bounds)
    low, high, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    low, high, step = (as_index(b, "`range`") for b in (low, high, step))
    known = form_of(step).constant
    if known == 0:
        raise fault(BadPipeline, NO_STEP, help="`range(n)` counts up in steps of 1")
    if known is None:
        emit(ops.Assert, condition=as_condition(step != 0).value, pieces=(NO_STEP,))
    return KernelRange(low, high, step)


def unroll(iterable: Iterable[Any]) -> list[Any]:
    """Return what a `for` runs through with its body copied: the indices are constants.

    `unroll(range(n))` needs an `n` that is a constant or a dim, which becomes one.
    """
    if not isinstance(iterable, Iterable):
        raise fault(
            TypeMismatch,
            f"`unroll` takes what a `for` runs through, got {iterable!r}",
            help="write `unroll(range(n))`",
        )
    steps = list(islice(iterable, MOST_OPERATIONS + 1))
    if len(steps) > MOST_OPERATIONS:
        raise fault(
            UnsupportedFeature,
            f"`unroll` copies the body of a loop more than {MOST_OPERATIONS:,} times",
            help="`for i in range(n):` is a loop of the kernel",
        )
    return steps


class PipelineContext:
    """What `pipeline(...)` and `parallel(...)` give to a `with`."""

    __slots__ = ("axes", "fields", "is_parallel", "is_single")

    def __init__(
        self,
        axes: Sequence[tuple[Operand, Operand, Operand]],
        fields: dict[str, Any],
        *,
        is_single: bool,
        is_parallel: bool,
    ) -> None:
        self.axes = axes
        self.fields = fields
        self.is_single = is_single
        self.is_parallel = is_parallel

    def __kernel_with__(self, body: BlockFunction) -> None:
        trace = require_trace("a pipeline")
        used(self)
        if self.is_parallel and trace.loops:
            raise fault(
                BadPipeline,
                "`parallel` stands inside a loop or pipeline, where it cannot spread over blocks",
                help="`pipeline` runs its steps in order inside a block; `parallel` is outermost",
            )
        fields = self.fields
        if trace.warpgroups:
            # Who runs a pipeline there runs all of it; only `parallel` is a grid.
            placement = tuple(a if a == SPREAD else SEQUENTIAL for a in fields["placement"])
            fields = {**fields, "placement": placement}
        trace_pipeline(self.axes, body, is_single=self.is_single, **fields)

    def __enter__(self) -> Any:
        raise fault(
            BadPipeline,
            "a pipeline is entered by code that is not part of a kernel",
            help="write the `with` in the kernel itself, or in a helper that takes a kernel value",
        )

    def __exit__(self, *_: object) -> None: ...

    def __iter__(self) -> NoReturn:
        raise fault(
            BadPipeline,
            "a pipeline is a `with`, not a `for`",
            help="`with pipeline(n) as i:`; `for i in range(n):` is a plain loop of the kernel",
        )


def pipeline(
    *counts: Any,
    stages: Any = "auto",
    schedule: Any = "auto",
    axes: Any = "auto",
    order: Any = None,
    split: Any = None,
    **others: Any,
) -> PipelineContext:
    """Run the body of a `with` for every index of the axes, row-major, last axis fastest.

    An axis is a count or a range, of kernel integers too; one axis gives the index, several a
    tuple. `stages` is the number of slots of each ring, from 1 on; `axes` says for all axes, or
    for each, "sequential" (in order inside a block), "parallel" (the author's word that steps are
    independent) or "auto". `order(linear, grid) -> index`, outermost only, is the position of the
    block that begins `linear`-th: a permutation of independent steps, for the cache. `split=n`, of
    a pipeline of one axis in an outermost one, runs its steps in n contiguous parts on n blocks:
    what it carries may only be added to, and the parts are added in order. `split="stream"` cuts
    the steps of all tiles together, tile after tile in row-major order, into as many equal parts
    as the target has multiprocessors (132 for sm_90a, 148 for sm_100a), but no more than steps:
    stream-K. The schedule never changes the result, but for how `split` associates a sum.
    Errors: BadPipeline, UnsupportedFeature.
    """
    _refuse_others("pipeline", others)
    bounds = _bounds("pipeline", counts)
    placement = _placement(_default_axes(axes), len(bounds))
    fields = {
        "placement": placement,
        "order": order,
        "stages": stages_of(_default_stages(stages)),
        "streams": isinstance(split, str) and split == STREAM,
        "split": _split(split),
        "schedule": _schedule(schedule),
    }
    return _context("pipeline", counts, bounds, fields)


def parallel(
    *counts: Any, names: Any = (), order: Any = None, stages: Any = "auto", **others: Any
) -> PipelineContext:
    """Run the body of a `with` for every index of the axes, spread over thread blocks.

    Outermost only. It is the author's word that no step depends on another: a proved conflict is
    an error. `names` name the axes, `order` is as of `pipeline`.
    Errors: BadPipeline, UnsupportedFeature.
    """
    _refuse_others("parallel", others)
    bounds = _bounds("parallel", counts)
    given = (names,) if isinstance(names, str) else tuple(names)
    if given and (len(given) != len(bounds) or not all(isinstance(n, str) for n in given)):
        raise fault(
            BadPipeline,
            f"`names` gives a text for each axis, {in_words(len(bounds), 'axis')} here, got "
            f"{names!r}",
            help='`parallel(cdiv(M, bm), cdiv(N, bn), names=("m", "n"))`',
        )
    fields = {
        "placement": (SPREAD,) * len(bounds),
        "names": given,
        "order": order,
        "stages": stages_of(_default_stages(stages)),
    }
    return _context("parallel", counts, bounds, fields)


def _context(
    function: str,
    counts: Sequence[Any],
    bounds: Sequence[tuple[Operand, Operand, Operand]],
    fields: dict[str, Any],
) -> PipelineContext:
    is_single, is_parallel = _is_single(counts), SPREAD in fields["placement"]
    made = PipelineContext(bounds, fields, is_single=is_single, is_parallel=is_parallel)
    must_be_used(
        made,
        f"no `with` enters this `{function}`, so no step of it runs",
        f"`with {function}(...) as i:` runs the block below it for every index",
    )
    return made


def _refuse_others(function: str, others: dict[str, Any]) -> None:
    require_trace(f"`{function}`")
    for name in others:
        if name not in LATER:
            raise fault(
                UnknownName,
                f"`{function}` has no option `{name}`",
                help=did_you_mean(name, OPTIONS) or f"it has {', '.join(OPTIONS)}",
            )
        raise fault(
            UnsupportedFeature,
            f"`{function}(..., {name}=)` is not in this version",
            help=LATER[name],
        )


def _flat(counts: Sequence[Any]) -> Sequence[Any]:
    is_tuple = len(counts) == 1 and isinstance(counts[0], tuple | list)
    return counts[0] if is_tuple else counts


def _is_single(counts: Sequence[Any]) -> bool:
    return len(counts) == 1 and not isinstance(counts[0], tuple | list)


def _bounds(function: str, counts: Sequence[Any]) -> list[tuple[Operand, Operand, Operand]]:
    flat = _flat(counts)
    if not flat:
        raise fault(
            BadPipeline,
            f"`{function}` takes one axis or more",
            help=f"`{function}(cdiv(n, b))` has one step for each block of b",
        )
    bounds = [_axis(function, count) for count in flat]
    if require_trace(f"`{function}`").builder.depth == 1:
        _require_divisors(bounds)
    return bounds


def _require_divisors(bounds: Sequence[tuple[Operand, Operand, Operand]]) -> None:
    """Have each launch refuse a grid that divides by 0: a block size of 0, say."""
    counts = [form_of(x) for axis in bounds for x in axis if not isinstance(x, Literal)]
    for divisor in dict.fromkeys(zero for form in counts for zero in possible_zeros(form)):
        number = weak_integer(index_value(divisor), divisor)
        emit(ops.Assert, condition=as_condition(number != 0).value, pieces=(NO_DIVISOR,))


def _axis(function: str, count: Any) -> tuple[Operand, Operand, Operand]:
    what = f"an axis of `{function}`"
    if isinstance(count, KernelRange):
        return count.start, count.stop, count.step
    parts = (count.start, count.stop, count.step) if isinstance(count, range) else (0, count, 1)
    low, high, step = (as_index(p, what) for p in parts)
    return low, high, step


def stages_of(stages: Any, option: str = "stages") -> int:
    """Return the number of stages that an option of a pipeline states, 0 for automatic."""
    if isinstance(stages, str) and stages == "auto":
        return 0
    count = None if isinstance(stages, str) else as_extent(stages, f"`{option}`")
    if count is None or count < 1:
        raise fault(
            BadPipeline,
            f"`{option}` is 1 or more, got {stages!r}",
            help=f'`{option}="auto"` takes as many as shared memory holds; 1 does not overlap',
        )
    return count


def _default_stages(stages: Any) -> Any:
    """Return what the kernel's parameters say where a pipeline does not state its stages."""
    is_open = isinstance(stages, str) and stages == "auto"
    default = require_trace("`pipeline`").params.max_concurrent_steps
    return default if is_open and default is not None else stages


def _default_axes(axes: Any) -> Any:
    """Return what the kernel's parameters say where an outermost pipeline does not state axes."""
    is_open = isinstance(axes, str) and axes == "auto"
    trace = require_trace("`pipeline`")
    default = trace.params.dimension_semantics
    return default if is_open and default is not None and not trace.loops else axes


def _split(split: Any) -> int:
    """Return the number of parts that is stated; a stream has as many as the target runs."""
    if split is None:
        return 0
    streams = isinstance(split, str) and split == STREAM
    count = None if isinstance(split, str) else as_extent(split, "`split`")
    if not streams and (count is None or count < 1):
        raise fault(
            BadPipeline,
            f"`split` is the number of parts, 1 or more, got {split!r}",
            help="`split=4` runs the steps in 4 parts on 4 blocks, and adds these up; "
            '`split="stream"` divides the steps of all tiles between the multiprocessors',
        )
    if not require_trace("`split`").loops:
        raise fault(
            BadPipeline,
            "`split` stands on an outermost pipeline",
            help="put the pipeline that sums into one whose steps are independent: "
            "`with pipeline(1):` if there is a single sum",
        )
    return count or 0


def _schedule(schedule: Any) -> str:
    if isinstance(schedule, str) and schedule in SCHEDULES:
        return schedule
    if isinstance(schedule, str) and schedule == "warp_specialized":
        raise fault(
            UnsupportedFeature,
            '`schedule="warp_specialized"` is not in this version',
            help='`schedule="multistage"` overlaps copies with computation in one role',
        )
    raise fault(
        BadPipeline,
        f"`schedule` is one of {', '.join(SCHEDULES)}, got {schedule!r}",
        help=did_you_mean(str(schedule), SCHEDULES) or '`schedule="multistage"` overlaps copies',
    )


def _placement(axes: Any, rank: int) -> tuple[str, ...]:
    given = (axes,) * rank if isinstance(axes, str) else axes
    given = tuple(given) if isinstance(given, tuple | list) else ()
    if len(given) != rank:
        raise fault(
            BadPipeline,
            f"`axes` says something of each axis, {in_words(rank, 'axis')} here, got {axes!r}",
            help=f"one word for all axes, or a tuple of {rank}: {', '.join(PLACEMENTS)}",
        )
    for word in given:
        if not isinstance(word, str) or word not in PLACEMENTS:
            raise fault(
                BadPipeline,
                f"an axis is {', '.join(PLACEMENTS)}, got {word!r}",
                help=did_you_mean(str(word), PLACEMENTS) or '`axes="sequential"` keeps the order',
            )
    return tuple(PLACEMENTS[word] for word in given)
