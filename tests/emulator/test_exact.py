"""Tests of the reference of the values of instructions: against NumPy's and ml_dtypes' formats."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.emulator.exact import FORMATS, OPERATIONS
from tests.emulator.running import floats

TYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn, "e2m1": ml_dtypes.float4_e2m1fn,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TYPES)
def test_codes_have_the_values_of_other_libraries(name: str) -> None:
    form, dtype = FORMATS[name], np.dtype(TYPES[name])
    codes = np.arange(1 << form.bits).astype(f"u{dtype.itemsize}")
    expected = codes.view(dtype).astype(np.float64).tolist()
    found = [form.decode(code) for code in codes.tolist()]
    assert repr(found) == repr(expected)
    back = [form.encode(x) for x in found if not math.isnan(x)]
    assert back == [c for c, x in zip(codes.tolist(), found, strict=True) if not math.isnan(x)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["f16", "f32"])
def test_numbers_are_rounded_as_numpy_rounds_them(name: str) -> None:
    dtype = np.dtype(f"f{FORMATS[name].bits // 8}")
    wide = floats(3000, np.float64, 1)
    wide[::2] = floats(1500, np.float32, 2).astype(np.float64) * 1.0009765625
    kept = wide[~np.isnan(wide)]
    codes = kept.astype(dtype).view(f"u{dtype.itemsize}").tolist()
    assert [FORMATS[name].encode(x) for x in kept.tolist()] == codes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_roundings_are_the_neighbours_of_a_value(mode: str) -> None:
    form, third = FORMATS["f32"], Fraction(1, 3)
    for x in (third, -third, third * 2**-140, Fraction(2) ** 200, -(Fraction(2) ** 200)):
        found = form.decode(form.encode(x, mode))
        up = mode == "rp" or (mode == "rz" and x < 0)
        assert found >= x if up else found <= x
        other = float(np.nextafter(np.float32(found), np.float32(-np.inf if up else np.inf)))
        assert other < x if up else other > x


def test_roots_lie_between_the_squares_around_them() -> None:
    for x in (2.0, 1e-300, 1e300, 5e-324):
        near = Fraction(OPERATIONS["sqrt"]("rn", x))
        assert abs(near * near / Fraction(x) - 1) < Fraction(1, 1 << 150)
    assert OPERATIONS["sqrt"]("rn", 2.25) == 1.5
