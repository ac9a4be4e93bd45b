"""What two paths leave in one name: the type that both can be brought to.

Invariant: strong dtypes never change when paths meet; weak numbers take the other side's. What lies
outside of ragged tiles is kept apart as long as both sides agree on where that is.
"""

from __future__ import annotations

from astdsl.errors import KernelError, OutsideLost
from astdsl.ir.core import Value
from astdsl.ir.dtypes import BOOL, DType, boolean, f32, i64
from astdsl.ir.types import TileType
from astdsl.lang.elementwise import placed
from astdsl.lang.indices import is_visible
from astdsl.lang.leaves import Leaf
from astdsl.lang.ragged import KEPT, LOST, NO_EDGES, Edges, HalfSpace
from astdsl.lang.symbolic import ANY_INDEX
from astdsl.lang.tracing import fault
from astdsl.lang.values import Tile, as_operand
from astdsl.records import dataclass, replace

NUMBER_TYPES = {bool: boolean, int: i64, float: f32}
WAY_OUT = (
    "`.filled(v)` before makes the elements outside ordinary ones of value v; "
    "adding tiles that were only read keeps them out of the way"
)


@dataclass(frozen=True, slots=True)
class LeafType:
    """The type that a name's value has on one path."""

    shape: tuple[int, ...]
    dtype: DType
    weak: bool
    edges: Edges = NO_EDGES

    @staticmethod
    def of(leaf: Leaf) -> LeafType:
        """Return the type of a tile or Python number."""
        if type(leaf) is Tile:
            return LeafType(leaf.shape, leaf.value.tile.dtype, leaf.weak, leaf.edges)
        dtype = NUMBER_TYPES[type(leaf)]
        return LeafType((), dtype, dtype is not boolean)

    @property
    def type(self) -> TileType:
        """The IR type."""
        return TileType(self.shape, self.dtype)

    def tile(self, value: Value) -> Tile:
        """Return a tile of this type."""
        return Tile(value, weak=self.weak, edges=self.edges)


def join(a: LeafType, b: LeafType) -> LeafType | None:
    """Return the type that values of both types are brought to, None if there is none.

    The edges are those of `a`.
    """
    if a.shape != b.shape:
        return None
    if a.weak and b.weak:
        same = a.dtype if a.dtype is b.dtype else i64
        return replace(a, dtype=f32 if f32 in (a.dtype, b.dtype) else same)
    if a.weak or b.weak:
        weak, strong = (a, b) if a.weak else (b, a)
        fits = strong.dtype.is_float or (weak.dtype is not f32 and strong.dtype.kind != BOOL)
        return replace(a, dtype=strong.dtype, weak=False) if fits else None
    return a if a.dtype is b.dtype else None


def converted(leaf: Leaf, wanted: LeafType) -> Value:
    """Return a leaf's value in the type that was joined for it."""
    return placed(as_operand(leaf, "a carried name"), wanted.dtype, wanted.shape)


def _worse(x: str | None, y: str | None) -> str:
    """Return what the outside holds if either path may have been taken; None: as elsewhere."""
    if LOST in (x, y):
        return LOST
    return x if x is not None and x == y else KEPT


def carried_edges(name: str, first: Edges, again: Edges, value: Leaf) -> Edges:
    """Return the edges of a tile that a loop carries, from those before it and after a step.

    `value` is the one after a step. Half spaces that do not depend on the step are kept, the others
    dropped, which is right where the outside changes nothing. Errors: OutsideLost.
    """
    kept = {}
    for space in {**first.outside, **again.outside}:
        state = _worse(first.outside.get(space), again.outside.get(space))
        if is_visible(space.form):
            kept[space] = state
        elif state == LOST and space.axis is not None:
            raise _lost(name, space, "changes from step to step", value)
    return Edges(kept) if kept else NO_EDGES


def met_edges(name: str, left: Leaf, right: Leaf) -> Edges:
    """Return the edges of a tile that two branches leave. Errors: OutsideLost.

    Where one side's elements outside mean nothing and the other has elements of its own, the half
    space is not certain.
    """
    kept = {}
    one, other = LeafType.of(left).edges, LeafType.of(right).edges
    for space in {**one.outside, **other.outside}:
        states = one.outside.get(space), other.outside.get(space)
        if None not in states and is_visible(space.form):
            kept[space] = _worse(*states)
        elif LOST in states and is_visible(space.form):
            kept[replace(space, is_certain=False)] = LOST
        elif LOST in states and space.axis is not None:
            value = left if one.outside.get(space) == LOST else right
            raise _lost(name, space, "differs between the branches", value)
    return Edges(kept) if kept else NO_EDGES


def _lost(name: str, space: HalfSpace, when: str, value: Leaf) -> KernelError:
    axis = "" if space.axis is None else f" along axis {space.axis}"
    sources = [(value.value, "made here")] if type(value) is Tile else []
    return fault(
        OutsideLost,
        f"which elements of `{name}` lie outside the array{axis} {when}, and they do not hold "
        "what was read",
        *sources,
        help=WAY_OUT,
    )


def result_tile(value: Value, wanted: LeafType, left: Leaf, right: Leaf, condition: Tile) -> Tile:
    """Return the tile of a name after a branch, with what both sides know of it."""
    sides = [as_operand(leaf, "a branch") for leaf in (left, right)]
    made = wanted.tile(value)
    every = [condition.dims, *(side.dims for side in sides)]
    if all(dims is not None for dims in every):
        made.dims = frozenset[tuple[str, int]]().union(*(d for d in every if d is not None))
    if wanted.weak and wanted.dtype is i64:
        bounds = [side.bounds for side in sides]
        made.bounds = (min(low for low, _ in bounds), max(high for _, high in bounds))
    else:
        made.bounds = ANY_INDEX
    return made
