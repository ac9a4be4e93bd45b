"""What a warpgroup reaches, where every warpgroup of a block runs the program itself.

Invariant: what is not decided by the warpgroup's number and constants is taken to be reached; what
is called certain is reached by every warpgroup that comes to the same operations before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astdsl.ir import ops
from astdsl.ir.core import PURE, Block, Op, Value, walk
from astdsl.ir.effects import is_movable
from astdsl.ir.evaluate import evaluate_pure
from astdsl.ir.types import TileType


@dataclass(slots=True)
class Reach:
    """The operations that one warpgroup may reach, in program order.

    `known` are the scalars that its number decides, `differing` the values that may differ from
    those of another warpgroup.
    """

    warpgroup: int
    ops: list[Op] = field(default_factory=list)
    certain: set[Op] = field(default_factory=set)
    known: dict[Value, Any] = field(default_factory=dict)
    differing: set[Value] = field(default_factory=set)

    def walk(self, block: Block, *, is_certain: bool = True) -> Reach:
        """Note what a region does."""
        for op in block.ops:
            self.ops.append(op)
            if is_certain:
                self.certain.add(op)
            self._learn(op)
            self._enter(op, is_certain)
        return self

    def differs(self, values: tuple[Value, ...]) -> bool:
        """Whether any of some values may differ from another warpgroup's."""
        return not self.differing.isdisjoint(values)

    def _learn(self, op: Op) -> None:
        """Note what an operation gives."""
        same = op.effect == PURE or isinstance(op, ops.WarpId)
        if not same or self.differs(op.operands):
            self.differing.update(op.results)
        if isinstance(op, ops.WarpgroupId):
            self.known[op.result] = np.int64(self.warpgroup)
        elif isinstance(op, ops.Constant) and not op.type.shape:
            self.known[op.result] = np.asarray(op.value, op.type.dtype.numpy)[()]
        elif _is_scalar_arithmetic(op) and all(v in self.known for v in op.operands):
            self.known[op.result] = evaluate_pure(op, [self.known[v] for v in op.operands])

    def _enter(self, op: Op, is_certain: bool) -> None:
        if isinstance(op, ops.If) and op.condition in self.known:
            self.walk(op.then if self.known[op.condition] else op.otherwise, is_certain=is_certain)
            return
        depends = isinstance(op, ops.While) or self.differs(op.operands)
        for region in op.regions:
            # A loop's index is the same in every warpgroup if its bounds are.
            carried = region.args if depends else region.args[1:]
            self.differing.update(carried)
            self.walk(region, is_certain=is_certain and not depends)


def reach(program: Block, warpgroup: int) -> Reach:
    """Return what a warpgroup reaches of a block's program."""
    return Reach(warpgroup).walk(program)


def runs_of(launch: ops.Launch) -> Counter[Op]:
    """Return how many times a block runs each operation: once, or once for each warpgroup."""
    if not launch.per_warpgroup:
        return Counter(walk(launch.body))
    return Counter(op for k in range(launch.warpgroups) for op in reach(launch.body, k).ops)


def _is_scalar_arithmetic(op: Op) -> bool:
    is_scalar = all(isinstance(v.type, TileType) and not v.type.shape for v in op.results)
    return is_movable(op) and is_scalar and bool(op.operands)
