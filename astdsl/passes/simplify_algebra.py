"""Replace operations by simpler ones that give the same bits.

Before:
    %a: i64 = Multiply %x, %one
    %b: f32[64] = Reshape %y shape=(64)
    %c: f32[64] = Power %y, %two

After:
    %c: f32[64] = Multiply %y, %y        (and %x for %a, %y for %b)

Of floats only what IEEE allows: x * 1 is x, x + 0 is not (it makes +0 of -0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from astdsl.ir import ops
from astdsl.ir.core import Module, Op, Value
from astdsl.ir.dtypes import DType, f16, f32, f64
from astdsl.ir.rewrite import Emit, replace_body, rewrite_block
from astdsl.records import dataclass, field

Rule: TypeAlias = Callable[[Any, "_Known", Emit], Value | None]


def simplify_algebra(module: Module) -> Module:
    """Return the module with simpler operations in place of those that have one."""
    known = _Known()
    return replace_body(module, rewrite_block(module.body, known.simplify))


@dataclass(slots=True)
class _Known:
    made_by: dict[Value, Op] = field(default_factory=dict)

    def simplify(self, op: Op, emit: Emit) -> Sequence[Value] | None:
        """Return the value that replaces an operation's result, or None."""
        for rule in _RULES.get(type(op), ()):
            value = rule(op, self, self._noting(emit))
            if value is not None:
                return (value,)
        self.made_by.update(dict.fromkeys(op.results, op))
        return None

    def _noting(self, emit: Emit) -> Emit:
        def noted(op: Op) -> Op:
            self.made_by.update(dict.fromkeys(op.results, op))
            emit(op)
            return op

        return noted

    def number(self, value: Value) -> float | int | bool | None:
        """Return the number that a tile holds everywhere, None where that is not known."""
        op = self.made_by.get(value)
        return op.value if isinstance(op, ops.Constant) else None

    def maker(self, value: Value, kind: type[Any]) -> Any:
        """Return the operation that made a value if it is of a kind, else None."""
        op = self.made_by.get(value)
        return op if isinstance(op, kind) else None


def _is(number: float | int | bool | None, wanted: int) -> bool:
    return number is not None and number == wanted


def _neutral_right(number: int, *, of_floats: bool = False) -> Rule:
    """Make the rule that `x op number` is x."""

    def rule(op: ops.Binary, known: _Known, _emit: Emit) -> Value | None:
        allowed = of_floats or not op.x.tile.dtype.is_float
        return op.x if allowed and _is(known.number(op.y), number) else None

    return rule


def _neutral_left(number: int, *, of_floats: bool = False) -> Rule:
    """Make the rule that `number op y` is y."""

    def rule(op: ops.Binary, known: _Known, _emit: Emit) -> Value | None:
        allowed = of_floats or not op.x.tile.dtype.is_float
        return op.y if allowed and _is(known.number(op.x), number) else None

    return rule


def _absorbing(number: int) -> Rule:
    """Make the rule that `x op number` is that number, whatever x is; of integers."""

    def rule(op: ops.Binary, known: _Known, _emit: Emit) -> Value | None:
        if op.x.tile.dtype.is_float:
            return None
        return next((v for v in (op.x, op.y) if _is(known.number(v), number)), None)

    return rule


def _same_operands(op: ops.Binary, _known: _Known, _emit: Emit) -> Value | None:
    """`x op x` is x."""
    return op.x if op.x is op.y else None


def _becomes_zero(op: ops.Binary, _known: _Known, emit: Emit) -> Value | None:
    """`x op x` is 0; of integers."""
    if op.x is not op.y or op.x.tile.dtype.is_float:
        return None
    return _constant(op, 0, emit)


def _remainder_by_one(op: ops.Remainder, known: _Known, emit: Emit) -> Value | None:
    is_integer = op.x.tile.dtype.is_integer
    return _constant(op, 0, emit) if is_integer and _is(known.number(op.y), 1) else None


def _constant(op: Op, value: int, emit: Emit) -> Value:
    made = emit(ops.Constant(span=op.span, value=value, type=op.result.tile))
    found: Value = made.result
    return found


def _square(op: ops.Power, known: _Known, emit: Emit) -> Value | None:
    """`x ** 2` is `x * x`; of floats where that product, rounded once, is the power."""
    dtype = op.x.tile.dtype
    is_exact = dtype in (f32, f16) or dtype.is_integer
    if not is_exact or not _is(known.number(op.y), 2):
        return None
    found: Value = emit(ops.Multiply(span=op.span, x=op.x, y=op.x)).result
    found.hint = op.result.hint
    return found


def _twice(op: ops.Unary, known: _Known, _emit: Emit) -> Value | None:
    """`op op x` is x."""
    inner = known.maker(op.x, type(op))
    return None if inner is None else _value(inner.x)


def _once(op: ops.Unary, known: _Known, _emit: Emit) -> Value | None:
    """`op op x` is `op x`."""
    return None if known.maker(op.x, type(op)) is None else op.x


def _value(value: Any) -> Value:
    assert isinstance(value, Value), "an operand is a value"
    return value


def _select(op: ops.Select, known: _Known, _emit: Emit) -> Value | None:
    if op.x is op.y:
        return op.x
    condition = known.number(op.condition)
    return None if condition is None else (op.x if condition else op.y)


