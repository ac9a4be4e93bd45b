"""Arithmetic on floats of 8 and 4 bits as arithmetic on f32, which is how the hardware has it.

Before
    z: f8e4m3 = add x, y
After
    a: f32 = cast x; b: f32 = cast y; c: f32 = add a, b; z: f8e4m3 = cast c

Invariant: afterwards small floats are only moved, chosen between, converted and multiplied as
matrices; every other value is f32, rounded once, which is what the operations say they mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from astdsl.ir import ops
from astdsl.ir.core import Module, Op, Value, walk
from astdsl.ir.dtypes import DType, f4e2m1, f8e4m3, f8e5m2, f8e8m0, f32
from astdsl.ir.rewrite import Emit, replace_body, replace_fields, rewrite_block
from astdsl.ir.types import TileType

SMALL = (f8e4m3, f8e5m2, f8e8m0, f4e2m1)
# The bit of the sign, 0 for none, and the code that a NaN becomes.
_SIGNS_AND_NANS = {
    f8e4m3: (0x80, 0x7F), f8e5m2: (0x80, 0x7F), f8e8m0: (0, 0xFF), f4e2m1: (0x8, 0x7),
}  # fmt: skip
# Computing operations besides the elementwise ones, and elementwise ones that compute nothing.
_COMPUTE = (ops.Reduce, ops.ArgReduce)
_MOVE = (ops.Select, ops.Cast, ops.Bitcast)


def small_float_bits(dtype: DType, value: float) -> int:
    """Return the code of the small float nearest to a number, ties to even, saturating.

    That is `cvt.rn.satfinite` (PTX ISA 9.7.9.21); infinities saturate too, NaN stays NaN, and of
    f4e2m1 becomes its largest number. Negative numbers become the NaN of f8e8m0.
    """
    sign, nan = _SIGNS_AND_NANS[dtype]
    if math.isnan(value) or (not sign and value < 0):
        return nan
    codes = np.arange(sign or nan, dtype=np.uint8)
    numbers = codes.view(dtype.numpy).astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    size = min(abs(value), float(finite[-1]))
    code = min(range(len(finite)), key=lambda c: (abs(float(finite[c]) - size), c & 1))
    return code | (sign if math.copysign(1.0, value) < 0 else 0)


def widen_small_floats(module: Module) -> Module:
    """Return the module with arithmetic on small floats done in f32."""
    if not any(_is_small(v) for op in walk(module.body) for v in op.operands):
        return module
    return replace_body(module, rewrite_block(module.body, _widen))


def _widen(op: Op, emit: Emit) -> Sequence[Value] | None:
    computes = isinstance(op, (ops.Elementwise, *_COMPUTE)) and not isinstance(op, _MOVE)
    if not computes or not any(_is_small(v) for v in op.operands):
        return None
    wide = {v: _cast(op, v, f32, emit) for v in op.operands if _is_small(v)}
    changes = {
        name: wide[value]
        for name, role in type(op).fields.items()
        if role == "operand" and isinstance(value := getattr(op, name), Value) and value in wide
    }
    done = emit(replace_fields(op, **changes)).result
    small = op.result.tile.dtype
    return (_cast(op, done, small, emit),) if small in SMALL else (done,)


def _is_small(value: Value) -> bool:
    return isinstance(value.type, TileType) and value.type.dtype in SMALL


def _cast(op: Op, value: Value, dtype: DType, emit: Emit) -> Value:
    result: Value = emit(ops.Cast(span=op.span, x=value, dtype=dtype)).result
    return result
