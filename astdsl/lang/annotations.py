"""Annotations of a kernel's parameters: `In[f16, "M K"]`, `Out[f32, "M N", 0]`, `InOut["N"]`.

Invariant: an annotation is plain data, made where the kernel is defined, and never raises there:
what is wrong with it is kept as its `problem`, for the call to say with the parameter's place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from astdsl.errors import BadSignature
from astdsl.ir.core import IN, INOUT, OUT
from astdsl.ir.dtypes import DType, boolean
from astdsl.lang.values import SUPPORTED
from astdsl.records import dataclass, replace

# The functions and operators that a dim's expression may be made of.
CALLS = ("cdiv", "min", "max")
NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Load, ast.Constant, ast.Add,
    ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub,
)  # fmt: skip
ANYTHING, REST = "_", "..."


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of an annotation as it is written: a name, an integer, `_`, or an expression."""

    text: str

    @property
    def name(self) -> str:
        """The name, empty where the dim is no name."""
        return self.text if self.text.isidentifier() and self.text != ANYTHING else ""

    @property
    def extent(self) -> int | None:
        """The integer that the dim must be, None where it is no integer."""
        return int(self.text) if self.text.isdecimal() else None

    @property
    def is_anything(self) -> bool:
        """Whether the dim may have any extent: `_`."""
        return self.text == ANYTHING

    @property
    def is_expression(self) -> bool:
        """Whether the dim is computed from others."""
        return not (self.name or self.is_anything or self.extent is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the dim is made of, in order."""
        return (
            tuple(_names(ast.parse(self.text, mode="eval")))
            if self.is_expression
            else ((self.name,) if self.name else ())
        )


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What an array parameter takes.

    `dtypes` are the allowed ones, empty for any; `dims` are one an axis, None where not stated;
    with `any_rank` any axes may stand in front of them. `initial` is what an `Out` starts filled
    with, None where it starts unwritten.
    """

    role: str
    dtypes: tuple[DType, ...] = ()
    dims: tuple[Dim, ...] | None = None
    any_rank: bool = False
    initial: bool | int | float | None = None
    optional: bool = False
    problem: BadSignature | None = None

    def __repr__(self) -> str:
        name: str = next(each.name for each in (In, Out, InOut) if each.role == self.role)
        parts = [" | ".join(map(str, self.dtypes))] if self.dtypes else []
        if self.dims is not None:
            rest = [REST] if self.any_rank else []
            parts.append(f'"{" ".join([*rest, *(dim.text for dim in self.dims)])}"')
        if self.initial is not None:
            parts.append(repr(self.initial))
        text = f"{name}[{', '.join(parts)}]" if parts else name
        return f"{text} | None" if self.optional else text

    def __or__(self, other: object) -> ArraySpec:
        if other is None:
            return replace(self, optional=True)
        problem = BadSignature(
            f"an array's annotation is joined with None only, got {other!r}",
            help='dtypes are joined inside: `In[f16 | bf16, "M N"]`',
        )
        return replace(self, problem=self.problem or problem)

    __ror__ = __or__


class Role:
    """`In`, `Out` or `InOut`: by itself any array, else what stands in its brackets."""

    __slots__ = ("name", "role")
    __iter__ = None
    operand_help = 'it annotates a parameter of a kernel: `x: In[f32, "M N"]`'

    def __init__(self, name: str, role: str) -> None:
        self.name = name
        self.role = role

    def __getitem__(self, key: object) -> ArraySpec:
        try:
            return self._spec(key)
        except BadSignature as problem:
            return ArraySpec(self.role, problem=problem)

    def _spec(self, key: object) -> ArraySpec:
        key = _with_named_bool(key)
        parts = list(key) if isinstance(key, tuple) and not _is_union(key) else [key]
        dtypes = _taken_dtypes(parts)
        dims, any_rank = _taken_dims(parts)
        initial = self._taken_initial(parts)
        if parts:
            raise BadSignature(
                f"`{self.name}[...]` does not know what {parts[0]!r} is",
                help=f'it takes a dtype, dims and a start: `{self.name}[f32, "M N"]`',
            )
        return ArraySpec(self.role, dtypes, dims, any_rank, initial)

    def _taken_initial(self, parts: list[object]) -> bool | int | float | None:
        if not parts or not isinstance(parts[0], bool | int | float):
            return None
        if self.role != OUT:
            raise BadSignature(
                f"`{self.name}` starts with what is passed, so {parts[0]} has no meaning in it",
                help="only an `Out` has an initial value",
            )
        initial = parts.pop(0)
        assert isinstance(initial, bool | int | float), "checked above"
        return initial

    def __or__(self, other: object) -> ArraySpec:
        return ArraySpec(self.role) | other

    __ror__ = __or__

    def __repr__(self) -> str:
        return self.name


def _with_named_bool(key: object) -> object:
    """Return the brackets' content with our bool for Python's, which is its name in a kernel."""
    if isinstance(key, tuple):
        return tuple(_with_named_bool(part) for part in key)
    return boolean if key is bool else key


def _is_union(key: tuple[object, ...]) -> bool:
    return bool(key) and all(isinstance(part, DType) for part in key)


def _taken_dtypes(parts: list[object]) -> tuple[DType, ...]:
    first = parts[0] if parts else None
    if isinstance(first, DType):
        found: tuple[DType, ...] = (first,)
    elif isinstance(first, tuple) and _is_union(first):
        found = first
    else:
        return ()
    parts.pop(0)
    for dtype in found:
        if dtype not in SUPPORTED:
            raise BadSignature(
                f"arrays of {dtype} are not in this version",
                help=f"the dtypes that work are {', '.join(d.name for d in SUPPORTED)}",
            )
    return found


def _taken_dims(parts: list[object]) -> tuple[tuple[Dim, ...] | None, bool]:
    if not parts or not isinstance(parts[0], str):
        return None, False
    return parse_dims(str(parts.pop(0)))


def parse_dims(text: str) -> tuple[tuple[Dim, ...], bool]:
    """Return the dims of a text such as `"M 3 _ cdiv(K,32)"`, and whether `...` stands in front.

    Raises BadSignature.
    """
    words = text.split()
    any_rank = words[:1] == [REST]
    dims = tuple(Dim(word) for word in words[any_rank:])
    for dim in dims:
        _check(dim, text)
    return dims, any_rank


def _check(dim: Dim, text: str) -> None:
    if dim.text == REST:
        raise BadSignature(
            f'"{text}": `...` stands in front of all dims', help='"... M N" takes any rank over 2'
        )
    if not dim.is_expression:
        return
    try:
        tree = ast.parse(dim.text, mode="eval")
    except SyntaxError:
        tree = None
    if tree is None or not all(_is_allowed(node) for node in ast.walk(tree)):
        raise BadSignature(
            f'"{text}": `{dim.text}` is no dim',
            help="a dim is a name, an integer, `_`, or an expression of those without spaces: "
            f"`G+1`, `cdiv(M,bm)`{_comma_help(dim.text)}",
        )


def _comma_help(word: str) -> str:
    return "; dims are separated by spaces" if re.search(r"^\w+,|,$", word) else ""


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in CALLS and not node.keywords
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return isinstance(node, NODES)


def _names(tree: ast.AST) -> Iterator[str]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in called:
            yield node.id


if TYPE_CHECKING:
    # A checker sees arrays of anything: what a kernel does with them is checked while tracing.
    In: TypeAlias = Any
    Out: TypeAlias = Any
    InOut: TypeAlias = Any
else:
    In = Role("In", IN)
    Out = Role("Out", OUT)
    InOut = Role("InOut", INOUT)
