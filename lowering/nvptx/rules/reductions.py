"""Lowering of `Reduce` and `ArgReduce` to folds.

Invariant: floats under 32 bits are summed and multiplied in f32 and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from astdsl.ir import ops
from astdsl.ir.dtypes import BOOL, DType, boolean, f32, largest_value, smallest_value
from astdsl.lowering.layout.inference import coalesced
from astdsl.lowering.layout.registers import Layout
from astdsl.lowering.nvptx.asm import warp
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.function import Emitter, llvm_type, lowers_tile
from astdsl.lowering.nvptx.rules.arith import add, maximum, minimum, multiply
from astdsl.lowering.nvptx.rules.casts import converted
from astdsl.lowering.nvptx.rules.elements import PACKED_DTYPES, ElementRule, is_narrow
from astdsl.lowering.nvptx.rules.exchange import State
from astdsl.lowering.nvptx.rules.folds import Fold, folded
from astdsl.lowering.nvptx.values import LV, bits_of, constant, i32
from astdsl.lowering.target import REDUX_F32

_RULES: dict[str, ElementRule] = {
    "sum": add, "prod": multiply, "min": minimum, "max": maximum, "any": maximum, "all": minimum,
}  # fmt: skip


@lowers_tile(ops.Reduce)
def _reduce(emitter: Emitter, op: ops.Reduce, layout: Layout) -> Sequence[LV]:
    dtype = op.x.tile.dtype
    wide = _computed_in(op.kind, dtype)
    source = emitter.settled(op.x, coalesced(op.x.tile, emitter.threads))
    states = [(converted(emitter, dtype, wide, x),) for x in emitter.get(op.x, source)]
    results = folded(emitter, source, op.axes, states, _fold(emitter, op.kind, wide))
    if op.kind == "sum" and dtype.is_float:  # as from 0 on: no sum is -0.0
        zero = constant(results[0][0].type, 0.0)
        results = [(emitter.builder.binary("fadd", value, zero),) for (value,) in results]
    registers = tuple(converted(emitter, wide, dtype, value) for (value,) in results)
    return emitter.converted(registers, op.result.tile, source.without(op.axes), layout)


def _computed_in(kind: str, dtype: DType) -> DType:
    if kind in ("any", "all"):
        return boolean
    return f32 if is_narrow(dtype) and kind in ("sum", "prod") else dtype


def _fold(emitter: Emitter, kind: str, dtype: DType) -> Fold:
    rule = _RULES[kind]

    def combine(left: State, right: State) -> State:
        return (rule(emitter, dtype, left[0], right[0]),)

    identity = (constant(llvm_type(dtype), _identity(kind, dtype)),)
    return Fold(combine, identity, dtype in PACKED_DTYPES, _of_warp(emitter, kind, dtype))


# As the rules of elements: a product of bools is that all are true.
_VOTES = {
    "any": "any", "max": "any", "sum": "any", "all": "all", "min": "all", "prod": "all",
}  # fmt: skip
_OPERATIONS = {"sum": "add", "min": "min", "max": "max"}


def _of_warp(emitter: Emitter, kind: str, dtype: DType) -> Callable[[LV], LV] | None:
    """Return what reduces the registers of all lanes by one instruction, None if nothing does."""
    builder, members = emitter.builder, i32(warp.FULL_MASK)
    if dtype is boolean:
        return lambda x: builder.asm(warp.vote(_VOTES[kind]), x, members)[0]
    operation = _operation_of_warp(emitter, kind, dtype)
    if operation is None:
        return None
    wide, widen, narrow = "i32", "sext" if dtype.is_signed else "zext", "trunc"
    if dtype.is_float:
        wide, widen, narrow = "float", "fpext", "fptrunc"

    def write(x: LV) -> LV:
        whole = x if x.type == wide else builder.cast(widen, x, wide)
        (result,) = builder.asm(warp.redux(operation), whole, members)
        return result if x.type == wide else builder.cast(narrow, result, x.type)

    return write


def _operation_of_warp(emitter: Emitter, kind: str, dtype: DType) -> str | None:
    """Return what `redux` is told; numbers of fewer bits are extended, which keeps their order."""
    operation = _OPERATIONS.get(kind)
    if operation is None or dtype.bits > f32.bits:
        return None
    if not dtype.is_float:
        return f"{operation}.{'s' if kind == 'sum' or dtype.is_signed else 'u'}32"
    has_floats = emitter.target.has(REDUX_F32) and dtype in PACKED_DTYPES
    return f"{operation}.NaN.f32" if has_floats and kind != "sum" else None


def _identity(kind: str, dtype: DType) -> float | int | bool:
    """Return what changes nothing."""
    if kind in ("min", "all"):
        return largest_value(dtype)
    if kind in ("max", "any"):
        return smallest_value(dtype)
    if kind == "prod":
        return 1
    return 0


_NO_INDEX = (1 << 31) - 1


@lowers_tile(ops.ArgReduce)
def _arg_reduce(emitter: Emitter, op: ops.ArgReduce, layout: Layout) -> Sequence[LV]:
    builder, dtype = emitter.builder, op.x.tile.dtype
    source = emitter.settled(op.x, coalesced(op.x.tile, emitter.threads))
    kept = emitter.get(op.x, source)
    keys = [_key(builder, dtype, op.kind, x) for x in kept]
    identity = (constant(keys[0].type, (1 << (bits_of(keys[0].type) - 1)) - 1), i32(_NO_INDEX))
    states: list[State] = list(zip(keys, emitter.coordinates(source, op.axis), strict=True))
    for valid in op.valid:
        flags = emitter.get(valid, source)
        states = [
            tuple(builder.select(flag, own, none) for own, none in zip(s, identity, strict=True))
            for flag, s in zip(flags, states, strict=True)
        ]

    def combine(left: State, right: State) -> State:
        return _first_least(builder, left, right)

    results = folded(emitter, source, (op.axis,), states, Fold(combine, identity))
    registers = tuple(
        builder.select(builder.icmp("eq", index, i32(_NO_INDEX)), i32(0), index)
        for _, index in results
    )
    return emitter.converted(registers, op.result.tile, source.without((op.axis,)), layout)


def _first_least(builder: Builder, left: State, right: State) -> State:
    """Return the state with the lesser key, or of equal ones the lesser index."""
    is_less = builder.icmp("slt", right[0], left[0])
    is_equal = builder.icmp("eq", right[0], left[0])
    is_before = builder.icmp("slt", right[1], left[1])
    takes_right = builder.or_(is_less, builder.and_(is_equal, is_before))
    return tuple(builder.select(takes_right, r, x) for x, r in zip(left, right, strict=True))


def _key(builder: Builder, dtype: DType, kind: str, x: LV) -> LV:
    """Return a signed integer that orders elements: the winner is the least, NaN before all."""
    key = _ascending(builder, dtype, x)
    if kind == "max":
        key = builder.xor(key, constant(key.type, -1))
    if not dtype.is_float:
        return key
    least = constant(key.type, 1 << (dtype.bits - 1))
    return builder.select(builder.fcmp("uno", x, x), least, key)


def _ascending(builder: Builder, dtype: DType, x: LV) -> LV:
    """Return a signed integer in the order of the elements; both zeros of floats are 0."""
    if dtype.kind == BOOL:
        return builder.cast("zext", x, "i8")
    if not dtype.is_float:
        sign = constant(x.type, 1 << (dtype.bits - 1))
        return x if dtype.is_signed else builder.xor(x, sign)
    kind = f"i{dtype.bits}"
    zero = constant(x.type, 0)
    bits = builder.cast("bitcast", x, kind)
    magnitudes = constant(kind, (1 << (dtype.bits - 1)) - 1)
    below = builder.binary("ashr", bits, constant(kind, dtype.bits - 1))
    ordered = builder.xor(bits, builder.and_(below, magnitudes))
    return builder.select(builder.fcmp("oeq", x, zero), constant(kind, 0), ordered)
