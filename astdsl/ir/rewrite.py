"""Making programs from programs: substitution, cloning, rewriting by a table.

Invariant: nothing here knows an operation by name; a part that does not change stays the same
object, so a pass that does nothing returns what it was given. An operation that is remade gives
the same values as before, so its users need no change; only a clone gives new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from astdsl.ir.core import OPERAND, REGION, Block, Module, Op, Value, walk

AnyOp = TypeVar("AnyOp", bound=Op)
Values: TypeAlias = dict[Value, Value]
Emit: TypeAlias = Callable[[Any], Any]
# Given an operation whose operands and regions are already new, and a function that appends
# operations before it: the values that replace its results, or None to keep the operation.
Handler: TypeAlias = Callable[[Any, Emit], Sequence[Value] | None]


def replace_fields(op: AnyOp, **changes: Any) -> AnyOp:
    """Return an operation with some fields changed; if its types stay, it gives the same values."""
    new = op.remade(changes)
    if [v.type for v in new.results] == [v.type for v in op.results]:
        object.__setattr__(new, "results", op.results)
    return new


def replace_body(module: Module, body: Block) -> Module:
    """Return a module with another body; the same one where the body is the same."""
    if body is module.body:
        return module
    fields = {name: getattr(module, name) for name in type(module).fields}
    return Module(**fields | {"body": body})


def substitute(op: AnyOp, mapping: Mapping[Value, Value]) -> AnyOp:
    """Return an operation with mapped operands (not inside its regions), the same if none is."""
    if not mapping or mapping.keys().isdisjoint(op.operands):
        return op
    changes = {n: _mapped(v, mapping) for n, v in op.values_of(OPERAND) if _is_mapped(v, mapping)}
    return replace_fields(op, **changes)


def _is_mapped(values: Any, mapping: Mapping[Value, Value]) -> bool:
    if isinstance(values, tuple):
        return any(v in mapping for v in values)
    return values in mapping


def _mapped(values: Any, mapping: Mapping[Value, Value]) -> Any:
    if isinstance(values, tuple):
        return tuple(mapping.get(v, v) for v in values)
    return mapping[values]


def map_regions(op: AnyOp, change: Callable[[Block], Block]) -> AnyOp:
    """Return an operation with `change` applied to each region, the same if none changed."""
    if not op.regions:
        return op
    changes = {}
    for name, regions in op.values_of(REGION):
        if isinstance(regions, tuple):
            new: Any = tuple(change(r) for r in regions)
            is_same = all(a is b for a, b in zip(new, regions, strict=True))
        else:
            new = change(regions)
            is_same = new is regions
        if not is_same:
            changes[name] = new
    return replace_fields(op, **changes) if changes else op


def rewrite_block(
    block: Block, handler: Handler | Mapping[type[Op], Handler], mapping: Values | None = None
) -> Block:
    """Return a block in which `handler` has replaced operations, inner ones first.

    `handler` is one function for every operation, or a table by class. `mapping` holds values to
    replace from the start; it receives every value replaced on the way.
    """
    values: Values = {} if mapping is None else mapping
    if not isinstance(handler, Mapping):
        function = handler
        return _rewrite(block, lambda _op: function, values)
    table = handler
    if not values and table.keys().isdisjoint(map(type, walk(block))):
        return block
    return _rewrite(block, lambda op: table.get(type(op)), values)


def _rewrite(block: Block, find: Callable[[Op], Handler | None], values: Values) -> Block:
    made: list[Op] = []

    def emit(op: AnyOp) -> AnyOp:
        made.append(op)
        return op

    def inside(region: Block) -> Block:
        return _rewrite(region, find, values)

    for op in block.ops:
        new = substitute(op, values)
        if op.regions:
            new = map_regions(new, inside)
        handle = find(new)
        replacement = None if handle is None else handle(new, emit)
        if replacement is None:
            made.append(new)
            replacement = new.results
        if replacement is not op.results:
            pairs = zip(op.results, replacement, strict=True)
            values.update((a, b) for a, b in pairs if a is not b)
    return with_ops(block, made)


def with_ops(block: Block, ops: Sequence[Op]) -> Block:
    """Return the block with other operations, the same if each is the same."""
    made = tuple(ops)
    return block if made == block.ops else Block(args=block.args, ops=made)


def replace_uses(block: Block, mapping: Mapping[Value, Value]) -> Block:
    """Return the block with values replaced everywhere inside it."""
    return _rewrite(block, lambda _op: None, dict(mapping))


def clone_block(block: Block, mapping: Values | None = None) -> Block:
    """Return a copy with fresh arguments and results; `mapping` is applied and receives them."""
    values: Values = {} if mapping is None else mapping
    args = tuple(Value(v.type, v.hint) for v in block.args)
    values.update(zip(block.args, args, strict=True))
    return Block(args=args, ops=tuple(clone_op(op, values) for op in block.ops))


def clone_op(op: AnyOp, mapping: Values) -> AnyOp:
    """Return a copy of an operation with mapped operands and fresh values inside and out."""
    changes: dict[str, Any] = {}
    for name, values in op.values_of(OPERAND):
        changes[name] = _mapped(values, mapping) if _is_mapped(values, mapping) else values
    for name, regions in op.values_of(REGION):
        is_many = isinstance(regions, tuple)
        changes[name] = (
            tuple(clone_block(r, mapping) for r in regions)
            if is_many
            else clone_block(regions, mapping)
        )
    new = op.remade(changes)
    mapping.update(zip(op.results, new.results, strict=True))
    return new


def count_uses(block: Block) -> Counter[Value]:
    """Return how often each value is an operand in the block and the regions inside it."""
    uses: Counter[Value] = Counter()
    for op in walk(block):
        uses.update(op.operands)
    return uses


def values_made(block: Block) -> Iterator[Value]:
    """Yield every value that the block makes, its arguments and those of inner regions too."""
    yield from block.args
    for op in block.ops:
        yield from op.results
        for region in op.regions:
            yield from values_made(region)


def free_values(block: Block) -> dict[Value, None]:
    """Return the values used in the block and made outside it, in order of first use."""
    made = set(values_made(block))
    return {v: None for op in walk(block) for v in op.operands if v not in made}
