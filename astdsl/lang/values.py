"""Tiles: the values that a kernel computes with while it is traced.

Invariant: a tile is one IR value and what is known of it while tracing; it never changes. What its
operators and methods do stands in `METHODS`, filled once by the modules of lang at import.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np

from astdsl.errors import (
    NotConstant,
    TypeMismatch,
    UnknownName,
    UnsupportedFeature,
)
from astdsl.ir.core import Value
from astdsl.ir.dtypes import (
    BOOL,
    FLOAT,
    INT,
    DType,
    bf16,
    boolean,
    f4e2m1,
    f8e4m3,
    f8e5m2,
    f8e8m0,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    named_dtype,
    u8,
    u16,
    u32,
    u64,
)  # fmt: skip
from astdsl.lang.foreign import OURS, UFUNC_OPERATORS, answers, attribute_help
from astdsl.lang.ragged import FINITE, NO_EDGES, PLAIN, REPEATED, ZERO, Edges
from astdsl.lang.symbolic import ANY_INDEX, Bounds, Dims, Form
from astdsl.lang.tracing import NeedsConstant, fault

ATTRIBUTES = ("shape", "dtype", "ndim", "size", "T")
TAKES_A_CONDITION = (
    "an `if` statement of the kernel takes it, in helpers and methods too; "
    "`where(condition, a, b)` chooses anywhere"
)
INT32: Bounds = (-(2**31), 2**31 - 1)
METHODS: dict[str, Callable[..., Any]] = {}
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def method(*names: str) -> Callable[[AnyFunction], AnyFunction]:
    """Register a function as what methods or operators of tiles do."""

    def register(function: AnyFunction) -> AnyFunction:
        for name in names:
            assert name not in METHODS, f"tile method {name} is registered twice"
            METHODS[name] = function
        return function

    return register


class UnknownAttribute(UnknownName, AttributeError):
    """A misspelt attribute of a kernel value; `hasattr` and `getattr` see an AttributeError."""


class Tile:
    """A value of static shape in a kernel; one of shape `()` is a scalar.

    `weak` numbers take the dtype of what they meet. Of integer scalars `form` is what they are in
    terms of indices and dims; `bounds` enclose weak integers; `dims` are the dims that the value
    is computed from if from nothing else; `edges` say which elements lie outside. `origin` is the
    window of a view that it was just read from, where that may end before the array does.
    """

    __slots__ = ("bounds", "dims", "edges", "form", "origin", "value", "weak")

    def __init__(
        self,
        value: Value,
        *,
        weak: bool = False,
        form: Form | None = None,
        bounds: Bounds = ANY_INDEX,
        dims: Dims = None,
        edges: Edges = NO_EDGES,
        origin: Any = None,
    ) -> None:
        self.value = value
        self.origin = origin
        self.weak = weak
        self.form = form
        self.bounds = bounds
        self.dims = dims
        self.edges = edges

    @property
    def kind(self) -> str:
        """The kind of its elements: float, int, uint or bool."""
        return self.value.tile.dtype.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each axis."""
        return self.value.tile.shape

    @property
    def dtype(self) -> DType:
        """The element type; of a weak number the one that it has when it meets no other."""
        return settled_dtype(self)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.value.tile.elements

    @property
    def T(self) -> Tile:  # noqa: N802  (the array API's name)
        """The tile with its axes in reverse order."""
        return self._do("transpose")

    def __repr__(self) -> str:
        dims = f"[{'x'.join(map(str, self.shape))}]" if self.shape else ""
        return f"{self.dtype.name}{dims}"

    def __copy__(self) -> Tile:
        return self

    def __deepcopy__(self, memo: object) -> Tile:
        # A tile never changes: it is its own copy, also inside of objects that Python copies.
        return self

    def __format__(self, spec: str) -> str:
        numeric = spec[-1:].isalpha() and spec[-1] != "s"
        if numeric or "." in spec:
            raise fault(
                NotConstant,
                f"{self} is known only when the kernel runs, and the text is made while tracing",
                (self.value, "it comes from here"),
                help="without a format (`{x}`) `print` and messages of `assert` tell its value, "
                "other texts its dtype and shape",
            )
        return format(repr(self), spec)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in METHODS:
            return METHODS[name].__get__(self)
        methods = [known for known in METHODS if not known.startswith("__")]
        raise fault(
            UnknownAttribute,
            f"a tile has no attribute `{name}`",
            (self.value, f"{self} comes from here"),
            help=attribute_help(name, [*ATTRIBUTES, *methods]),
        )

    def _do(self, name: str, *others: object) -> Tile:
        try:
            made: Tile = METHODS[name](self, *others)
        except TypeMismatch:
            # As any operand of Python's, a tile leaves it to another one that knows what to do.
            if others and answers(others[-1], str(others[0]) if name == "__iadd__" else name):
                return NotImplemented  # type: ignore[no-any-return]
            raise
        return made

    def __getitem__(self, key: object) -> Tile:
        return self._do("__getitem__", key)

    def __setitem__(self, key: object, value: object) -> None:
        raise fault(
            TypeMismatch,
            "a tile is a value and never changes, so its elements cannot be assigned",
            (self.value, f"{self} comes from here"),
            help="`where(mask, new, old)` gives a changed copy; memory that changes is a ref "
            "(a parameter, `SMEM`)",
        )

    def __add__(self, other: object) -> Tile:
        return self._do("__add__", other)

    def __radd__(self, other: object) -> Tile:
        return self._do("__radd__", other)

    def __sub__(self, other: object) -> Tile:
        return self._do("__sub__", other)

    def __rsub__(self, other: object) -> Tile:
        return self._do("__rsub__", other)

    def __mul__(self, other: object) -> Tile:
        return self._do("__mul__", other)

    def __rmul__(self, other: object) -> Tile:
        return self._do("__rmul__", other)

    def __truediv__(self, other: object) -> Tile:
        return self._do("__truediv__", other)

    def __rtruediv__(self, other: object) -> Tile:
        return self._do("__rtruediv__", other)

    def __floordiv__(self, other: object) -> Tile:
        return self._do("__floordiv__", other)

    def __rfloordiv__(self, other: object) -> Tile:
        return self._do("__rfloordiv__", other)

    def __mod__(self, other: object) -> Tile:
        return self._do("__mod__", other)

    def __rmod__(self, other: object) -> Tile:
        return self._do("__rmod__", other)

    def __divmod__(self, other: object) -> tuple[Tile, Tile]:
        return self // other, self % other

    def __rdivmod__(self, other: object) -> tuple[Tile, Tile]:
        return self._do("__rfloordiv__", other), self._do("__rmod__", other)

    def __pow__(self, other: object) -> Tile:
        return self._do("__pow__", other)

    def __rpow__(self, other: object) -> Tile:
        return self._do("__rpow__", other)

    def __matmul__(self, other: object) -> Tile:
        return self._do("__matmul__", other)

    def __rmatmul__(self, other: object) -> Tile:
        return self._do("__rmatmul__", other)

    def __and__(self, other: object) -> Tile:
        return self._do("__and__", other)

    def __rand__(self, other: object) -> Tile:
        return self._do("__rand__", other)

    def __or__(self, other: object) -> Tile:
        return self._do("__or__", other)

    def __ror__(self, other: object) -> Tile:
        return self._do("__ror__", other)

    def __xor__(self, other: object) -> Tile:
        return self._do("__xor__", other)

    def __rxor__(self, other: object) -> Tile:
        return self._do("__rxor__", other)

    def __lshift__(self, other: object) -> Tile:
        return self._do("__lshift__", other)

    def __rlshift__(self, other: object) -> Tile:
        return self._do("__rlshift__", other)

    def __rshift__(self, other: object) -> Tile:
        return self._do("__rshift__", other)

    def __rrshift__(self, other: object) -> Tile:
        return self._do("__rrshift__", other)

    def __eq__(self, other: object) -> Tile:  # type: ignore[override]
        return self._do("__eq__", other)

    def __ne__(self, other: object) -> Tile:  # type: ignore[override]
        return self._do("__ne__", other)

    def __lt__(self, other: object) -> Tile:
        return self._do("__lt__", other)

    def __le__(self, other: object) -> Tile:
        return self._do("__le__", other)

    def __gt__(self, other: object) -> Tile:
        return self._do("__gt__", other)

    def __ge__(self, other: object) -> Tile:
        return self._do("__ge__", other)

    def __hash__(self) -> int:
        if self.dims and not self.shape:
            raise NeedsConstant(self.dims)
        raise fault(
            NotConstant,
            f"{self} is a key, and keys of dicts, elements of sets and arguments of cached "
            "functions are compared while tracing",
            (self.value, "it comes from here"),
            help="tuples and lists hold kernel values; `where(i == 0, a, b)` chooses between two, "
            "`ref[i]` reads one; `unroll(range(n))` gives constant indices",
        )

    def __neg__(self) -> Tile:
        return self._do("__neg__")

    def __pos__(self) -> Tile:
        return self

    def __invert__(self) -> Tile:
        return self._do("__invert__")

    def __abs__(self) -> Tile:
        return self._do("__abs__")

    def __round__(self, digits: object = None) -> Tile:
        return self._do("__round__", digits)

    def __iadd__(self, other: object) -> Tile:
        return self._do("__iadd__", "__add__", other)

    def __isub__(self, other: object) -> Tile:
        return self._do("__iadd__", "__sub__", other)

    def __imul__(self, other: object) -> Tile:
        return self._do("__iadd__", "__mul__", other)

    def __itruediv__(self, other: object) -> Tile:
        return self._do("__iadd__", "__truediv__", other)

    def __ifloordiv__(self, other: object) -> Tile:
        return self._do("__iadd__", "__floordiv__", other)

    def __imod__(self, other: object) -> Tile:
        return self._do("__iadd__", "__mod__", other)

    def __ipow__(self, other: object) -> Tile:
        return self._do("__iadd__", "__pow__", other)

    def __iand__(self, other: object) -> Tile:
        return self._do("__iadd__", "__and__", other)

    def __ior__(self, other: object) -> Tile:
        return self._do("__iadd__", "__or__", other)

    def __ixor__(self, other: object) -> Tile:
        return self._do("__iadd__", "__xor__", other)

    def __ilshift__(self, other: object) -> Tile:
        return self._do("__iadd__", "__lshift__", other)

    def __irshift__(self, other: object) -> Tile:
        return self._do("__iadd__", "__rshift__", other)

    def __array_ufunc__(self, ufunc: Any, how: str, *inputs: object, **options: object) -> Any:
        name = UFUNC_OPERATORS.get(ufunc.__name__)
        if how != "__call__" or name is None or options or isinstance(inputs[0], Tile):
            refuse_library_function(f"np.{ufunc.__name__}", ufunc.__name__, *inputs)
        return self._do(name, inputs[0])

    def __array_function__(self, function: Any, *others: object) -> NoReturn:
        del others
        refuse_library_function(f"np.{function.__name__}", function.__name__)

    def __array__(self, *others: object) -> NoReturn:
        del others
        refuse_library_function("np.asarray", "asarray", self)

    def __bool__(self) -> bool:
        return bool(constant_of(self, "a bool", TAKES_A_CONDITION))

    def __index__(self) -> int:
        way_out = "`ref[i]` takes kernel integers; `unroll(range(n))` gives constants"
        return constant_of(self, "a Python integer", way_out)

    def __int__(self) -> int:
        return constant_of(self, "a Python integer", "`x.astype(i32)` converts in the kernel")

    def __float__(self) -> float:
        way_out = "`x.astype(f32)` converts; `exp`, `sqrt`, ... of astdsl compute"
        return float(constant_of(self, "a Python float", way_out))

    def __len__(self) -> int:
        if not self.shape:
            raise fault(TypeMismatch, "a scalar has no length", help="`x.size` is 1")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tile]:
        raise fault(
            NotConstant,
            f"{self} cannot be iterated over",
            (self.value, "it comes from here"),
            help="operations act on whole tiles; `t[0]`, `t[1]` pick rows, "
            "`for k in range(n)` is a loop in the kernel",
        )


