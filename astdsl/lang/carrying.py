"""The names that a loop carries: found by tracing its body until their types settle.

Invariant: in the trace that is kept, every name that steps change is a block argument of the type
that a step leaves; a name that no step changes is used as it is.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

from astdsl.errors import BranchMismatch, KernelError, OutOfScope
from astdsl.ir import ops
from astdsl.ir.builder import OpenBlock
from astdsl.ir.core import Block, Op, Value
from astdsl.ir.types import INDEX
from astdsl.lang.branching import blank, said
from astdsl.lang.joining import LeafType, carried_edges, converted, join
from astdsl.lang.leaves import Differs, Leaf, is_same, leaves, pairs, rebuild
from astdsl.lang.names import (
    MISSING,
    RESULT,
    BlockFunction,
    Unusable,
    Watch,
    require_usable,
    restore,
    states,
    unusable,
    write_cell,
)
from astdsl.lang.tracing import Trace, emit, require_trace
from astdsl.lang.values import Tile
from astdsl.records import dataclass, field, replace
from astdsl.source import Span

# Each trace of a body settles at least one type; a nest of that many weak numbers is not written.
MOST_TRACES = 16


@dataclass(slots=True)
class Carried:
    """A name that a loop may carry: its value before, and the type of each leaf.

    The type of a leaf that steps do not change is None: it is used as it is.
    """

    name: str
    before: Any
    types: list[LeafType | None]
    is_result: bool = False

    def typed(self) -> list[LeafType]:
        """Return the types of the leaves that are carried."""
        return [t for t in self.types if t is not None]

    def with_leaves(self, made: Callable[[LeafType, Leaf], object]) -> Any:
        """Return the value before with each carried leaf replaced."""
        types = iter(self.types)

        def replaced(leaf: Leaf) -> object:
            wanted = next(types)
            return leaf if wanted is None else made(wanted, leaf)

        return rebuild(self.before, replaced)


@dataclass(slots=True)
class Loop:
    """A loop to be traced: how one step runs, and what becomes of it.

    `run` traces a step from its index values; `make` emits the operation from the initial values
    and the body. `watch` is of the objects that the step traced last can reach.
    """

    what: str
    span: Span
    blocks: Sequence[BlockFunction]
    cells: dict[str, types.CellType]
    exposed: frozenset[str]
    after: frozenset[str]
    run: Callable[[tuple[Value, ...]], None]
    make: Callable[[tuple[Value, ...], Block], Op]
    indices: int = 0
    before: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, Unusable] = field(default_factory=dict)
    given: dict[str, list[Value | None]] = field(default_factory=dict)
    watch: Watch = field(init=False)

    def trace(self) -> None:
        """Trace the body until the types of what it carries settle, and emit the operation."""
        self.before = states(self.cells)
        carried = [c for name in self.cells if (c := self._candidate(name)) is not None]
        for _ in range(MOST_TRACES):
            try:
                region, after = self._step(carried)
            except KernelError as error:
                carried = self._with_numbers(carried, error)
                continue
            again = self._settle(carried, after)
            if again is None:
                return self._finish(carried, region, after)
            carried = again
        raise AssertionError(f"the types that {self.what} carries do not settle")

    def _with_numbers(self, carried: list[Carried], error: KernelError) -> list[Carried]:
        """Return what to carry after a step failed: the numbers that steps change, as they are not.

        In the first try a number that is counted up stands there as the constant that it was
        before. Errors: that of the step, where no number of Python's is changed, or an object is.
        """
        guessed = [
            replace(
                c,
                types=[t or _of_number(x) for t, x in zip(c.types, leaves(c.before), strict=True)],
            )
            for c in carried
        ]
        is_new = any(new.types != old.types for new, old in zip(guessed, carried, strict=True))
        if not is_new or self.watch.change() is not None:
            raise error
        try:
            _, after = self._step(guessed)
            found = self._settle(guessed, after)
        except (KernelError, *_OF_A_TILE):
            raise error from None
        kept = guessed if found is None else found
        if sum(len(c.typed()) for c in kept) <= sum(len(c.typed()) for c in carried):
            raise error
        return kept

    def _candidate(self, name: str) -> Carried | None:
        value = self.before[name]
        if value is MISSING or type(value) is Unusable or name not in self.exposed | self.after:
            return None
        types = [LeafType.of(leaf) if type(leaf) is Tile else None for leaf in leaves(value)]
        return Carried(name, value, types)

    def _step(self, carried: list[Carried]) -> tuple[OpenBlock, dict[str, Any]]:
        """Trace the body once; return its region, left without an end, and what names held then.

        They hold again what they did before, and so they do where it fails.
        """
        trace = require_trace(self.what)
        unused = dict(trace.unused)
        try:
            region = self._region(trace, carried)
            return region, states(self.cells)
        except KernelError:
            trace.unused = unused
            raise
        finally:
            restore(self.cells, self.before)

    def _region(self, trace: Trace, carried: list[Carried]) -> OpenBlock:
        """Trace the body into a region. Errors: also HiddenMutation."""
        typed = [(c.name, t) for c in carried for t in c.typed()]
        all_types = [*[INDEX] * self.indices, *(t.type for _, t in typed)]
        hints = [*[""] * self.indices, *(name for name, _ in typed)]
        with trace.builder.block(all_types, hints) as region:
            trace.made.update(dict.fromkeys(region.args, self.span))
            values = iter(region.args[self.indices :])
            for c in carried:
                given = [None if t is None else next(values) for t in c.types]
                self.given[c.name] = given
                arguments = iter([v for v in given if v is not None])
                made = c.with_leaves(lambda t, _: t.tile(next(arguments)))  # noqa: B023
                self.cells[c.name].cell_contents = made
            self.watch = Watch(*self.blocks)
            with trace.loop():
                self.run(region.args[: self.indices])
            self.watch.require_unchanged()
        return region

    def _settle(self, carried: list[Carried], after: dict[str, Any]) -> list[Carried] | None:
        """Return what to carry in the next try, None if the types hold."""
        again = [self._joined(c, after[c.name]) for c in carried]
        result = after.get(RESULT, MISSING)
        is_new = result is not MISSING and all(c.name != RESULT for c in carried)
        if is_new and self.before[RESULT] is MISSING:
            # A `return` in the loop: before the first step the result is anything of its type.
            types = [LeafType.of(leaf) for leaf in leaves(result)]
            again.append(Carried(RESULT, result, [*types], is_result=True))
        kept = [c for c in again if c is not None]
        same = len(kept) == len(carried) and all(
            new.types == old.types for new, old in zip(kept, carried, strict=True)
        )
        return None if same else kept

    def _joined(self, c: Carried, value: Any) -> Carried | None:
        """Return the name with its types brought together with those after a step."""
        if type(value) is Unusable:
            self._drop(c, value)
            return None
        try:
            found = list(pairs(c.before, value))
            known = zip(c.types, self.given[c.name], found, strict=True)
            types = [self._joined_leaf(c, *leaf) for leaf in known]
        except Differs as problem:
            self._drop(c, self._mismatch(c, problem))
            return None
        return replace(c, types=types)

    def _joined_leaf(
        self, c: Carried, old: LeafType | None, given: Value | None, pair: tuple[str, Leaf, Leaf]
    ) -> LeafType | None:
        """Return the type of a leaf, None if each step leaves the one that it was given."""
        path, before, after = pair
        if not c.is_result and (_is_kept(given, before, after) or is_same(before, after)):
            return None
        first = old if c.is_result and old is not None else LeafType.of(before)
        wanted = join(old or first, LeafType.of(after))
        if wanted is None:
            raise Differs(path, before, after)
        edges = carried_edges(c.name, first.edges, LeafType.of(after).edges, after)
        return replace(wanted, edges=edges)

    def _mismatch(self, c: Carried, problem: Differs) -> Unusable:
        made = require_trace(self.what).made
        places = [
            (made[x.value], f"{said(x)} comes from here")
            for x in (problem.left, problem.right)
            if type(x) is Tile and x.value in made
        ]
        message = (
            f"`{c.name}{problem.path}` is {said(problem.left)} before {self.what}, and "
            f"{said(problem.right)} after a step"
        )
        return unusable(
            BranchMismatch,
            message,
            *places,
            note="carried by this" if c.name in self.exposed else "used here",
            help="a carried name keeps its shape and dtype: convert with `astype`, or start with "
            "a value of the type that a step gives",
        )

    def _drop(self, c: Carried, refusal: Unusable) -> None:
        """Do not carry a name: an error at once if steps read it, else where it is used."""
        if c.name in self.exposed:
            require_usable(refusal)
        self.refused[c.name] = refusal

    def _finish(self, carried: list[Carried], region: OpenBlock, after: dict[str, Any]) -> None:
        """End the region, emit the operation, and let names hold what they carried."""
        builder = require_trace(self.what).builder
        with builder.reopened(region):
            values = [v for c in carried for v in _converted(c, after[c.name])]
            emit(ops.Yield, values=tuple(values))
        initial = [
            v for c in carried for v in _converted(c, blank(c.before) if c.is_result else c.before)
        ]
        results = iter(self.make(tuple(initial), region.block).results)
        for c in carried:
            write_cell(self.cells[c.name], c.with_leaves(lambda t, _: t.tile(next(results))))
        for name in self.cells.keys() - {c.name for c in carried}:
            if not is_same(self.before[name], after[name]):
                refusal = self.refused[name] if name in self.refused else self._local(name)
                write_cell(self.cells[name], refusal)

    def _local(self, name: str) -> Unusable:
        return unusable(
            OutOfScope,
            f"`{name}` is assigned inside {self.what}, and no value of it is kept",
            (self.span, "assigned in this"),
            help=f"define `{name}` before {self.what} to carry it from step to step",
        )


# What Python raises where it needs a number and is given a tile, which ends no recursion either.
_OF_A_TILE = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip


def _of_number(leaf: Leaf) -> LeafType | None:
    """Return the type of a number of Python's, None of anything else."""
    return LeafType.of(leaf) if type(leaf) in (int, float) else None


def _is_kept(given: Value | None, before: Leaf, after: Leaf) -> bool:
    """Whether a step leaves what it was given, or what stood before where it was given nothing."""
    if type(after) is not Tile:
        return False
    own, is_weak = (before.value, before.weak) if type(before) is Tile else (None, True)
    # A weak number that a step gives a dtype is another number, though its value is the same.
    return after.value is (own if given is None else given) and after.weak == is_weak


def _converted(c: Carried, value: Any) -> list[Value]:
    """Return the values of the leaves that are carried, in their types."""
    return [
        converted(leaf, wanted)
        for wanted, leaf in zip(c.types, leaves(value), strict=True)
        if wanted is not None
    ]


def loop_of(what: str, blocks: Sequence[BlockFunction], **fields: Any) -> Loop:
    """Return a loop over what blocks bind and need; the first one's header is its place."""
    cells = {name: cell for block in blocks for name, cell in block.cells.items()}
    exposed = frozenset[str]().union(*(b.names.exposed for b in blocks))
    after = frozenset[str]().union(*(b.names.after for b in blocks))
    return Loop(what, blocks[0].span, blocks, cells, exposed, after, **fields)
