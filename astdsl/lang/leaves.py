"""Kernel values inside Python's containers: found, compared, and put into a container of one shape.

Invariant: tuples (named ones too), lists, dicts and dataclasses are containers, but for dtypes;
tiles and numbers are leaves, those of NumPy as Python's; anything else is a constant, equal to
another only if it is the same object or an equal plain constant.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from astdsl.ir.dtypes import DType
from astdsl.lang.values import Tile

Leaf: TypeAlias = "Tile | bool | int | float"
NUMBERS = (bool, int, float)
PLAIN = (str, bytes, type(None), type(...), complex, *NUMBERS)


class Differs(Exception):
    """Two values have no common structure; `path` leads to the place, `.x` or `[0]` at a time."""

    def __init__(self, path: str, left: object, right: object) -> None:
        super().__init__(path)
        self.path = path
        self.left = left
        self.right = right


def plain(value: Any) -> Any:
    """Return a number of NumPy's, or an `IntEnum`, as Python's number; anything else as it is."""
    if type(value) in PLAIN:
        return value
    if isinstance_exactly(value, np.generic):
        return value.item()
    number = next((kind for kind in (int, float) if isinstance_exactly(value, kind)), None)
    return value if number is None else number(value)


def is_leaf(value: object) -> bool:
    """Whether a value is a tile or a number, of Python or of NumPy."""
    return type(value) is Tile or type(plain(value)) in NUMBERS


def is_same(x: object, y: object) -> bool:
    """Whether two values are one object, or equal constants of one type."""
    if x is y:
        return True
    return type(x) is type(y) and type(x) in PLAIN and repr(x) == repr(y)


def children(value: object) -> list[tuple[str, Any]] | None:
    """Return the parts of a container with their paths, None of anything else."""
    if isinstance_exactly(value, tuple):
        names = getattr(type(value), "_fields", None)
        parts = list(value)  # type: ignore[call-overload]
        return [(f".{names[i]}" if names else f"[{i}]", part) for i, part in enumerate(parts)]
    if type(value) is list:
        return [(f"[{i}]", part) for i, part in enumerate(value)]
    if type(value) is dict:
        return [(f"[{key!r}]", part) for key, part in value.items()]
    kind: Any = type(value)
    if dataclasses.is_dataclass(kind) and kind is not DType:
        names = [f.name for f in dataclasses.fields(kind)]
        return [(f".{name}", getattr(value, name)) for name in names if hasattr(value, name)]
    return None


def isinstance_exactly(value: object, kind: type) -> bool:
    """Whether the type of a value, not what it claims by `__class__`, is a `kind`."""
    return issubclass(type(value), kind)


def dictionary_of(value: object) -> dict[str, Any]:
    """Return what an object holds by name, asking no text of its class; empty if nothing can."""
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found


def leaves(value: object) -> Iterator[Leaf]:
    """Yield the leaves of a value in order."""
    if is_leaf(value):
        yield plain(value)
    else:
        for _, part in children(value) or ():
            yield from leaves(part)


def tiles(value: object) -> Iterator[Tile]:
    """Yield the tiles of a value in order."""
    return (leaf for leaf in leaves(value) if type(leaf) is Tile)


def pairs(left: object, right: object, path: str = "") -> Iterator[tuple[str, Leaf, Leaf]]:
    """Yield the leaves of two values side by side, with paths; raise Differs where they part."""
    if is_leaf(left) and is_leaf(right):
        yield path, plain(left), plain(right)
        return
    ours, others = children(left), children(right)
    if type(left) is type(right) and ours is not None and others is not None:
        if [name for name, _ in ours] != [name for name, _ in others]:
            raise Differs(path, left, right)
        for (name, one), (_, other) in zip(ours, others, strict=True):
            yield from pairs(one, other, path + name)
    elif not is_same(left, right):
        raise Differs(path, left, right)


def rebuild(value: Any, replace: Callable[[Leaf], object]) -> Any:
    """Return a value with each leaf replaced, in order; the same object if nothing changed."""
    if is_leaf(value):
        leaf = plain(value)
        made = replace(leaf)
        return value if made is leaf else made
    parts = children(value)
    if not parts:
        return value
    made = [rebuild(part, replace) for _, part in parts]
    if all(new is old for new, (_, old) in zip(made, parts, strict=True)):
        return value
    return _with_parts(value, [name for name, _ in parts], made)


def _with_parts(value: Any, names: list[str], parts: list[Any]) -> Any:
    if isinstance_exactly(value, tuple):
        return type(value)._make(parts) if hasattr(type(value), "_fields") else tuple(parts)
    if type(value) is list:
        return parts
    if type(value) is dict:
        return dict(zip(value, parts, strict=True))
    made = copy.copy(value)
    fields = dict(zip((name.removeprefix(".") for name in names), parts, strict=True))
    if made is value:  # It says that it is there once; we change no object of the user's.
        made, fields = object.__new__(type(value)), dictionary_of(value) | fields
    for name, part in fields.items():
        object.__setattr__(made, name, part)
    return made
