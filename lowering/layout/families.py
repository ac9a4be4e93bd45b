"""Which tiles are held alike, along which axes some are folded, and what is broadcast to them.

Tiles that meet in elementwise operations, or that loops and branches pass on, are a family: one
layout serves all of them. What is made anew where it is used (constants, index tiles,
broadcasts) belongs to none.

Invariant: tiles of a family have the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.types import TileType

Same: TypeAlias = Iterator[tuple[Value, Value]]
_NONE: frozenset[int] = frozenset()


class Families:
    """The families of the tiles of a block."""

    def __init__(self, body: Block) -> None:
        self._parents: dict[Value, Value] = {}
        self._free: dict[Value, Op] = {}
        self._folded: dict[Value, frozenset[int]] = {}
        self._loads: dict[Value, ops.Load] = {}
        self._broadcasts: dict[Value, tuple[ops.Broadcast, Value]] = {}
        every = list(walk(body))
        if _ASKED_FOR.isdisjoint(map(type, every)):
            return
        for op in every:
            if isinstance(op, ops.Elementwise):
                self._meet(op)
            elif isinstance(op, _FREE):
                self._free[op.result] = op
            elif type(op) in _PASSED:
                for pair in _PASSED[type(op)](op):
                    self._join(pair)
        for op in every:
            if type(op) in _AXES:
                self._fold(op, _AXES[type(op)](op))
            elif isinstance(op, ops.Load):
                self._loads.setdefault(self._root(op.result), op)
        self._find_broadcasts(every)

    def folded_axes(self, value: Value) -> frozenset[int]:
        """Return the axes along which some tile of a value's family is folded."""
        return self._folded.get(self._root(value), _NONE)

    def broadcast_of(self, value: Value) -> tuple[ops.Broadcast, ops.Load] | None:
        """Return how a value's family reaches a larger one, and the first load of that one."""
        found = self._broadcasts.get(self._root(value))
        load = found and self._loads.get(self._root(found[1]))
        return (found[0], load) if found and load else None

    def _meet(self, op: ops.Elementwise) -> None:
        held = [value for value in op.operands if value not in self._free]
        if held:
            self._join((*held, op.result))
        else:
            self._free[op.result] = op

    def _fold(self, op: Op, axes: Iterable[int]) -> None:
        for value in op.operands:
            if isinstance(value.type, TileType) and value.tile.shape:
                root = self._root(value)
                self._folded[root] = self._folded.get(root, _NONE).union(axes)

    def _find_broadcasts(self, every: Iterable[Op]) -> None:
        reshapes = {op.result: op.x for op in every if isinstance(op, ops.Reshape)}
        for op in every:
            if not isinstance(op, ops.Elementwise) or op.result in self._free:
                continue
            for made in map(self._free.get, op.operands):
                if isinstance(made, ops.Broadcast) and made.x.tile.shape:
                    source = self._root(reshapes.get(made.x, made.x))
                    self._broadcasts.setdefault(source, (made, op.result))

    def _join(self, values: Iterable[Value]) -> None:
        first, *others = values
        root = self._root(first)
        for value in others:
            other = self._root(value)
            if other is not root:
                self._parents[other] = root

    def _root(self, value: Value) -> Value:
        while value in self._parents:
            value = self._parents[value]
        return value


_FREE = (ops.Constant, ops.Iota, ops.Broadcast)


def _of_if(op: ops.If) -> Same:
    for side in (op.then, op.otherwise):
        yield from zip(op.results, ops.yielded(side), strict=True)


def _of_phase(op: ops.Phase) -> Same:
    return zip(op.results, ops.yielded(op.body), strict=True)


def _of_for(op: ops.For) -> Same:
    yield from zip(op.results, op.body.args[1:], strict=True)
    yield from zip(op.results, ops.yielded(op.body), strict=True)


_PASSED: dict[type[Op], Callable[[Any], Same]] = {
    ops.If: _of_if,
    ops.Phase: _of_phase,
    ops.For: _of_for,
}
_AXES: dict[type[Op], Callable[[Any], Iterable[int]]] = {
    ops.Reduce: lambda op: op.axes,
    ops.ArgReduce: lambda op: (op.axis,),
    ops.Scan: lambda op: (op.axis,),
    ops.Fold: lambda op: (op.axis,),
}
# Without any of these, families tell nothing.
_ASKED_FOR: frozenset[type[Op]] = frozenset((*_AXES, ops.Broadcast))
