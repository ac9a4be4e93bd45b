"""Which elements of a tile lie outside the array that it was read from.

Invariant: a tile's elements are inside where every one of its half spaces holds. Below lang nothing
knows of this: reductions and products receive masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from astdsl.lang.symbolic import Form
from astdsl.records import dataclass, replace

# What the elements outside hold: zeros as they were read; what an ordinary element would hold
# there (zeros were added to it); or numbers that mean nothing.
ZERO, KEPT, LOST = "zero", "kept", "lost"
# Operands without an edge there: one that has elements of its own, one that repeats elements, and
# a finite number (0 itself is ZERO).
PLAIN, REPEATED, FINITE = "plain", "repeated", "finite"


@dataclass(frozen=True, slots=True)
class HalfSpace:
    """The condition `form + step * index >= 0` on the index along `axis`.

    With `axis` None the whole tile is inside or outside: an integer dropped the axis. Nothing
    reduces along it, so what lies outside reads as zero and may be forgotten.

    One that is not certain holds for elements of one branch, where the other has elements of its
    own: a store may drop what lies outside, and no mask can be made of it.
    """

    form: Form
    axis: int | None
    step: int = 0
    is_certain: bool = True

    def holds_for(self, extent: int) -> bool:
        """Whether the condition is proved for every index below `extent`."""
        least = min(0, self.step * (extent - 1))
        return (self.form + Form.of(least)).is_nonnegative()


class Edges:
    """The half spaces of a tile, each with what the elements that violate it hold."""

    __slots__ = ("outside",)

    def __init__(self, outside: Mapping[HalfSpace, str] | None = None) -> None:
        self.outside = dict(outside or {})

    def __bool__(self) -> bool:
        return bool(self.outside)

    def __iter__(self) -> Iterator[HalfSpace]:
        return iter(self.outside)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Edges) and self.outside == other.outside

    def __hash__(self) -> int:
        return hash(frozenset(self.outside.items()))

    def along(self, axes: Sequence[int]) -> list[HalfSpace]:
        """Return the half spaces that depend on one of `axes`."""
        return [h for h in self.outside if h.axis in axes]

    def moved(self, change: Callable[[HalfSpace], HalfSpace | None]) -> Edges:
        """Return edges with each half space changed, or left out where `change` gives None."""
        changed = ((change(h), state) for h, state in self.outside.items())
        return Edges({h: state for h, state in changed if h is not None})

    def renumbered(self, new_axes: Mapping[int, int]) -> Edges:
        """Return edges with axes renamed; half spaces of axes not named are left out."""

        def change(h: HalfSpace) -> HalfSpace | None:
            if h.axis is None:
                return h
            axis = new_axes.get(h.axis)
            return None if axis is None else replace(h, axis=axis)

        return self.moved(change)

    def sliced(self, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Edges:
        """Return the edges of a slice, without those that the slice is proved inside of."""

        def change(h: HalfSpace) -> HalfSpace | None:
            if h.axis is None:
                return h
            start, step = starts[h.axis], steps[h.axis]
            moved = replace(h, form=h.form + Form.of(h.step * start), step=h.step * step)
            return None if moved.holds_for(sizes[h.axis]) else moved

        return self.moved(change)

    def broadcast(self, old: Sequence[int], new: Sequence[int]) -> Edges:
        """Return the edges after a broadcast; an axis of extent 1 decides about a whole row."""
        shift = len(new) - len(old)

        def change(h: HalfSpace) -> HalfSpace:
            if h.axis is None:
                return h
            stretched = old[h.axis] == 1 and new[h.axis + shift] != 1
            return replace(h, axis=h.axis + shift, step=0 if stretched else h.step)

        return self.moved(change)


NO_EDGES = Edges()
StateRule: TypeAlias = Callable[..., str]


def combine(rule: StateRule, *operands: tuple[Edges, str]) -> Edges:
    """Return the edges of an elementwise operation: inside is where every operand is.

    Each operand comes with what it holds where it has no edge. `rule` says what the result holds
    there from what the operands hold.
    """
    # In the order of the operands: what is traced must not depend on how objects hash.
    every = dict.fromkeys(h for edges, _ in operands for h in edges)
    return Edges({h: rule(*(e.outside.get(h, plain) for e, plain in operands)) for h in every})


def lost(*states: str) -> str:
    """Say that the outside means nothing any more."""
    del states
    return LOST


def all_zero(*states: str) -> str:
    """Zeros give zeros: of a function with f(0, ...) = 0."""
    return ZERO if set(states) == {ZERO} else LOST


def sum_state(x: str, y: str) -> str:
    """Adding zeros to a tile of its own elements changes nothing."""
    if x == y == ZERO:
        return ZERO
    return KEPT if ZERO in (x, y) and {x, y} <= {ZERO, KEPT, PLAIN} else LOST


def difference_state(x: str, y: str) -> str:
    """Subtracting zeros changes nothing."""
    if x == y == ZERO:
        return ZERO
    return KEPT if y == ZERO and x in (KEPT, PLAIN) else LOST


def product_state(x: str, y: str) -> str:
    """Zero times a finite number is zero; times infinity it is not."""
    return ZERO if ZERO in (x, y) and {x, y} <= {ZERO, FINITE} else LOST


def quotient_state(x: str, y: str) -> str:
    """Zero over a finite number that is not zero is zero."""
    return ZERO if (x, y) == (ZERO, FINITE) else LOST


def choice_state(condition: str, x: str, y: str) -> str:
    """Choose between zeros: zero, whatever chooses."""
    del condition
    return ZERO if x == y == ZERO else LOST


def same(state: str) -> str:
    """Keep what the outside holds: of conversions."""
    return state
