"""What operations that move or combine elements of tiles mean.

Invariant: tiles are never changed in place, so a result may be a view of its operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from astdsl.ir import ops
from astdsl.ir.evaluate.rounding import is_narrow_float
from astdsl.ir.evaluate.table import Array, evaluates


@evaluates(ops.Iota)
def _iota(op: ops.Iota) -> Array:
    shape = [1] * len(op.shape)
    shape[op.axis] = op.shape[op.axis]
    line = np.arange(op.shape[op.axis]).astype(op.dtype.numpy)
    return np.broadcast_to(line.reshape(shape), op.shape)


@evaluates(ops.Broadcast)
def _broadcast(op: ops.Broadcast, x: Array) -> Array:
    return np.broadcast_to(x, op.shape)


@evaluates(ops.Reshape)
def _reshape(op: ops.Reshape, x: Array) -> Array:
    return np.reshape(x, op.shape)


@evaluates(ops.Transpose)
def _transpose(op: ops.Transpose, x: Array) -> Array:
    return np.transpose(x, op.permutation)


@evaluates(ops.Slice)
def _slice(op: ops.Slice, x: Array) -> Array:
    indices = [
        np.arange(size) * step + start
        for start, size, step in zip(op.starts, op.sizes, op.steps, strict=True)
    ]
    result: Array = x[np.ix_(*indices)] if indices else x
    return result


@evaluates(ops.Insert)
def _insert(op: ops.Insert, x: Array, part: Array) -> Array:
    result = np.array(x)
    size = np.shape(part)
    result[tuple(slice(a, a + n) for a, n in zip(op.starts, size, strict=True))] = part
    return result


def _reduce_minimum(x: Array, axes: tuple[int, ...]) -> Array:
    return _with_zero(x, axes, np.minimum.reduce(x, axis=axes), wants_negative=True)


def _reduce_maximum(x: Array, axes: tuple[int, ...]) -> Array:
    return _with_zero(x, axes, np.maximum.reduce(x, axis=axes), wants_negative=False)


def _with_zero(x: Array, axes: tuple[int, ...], found: Any, *, wants_negative: bool) -> Array:
    """Give a zero that was found the sign that its order demands: NumPy takes any of them."""
    if x.dtype.kind != "f" or not np.any(found == 0):
        return np.asarray(found)
    wanted = np.any((x == 0) & (np.signbit(x) == wants_negative), axis=axes)
    negative = wanted if wants_negative else ~wanted
    return np.where(found == 0, np.where(negative, -0.0, 0.0).astype(x.dtype), found)


_REDUCTIONS: dict[str, Callable[[Array, tuple[int, ...]], Any]] = {
    "sum": lambda x, axes: np.add.reduce(x, axis=axes, dtype=x.dtype),
    "prod": lambda x, axes: np.multiply.reduce(x, axis=axes, dtype=x.dtype),
    "min": _reduce_minimum,
    "max": _reduce_maximum,
    "any": lambda x, axes: np.any(x != 0, axis=axes),
    "all": lambda x, axes: np.all(x != 0, axis=axes),
}


@evaluates(ops.Reduce)
def _reduce(op: ops.Reduce, x: Array) -> Array:
    dtype = op.x.tile.dtype
    wide = x.astype(np.float32) if is_narrow_float(dtype) else x
    return np.asarray(_REDUCTIONS[op.kind](wide, op.axes)).astype(dtype.numpy)


@evaluates(ops.ArgReduce)
def _arg_reduce(op: ops.ArgReduce, x: Array, *valid: Array) -> Array:
    wide = x.astype(np.float32) if is_narrow_float(op.x.tile.dtype) else x
    mask = valid[0] if valid else np.ones(np.shape(x), np.bool_)
    nan = np.isnan(wide) & mask if wide.dtype.kind == "f" else np.zeros(np.shape(x), np.bool_)
    best = _best(wide, mask & ~nan, op)
    has_nan = np.any(nan, axis=op.axis, keepdims=True)
    winners = np.where(has_nan, nan, (wide == best) & mask)
    return np.asarray(np.argmax(winners, axis=op.axis)).astype(np.int32)


def _best(x: Array, mask: Array, op: ops.ArgReduce) -> Array:
    is_float = x.dtype.kind == "f"
    low, high = (-np.inf, np.inf) if is_float else _limits(x.dtype)
    worst, find = (high, np.min) if op.kind == "min" else (low, np.max)
    return np.asarray(find(np.where(mask, x, x.dtype.type(worst)), axis=op.axis, keepdims=True))


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "b":
        return False, True
    info = np.iinfo(dtype)
    return info.min, info.max
