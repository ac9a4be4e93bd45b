"""A short way to write modules in tests: one method for each operation, a span for each line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from astdsl.ir import ops
from astdsl.ir.builder import Builder, OpenBlock
from astdsl.ir.core import IN, OUT, Block, Module, Op, Param, Value
from astdsl.ir.dtypes import DType
from astdsl.ir.types import CONDITION, GMEM, INDEX, RefType, TileType, Type
from astdsl.source import Span


def gmem(dtype: DType, *shape: int | None) -> RefType:
    """Return the type of a contiguous array of global memory."""
    strides: list[int | None] = [1]
    for extent in reversed(shape[1:]):
        inner = strides[0]
        strides.insert(0, None if extent is None or inner is None else extent * inner)
    return RefType(shape, dtype, GMEM, tuple(strides[: len(shape)]), align_bytes=16)


class Maker:
    """Builds one module; every operation gets a line of its own in its span."""

    def __init__(self, *params: tuple[str, str, Type], **initial: float) -> None:
        self.lines = 0
        self.params = tuple(
            Param(value=Value(kind, name), name=name, role=role, span=self.span(),
                  initial=initial.get(name))
            for name, role, kind in params
        )  # fmt: skip
        self.builder = Builder([p.value for p in self.params])

    def span(self) -> Span:
        """Return a span on a new line."""
        self.lines += 1
        return Span("kernel.py", self.lines, 4, self.lines, 9)

    def __getitem__(self, name: str) -> Value:
        """Return a parameter's value."""
        return next(p.value for p in self.params if p.name == name)

    def op(self, kind: type[Op], /, **fields: Any) -> Op:
        """Append an operation."""
        return self.builder.add(kind(span=self.span(), **fields))

    def make(self, kind: type[Op], /, *operands: Value, **fields: Any) -> Value:
        """Append an operation and return its only result; operands fill x, y, z."""
        return self.op(kind, **dict(zip("xyz", operands, strict=False)), **fields).result

    def index(self, value: int) -> Value:
        """Make an i64 constant."""
        return self.make(ops.Constant, value=value, type=INDEX)

    def flag(self, value: bool) -> Value:
        """Make a bool constant."""
        return self.make(ops.Constant, value=value, type=CONDITION)

    def full(self, value: float, dtype: DType, *shape: int) -> Value:
        """Make a constant tile."""
        return self.make(ops.Constant, value=value, type=TileType(shape, dtype))

    def window(self, ref: Value, starts: Sequence[Value | int], sizes: Sequence[int]) -> Any:
        """Return the fields of a window whose axes are all kept, in steps of 1."""
        values = tuple(self.index(s) if isinstance(s, int) else s for s in starts)
        ones, kept = (1,) * len(sizes), (True,) * len(sizes)
        return {"ref": ref, "starts": values, "sizes": tuple(sizes), "steps": ones, "kept": kept}

    def load(self, ref: Value, starts: Sequence[Value | int], sizes: Sequence[int]) -> Value:
        """Load a window."""
        return self.make(ops.Load, **self.window(ref, starts, sizes))

    def store(self, ref: Value, starts: Sequence[Value | int], value: Value) -> Op:
        """Store a tile to a window of its shape."""
        return self.op(ops.Store, **self.window(ref, starts, value.tile.shape), value=value)

    @contextmanager
    def region(self, *types: Type) -> Iterator[OpenBlock]:
        """Open a region; the test ends it with `yields`."""
        with self.builder.block(types) as opened:
            yield opened

    def yields(self, *values: Value) -> None:
        """End the open region."""
        self.op(ops.Yield, values=values)

    def empty(self) -> Block:
        """Make a region that does nothing."""
        with self.region() as opened:
            self.yields()
        return opened.block

    @contextmanager
    def pipeline(
        self, *trips: Value | int, axes: str = "inferred", stages: int = 0
    ) -> Iterator[tuple[Value, ...]]:
        """Open a pipeline over counts without carried values; its region ends by itself."""
        highs = tuple(self.index(t) if isinstance(t, int) else t for t in trips)
        zero, one = self.index(0), self.index(1)
        with self.region(*(INDEX,) * len(trips)) as body:
            yield body.args
            self.yields()
        count = len(trips)
        self.op(ops.Pipeline, initial=(), lows=(zero,) * count, highs=highs, steps=(one,) * count,
                body=body.block, axes=(axes,) * count, stages=stages)  # fmt: skip

    def module(self, name: str = "kernel") -> Module:
        """Finish the module."""
        return Module(name=name, params=self.params, body=self.builder.finish(), span=self.span())


def add_module(dtype: DType, block: tuple[int, int]) -> Module:
    """Return `o = x + y` over arrays of any shape, in blocks."""
    kind = gmem(dtype, None, None)
    m = Maker(("x", IN, kind), ("y", IN, kind), ("o", OUT, kind))
    trips = [_blocks(m, m.make(ops.Dim, ref=m["x"], axis=a), n) for a, n in enumerate(block)]
    with m.pipeline(*trips, axes="spread") as indices:
        starts = [m.make(ops.Multiply, i, m.index(n)) for i, n in zip(indices, block, strict=True)]
        total = m.make(ops.Add, m.load(m["x"], starts, block), m.load(m["y"], starts, block))
        m.store(m["o"], starts, total)
    return m.module("add")


def _blocks(m: Maker, extent: Value, block: int) -> Value:
    return m.make(ops.FloorDivide, m.make(ops.Add, extent, m.index(block - 1)), m.index(block))


def matmul_module(dtype: DType, target: DType, block: tuple[int, int, int]) -> Module:
    """Return `c = a @ b` over arrays of any shape, in blocks (m, n, k)."""
    m = Maker(
        ("a", IN, gmem(dtype, None, None)),
        ("b", IN, gmem(dtype, None, None)),
        ("c", OUT, gmem(target, None, None)),
    )
    bm, bn, bk = block
    rows, depth = (m.make(ops.Dim, ref=m["a"], axis=a) for a in (0, 1))
    columns = m.make(ops.Dim, ref=m["b"], axis=1)
    trips = [_blocks(m, rows, bm), _blocks(m, columns, bn)]
    with m.pipeline(*trips, axes="spread") as (i, j):
        row, column = m.make(ops.Multiply, i, m.index(bm)), m.make(ops.Multiply, j, m.index(bn))
        zero, one = m.index(0), m.index(1)
        start = m.full(0.0, target, bm, bn)
        high = _blocks(m, depth, bk)
        with m.region(INDEX, start.type) as body:
            k, total = body.args
            at = m.make(ops.Multiply, k, m.index(bk))
            a = m.load(m["a"], (row, at), (bm, bk))
            b = m.load(m["b"], (at, column), (bk, bn))
            product = m.make(ops.Dot, a=a, b=b, dtype=target)
            m.yields(m.make(ops.Add, total, product))
        inner = m.op(ops.Pipeline, initial=(start,), lows=(zero,), highs=(high,), steps=(one,),
                     body=body.block, axes=("sequential",), stages=4)  # fmt: skip
        m.store(m["c"], (row, column), inner.result)
    return m.module("matmul")
