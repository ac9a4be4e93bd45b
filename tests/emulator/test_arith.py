"""Tests of integer arithmetic against Python's own integers."""

from typing import Any

import numpy as np
import pytest

from tests.emulator.running import bits_of, evaluate

N = 512
DTYPES = {"s16": "i2", "u16": "u2", "s32": "i4", "u32": "u4", "s64": "i8", "u64": "u8"}


def values(kind: str, seed: int) -> Any:
    """Return random bits, small numbers and the ends of the range."""
    dtype = np.dtype(DTYPES[kind])
    found = bits_of(N, dtype, seed)
    info = np.iinfo(dtype)
    found[::3] = (
        np.random.default_rng(seed)
        .integers(-5 if info.min else 0, 6, len(found[::3]))
        .astype(dtype)
    )
    found[:4] = [info.min, info.max, 0, 1]
    return found


def wrap(value: Any, kind: str) -> Any:
    bits = int(kind[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def quotient(a: Any, b: Any) -> Any:
    if b == 0:
        return -1
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


EXACT: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "div": quotient,
    "rem": lambda a, b: a - quotient(a, b) * b if b else a,
    "min": min,
    "max": max,
}


def binary(code: str, kind: str, a: Any, b: Any, result: Any = None) -> Any:
    result = result or kind
    got = evaluate(code, f"b{result[1:]}", DTYPES[result],
                   a=(f"b{kind[1:]}", a), b=(f"b{kind[1:]}", b))  # fmt: skip
    return got.tolist()


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("name", EXACT)
def test_operations_wrap_at_their_width(name: str, kind: str) -> None:
    a, b = values(kind, 1), values(kind, 2)
    expected = [wrap(EXACT[name](int(x), int(y)), kind) for x, y in zip(a, b, strict=True)]
    assert binary(f"{name}.{kind} %d, %a, %b;", kind, a, b) == expected


@pytest.mark.parametrize("kind", DTYPES)
def test_the_upper_half_of_a_product(kind: str) -> None:
    a, b = values(kind, 3), values(kind, 4)
    bits = int(kind[1:])
    expected = [wrap(int(x) * int(y) >> bits, kind) for x, y in zip(a, b, strict=True)]
    assert binary(f"mul.hi.{kind} %d, %a, %b;", kind, a, b) == expected


@pytest.mark.parametrize(
    ("kind", "wide"), [("s16", "s32"), ("u16", "u32"), ("s32", "s64"), ("u32", "u64")]
)
def test_wide_products_are_exact(kind: str, wide: Any) -> None:
    a, b = values(kind, 5), values(kind, 6)
    expected = [int(x) * int(y) for x, y in zip(a, b, strict=True)]
    assert binary(f"mul.wide.{kind} %d, %a, %b;", kind, a, b, wide) == expected


@pytest.mark.parametrize("form", ["lo", "hi"])
@pytest.mark.parametrize("kind", DTYPES)
def test_multiply_and_add(kind: str, form: str) -> None:
    a, b, c = values(kind, 7), values(kind, 8), values(kind, 9)
    bits = int(kind[1:])
    storage = f"b{bits}"
    got = evaluate(f"mad.{form}.{kind} %d, %a, %b, %c;", storage, DTYPES[kind],
                   a=(storage, a), b=(storage, b), c=(storage, c))  # fmt: skip
    products = [int(x) * int(y) for x, y in zip(a, b, strict=True)]
    parts = [p >> bits if form == "hi" else p for p in products]
    assert got.tolist() == [wrap(p + int(z), kind) for p, z in zip(parts, c, strict=True)]


def test_saturated_sums_stop_at_the_ends() -> None:
    a, b = np.array([2**31 - 1, -(2**31), 5], "i4"), np.array([1, -1, 6], "i4")
    assert binary("add.sat.s32 %d, %a, %b;", "s32", a, b) == [2**31 - 1, -(2**31), 11]


def test_sum_of_absolute_differences() -> None:
    a, b = np.array([5, -5], "i4"), np.array([-3, 7], "i4")
    assert binary("sad.s32 %d, %a, %b, 100;", "s32", a, b) == [108, 112]


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_magnitude_and_negation(kind: str) -> None:
    a = values(kind, 10)
    assert binary(f"abs.{kind} %d, %a;", kind, a, a) == [wrap(abs(int(x)), kind) for x in a]
    assert binary(f"neg.{kind} %d, %a;", kind, a, a) == [wrap(-int(x), kind) for x in a]


def test_carries_add_128_bit_numbers() -> None:
    low_a, high_a, low_b, high_b = (bits_of(N, "u8", seed) for seed in range(4))
    code = "add.cc.u64 %l0, %a, %c; addc.u64 %d, %b, %e;"
    pairs = {"a": low_a, "b": high_a, "c": low_b, "e": high_b}
    got = evaluate(code, "b64", "u8", **{name: ("b64", x) for name, x in pairs.items()})
    whole = [
        (int(b) << 64 | int(a)) + (int(e) << 64 | int(c))
        for a, b, c, e in zip(low_a, high_a, low_b, high_b, strict=True)
    ]
    assert got.tolist() == [w >> 64 & (2**64 - 1) for w in whole]


def test_borrows_subtract_64_bit_numbers_by_halves() -> None:
    a, b = bits_of(N, "u8", 1), bits_of(N, "u8", 2)
    code = """mov.b64 {%r0, %r1}, %a; mov.b64 {%r2, %r3}, %b;
      sub.cc.u32 %r4, %r0, %r2; subc.u32 %r5, %r1, %r3; mov.b64 %d, {%r4, %r5};"""
    got = evaluate(code, "b64", "u8", a=("b64", a), b=("b64", b))
    assert got.tolist() == (a - b).tolist()


def test_multiply_add_with_carry_makes_a_long_product() -> None:
    a, b = bits_of(N, "u8", 3), bits_of(N, "u4", 4)
    code = """mov.b64 {%r0, %r1}, %a; mul.lo.u32 %r2, %r0, %b; mul.hi.u32 %r3, %r0, %b;
      mad.lo.cc.u32 %r4, %r1, %b, %r3; madc.hi.u32 %d, %r1, %b, 0;"""
    got = evaluate(code, "b32", "u4", a=("b64", a), b=("b32", b))
    assert got.tolist() == [int(x) * int(y) >> 64 for x, y in zip(a, b, strict=True)]


def test_dot_products_of_bytes() -> None:
    a, b, c = bits_of(N, "u4", 5), bits_of(N, "u4", 6), bits_of(N, "i4", 7)
    got = evaluate("dp4a.s32.u32 %d, %a, %b, %c;", "b32", "i4",
                   a=("b32", a), b=("b32", b), c=("b32", c))  # fmt: skip
    left = a.view("i1").reshape(-1, 4).astype(int)
    right = b.view("u1").reshape(-1, 4).astype(int)
    assert got.tolist() == [wrap(int(v), "s32") for v in (left * right).sum(1) + c]


def test_packed_halves_add_apart() -> None:
    a, b = bits_of(N, "u4", 8), bits_of(N, "u4", 9)
    got = evaluate("add.u16x2 %d, %a, %b;", "b32", "u4", a=("b32", a), b=("b32", b))
    assert got.view("u2").tolist() == (a.view("u2") + b.view("u2")).tolist()


def test_products_of_24_bits() -> None:
    a, b = np.array([0x01FFFFFF, 3], "i4"), np.array([2, -4], "i4")
    assert binary("mul24.lo.s32 %d, %a, %b;", "s32", a, b) == [-2, -12]


def test_mad24_saturates_the_high_part_of_a_sum() -> None:
    a = np.array([0x7FFFFF, 0x800000, 5], np.uint32)
    c = np.array([0x7FFFFFFF, 0x80000000, 7], np.uint32)
    got = evaluate("mad24.hi.sat.s32 %d, %a, %a, %c;", "b32", np.int32, a=("b32", a), c=("b32", c))
    squares = [(0x7FFFFF**2) >> 16, (0x800000**2) >> 16, 0]
    sums = [int(s) + int(t) for s, t in zip(squares, c.view(np.int32), strict=True)]
    assert got.tolist() == [max(min(s, 2**31 - 1), -(2**31)) for s in sums]
