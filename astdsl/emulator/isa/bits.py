"""Shifts, bit fields, counts of bits, permutation of bytes.

Source: PTX ISA 9.7.1.14-9.7.1.22, 9.7.8.5-9.7.8.7, 9.7.9.7. Invariant: counts beyond the width are
clamped, never taken modulo the width as the host does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from astdsl.emulator.isa import Execute, executes
from astdsl.emulator.isa.steps import value_step
from astdsl.emulator.scalars import UNSIGNED, Array
from astdsl.emulator.undefined_bits import ALL_BITS, extremes

if TYPE_CHECKING:
    from astdsl.emulator.operands import Operands
    from astdsl.emulator.undefined import Flow


# Shifts.


_shifted_bits = partial(extremes, decides={2: ALL_BITS})


@executes("shl", bits=_shifted_bits)
def prepare_shl(ops: Operands) -> Execute:
    """`shl.type d, a, b`: counts from the width on give zero."""
    ops.allow()
    return _shift(ops, np.left_shift, signed=False)


@executes("shr", bits=_shifted_bits)
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


def _funnel_bits(ops: Operands) -> Flow:
    return extremes(ops, {3: 31 if ops.has("wrap") else ALL_BITS})


@executes("shf", bits=_funnel_bits)
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


@executes("fns")
def prepare_fns(ops: Operands) -> Execute:
    """`fns.b32 d, mask, base, offset`: the place of the n-th set bit from `base` on.

    Upwards, or downwards for a negative offset; 0 asks for the bit at `base` alone. 0xffffffff if
    there is none (PTX ISA 9.7.1.17).
    """
    ops.allow()
    place = np.arange(32)

    def function(mask: Any, base: Any, offset: Any) -> Any:
        mask, base, offset = (np.asarray(x)[..., None] for x in (mask, base, np.int64(offset)))
        beyond = np.where(offset > 0, place >= base, place <= base)
        reached = np.where(offset == 0, place == base, beyond)
        found = reached & (mask >> place.astype(np.uint32) & 1 == 1)
        upwards, total = np.cumsum(found, axis=-1), found.sum(axis=-1, keepdims=True)
        rank = np.where(offset < 0, total - upwards + found, upwards)
        hit = found & (rank == np.maximum(np.abs(offset), 1))
        return np.where(hit.any(axis=-1), hit.argmax(axis=-1), 0xFFFFFFFF).astype(np.uint32)

    return value_step(ops, function, "b32", ["b32", "s32", "s32"])


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


@executes("brev", bits=extremes)
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


@executes("bfe", bits=partial(extremes, decides={2: 255, 3: 255}))
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


@executes("bfi", bits=partial(extremes, decides={3: 255, 4: 255}))
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


def _szext_bits(ops: Operands) -> Flow:
    return extremes(ops, {2: 31 if ops.has("wrap") else ALL_BITS})


@executes("szext", bits=_szext_bits)
def prepare_szext(ops: Operands) -> Execute:
    """`szext.{clamp,wrap}.type d, a, b`: extend the low b bits (PTX ISA 9.7.1.21)."""
    ops.allow("clamp", "wrap")
    scalar = ops.last_type()
    wrap = ops.has("wrap")

    def function(a: Any, b: Any) -> Any:
        width = (b & np.uint32(31)) if wrap else np.minimum(b, np.uint32(32))
        shift = (np.uint32(32) - width).astype(np.uint64)
        moved = np.asarray(a).astype(np.int64).view(np.uint64) << (shift + np.uint64(32))
        wide = moved.view(np.int64) if scalar.kind == "s" else moved
        extended = wide >> wide.dtype.type(32)
        amount = shift.astype(wide.dtype)
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


def _permuted_bits(ops: Operands) -> Flow:
    return extremes(ops, {3: 3 if any(map(ops.has, _PERMUTE_MODES)) else 0xFFFF})


@executes("prmt", bits=_permuted_bits)
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
