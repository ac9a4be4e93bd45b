"""What Python's builtins mean when a kernel value is among their arguments.

Invariant: `MEANINGS` maps a builtin to the function that the front end calls in its place; without
kernel values Python's own runs.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from astdsl.errors import UnsupportedFeature
from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import FLOAT, boolean, f32, i32
from astdsl.lang import arith, reductions
from astdsl.lang.control import kernel_range
from astdsl.lang.elementwise import cast
from astdsl.lang.leaves import tiles
from astdsl.lang.refs import Ref
from astdsl.lang.tracing import emit, fault
from astdsl.lang.values import Tile


def _length(x: Any) -> Any:
    """Return the extent of the first axis; of a ref with a runtime dim a kernel integer."""
    return x.shape[0] if isinstance(x, Ref) and x.ndim else builtins.len(x)


def _int(x: Any, *others: Any) -> Any:
    """Return a float as i32, towards zero; integers stay themselves, bools count."""
    if not isinstance(x, Tile):
        return builtins.int(x, *others)
    return x if x.dtype.is_integer else cast(x, i32)


def _float(x: Any) -> Any:
    """Return an integer or bool as f32; floats stay themselves."""
    if not isinstance(x, Tile):
        return builtins.float(x)
    return x if x.kind == FLOAT else cast(x, f32)


def _bool(x: Any) -> Any:
    """Return whether a number is not 0, by element."""
    return cast(x, boolean) if isinstance(x, Tile) else builtins.bool(x)


def _sum(x: Any, *others: Any, **options: Any) -> Any:
    """Return the sum of a tile's elements, or of the values in a list."""
    whole = isinstance(x, Tile)
    return reductions.sum(x, *others, **options) if whole else builtins.sum(x, *others, **options)


class Text(str):
    """A text made while tracing, with the pieces that it was made of."""

    pieces: tuple[Any, ...]

    @classmethod
    def of(cls, pieces: Sequence[Any]) -> str:
        """Join pieces as an f-string does; a plain text if no piece is a kernel value."""
        joined = "".join(map(format, pieces))
        if next(tiles(pieces), None) is None:
            return joined
        made = cls(joined)
        made.pieces = tuple(pieces)
        return made


def _print(
    *values: Any,
    sep: str | None = " ",
    end: str | None = "\n",
    file: Any = None,
    flush: bool = False,
) -> None:
    """Print one line when the kernel runs, in each block that gets there.

    Tiles are written as NumPy writes arrays, long ones summarised, also those in an f-string
    (`print(f"x = {x}")`) without a format; anything else as `str` says while tracing. The order
    between blocks is unspecified. Raises UnsupportedFeature for `file`.
    """
    if file is not None or flush:
        raise fault(
            UnsupportedFeature,
            "`print` of kernel values goes to the standard output, when the kernel is done",
            help="leave `file` and `flush` out",
        )
    between, last = " " if sep is None else sep, "\n" if end is None else end
    parts: list[Any] = []
    for number, value in enumerate(values):
        parts += [between] * bool(number)
        parts += value.pieces if isinstance(value, Text) else [value]
    kernel_values, pieces = told([*parts, last])
    emit(ops.Print, values=kernel_values, pieces=pieces)


def told(parts: Iterable[Any]) -> tuple[tuple[Value, ...], tuple[str, ...]]:
    """Return the kernel values among the parts of a text, and the pieces of text around them."""
    values, pieces = list[Value](), [""]
    for part in parts:
        if isinstance(part, Tile):
            values.append(part.value)
            pieces.append("")
        else:
            pieces[-1] += _text(part)
    return tuple(values), tuple(pieces)


def _text(value: Any) -> str:
    """Return the text of what is known while tracing; kernel values inside of it are not."""
    if next(tiles(value), None) is not None:
        raise fault(
            UnsupportedFeature,
            f"`print` takes kernel values one by one, and this is inside a {type(value).__name__}",
            help="write each as an argument of its own: `print(a, b)`, or `print(*values)`",
        )
    return str(value)


def _unless_keyed(python: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return `ours`, but Python's where a key decides: that is a choice among Python objects."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        keyed = not kwargs.keys().isdisjoint({"key", "default"})
        return (python if keyed else ours)(*args, **kwargs)

    return chosen


MEANINGS: dict[Any, Callable[..., Any]] = {
    builtins.min: _unless_keyed(builtins.min, reductions.min),
    builtins.max: _unless_keyed(builtins.max, reductions.max),
    builtins.sum: _sum,
    builtins.any: reductions.any,
    builtins.all: reductions.all,
    builtins.abs: arith.abs,
    builtins.round: arith.round,
    builtins.pow: arith.pow,
    builtins.len: _length,
    builtins.int: _int,
    builtins.float: _float,
    builtins.bool: _bool,
    builtins.range: kernel_range,
    builtins.print: _print,
}
