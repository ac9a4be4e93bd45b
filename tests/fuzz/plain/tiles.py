"""Tiles of the plain witness: arrays that know which elements lie outside, with their operators.

Invariant: `outside[a]` says of each index along axis a whether it lies outside, None if none does;
`is_outside` is of the whole tile. A tile that may have lost them, as it comes from another step, is
not used.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzz.plain.numbers import (
    BOOL,
    F32,
    F64,
    I32,
    I64,
    Kind,
    Unknown,
    converted,
    exactly,
    kind_of,
    number,
    promoted,
    rounded,
    wide,
)
from tests.fuzz.program import Array

# The steps of loops around, each with a number of its own.
STEPS: list[int] = []
Meaning = Callable[..., Array]


class Tile:
    """A tile; a weak one is a number's, whose dtype gives way."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, array: Any, kind: Kind, outside: Sequence[Array | None] = (),
        is_outside: bool = False, is_weak: bool = False,
    ) -> None:  # fmt: skip
        self.array, self.kind = np.asarray(array), kind
        masks = list(outside) or [None] * self.array.ndim
        self.outside = [m if m is not None and m.any() else None for m in masks]
        self.is_outside, self.is_weak = is_outside, is_weak
        self.made = tuple(STEPS)
        assert self.array.dtype == kind.numpy, f"{self.array.dtype} is not {kind.name}"
        assert len(self.outside) == self.array.ndim, "a mask for each axis"

    shape = property(lambda self: self.array.shape)
    ndim = property(lambda self: self.array.ndim)
    T = property(lambda self: self.transposed(range(self.ndim)[::-1]))

    @property
    def is_ragged(self) -> bool:
        return self.is_outside or any(m is not None for m in self.outside)

    def live(self) -> Tile:
        """Return this tile, if it still knows what lies outside."""
        if self.is_ragged and tuple(STEPS[: len(self.made)]) != self.made:
            raise Unknown("ragged, and carried")
        return self

    def like(self, array: Array) -> Tile:
        """Return other elements at the same places."""
        return Tile(array, self.kind, self.outside, self.is_outside)

    def settled(self) -> Tile:
        """Return a weak tile in the dtype that it has in the end."""
        kind = F32 if self.kind.kind == "float" else I32
        return self.astype(kind) if self.is_weak else self

    def astype(self, dtype: Any) -> Tile:
        self.live()
        kind = kind_of(dtype)
        array = converted(self.array, self.kind, kind)
        return Tile(array, kind, self.outside, self.is_outside)

    def filled(self, x: Any) -> Tile:
        self.live()
        hidden = np.full(self.shape, self.is_outside)
        for axis, mask in enumerate(self.outside):
            if mask is not None:
                hidden |= along(mask, axis, self.ndim)
        return Tile(np.where(hidden, number(x, self.kind), self.array), self.kind)

    def transposed(self, order: Sequence[int]) -> Tile:
        masks = [self.outside[a] for a in order]
        return Tile(self.array.transpose(order), self.kind, masks, self.is_outside, self.is_weak)

    def __bool__(self) -> bool:
        return bool(wide(self.array) != 0)

    def __index__(self) -> int:
        return int(self.array)

    def __getitem__(self, key: Any) -> Tile:
        self.live()
        key = [*(key if isinstance(key, tuple) else (key,))]
        if any(isinstance(k, list) for k in key) and any(isinstance(k, int) for k in key):
            raise Unknown("a list beside integers")
        key += [slice(None)] * (self.ndim - sum(k is not None for k in key))
        masks: list[Array | None] = []
        axis, is_outside = 0, self.is_outside
        for k in key:
            mask = None if k is None else self.outside[axis]
            if isinstance(k, int):
                is_outside |= mask is not None and bool(mask[k])
            else:
                masks.append(None if mask is None else mask[k])
            axis += k is not None
        return Tile(self.array[tuple(key)], self.kind, masks, is_outside)


def along(mask: Array, axis: int, rank: int) -> Array:
    """Return a mask of one axis so that it broadcasts."""
    return mask.reshape([-1 if a == axis else 1 for a in range(rank)])


