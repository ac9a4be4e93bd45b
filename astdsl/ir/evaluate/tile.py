"""What operations that move or combine elements of tiles mean.

Invariant: tiles are never changed in place, so a result may be a view of its operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from astdsl.ir import ops
from astdsl.ir.core import Value
from astdsl.ir.dtypes import f4e2m1
from astdsl.ir.evaluate.rounding import is_narrow_float, narrowed
from astdsl.ir.evaluate.state import Frame
from astdsl.ir.evaluate.table import EVALUATORS, Array, evaluates


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


@evaluates(ops.PrintLayout)
def _print_layout(op: ops.PrintLayout, frame: Frame) -> None:
    """Do nothing: values have no layout here."""
    del op, frame


@evaluates(ops.LayoutCast)
def _layout_cast(op: ops.LayoutCast, x: Array) -> Array:
    del op
    return x


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


@evaluates(ops.UnpackNibbles)
def _unpack_nibbles(op: ops.UnpackNibbles, x: Array) -> Array:
    return unpacked(x, op.axis)


def unpacked(x: Array, axis: int) -> Array:
    """Return the two f4e2m1 of each byte, side by side along an axis."""
    halves = np.stack([x & np.uint8(15), x >> np.uint8(4)], axis=axis + 1)
    shape = (*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :])
    return halves.reshape(shape).view(f4e2m1.numpy)


@evaluates(ops.PackNibbles)
def _pack_nibbles(op: ops.PackNibbles, x: Array) -> Array:
    codes = np.moveaxis(np.ascontiguousarray(x).view(np.uint8), op.axis, -1)
    bytes_ = codes[..., ::2] & np.uint8(15) | codes[..., 1::2] << np.uint8(4)
    return np.moveaxis(bytes_, -1, op.axis)


@evaluates(ops.Take)
def _take(op: ops.Take, x: Array, indices: Array) -> Array:
    shape, rank, along = np.shape(x), len(np.shape(indices)), iter(op.along)
    if not shape[op.axis]:
        return np.zeros(np.shape(indices), x.dtype)
    place: list[Array] = []
    for axis, extent in enumerate(shape):
        if axis == op.axis:
            place.append(np.clip(indices, 0, extent - 1))
            continue
        ones = [1] * rank
        ones[next(along)] = extent
        place.append(np.arange(extent).reshape(ones))
    alive = (indices >= 0) & (indices < shape[op.axis])
    # Of f8e8m0 a converted 0 is a NaN, and a 0 in memory its smallest number.
    return np.where(alive, x[tuple(place)], np.zeros((), x.dtype))


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
    if not is_narrow_float(dtype):
        return np.asarray(_REDUCTIONS[op.kind](x, op.axes)).astype(dtype.numpy)
    return narrowed(_REDUCTIONS[op.kind](x.astype(np.float32), op.axes), dtype)


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


State: TypeAlias = tuple[Array, ...]


def _combined(op: ops.Combining, left: State, right: State, captured: State) -> State:
    """Return what the function makes of states, each of them an array over all elements."""
    shape = left[0].shape
    arguments = (*left, *right, *captured)
    values: dict[Value, Array] = {
        v: np.broadcast_to(a, shape) for v, a in zip(op.combine.args, arguments, strict=True)
    }
    for inner in op.combine.ops[:-1]:
        made = EVALUATORS[type(inner)](inner, *(values[v] for v in inner.operands))
        values[inner.result] = np.broadcast_to(made, shape)
    return tuple(values[v] for v in ops.yielded(op.combine))


def _along(state: State, axis: int, start: int, stop: int, step: int = 1) -> State:
    at = (slice(None),) * axis + (slice(start, stop, step),)
    return tuple(x[at] for x in state)


def _results(state: State) -> State | Array:
    return state if len(state) > 1 else state[0]


@evaluates(ops.Scan)
def _scan(op: ops.Scan, *operands: Array) -> State | Array:
    """Combine with what is 1, 2, 4, ... places before."""
    state, captured = operands[: len(op.xs)], operands[len(op.xs) :]
    extent, distance = op.shape[op.axis], 1
    while distance < extent:
        left = _along(state, op.axis, 0, extent - distance)
        right = _along(state, op.axis, distance, extent)
        start = _along(state, op.axis, 0, distance)
        merged = _combined(op, left, right, captured)
        pairs = zip(start, merged, strict=True)
        state = tuple(np.concatenate(pair, axis=op.axis) for pair in pairs)
        distance *= 2
    return _results(state)


@evaluates(ops.Fold)
def _fold(op: ops.Fold, *operands: Array) -> State | Array:
    """Combine neighbours, then pairs of neighbours, and so on."""
    state, captured = operands[: len(op.xs)], operands[len(op.xs) :]
    while (extent := state[0].shape[op.axis]) > 1:
        even = extent - extent % 2
        left, right = (_along(state, op.axis, k, even, 2) for k in (0, 1))
        merged = _combined(op, left, right, captured)
        rest = _along(state, op.axis, even, extent)
        pairs = zip(merged, rest, strict=True)
        state = tuple(np.concatenate(pair, axis=op.axis) for pair in pairs)
    return _results(tuple(np.take(x, 0, axis=op.axis) for x in state))
