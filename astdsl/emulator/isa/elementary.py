"""Approximations of elementary functions (PTX ISA 9.7.3.13-9.7.3.22, 9.7.4.9, 9.7.4.10).

The bits of the hardware's tables are not published. Invariant: each function here is computed in
float64 and rounded once to its type, which lies within the ISA's stated error; the coarse float64
reciprocals keep 20 bits of mantissa, as the ISA says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import numerics
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.floating import format_of
from astdsl.emulator.isa.steps import value_step
from astdsl.emulator.scalars import Array
from astdsl.emulator.undefined_bits import by_element

if TYPE_CHECKING:
    from astdsl.emulator.operands import Operands

FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
}


@executes(*FUNCTIONS, bits=by_element)
def prepare_elementary(ops: Operands) -> Execute:
    """`{ex2,lg2,sin,cos,tanh,rsqrt}.approx{.ftz}.type d, a`."""
    ops.allow("approx", "ftz")
    function = FUNCTIONS[ops.instruction.opcode.split(".")[0]]
    scalar = ops.last_type()
    form = format_of(scalar)
    flush = ops.has("ftz")

    def evaluate(a: Any) -> Array:
        # Subnormals of bfloat16 are those of float32.
        wide = numerics.flush(form.decode(a)) if flush else form.decode(a)
        result = np.asarray(form.encode(np.asarray(function(wide)), "rn"))
        if flush and scalar.kind == "bf":
            result = numerics.f32_to_bf16(numerics.flush(numerics.bf16_to_f32(result)))
        elif flush:
            result = numerics.flush(result)
        if result.ndim and scalar.kind == "f":
            numerics.canonical_nan(result)
        return result

    return value_step(ops, evaluate, scalar.name, [scalar.name])


def _flushed(x: Any) -> Any:
    return np.where(np.abs(x) < np.finfo(np.float64).tiny, np.copysign(0.0, x), x)


@executes("rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64")
def prepare_coarse(ops: Operands) -> Execute:
    """`{rcp,rsqrt}.approx.ftz.f64`: the upper 32 bits of the result, the lower are zero."""
    root = ops.instruction.opcode.startswith("rsqrt")

    def evaluate(a: Any) -> Array:
        array = np.asarray(a)
        flat = _flushed(array)
        result = np.array(_flushed(1.0 / (np.sqrt(flat) if root else flat)))
        bits = result.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)
        return np.where(np.isnan(result), result, bits.view(np.float64))

    return value_step(ops, evaluate, "f64", ["f64"])
