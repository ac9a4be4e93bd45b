"""Comparison, selection, moves and conversions (PTX ISA 9.7.6, 9.7.9), as `isa.logic` does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from astdsl.emulator.native.floats import canonical, flushed
from astdsl.emulator.native.table import NotCompiled, compiles, only
from astdsl.emulator.scalars import TYPES

if TYPE_CHECKING:
    from astdsl.emulator.native.writer import Writer
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.scalars import Scalar

_INTEGER = {
    "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
    "lo": "lt", "ls": "le", "hi": "gt", "hs": "ge",
}  # fmt: skip
_FLOAT = {
    "eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge",
    "equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge",
    "num": "ord", "nan": "uno",
}  # fmt: skip
_LOGIC = ("and", "or", "xor")
_BF16_NAN = 0x7FFF


@compiles("setp")
def compare(w: Writer, ops: Operands) -> None:
    """`setp.cmp{.logic}{.ftz}.type p{|q}, a, b{, {!}c}` of integers, f32 and f64."""
    word = ops.modifiers[0]
    only(ops, word, *_LOGIC, "ftz")
    scalar, mask = ops.last_type(), w.vector("i1")
    found = _compared(w, ops, word, scalar)
    logic = next((each for each in ops.modifiers[1:] if each in _LOGIC), None)
    third = None if logic is None else w.read(ops, ops.args[3], "pred")
    targets = ops.pair(ops.args[0])
    results = [found]
    if len(targets) == 2:
        results.append(w.emit(f"xor {mask} {found}, splat (i1 true)"))
    if third is not None:
        results = [w.emit(f"{logic} {mask} {each}, {third}") for each in results]
    wanted = [pair for pair in zip(targets, results, strict=True) if not _is_sink(pair[0])]
    for target, result in wanted:
        w.write(ops, target, "pred", result)


def _is_sink(operand: object) -> bool:
    return getattr(operand, "name", None) == "_"


def _compared(w: Writer, ops: Operands, word: str, scalar: Scalar) -> str:
    if scalar.count > 1 or scalar.kind in ("bf", "tf", "pred"):
        raise NotCompiled
    first, second = (w.read(ops, operand, scalar.name) for operand in ops.args[1:3])
    kind = w.type(scalar)
    if not scalar.is_float:
        base = _INTEGER[word]
        sign = "" if base in ("eq", "ne") else ("s" if scalar.kind == "s" else "u")
        return w.emit(f"icmp {sign}{base} {kind} {first}, {second}")
    if scalar.bits < 32 or word not in _FLOAT:
        raise NotCompiled
    if ops.has("ftz") and scalar.bits == 32:
        first, second = flushed(w, scalar, first), flushed(w, scalar, second)
    return w.emit(f"fcmp {_FLOAT[word]} {kind} {first}, {second}")


@compiles("selp")
def select(w: Writer, ops: Operands) -> None:
    """`selp.type d, a, b, p`: a if p, else b."""
    only(ops)
    name = f"b{ops.last_type().bits}"
    kind = w.type(TYPES[name])
    first, second = (w.read(ops, operand, name) for operand in ops.args[1:3])
    choice = w.read(ops, ops.args[3], "pred")
    value = w.emit(f"select {w.vector('i1')} {choice}, {kind} {first}, {kind} {second}")
    w.write(ops, ops.args[0], name, value)


@compiles("mov")
def move(w: Writer, ops: Operands) -> None:
    """`mov.type d, a`, packing and unpacking of two elements included."""
    only(ops)
    scalar = ops.last_type()
    if ops.is_vector(ops.args[0]):
        _unpack(w, ops, scalar)
    elif ops.is_vector(ops.args[1]):
        _pack(w, ops, scalar)
    else:
        bits = scalar.kind != "pred" and not ops.is_literal(ops.args[1])
        name = f"b{scalar.bits}" if bits else scalar.name
        w.write(ops, ops.args[0], name, w.read(ops, ops.args[1], name))


def _order(parts: Iterable[int]) -> str:
    parts = list(parts)
    return f"<{len(parts)} x i32> <{', '.join(f'i32 {part}' for part in parts)}>"


def _pack(w: Writer, ops: Operands, scalar: Scalar) -> None:
    elements = ops.elements(ops.args[1])
    bits = scalar.bits // len(elements)
    if len(elements) != 2 or bits not in (16, 32):
        raise NotCompiled
    low, high = (w.read(ops, element, f"b{bits}") for element in elements)
    whole = f"b{scalar.bits}"
    w.write(ops, ops.args[0], whole, paired(w, f"i{bits}", low, high))


def paired(w: Writer, element: str, low: str, high: str) -> str:
    """Return integers whose halves are the two integers of each lane."""
    kind = w.vector(element)
    order = _order(part for lane in range(w.width) for part in (lane, w.width + lane))
    both = w.emit(f"shufflevector {kind} {low}, {kind} {high}, {order}")
    wide = w.vector(f"i{2 * int(element[1:])}")
    return w.emit(f"bitcast {w.vector(element, 2)} {both} to {wide}")


def _unpack(w: Writer, ops: Operands, scalar: Scalar) -> None:
    elements = ops.elements(ops.args[0])
    bits = scalar.bits // len(elements)
    if len(elements) != 2 or bits not in (16, 32):
        raise NotCompiled
    if any(not _is_sink(each) and ops.place(each)[0] < bits for each in elements):
        raise NotCompiled
    whole = w.read(ops, ops.args[1], f"b{scalar.bits}")
    kind = w.vector(f"i{bits}", 2)
    parts = w.emit(f"bitcast {w.vector(f'i{scalar.bits}')} {whole} to {kind}")
    for first, element in enumerate(elements):
        if not _is_sink(element):
            order = _order(range(first, 2 * w.width, 2))
            part = w.emit(f"shufflevector {kind} {parts}, {kind} poison, {order}")
            w.write(ops, element, f"b{bits}", part)


@compiles("cvt")
def convert(w: Writer, ops: Operands) -> None:
    """`cvt` between integers, and between f32 and f16 or bf16, packing two included."""
    only(ops, "rn", "ftz")
    words = [word for word in ops.modifiers if word in TYPES]
    if len(words) != 2:
        raise NotCompiled
    row = _PACKED.get((words[0], words[1])) if len(ops.args) == 3 else None
    if row is not None:
        upper, lower = (row(w, w.read(ops, each, "f32")) for each in ops.args[1:3])
        w.write(ops, ops.args[0], "b32", paired(w, "i16", lower, upper))
        return
    if len(ops.args) != 2 or ops.has("ftz"):
        raise NotCompiled
    to, source = TYPES[words[0]], TYPES[words[1]]
    value = w.read(ops, ops.args[1], source.name)
    narrow = _PACKED.get((f"{to.name}x2", source.name))
    if narrow is not None:
        w.write(ops, ops.args[0], "b16", narrow(w, value))
    elif to.name == "f32" and source.name in ("f16", "bf16"):
        w.write(ops, ops.args[0], "f32", canonical(w, to, _widened(w, source, value)))
    elif to.is_float or source.is_float or to.count > 1 or source.count > 1:
        raise NotCompiled
    else:
        w.write(ops, ops.args[0], to.name, _resized(w, value, source, to))


def _resized(w: Writer, value: str, source: Scalar, to: Scalar) -> str:
    if to.bits == source.bits:
        return value
    word = "trunc" if to.bits < source.bits else ("sext" if source.kind == "s" else "zext")
    return w.emit(f"{word} {w.type(source)} {value} to {w.type(to)}")


def _widened(w: Writer, source: Scalar, value: str) -> str:
    floats, words = w.vector("float"), w.vector("i32")
    if source.kind == "f":
        return w.emit(f"fpext {w.vector('half')} {value} to {floats}")
    wide = w.emit(f"zext {w.vector('i16')} {value} to {words}")
    moved = w.emit(f"shl {words} {wide}, splat (i32 16)")
    return w.emit(f"bitcast {words} {moved} to {floats}")


def _to_f16(w: Writer, value: str) -> str:
    """Return the bits of float32 values as float16, rounded to nearest even."""
    narrow = w.emit(f"fptrunc {w.vector('float')} {value} to {w.vector('half')}")
    bits = w.emit(f"bitcast {w.vector('half')} {narrow} to {w.vector('i16')}")
    return _without_nan(w, value, bits, 0x7FFF)


def _to_bf16(w: Writer, value: str) -> str:
    """Return the bits of float32 values as bfloat16, rounded to nearest even."""
    words = w.vector("i32")
    bits = w.emit(f"bitcast {w.vector('float')} {value} to {words}")
    high = w.emit(f"lshr {words} {bits}, splat (i32 16)")
    odd = w.emit(f"and {words} {high}, splat (i32 1)")
    half = w.emit(f"add {words} {odd}, splat (i32 32767)")
    rounded = w.emit(f"add {words} {bits}, {half}")
    kept = w.emit(f"lshr {words} {rounded}, splat (i32 16)")
    narrow = w.emit(f"trunc {words} {kept} to {w.vector('i16')}")
    return _without_nan(w, value, narrow, _BF16_NAN)


def _without_nan(w: Writer, value: str, bits: str, nan: int) -> str:
    kind, mask = w.vector("i16"), w.vector("i1")
    is_nan = w.emit(f"fcmp uno {w.vector('float')} {value}, {value}")
    return w.emit(f"select {mask} {is_nan}, {kind} splat (i16 {nan}), {kind} {bits}")


_PACKED = {
    ("f16x2", "f32"): _to_f16,
    ("bf16x2", "f32"): _to_bf16,
}
