"""Leaving out masks where everything is inside: in all blocks and steps but the last, often.

Before
    m = iota <= bound; y = select m, x, 0; s = reduce y
After
    m = iota <= bound
    s = if extent - 1 <= bound { reduce x } else { y = select m, x, 0; reduce y }

Invariant: the values are the same. That a mask holds everywhere follows from the ends of what it
compares: in 64 bits, where sums of 32-bit numbers are exact, and only where the tile's are, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Block, Op, Value, walk
from astdsl.ir.dtypes import DType
from astdsl.ir.rewrite import (
    clone_op,
    count_uses,
    map_regions,
    replace_uses,
    with_ops,
)
from astdsl.lowering.schedule.build import Maker

# Below, a branch costs about what it saves.
LEAST_ELEMENTS = 1024
_EXACT_BITS = 32


def skip_full_masks(body: Block) -> Block:
    """Return the body of a launch with a branch around each large mask that may be full."""
    if not any(map(_is_large, walk(body))):
        return body
    masks = _Masks(body)
    changed = masks.block(body)
    return replace_uses(changed, masks.replaced) if masks.replaced else body


def _is_large(op: Op | None) -> bool:
    return isinstance(op, ops.Select) and op.result.tile.elements >= LEAST_ELEMENTS


class _Masks:
    """A walk that writes the branches; `replaced` are the values that theirs stand for."""

    def __init__(self, body: Block) -> None:
        self.replaced: dict[Value, Value] = {}
        # Masks that only stand in branches now: where they were, all blocks would compute them.
        self._moved: set[Op] = set()
        self._makers = body.definitions
        uses = count_uses(body)
        # What is masked only to be reduced: the branch has both.
        self._reduced = {
            op.x for op in walk(body) if isinstance(op, ops.Reduce) and uses[op.x] == 1
        }

    def block(self, block: Block) -> Block:
        """Return a region with branches around its masks."""
        made: list[Op] = []
        for op in block.ops:
            made += self._branch(op) or [map_regions(op, self.block)]
        return with_ops(block, [op for op in made if op not in self._moved])

    def _branch(self, op: Op) -> list[Op] | None:
        """Return what stands for a mask, or for a reduction of masked elements; None: itself."""
        masked = self._masked(op)
        if masked is None:
            return None
        maker, then, otherwise = Maker(op.span), Maker(op.span), Maker(op.span)
        full = _Proof(self._makers, maker).holds(masked.condition)
        if full is None:
            return None
        plain, kept = masked.x, otherwise.add_op(clone_op(masked, {})).result
        if isinstance(op, ops.Reduce):
            self._moved.add(masked)
            plain = then.add_op(clone_op(op, {op.x: plain})).result
            kept = otherwise.add_op(clone_op(op, {op.x: kept})).result
        sides = {"then": then.block([plain]), "otherwise": otherwise.block([kept])}
        (result,) = maker.add_op(
            ops.If(span=op.span, condition=full, is_likely=True, **sides)
        ).results
        result.hint = op.results[0].hint
        self.replaced[op.results[0]] = result
        return maker.ops

    def _masked(self, op: Op) -> ops.Select | None:
        is_reduced = isinstance(op, ops.Reduce) and op.x in self._reduced
        found = self._makers.get(op.operands[0]) if is_reduced else op
        if not isinstance(found, ops.Select) or not _is_large(found):
            return None
        return None if found is op and op.result in self._reduced else found


_Ends: TypeAlias = tuple[Value, Value]
_Rule: TypeAlias = Callable[["_Proof", Any], "_Ends | None"]


class _Proof:
    """Writes the scalar condition that implies that a mask holds everywhere."""

    def __init__(self, makers: Mapping[Value, Op], maker: Maker) -> None:
        self._makers = makers
        self.maker = maker
        self._needed: list[Value] = []

    def holds(self, mask: Value) -> Value | None:
        """Return the condition, None if there is none."""
        if not self._require(mask):
            return None
        condition, *rest = self._needed
        for other in rest:
            condition = self.maker.binary(ops.BitAnd, condition, other)
        return condition

    def _require(self, mask: Value) -> bool:
        op = self._makers.get(mask)
        if isinstance(op, ops.BitAnd):
            return self._require(op.x) and self._require(op.y)
        if isinstance(op, (ops.Broadcast, ops.Reshape)):
            return self._require(op.x)
        if not isinstance(op, ops.Compare) or op.predicate not in _NEAREST:
            return False
        x, y = self.ends(op.x), self.ends(op.y)
        if x is None or y is None:
            return False
        own, other = _NEAREST[op.predicate]
        self.need(op.predicate, x[own], y[other])
        return True

    def need(self, predicate: str, x: Value, y: Value) -> None:
        """Write a comparison that has to hold."""
        self._needed.append(self.maker.compare(predicate, x, y))

    def ends(self, value: Value) -> _Ends | None:
        """Return the least and the greatest element, i64, or what is beyond them."""
        tile = value.tile
        if not tile.dtype.is_integer:
            return None
        if tile.shape == ():
            return (self.maker.to_index(value),) * 2 if _is_word(tile.dtype) else None
        op = self._makers.get(value)
        rule = _ENDS.get(type(op)) if op else None
        return rule(self, op) if rule else None


# Which ends of both sides are nearest to breaking a comparison: 0 the least, 1 the greatest.
_NEAREST = {"lt": (1, 0), "le": (1, 0), "gt": (0, 1), "ge": (0, 1)}


def _of_iota(proof: _Proof, op: ops.Iota) -> _Ends:
    return proof.maker.number(0), proof.maker.number(op.shape[op.axis] - 1)


def _of_constant(proof: _Proof, op: ops.Constant) -> _Ends | None:
    number = int(op.value)
    return None if number >> _EXACT_BITS not in (0, -1) else (proof.maker.number(number),) * 2


def _of_operand(proof: _Proof, op: Any) -> _Ends | None:
    return proof.ends(op.x)


def _of_cast(proof: _Proof, op: ops.Cast) -> _Ends | None:
    """Return the ends of what is extended, without a change of value."""
    old, new = op.x.tile.dtype, op.dtype
    keeps = _is_word(old) and new.is_integer and new.is_signed and new.bits > old.bits
    return proof.ends(op.x) if keeps else None


def _is_word(dtype: DType) -> bool:
    return dtype.is_integer and dtype.bits <= _EXACT_BITS


def _of_sum(proof: _Proof, op: ops.Add) -> _Ends | None:
    x, y = proof.ends(op.x), proof.ends(op.y)
    if x is None or y is None or not op.result.tile.dtype.is_signed:
        return None
    low, high = (proof.maker.add(a, b) for a, b in zip(x, y, strict=True))
    bits = op.result.tile.dtype.bits
    if bits <= _EXACT_BITS:
        proof.need("ge", low, proof.maker.number(-(1 << (bits - 1))))
        proof.need("lt", high, proof.maker.number(1 << (bits - 1)))
    return low, high


_ENDS: dict[type[Op], _Rule] = {
    ops.Iota: _of_iota,
    ops.Constant: _of_constant,
    ops.Broadcast: _of_operand,
    ops.Reshape: _of_operand,
    ops.Cast: _of_cast,
    ops.Add: _of_sum,
}
