"""Compute each expression once where its value is visible.

Before:
    %a: i64 = Add %x, %y
    %b: i64 = Add %x, %y
    %c: i64 = Multiply %a, %b

After:
    %a: i64 = Add %x, %y
    %c: i64 = Multiply %a, %a

Loads are merged too, as long as nothing between them changes memory.
"""

from __future__ import annotations

from collections.abc import Hashable

from astdsl.ir.core import ATTRIBUTE, OPERAND, READS, Block, Module, Op, Value
from astdsl.ir.effects import changes_memory, is_movable
from astdsl.ir.equality import attribute_key
from astdsl.ir.rewrite import map_regions, replace_body, substitute, with_ops
from astdsl.records import dataclass, field


def merge_common_subexpressions(module: Module) -> Module:
    """Return the module with one operation for each expression of a block and those around it."""
    return replace_body(module, _Merging().block(module.body))


@dataclass(slots=True)
class _Merging:
    pure: dict[Hashable, Op] = field(default_factory=dict)
    loads: dict[Hashable, Op] = field(default_factory=dict)
    values: dict[Value, Value] = field(default_factory=dict)

    def block(self, block: Block) -> Block:
        """Return a block whose operations differ from each other and from those around it."""
        kept: list[Op] = []
        entered: list[Hashable] = []
        for op in block.ops:
            new = substitute(op, self.values)
            new = self._regions(new) if new.regions else new
            table = self._table(new)
            if table is None:
                kept.append(new)
                continue
            key = _key(new)
            earlier = table.get(key)
            if earlier is None:
                table[key] = new
                entered.append(key)
                kept.append(new)
            else:
                self.values.update(zip(new.results, earlier.results, strict=True))
        for key in entered:
            self.pure.pop(key, None)
            self.loads.pop(key, None)
        return with_ops(block, kept)

    def _table(self, op: Op) -> dict[Hashable, Op] | None:
        if is_movable(op):
            return self.pure
        if op.effect == READS:
            return self.loads
        if changes_memory(op):
            self.loads.clear()
        return None

    def _regions(self, op: Op) -> Op:
        """Merge inside regions; a region may run after another one, or after itself."""
        if op.isolated:
            return map_regions(op, _Merging().block)
        if changes_memory(op):
            self.loads.clear()
        known = dict(self.loads)

        def inside(region: Block) -> Block:
            self.loads = dict(known)
            return self.block(region)

        new = map_regions(op, inside)
        self.loads = known
        return new


def _key(op: Op) -> Hashable:
    roles = type(op).by_role
    operands = [getattr(op, name) for name in roles[OPERAND]]
    attributes = [attribute_key(getattr(op, n)) for n in roles[ATTRIBUTE] if n != "span"]
    return (type(op), *operands, *attributes)
