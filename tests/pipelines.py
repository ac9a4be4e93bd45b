"""Pipelines of the IR, by parameters: grids, stages, revisits, carried tiles, products, branches.

Invariant: every number that a module computes is a small integer, so that the order of sums does
not show, and every module is one that the language accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from astdsl.ir import ops
from astdsl.ir.core import IN, INOUT, OUT, SCALAR, Module, Value
from astdsl.ir.dtypes import DType, f16
from astdsl.ir.ops.control import INFERRED, SEQUENTIAL
from astdsl.ir.types import INDEX
from tests.building import Maker, gmem

# How a case sums its steps: in a carried tile, in a window of the output that the first step
# clears, or onto what the output held; or a product summed in a carried tile.
CARRIED, REVISITED, UPDATED, PRODUCT = "carried", "revisited", "updated", "product"
KINDS = (CARRIED, REVISITED, UPDATED, PRODUCT)
# What stands around the pipeline of the steps: nothing, a loop, a branch, a pipeline whose index
# moves the windows and the number of steps.
PLAIN, LOOP, BRANCH, NEST = "plain", "loop", "branch", "nest"
AROUND = (PLAIN, LOOP, BRANCH, NEST)
# How the steps of a carried tile are cut into parts: not, in so many, or with those of all tiles.
STREAM = "stream"
SPLITS = (0, 2, 5, STREAM)
DEPTH = 16
ROW_ELEMENTS = 8


@dataclass(frozen=True)
class Case:
    """One pipeline of `trips` steps in each block of the output, and the extents of a run."""

    kind: str
    around: str
    dtype: DType
    block: tuple[int, int]
    trips: int
    is_dynamic: bool
    stages: int
    rows: int
    columns: int
    has_branch: bool
    has_second: bool
    shift: int
    is_inner_axis: bool
    has_tma: bool
    load_stages: int = 0
    split: int | str = 0

    @property
    def module(self) -> Module:
        """The module of this case."""
        return _Writer(self).module()

    @property
    def operand_dtype(self) -> DType:
        """The dtype of what is read; a product of it is of `dtype`."""
        return f16 if self.kind == PRODUCT else self.dtype

    def arguments(self) -> list[Any]:
        """Return arrays of small integers: x by steps, y, the output; and the number of steps."""
        rng = np.random.default_rng(0)
        steps = max(self.trips, 1)
        shapes = [(steps, self.rows, self.columns), (self.rows, self.columns)]
        if self.kind == PRODUCT:
            shapes = [(steps, self.rows, DEPTH), (DEPTH * steps, self.columns)]
        kind = self.operand_dtype.numpy
        x, y = (_integers(rng, shape, kind) for shape in shapes)
        o = _integers(rng, (self.rows, self.columns), self.dtype.numpy)
        return [x, y, o, self.trips]


def _integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return small integers whose rows are 16-byte multiples apart, as TMA needs them."""
    padded = (*shape[:-1], -(-shape[-1] // ROW_ELEMENTS) * ROW_ELEMENTS)
    return rng.integers(-4, 5, padded).astype(dtype)[..., : shape[-1]]


class _Writer:
    def __init__(self, case: Case) -> None:
        self.case = case
        three, two, out = (
            replace(gmem(dtype, *(None,) * rank), tma=case.has_tma)
            for dtype, rank in ((case.operand_dtype, 3), (case.operand_dtype, 2), (case.dtype, 2))
        )
        role = INOUT if case.kind == UPDATED else OUT
        self.around: Value | None = None
        self.m = Maker(("x", IN, three), ("y", IN, two), ("o", role, out), ("n", SCALAR, INDEX))

    def cdiv(self, extent: Value, block: int) -> Value:
        m = self.m
        return m.make(ops.FloorDivide, m.make(ops.Add, extent, m.index(block - 1)), m.index(block))

    def module(self) -> Module:
        """Write the whole module."""
        m, case = self.m, self.case
        grid = [self.cdiv(m.make(ops.Dim, ref=m["o"], axis=a), b) for a, b in enumerate(case.block)]
        trips = m["n"] if case.is_dynamic else m.index(case.trips)
        is_carried = case.kind in (CARRIED, PRODUCT)
        if case.is_inner_axis and not is_carried:
            with self.pipeline([*grid, trips]) as (i, j, k):
                self.visit(i, j, k)
        else:
            with self.pipeline(grid) as (i, j):
                (self.carried if is_carried else self.visited)(i, j, trips)
        return m.module("sums")

    @property
    def parts(self) -> dict[str, Any]:
        """The fields of the pipeline of the steps that say how it is cut; in a loop it is not."""
        split = self.case.split if self.case.around == PLAIN else 0
        return {"streams": True} if split == STREAM else {"split": split}

    @contextmanager
    def pipeline(self, trips: list[Value]) -> Iterator[tuple[Value, ...]]:
        """Open a pipeline without carried values."""
        with self.m.pipeline(*trips, axes=INFERRED, stages=self.case.stages) as indices:
            yield indices

    def starts(self, i: Value, j: Value) -> tuple[Value, Value]:
        m = self.m
        rows, columns = self.case.block
        row = m.make(ops.Multiply, i, m.index(rows))
        column = m.make(ops.Multiply, j, m.index(columns))
        return row, column

    def step(self, i: Value, j: Value, k: Value) -> Value:
        """Return what one step adds."""
        m, case = self.m, self.case
        row, column = self.starts(i, j)
        if self.around is not None:
            k = m.make(ops.Add, k, self.around)
        if case.kind == PRODUCT:
            return self.product(row, column, k)
        shifted = m.make(ops.Add, column, m.index(case.shift)) if case.shift else column
        first = self.load_step(k, row, shifted, case.block)
        if case.has_second:
            first = m.make(ops.Add, first, m.load(m["y"], (row, column), case.block))
        return self.branch(k, first) if case.has_branch else first

    def load_step(self, k: Value, row: Value, column: Value, block: tuple[int, int]) -> Value:
        return self.m.make(ops.Load, ref=self.m["x"], starts=(k, row, column), sizes=(1, *block),
                           steps=(1, 1, 1), kept=(False, True, True),
                           stages=self.case.load_stages)  # fmt: skip

    def product(self, row: Value, column: Value, k: Value) -> Value:
        m, (rows, columns) = self.m, self.case.block
        a = self.load_step(k, row, m.index(0), (rows, DEPTH))
        at = m.make(ops.Multiply, k, m.index(DEPTH))
        b = m.load(m["y"], (at, column), (DEPTH, columns))
        return m.make(ops.Dot, a=a, b=b, dtype=self.case.dtype)

    def branch(self, k: Value, value: Value) -> Value:
        m = self.m
        even = m.make(ops.Compare, m.make(ops.Remainder, k, m.index(2)), m.index(0), predicate="eq")
        with m.region() as then:
            m.yields(m.make(ops.Add, value, value))
        with m.region() as otherwise:
            m.yields(value)
        return m.make(ops.If, condition=even, then=then.block, otherwise=otherwise.block)

    def carried(self, i: Value, j: Value, trips: Value) -> None:
        """Sum the steps in a carried tile, and store it."""
        start = self.m.full(0, self.case.dtype, *self.case.block)
        total = _AROUND[self.case.around](self, start, lambda v: self.sum_onto(v, i, j, trips))
        self.m.store(self.m["o"], self.starts(i, j), total)

    def sum_onto(self, start: Value, i: Value, j: Value, trips: Value) -> Value:
        """Return `start` and all steps."""
        m, case = self.m, self.case
        zero, one = m.index(0), m.index(1)
        if self.around is not None:
            fewer = m.make(ops.Multiply, self.around, m.index(2))
            trips = m.make(ops.Subtract, m.make(ops.Add, trips, m.index(1)), fewer)
        with m.region(INDEX, start.type) as body:
            k, total = body.args
            m.yields(m.make(ops.Add, total, self.step(i, j, k)))
        return m.make(ops.Pipeline, initial=(start,), lows=(zero,), highs=(trips,), steps=(one,),
                      body=body.block, axes=(SEQUENTIAL,), stages=case.stages,
                      **self.parts)  # fmt: skip

    def plain(self, start: Value, write: Callable[[Value], Value]) -> Value:
        return write(start)

    def loop(self, start: Value, write: Callable[[Value], Value]) -> Value:
        """Run the pipeline twice."""
        m = self.m
        low, high, step = m.index(0), m.index(2), m.index(1)
        with m.region(INDEX, start.type) as body:
            m.yields(write(body.args[1]))
        return m.make(ops.For, initial=(start,), low=low, high=high, step=step, body=body.block)

    def nested(self, start: Value, write: Callable[[Value], Value]) -> Value:
        """Run the pipeline three times, each time further along and with two steps less."""
        m = self.m
        low, high, step = m.index(0), m.index(3), m.index(1)
        with m.region(INDEX, start.type) as body:
            self.around, value = body.args
            m.yields(write(value))
        return m.make(ops.Pipeline, initial=(start,), lows=(low,), highs=(high,), steps=(step,),
                      body=body.block, axes=(SEQUENTIAL,), stages=self.case.stages)  # fmt: skip

    def conditional(self, start: Value, write: Callable[[Value], Value]) -> Value:
        """Run the pipeline if there is more than one step."""
        m = self.m
        condition = m.make(ops.Compare, m["n"], m.index(1), predicate="gt")
        with m.region() as then:
            m.yields(write(start))
        with m.region() as otherwise:
            m.yields(start)
        return m.make(ops.If, condition=condition, then=then.block, otherwise=otherwise.block)

    def visited(self, i: Value, j: Value, trips: Value) -> None:
        """Add the steps to a window of the output."""
        with self.pipeline([trips]) as (k,):
            self.visit(i, j, k)

    def visit(self, i: Value, j: Value, k: Value) -> None:
        m, case = self.m, self.case
        window = self.starts(i, j)
        if case.kind == REVISITED:
            first = m.make(ops.Compare, k, m.index(0), predicate="eq")
            with m.region() as then:
                m.store(m["o"], window, m.full(0, case.dtype, *case.block))
                m.yields()
            m.op(ops.If, condition=first, then=then.block, otherwise=m.empty())
        old = m.load(m["o"], window, case.block)
        m.store(m["o"], window, m.make(ops.Add, old, self.step(i, j, k)))


_AROUND = {PLAIN: _Writer.plain, LOOP: _Writer.loop, BRANCH: _Writer.conditional,
           NEST: _Writer.nested}  # fmt: skip
