"""Tracing branches: both sides become regions, and names hold what they join to.

Invariant: each side starts from the same names and objects; after it a name holds what both sides
agree on, or an object that refuses each use with the places involved. Names that are surely not
read again are not joined.
"""

from __future__ import annotations

import types
from collections.abc import Container, Iterator, Mapping
from typing import Any

from astdsl.errors import BranchMismatch, KernelError, NotConstant
from astdsl.ir import ops
from astdsl.ir.builder import OpenBlock
from astdsl.ir.core import PURE, READS, Value
from astdsl.ir.types import CONDITION
from astdsl.lang.elementwise import as_tile, constant
from astdsl.lang.joining import LeafType, converted, join, met_edges, result_tile
from astdsl.lang.leaves import Differs, Leaf, is_leaf, is_same, pairs, rebuild
from astdsl.lang.names import (
    MISSING,
    RESULT,
    BlockFunction,
    Unusable,
    require_usable,
    restore,
    states,
    unchanged_objects,
    unusable,
    write_cell,
)
from astdsl.lang.operands import Effects
from astdsl.lang.tracing import emit, fault, require_trace
from astdsl.lang.values import Tile
from astdsl.records import dataclass, replace
from astdsl.source import NOWHERE, Span


def negated(value: object) -> Tile:
    """Return `not value` of a kernel value."""
    return ~as_condition(value, "the operand of `not`", BY_ELEMENT["not"])


# What acts on tiles where Python's words take one bool.
BY_ELEMENT = {
    "if": "`where(mask, x, y)` chooses by element",
    "not": "`~mask` acts by element",
    "and": "`(a > 0) & (a < 3)` and `|` act by element, with the parentheses",
}


def as_condition(
    value: object, what: str = "a condition", by_element: str = BY_ELEMENT["if"]
) -> Tile:
    """Return a bool scalar: of a number whether it is not 0. Errors: NotConstant of tiles."""
    require_usable(value)
    tile = as_tile(value, what)
    if tile.shape:
        raise fault(
            NotConstant,
            f"{what} is one bool, got {tile}",
            (tile.value, "it comes from here"),
            help=f"{by_element}; `mask.any()`, `mask.all()` are one bool",
        )
    if tile.value.type == CONDITION:
        return tile
    made = tile != 0
    assert isinstance(made, Tile), "comparisons of tiles are tiles"
    return made


def call_unless(stopped: Any, block: BlockFunction) -> None:
    """Run a block unless a flag is set: by Python if it knows, else as a branch."""
    if stopped is False:
        block.call()
    elif stopped is not True:
        trace_branches(~as_condition(stopped), block, None)


@dataclass(slots=True)
class Side:
    """One branch: its region, still open for conversions, and what it leaves in each name."""

    region: OpenBlock
    left: dict[str, Any]


def trace_branches(condition: Tile, then: BlockFunction, otherwise: BlockFunction | None) -> None:
    """Trace `if condition: then() else: otherwise()` for a kernel condition.

    Names that both sides leave with types that join hold the result; of others each later use is
    refused. Errors: HiddenMutation, OutsideLost.
    """
    blocks = [then] if otherwise is None else [then, otherwise]
    cells = {name: cell for block in blocks for name, cell in block.cells.items()}
    before = states(cells)
    sides = [_trace_side(block, cells, before) for block in (then, otherwise)]
    after = frozenset(name for block in blocks for name in block.names.after)
    merge_sides(as_condition(condition), (sides[0], sides[1]), cells, after, then.span)


def _trace_side(
    block: BlockFunction | None, cells: dict[str, types.CellType], before: dict[str, Any]
) -> Side:
    builder = require_trace("a branch").builder
    with builder.block() as region:
        if block is None:
            return Side(region, before)
        with unchanged_objects(block):
            block.call()
    left = states(cells)
    restore(cells, before)
    return Side(region, left)


def merge_sides(
    condition: Tile,
    sides: tuple[Side, Side],
    cells: dict[str, types.CellType],
    after: frozenset[str],
    header: Span,
) -> None:
    """Emit the `If` of two traced branches, and let names hold what it leaves."""
    merge = Merge(condition, sides[0].region, sides[1].region)
    plans = _planned(merge, sides, cells, after, header)
    merge.finish()
    _take(merge, plans, cells)


