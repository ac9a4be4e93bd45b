"""Whether two programs are the same but for their names, and optionally their spans.

Invariant: values correspond one to one, by where they are made; attributes are equal when they
print equally, so 0.0 and -0.0 differ, True and 1 differ, and NaN equals NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astdsl.ir.core import OPERAND, REGION, Block, Module, Node, Op, Value
from astdsl.records import dataclass, field


def structurally_equal(a: Module, b: Module, *, spans: bool = False) -> bool:
    """Return whether two modules are the same program; `spans`: standing at the same places too."""
    return _Comparison(spans).modules(a, b)


@dataclass(slots=True)
class _Comparison:
    spans: bool
    twin: dict[Value, Value] = field(default_factory=dict)

    def modules(self, a: Module, b: Module) -> bool:
        same = self._attributes(a, b, ("name", "target", "constants", "warpgroups", "approx_math"))
        if not same or len(a.params) != len(b.params):
            return False
        for p, q in zip(a.params, b.params, strict=True):
            if not self._attributes(p, q, ("name", "role", "initial")):
                return False
            if not self._define((p.value,), (q.value,)):
                return False
        return self._runs(a.body, b.body)

    def _attributes(self, a: Node, b: Node, names: Sequence[str]) -> bool:
        if self.spans and getattr(a, "span", None) != getattr(b, "span", None):
            return False
        return all(attribute_key(getattr(a, n)) == attribute_key(getattr(b, n)) for n in names)

    def _define(self, a: Sequence[Value], b: Sequence[Value]) -> bool:
        if [v.type for v in a] != [v.type for v in b]:
            return False
        self.twin.update(zip(a, b, strict=True))
        return True

    def _blocks(self, a: Block, b: Block) -> bool:
        return self._define(a.args, b.args) and self._runs(a, b)

    def _runs(self, a: Block, b: Block) -> bool:
        if len(a.ops) != len(b.ops):
            return False
        return all(self._ops(p, q) for p, q in zip(a.ops, b.ops, strict=True))

    def _ops(self, a: Op, b: Op) -> bool:
        if type(a) is not type(b) or not self._attributes(a, b, ()):
            return False
        fields = [(name, role) for name, role in type(a).fields.items() if name != "span"]
        same = all(self._fields(role, getattr(a, n), getattr(b, n)) for n, role in fields)
        return same and self._define(a.results, b.results)

    def _fields(self, role: str, a: Any, b: Any) -> bool:
        if role not in (OPERAND, REGION):
            return bool(attribute_key(a) == attribute_key(b))
        many = isinstance(a, tuple)
        if many != isinstance(b, tuple) or (many and len(a) != len(b)):
            return False
        pairs = zip(a, b, strict=True) if many else ((a, b),)
        if role == REGION:
            return all(self._blocks(p, q) for p, q in pairs)
        # A value that is not made before its use stands for itself.
        return all(self.twin.get(p, p) is q for p, q in pairs)


def attribute_key(attribute: Any) -> Any:
    """Return what two attributes must share to be the same: 0.0, -0.0, 0 and False differ."""
    if isinstance(attribute, tuple):
        return tuple(attribute_key(a) for a in attribute)
    return repr(attribute) if isinstance(attribute, bool | int | float) else attribute
