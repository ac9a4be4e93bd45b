"""Move what a loop computes again in every step to before the loop.

Before:
    For low=%l high=%h step=%s body(%i: i64) {
      %a: i64 = Multiply %m, %n
      ...

After:
    %a: i64 = Multiply %m, %n
    For low=%l high=%h step=%s body(%i: i64) {
      ...

Scalars and constants move out of every loop. Tiles move out of nested pipelines only: before an
outermost one they would be computed outside of any block, elsewhere they would hold registers.
"""

from __future__ import annotations

from astdsl.ir import ops
from astdsl.ir.core import Block, Module, Op, Value
from astdsl.ir.effects import is_movable
from astdsl.ir.rewrite import map_regions, replace_body, with_ops


def hoist_invariants(module: Module) -> Module:
    """Return the module with loop-invariant operations without effect before their loops."""
    return replace_body(module, _hoist(module.body, is_nested=False))


def _hoist(block: Block, *, is_nested: bool) -> Block:
    made: list[Op] = []
    for op in block.ops:
        made.append(_hoist_from(op, made, is_nested) if op.regions else op)
    return with_ops(block, made)


def _hoist_from(op: Op, before: list[Op], is_nested: bool) -> Op:
    """Return the operation without the invariants of its regions, inner loops first."""
    is_loop = isinstance(op, ops.Loop)
    is_inner = is_nested or is_loop or isinstance(op, ops.Launch)
    inner = map_regions(op, lambda region: _hoist(region, is_nested=is_inner))
    if not is_loop:
        return inner
    takes_tiles = is_nested and isinstance(op, ops.Pipeline)
    return map_regions(inner, lambda region: _without_invariants(region, before, takes_tiles))


def _without_invariants(region: Block, before: list[Op], takes_tiles: bool) -> Block:
    """Return the region without its invariant operations, which are appended to `before`."""
    inside: set[Value] = set(region.args)
    kept: list[Op] = []
    for op in region.ops:
        if _may_move(op, takes_tiles) and inside.isdisjoint(op.operands):
            before.append(op)
        else:
            inside.update(op.results)
            kept.append(op)
    return with_ops(region, kept)


def _may_move(op: Op, takes_tiles: bool) -> bool:
    if not is_movable(op):
        return False
    is_small = isinstance(op, ops.Constant) or not op.result.tile.shape
    return takes_tiles or is_small
