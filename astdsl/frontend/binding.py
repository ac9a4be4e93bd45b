"""Which argument of a call is which parameter, and what numbers become.

Invariant: nothing here looks at arrays; a number that its dtype does not hold is refused.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np

from astdsl.errors import BadArgument, NotConstant, did_you_mean
from astdsl.frontend.signature import MISSING, Parameter, Signature
from astdsl.ir.dtypes import BOOL, DType, boolean, f32, f64, i32
from astdsl.records import dataclass, field


@dataclass(slots=True)
class Bound:
    """The arguments of a call by parameter: those given, and the constants."""

    given: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)


def bind(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """Say which argument is which. Raises BadArgument.

    Omitted outputs are absent from `given`; omitted optional parameters are None.
    """
    names = [p.name for p in signature.params]
    if len(args) > len(names):
        raise BadArgument(
            f"`{signature.name}` takes {_count(len(names), 'positional argument')}, "
            f"got {len(args)}",
            (signature.span, ""),
            help="compile-time constants are passed by name" if signature.constants else "",
        )
    bound = Bound(given=dict(zip(names, args, strict=False)))
    constants = {c.name for c in signature.constants}
    for name, value in kwargs.items():
        if name in bound.given:
            raise BadArgument(
                f"`{name}` is given twice",
                (signature.span, ""),
                help="it is passed by position already",
            )
        if name not in constants and name not in names:
            known = [*names, *constants]
            raise BadArgument(
                f"`{signature.name}` has no parameter `{name}`",
                (signature.span, ""),
                help=did_you_mean(name, known) or f"it has {', '.join(f'`{k}`' for k in known)}",
            )
        (bound.constants if name in constants else bound.given)[name] = value
    _fill_constants(signature, bound)
    _fill_defaults(signature, bound)
    return bound


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _fill_constants(signature: Signature, bound: Bound) -> None:
    ordered = {}
    for constant in signature.constants:
        value = bound.constants.get(constant.name, constant.default)
        if value is MISSING:
            raise BadArgument(
                f"`{signature.name}` needs the constant `{constant.name}`",
                (constant.span, ""),
                help=f"pass it by name: `{constant.name}=...`",
            )
        try:
            hash(value)
        except NotConstant:  # a value of the kernel around the call, which names the constant
            pass
        except TypeError:
            raise BadArgument(
                f"the constant `{constant.name}` is a {type(value).__name__}, which has no hash",
                (constant.span, ""),
                help="pass arrays as `In` parameters, and tuples instead of lists",
            ) from None
        ordered[constant.name] = value
    bound.constants = ordered


def _fill_defaults(signature: Signature, bound: Bound) -> None:
    for p in signature.params:
        is_omitted = p.name not in bound.given
        if is_omitted and p.default is not MISSING:
            bound.given[p.name] = p.default
        elif is_omitted and p.optional:
            bound.given[p.name] = None
        elif is_omitted and (p.spec is None or p.spec.role != "out"):
            raise BadArgument(
                f"`{signature.name}` needs `{p.name}`",
                p.place,
                help=_how_to_pass(signature, bound, p),
            )
        if p.spec is not None and p.name in bound.given and bound.given[p.name] is None:
            _check_none(p, bound)


def _how_to_pass(signature: Signature, bound: Bound, missing: Parameter) -> str:
    """Say how a parameter is passed; a number may have taken the place of an output before it."""
    outputs = [p for p in signature.params if p.spec is not None and p.spec.role == "out"]
    for p in outputs:
        value = bound.given.get(p.name)
        if isinstance(value, Number):
            return (
                f"{value!r} was passed as the output `{p.name}`: pass an array or None there, or "
                f"what comes after it by name, `{missing.name}=...`"
            )
    return f"pass it by position, or by name: `{missing.name}=...`"


def _check_none(p: Parameter, bound: Bound) -> None:
    assert p.spec is not None, "only arrays may be None"
    if p.optional:
        return
    if p.spec.role == "out":
        del bound.given[p.name]
        return
    raise BadArgument(
        f"`{p.name}` takes an array, got None",
        p.place,
        help="annotate it `In[...] | None` if it may be left out",
    )


def scalar_dtype(p: Parameter, kind: type) -> DType:
    """Return the dtype that a scalar takes from a Python or NumPy number of a type.

    Raises BadArgument for what is no number, and for a float where an integer is wanted.
    """
    if not issubclass(kind, (bool, int, float, np.bool_, np.integer, np.floating)):
        way_out = (
            f"annotate it `{p.name}: In[...]` if it is an array (a `lambda` cannot: write a "
            "`def`); put a compile-time constant after `*`"
        )
        if issubclass(kind, type):
            way_out = "put `@kernel` above `@classmethod`, which then gives the class"
        raise BadArgument(f"`{p.name}` takes a number, got {kind.__name__}", p.place, help=way_out)
    is_bool = issubclass(kind, (bool, np.bool_))
    is_float = issubclass(kind, (float, np.floating))
    dtype = p.dtype or (boolean if is_bool else f32 if is_float else i32)
    if is_float and not dtype.is_float:
        raise BadArgument(
            f"`{p.name}` takes {dtype.name}, got a {kind.__name__}",
            p.place,
            help="convert it, for example by `int(...)`",
        )
    return dtype


def scalar_converter(p: Parameter, kind: type) -> Callable[[Any], Any]:
    """Return the function that brings numbers of a type to the parameter's dtype."""
    dtype = scalar_dtype(p, kind)
    if dtype.is_float:
        return lambda value: _round(p, dtype, value)
    if dtype.kind == BOOL:
        return bool
    info = np.iinfo(dtype.numpy)
    low, high = int(info.min), int(info.max)

    def convert(value: Any) -> int:
        number = int(value)
        if low <= number <= high:
            return number
        raise BadArgument(
            f"`{p.name}` is {number}, which {dtype.name} does not hold",
            p.place,
            help=f"it holds {low} to {high}; annotate a wider dtype",
        )

    return convert


def _round(p: Parameter, dtype: DType, value: Any) -> float:
    rounder = _ROUNDERS.get(dtype)
    rounded = rounder(value) if rounder else _round_by_numpy(dtype, value)
    if math.isinf(rounded) and not math.isinf(value):
        raise BadArgument(
            f"`{p.name}` is {value}, which {dtype.name} does not hold",
            p.place,
            help="annotate a wider dtype",
        )
    return rounded


def _round_by_numpy(dtype: DType, value: Any) -> float:
    with np.errstate(over="ignore"):
        return float(np.asarray(float(value)).astype(dtype.numpy))


# The usual dtypes without NumPy's dispatch, which a launch would pay for.
_ROUNDERS: dict[DType, Callable[[Any], float]] = {
    f32: lambda value: ctypes.c_float(value).value,
    f64: float,
}