def _select_of_cast(op: ops.Select, known: _Known, emit: Emit) -> Value | None:
    """Choose between a float and 0 before it is narrowed: another mask of it may be the same."""
    inner, dtype = known.maker(op.x, ops.Cast), op.x.tile.dtype
    if inner is None or not _is_positive_zero(known.number(op.y)):
        return None
    if not (dtype.is_float and inner.x.tile.dtype.is_float) or inner.x.tile.dtype.bits < dtype.bits:
        return None
    zero = emit(ops.Constant(span=op.span, value=0.0, type=inner.x.tile)).result
    chosen = emit(ops.Select(span=op.span, condition=op.condition, x=inner.x, y=zero)).result
    made = emit(ops.Cast(span=op.span, x=chosen, dtype=dtype)).result
    made.hint = op.result.hint
    return _value(made)


def _is_positive_zero(number: float | int | bool | None) -> bool:
    return number is not None and number == 0 and math.copysign(1, number) > 0


def _widens(narrow: DType, wide: DType) -> bool:
    """Return whether every value of `narrow` is one of `wide`, and comes back the same."""
    if narrow.is_float:
        return wide is f64 or (wide is f32 and narrow.bits < f32.bits)
    same_kind = narrow.kind == wide.kind and narrow.is_integer
    return same_kind and narrow.bits <= wide.bits


def _cast(op: ops.Cast, known: _Known, _emit: Emit) -> Value | None:
    """Drop a cast to the same type, or back from a wider one."""
    if op.x.tile.dtype is op.dtype:
        return op.x
    inner = known.maker(op.x, ops.Cast)
    if inner is None or inner.x.tile.dtype is not op.dtype:
        return None
    return _value(inner.x) if _widens(op.dtype, inner.dtype) else None


def _bitcast(op: ops.Bitcast, known: _Known, _emit: Emit) -> Value | None:
    if op.x.tile.dtype is op.dtype:
        return op.x
    inner = known.maker(op.x, ops.Bitcast)
    return _value(inner.x) if inner is not None and inner.x.tile.dtype is op.dtype else None


def _same_shape(op: Any, _known: _Known, _emit: Emit) -> Value | None:
    return _value(op.x) if op.x.tile.shape == op.shape else None


def _through(kind: type[Any]) -> Rule:
    """Make the rule that of `op` of another `op` only the outer one is needed."""

    def rule(op: Any, known: _Known, emit: Emit) -> Value | None:
        inner = known.maker(op.x, kind)
        if inner is None:
            return None
        if inner.x.tile.shape == op.shape:
            return _value(inner.x)
        made = emit(kind(span=op.span, x=inner.x, shape=op.shape)).result
        made.hint = op.result.hint
        return _value(made)

    return rule


def _transpose(op: ops.Transpose, known: _Known, emit: Emit) -> Value | None:
    permutation, source = op.permutation, op.x
    inner = known.maker(op.x, ops.Transpose)
    if inner is not None:
        permutation, source = tuple(inner.permutation[p] for p in permutation), inner.x
    if permutation == tuple(range(len(permutation))):
        return source
    if inner is None:
        return None
    made = emit(ops.Transpose(span=op.span, x=source, permutation=permutation)).result
    made.hint = op.result.hint
    return _value(made)


def _whole_slice(op: ops.Slice, _known: _Known, _emit: Emit) -> Value | None:
    is_whole = op.sizes == op.x.tile.shape and not any(op.starts) and set(op.steps) <= {1}
    return op.x if is_whole else None


_RULES: Mapping[type[Op], tuple[Rule, ...]] = {
    ops.Add: (_neutral_right(0), _neutral_left(0)),
    ops.Subtract: (_neutral_right(0), _becomes_zero),
    ops.Multiply: (
        _neutral_right(1, of_floats=True),
        _neutral_left(1, of_floats=True),
        _absorbing(0),
    ),
    ops.Divide: (_neutral_right(1, of_floats=True),),
    ops.FloorDivide: (_neutral_right(1),),
    ops.Remainder: (_remainder_by_one,),
    ops.Power: (_neutral_right(1), _square),
    ops.Minimum: (_same_operands,),
    ops.Maximum: (_same_operands,),
    ops.BitAnd: (_same_operands, _absorbing(0)),
    ops.BitOr: (_same_operands, _neutral_right(0), _neutral_left(0)),
    ops.BitXor: (_becomes_zero, _neutral_right(0), _neutral_left(0)),
    ops.ShiftLeft: (_neutral_right(0),),
    ops.ShiftRight: (_neutral_right(0),),
    ops.Negate: (_twice,),
    ops.Invert: (_twice,),
    ops.Absolute: (_once,),
    ops.Floor: (_once,),
    ops.Ceil: (_once,),
    ops.Round: (_once,),
    ops.Select: (_select, _select_of_cast),
    ops.Cast: (_cast,),
    ops.Bitcast: (_bitcast,),
    ops.Broadcast: (_same_shape, _through(ops.Broadcast)),
    ops.Reshape: (_same_shape, _through(ops.Reshape)),
    ops.Transpose: (_transpose,),
    ops.Slice: (_whole_slice,),
}
