"""Comparison, selection, logic, shifts, bit fields, moves.

Source: PTX ISA 9.7.1.14-9.7.1.22, 9.7.6-9.7.8, 9.7.9.1. Invariant: results depend on bits alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator import numerics
from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.steps import ufunc_step, value_step
from astdsl.emulator.scalars import UNSIGNED, Array, Scalar
from astdsl.emulator.undefined import mark, undefined_mask

if TYPE_CHECKING:
    from astdsl.emulator.lanes import Lanes
    from astdsl.emulator.machine import Machine
    from astdsl.emulator.operands import Operands

_BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@executes(*_BITWISE)
def prepare_bitwise(ops: Operands) -> Execute:
    """`{and,or,xor}.type d, a, b`."""
    ops.allow()
    return ufunc_step(ops, _BITWISE[ops.instruction.opcode.split(".")[0]], ops.last_type().name, 2)


@executes("not")
def prepare_not(ops: Operands) -> Execute:
    """`not.type d, a`."""
    ops.allow()
    return ufunc_step(ops, np.invert, ops.last_type().name, 1)


@executes("cnot")
def prepare_cnot(ops: Operands) -> Execute:
    """`cnot.type d, a`: 1 if a is zero, else 0."""
    ops.allow()
    name = ops.last_type().name
    return value_step(ops, lambda a: np.equal(a, 0), name, [name])


@executes("lop3")
def prepare_lop3(ops: Operands) -> Execute:
    """`lop3.b32 d, a, b, c, immLut`: any function of three bits, by its truth table."""
    ops.allow()
    if len(ops.args) != 5:
        raise ops.refuse("only the form without a predicate result is modelled")
    table = int(ops.immediate(ops.args[4]))

    def function(a: Any, b: Any, c: Any) -> Any:
        result = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
        for row in range(8):
            if table >> row & 1:
                x = a if row & 4 else ~a
                y = b if row & 2 else ~b
                z = c if row & 1 else ~c
                result |= x & y & z
        return result

    return value_step(ops, function, "b32", ["b32"] * 3)


# Shifts.


@executes("shl")
def prepare_shl(ops: Operands) -> Execute:
    """`shl.type d, a, b`: counts from the width on give zero."""
    ops.allow()
    return _shift(ops, np.left_shift, signed=False)


@executes("shr")
def prepare_shr(ops: Operands) -> Execute:
    """`shr.type d, a, b`: arithmetic for signed types; counts are clamped to the width."""
    ops.allow()
    return _shift(ops, np.right_shift, signed=ops.last_type().kind == "s")


def _shift(ops: Operands, ufunc: Any, *, signed: bool) -> Execute:
    scalar = ops.last_type()
    dtype = scalar.dtype
    last = dtype.type(scalar.bits - 1)

    def function(a: Any, count: Any) -> Any:
        amount = np.minimum(count, last).astype(dtype)
        shifted = ufunc(a, amount)
        if signed:
            return shifted
        over = count > last
        return np.where(over, dtype.type(0), shifted) if np.any(over) else shifted

    return value_step(ops, function, scalar.name, [scalar.name, "u32"])


@executes("shf")
def prepare_funnel(ops: Operands) -> Execute:
    """`shf.{l,r}.{clamp,wrap}.b32 d, a, b, c`: shift the pair b:a (PTX ISA 9.7.8.6)."""
    ops.allow("l", "r", "clamp", "wrap")
    left, wrap = ops.has("l"), ops.has("wrap")
    half = np.uint64(32)

    def function(a: Any, b: Any, c: Any) -> Any:
        count = (c & np.uint32(31)) if wrap else np.minimum(c, np.uint32(32))
        amount = np.asarray(count).astype(np.uint64)
        pair = (np.asarray(b).astype(np.uint64) << half) | a
        return (((pair << amount) >> half) if left else (pair >> amount)).astype(np.uint32)

    return value_step(ops, function, "b32", ["b32", "b32", "u32"])


# Bit fields and counts.


@executes("popc")
def prepare_popc(ops: Operands) -> Execute:
    """`popc.type d, a`."""
    ops.allow()
    return value_step(ops, np.bitwise_count, "u32", [ops.last_type().name])


def highest_bit(a: Any, bits: int) -> Array:
    """Return the place of the highest 1, -1 of zero."""
    word = np.array(a, UNSIGNED[bits]).astype(np.uint64)
    for shift in (1, 2, 4, 8, 16, 32):
        word |= word >> np.uint64(shift)
    return np.bitwise_count(word).astype(np.int64) - 1


@executes("clz")
def prepare_clz(ops: Operands) -> Execute:
    """`clz.type d, a`: the number of leading zeros."""
    ops.allow()
    bits = ops.last_type().bits
    return value_step(ops, lambda a: bits - 1 - highest_bit(a, bits), "u32", [f"b{bits}"])


@executes("bfind")
def prepare_bfind(ops: Operands) -> Execute:
    """`bfind{.shiftamt}.type d, a`: the highest bit that is not a sign bit, 0xffffffff if none."""
    ops.allow("shiftamt")
    scalar = ops.last_type()
    amount = ops.has("shiftamt")

    def function(a: Any) -> Any:
        magnitude = np.where(np.less(a, 0), ~a, a) if scalar.kind == "s" else a
        found = highest_bit(np.asarray(magnitude).astype(UNSIGNED[scalar.bits]), scalar.bits)
        place = np.where(found < 0, found, scalar.bits - 1 - found) if amount else found
        return place.astype(np.uint32)

    return value_step(ops, function, "u32", [scalar.name])


@executes("brev")
def prepare_brev(ops: Operands) -> Execute:
    """`brev.type d, a`: the bits in reverse order."""
    ops.allow()
    bits = ops.last_type().bits

    def function(a: Any) -> Any:
        octets = np.ascontiguousarray(np.atleast_1d(a)).view(np.uint8).reshape(-1, bits // 8)
        spread = np.packbits(np.unpackbits(octets, axis=1, bitorder="little"), axis=1)
        return np.ascontiguousarray(spread[:, ::-1]).view(UNSIGNED[bits])[:, 0]

    return value_step(ops, function, f"b{bits}", [f"b{bits}"])


def _low_mask(length: Any, bits: int) -> Any:
    """Return a mask of the `length` low bits, of all from the width on."""
    dtype = UNSIGNED[bits]
    count = np.minimum(length, bits).astype(dtype)
    partial = (dtype.type(1) << (count % dtype.type(bits))) - dtype.type(1)
    return np.where(count == bits, ~dtype.type(0), partial)


def _shifted(a: Any, amount: Any, bits: int, *, left: bool) -> Any:
    dtype = UNSIGNED[bits]
    clamped = np.minimum(amount, bits - 1).astype(dtype)
    moved = (a << clamped) if left else (a >> clamped)
    return np.where(np.greater_equal(amount, bits), dtype.type(0), moved)


@executes("bfe")
def prepare_bfe(ops: Operands) -> Execute:
    """`bfe.type d, a, pos, len`: a field, sign-extended if signed (PTX ISA 9.7.1.19)."""
    ops.allow()
    scalar = ops.last_type()
    bits, dtype = scalar.bits, UNSIGNED[scalar.bits]

    def function(a: Any, position: Any, length: Any) -> Any:
        position, length = position & 255, length & 255
        word = np.asarray(a).view(dtype)
        mask = _low_mask(length, bits)
        field = _shifted(word, position, bits, left=False) & mask
        if scalar.kind == "s":
            last = np.minimum(position.astype(np.int64) + length - 1, bits - 1)
            sign = (word >> np.maximum(last, 0).astype(dtype)) & dtype.type(1)
            sign = np.where(np.equal(length, 0), dtype.type(0), sign)
            field = np.where(sign != 0, field | ~mask, field)
            # Bits of the field from beyond the word are sign bits as well.
            beyond = ~_shifted(~dtype.type(0), position, bits, left=False)
            field = np.where(sign != 0, field | beyond, field)
        return np.asarray(field, dtype).view(scalar.dtype)

    return value_step(ops, function, scalar.name, [scalar.name, "u32", "u32"])


@executes("bfi")
def prepare_bfi(ops: Operands) -> Execute:
    """`bfi.type f, a, b, pos, len`: put the low bits of a into b (PTX ISA 9.7.1.20)."""
    ops.allow()
    name, bits = ops.last_type().name, ops.last_type().bits

    def function(a: Any, b: Any, position: Any, length: Any) -> Any:
        position, length = position & 255, length & 255
        mask = _shifted(_low_mask(length, bits), position, bits, left=True)
        return (_shifted(a, position, bits, left=True) & mask) | (b & ~mask)

    return value_step(ops, function, name, [name, name, "u32", "u32"])


@executes("bmsk")
def prepare_bmsk(ops: Operands) -> Execute:
    """`bmsk.{clamp,wrap}.b32 d, a, b`: b ones from bit a on (PTX ISA 9.7.1.22)."""
    ops.allow("clamp", "wrap")
    wrap = ops.has("wrap")

    def function(a: Any, b: Any) -> Any:
        if wrap:
            a, b = a & np.uint32(31), b & np.uint32(31)
        return _shifted(_low_mask(b, 32), a, 32, left=True)

    return value_step(ops, function, "b32", ["u32", "u32"])


@executes("szext")
def prepare_szext(ops: Operands) -> Execute:
    """`szext.{clamp,wrap}.type d, a, b`: extend the low b bits (PTX ISA 9.7.1.21)."""
    ops.allow("clamp", "wrap")
    scalar = ops.last_type()
    wrap = ops.has("wrap")

    def function(a: Any, b: Any) -> Any:
        width = (b & np.uint32(31)) if wrap else np.minimum(b, np.uint32(32))
        shift = (np.uint32(32) - width).astype(np.uint64)
        moved = np.asarray(a).astype(np.int64).view(np.uint64) << (shift + np.uint64(32))
        extended = (moved.view(np.int64) if scalar.kind == "s" else moved) >> np.int64(32)
        amount = shift.astype(extended.dtype)
        return np.where(width == 0, 0, extended >> amount).astype(scalar.dtype)

    return value_step(ops, function, scalar.name, [scalar.name, "u32"])


_PERMUTE_MODES: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


@executes("prmt")
def prepare_prmt(ops: Operands) -> Execute:
    """`prmt.b32{.mode} d, a, b, c`: pick four of eight bytes (PTX ISA 9.7.9.7)."""
    ops.allow(*_PERMUTE_MODES)
    mode = next((word for word in ops.modifiers if word in _PERMUTE_MODES), None)
    table = None if mode is None else np.array(_PERMUTE_MODES[mode], np.uint32)

    def function(a: Any, b: Any, c: Any) -> Any:
        pair = (np.asarray(b).astype(np.uint64) << np.uint64(32)) | a
        result = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
        for place in range(4):
            if table is not None:
                pick = table[np.asarray(c & np.uint32(3)), place]
            else:
                pick = (c >> np.uint32(4 * place)) & np.uint32(15)
            shift = (pick & np.uint32(7)).astype(np.uint64) << np.uint64(3)
            octet = ((pair >> shift) & np.uint64(255)).astype(np.uint32)
            sign = (pick & np.uint32(8)) != 0
            if np.any(sign):
                octet = np.where(sign, (octet >> np.uint32(7)) * np.uint32(255), octet)
            result |= octet << np.uint32(8 * place)
        return result

    return value_step(ops, function, "b32", ["b32"] * 3)


# Comparison and selection.

_ORDERED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def comparison(ops: Operands, word: str, scalar: Scalar, *, flush: bool) -> Callable[..., Any]:
    """Return a comparison by name; with a NaN, ordered ones are false, `...u` ones true."""
    if not scalar.is_float:
        if word not in _ORDERED:
            raise ops.refuse(f"comparison .{word} is not for integers")
        return _ORDERED[word]
    found = _float_comparison(ops, word)
    if scalar.kind == "bf":
        return lambda a, b: found(numerics.bf16_to_f32(a), numerics.bf16_to_f32(b))
    if flush and scalar.element_bits == 32:
        return lambda a, b: found(numerics.flush(a), numerics.flush(b))
    return found


def _float_comparison(ops: Operands, word: str) -> Callable[..., Any]:
    if word == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if word == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if word == "ne":
        return lambda a, b: np.not_equal(a, b) & ~(np.isnan(a) | np.isnan(b))
    if word in ("eq", "lt", "le", "gt", "ge"):
        return _ORDERED[word]
    ordered = _ORDERED.get(word[:2])
    if ordered is None or word[2:] != "u":
        raise ops.refuse(f"comparison .{word} is not known")
    return lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)


_COMPARISONS = (*_ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def _compared(ops: Operands) -> tuple[Callable[[Machine, Lanes], Any], Any]:
    """Return what compares the two operands, and what combines that with the predicate operand."""
    ops.allow(*_COMPARISONS, *_BITWISE, "ftz")
    scalar = ops.last_type()
    compare = comparison(ops, ops.modifiers[0], scalar, flush=ops.has("ftz"))
    first, second = (ops.source(arg, scalar.name) for arg in ops.args[1:3])
    logic = next((_BITWISE[word] for word in ops.modifiers[1:] if word in _BITWISE), None)
    if logic is None:
        return (lambda m, lanes: compare(first(m, lanes), second(m, lanes))), None
    third = ops.source(ops.args[3], "pred")

    def combined(found: Any, m: Machine, lanes: Lanes) -> Any:
        other = third(m, lanes)
        if np.ndim(found) == 2:
            other = np.reshape(other, (-1, 1))
        return logic(found, other)

    return (lambda m, lanes: compare(first(m, lanes), second(m, lanes))), combined


@executes("setp")
def prepare_setp(ops: Operands) -> Execute:
    """`setp.cmp{.logic}{.ftz}.type p{|q}, a, b{, {!}c}`; packed types set p (low) and q (high)."""
    compare, combine = _compared(ops)
    writes = [ops.destination(each, "pred") for each in ops.pair(ops.args[0])]
    packed = ops.last_type().count == 2

    def execute(m: Machine, lanes: Lanes) -> None:
        found = compare(m, lanes)
        results = [found, ~found] if len(writes) == 2 and not packed else [found]
        if combine is not None:
            results = [combine(result, m, lanes) for result in results]
        if packed:
            results = [results[0][:, 0], results[0][:, 1]]
        for write, result in zip(writes, results, strict=False):
            write(m, lanes, result)

    return execute


@executes("set")
def prepare_set(ops: Operands) -> Execute:
    """`set.cmp{.logic}{.ftz}.dtype.stype d, a, b{, {!}c}`: all ones (or 1.0) where true."""
    compare, combine = _compared(ops)
    result = ops.type(ops.modifiers[-2])
    write = ops.destination(ops.args[0], result.name)
    if result.kind == "f":
        true: Any = result.dtype.type(1)
    elif result.kind == "bf":
        true = np.uint16(0x3F80)
    else:
        true = np.array(-1).astype(result.dtype)[()]

    def execute(m: Machine, lanes: Lanes) -> None:
        found = compare(m, lanes)
        if combine is not None:
            found = combine(found, m, lanes)
        write(m, lanes, np.where(found, true, true.dtype.type(0)))

    return execute


@executes("selp", tracks=True)
def prepare_selp(ops: Operands) -> Execute:
    """`selp.type d, a, b, c`: a if c, else b; only the chosen one need be defined."""
    ops.allow()
    return _select(ops, ops.source(ops.args[3], "pred"))


@executes("slct", tracks=True)
def prepare_slct(ops: Operands) -> Execute:
    """`slct{.ftz}.dtype.{s32,f32} d, a, b, c`: a if c >= 0, else b."""
    ops.allow("ftz")
    selector = ops.source(ops.args[3], ops.modifiers[-1])
    return _select(ops, lambda m, lanes: np.greater_equal(selector(m, lanes), 0), place=-2)


def _select(ops: Operands, choice: Any, place: int = -1) -> Execute:
    name = f"b{ops.type(ops.modifiers[place]).bits}"
    decides = ops.registers(ops.args[3])
    first, second = (ops.source(arg, name) for arg in ops.args[1:3])
    first_place, second_place = (ops.registers(arg) for arg in ops.args[1:3])
    write, to = ops.destination(ops.args[0], name), ops.place(ops.args[0])

    def execute(m: Machine, lanes: Lanes) -> None:
        chosen = choice(m, lanes)
        mask = None
        if m.undefined:
            mask = chosen_undefined(m, lanes, chosen, (first_place, second_place, decides))
        value = np.where(chosen, first(m, lanes), second(m, lanes))
        write(m, lanes, value)
        if mask is not None or m.undefined:
            mark(m, to, lanes, mask)

    return execute


def chosen_undefined(m: Machine, lanes: Lanes, chosen: Any, places: Any) -> Any:
    """Return which lanes of a selection are undefined: the chosen operand, or the choice itself."""
    first, second, decides = (undefined_mask(m, lanes, each) for each in places)
    parts = []
    if first is not None:
        parts.append(first & chosen)
    if second is not None:
        parts.append(second & ~chosen)
    if decides is not None:
        parts.append(decides)
    if not parts:
        return None
    return np.logical_or.reduce(np.broadcast_arrays(*parts))


# Moves.


@executes("mov")
def prepare_mov(ops: Operands) -> Execute:
    """`mov.type d, a`: registers, immediates, addresses; packs and unpacks `{...}` vectors."""
    ops.allow()
    scalar = ops.last_type()
    name = f"b{scalar.bits}" if scalar.kind != "pred" and not ops.is_literal(ops.args[1]) else ""
    name = name or scalar.name
    if ops.is_vector(ops.args[0]):
        return _unpack(ops, scalar)
    if ops.is_vector(ops.args[1]):
        return _pack(ops, scalar)
    return value_step(ops, lambda a: a, name, [name])


def _pack(ops: Operands, scalar: Scalar) -> Execute:
    elements = ops.elements(ops.args[1])
    n = len(elements)
    part = ops.type(f"b{scalar.bits // n}")
    reads = [ops.source(element, part.name) for element in elements]
    write = ops.destination(ops.args[0], f"b{scalar.bits}")

    def execute(m: Machine, lanes: Lanes) -> None:
        whole = np.empty((lanes.n, n), part.dtype)
        for i, read in enumerate(reads):
            whole[:, i] = read(m, lanes)
        if scalar.bits == 128:
            write(m, lanes, whole.view(np.uint64))
        else:
            write(m, lanes, whole.view(UNSIGNED[scalar.bits])[:, 0])

    return execute


def _unpack(ops: Operands, scalar: Scalar) -> Execute:
    elements = ops.elements(ops.args[0])
    n = len(elements)
    part = ops.type(f"b{scalar.bits // n}")
    read = ops.source(ops.args[1], f"b{scalar.bits}")
    writes = [ops.destination(element, part.name) for element in elements]

    def execute(m: Machine, lanes: Lanes) -> None:
        whole = np.array(np.atleast_1d(read(m, lanes)))
        parts = whole.view(part.dtype).reshape(-1, n)
        for i, write in enumerate(writes):
            write(m, lanes, parts[:, i])

    return execute
