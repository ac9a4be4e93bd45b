"""Loops of the plain witness that are functions: they run a body for every step of a grid."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fuzz.plain.memory import Ref, ds, tile
from tests.fuzz.plain.numbers import Unknown
from tests.fuzz.plain.tiles import STEPS

NUMBER = itertools.count()


def steps(items: Iterable[Any]) -> Iterator[Any]:
    """Yield items, each as a step with a number of its own."""
    for item in items:
        STEPS.append(next(NUMBER))
        yield item
        STEPS.pop()


def pipeline(*axes: Any, **options: Any) -> Iterator[Any]:
    counts = [a if isinstance(a, range) else range(int(a)) for a in axes]
    for at in itertools.product(*counts):
        yield at[0] if len(at) == 1 else at


@dataclass(frozen=True)
class Element:
    """So many elements, from where the index map says."""

    size: int


class BlockSpec:
    """A block of an array: its extents and where it is."""

    def __init__(self, shape: Sequence[Any], place: Callable[..., Any], oob_fill: int = 0) -> None:
        self.shape, self.place, self.fill = shape, place, oob_fill

    def of(self, ref: Ref, at: tuple[Any, ...]) -> Ref:
        if self.fill:
            raise Unknown("elements outside that are as stated")
        pairs = zip(self.shape, self.place(*at), strict=True)
        return ref.part(tuple(_part(extent, index) for extent, index in pairs))


def _part(extent: Any, index: Any) -> Any:
    if isinstance(extent, Element):
        return ds(index, extent.size)
    return tile(index, extent) if isinstance(extent, int) else int(index)


def emit_pipeline(
    body: Callable[..., Any], *, grid: Any, in_specs: Sequence[BlockSpec],
    out_specs: Sequence[BlockSpec], init_carry: Any = None, **options: Any,
) -> Callable[..., Any]:  # fmt: skip
    """Return a function of arrays, which gives the last carry."""

    def run(*refs: Ref) -> Any:
        carry = init_carry
        for at in steps(itertools.product(*(range(int(n)) for n in grid))):
            pairs = zip([*in_specs, *out_specs], refs, strict=True)
            blocks = [spec.of(ref, at) for spec, ref in pairs]
            carry = body(at, *blocks, *([] if init_carry is None else [carry]))
        return carry

    return run


@dataclass(frozen=True)
class Step:
    """A step of `nd_loop`."""

    index: tuple[int, ...]
    local_index: int


class NDLoop:
    """The steps of a grid, tile by tile; a function runs a body with a carry."""

    def __init__(self, grid: Any, tiling: Any = None, init_carry: Any = None) -> None:
        sides = tiling or (1,) * len(grid)
        indices = itertools.product(*(range(int(n)) for n in grid))
        ordered = sorted(indices, key=lambda at: [i // s for i, s in zip(at, sides, strict=True)])
        self.steps = [Step(at, number) for number, at in enumerate(ordered)]
        self.carry = init_carry

    def deal(self, number: int, count: int) -> None:
        """Keep every `count`-th step, from that of a number on."""
        mine = self.steps[number::count]
        self.steps = [Step(step.index, at) for at, step in enumerate(mine)]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __call__(self, body: Callable[..., Any]) -> Any:
        for step in steps(self.steps):
            self.carry = body(step, self.carry)
        return self.carry


FUNCTIONS: dict[str, Any] = {
    "pipeline": pipeline, "unroll": list, "emit_pipeline": emit_pipeline,
    "BlockSpec": BlockSpec, "Element": Element, "Squeezed": None,
}  # fmt: skip
