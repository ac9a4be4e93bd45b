"""How an axis of a tile is spread over registers, lanes and warps, from neighbours upwards.

Invariant: level k joins `extent` runs of `stride` neighbouring elements each into one run, so that
walking the levels in order goes through the axis from its first element to its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from astdsl.lowering.layout.registers import REPLICATED, WARP_THREADS, Layout


class Holder(Enum):
    """Who holds the runs of a level."""

    REGISTERS = "registers"
    LANES = "lanes"
    WARPS = "warps"


@dataclass(frozen=True, slots=True)
class Level:
    """Runs told apart by `number // divisor % extent` of a register or thread number.

    `stride` is from one run to the next, in elements along `axis`.
    """

    holder: Holder
    divisor: int
    extent: int
    axis: int
    stride: int

    @property
    def is_copy(self) -> bool:
        """Whether the threads hold the same elements."""
        return self.axis == REPLICATED


def thread_levels(layout: Layout) -> list[Level]:
    """Return the digits of the threads, cut where a warp ends."""
    found, divisor = [], 1
    for digit in layout.threads:
        lanes = min(digit.extent, max(1, WARP_THREADS // divisor))
        assert digit.extent % lanes == 0, f"{digit} crosses the border of a warp"
        warps, stride = digit.extent // lanes, digit.stride * lanes
        found.append(Level(Holder.LANES, divisor, lanes, digit.axis, digit.stride))
        found.append(Level(Holder.WARPS, divisor * lanes, warps, digit.axis, stride))
        divisor *= digit.extent
    return [level for level in found if level.extent > 1]


def register_levels(layout: Layout) -> list[Level]:
    """Return the digits of the registers."""
    found, divisor = [], 1
    for digit in layout.registers:
        found.append(Level(Holder.REGISTERS, divisor, digit.extent, digit.axis, digit.stride))
        divisor *= digit.extent
    return found


def levels_along(layout: Layout, axis: int) -> list[Level] | None:
    """Return the levels of an axis in order, None where runs interleave."""
    every = (*register_levels(layout), *thread_levels(layout))
    found = sorted((v for v in every if v.axis == axis), key=lambda level: level.stride)
    return found if _are_nested(found) else None


def _are_nested(levels: Sequence[Level]) -> bool:
    covered = 1
    for level in levels:
        if level.stride < covered:
            return False
        covered = level.stride * level.extent
    return True