def refuse_library_function(name: str, ours: str, *operands: object) -> NoReturn:
    """Refuse NumPy's or math's function on kernel values, naming ours.

    Dims alone are asked for as constants.
    """
    tiles = [x for x in operands if isinstance(x, Tile)]
    if tiles and all(t.dims and not t.shape for t in tiles):
        raise NeedsConstant(frozenset[tuple[str, int]]().union(*(t.dims or () for t in tiles)))
    raise fault(
        TypeMismatch,
        f"`{name}` does not take kernel values",
        *[(t.value, f"{t} comes from here") for t in tiles],
        help=f"`astdsl.{ours}` computes in the kernel"
        if ours in OURS
        else "write it with the functions of astdsl, or compute it before the call",
    )


def constant_of(tile: Tile, wanted: str, way_out: str) -> int:
    """Return an index that is the same for every step; ask for dims as constants, or refuse."""
    number = tile.form.constant if tile.form is not None else None
    if number is not None:
        return number
    if tile.dims and not tile.shape:
        raise NeedsConstant(tile.dims)
    raise fault(
        NotConstant,
        f"{tile} is known only when the kernel runs, and {wanted} is needed while tracing",
        (tile.value, "it comes from here"),
        help=f"{way_out}; a keyword-only parameter is a compile-time constant",
    )


