"""Moving assertions of a kernel to the host, which checks them at every launch.

Before
    pipeline (i) { %1 = %0 == ... ; assert %1 ; body }
After
    %2 = %0 == ... ; assert %2
    pipeline (i) { %1 = %0 == ... ; body }

Invariant: an assertion is on shapes, scalars and constants, and every launch checks it; what the
host does not know, or what a branch decides to check, is refused.
"""

from __future__ import annotations

from typing import NoReturn

from astdsl.errors import UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import Block, Module, Op, Value, walk
from astdsl.ir.rewrite import clone_op, map_regions, replace_body, with_ops
from astdsl.lowering.windows import is_index_arithmetic

_RUNS_EVERY_STEP = (ops.Pipeline, ops.For)


def hoist_assertions(module: Module) -> Module:
    """Return the module with its assertions outside all blocks. Raises UnsupportedFeature."""
    if not any(isinstance(op, ops.Assert) for op in walk(module.body)):
        return module
    hoist = _Hoist(module)
    made: list[Op] = []
    for op in module.body.ops:
        kept = op if isinstance(op, ops.Assert) else hoist.inside(op, asked="")
        if isinstance(op, ops.Assert):
            hoist.require_known(op)
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

    def require_known(self, op: ops.Assert) -> None:
        """Refuse an assertion that the host cannot check."""
        if not self.can_know(op.condition):
            _refuse(op, "on what memory or a step decides", "checks this one")

    def inside(self, op: Op, asked: str) -> Op:
        """Return an operation without the assertions inside it."""
        if op.regions and not isinstance(op, _RUNS_EVERY_STEP):
            asked = asked or "that a branch or a loop decides to check"
        return map_regions(op, lambda block: self._block(block, asked))

    def _block(self, block: Block, asked: str) -> Block:
        kept: list[Op] = []
        for op in block.ops:
            if isinstance(op, ops.Assert):
                self._hoist(op, asked)
                continue
            self.note(op)
            kept.append(self.inside(op, asked))
        return with_ops(block, kept)

    def _hoist(self, op: ops.Assert, asked: str) -> None:
        if asked:
            _refuse(op, asked, "checks this one; `assert not a or b` checks b where a holds")
        self.require_known(op)
        self._make(op.condition)
        self.made.append(clone_op(op, self.known))

    def _make(self, value: Value) -> None:
        if value in self.known:
            return
        maker = self.makers[value]
        for operand in maker.operands:
            self._make(operand)
        self.made.append(clone_op(maker, self.known))


def _refuse(op: ops.Assert, what: str, where: str) -> NoReturn:
    raise UnsupportedFeature(
        f"an `assert` {what} is not in this version",
        (op.span, "this assertion"),
        help="`assert` on shapes, scalars and constants is checked at every launch; "
        f'`.on("reference")` {where}',
    )
