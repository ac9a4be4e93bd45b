"""The rows of elementwise operations: what each takes, and does to index forms and edges.

Invariant: a row holds data and small pure rules only; `elementwise` traces it.
"""

from __future__ import annotations

from astdsl.ir import ops
from astdsl.ir.dtypes import BOOL, INT, UINT
from astdsl.lang.elementwise import INTEGRAL, NUMERIC, Binary, Unary
from astdsl.lang.ragged import (
    StateRule,
    all_zero,
    difference_state,
    lost,
    product_state,
    quotient_state,
    sum_state,
)
from astdsl.lang.symbolic import (
    ANY_INDEX,
    MOST_FACTORS,
    MOST_TERMS,
    Bounds,
    Form,
    multiply_bounds,
)

BITS = (BOOL, INT, UINT)


def _sum_bounds(x: Bounds, y: Bounds) -> Bounds:
    return (x[0] + y[0], x[1] + y[1])


def _difference_bounds(x: Bounds, y: Bounds) -> Bounds:
    return (x[0] - y[1], x[1] - y[0])


def _quotient_bounds(x: Bounds, y: Bounds) -> Bounds:
    if y[0] <= 0:
        return ANY_INDEX
    corners = [a // b for a in x for b in y]
    return (min(corners), max(corners))


def _remainder_bounds(x: Bounds, y: Bounds) -> Bounds:
    if y[0] <= 0:
        return ANY_INDEX
    return (0, min(x[1], y[1] - 1) if x[0] >= 0 else y[1] - 1)


def _minimum_bounds(x: Bounds, y: Bounds) -> Bounds:
    return (min(x[0], y[0]), min(x[1], y[1]))


def _maximum_bounds(x: Bounds, y: Bounds) -> Bounds:
    return (max(x[0], y[0]), max(x[1], y[1]))


def _sum_form(x: Form, y: Form) -> Form | None:
    return _unless_long(x + y)


def _difference_form(x: Form, y: Form) -> Form | None:
    return _unless_long(x - y)


def _unless_long(form: Form) -> Form | None:
    return form if len(form.terms) <= MOST_TERMS else None


def _product_form(x: Form, y: Form) -> Form | None:
    if len(x.terms) * len(y.terms) > MOST_TERMS or x.degree + y.degree > MOST_FACTORS:
        return None
    return x * y


def _quotient_form(x: Form, y: Form) -> Form | None:
    """Divide where every coefficient is divisible: the quotient is then exact."""
    divisor = y.constant
    if divisor and all(c % divisor == 0 for c in x.terms.values()):
        return Form({m: c // divisor for m, c in x.terms.items()})
    return None


ADD = Binary(
    ops.Add,
    "`+`",
    state=sum_state,
    form=_sum_form,
    bounds=_sum_bounds,
)
SUBTRACT = Binary(
    ops.Subtract,
    "`-`",
    state=difference_state,
    form=_difference_form,
    bounds=_difference_bounds,
)
MULTIPLY = Binary(
    ops.Multiply,
    "`*`",
    state=product_state,
    form=_product_form,
    bounds=multiply_bounds,
)
DIVIDE = Binary(ops.Divide, "`/`", state=quotient_state, floats=True)
FLOOR_DIVIDE = Binary(
    ops.FloorDivide, "`//`", state=quotient_state, form=_quotient_form, bounds=_quotient_bounds
)
REMAINDER = Binary(
    ops.Remainder,
    "`%`",
    state=quotient_state,
    bounds=_remainder_bounds,
)
POWER = Binary(ops.Power, "`**`")
BIT_AND = Binary(ops.BitAnd, "`&`", kinds=BITS, state=all_zero)
BIT_OR = Binary(ops.BitOr, "`|`", kinds=BITS, state=sum_state)
BIT_XOR = Binary(ops.BitXor, "`^`", kinds=BITS, state=sum_state)
SHIFT_LEFT = Binary(ops.ShiftLeft, "`<<`", kinds=INTEGRAL, state=quotient_state)
SHIFT_RIGHT = Binary(ops.ShiftRight, "`>>`", kinds=INTEGRAL, state=quotient_state)
MINIMUM = Binary(
    ops.Minimum,
    "`minimum`",
    state=all_zero,
    bounds=_minimum_bounds,
)
MAXIMUM = Binary(
    ops.Maximum,
    "`maximum`",
    state=all_zero,
    bounds=_maximum_bounds,
)


def _compare(predicate: str, symbol: str, state: StateRule) -> Binary:
    return Binary(
        ops.Compare,
        symbol,
        kinds=(*NUMERIC, BOOL),
        state=state,
        attributes=(("predicate", predicate),),
    )


EQUAL = _compare("eq", "`==`", lost)
NOT_EQUAL = _compare("ne", "`!=`", all_zero)
LESS = _compare("lt", "`<`", all_zero)
LESS_EQUAL = _compare("le", "`<=`", lost)
GREATER = _compare("gt", "`>`", all_zero)
GREATER_EQUAL = _compare("ge", "`>=`", lost)

NEGATE = Unary(ops.Negate, "`-`", state=all_zero, form=Form.__neg__)
INVERT = Unary(ops.Invert, "`~`", kinds=BITS)
ABSOLUTE = Unary(ops.Absolute, "`abs`", state=all_zero)
EXP = Unary(ops.Exp, "`exp`", floats=True)
EXP2 = Unary(ops.Exp2, "`exp2`", floats=True)
LOG = Unary(ops.Log, "`log`", floats=True)
LOG2 = Unary(ops.Log2, "`log2`", floats=True)
SQRT = Unary(ops.Sqrt, "`sqrt`", floats=True, state=all_zero)
RSQRT = Unary(ops.Rsqrt, "`rsqrt`", floats=True)
TANH = Unary(ops.Tanh, "`tanh`", floats=True, state=all_zero)
ERF = Unary(ops.Erf, "`erf`", floats=True, state=all_zero)
SIN = Unary(ops.Sin, "`sin`", floats=True, state=all_zero)
COS = Unary(ops.Cos, "`cos`", floats=True)
FLOOR = Unary(ops.Floor, "`floor`", identity_on_integers=True, state=all_zero)
CEIL = Unary(ops.Ceil, "`ceil`", identity_on_integers=True, state=all_zero)
ROUND = Unary(ops.Round, "`round`", identity_on_integers=True, state=all_zero)
ISNAN = Unary(ops.IsNan, "`isnan`", floats=True, state=all_zero)
ISINF = Unary(ops.IsInf, "`isinf`", floats=True, state=all_zero)

# How the operators of augmented assignments are written.
SYMBOLS = {
    "__add__": "+", "__sub__": "-", "__mul__": "*", "__truediv__": "/", "__floordiv__": "//",
    "__mod__": "%", "__pow__": "**", "__and__": "&", "__or__": "|", "__xor__": "^",
    "__lshift__": "<<", "__rshift__": ">>",
}  # fmt: skip