class Literal:
    """A Python number among operands: weak, and constant."""

    __slots__ = ("number", "shape")
    edges = NO_EDGES
    dims: Dims = frozenset()

    def __init__(self, number: bool | int | float) -> None:
        self.number = number
        self.shape: tuple[int, ...] = ()

    @property
    def weak(self) -> bool:
        """Whether the number takes the dtype of what it meets: a bool does not."""
        return not isinstance(self.number, bool)

    @property
    def kind(self) -> str:
        """The kind of the number."""
        return KINDS[type(self.number)]

    @property
    def form(self) -> Form | None:
        """The number as a form, of integers."""
        return Form.of(self.number) if isinstance(self.number, int) else None

    @property
    def bounds(self) -> Bounds:
        """The number twice, of integers."""
        return (self.number, self.number) if isinstance(self.number, int) else ANY_INDEX

    @property
    def dtype(self) -> DType:
        """The element type that the number has when it meets no other."""
        return settled_dtype(self)

    def __repr__(self) -> str:
        return repr(self.number)


Operand: TypeAlias = Tile | Literal
KINDS = {bool: BOOL, int: INT, float: FLOAT}


def fits_i32(bounds: Bounds) -> bool:
    """Whether what is enclosed fits i32."""
    return INT32[0] <= bounds[0] and bounds[1] <= INT32[1]


