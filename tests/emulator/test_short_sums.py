"""Tests of Hopper's sums of FP8 products: a model in fractions, and kernels of one product."""

from fractions import Fraction
from math import floor, log2, trunc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from astdsl.emulator import DeviceFault, run
from astdsl.emulator.short_sums import add_products
from tests.emulator.test_wgmma import both_operands, launch, registers, result

TYPES: dict[str, Any] = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LEAST = {"e4m3": -6, "e5m2": -14}
RNG = np.random.default_rng(0)


def tile(rows: int, depth: int, name: str) -> NDArray[Any]:
    wide = RNG.normal(size=(rows, depth)) * 2.0 ** RNG.integers(-8, 4, (rows, depth))
    return wide.astype(TYPES[name])


def exponent(value: Fraction, least: int) -> int:
    return max(floor(log2(abs(value))), least)


def cut(value: Fraction, exponent: int) -> Fraction:
    unit = Fraction(2) ** (exponent - 13)
    return trunc(value / unit) * unit


def model(old: Fraction, a: list[Fraction], b: list[Fraction], types: tuple[str, str]) -> Fraction:
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x and y]
    exponents = [exponent(x, LEAST[types[0]]) + exponent(y, LEAST[types[1]]) for x, y in pairs]
    if old:
        exponents.append(exponent(old, -126))
    if not exponents:
        return Fraction(0)
    largest = max(exponents)
    total = cut(old, largest) + sum(cut(x * y, largest) for x, y in pairs)
    return cut(total, exponent(total, -126)) if total else total


@pytest.mark.parametrize("types", [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3")])
def test_products_are_cut_below_the_largest_exponent(types: tuple[str, str]) -> None:
    a, b = tile(4, 64, types[0]), tile(3, 64, types[1])
    old = RNG.normal(size=(4, 3)).astype(np.float32)
    wide = a.astype(np.float32)[None], b.astype(np.float32)[None]
    found = add_products(old[None], *wide, types)[0]
    for i in range(4):
        for j in range(3):
            total = Fraction(float(old[i, j]))
            for k in (0, 32):
                row = [Fraction(float(x)) for x in a[i, k : k + 32]]
                column = [Fraction(float(x)) for x in b[j, k : k + 32]]
                total = model(total, row, column, types)
            assert found[i, j] == total


def test_zeros_infinities_and_nans_come_out_as_of_exact_sums() -> None:
    a, b = np.zeros((1, 3, 32), np.float32), np.ones((1, 1, 32), np.float32)
    a[0, 1, 5], a[0, 2, 5] = np.inf, np.nan
    found = add_products(np.zeros((1, 3, 1), np.float32), a, b, ("e5m2", "e5m2"))[0, :, 0]
    assert found[0] == 0
    assert found[1] == np.inf
    assert np.isnan(found[2])


CHAIN = """
  mov.u32 %r200, {0}; mov.u32 %r201, {0}; mov.u32 %r202, {0}; mov.u32 %r203, {0};
  setp.eq.u32 %p5, 0, 0;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {{{1}}}, %d10, %d11, %p5, 1, {2};
  wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {{{1}}}, %d10, %d11, %p5, 1, {2};
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
"""


def chained(old: float, sign: int, fp8_accumulate: Any) -> NDArray[Any]:
    """Add 64 products of ones to an accumulator."""
    ones = np.ones((64, 32), TYPES["e4m3"])
    image, code = both_operands(ones, ones[:8])
    bits = np.float32(old).view(np.uint32)
    code += CHAIN.format(f"{int(bits):#x}", ", ".join(registers(4)), sign)
    return result(launch(code, image, 4, fp8_accumulate=fp8_accumulate), 8)


@pytest.mark.parametrize(("sign", "exact"), [(1, 16448), (-1, 16320)])
def test_a_large_accumulator_swallows_small_products(sign: int, exact: int) -> None:
    # From 2^14 on the last bit that is kept stands for 2.
    assert (chained(16384, sign, "exact") == exact).all()
    assert (chained(16384, sign, "hardware") == 16384).all()


def test_small_accumulators_hold_exact_sums() -> None:
    assert (chained(100, 1, "hardware") == 164).all()


def test_half_accumulators_are_rounded_to_nearest_at_the_end() -> None:
    a, b = tile(64, 32, "e4m3"), tile(8, 32, "e4m3")
    image, code = both_operands(a, b)
    code += f"""
  setp.ne.u32 %p5, 0, 0;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e4m3
    {{{", ".join(registers(2))}}}, %d10, %d11, %p5, 1, 1;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
"""
    found = result(launch(code, image, 2, fp8_accumulate="hardware"), 8, "f16")
    wide = a.astype(np.float32)[None], b.astype(np.float32)[None]
    sums = add_products(np.zeros((1, 64, 8), np.float32), *wide, ("e4m3", "e4m3"))[0]
    assert np.array_equal(found, sums.astype(np.float16))


def test_another_way_to_sum_is_refused() -> None:
    with pytest.raises(DeviceFault, match="exact or hardware") as caught:
        run("", "k", (1,), (1,), [], fp8_accumulate="fast")  # type: ignore[arg-type]
    assert caught.value.code == "E203"


LONG = """
  mov.u32 %r30, 0;
  mov.u32 %r200, 0; mov.u32 %r201, 0; mov.u32 %r202, 0; mov.u32 %r203, 0;
  mov.u32 %r210, 0; mov.u32 %r211, 0; mov.u32 %r212, 0; mov.u32 %r213, 0;
  setp.ne.u32 %p4, {keeps}, 0;
  setp.eq.u32 %p5, 0, 0;
LOOP:
  wgmma.fence.sync.aligned;
  {first}
  {rest} {rest} {rest}
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  {add}
  add.u32 %r30, %r30, 1;
  setp.lt.u32 %p6, %r30, {turns};
  @%p6 bra LOOP;
  {move}
"""
PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {{{}}}, %d10, %d11, {}, 1, 1;"
DEPTH = 32768


@pytest.mark.parametrize(("promotes", "expected"), [(False, DEPTH / 2), (True, DEPTH)])
def test_a_long_sum_of_fp8_products_needs_promotion(promotes: bool, expected: float) -> None:
    """Sum 32768 ones; with promotion every 128 of them are added to float32 registers."""
    ones = np.ones((64, 32), TYPES["e4m3"])
    image, code = both_operands(ones, ones[:8])
    sums = zip(registers(4, 210), registers(4), strict=True)
    lines = [(f"add.rn.f32 {t}, {t}, {d};", f"mov.b32 {d}, {t};") for t, d in sums]
    add, move = (" ".join(each) if promotes else "" for each in zip(*lines, strict=True))
    d = ", ".join(registers(4))
    code += LONG.format(
        keeps=int(not promotes), turns=DEPTH // 128, add=add, move=move,
        first=PRODUCT.format(d, "%p4"), rest=PRODUCT.format(d, "%p5"),
    )  # fmt: skip
    assert (result(launch(code, image, 4, fp8_accumulate="hardware"), 8) == expected).all()