def tile_of(x: Any) -> Tile:
    """Return a tile; numbers become weak ones."""
    if isinstance(x, Tile):
        return x.live()
    if isinstance(x, (bool, np.bool_)):
        return Tile(np.asarray(bool(x)), BOOL)
    if isinstance(x, int):
        if not -(2**63) <= x < 2**63:
            raise Unknown("a number beyond 64 bits")
        return Tile(np.asarray(x, np.int64), I64, is_weak=True)
    return Tile(np.asarray(x, np.float64), F64, is_weak=True)


def joined(xs: Sequence[Any], rank: int) -> tuple[list[Array | None], bool]:
    """Return what lies outside of any operand."""
    masks: list[Array | None] = [None] * rank
    tiles = [x for x in xs if isinstance(x, Tile)]
    for x in tiles:
        for axis, mask in enumerate(x.outside, rank - x.ndim):
            before = masks[axis]
            if mask is not None:
                masks[axis] = mask if before is None else before | mask
    return masks, any(x.is_outside for x in tiles)


def placed(array: Array, kind: Kind, xs: Sequence[Any], *, is_weak: bool = False) -> Tile:
    """Return the tile that an operation on `xs` makes, elements at their places."""
    masks, is_outside = joined(xs, array.ndim)
    masks = [
        None if m is None else np.broadcast_to(m, array.shape[a : a + 1])
        for a, m in enumerate(masks)
    ]
    return Tile(array, kind, masks, is_outside, is_weak)


def meet(xs: Sequence[Any]) -> tuple[list[Array], Kind, bool]:
    """Return operands in one dtype, and whether all are weak."""
    tiles = [x.live() for x in xs if isinstance(x, Tile)]
    strong = [t for t in tiles if not t.is_weak]
    weak = [tile_of(x) for x in xs] if not strong else []
    kind = strong[0].kind if strong else F64 if any(t.kind is F64 for t in weak) else I64
    for t in strong:
        kind = promoted(kind, t.kind)
    if kind.kind == "int" and any(t.is_weak and t.kind is F64 for t in tiles):
        raise Unknown("a float beside integers")
    arrays = [
        converted(x.array, x.kind, kind) if isinstance(x, Tile) else number(x, kind) for x in xs
    ]
    return arrays, kind, not strong


def elementwise(meaning: Meaning, *xs: Any, kind: Kind | None = None) -> Tile:
    """Apply `meaning(dtype, array, ...)` to operands that meet."""
    arrays, met, is_weak = meet(xs)
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    with np.errstate(all="ignore"):
        found = np.broadcast_to(meaning(met, *arrays), shape)
    return placed(found, kind or met, xs, is_weak=is_weak and kind is None)


def arithmetic(f: Callable[..., Any]) -> Meaning:
    """Return what a ufunc means: exact and rounded once, or modulo 2**bits."""

    def meaning(kind: Kind, *arrays: Array) -> Array:
        if kind.kind == "bool":
            raise Unknown("arithmetic of bools")
        if kind.bits >= 32:
            return np.asarray(f(*arrays))
        return rounded(f(*map(wide, arrays)), kind) if kind.kind == "float" else f(*arrays)

    return meaning


def of_integers(f: Callable[[int, int, int], int]) -> Meaning:
    """Return what `f(x, y, bits)` of Python's integers means."""

    def meaning(kind: Kind, x: Array, y: Array) -> Array:
        if kind.kind != "int":
            raise Unknown("an operation of integers")
        a, b = np.broadcast_arrays(x, y)
        pairs = zip(a.ravel(), b.ravel(), strict=True)
        return exactly([f(int(p), int(q), kind.bits) for p, q in pairs], a.shape, kind)

    return meaning


def of_bits(f: Callable[..., Any]) -> Meaning:
    """Return what an operation on bits means."""

    def meaning(kind: Kind, *arrays: Array) -> Array:
        if kind.kind == "float":
            raise Unknown("bits of floats")
        return np.asarray(f(*arrays))

    return meaning


def compared(f: Callable[..., Any]) -> Callable[[Any, Any], Tile]:
    """Return a comparison, of the numbers also where a dtype does not hold one of them."""

    def comparison(x: Any, y: Any) -> Tile:
        for a, b, swapped in ((x, y, False), (y, x, True)):
            if isinstance(a, Tile) and a.kind.kind == "int" and type(b) is int:
                pair = (b, a.live().array.astype(object))
                found = f(*pair) if swapped else f(*pair[::-1])
                return Tile(np.asarray(found, np.bool_), BOOL, a.outside, a.is_outside)
        return elementwise(lambda _, p, q: f(wide(p), wide(q)), x, y, kind=BOOL)

    return comparison


