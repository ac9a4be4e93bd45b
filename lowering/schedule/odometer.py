"""Counting through the steps of several axes, without dividing.

Invariant: `numbers` are the step numbers along each axis of one linear step, the last axis
fastest; along a single axis they are the linear step itself, and nothing is carried.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.ir.core import Value
from astdsl.lowering.schedule.build import Maker, select


class Odometer:
    """The step numbers of a pipeline's axes, carried from step to step."""

    def __init__(self, counts: Sequence[Value]) -> None:
        self.counts = counts

    def start(self, maker: Maker) -> list[Value]:
        """Return what is carried into the first step."""
        return [maker.number(0) for _ in self.counts] if len(self.counts) > 1 else []

    def numbers(self, linear: Value, carried: Sequence[Value]) -> Sequence[Value]:
        """Return the step number along each axis."""
        return carried if len(self.counts) > 1 else [linear]

    def advance(self, maker: Maker, carried: Sequence[Value]) -> list[Value]:
        """Return what is carried into the next step."""
        if len(self.counts) < 2:
            return []
        moved: list[Value] = []
        carry = maker.number(1)
        for number, count in zip(reversed(carried), reversed(self.counts), strict=True):
            following = maker.add(number, carry)
            wraps = maker.compare("ge", following, count)
            zero, one = maker.number(0), maker.number(1)
            moved.append(select(maker, wraps, zero, following))
            carry = select(maker, wraps, one, zero)
        return moved[::-1]
