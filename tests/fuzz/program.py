"""What a generator draws from and what it makes: the text of a kernel with its arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

T = TypeVar("T")
Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

NUMPY: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8,
    "u64": np.uint64, "u32": np.uint32, "u16": np.uint16, "u8": np.uint8, "bool": np.bool_,
    "f8e8m0": ml_dtypes.float8_e8m0fnu, "f4e2m1": ml_dtypes.float4_e2m1fn,
}  # fmt: skip
FLOATS = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2")
INTEGERS = ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8")
NUMBERS = (*FLOATS, *INTEGERS)
HEADER = """\
from functools import partial
from astdsl import *
from astdsl import sum, prod, any, all, abs, min, max, round
"""


def bits(dtype: str) -> int:
    """Return the width of a dtype."""
    return int(np.dtype(NUMPY[dtype]).itemsize) * 8


class Draw:
    """Draws from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 (what a seed gives must not change)

    def pick(self, items: Iterable[T]) -> T:
        """Draw one of some items."""
        return self.random.choice(list(items))

    def number(self, low: int, high: int) -> int:
        """Draw an integer from low to high."""
        return self.random.randint(low, high)

    def chance(self, probability: float) -> bool:
        """Draw true with a probability."""
        return self.random.random() < probability

    def weighted(self, items: Sequence[tuple[float, T]]) -> T:
        """Draw one of some items by their weights."""
        (found,) = self.random.choices([item for _, item in items], [w for w, _ in items])
        return found


@dataclass
class Argument:
    """An array of a kernel: dims by name, how it stands in memory, and what it holds.

    The role `ids` is an `In` that holds a permutation, `bounds` one that ascends, `gmem` is
    scratch. `written`: a kernel may read it here.
    """

    name: str
    role: str
    dtype: str
    dims: tuple[str | int, ...]
    initial: int | None = None
    layout: str = "C"
    data: str = "small"
    written: bool = True
    annotation: str = ""

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_input(self) -> bool:
        return self.role in ("In", "ids", "bounds")

    def signature(self) -> str:
        """Return the parameter that this argument is of."""
        role = "In" if self.is_input else self.role
        dims = " ".join(map(str, self.dims))
        filled = "" if self.initial is None else f", {self.initial}"
        return f'{self.name}: {role}[{self.dtype}, "{dims}"{filled}]{self.annotation}'

    def make(self, sizes: dict[str, int], seed: int) -> Array:
        """Return the array, the same for the same seed."""
        rng = np.random.default_rng([seed, *self.name.encode()])
        shape = tuple(extent(n, sizes) for n in self.dims)
        if self.role == "ids":
            return rng.permutation(shape[0]).astype(np.int32)
        if self.role == "bounds":
            return np.sort(rng.integers(0, 40, shape)).astype(np.int32)
        fresh = {"edge": self._edges, "scale": self._powers}.get(self.data, self._small)
        return LAYOUTS[self.layout](lambda wanted: fresh(rng, wanted), shape)

    def _small(self, rng: np.random.Generator, shape: Shape) -> Array:
        low = 0 if self.dtype[0] == "u" else -4
        return rng.integers(low, 6, shape).astype(NUMPY[self.dtype])

    def _powers(self, rng: np.random.Generator, shape: Shape) -> Array:
        return np.exp2(rng.integers(-1, 2, shape)).astype(NUMPY[self.dtype])

    def _edges(self, rng: np.random.Generator, shape: Shape) -> Array:
        dtype = NUMPY[self.dtype]
        if self.dtype in INTEGERS:
            whole = np.iinfo(dtype)
            special: list[float] = [whole.min, whole.max, whole.max - 1, whole.min + 1, 0, 1]
        else:
            info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
            limits = [float(n) for n in (info.max, info.min, info.smallest_subnormal, info.tiny)]
            infinity = 448.0 if self.dtype == "f8e4m3" else np.inf
            special = [0.0, -0.0, infinity, -infinity, np.nan, 0.5, -1.5, 2.5, *limits]
        chosen = np.array(special, dtype)[rng.integers(0, len(special), shape)]
        return np.where(rng.random(shape) < 0.4, chosen, self._small(rng, shape)).astype(dtype)


def extent(dim: str | int, sizes: dict[str, int]) -> int:
    """Return an extent; it may be that of blocks, `cdiv(M,128)`."""
    if isinstance(dim, int) or not dim.startswith("cdiv("):
        return sizes[dim] if isinstance(dim, str) else dim
    name, block = dim.removeprefix("cdiv(").removesuffix(")").split(",")
    return -(-sizes[name] // int(block))


Fresh = Callable[[Shape], Array]
# How an array stands in memory: rows, columns, rows at distances that TMA takes or does not take,
# backwards.
LAYOUTS: dict[str, Callable[[Fresh, Shape], Array]] = {
    "C": lambda fresh, shape: fresh(shape),
    "F": lambda fresh, shape: np.asfortranarray(fresh(shape)),
    "padded": lambda fresh, shape: fresh((*shape[:-1], -(-shape[-1] // 16) * 16 + 16))[
        ..., : shape[-1]
    ],
    "odd": lambda fresh, shape: fresh((*shape[:-1], shape[-1] + 3))[..., 1 : 1 + shape[-1]],
    "backwards": lambda fresh, shape: fresh(shape)[..., ::-1],
    "packed": lambda fresh, shape: two_to_a_byte(fresh(shape)),
}


def two_to_a_byte(x: Array) -> Array:
    """Return elements of 4 bits, the low ones first."""
    codes = x.view(np.uint8)
    return np.asarray(codes[..., ::2] | codes[..., 1::2] << 4)


def one_to_a_byte(x: Array) -> Array:
    """Return the elements that stand two to a byte."""
    codes = np.stack((x & 15, x >> 4), axis=-1)
    return codes.reshape(*x.shape[:-1], -1).view(NUMPY["f4e2m1"])


@dataclass
class Program:
    """A kernel's text, its parameters in order (a scalar is a number), and what they need."""

    text: str
    parameters: dict[str, Argument | int]
    sizes: dict[str, int]
    seed: int
    target: str = ""
    notes: dict[str, str] = field(default_factory=dict)

    def arguments(self) -> list[Any]:
        """Return fresh arguments."""
        return [
            each.make(self.sizes, self.seed) if isinstance(each, Argument) else each
            for each in self.parameters.values()
        ]

    def outputs(self, given: Sequence[Any]) -> list[Array]:
        """Return the arrays among arguments that the kernel writes."""
        pairs = zip(given, self.parameters.values(), strict=True)
        return [a for a, p in pairs if isinstance(p, Argument) and not p.is_input]


@dataclass
class Name:
    """A name of a tile; a fixed one is not assigned."""

    name: str
    shape: Shape
    dtype: str
    fixed: bool = False


@dataclass
class Window:
    """The text of a window along an axis, how many elements it has (0: an integer), and the dim."""

    text: str
    size: int
    dim: str | int


class Scope:
    """What may be used at a place: names of tiles, indices, windows along dims, arrays."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.names: list[Name] = list(outer.names) if outer else []
        self.indices: list[str] = list(outer.indices) if outer else []
        self.windows: list[Window] = list(outer.windows) if outer else []
        self.arrays: list[Argument] = list(outer.arrays) if outer else []
        self.is_in_pipeline: bool = outer.is_in_pipeline if outer else False