def settled_dtype(x: Operand) -> DType:
    """Return the dtype of an operand, of a weak one that which it has when it meets no other."""
    if isinstance(x, Tile) and not x.weak:
        return x.value.tile.dtype
    if x.kind == INT:
        return i32 if fits_i32(x.bounds) else i64
    return f32 if x.kind == FLOAT else boolean


def plain_state(x: Operand, shape: tuple[int, ...]) -> str:
    """Say what an operand of a result of `shape` holds where it has no edge."""
    if isinstance(x, Tile):
        return PLAIN if x.shape == shape else REPEATED
    if x.number == 0:
        return ZERO
    is_finite = x.kind != FLOAT or math.isfinite(x.number)  # integers have any size
    return FINITE if is_finite else REPEATED


def as_operand(x: object, what: str) -> Operand:
    """Return an operand of `what` (an operator or function), refusing what is no number."""
    if isinstance(x, Tile | Literal):
        return x
    if isinstance(x, np.ndarray) and x.ndim == 0:
        x = x[()]
    if isinstance(x, np.generic):
        x = x.item()
    if type(x) in KINDS:
        return Literal(x)  # type: ignore[arg-type]
    if isinstance(x, int | float):  # an IntEnum, say
        return Literal(int(x) if isinstance(x, int) else float(x))
    raise fault(
        TypeMismatch,
        f"{what} takes tiles and numbers, got {type(x).__name__}",
        help=getattr(type(x), "operand_help", "") or _operand_help(x),
    )


def _operand_help(x: object) -> str:
    if isinstance(x, np.ndarray):
        return "pass the array as a parameter of the kernel, and read it by `a[...]`"
    if x is None:
        return "`x is None` is settled while tracing"
    return "kernel values are tiles, bools, integers and floats"


# What this version computes in: the backend and both witnesses know these.
SUPPORTED = (
    f64, f32, f16, bf16, f8e4m3, f8e5m2, f8e8m0, f4e2m1, i64, i32, i16, i8, u64, u32, u16, u8,
    boolean,
)  # fmt: skip


def require_dtype(x: object, what: str) -> DType:
    """Return the dtype that `x` names: one of ours, NumPy's, or Python's; refuse anything else."""
    found = named_dtype(x)
    if found in SUPPORTED:
        return found
    if found is not None:
        raise fault(
            UnsupportedFeature,
            f"{what}: {found} is not computed with in this version",
            help=f"the dtypes that work are {', '.join(d.name for d in SUPPORTED)}",
        )
    raise fault(
        TypeMismatch,
        f"{what} takes a dtype, got {x!r}",
        help=f"the dtypes are {', '.join(d.name for d in SUPPORTED)}",
    )
