"""docs/functions.md states what every function takes, gives, and how exact it is.

The errors stated hold for all numbers of f16 and bf16 and for samples of f32 and f64, on the
emulator; docstrings state the same. `pytest --update-golden` writes the page.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from astdsl.ir.dtypes import DType, bf16, f16, f32, f64
from tests.dtypes import EVERY, FLOATS, INTEGERS, NUMBERS
from tests.functions import BINARY, BITS, ELEMENTARY, FORMATS, ORDERS, SUMS, UNARY, Array, Row
from tests.goldens import GoldenFolder
from tests.lang.test_function_table import of_one, of_words

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = {f64: 1 << 10, f32: 1 << 15}
TAKEN = {
    EVERY: "all",
    NUMBERS: "numbers",
    BITS: "integers, bool",
    INTEGERS: "integers",
    FLOATS: "floats",
}

INTRODUCTION = """\
# Functions

<!-- Written by tests/test_functions_page.py: pytest --update-golden. -->

What every function takes, and its greatest error in units of the last place (ulp) of the result.
*exact* is IEEE 754's result, rounded once, or the integer modulo 2**bits: the reference, the
emulator and a GPU agree on every bit. Numbers are `f64 f32 f16 bf16`, `i64 i32 i16 i8` and
`u64 u32 u16 u8`; what a function does not take it refuses by its name. Elementary functions of
integers give f32; bounds are those of NVIDIA's libdevice, or greater. `@kernel(approx_math=True)`
allows greater errors: see the guide.
"""


def stated(row: Row) -> str:
    """Return what a docstring says of a function's error."""
    if not row.units:
        return "exact"
    bounds = (row.units[d] for d in (f32, f64, f16))
    return "Within {:g} ulp (f64: {:g}; f16, bf16: {:g}).".format(*bounds)


def line(row: Row) -> str:
    bounds = [row.units.get(d, 0) if d in row.dtypes else None for d in (f64, f32, f16, bf16)]
    cells = ["" if b is None else f"{b:g}" if b else "exact" for b in bounds]
    return f"| `{row.name}` | {TAKEN[row.dtypes]} | {' | '.join(cells)} |"


def page() -> str:
    parts = [INTRODUCTION]
    groups = {
        "Elementary functions": ELEMENTARY,
        "Operators and functions of two": BINARY,
        "Functions of one": UNARY,
        "Along an axis": (*SUMS, *ORDERS),
    }
    for title, rows in groups.items():
        head = "| function | takes | f64 | f32 | f16 | bf16 |\n|---|---|---|---|---|---|"
        parts.append(f"## {title}\n\n" + "\n".join([head, *map(line, rows)]) + "\n")
    parts.append(
        "Sums, products and `mean` are exact where every order of evaluation is; floats under 32\n"
        "bits are summed in f32 and rounded once. Integers by 0 give 0 (`//`, `%`); a\n"
        "shift by the width or more, or by less than 0, gives 0 or the sign; the least integer\n"
        "over -1 is itself.\n"
    )
    return "\n".join(parts)


def test_the_page_lists_every_function(request: pytest.FixtureRequest) -> None:
    is_update = bool(request.config.getoption("update_golden"))
    GoldenFolder(ROOT / "docs", is_update).compare(page(), "functions.md")


@pytest.mark.parametrize("row", [r for r in ELEMENTARY if r.units], ids=lambda r: r.symbol)
def test_a_docstring_states_the_error_of_the_page(row: Row) -> None:
    assert stated(row) in " ".join((inspect.getdoc(row.function) or "").split())


def every_number(dtype: DType) -> Array:
    """Return every number of 16 bits; of more bits numbers of every exponent, and common ones."""
    if dtype.bits == 16:
        return np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    generator, count = np.random.default_rng(7), SAMPLES[dtype]
    bits = generator.integers(0, 256, count * dtype.bytes, dtype=np.uint8).view(dtype.numpy)
    common = np.concatenate([generator.uniform(-b, b, count // 4) for b in (1, 4, 20, 100)])
    return np.concatenate([bits, common.astype(dtype.numpy)])


def error(found: Array, exact: Array, dtype: DType) -> float:
    """Return the greatest distance of finite numbers, in units of the last place."""
    form = FORMATS[dtype]
    _, exponent = np.frexp(exact.astype(np.float64))
    place = np.ldexp(1.0, np.maximum(exponent - form.precision, form.least_exponent))
    units = np.abs(found.astype(exact.dtype) - exact) / place
    is_number = np.isfinite(found.astype(np.float64)) & (np.abs(exact) <= form.largest)
    return float(np.max(units[is_number]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_no_error_is_greater_than_stated(dtype: DType) -> None:
    x = every_number(dtype)
    o = np.zeros((len(ELEMENTARY), len(x)), np.uint64)
    with np.errstate(all="ignore"):
        of_one.on("emulator", target="sm_90a")(x, o, rows=ELEMENTARY)
        wide = x.astype(np.longdouble if dtype is f64 else np.float64)
        for row, words in zip(ELEMENTARY, o, strict=True):
            found = error(of_words(words, x.dtype), row.exact(wide), dtype)
            assert found <= row.units.get(dtype, 0.5), f"{row.name}: {found} ulp"
