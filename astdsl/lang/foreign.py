"""What other libraries call things, and what to write here instead.

Invariant: tables of names, and questions about types; nothing here knows a kernel value.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType

from astdsl.errors import did_you_mean

# How other libraries call what tiles have under another name.
ELSEWHERE = {
    "to": "`t.astype(dtype)` converts", "type": "`t.astype(dtype)` converts",
    "float": "`t.astype(f32)` converts", "half": "`t.astype(f16)` converts",
    "view": "`t.reshape(shape)` keeps the elements", "flatten": "`t.reshape(-1)` is one axis",
    "ravel": "`t.reshape(-1)` is one axis", "permute": "`t.transpose(axes)` permutes axes",
    "swapaxes": "`t.transpose(axes)` permutes axes", "mT": "`t.T` reverses the axes",
    "unsqueeze": "`t[:, None]` adds an axis", "expand": "`broadcast_to(t, shape)` repeats",
    "item": "a scalar of the kernel is used as it is", "copy": "a tile never changes",
}  # fmt: skip

# NumPy's scalars come here first when they stand on the left: `np.float32(2) * tile`.
UFUNC_OPERATORS = {
    "add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__",
    "true_divide": "__rtruediv__", "floor_divide": "__rfloordiv__", "remainder": "__rmod__",
    "power": "__rpow__", "bitwise_and": "__rand__", "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__", "left_shift": "__rlshift__", "right_shift": "__rrshift__",
    "equal": "__eq__", "not_equal": "__ne__", "less": "__gt__", "less_equal": "__ge__",
    "greater": "__lt__", "greater_equal": "__le__",
}  # fmt: skip

# Functions of NumPy and math that astdsl has under the same name.
OURS = frozenset({
    "abs", "all", "any", "arange", "argmax", "argmin", "broadcast_to", "ceil", "clip", "cos", "dot",
    "erf", "exp", "exp2", "expand_dims", "floor", "fma", "full", "isinf", "isnan", "log", "log2",
    "max", "maximum", "mean", "min", "minimum", "ones", "pow", "prod", "reshape", "round", "sin",
    "sqrt", "squeeze", "sum", "tanh", "transpose", "where", "zeros",
})  # fmt: skip


def attribute_help(name: str, known: Sequence[str]) -> str:
    """Return what to write instead of an attribute that tiles do not have."""
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    if name in OURS:
        return f"`{name}(t)` is a function"
    return did_you_mean(name, known) or f"it has {', '.join(known)}"


# What the other operand of a comparison is asked.
MIRRORED = {
    "__lt__": "__gt__", "__gt__": "__lt__", "__le__": "__ge__", "__ge__": "__le__",
    "__eq__": "__eq__", "__ne__": "__ne__",
}  # fmt: skip


def answers(other: object, operator: str) -> bool:
    """Whether the other operand of an operator is a user's object that says what it means."""
    kind = type(other)
    found = getattr(kind, MIRRORED.get(operator, f"__r{operator[2:]}"), None)
    is_array = hasattr(kind, "__dlpack__") or hasattr(kind, "__array__")
    is_ours = kind.__module__.partition(".")[0] == "astdsl"
    return type(found) is FunctionType and not (is_array or is_ours)
