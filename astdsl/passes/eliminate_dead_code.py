"""Remove operations whose results nobody uses and which have no other effect.

Before:
    %a: f32 = Load %x, [%i] sizes=(1) steps=(1) kept=(False)
    %b: f32 = Sqrt %a
    Store %o, [%i], %c sizes=(1) steps=(1) kept=(False)

After:
    Store %o, [%i], %c sizes=(1) steps=(1) kept=(False)
"""

from __future__ import annotations

from astdsl.ir.core import Block, Module, Op, Value
from astdsl.ir.effects import changes_memory
from astdsl.ir.rewrite import map_regions, replace_body, with_ops


def eliminate_dead_code(module: Module) -> Module:
    """Return the module without operations that change nothing."""
    return replace_body(module, _without_dead(module.body, set()))


def _without_dead(block: Block, live: set[Value]) -> Block:
    """Walk from the last operation; `live` receives the values that kept operations use."""
    kept: list[Op] = []
    for op in reversed(block.ops):
        if _is_kept(op, live):
            live.update(op.operands)
            kept.append(map_regions(op, lambda region: _without_dead(region, live)))
    kept.reverse()
    return with_ops(block, kept)


def _is_kept(op: Op, live: set[Value]) -> bool:
    # What neither gives nor contains anything is a terminator.
    is_terminator = not op.results and not op.regions
    return is_terminator or not live.isdisjoint(op.results) or changes_memory(op)
