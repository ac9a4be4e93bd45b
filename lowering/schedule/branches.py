"""Pipelines in a branch outside of every loop, which are outermost too.

Before
    if c { store o[...], a; pipeline (i < n) { ... } } else { pipeline (j < m) { ... } }
After
    if c { store o[...], a }
    pipeline (i < c ? n : 0) { ... }
    pipeline (j < c ? 0 : m) { ... }

Invariant: what acts, acts under the condition that it stood under, in program order; only what is
pure is computed whatever the condition.
"""

from __future__ import annotations

from astdsl.ir import ops
from astdsl.ir.core import PURE, WRITES, Block, Module, Op, Value
from astdsl.ir.effects import effect_of
from astdsl.ir.rewrite import replace_body, replace_fields, with_ops
from astdsl.lowering.host import known_on_host
from astdsl.lowering.schedule.build import Maker
from astdsl.lowering.windows import is_index_arithmetic
from astdsl.records import dataclass
from astdsl.source import Span


def holds_launch(op: Op) -> bool:
    """Whether an operation outside of regions is an outermost pipeline, or has one in a branch."""
    if isinstance(op, ops.Pipeline):
        return True
    return isinstance(op, ops.If) and any(map(holds_launch, _inside(op)))


def take_pipelines_out_of_branches(module: Module) -> Module:
    """Return the module with pipelines in branches outside of them, where nothing prevents it.

    A branch that reads memory outside of its pipelines, or gives results, stays as it is.
    """
    known = {v for op in known_on_host(module.body.ops) for v in op.results}
    opening = _Opening(known | set(module.body.args))
    made = [each for op in module.body.ops for each in opening.opened(op)]
    return replace_body(module, with_ops(module.body, made))


def _inside(op: ops.If) -> tuple[Op, ...]:
    return (*op.then.ops[:-1], *op.otherwise.ops[:-1])


def _can_open(op: ops.If) -> bool:
    """Whether nothing in the branches is a value that depends on having come there."""
    return not op.results and all(
        inner.effect == PURE or (not inner.results and _may_stand_outside(inner))
        for inner in _inside(op)
    )


def _may_stand_outside(op: Op) -> bool:
    return isinstance(op, ops.Pipeline) or effect_of(op) == WRITES


@dataclass(frozen=True, slots=True)
class _Opening:
    """Takes branches apart; `known` are the values that the host knows."""

    known: set[Value]

    def opened(self, op: Op) -> list[Op]:
        """Return what stands for an operation outside of regions."""
        if not isinstance(op, ops.If) or not holds_launch(op) or not _can_open(op):
            return [op]
        maker = Maker(op.span)
        otherwise = maker.add_op(ops.Invert(span=op.span, x=op.condition)).result
        if op.condition in self.known:
            self.known.add(otherwise)
        for side, condition in ((op.then, op.condition), (op.otherwise, otherwise)):
            for inner in side.ops[:-1]:
                for part in self.opened(inner):
                    maker.ops += self._guarded(part, condition)
        return maker.ops

    def _guarded(self, op: Op, condition: Value) -> list[Op]:
        """Return what does what an operation did where the condition holds."""
        if op.effect == PURE:
            if is_index_arithmetic(op) and self.known.issuperset(op.operands):
                self.known.update(op.results)
            return [op]
        if not isinstance(op, ops.Pipeline):
            return [_when(condition, (op,), op.span)]
        if condition not in self.known:
            guarded = _when(condition, op.body.ops[:-1], op.span)
            return [replace_fields(op, body=with_ops(op.body, (guarded, op.body.ops[-1])))]
        # Of an axis without steps nothing runs, whatever the others are.
        high = ops.Select(span=op.span, condition=condition, x=op.highs[0], y=op.lows[0])
        return [high, replace_fields(op, highs=(high.result, *op.highs[1:]))]


def _when(condition: Value, then: tuple[Op, ...], span: Span) -> ops.If:
    end = ops.Yield(span=span, values=())
    return ops.If(
        span=span,
        condition=condition,
        then=Block(ops=(*then, end)),
        otherwise=Block(ops=(ops.Yield(span=span, values=()),)),
    )