def extreme(f: Callable[..., Any], of_signs: Callable[..., Any]) -> Meaning:
    """Return what the smaller or larger is: NaN if either is, and -0 before +0."""

    def meaning(kind: Kind, x: Array, y: Array) -> Array:
        if kind.kind != "float":
            return np.asarray(f(x, y))
        a, b = np.broadcast_arrays(wide(x), wide(y))
        zero = np.where(of_signs(np.signbit(a), np.signbit(b)), LONG_MINUS_ZERO, 0)
        return rounded(np.where((a == 0) & (b == 0), zero, f(a, b)), kind)

    return meaning


LONG_MINUS_ZERO = np.longdouble("-0.0")
SMALLER = extreme(np.minimum, np.logical_or)
LARGER = extreme(np.maximum, np.logical_and)


def power(x: int, y: int, bits: int) -> int:
    """Return a power modulo 2**bits; of a negative exponent 0 unless |x| is 1."""
    if y >= 0:
        return int(builtins.pow(x, y, 2**bits))
    return {1: 1, -1: 1 - y % 2 * 2}.get(x, 0)


def _raised(x: Any, y: Any) -> Tile:
    if tile_of(x).kind.kind == "float":
        if type(y) is int and y == 2:
            return elementwise(arithmetic(np.multiply), x, x)
        raise Unknown("powers of floats")
    return elementwise(of_integers(power), x, y)


def _divided(x: Any, y: Any) -> Tile:
    _, kind, _ = meet((x, y))
    if kind.kind == "int":
        raise Unknown("a quotient of integers")
    return elementwise(arithmetic(np.divide), x, y)


def shifted_left(x: int, y: int, bits: int) -> int:
    return x << y if 0 <= y < bits else 0


def shifted_right(x: int, y: int, bits: int) -> int:
    return x >> y if 0 <= y < bits else -(x < 0)


def _operator(meaning: Meaning) -> Callable[[Any, Any], Tile]:
    return lambda x, y: elementwise(meaning, x, y)


OPERATORS: dict[str, Callable[[Any, Any], Tile]] = {
    "add": _operator(arithmetic(np.add)),
    "sub": _operator(arithmetic(np.subtract)),
    "mul": _operator(arithmetic(np.multiply)),
    "truediv": _divided,
    "floordiv": _operator(of_integers(lambda x, y, _: x // y if y else 0)),
    "mod": _operator(of_integers(lambda x, y, _: x % y if y else 0)),
    "pow": _raised,
    "and": _operator(of_bits(np.bitwise_and)),
    "or": _operator(of_bits(np.bitwise_or)),
    "xor": _operator(of_bits(np.bitwise_xor)),
    "lshift": _operator(of_integers(shifted_left)),
    "rshift": _operator(of_integers(shifted_right)),
}
COMPARISONS = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
               "eq": np.equal, "ne": np.not_equal}  # fmt: skip


def _negated(kind: Kind, x: Array) -> Array:
    return -x if kind.kind == "float" else of_integers(lambda a, b, _: -a)(kind, x, x)


def _absolute(kind: Kind, x: Array) -> Array:
    if kind.kind == "float":
        return rounded(np.abs(wide(x)), kind)
    return of_integers(lambda a, b, _: abs(a))(kind, x, x)


def of_floats(f: Callable[..., Any]) -> Callable[[Any], Tile]:
    """Return a function of floats, rounded once."""

    def meaning(kind: Kind, x: Array) -> Array:
        if kind.kind != "float":
            raise Unknown("a function of floats")
        return rounded(f(wide(x)), kind) if kind.bits < 32 else np.asarray(f(x))

    return lambda x: elementwise(meaning, x)


def _equip() -> None:
    for name, operator in OPERATORS.items():
        setattr(Tile, f"__{name}__", lambda x, y, f=operator: f(x, y))
        setattr(Tile, f"__r{name}__", lambda x, y, f=operator: f(y, x))
    for name, comparison in ((name, compared(f)) for name, f in COMPARISONS.items()):
        setattr(Tile, f"__{name}__", lambda x, y, f=comparison: f(x, y))
    for name, meaning in {"neg": _negated, "abs": _absolute, "invert": of_bits(np.invert)}.items():
        setattr(Tile, f"__{name}__", lambda x, f=meaning: elementwise(f, x))


_equip()
