"""Tests of `cvt` against NumPy, ml_dtypes and the ISA's rules for the edges."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from astdsl.emulator import DeviceFault, numerics, small_floats
from tests.emulator.running import bits_of, evaluate, floats, same_bits

N = 1024
INTEGERS = ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"]
FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def integer(kind: str) -> Any:
    return np.dtype({"s": "i", "u": "u"}[kind[0]] + str(int(kind[1:]) // 8))


def raw(array: Any) -> Any:
    return array.view(f"u{array.dtype.itemsize}")


def storage(array: Any) -> Any:
    return "b" + str(8 * array.dtype.itemsize)


def convert(opcode: str, array: Any, dtype: Any) -> Any:
    """Convert an array, bits in, bits out."""
    dtype = np.dtype(dtype)
    got = evaluate(f"cvt.{opcode} %d, %a;", f"b{8 * dtype.itemsize}", f"u{dtype.itemsize}",
                   a=(storage(array), raw(array)))  # fmt: skip
    return got.view(dtype)


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("to", INTEGERS)
def test_integers_wrap_or_extend(to: str, source: str) -> None:
    a = bits_of(256, integer(source))
    assert convert(f"{to}.{source}", a, integer(to)).tolist() == a.astype(integer(to)).tolist()


@pytest.mark.parametrize(
    ("to", "source"), [("u8", "s32"), ("s16", "u32"), ("s8", "u8"), ("u32", "s64")]
)
def test_saturated_integers_are_clamped(to: str, source: str) -> None:
    a = bits_of(256, integer(source))
    info = np.iinfo(integer(to))
    expected = [min(max(int(v), info.min), info.max) for v in a]
    assert convert(f"sat.{to}.{source}", a, integer(to)).tolist() == expected


def test_a_narrow_result_in_a_wide_register_is_extended_by_its_type() -> None:
    a = np.array([0x80, 0x7F, 0xFF], np.uint32)
    signed = evaluate("cvt.s8.s32 %d, %a;", "b32", np.uint32, a=("b32", a))
    unsigned = evaluate("cvt.u8.u32 %d, %a;", "b32", np.uint32, a=("b32", a))
    assert signed.tolist() == [0xFFFFFF80, 0x7F, 0xFFFFFFFF]
    assert unsigned.tolist() == [0x80, 0x7F, 0xFF]


@pytest.mark.parametrize("source", ["s32", "u32", "s64", "u64", "s16"])
@pytest.mark.parametrize("to", FLOATS)
def test_integers_become_the_nearest_float(to: str, source: str) -> None:
    a = bits_of(N, integer(source))
    a[::2] >>= 3
    expected = [float_from(int(v), FLOATS[to]) for v in a]
    got = convert(f"rn.{to}.{source}", a, FLOATS[to])
    assert raw(got).tolist() == [int(raw(np.array([v]))[0]) for v in expected]


def float_from(value: Any, dtype: Any) -> Any:
    """Return the nearest float to an integer, ties to even, by its own bits."""
    bits = {np.float16: 11, ml_dtypes.bfloat16: 8, np.float32: 24, np.float64: 53}[dtype]
    size, sign = abs(value), -1 if value < 0 else 1
    shift = max(size.bit_length() - bits, 0)
    kept, rest = size >> shift, size & ((1 << shift) - 1)
    half = (1 << shift) >> 1
    kept += rest > half or (shift > 0 and rest == half and kept & 1)
    with np.errstate(over="ignore"):
        return np.array(sign * float(kept << shift)).astype(dtype)[()]


ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ROUND)
@pytest.mark.parametrize("to", ["s32", "u32", "s64", "u8", "s16"])
@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
def test_floats_become_clamped_integers(source: str, to: str, mode: str) -> None:
    a = floats(512, FLOATS[source], 1)
    info = np.iinfo(integer(to))
    wide = source == "f64" or to == "s64"
    nan = (info.min or (info.max >> 1) + 1) if wide else 0
    expected = [
        nan if np.isnan(v) else int(min(max(v, info.min), info.max)) if np.isinf(v)
        else min(max(int(ROUND[mode](v)), info.min), info.max)
        for v in a.astype(np.float64).tolist()
    ]  # fmt: skip
    assert convert(f"{mode}.{to}.{source}", a, integer(to)).tolist() == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("to", FLOATS)
def test_floats_are_rounded_once(to: str, source: str) -> None:
    if to == source:
        return
    a = (
        floats(N, np.float32, 3).astype(FLOATS[source])
        if source == "bf16"
        else floats(N, FLOATS[source], 3)
    )
    widens = (source, to) in {("f16", "f32"), ("f16", "f64"), ("f32", "f64"), ("bf16", "f32")}
    opcode = f"{to}.{source}" if widens else f"rn.{to}.{source}"
    got = convert(opcode, a, FLOATS[to])
    expected = a.astype(np.float64).astype(FLOATS[to])
    if to == "bf16" and source == "f64":
        expected = once_to_bf16(a)
    nan = np.isnan(expected.astype(np.float64))
    assert ((raw(got) == raw(expected)) | nan).all()
    assert np.isnan(got.astype(np.float64)[nan]).all()


def once_to_bf16(a: Any) -> Any:
    """Round float64 to bfloat16 by comparing with the neighbours (ml_dtypes rounds twice)."""
    guess = a.astype(np.float32)
    toward = np.where(
        np.abs(guess.astype(np.float64)) > np.abs(a), np.nextafter(guess, np.float32(0)), guess
    )
    bits = toward.view(np.uint32) | (toward.astype(np.float64) != a)
    low = bits & 0xFFFF
    up = (low > 0x8000) | ((low == 0x8000) & (bits >> 16 & 1 == 1))
    return ((bits >> 16) + up).astype(np.uint16).view(ml_dtypes.bfloat16)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("to", ["f16", "bf16"])
def test_directed_conversions_bracket_the_value(to: str, mode: str) -> None:
    a = np.random.default_rng(4).standard_normal(N).astype(np.float32)
    got = convert(f"{mode}.{to}.f32", a, FLOATS[to]).astype(np.float64)
    nearest = a.astype(FLOATS[to]).astype(np.float64)
    if mode == "rz":
        assert (np.abs(got) <= np.abs(a)).all()
    elif mode == "rm":
        assert (got <= a).all()
    else:
        assert (got >= a).all()
    assert (np.abs(got - nearest) <= 2.0 ** (-10 if to == "f16" else -7) * np.abs(a) * 1.01).all()


def test_floats_round_to_integral_floats() -> None:
    a = np.array([0.5, 1.5, -0.5, 2.7, -2.7], np.float32)
    assert convert("rni.f32.f32", a, np.float32).tolist() == [0.0, 2.0, -0.0, 3.0, -3.0]
    assert convert("rzi.f32.f32", a, np.float32).tolist() == [0.0, 1.0, -0.0, 2.0, -2.0]
    assert convert("rmi.f32.f32", a, np.float32).tolist() == [0.0, 1.0, -1.0, 2.0, -3.0]
    assert convert("rpi.f32.f32", a, np.float32).tolist() == [1.0, 2.0, -0.0, 3.0, -2.0]


def test_saturated_floats_lie_between_zero_and_one() -> None:
    a = np.array([-2.0, 0.5, 7.0, np.nan], np.float32)
    assert convert("sat.f32.f32", a, np.float32).tolist() == [0.0, 0.5, 1.0, 0.0]


def test_two_floats_pack_into_halves_the_first_one_above() -> None:
    a, b = np.array([1.0, 3.0], np.float32), np.array([2.0, -4.0], np.float32)
    for kind, dtype in (("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)):
        got = evaluate(
            f"cvt.rn.{kind}.f32 %d, %a, %b;", "b32", np.uint32, a=("f32", a), b=("f32", b)
        )
        assert got.view(dtype).astype(float).tolist() == [2.0, 1.0, -4.0, 3.0]


def test_relu_turns_negatives_into_zero() -> None:
    a, b = np.array([-1.0], np.float32), np.array([2.0], np.float32)
    got = evaluate(
        "cvt.rn.relu.f16x2.f32 %d, %a, %b;", "b32", np.uint32, a=("f32", a), b=("f32", b)
    )
    assert got.view(np.float16).tolist() == [2.0, 0.0]


def test_tf32_rounds_ties_away_from_zero() -> None:
    a = np.array([0x3F801000, 0x3F800FFF, 0xBF801000], np.uint32)
    got = evaluate("cvt.rna.tf32.f32 %d, %a;", "b32", np.uint32, a=("b32", a))
    assert got.tolist() == [0x3F802000, 0x3F800000, 0xBF802000]


SMALL = {
    "e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2,
    "e2m3x2": ml_dtypes.float6_e2m3fn, "e3m2x2": ml_dtypes.float6_e3m2fn,
    "e2m1x2": ml_dtypes.float4_e2m1fn,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMALL)
def test_small_floats_are_rounded_and_saturated(name: str) -> Any:
    form, dtype = small_floats.FORMATS[name], SMALL[name]
    largest = float(form.positive[-1])
    values = np.concatenate([floats(N, np.float32, 5), np.linspace(-9, 9, N, dtype=np.float32)])
    values = values[~np.isnan(values)]
    a, b = values[: len(values) // 2], values[len(values) // 2 :][: len(values) // 2]
    bits = 2 * form.pitch
    got = evaluate(f"cvt.rn.satfinite.{name}.f32 %d, %a, %b;", f"b{bits}", f"u{bits // 8}",
                   a=("f32", a), b=("f32", b))  # fmt: skip
    mask = (1 << form.pitch) - 1

    def codes(x: Any) -> Any:
        return np.clip(x, -largest, largest).astype(dtype).view(np.uint8)

    assert (got & mask).tolist() == codes(b).tolist()
    assert (got >> form.pitch & mask).tolist() == codes(a).tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMALL)
def test_small_floats_widen_exactly(name: str) -> None:
    form, dtype = small_floats.FORMATS[name], SMALL[name]
    codes = np.arange(2 * form.sign)
    packed = (codes | codes[::-1] << form.pitch).astype(f"u{form.pitch * 2 // 8}")
    got = evaluate(f"cvt.rn.f16x2.{name} %d, %a;", "b32", np.uint32,
                   a=(f"b{2 * form.pitch}", packed))  # fmt: skip
    halves = got.view(np.float16).reshape(-1, 2)
    expected = codes.astype(np.uint8).view(dtype).astype(np.float16)
    assert same_bits(np.ascontiguousarray(halves[:, 0]), expected)
    assert same_bits(np.ascontiguousarray(halves[:, 1]), expected[::-1].copy())


def test_a_nan_becomes_the_nan_of_an_8_bit_float() -> None:
    a = np.array([np.nan], np.float32)
    for name in ("e4m3x2", "e5m2x2"):
        code = f"cvt.rn.satfinite.{name}.f32 %d, %a, %a;"
        assert evaluate(code, "b16", np.uint16, a=("f32", a)).tolist() == [0x7F7F]


def test_scale_exponents_round_toward_zero_or_up() -> None:
    a = np.array([1.0, 1.5, 2.0, 0.0, 3e38], np.float32)
    down = evaluate("cvt.rz.ue8m0x2.f32 %d, %a, %a;", "b16", np.uint16, a=("f32", a))
    up = evaluate("cvt.rp.ue8m0x2.f32 %d, %a, %a;", "b16", np.uint16, a=("f32", a))
    assert (down & 255).tolist() == [127, 127, 128, 0, 254]
    assert (up & 255).tolist() == [127, 128, 128, 0, 255]
    kept = evaluate("cvt.rp.satfinite.ue8m0x2.f32 %d, %a, %a;", "b16", np.uint16, a=("f32", a))
    assert (kept & 255).tolist() == [127, 128, 128, 0, 254]


def test_scale_exponents_widen_to_powers_of_two() -> None:
    a = np.array([0x7F80, 0xFF01], np.uint16)
    got = evaluate("cvt.rn.bf16x2.ue8m0x2 %d, %a;", "b32", np.uint32, a=("b16", a))
    values = got.view(ml_dtypes.bfloat16).astype(np.float64)
    assert values[:3].tolist() == [2.0, 1.0, 2.0**-126]
    assert np.isnan(values[3])


def test_float32_is_rounded_to_float16_as_numpy_does() -> None:
    # Every exponent, and around each halfway case: the low 13 bits go.
    upper = np.arange(1 << 19, dtype=np.uint32)[:, None] << np.uint32(13)
    bits = (upper | np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF], np.uint32)).reshape(-1)
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16).view(np.uint16)
        rounded = numerics.to_f16(values).view(np.uint16)
    expected[np.isnan(values)] = 0x7FFF
    assert (rounded == expected).all()


def stochastic(opcode: str, a: Any, b: Any, random: Any) -> Any:
    """Convert pairs with random bits; returns [n, 2] of 16-bit patterns, b first."""
    operands = {"a": ("f32", a), "b": ("f32", b), "c": ("b32", random)}
    got = evaluate(f"cvt.rs.{opcode}x2.f32 %d, %a, %b, %c;", "b32", np.uint32, **operands)
    return got.view(np.uint16).reshape(-1, 2)


@pytest.mark.parametrize(("form", "cut", "keep"), [("f16", 13, 13), ("bf16", 16, 16)])
def test_random_bits_round_away_from_zero_where_they_carry(form: str, cut: int, keep: int) -> None:
    """By PTX ISA 9.7.9.21: the sum of the random bits and of those cut off carries, or not."""
    random, bits = bits_of(N, "u4", 3), bits_of(2 * N, "u4", 4)
    # Values that are normal in float16 too, of both signs.
    bits = (bits & 0x807FFFFF) | (113 + bits % 30 << 23).astype(np.uint32)
    a, b = bits[:N].view(np.float32), bits[N:].view(np.float32)
    found = stochastic(form, a, b, random)
    for place, value, shift in ((1, a, 16), (0, b, 0)):
        draw = (random >> shift & ((1 << keep) - 1)).astype(np.uint32)
        rounded = (raw(value) + draw) >> cut << cut
        expected = raw(rounded.astype(np.uint32).view(np.float32).astype(FLOATS[form]))
        assert np.array_equal(found[:, place], expected)


def test_random_rounding_keeps_to_the_edges() -> None:
    a = np.array([np.nan, np.inf, -np.inf, 65519.0, -1.0, -0.0, 2.0**-24, 2.0**-25], np.float32)
    ones, none = np.full(8, 0xFFFFFFFF, np.uint32), np.zeros(8, np.uint32)
    up = stochastic("f16", a, a, ones)[:, 0].view(np.float16)
    down = stochastic("f16", a, a, none)[:, 0].view(np.float16)
    inf = np.inf
    assert up[1:].tolist() == [inf, -inf, inf, -1, 0, 2.0**-24, 2.0**-24]
    assert down[1:].tolist() == [inf, -inf, 65504, -1, 0, 2.0**-24, 0]
    assert raw(up)[0] == raw(down)[0] == 0x7FFF
    kept = stochastic("relu.satfinite.f16", a, a, ones)[:, 1].view(np.float16)
    assert kept[1:].tolist() == [65504, 0, 65504, 0, 0, 2.0**-24, 2.0**-24]


def test_random_rounding_of_four_values_is_refused_by_name() -> None:
    a = np.zeros(4, np.float32)
    with pytest.raises(DeviceFault, match="random bits round two"):
        evaluate("cvt.rs.satfinite.e4m3x4.f32 %d, {%a, %a, %a, %a}, %i;", "b32", "u4",
                 a=("f32", a))  # fmt: skip


@pytest.mark.parametrize("name", ["e4m3x2", "e5m2x2"])
def test_pairs_of_bf16_become_pairs_of_eight_bits_and_back(name: str) -> None:
    narrow = SMALL[name]
    values = np.random.default_rng(2).uniform(-200, 200, 64).astype(ml_dtypes.bfloat16)
    pairs = values.view(np.uint32)
    got = evaluate(f"cvt.rn.satfinite.{name}.bf16x2 %d, %a;", "b16", np.uint16, a=("b32", pairs))
    expected = values.astype(np.float32).astype(narrow)
    assert np.array_equal(got.view(np.uint8), expected.view(np.uint8))
    back = evaluate(f"cvt.rn.bf16x2.{name} %d, %a;", "b32", np.uint32, a=("b16", got))
    assert np.array_equal(back.view(ml_dtypes.bfloat16), expected.astype(ml_dtypes.bfloat16))
