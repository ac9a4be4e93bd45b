"""Arithmetic that LLVM has no spelling for: approximations and packed conversions.

Source: PTX ISA 9.7.3 (floating point), 9.7.9.21 (cvt).
"""

from __future__ import annotations

from functools import cache

from astdsl.lowering.nvptx.asm.row import AsmRow, Effect


def _unary(name: str, opcode: str) -> AsmRow:
    return AsmRow(
        name=name,
        text=f"{opcode} $result, $value;",
        effect=Effect.PURE,
        outputs={"result": "float"},
        inputs={"value": "float"},
    )


def _pack(name: str, opcode: str) -> AsmRow:
    # PTX puts its first source into the high half.
    return AsmRow(
        name=name,
        text=f"{opcode} $result, $high, $low;",
        effect=Effect.PURE,
        outputs={"result": "i16"},
        inputs={"low": "float", "high": "float"},
    )


def _convert(name: str, opcode: str, source: str, result: str) -> AsmRow:
    return AsmRow(
        name=name,
        text=f"{opcode} $result, $value;",
        effect=Effect.PURE,
        outputs={"result": result},
        inputs={"value": source},
    )


EX2_APPROX = _unary("ex2.approx", "ex2.approx.f32")
LG2_APPROX = _unary("lg2.approx", "lg2.approx.f32")
TANH_APPROX = _unary("tanh.approx", "tanh.approx.f32")
RSQRT_APPROX = _unary("rsqrt.approx", "rsqrt.approx.f32")
SQRT_APPROX = _unary("sqrt.approx", "sqrt.approx.f32")
SIN_APPROX = _unary("sin.approx", "sin.approx.f32")
COS_APPROX = _unary("cos.approx", "cos.approx.f32")
DIV_APPROX = AsmRow(
    name="div.full",
    text="div.full.f32 $result, $dividend, $divisor;",
    effect=Effect.PURE,
    outputs={"result": "float"},
    inputs={"dividend": "float", "divisor": "float"},
)
"""Quotient within 2 ulp."""

PACK_E4M3 = _pack("cvt.e4m3x2", "cvt.rn.satfinite.e4m3x2.f32")
PACK_E5M2 = _pack("cvt.e5m2x2", "cvt.rn.satfinite.e5m2x2.f32")
UNPACK_E4M3 = _convert("cvt.f16x2.e4m3x2", "cvt.rn.f16x2.e4m3x2", "i16", "<2 x half>")
UNPACK_E5M2 = _convert("cvt.f16x2.e5m2x2", "cvt.rn.f16x2.e5m2x2", "i16", "<2 x half>")
_PTX_FLOATS = {"float": "f32", "double": "f64"}


@cache
def to_integer(source: str, target: str) -> AsmRow:
    """Make the row that cuts a float off towards zero into ``s32 u32 s64 u64``, saturating.

    NaN gives 0 from f32 to 32 bits, else the bit of the sign alone.
    """
    opcode = f"cvt.rzi.{target}.{_PTX_FLOATS[source]}"
    return _convert(opcode, opcode, source, f"i{target[1:]}")
