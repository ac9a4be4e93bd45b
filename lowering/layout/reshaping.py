"""Reshapes in which no element leaves its thread: a digit of one axis is a digit of another.

Invariant: register k of what is returned holds the element that register k of the layout holds,
axes of extent 1 left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astdsl.lowering.layout.registers import REPLICATED, Digit, Layout, normalised


def reshaped(layout: Layout, shape: tuple[int, ...]) -> Layout | None:
    """Return the layout of the same registers under another shape, None where digits do not fit.

    Axes of extent 1 come and go. Axes that are merged are whole; one that is split is so where
    digits end, or within digits whose runs the new axes divide.
    """
    result = layout.without(a for a, n in enumerate(layout.shape) if n == 1)
    wanted = tuple(n for n in shape if n != 1)
    if result.shape != wanted:
        found = _regrouped(result, wanted)
        if found is None:
            return None
        result = found
    for axis, extent in enumerate(shape):
        if extent == 1:
            result = result.expanded(axis)
    return result


def _regrouped(layout: Layout, shape: tuple[int, ...]) -> Layout | None:
    if 0 in (*layout.shape, *shape):
        return None
    places: list[tuple[int, list[tuple[int, int]]]] = [(0, [])] * len(layout.shape)
    for old, new in _groups(layout.shape, shape):
        if any(layout.padded[axis] != layout.shape[axis] for axis in old[1:]):
            return None
        targets = _runs(shape, new)
        step = 1
        for axis in reversed(old):
            places[axis] = (step, targets)
            step *= layout.shape[axis]
    digits = []
    for of in (layout.registers, layout.threads):
        moved = [_moved(digit, places) for digit in of]
        if not all(moved):
            return None
        digits.append(tuple(part for parts in moved for part in parts))
    found = normalised(Layout(shape, digits[0], digits[1]))
    inner = (axis for _, new in _groups(layout.shape, shape) for axis in new[1:])
    return found if all(found.padded[axis] == shape[axis] for axis in inner) else None


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the axes, of either shape, that together have as many elements: the least groups."""
    i = j = 0
    while i < len(old):
        mine, theirs = [i], [j]
        have, want = old[i], new[j]
        while have != want:
            if have < want:
                i += 1
                mine.append(i)
                have *= old[i]
            else:
                j += 1
                theirs.append(j)
                want *= new[j]
        yield mine, theirs
        i, j = i + 1, j + 1


def _runs(shape: Sequence[int], axes: Sequence[int]) -> list[tuple[int, int]]:
    """Return (axis, neighbours in one step along it) of a group's axes, the fastest first."""
    found, step = [], 1
    for axis in reversed(axes):
        found.append((axis, step))
        step *= shape[axis]
    return found


def _moved(digit: Digit, places: Sequence[tuple[int, list[tuple[int, int]]]]) -> list[Digit]:
    """Return a digit as those of the new axes, fastest first; none where it does not fit."""
    if digit.axis == REPLICATED:
        return [digit]
    step, targets = places[digit.axis]
    stride, left = digit.stride * step, digit.extent
    found: list[Digit] = []
    ends = [run for _, run in targets[1:]]
    for (axis, run), end in zip(targets, [*ends, None], strict=True):
        if end is not None and stride >= end:
            continue
        if stride % run:
            return []
        if end is None or stride * left <= end:
            return [*found, Digit(left, axis, stride // run)]
        here, rest = divmod(end, stride)
        if rest or left % here:
            return []
        found.append(Digit(here, axis, stride // run))
        stride, left = end, left // here
    raise AssertionError("the last axis of a group has no end")
