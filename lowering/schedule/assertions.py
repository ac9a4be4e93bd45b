"""Moving assertions of a kernel to the host, which checks them at every launch.

Before
    pipeline (i) { %1 = %0 == ... ; assert %1 ; assert %3 ; body }
After
    %2 = %0 == ... ; assert %2
    pipeline (i) { %1 = %0 == ... ; assert %3 on the device ; body }

Invariant: an assertion on shapes, scalars and constants is checked at every launch; what the host
does not know, or what a branch decides to check, the running block checks where it stands.
"""

from __future__ import annotations

from astdsl.ir import ops
from astdsl.ir.core import Block, Module, Op, Value, walk
from astdsl.ir.rewrite import clone_op, map_regions, replace_body, with_ops
from astdsl.lowering.windows import is_index_arithmetic

_RUNS_EVERY_STEP = (ops.Pipeline, ops.For)


def hoist_assertions(module: Module) -> Module:
    """Return the module with the assertions that the host can check outside all blocks."""
    if not any(isinstance(op, ops.Assert) for op in walk(module.body)):
        return module
    hoist = _Hoist(module)
    made: list[Op] = []
    for op in module.body.ops:
        if isinstance(op, ops.Assert):
            kept = op if all(map(hoist.can_know, op.operands)) else _on_device(op)
        else:
            kept = hoist.inside(op, is_asked=False)
        hoist.note(op, known_as=True)
        made += [*hoist.take(), kept]
    return replace_body(module, with_ops(module.body, made))


class _Hoist:
    """The values that the host knows: as what, and how those are made that it has not yet."""

    def __init__(self, module: Module) -> None:
        self.known: dict[Value, Value] = {v: v for v in module.body.args}
        self.makers: dict[Value, Op] = {}
        self.made: list[Op] = []

    def take(self) -> list[Op]:
        """Return what was hoisted since the last call."""
        made, self.made = self.made, []
        return made

    def note(self, op: Op, *, known_as: bool = False) -> None:
        """Note what the host can compute, or has computed, of an operation."""
        if is_index_arithmetic(op) and all(self.can_know(v) for v in op.operands):
            for value in op.results:
                if known_as:
                    self.known[value] = value
                else:
                    self.makers[value] = op

    def can_know(self, value: Value) -> bool:
        return value in self.known or value in self.makers

    def inside(self, op: Op, is_asked: bool) -> Op:
        """Return an operation without the assertions inside it that the host checks.

        `is_asked` says whether a branch or a loop decides that the operation runs.
        """
        if op.regions and not isinstance(op, _RUNS_EVERY_STEP):
            is_asked = True
        return map_regions(op, lambda block: self._block(block, is_asked))

    def _block(self, block: Block, is_asked: bool) -> Block:
        kept: list[Op] = []
        for op in block.ops:
            if not isinstance(op, ops.Assert):
                self.note(op)
                kept.append(self.inside(op, is_asked))
            elif is_asked or not all(map(self.can_know, op.operands)):
                kept.append(_on_device(op))
            else:
                for value in op.operands:
                    self._make(value)
                self.made.append(clone_op(op, self.known))
        return with_ops(block, kept)

    def _make(self, value: Value) -> None:
        if value in self.known:
            return
        maker = self.makers[value]
        for operand in maker.operands:
            self._make(operand)
        self.made.append(clone_op(maker, self.known))


def _on_device(op: ops.Assert) -> Op:
    return ops.DeviceAssert(
        span=op.span, condition=op.condition, values=op.values, pieces=op.pieces
    )
