"""Whether a module is well formed; run between passes.

Invariant: every value is made once, and used only below its making, in its block or a region
inside; every region ends in a `Yield` and has no other.
"""

from __future__ import annotations

from collections import Counter

from astdsl.ir.core import Block, Module, Op, Value
from astdsl.ir.ops import Yield
from astdsl.ir.printer import print_op
from astdsl.records import dataclass, field


def verify(module: Module) -> None:
    """Raise an AssertionError that names the operation which is malformed, and how."""
    check = _Verifier()
    params = [p.value for p in module.params]
    assert module.body.args in ((), tuple(params)), "the body's arguments are the parameters"
    check.made += params
    visible = set(params)
    for op in module.body.ops:
        check.op(op, visible)
        assert not isinstance(op, Yield), _complaint(op, "Yield outside of a region")
    check.made_once()


@dataclass(slots=True)
class _Verifier:
    """`made` holds every value so far."""

    made: list[Value] = field(default_factory=list)

    def op(self, op: Op, visible: set[Value]) -> None:
        """Check one operation and its regions, then make its results visible."""
        if not visible.issuperset(op.operands):
            raise AssertionError(_complaint(op, self._out_of_sight(op.operands, visible)))
        for region in op.regions:
            self._region(op, region, set() if op.isolated else visible.copy())
        if not op.is_sound:
            self._verify(op)
        self.made += op.results
        visible.update(op.results)

    def made_once(self) -> None:
        """Check that no operation or region, or parameter, is there twice."""
        if len(set(self.made)) < len(self.made):
            twice = next(v for v, count in Counter(self.made).items() if count > 1)
            raise AssertionError(f"{twice} is a value that is made twice")

    def _out_of_sight(self, operands: tuple[Value, ...], visible: set[Value]) -> str:
        value = next(v for v in operands if v not in visible)
        seen = "is used outside its block" if value in self.made else "is never made"
        return f"operand {value} {seen}"

    def _verify(self, op: Op) -> None:
        try:
            op.verify()
        except AssertionError as error:
            raise AssertionError(_complaint(op, str(error))) from error
        object.__setattr__(op, "is_sound", True)

    def _region(self, owner: Op, region: Block, visible: set[Value]) -> None:
        """Check a region, given what it may use of the values around it."""
        self.made += region.args
        visible.update(region.args)
        for op in region.ops:
            self.op(op, visible)
        if not region.ops:
            raise AssertionError(_complaint(owner, "a region is empty"))
        *others, last = map(type, region.ops)
        if Yield in others or last is not Yield:
            raise AssertionError(_complaint(owner, "a region ends in its only Yield"))


def _complaint(op: Op, why: str) -> str:
    return f"{why}\n  in {print_op(op).splitlines()[0]}\n  at {op.span}"
