"""Index arithmetic that the host does before a launch: grids and checks, as plain data.

Invariant: what cannot be known on the host (a value loaded from memory) is refused where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from astdsl.errors import UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import Module, Op, Value
from astdsl.ir.dtypes import BOOL, f64, i64
from astdsl.ir.launch import HostExpression
from astdsl.lowering.windows import Forms, is_index_arithmetic

_BINARY: dict[type[Op], str] = {
    ops.Add: "add",
    ops.Subtract: "subtract",
    ops.Multiply: "multiply",
    ops.Divide: "divide",
    ops.FloorDivide: "floor_divide",
    ops.Remainder: "remainder",
    ops.Minimum: "minimum",
    ops.Maximum: "maximum",
    ops.BitAnd: "and",
    ops.BitOr: "or",
    ops.BitXor: "xor",
    ops.ShiftLeft: "shift_left",
    ops.ShiftRight: "shift_right",
    ops.Negate: "negate",
    ops.Absolute: "absolute",
}
_OF_FLOATS: dict[type[Op], str] = {ops.Minimum: "least", ops.Maximum: "greatest"}
# What these make is in the dtype of what they take.
_STAYS = (
    ops.Minimum, ops.Maximum, ops.Remainder, ops.BitAnd, ops.BitOr, ops.BitXor, ops.ShiftRight,
)  # fmt: skip


def known_on_host(body: Sequence[Op], unknown: Iterable[Value] = ()) -> list[Op]:
    """Return what is computed from dims and scalar parameters alone, and not from memory.

    `unknown` are results of earlier launches.
    """
    from_memory = set(unknown)
    known: list[Op] = []
    for op in body:
        if is_index_arithmetic(op) and from_memory.isdisjoint(op.operands):
            known.append(op)
        else:
            from_memory.update(op.results)
    return known


class HostExpressions:
    """Turns scalars of a module into host expressions."""

    def __init__(self, module: Module) -> None:
        self._forms = Forms(module.body)
        self._params = {p.value: k for k, p in enumerate(module.params)}

    def __getitem__(self, value: Value) -> HostExpression:
        if value in self._params:
            return ("scalar", self._params[value])
        maker = self._forms.makers.get(value)
        if isinstance(maker, ops.Constant):
            return maker.value
        if isinstance(maker, ops.Dim):
            return ("dim", self._params[maker.ref], maker.axis)
        assert maker is not None, f"{value} is made by nothing that the host sees"
        return self._operation(maker)

    def _operation(self, maker: Op) -> HostExpression:
        operands = [self[v] for v in maker.operands] if _is_host(maker) else []
        if isinstance(maker, ops.Compare):
            return (maker.predicate, *operands)
        if isinstance(maker, ops.Select):
            return ("select", *operands)
        if isinstance(maker, ops.Invert):
            is_bool = maker.result.tile.dtype.kind == BOOL
            return ("not", *operands) if is_bool else _fitted(maker, ("xor", *operands, -1))
        if isinstance(maker, ops.Cast):
            return _cast(maker, operands)
        name = _name(maker)
        if name is None:
            raise UnsupportedFeature(
                "the host cannot compute this value before the launch",
                (maker.span, "needed for the grid or an `assert` on the host"),
                help="compute it from shapes, scalars and constants",
            )
        return _fitted(maker, (name, *operands))


def _name(maker: Op) -> str | None:
    is_float = any(v.tile.dtype.is_float for v in maker.operands)
    return (_OF_FLOATS.get(type(maker)) if is_float else None) or _BINARY.get(type(maker))


def _fitted(maker: Op, expression: HostExpression) -> HostExpression:
    """Round or wrap what an operation makes where its dtype holds less than the host does."""
    dtype = maker.results[0].tile.dtype
    is_wide = dtype is f64 or (dtype is i64 and not isinstance(maker, ops.ShiftLeft))
    return expression if is_wide or type(maker) in _STAYS else (dtype.name, expression)


def _is_host(maker: Op) -> bool:
    return isinstance(maker, ops.Elementwise)


def _cast(maker: ops.Cast, operands: list[HostExpression]) -> HostExpression:
    return ("ne", *operands, 0) if maker.dtype.kind == BOOL else (maker.dtype.name, *operands)
