"""Pipelines and loops as functions, for code that is ported from Pallas.

Invariant: they build what `with pipeline` and `for` build; a block that a body is given is a window
of global memory, which the schedule brings on chip ahead of time and writes back once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from astdsl.errors import BadPipeline, ShapeMismatch, TypeMismatch, in_words
from astdsl.ir.ops import SEQUENTIAL
from astdsl.lang.arith import minimum
from astdsl.lang.block_specs import BlockSpec, require_function
from astdsl.lang.blocks import trace_for, trace_pipeline
from astdsl.lang.control import stages_of
from astdsl.lang.indices import as_index
from astdsl.lang.names import BlockFunction, BlockNames
from astdsl.lang.refs import Ref
from astdsl.lang.shapes import as_shape
from astdsl.lang.tracing import fault, must_be_used, require_trace, used
from astdsl.lang.values import Literal
from astdsl.lang.warpgroups import axis_index, axis_size
from astdsl.records import dataclass

_CARRY = "carry"


def emit_pipeline(
    body: Callable[..., Any],
    *,
    grid: Any,
    in_specs: Sequence[BlockSpec] = (),
    out_specs: Sequence[BlockSpec] = (),
    max_concurrent_steps: Any = "auto",
    init_carry: Any = None,
) -> Callable[..., Any]:
    """Return a function of refs that runs `body(indices, *blocks)` for every step of `grid`.

    It takes a ref for each of `in_specs`, then of `out_specs`; the blocks are refs too, each the
    window that its `BlockSpec` gives. Steps run in order, in this block. With `init_carry` the body
    takes it last and returns the next one, and the function returns the last one.
    `max_concurrent_steps` is `stages` of `pipeline`. Errors: BadPipeline, TypeMismatch.
    """
    require_function(body, "`body` of `emit_pipeline`")
    specs = (*_specs("in_specs", in_specs), *_specs("out_specs", out_specs))
    counts = grid if isinstance(grid, tuple | list) else (grid,)
    axes = [_range("`grid` of `emit_pipeline`", count) for count in counts]
    stages = stages_of(max_concurrent_steps, "max_concurrent_steps")
    for number, spec in enumerate(specs):
        spec.require_fits(stages, is_output=number >= len(in_specs))

    def run(*refs: Any) -> Any:
        used(run)
        _require_refs(refs, len(specs))
        carry = init_carry

        def step(indices: tuple[Any, ...]) -> None:
            nonlocal carry
            blocks = [spec.window(ref, indices) for spec, ref in zip(specs, refs, strict=True)]
            if init_carry is None:
                body(indices, *blocks)
            else:
                carry = body(indices, *blocks, carry)

        placement = (SEQUENTIAL,) * len(axes)
        trace_pipeline(axes, _block(step), is_single=False, placement=placement, stages=stages)
        return carry

    must_be_used(
        run,
        "what `emit_pipeline` returns is never called, so no step of it runs",
        "`emit_pipeline(body, grid=..., in_specs=..., out_specs=...)(x, o)` calls it on the refs",
    )
    return run


def _specs(name: str, specs: object) -> Sequence[BlockSpec]:
    if isinstance(specs, tuple | list) and all(isinstance(spec, BlockSpec) for spec in specs):
        return specs
    raise fault(
        TypeMismatch,
        f"`{name}` of `emit_pipeline` takes a list of `BlockSpec`, got {specs!r}",
        help=f"one for each array, `{name}=[BlockSpec((64, 64), lambda i: (i, 0))]`",
    )


def _range(what: str, count: Any) -> tuple[Any, Any, Any]:
    return Literal(0), as_index(count, what), Literal(1)


def _require_refs(refs: tuple[Any, ...], wanted: int) -> None:
    if len(refs) != wanted or not all(isinstance(ref, Ref) for ref in refs):
        raise fault(
            TypeMismatch,
            f"the pipeline takes {in_words(wanted, 'ref')}, one for each `BlockSpec`, got "
            f"{in_words(len(refs), 'value')}",
            help="pass arrays of global memory, inputs first",
        )


def _block(step: Callable[..., Any]) -> BlockFunction:
    """Return a function of ours as a block; it carries the name `carry` from step to step."""
    carried = frozenset({_CARRY}).intersection(step.__code__.co_freevars)
    names = BlockNames(
        bound=tuple(carried),
        read=step.__code__.co_freevars,
        exposed=carried,
        after=carried,
        span=require_trace("a pipeline").locate(),
    )
    return BlockFunction(step, names)  # type: ignore[arg-type]  # a function by its definition


@dataclass(frozen=True, slots=True)
class NDLoopInfo:
    """A step of `nd_loop`: its index along each axis, its number here, and how many are here."""

    index: tuple[Any, ...]
    local_index: Any
    num_local_steps: Any


class _LoopBody(BlockFunction):
    """The body of a `for` over `nd_loop`: it takes what a step is, and not its number."""

    __slots__ = ("_loop",)

    def __init__(self, body: BlockFunction, loop: NDLoop) -> None:
        super().__init__(body._function, body.names, body._arguments, body._through)
        self._loop = loop

    def bind(self, *arguments: object) -> BlockFunction:
        """Return the block as one step."""
        return super().bind(self._loop.info(arguments[0]))

    def call(self, *arguments: object) -> Any:
        """Run the block."""
        return super().call(*(self._loop.info(x) for x in arguments))


class NDLoop:
    """What `nd_loop` gives: it decorates a body, or is what a `for` runs through."""

    __slots__ = ("_carry", "_first", "_grid", "_size", "_steps", "_tile")

    def __init__(
        self, grid: tuple[Any, ...], axes: Sequence[str], carry: Any, tile: tuple[int, ...]
    ) -> None:
        self._grid, self._carry, self._tile = grid, carry, tile
        self._first, self._size = 0, 1
        for axis in axes:
            extent = axis_size(axis)
            self._first = self._first * extent + axis_index(axis)
            self._size = self._size * extent
        self._steps = -((self._first - math.prod(grid)) // self._size)

    def info(self, number: Any) -> NDLoopInfo:
        """Return the step that is `number`-th here."""
        linear = number * self._size + self._first
        index = _tiled(linear, self._grid, self._tile) if self._tile else _index(linear, self._grid)
        return NDLoopInfo(index, number, self._steps)

    def _trace(self, body: BlockFunction) -> None:
        used(self)
        trace_for(*_range("the number of steps of `nd_loop`", self._steps), body)

    def __kernel_for__(self, body: BlockFunction) -> None:
        if self._carry is not None:
            raise fault(
                BadPipeline,
                "`init_carry` is for a function that `nd_loop` decorates",
                help="a `for` carries the names that its body assigns",
            )
        self._trace(_LoopBody(body, self))

    def __iter__(self) -> NoReturn:
        raise fault(
            BadPipeline,
            "the steps of `nd_loop` are run by a `for` of the kernel",
            help="`for info in nd_loop(...):` is a loop in the kernel, `info.index` is where it "
            "stands; `for i in unroll(range(n))` copies its body, for lists of what it makes",
        )

    def __call__(self, body: Callable[..., Any]) -> Any:
        """Run `body(info)` for every step; with a carry, `body(info, carry)`, which returns it."""
        require_function(body, "what `nd_loop` is given")
        carry = self._carry

        def step(number: Any) -> None:
            nonlocal carry
            info = self.info(number)
            if self._carry is None:
                body(info)
            else:
                carry = body(info, carry)

        self._trace(_block(step))
        return carry


def _index(linear: Any, extents: Sequence[Any]) -> tuple[Any, ...]:
    """Return the index of an element by its number, row-major."""
    rest, index = linear, []
    for extent in reversed(extents[1:]):
        index.append(rest % extent)
        rest = rest // extent
    return (rest, *reversed(index))


def _tiled(linear: Any, grid: Sequence[Any], tile: Sequence[int]) -> tuple[Any, ...]:
    """Return the index where tiles follow each other, row-major like what is in them.

    A slab is all that has the same tile number along the axes so far; the last one may be thinner.
    """
    rest = linear
    starts: list[Any] = []
    sides: list[Any] = []
    for axis, (extent, side) in enumerate(zip(grid, tile, strict=True)):
        slab = math.prod(sides) * side * math.prod(grid[axis + 1 :])
        starts.append(rest // slab * side)
        rest = rest % slab
        is_whole = isinstance(extent, int) and extent % side == 0
        sides.append(side if is_whole else minimum(side, extent - starts[-1]))
    return tuple(a + b for a, b in zip(starts, _index(rest, sides), strict=True))


def nd_loop(
    grid: Any, *, collective_axes: Any = None, tiling: Any = None, init_carry: Any = None
) -> NDLoop:
    """Share the steps of a grid among those along `collective_axes`, each running its own in order.

    Step `wave * size + index` of the flattened grid, row-major, is run by number `index` of `size`;
    an axis is one of `parallel(names=)`, or "wg". With `tiling`, an extent for each axis, the grid
    is walked tile by tile, row-major like the steps in a tile, so that steps which run at the same
    time are neighbours along every axis; tiles at an edge are smaller. `info.index` is the place in
    the grid either way. Write `for info in nd_loop(grid):`, or decorate a function of the
    `NDLoopInfo`. Errors: BadPipeline, ShapeMismatch, UnknownName.
    """
    counts = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
    if not counts:
        raise fault(BadPipeline, "`nd_loop` takes one axis or more", help="`nd_loop((m, n))`")
    extents = tuple(
        x.number if isinstance(x, Literal) else x
        for x in (as_index(count, "an axis of `nd_loop`") for count in counts)
    )
    axes = (collective_axes,) if isinstance(collective_axes, str) else tuple(collective_axes or ())
    made = NDLoop(extents, axes, init_carry, _tile_of(tiling, extents))
    must_be_used(
        made,
        "no `for` runs through this `nd_loop`, so no step of it runs",
        "`for info in nd_loop(grid):` runs the block below it for every step",
    )
    return made


def _tile_of(tiling: Any, grid: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the extents of a tile, no larger than the grid where that is known."""
    if tiling is None:
        return ()
    sides = as_shape(tiling, "`tiling` of `nd_loop`")
    if len(sides) != len(grid) or 0 in sides:
        raise fault(
            ShapeMismatch,
            f"`tiling` of `nd_loop` takes {in_words(len(grid), 'extent')} of 1 or more, one for "
            "each axis of "
            f"the grid, got {sides}",
            help="1 along an axis leaves it as it is",
        )
    pairs = zip(sides, grid, strict=True)
    return tuple(min(side, n) if isinstance(n, int) and n else side for side, n in pairs)
