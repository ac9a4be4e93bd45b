"""Tests of floating-point arithmetic against exact or independent formulas."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astdsl.emulator import numerics
from tests.emulator.running import evaluate, floats, same_bits

N = 1024
OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
ANY_F32 = st.integers(0, 2**32 - 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", OPERATIONS)
def test_ieee_operations_equal_numpy(name: str, dtype: Any) -> None:
    kind = f"f{np.dtype(dtype).itemsize * 8}"
    a, b = floats(N, dtype, 1), floats(N, dtype, 2)
    got = evaluate(f"{name}.rn.{kind} %d, %a, %b;", kind, dtype, a=(kind, a), b=(kind, b))
    assert same_bits(got, OPERATIONS[name](a, b))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["add", "sub", "mul"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_operations_are_rounded_once(name: str, dtype: Any) -> None:
    kind = "f16" if dtype is np.float16 else "bf16"
    a, b = floats(N, np.float32, 3).astype(dtype), floats(N, np.float32, 4).astype(dtype)
    exact = OPERATIONS[name](a.astype(np.float64), b.astype(np.float64)).astype(dtype)
    code = f"{name}.rn.{kind} %d, %a, %b;"
    got = evaluate(code, "b16", np.uint16, a=("b16", a.view("u2")), b=("b16", b.view("u2")))
    nan = np.isnan(exact.astype(np.float32))
    assert ((got == exact.view("u2")) | (nan & (got == 0x7FFF))).all()


@pytest.mark.filterwarnings("ignore")
def test_packed_operations_work_on_both_halves() -> None:
    a = floats(2 * N, np.float32, 5).astype(np.float16)
    b = floats(2 * N, np.float32, 6).astype(np.float16)
    got = evaluate("add.rn.f16x2 %d, %a, %b;", "b32", np.uint32,
                   a=("b32", a.view("u4")), b=("b32", b.view("u4")))  # fmt: skip
    assert same_bits(got.view(np.float16), a + b)


@pytest.mark.filterwarnings("ignore")
def test_packed_f32_operations_work_on_both_halves() -> None:
    a, b, c = (floats(2 * N, np.float32, seed) for seed in (7, 8, 9))
    got = evaluate(
        "fma.rn.f32x2 %d, %a, %b, %c;",
        "b64",
        np.uint64,
        **{n: ("b64", x.view("u8")) for n, x in zip("abc", (a, b, c), strict=True)},
    )
    assert same_bits(got.view(np.float32), numerics.fma_f32(a, b, c))


def nearest_f32(exact: Any) -> Any:
    """Return the float32 nearest to a fraction, ties to even, by comparing candidates exactly."""
    try:
        guess = np.float32(exact.numerator / exact.denominator)
    except OverflowError:
        guess = np.float32(np.inf if exact > 0 else -np.inf)
    around = (
        np.nextafter(guess, np.float32(-np.inf)),
        guess,
        np.nextafter(guess, np.float32(np.inf)),
    )

    def distance(x: Any) -> Any:
        edge = Fraction(2) ** 128
        value = Fraction(float(x)) if np.isfinite(x) else edge * (1 if x > 0 else -1)
        return abs(value - exact), int(x.view(np.uint32)) & 1

    return min(around, key=distance)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, deadline=None)
@given(ANY_F32, ANY_F32, ANY_F32)
def test_fma_is_rounded_once(a: Any, b: Any, c: Any) -> None:
    x, y, z = (np.array([v], np.uint32).view(np.float32) for v in (a, b, c))
    got = numerics.fma_f32(x, y, z)[0]
    if not np.isfinite([x, y, z]).all():
        assert same_bits(np.array([got]), x.astype("f8") * y + z.astype("f8")) or not np.isfinite(
            got
        )
        return
    exact = Fraction(float(x[0])) * Fraction(float(y[0])) + Fraction(float(z[0]))
    assert got == nearest_f32(exact)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 4095), st.integers(0, 4095), st.integers(-149, -30), st.booleans())
def test_fma_breaks_near_ties_by_the_addend(i: Any, j: Any, power: Any, negative: Any) -> None:
    a, b = np.float32(1 + i / 4096), np.float32(1 + j / 4096)
    c = np.float32((-1 if negative else 1) * 2.0**power)
    got = numerics.fma_f32(np.array([a]), np.array([b]), np.array([c]))[0]
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    assert got == nearest_f32(exact)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=200, deadline=None)
@given(*[st.floats(allow_nan=False, allow_infinity=False)] * 3)
def test_double_fma_is_rounded_once(a: Any, b: Any, c: Any) -> None:
    got = float(numerics.fma_f64(np.array([a]), np.array([b]), np.array([c]))[0])
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        expected = exact.numerator / exact.denominator
    except OverflowError:
        expected = float("inf") if exact > 0 else float("-inf")
    assert got == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["add", "mul", "div"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_directed_rounding_brackets_the_exact_result(name: str, mode: str, dtype: Any) -> None:
    kind = f"f{np.dtype(dtype).itemsize * 8}"
    values = np.random.default_rng(1).standard_normal(512).astype(dtype)
    a, b = values[:256], values[256:]
    got = evaluate(f"{name}.{mode}.{kind} %d, %a, %b;", kind, dtype, a=(kind, a), b=(kind, b))
    for x, y, r in zip(a, b, got, strict=True):
        x_exact, y_exact, r_exact = (Fraction(float(v)) for v in (x, y, r))
        exact = {"add": x_exact + y_exact, "mul": x_exact * y_exact,
                 "div": x_exact / y_exact}[name]  # fmt: skip
        down = mode == "rm" or (mode == "rz" and exact > 0)
        other = Fraction(float(np.nextafter(r, dtype(np.inf if down else -np.inf))))
        assert (r_exact <= exact < other) if down else (other < exact <= r_exact)


def test_flushing_turns_subnormals_into_zeros_of_their_sign() -> None:
    a = np.array([1e-40, -1e-40, 2.0**-126, 1.0], np.float32)
    got = evaluate("mul.rn.ftz.f32 %d, %a, 0f3F800000;", "f32", np.float32, a=("f32", a))
    assert same_bits(got, np.array([0.0, -0.0, 2.0**-126, 1.0], np.float32))


def test_saturation_clamps_to_zero_and_one_and_turns_nan_into_zero() -> None:
    a = np.array([-1.0, 0.25, 3.0, np.nan, -0.0], np.float32)
    got = evaluate("add.sat.f32 %d, %a, 0f00000000;", "f32", np.float32, a=("f32", a))
    assert got.view("u4").tolist() == np.array([0, 0.25, 1, 0, 0], np.float32).view("u4").tolist()


@pytest.mark.filterwarnings("ignore")
def test_the_nan_of_a_f32_result_is_canonical() -> None:
    a = np.array([np.inf, -np.nan, np.nan], np.float32)
    got = evaluate("sub.f32 %d, %a, %a;", "b32", np.uint32, a=("f32", a))
    assert got.tolist() == [0x7FFFFFFF] * 3


EXTREMES = [
    ("max", [1.0, np.nan, 2.0, -0.0, 0.0, -1.0], [2.0, 3.0, np.nan, 0.0, -0.0, -2.0],
     [2.0, 3.0, 2.0, 0.0, 0.0, -1.0]),
    ("min", [1.0, np.nan, 2.0, -0.0, 0.0, -1.0], [2.0, 3.0, np.nan, 0.0, -0.0, -2.0],
     [1.0, 3.0, 2.0, -0.0, -0.0, -2.0]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "a", "b", "expected"), EXTREMES)
@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
def test_extremes_order_zeros_and_skip_nan(
    name: str, a: Any, b: Any, expected: Any, kind: str
) -> None:
    dtype = {"f32": np.float32, "f64": np.float64, "f16": np.float16}.get(kind, ml_dtypes.bfloat16)
    x, y, want = (np.array(v).astype(dtype) for v in (a, b, expected))
    unsigned = f"u{want.dtype.itemsize}"
    storage = f"b{want.dtype.itemsize * 8}"
    got = evaluate(f"{name}.{kind} %d, %a, %b;", storage, unsigned,
                   a=(storage, x.view(unsigned)), b=(storage, y.view(unsigned)))  # fmt: skip
    assert got.tolist() == want.view(unsigned).tolist()


def test_extremes_with_nan_modifier_give_the_canonical_nan() -> None:
    a, b = np.array([1.0, np.nan], np.float32), np.array([np.nan, 2.0], np.float32)
    got = evaluate("max.NaN.f32 %d, %a, %b;", "b32", np.uint32, a=("f32", a), b=("f32", b))
    assert got.tolist() == [0x7FFFFFFF] * 2


def test_xorsign_gives_the_product_of_the_signs_to_the_smaller_magnitude() -> None:
    a, b = np.array([-3.0, 3.0, -3.0], np.float32), np.array([2.0, -5.0, -4.0], np.float32)
    code = "min.xorsign.abs.f32 %d, %a, %b;"
    got = evaluate(code, "f32", np.float32, a=("f32", a), b=("f32", b))
    assert got.tolist() == [-2.0, -3.0, 3.0]


def test_three_operands_have_an_extreme_too() -> None:
    a = np.array([1.0, 5.0, 3.0], np.float32)
    got = evaluate("max.f32 %d, %a, 0f40000000, 0f40800000;", "f32", np.float32, a=("f32", a))
    assert got.tolist() == [4.0, 5.0, 4.0]


def test_signs_are_changed_on_the_bits() -> None:
    a = np.array([0x7FC00001, 0x80000000, 0x3F800000], np.uint32)
    assert evaluate("neg.f32 %d, %a;", "b32", np.uint32, a=("b32", a)).tolist() == [
        0xFFC00001, 0, 0xBF800000,
    ]  # fmt: skip
    assert evaluate("abs.f32 %d, %a;", "b32", np.uint32, a=("b32", a)).tolist() == [
        0x7FC00001, 0, 0x3F800000,
    ]  # fmt: skip


def test_copysign_takes_the_sign_of_its_first_operand() -> None:
    a, b = np.array([-1.0, 1.0], np.float32), np.array([5.0, -7.0], np.float32)
    got = evaluate("copysign.f32 %d, %a, %b;", "f32", np.float32, a=("f32", a), b=("f32", b))
    assert got.tolist() == [-5.0, 7.0]


ELEMENTARY: dict[str, Any] = {
    "ex2.approx.f32": np.exp2, "lg2.approx.f32": np.log2, "sin.approx.f32": np.sin,
    "cos.approx.f32": np.cos, "tanh.approx.f32": np.tanh, "rsqrt.approx.f32": lambda x: x**-0.5,
    "rcp.approx.f32": lambda x: 1 / x, "sqrt.approx.f32": np.sqrt,
}  # fmt: skip


@pytest.mark.parametrize("opcode", ELEMENTARY)
def test_approximations_are_the_rounded_values(opcode: str) -> None:
    a = np.random.default_rng(2).uniform(0.1, 8, N).astype(np.float32)
    got = evaluate(f"{opcode} %d, %a;", "f32", np.float32, a=("f32", a))
    exact = ELEMENTARY[opcode](a.astype(np.float64))
    assert (np.abs(got - exact) <= np.spacing(np.abs(got)) * 0.5001).all()


def test_mixed_precision_addition_widens_its_first_operand() -> None:
    a, c = np.array([1.5, -2.0], np.float16), np.array([1e-3, 3.0], np.float32)
    got = evaluate("add.rn.f32.f16 %d, %a, %c;", "f32", np.float32,
                   a=("b16", a.view("u2")), c=("f32", c))  # fmt: skip
    assert got.tolist() == (a.astype(np.float32) + c).tolist()


def _flushed(x: Any) -> Any:
    tiny = np.abs(x) < np.float16(2.0**-14)
    return np.where(tiny, np.copysign(np.float16(0), x), x)


# Subnormals of both signs, and values whose sum, difference or product is one.
HALVES = np.array(
    [6e-8, -6e-8, 3e-5, -6.2e-5, 6.1e-5, 7e-5, -7e-5, 1.0, -0.0, 0.005, np.inf, np.nan], np.float16
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["f16", "f16x2"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "min", "max", "fma", "neg", "abs"])
def test_ftz_flushes_operands_and_results_of_float16(name: str, kind: str) -> None:
    functions: dict[str, Callable[..., Any]] = {
        **OPERATIONS,
        "min": np.fmin,
        "max": np.fmax,
        "fma": lambda a, b: np.float64(a) * b + 0.0,
        "neg": lambda a, b: -a,
        "abs": lambda a, b: np.abs(a),
    }
    a, b = (np.ascontiguousarray(x).reshape(-1) for x in np.meshgrid(HALVES, HALVES))
    words = np.uint32 if kind == "f16x2" else np.uint16
    width = "b32" if kind == "f16x2" else "b16"
    zero = "mov.b32 %r1, 0; mov.b16 %h1, 0;"
    more = {"neg": "%a", "abs": "%a", "fma": f"%a, %b, {'%r1' if kind == 'f16x2' else '%h1'}"}
    rounding = ".rn" if name in ("add", "sub", "mul", "fma") else ""
    code = f"{zero} {name}{rounding}.ftz.{kind} %d, {more.get(name, '%a, %b')};"
    got = evaluate(code, width, words, a=(width, a.view(words)), b=(width, b.view(words)))
    expected = _flushed(functions[name](_flushed(a), _flushed(b)).astype(np.float16))
    got = got.view(np.float16)
    zeros = (got == 0) & (expected == 0) & (name in ("min", "max"))
    assert same_bits(np.where(zeros, np.float16(0), got), np.where(zeros, np.float16(0), expected))