def _planned(
    merge: Merge,
    sides: tuple[Side, Side],
    cells: Mapping[str, types.CellType],
    after: Container[str],
    header: Span,
    *,
    may_miss: bool = False,
) -> dict[str, Any]:
    """Return where the merge will find each name that the sides leave with two values."""
    plans: dict[str, Any] = {}
    for name, cell in cells.items():
        x, y = sides[0].left[name], sides[1].left[name]
        if is_same(x, y):
            write_cell(cell, x)
        elif name not in after:
            cell.cell_contents = _left_by_one(name, header)
        else:
            plans[name] = _plan(merge, name, x, y, header, may_miss or name == RESULT)
    return plans


def _take(merge: Merge, plans: Mapping[str, Any], cells: Mapping[str, types.CellType]) -> None:
    for name, plan in plans.items():
        cells[name].cell_contents = plan if type(plan) is Unusable else merge.take(plan)


def choose(
    condition: Tile,
    then: Side,
    x: Any,
    otherwise: Side,
    y: Any,
    effects: Effects | None,
    *,
    may_miss: bool = False,
) -> Any:
    """Return `x if condition else y`, each computed in the region of its side.

    Names that evaluating them assigned hold what the side that is evaluated leaves; with `may_miss`
    one that a side leaves without a value is not read where that side is the one.
    """
    merge = Merge(condition, then.region, otherwise.region)
    try:
        plan = merge.add("the expression", x, y)
    except Differs as found:
        raise fault(
            BranchMismatch,
            f"the conditional expression is {said(found.left)} or {said(found.right)}",
            help="both sides need one shape and dtype: convert one with `astype`",
        ) from None
    cells = effects.cells if effects is not None else {}
    here = require_trace("a choice").locate()
    plans = _planned(merge, (then, otherwise), cells, cells, here, may_miss=may_miss)
    merge.finish()
    _take(merge, plans, cells)
    return merge.take(plan)


def both(x: Tile, mark: int, y: object, effects: Effects | None = None) -> Any:
    """Return `x and y`; `y` was computed since `mark`, and if that acts, only where x holds."""
    return _short_circuit(x, mark, y, effects, is_and=True)


def either(x: Tile, mark: int, y: object, effects: Effects | None = None) -> Any:
    """Return `x or y`; `y` was computed since `mark`, and if that acts, only where x fails."""
    return _short_circuit(x, mark, y, effects, is_and=False)


def _short_circuit(x: Tile, mark: int, y: object, effects: Effects | None, *, is_and: bool) -> Any:
    builder = require_trace("`and`").builder
    acts = {op.effect for op in builder.current.ops[mark:]} - {PURE, READS}
    before = effects.before if effects is not None else {}
    left = effects.taken_back() if effects is not None else {}
    # A name that held nothing before is not read where the operand is not evaluated.
    kept = [name for name in left if before[name] is not MISSING]
    assigns = not all(is_same(left[name], before[name]) for name in kept)
    if is_bool(x) and is_bool(y) and not acts and not assigns:
        if effects is not None:
            restore(effects.cells, left)
        return x & y if is_and else x | y
    then = Side(builder.cut(mark), left)
    condition = as_condition(x, "an operand of `and` or `or`", BY_ELEMENT["and"])
    with builder.block() as empty:
        pass
    condition = condition if is_and else ~condition
    return choose(condition, then, y, Side(empty, before), x, effects, may_miss=True)


def is_bool(value: object) -> bool:
    """Whether a value is one bool, Python's or the kernel's."""
    return type(value) is bool or (type(value) is Tile and value.value.type == CONDITION)


def _plan(merge: Merge, name: str, x: Any, y: Any, header: Span, may_miss: bool) -> Any:
    """Return where the merged value will be found, or what refuses the name's use."""
    for value in (x, y):
        if type(value) is Unusable:
            return value
    if (x is MISSING or y is MISSING) and not may_miss:
        return _left_by_one(name, header)
    try:
        return merge.add(name, x, y)
    except Differs as found:
        if name == RESULT:
            raise _two_returns(found) from None
        return _mismatch(name, found, header)


def _left_by_one(name: str, header: Span) -> Unusable:
    return unusable(
        BranchMismatch,
        f"`{name}` is assigned on one path only",
        (header, "in a branch of this"),
        help=f"assign `{name}` before the `if`, or in both branches",
    )


