"""Arithmetic on 8-bit floats as arithmetic on f32, which is how the hardware has it.

Before
    z: f8e4m3 = add x, y
After
    a: f32 = cast x; b: f32 = cast y; c: f32 = add a, b; z: f8e4m3 = cast c

Invariant: afterwards 8-bit floats are only moved, chosen between, converted and multiplied as
matrices; every other value is f32, rounded once, which is what the operations say they mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from astdsl.ir import ops
from astdsl.ir.core import Module, Op, Value
from astdsl.ir.dtypes import DType, f8e4m3, f8e5m2, f32
from astdsl.ir.rewrite import Emit, replace_body, replace_fields, rewrite_block
from astdsl.ir.types import TileType

SMALL = (f8e4m3, f8e5m2)
_SIGN, _NAN = 0x80, 0x7F
# Computing operations besides the elementwise ones, and elementwise ones that compute nothing.
_COMPUTE = (ops.Reduce, ops.ArgReduce)
_MOVE = (ops.Select, ops.Cast, ops.Bitcast)


def small_float_bits(dtype: DType, value: float) -> int:
    """Return the code of the 8-bit float nearest to a number, ties to even, saturating.

    That is `cvt.rn.satfinite` (PTX ISA 9.7.9.21); infinities saturate too, NaN stays NaN.
    """
    if math.isnan(value):
        return _NAN
    numbers = np.arange(_SIGN, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    size = min(abs(value), float(finite[-1]))
    code = min(range(len(finite)), key=lambda c: (abs(float(finite[c]) - size), c & 1))
    return code | (_SIGN if math.copysign(1.0, value) < 0 else 0)


def widen_small_floats(module: Module) -> Module:
    """Return the module with arithmetic on 8-bit floats done in f32."""
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
