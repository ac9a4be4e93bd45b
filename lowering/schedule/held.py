"""Output windows that stay on chip while loops revisit them.

Before
    pipeline (r) { if r == 0 { store o[i], 0 }; store o[i], load o[i] + x[r] }
After
    tile, written = pipeline (r) carries 0, false { ...; yield sum, true }
    if written { store o[i], tile }

Invariant: memory holds what it would have held whenever something else could look: every access
of the array between the first and the last one of the held window is to that window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from astdsl.ir import dtypes, ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.rewrite import clone_op, map_regions, replace_fields, with_ops
from astdsl.ir.types import GMEM, scalar
from astdsl.lowering.schedule.block import inside
from astdsl.lowering.schedule.build import Maker, recompute
from astdsl.lowering.schedule.coverage import same_window
from astdsl.lowering.schedule.outputs import written_before_read
from astdsl.lowering.windows import Forms


def hold_outputs(launch: ops.Launch, unwritten: set[Value]) -> ops.Launch:
    """Return the launch with revisited output windows carried as tiles.

    The arrays in `unwritten` hold nothing when the launch begins.
    """
    forms = Forms(launch.body)

    def change(region: Block) -> Block:
        return _hold(region, forms, unwritten) if region is launch.body else region

    return map_regions(launch, change)


@dataclass(frozen=True, slots=True)
class _Window:
    """A window to hold in a region: its accesses, and whether memory is read first."""

    accesses: tuple[ops.Window, ...]
    loads_first: bool

    @property
    def pattern(self) -> ops.Window:
        """One of the accesses: they are all alike."""
        return self.accesses[0]


def _hold(region: Block, forms: Forms, unwritten: set[Value]) -> Block:
    """Hold what can be held in this region, then in the regions inside it."""
    seen: set[Value] = set()
    # Holding one window makes the operations around it anew, so the next is looked for in those.
    while accesses := next((a for a in _candidates(region, forms) if a[0].ref not in seen), ()):
        seen.add(accesses[0].ref)
        is_written = written_before_read(region, forms)
        loads_first = not all(is_written[a] for a in accesses if isinstance(a, ops.Load))
        if loads_first and accesses[0].ref in unwritten:
            continue  # the loops around the region decide when the window is first written
        region = _Holder(_Window(accesses, loads_first), forms).hold(region)
        forms.learn(region)
    changed = [map_regions(op, lambda inner: _hold(inner, forms, unwritten)) for op in region.ops]
    return with_ops(region, changed)


def _candidates(region: Block, forms: Forms) -> Iterator[tuple[ops.Window, ...]]:
    """Yield the accesses of each array that the region touches in one window, from a loop."""
    by_ref: dict[Value, list[ops.Window]] = {}
    for op in walk(region):
        if isinstance(op, ops.Window) and op.ref.ref.space == GMEM:
            by_ref.setdefault(op.ref, []).append(op)
    for accesses in by_ref.values():
        if _can_hold(accesses, region, forms):
            yield tuple(accesses)


def _can_hold(accesses: list[ops.Window], region: Block, forms: Forms) -> bool:
    first = accesses[0]
    if not all(isinstance(a, (ops.Load, ops.Store)) for a in accesses):
        return False
    stores = [a for a in accesses if isinstance(a, ops.Store)]
    in_loop = any(
        a in walk(body)
        for op in region.ops
        if isinstance(op, ops.Loop)
        for body in op.regions
        for a in accesses
    )
    if not stores or not in_loop or not all(same_window(first, a, forms) for a in accesses):
        return False
    deeper = inside(region) - set(region.args) - {v for op in region.ops for v in op.results}
    sources = {s for start in first.starts for s in forms.sources(start)}
    loads = [a for a in accesses if isinstance(a, ops.Load)]
    return not sources & deeper and all(_only_updates(a, region, forms) for a in loads)


def _only_updates(load: ops.Load, region: Block, forms: Forms) -> bool:
    """Whether what is loaded goes, element by element, back to the same window.

    Elements outside the array are then never looked at: memory would have lost them.
    """
    pending, seen = [load.result], set[Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        for op in walk(region):
            if value not in op.operands:
                continue
            if isinstance(op, ops.Elementwise):
                pending.append(op.result)
            elif not (isinstance(op, ops.Store) and same_window(op, load, forms)):
                return False
    return True


@dataclass(slots=True)
class _Holder:
    """Rewrites one region so that a window is a tile, with a flag whether it was written."""

    window: _Window
    forms: Forms
    values: dict[Value, Value] = field(default_factory=dict)

    def hold(self, region: Block) -> Block:
        """Return the region with the window held from its first access to its last."""
        touching = [k for k, op in enumerate(region.ops) if self._touches(op)]
        first, last = touching[0], touching[-1]
        maker = Maker(self.window.pattern.span)
        maker.ops = list(region.ops[:first])
        starts = self._starts(maker, region)
        tile, written = self._enter(maker, starts)
        tile, written = self._ops(maker, region.ops[first : last + 1], tile, written)
        maker.span = self.window.pattern.span
        maker.when(written, lambda then: then.add_op(self._store(starts, tile)))
        for op in region.ops[last + 1 :]:
            maker.add_op(clone_op(op, self.values))
        return Block(args=region.args, ops=tuple(maker.ops))

    def _touches(self, op: Op) -> bool:
        return op in self.window.accesses or any(
            inner in self.window.accesses for region in op.regions for inner in walk(region)
        )

    def _starts(self, maker: Maker, region: Block) -> tuple[Value, ...]:
        available = set(region.args) | {v for op in maker.ops for v in op.results}
        unavailable = inside(region) - available
        made: dict[Value, Value] = {}
        starts = self.window.pattern.starts
        return tuple(recompute(maker, s, self.forms, unavailable, made) for s in starts)

    def _enter(self, maker: Maker, starts: tuple[Value, ...]) -> tuple[Value, Value]:
        pattern = self.window.pattern
        if self.window.loads_first:
            fields = self._fields(starts)
            tile = maker.add_op(ops.Load(**fields)).result
        else:
            tile = maker.number(0, pattern.window_type)
        tile.hint = f"{pattern.ref.hint}_held"
        return tile, maker.number(False, scalar(dtypes.boolean))

    def _fields(self, starts: tuple[Value, ...]) -> dict[str, Any]:
        pattern = self.window.pattern
        kept = {n: getattr(pattern, n) for n in ("span", "ref", "sizes", "steps", "kept")}
        return kept | {"starts": starts}

    def _store(self, starts: tuple[Value, ...], tile: Value) -> ops.Store:
        return ops.Store(**self._fields(starts), value=tile)

    def _ops(
        self, maker: Maker, program: Sequence[Op], tile: Value, written: Value
    ) -> tuple[Value, Value]:
        for op in program:
            maker.span = op.span
            if op in self.window.accesses:
                tile, written = self._access(maker, op, tile, written)
            elif not self._touches(op):
                maker.add_op(clone_op(op, self.values))
            elif isinstance(op, ops.Loop):
                tile, written = self._loop(maker, op, tile, written)
            else:
                tile, written = self._branches(maker, op, tile, written)
        return tile, written

    def _access(self, maker: Maker, op: Op, tile: Value, written: Value) -> tuple[Value, Value]:
        if isinstance(op, ops.Load):
            self.values[op.result] = tile
            return tile, written
        assert isinstance(op, ops.Store), "an access loads or stores"
        true = maker.number(True, scalar(dtypes.boolean))
        return self.values.get(op.value, op.value), true

    def _region(
        self, region: Block, tile: Value, written: Value, args: Sequence[Value] = ()
    ) -> Block:
        inner = Maker(self.window.pattern.span)
        left = self._ops(inner, region.ops[:-1], tile, written)
        passed = [self.values.get(v, v) for v in ops.yielded(region)]
        return inner.block([*passed, *left], args)

    def _branches(self, maker: Maker, op: Op, tile: Value, written: Value) -> tuple[Value, Value]:
        new = map_regions(op, lambda region: self._region(region, tile, written))
        new = _with_operands(new, self.values)
        return self._results(maker, op, new)

    def _results(self, maker: Maker, old: Op, new: Op) -> tuple[Value, Value]:
        *same, tile, written = maker.add_op(new).results
        self.values.update(zip(old.results, same, strict=True))
        tile.hint = f"{self.window.pattern.ref.hint}_held"
        return tile, written

    def _loop(self, maker: Maker, op: ops.Loop, tile: Value, written: Value) -> tuple[Value, Value]:
        initial = (*(self.values.get(v, v) for v in op.initial), tile, written)

        def change(region: Block) -> Block:
            args = [Value(a.type, a.hint) for a in region.args]
            self.values.update(zip(region.args, args, strict=True))
            held = [Value(tile.type, tile.hint), Value(written.type, "written")]
            if isinstance(op, ops.While) and region is op.condition:
                return Block(args=(*args, *held), ops=self._cloned(region))
            return self._region(region, held[0], held[1], [*args, *held])

        new = _with_operands(map_regions(op, change), self.values)
        return self._results(maker, op, replace_fields(new, initial=initial))

    def _cloned(self, region: Block) -> tuple[Op, ...]:
        return tuple(clone_op(op, self.values) for op in region.ops)


def _with_operands(op: Op, mapping: dict[Value, Value]) -> Op:
    changes = {}
    for name, value in op.values_of("operand"):
        if isinstance(value, tuple):
            changes[name] = tuple(mapping.get(v, v) for v in value)
        else:
            changes[name] = mapping.get(value, value)
    return replace_fields(op, **changes)