ONE_OBJECT = (
    "only tiles and numbers may differ where the running kernel decides: let a keyword-only "
    "constant choose, or do on each path what the object is for"
)


def _mismatch(name: str, found: Differs, header: Span) -> Unusable:
    where = f"`{name}{found.path}`"
    return unusable(
        BranchMismatch,
        f"{where} is {said(found.left)} on one path and {said(found.right)} on the other",
        (header, "the paths meet behind this"),
        *_made_places(found),
        help=ONE_OBJECT
        if not (is_leaf(found.left) or is_leaf(found.right))
        else "convert one with `astype`, or give the name one shape and dtype on both paths",
    )


def _two_returns(found: Differs) -> KernelError:
    return fault(
        BranchMismatch,
        f"the function returns {said(found.left)} on one path and {said(found.right)} on another",
        *((x.value, "returned") for x in (found.left, found.right) if type(x) is Tile),
        help="return values of one shape and dtype on every path",
    )


def _made_places(found: Differs) -> Iterator[tuple[Span, str]]:
    made = require_trace("a name").made
    for value in (found.left, found.right):
        span = made.get(value.value, NOWHERE) if type(value) is Tile else NOWHERE
        if span is not NOWHERE:
            yield span, f"{said(value)} comes from here"


def said(value: object) -> str:
    """Say what a value is, in a message."""
    if value is MISSING:
        return "not assigned"
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    return str(value) if type(value) is Tile else f"a {type(value).__name__}"


class Merge:
    """Collects the leaves that two branches leave, and emits the `If` that yields them."""

    def __init__(self, condition: Tile, then: OpenBlock, otherwise: OpenBlock) -> None:
        self._condition = condition
        self._regions = (then, otherwise)
        self._leaves: list[tuple[str, LeafType, Leaf, Leaf]] = []
        self._results: tuple[Value, ...] = ()

    def add(self, name: str, x: Any, y: Any) -> tuple[Any, dict[str, int]]:
        """Add a name's values; raise Differs where they have no common type."""
        x, y = self._filled(x, y, 0), self._filled(y, x, 1)
        found: dict[str, int] = {}
        for path, left, right in list(pairs(x, y)):
            if is_same(left, right):
                continue
            wanted = join(LeafType.of(left), LeafType.of(right))
            if wanted is None:
                raise Differs(path, left, right)
            edges = met_edges(name, left, right)
            found[path] = len(self._leaves)
            self._leaves.append((name, replace(wanted, edges=edges), left, right))
        return x, found

    def _filled(self, value: Any, other: Any, side: int) -> Any:
        """Return what stands for a missing result: zeros like the other side's."""
        if value is not MISSING:
            return value
        builder = require_trace("a branch").builder
        with builder.reopened(self._regions[side]):
            return blank(other)

    def finish(self) -> None:
        """Emit the conversions into both regions, and the `If`."""
        builder = require_trace("a branch").builder
        for side, region in enumerate(self._regions):
            with builder.reopened(region):
                values = [converted(pair[side], t) for _, t, *pair in self._leaves]
                emit(ops.Yield, values=tuple(values))
        then, otherwise = (region.block for region in self._regions)
        self._results = emit(
            ops.If, condition=self._condition.value, then=then, otherwise=otherwise
        ).results
        for value, (name, *_) in zip(self._results, self._leaves, strict=True):
            value.hint = name

    def take(self, plan: tuple[Any, dict[str, int]]) -> Any:
        """Return the value of a name after the branches."""
        template, found = plan
        paths = iter([path for path, *_ in pairs(template, template)])

        def merged(leaf: Leaf) -> object:
            index = found.get(next(paths))
            if index is None:
                return leaf
            _, wanted, left, right = self._leaves[index]
            return result_tile(self._results[index], wanted, left, right, self._condition)

        return rebuild(template, merged)


def blank(value: Any) -> Any:
    """Return a value of the same structure with zeros in place of tiles."""

    def zeros(leaf: Leaf) -> object:
        if type(leaf) is not Tile:
            return leaf
        made = LeafType.of(leaf)
        return replace(made, edges=type(made.edges)()).tile(constant(0, made.shape, made.dtype))

    return rebuild(value, zeros)
