"""What a compiled kernel asks of whoever launches it: parameters, grid, checks.

Invariant: plain data, written to disk and read back as data. A host expression is a number or a
tuple `(operation, *operands)` over the rows of `HOST_OPERATIONS`, `("dim", param, axis)` and
`("scalar", param)`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from astdsl.ir.dtypes import ALL, DType
from astdsl.records import dataclass
from astdsl.source import Span

HostExpression: TypeAlias = int | float | bool | tuple[Any, ...]
# Each row is the Python expression that computes it, operands in braces; where Python fails and the
# language does not, it calls a function of `runtime/host.py`. A dtype's name converts to it.
HOST_OPERATIONS = {
    "add": "({0} + {1})",
    "subtract": "({0} - {1})",
    "multiply": "({0} * {1})",
    "divide": "ratio({0}, {1})",
    "floor_divide": "quotient({0}, {1})",
    "remainder": "remainder({0}, {1})",
    "minimum": "min({0}, {1})",
    "maximum": "max({0}, {1})",
    "least": "least({0}, {1})",
    "greatest": "greatest({0}, {1})",
    "negate": "(-{0})",
    "absolute": "abs({0})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "and": "({0} & {1})",
    "or": "({0} | {1})",
    "xor": "({0} ^ {1})",
    "shift_left": "shifted_left({0}, {1})",
    "shift_right": "shifted_right({0}, {1})",
    "not": "(not {0})",
    "select": "({1} if {0} else {2})",
    **{dtype.name: f"fitted({{0}}, {dtype.name!r})" for dtype in ALL},
}


@dataclass(frozen=True, slots=True)
class PointerSlot:
    """The address of a parameter's element (0, ..., 0)."""

    param: int


@dataclass(frozen=True, slots=True)
class ScalarSlot:
    """A runtime scalar, as its dtype."""

    param: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class DimSlot:
    """The extent of a parameter's axis, as i64."""

    param: int
    axis: int


@dataclass(frozen=True, slots=True)
class StrideSlot:
    """The stride of a parameter's axis in elements, as i64."""

    param: int
    axis: int


@dataclass(frozen=True, slots=True)
class MapSlot:
    """A 128-byte tensor map of a parameter, a `__grid_constant__`.

    `order` lists the axes fastest first (the contiguous one leads); `box` is the extent of each
    axis in that order; `swizzle_bytes` is 0, 32, 64 or 128.
    """

    param: int
    order: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int


Slot: TypeAlias = PointerSlot | ScalarSlot | DimSlot | StrideSlot | MapSlot


@dataclass(frozen=True, slots=True)
class Check:
    """A condition of the launch, and what to say where it does not hold: pieces around values."""

    condition: HostExpression
    pieces: tuple[str, ...]
    span: Span
    values: tuple[tuple[HostExpression, DType], ...] = ()


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory of one call, unwritten at first: the parameter after the kernel's and earlier ones.

    Rows are padded to 16 bytes, so that TMA can describe it; the base is aligned to 16 bytes.
    """

    name: str
    shape: tuple[HostExpression, ...]
    dtype: DType
    span: Span


@dataclass(frozen=True, slots=True)
class Report:
    """What a running block may say: a `print`, or that an assertion does not hold.

    The values of a print, each of a shape and a dtype, stand between its `pieces`; the one piece
    of an assertion is its message.
    """

    pieces: tuple[str, ...]
    values: tuple[tuple[tuple[int, ...], DType], ...]
    span: Span
    is_assertion: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One launch: the entry `name` of the PTX, its parameters in order, `grid` blocks on x."""

    name: str
    slots: tuple[Slot, ...]
    grid: HostExpression
    threads: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How to launch a compiled kernel: its entries one after the other, each when the last is done.

    Slots count the kernel's parameters, then `scratch`, and then the log, an array of u32 in which
    blocks write what they say, each of `reports` by its number; without reports there is none.
    """

    target: str
    entries: tuple[Entry, ...]
    scratch: tuple[Scratch, ...] = ()
    checks: tuple[Check, ...] = ()
    reports: tuple[Report, ...] = ()


# The log begins with the number of words that are taken, and that of words that there are. A
# record is so many words, the report's number, the value's (an assertion has none), the block, the
# first of the threads that run the statement together, the thread counted from there, and for each
# element its place in the tile, row-major, or NO_ELEMENT, and its bits, the low word first.
LOG_HEAD_WORDS = 2
RECORD_HEAD_WORDS = 6
ELEMENT_WORDS = 3
NO_ELEMENT = 0xFFFFFFFF
