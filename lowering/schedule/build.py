"""Writing index arithmetic and regions in passes.

Invariant: a `Maker` appends to one list of operations, all with one span.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value
from astdsl.ir.dtypes import boolean, i32, i64, u32, u64
from astdsl.ir.rewrite import clone_op
from astdsl.ir.types import INDEX, TileType, scalar
from astdsl.lowering.windows import Forms
from astdsl.source import Span

AnyOp = TypeVar("AnyOp", bound=Op)


class Maker:
    """Appends operations to a list; numbers are i64 scalars."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.ops: list[Op] = []

    def add_op(self, op: AnyOp) -> AnyOp:
        """Append an operation made elsewhere."""
        self.ops.append(op)
        return op

    def number(self, value: int, kind: TileType = INDEX) -> Value:
        """Write a constant."""
        return self.add_op(ops.Constant(span=self.span, value=value, type=kind)).result

    def binary(self, kind: type[ops.Binary], x: Value, y: Value) -> Value:
        """Write an arithmetic operation."""
        return self.add_op(kind(span=self.span, x=x, y=y)).result

    def add(self, x: Value, y: Value) -> Value:
        """Write `x + y`."""
        return self.binary(ops.Add, x, y)

    def subtract(self, x: Value, y: Value) -> Value:
        """Write `x - y`."""
        return self.binary(ops.Subtract, x, y)

    def multiply(self, x: Value, y: Value) -> Value:
        """Write `x * y`."""
        return self.binary(ops.Multiply, x, y)

    def divide(self, x: Value, y: Value) -> Value:
        """Write `x // y`."""
        return self.binary(ops.FloorDivide, x, y)

    def remainder(self, x: Value, y: Value) -> Value:
        """Write `x % y`."""
        return self.binary(ops.Remainder, x, y)

    def minimum(self, x: Value, y: Value) -> Value:
        """Write the smaller of two."""
        return self.binary(ops.Minimum, x, y)

    def maximum(self, x: Value, y: Value) -> Value:
        """Write the larger of two."""
        return self.binary(ops.Maximum, x, y)

    def compare(self, predicate: str, x: Value, y: Value) -> Value:
        """Write a comparison."""
        op = ops.Compare(span=self.span, x=x, y=y, predicate=predicate)
        return self.add_op(op).result

    def none_is_negative(self, numbers: Sequence[Value]) -> Value:
        """Write whether all numbers are 0 or more: a sign bit stays in `or`."""
        first, *others = numbers
        for other in others:
            first = self.binary(ops.BitOr, first, other)
        return self.compare("ge", first, self.number(0))

    def true(self) -> Value:
        """Write the condition that always holds."""
        return self.number(True, scalar(boolean))

    def to_i32(self, x: Value) -> Value:
        """Write `x` as i32."""
        return self.add_op(ops.Cast(span=self.span, x=x, dtype=i32)).result

    def to_u32(self, x: Value) -> Value:
        """Write `x` as u32."""
        return self.add_op(ops.Cast(span=self.span, x=x, dtype=u32)).result

    def to_u64(self, x: Value) -> Value:
        """Write `x` as u64."""
        return self.add_op(ops.Cast(span=self.span, x=x, dtype=u64)).result

    def to_index(self, x: Value) -> Value:
        """Write `x` as i64."""
        return self.add_op(ops.Cast(span=self.span, x=x, dtype=i64)).result

    def digits(self, number: Value, counts: Sequence[Value]) -> list[Value]:
        """Write where a step is along each axis; `counts` are the steps of all but the first.

        The last axis is the fastest.
        """
        found, rest = list[Value](), number
        for count in reversed(counts):
            quotient = self.divide(rest, count)
            found.insert(0, self.subtract(rest, self.multiply(quotient, count)))
            rest = quotient
        return [rest, *found]

    def trip_count(self, low: Value, high: Value, step: Value) -> Value:
        """Write `len(range(low, high, step))`: `max(0, ceil((high - low) / step))`, any sign."""
        distance = self.subtract(high, low)
        negated = self.add_op(ops.Negate(span=self.span, x=distance)).result
        quotient = self.divide(negated, step)
        count = self.add_op(ops.Negate(span=self.span, x=quotient)).result
        return self.maximum(count, self.number(0))

    def when(
        self,
        condition: Value,
        write: Callable[[Maker], object],
        write_otherwise: Callable[[Maker], object] = lambda _maker: None,
    ) -> None:
        """Do what `write` writes where `condition` holds, else what the other one does."""
        then, otherwise = Maker(self.span), Maker(self.span)
        write(then)
        write_otherwise(otherwise)
        op = ops.If(
            span=self.span, condition=condition, then=then.block(), otherwise=otherwise.block()
        )
        self.add_op(op)

    def block(self, values: Sequence[Value] = (), args: Sequence[Value] = ()) -> Block:
        """Return what was written as a region that yields `values`."""
        end = ops.Yield(span=self.span, values=tuple(values))
        return Block(args=tuple(args), ops=(*self.ops, end))


def select(maker: Maker, condition: Value, x: Value, y: Value) -> Value:
    """Write `x` where `condition` holds, else `y`."""
    op = ops.Select(span=maker.span, condition=condition, x=x, y=y)
    return maker.add_op(op).result


def loop(
    maker: Maker,
    count: Value,
    initial: Sequence[Value],
    write: Callable[[Maker, Value, Sequence[Value]], Sequence[Value]],
    hint: str = "s",
) -> tuple[Value, ...]:
    """Append a `For` over `range(count)`; `write(body, index, carried)` returns what is carried."""
    index = Value(INDEX, hint)
    carried = [Value(v.type, v.hint) for v in initial]
    body = Maker(maker.span)
    leaving = write(body, index, carried)
    zero, one = maker.number(0), maker.number(1)
    op = ops.For(
        span=maker.span,
        initial=tuple(initial),
        low=zero,
        high=count,
        step=one,
        body=body.block(leaving, [index, *carried]),
    )
    results: tuple[Value, ...] = maker.add_op(op).results
    return results


def recompute(
    maker: Maker, value: Value, forms: Forms, unavailable: set[Value], made: dict[Value, Value]
) -> Value:
    """Write the index arithmetic that gives a value where it is not available.

    `made` holds what stands for some values already, and receives what is written.
    """
    if value in made or value not in unavailable:
        return made.get(value, value)
    op = forms.makers[value]
    for operand in op.operands:
        recompute(maker, operand, forms, unavailable, made)
    mapping = {v: made.get(v, v) for v in op.operands}
    made[value] = maker.add_op(clone_op(op, mapping)).result
    return made[value]
