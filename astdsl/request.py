"""What is to be compiled: a Python function, the classes of its arguments, its constants.

Invariant: a request names all that the compiler is told, and its key does not depend on sizes.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from astdsl.ir.dtypes import DType, f4e2m1, u8
from astdsl.ir.types import RefType, TileType, scalar
from astdsl.lang.params import DEFAULTS, CompilerParams
from astdsl.records import dataclass
from astdsl.runtime.classes import Geometry, ref_type

# A dim of a parameter: its name and the axis.
DimKey = tuple[str, int]


class Itself:
    """An object without a hash as a key: only it itself equals it."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other._value is self._value


def as_key(receiver: Any) -> Any:
    """Return what tells the object of a method from others: itself, where it has no hash."""
    try:
        hash(receiver)
    except TypeError:
        return Itself(receiver)
    return receiver


@dataclass(frozen=True, slots=True)
class RequestedArgument:
    """What a parameter is to be compiled for: an array's geometry, a scalar, or nothing.

    One that is left out has no dtype. `static` holds the dims that the annotation fixes, `names`
    the dims' names ("" for none).
    """

    name: str
    role: str
    dtype: DType | None
    geometry: Geometry | None = None
    static: tuple[int | None, ...] = ()
    names: tuple[str, ...] = ()
    initial: float | int | bool | None = None

    def type_with(self, static: frozenset[DimKey]) -> RefType | TileType | None:
        """Return the parameter's type, with more dims made compile-time constants."""
        if self.dtype is None:
            return None
        if self.geometry is None:
            return scalar(self.dtype)
        dims = tuple(
            extent if known is not None or (self.name, axis) in static else None
            for axis, (extent, known) in enumerate(
                zip(self.geometry.shape, self.static, strict=True)
            )
        )
        return ref_type(self.geometry, u8 if self.is_packed else self.dtype, dims)

    @property
    def is_packed(self) -> bool:
        """Whether it is bytes that hold two f4e2m1 each."""
        return self.dtype is f4e2m1 and self.geometry is not None and self.geometry.dtype is u8


@dataclass(frozen=True, slots=True)
class Request:
    """A kernel to be compiled: the function, its arguments, its constants.

    One that is to be checked is rehearsed for the shapes of its arguments, if it is written by
    hand.
    """

    function: FunctionType | None
    name: str
    arguments: tuple[RequestedArgument, ...]
    constants: dict[str, Any]
    constants_key: tuple[Any, ...]
    warpgroups: int = 0
    params: CompilerParams = DEFAULTS

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells this request from others of the same function, static dims left out."""
        types = tuple(a.type_with(frozenset()) for a in self.arguments)
        return (types, self.constants_key)
