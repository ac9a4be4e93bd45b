"""Whether a module is well formed; run between passes.

Invariant: every value is made once, and used only below its making, in its block or a region
inside; every region ends in a `Yield` and has no other.
"""

from __future__ import annotations

from astdsl.ir.core import Block, Module, Op, Value
from astdsl.ir.ops import Yield
from astdsl.ir.printer import print_op
from astdsl.records import dataclass, field


def verify(module: Module) -> None:
    """Raise an AssertionError that names the operation which is malformed, and how."""
    check = _Verifier()
    params = tuple(p.value for p in module.params)
    check.define(params, "a parameter")
    assert module.body.args in ((), params), "the body's arguments are the parameters"
    for op in module.body.ops:
        check.op(op)
        assert not isinstance(op, Yield), _complaint(op, "Yield outside of a region")


@dataclass(slots=True)
class _Verifier:
    """`made` holds every value so far, `visible` those that may be used, in order of making."""

    visible: dict[Value, None] = field(default_factory=dict)
    made: set[Value] = field(default_factory=set)

    def define(self, values: tuple[Value, ...], what: str) -> None:
        for value in values:
            if value in self.made:
                raise AssertionError(f"{what} is a value that is made twice: {values}")
            self.made.add(value)
            self.visible[value] = None

    def op(self, op: Op) -> None:
        """Check one operation and its regions, then make its results visible."""
        for value in op.operands:
            if value not in self.visible:
                seen = "is used outside its block" if value in self.made else "is never made"
                raise AssertionError(_complaint(op, f"operand {value} {seen}"))
        for region in op.regions:
            self._region(op, region)
        if not op.is_sound:
            self._verify(op)
        self.define(op.results, type(op).__name__)

    def _verify(self, op: Op) -> None:
        try:
            op.verify()
        except AssertionError as error:
            raise AssertionError(_complaint(op, str(error))) from error
        object.__setattr__(op, "is_sound", True)

    def _region(self, owner: Op, region: Block) -> None:
        outer, count = self.visible, len(self.visible)
        if owner.isolated:
            self.visible = {}
        self.define(region.args, f"an argument in {type(owner).__name__}")
        for index, op in enumerate(region.ops):
            self.op(op)
            is_last = index == len(region.ops) - 1
            if isinstance(op, Yield) is not is_last:
                raise AssertionError(_complaint(owner, "a region ends in its only Yield"))
        if not region.ops:
            raise AssertionError(_complaint(owner, "a region is empty"))
        self.visible = outer
        while len(outer) > count:  # What the region made is seen inside it only.
            outer.popitem()


def _complaint(op: Op, why: str) -> str:
    return f"{why}\n  in {print_op(op).splitlines()[0]}\n  at {op.span}"
