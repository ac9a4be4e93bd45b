"""Elementwise operations: what each element of the result is, from the same element of operands.

Invariant: operands of one operation have one shape, and one dtype except where a field says
otherwise; broadcasting and conversion are operations of their own.
"""

from __future__ import annotations

from astdsl.ir.core import WRITES, Op, Value
from astdsl.ir.dtypes import DType, boolean
from astdsl.ir.types import TileType, Type


class Constant(Op):
    """A tile with one number everywhere. `value` is a Python bool, int or float."""

    value: float | int | bool
    type: TileType

    def result_types(self) -> tuple[Type, ...]:
        return (self.type,)

    def result_hint(self) -> str:
        if self.type.shape or self.type.dtype.is_float:
            return ""
        text = f"c{self.value}" if self.type.dtype.is_integer else str(self.value).lower()
        return text.replace("-", "m")


class Elementwise(Op):
    """An operation whose result element depends only on the operands' elements there."""

    def result_types(self) -> tuple[Type, ...]:
        return (self.operands[0].tile,)

    def verify(self) -> None:
        first = self.operands[0].tile
        if any(v.type is not first and v.tile != first for v in self.operands):
            types = sorted({str(v.tile) for v in self.operands})
            raise AssertionError(f"{type(self).__name__}: operands differ: {types}")


class Unary(Elementwise):
    """An elementwise operation on one tile."""

    x: Value


class Binary(Elementwise):
    """An elementwise operation on two tiles."""

    x: Value
    y: Value


class Add(Binary):
    """`x + y`; integers wrap, floats round to nearest even."""


class Subtract(Binary):
    """`x - y`."""


class Multiply(Binary):
    """`x * y`."""


class Divide(Binary):
    """`x / y` of floats, IEEE."""


class FloorDivide(Binary):
    """`x // y`, rounded to minus infinity as in Python; integer division by 0 gives 0."""


class Remainder(Binary):
    """`x % y` with the sign of `y`, as in Python; integer remainder by 0 gives 0."""


class Power(Binary):
    """`x ** y`; of integers modulo 2**bits, a negative exponent giving 0 unless |x| is 1."""


class Minimum(Binary):
    """The smaller; NaN if either is NaN; -0 before +0."""


class Maximum(Binary):
    """The larger; NaN if either is NaN; +0 before -0."""


class BitAnd(Binary):
    """`x & y` of integers or bools."""


class BitOr(Binary):
    """`x | y` of integers or bools."""


class BitXor(Binary):
    """`x ^ y` of integers or bools."""


class ShiftLeft(Binary):
    """`x << y`; 0 for counts at or over the width (negative counts too)."""


class ShiftRight(Binary):
    """`x >> y`, arithmetic when signed; counts at or over the width act as width - 1, or give 0."""


class Negate(Unary):
    """`-x`."""


class Absolute(Unary):
    """`|x|`; the least integer stays itself."""


class Invert(Unary):
    """`~x`; of bools, not."""


class Sqrt(Unary):
    """Square root, IEEE."""


class Rsqrt(Unary):
    """`1 / sqrt(x)`."""


class Exp(Unary):
    """e to the power x."""


class Exp2(Unary):
    """2 to the power x."""


class Log(Unary):
    """Natural logarithm."""


class Log2(Unary):
    """Logarithm to base 2."""


class Tanh(Unary):
    """Hyperbolic tangent."""


class Erf(Unary):
    """The error function."""


class Sin(Unary):
    """Sine of radians."""


class Cos(Unary):
    """Cosine of radians."""


class Floor(Unary):
    """Round to minus infinity."""


class Ceil(Unary):
    """Round to plus infinity."""


class Round(Unary):
    """Round to nearest, ties to even."""


class IsNan(Unary):
    """Whether each element is NaN, as bool."""

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(self.x.tile.shape, boolean),)


class IsInf(Unary):
    """Whether each element is infinite, as bool."""

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(self.x.tile.shape, boolean),)


class Fma(Elementwise):
    """`x * y + z`, rounded once."""

    x: Value
    y: Value
    z: Value


class Compare(Binary):
    """`x predicate y` as bool; `predicate` is eq, ne, lt, le, gt or ge; NaN is unordered."""

    predicate: str

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(self.x.tile.shape, boolean),)

    def verify(self) -> None:
        super().verify()
        assert self.predicate in ("eq", "ne", "lt", "le", "gt", "ge"), self.predicate


class Select(Elementwise):
    """`x` where `condition`, else `y`."""

    condition: Value
    x: Value
    y: Value

    def result_types(self) -> tuple[Type, ...]:
        return (self.x.tile,)

    def verify(self) -> None:
        assert self.x.type == self.y.type, f"Select: {self.x.type} and {self.y.type}"
        expected = TileType(self.x.tile.shape, boolean)
        assert self.condition.type == expected, f"Select: condition is {self.condition.type}"


class Cast(Elementwise):
    """Conversion of value.

    Float to float goes to nearest even (8-bit floats saturate, infinities too); float to integer
    towards zero and saturating, NaN to 0; integers truncate or extend; to bool is `!= 0`.
    """

    x: Value
    dtype: DType

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(self.x.tile.shape, self.dtype),)

    def verify(self) -> None:
        """Any dtype converts to any."""


class Bitcast(Elementwise):
    """The same bits as another dtype of the same width."""

    x: Value
    dtype: DType

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(self.x.tile.shape, self.dtype),)

    def verify(self) -> None:
        assert self.x.tile.dtype.bits == self.dtype.bits, "Bitcast: widths differ"


class InlinePtx(Op):
    """Run a text of PTX for each element: `$0`, ... are the results', then those of `xs`.

    `meaning` is what the results are, for who runs no PTX; empty where that is not known.
    """

    effect = WRITES
    xs: tuple[Value, ...]
    meaning: tuple[Value, ...] = ()
    text: str
    shape: tuple[int, ...]
    dtypes: tuple[DType, ...]

    def result_types(self) -> tuple[Type, ...]:
        return tuple(TileType(self.shape, dtype) for dtype in self.dtypes)

    def verify(self) -> None:
        assert all(x.tile.shape == self.shape for x in self.xs), "InlinePtx: shapes differ"
        meant = tuple(x.type for x in self.meaning)
        assert not meant or meant == self.result_types(), f"InlinePtx: meaning is {meant}"
