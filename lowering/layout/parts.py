"""Layouts of parts and of wholes in which no element leaves its thread, where there is one.

Invariant: what is returned is checked with the plan of the moves; None where elements would move.
"""

from __future__ import annotations

from collections.abc import Sequence

from astdsl.lowering.layout.conversion import Moves, part_moves, slice_moves
from astdsl.lowering.layout.registers import Digit, Layout, normalised


def sliced(
    layout: Layout, starts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]
) -> Layout | None:
    """Return how the threads that hold a tile hold a slice of it: in some of its registers."""
    if 0 in sizes:
        return None
    registers, threads = list(layout.registers), list(layout.threads)
    for axis, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        if (size, step) == (layout.shape[axis], 1):
            continue
        cut = _cut(registers, threads, axis, (size, step))
        if cut is None:
            return None
        registers, threads = cut
    found = normalised(Layout(sizes, tuple(registers), tuple(threads)))
    stays = isinstance(slice_moves(normalised(layout), found, starts, steps), Moves)
    return found if stays else None


def _cut(
    registers: Sequence[Digit], threads: Sequence[Digit], axis: int, part: tuple[int, int]
) -> tuple[list[Digit], list[Digit]] | None:
    """Return digits of `size` elements, `step` apart: those of threads are all within."""
    size, step = part
    if step < 1 or any(
        d.axis == axis and (d.stride % step or d.stride * d.extent > size * step) for d in threads
    ):
        return None
    kept = []
    for digit in registers:
        if digit.axis != axis:
            kept.append(digit)
            continue
        low, high = max(digit.stride, step), min(digit.stride * digit.extent, size * step)
        if high > low:
            kept.append(Digit(-(-high // low), axis, low // step))
    own = [Digit(d.extent, axis, d.stride // step) if d.axis == axis else d for d in threads]
    return kept, own


def extended(part: Layout, shape: tuple[int, ...], starts: tuple[int, ...]) -> Layout | None:
    """Return how the threads that hold a part hold a whole of `shape`: in further registers."""
    registers = list(part.registers)
    for axis, (own, whole) in enumerate(zip(part.shape, shape, strict=True)):
        if own == whole:
            continue
        if part.padded[axis] != own:
            return None
        registers.append(Digit(-(-whole // own), axis, own))
    found = normalised(Layout(shape, tuple(registers), part.threads))
    return found if isinstance(part_moves(normalised(part), found, starts), Moves) else None
