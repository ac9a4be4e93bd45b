"""Options of the emulator: said by `on`, by `device` and in the environment."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import astdsl.emulator.device
from astdsl import In, Out, device, f8e4m3, f32, kernel, pipeline, tile
from astdsl.emulator.options import CHOICES
from astdsl.errors import DeviceUnavailable
from astdsl.runtime.emulation import OPTIONS, emulation


@kernel
def product(a: In[f8e4m3, "M K"], b: In[f8e4m3, "N K"], c: Out[f32, "M N"]):
    M, N = c.shape
    with pipeline(M // 64, N // 64) as (i, j):
        c[tile(i, 64), tile(j, 64)] = a[tile(i, 64), :] @ b[tile(j, 64), :].T


@pytest.fixture
def operands() -> tuple[Any, Any]:
    # One large product in each sum, and many small ones that 14 bits do not hold beside it.
    a, b = np.full((64, 64), 1.0), np.full((64, 64), 0.0625)
    a[:, 0] = b[:, 0] = 256.0
    return a.astype(ml_dtypes.float8_e4m3fn), b.astype(ml_dtypes.float8_e4m3fn)


def test_short_sums_are_asked_for_with_the_device(operands: tuple[Any, Any]) -> None:
    placed = product.on("emulator", target="sm_90a")
    exact, short = placed(*operands), placed.on(fp8_accumulate="hardware")(*operands)
    assert (exact == 65536.0 + 63 / 16).all()
    assert (short != exact).all()
    with device("emulator", fp8_accumulate="hardware"):
        assert np.array_equal(product.on(target="sm_90a")(*operands), short)


def test_what_is_said_nearest_to_the_call_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTDSL_FP8_ACCUMULATE", "hardware")
    assert emulation()["fp8_accumulate"] == "hardware"
    with device("emulator", fp8_accumulate="exact", order=3):
        assert emulation() == {"completion": "late", "order": 3, "fp8_accumulate": "exact"}
        with device("emulator", completion="early"):
            assert emulation() == {"completion": "early", "order": 3, "fp8_accumulate": "exact"}


def test_a_seed_of_0_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTDSL_ORDER", "0")
    with device("emulator", completion=0):
        assert emulation() == {"completion": 0, "order": 0, "fp8_accumulate": "exact"}


@pytest.mark.parametrize("option", OPTIONS)
def test_what_the_environment_says_and_means_nothing_is_refused(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = OPTIONS[option][0]
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(DeviceUnavailable, match=f"the variable {variable} is 'soon'"):
        emulation()


def test_a_placed_kernel_passes_its_options_to_every_run(
    operands: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, found = astdsl.emulator.device.run, []

    def record(*positional: Any, **options: Any) -> None:
        found.append({name: options[name] for name in ("completion", "order")})
        run(*positional, **options)

    monkeypatch.setattr(astdsl.emulator.device, "run", record)
    fresh = kernel(product.__wrapped__)
    fresh.on("emulator", completion=5).on(order="max-pc")(*operands)
    fresh.on("emulator")(*operands)
    assert found == [
        {"completion": 5, "order": "max-pc"},
        {"completion": "late", "order": "min-pc"},
    ]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("reference", {"order": 1}, "which the device `reference` does not have"),
        ("", {"order": 1}, "`order` is an option of the emulator"),
        ("emulator", {"ordr": 1}, "no device has an option `ordr`"),
        ("emulator", {"order": "backwards"}, "`order` of the emulator is 'backwards'"),
        ("emulator", {"fp8_accumulate": 3}, "`fp8_accumulate` of the emulator is 3"),
        ("emulator", {"completion": True}, "`completion` of the emulator is True"),
    ],
)
def test_an_option_that_does_nothing_is_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DeviceUnavailable, match=message):
        product.on(name, **options)


def test_options_of_a_block_are_refused_on_another_device() -> None:
    with (
        pytest.raises(DeviceUnavailable, match="option of the emulator"),
        device("reference", fp8_accumulate="hardware"),
    ):
        pass


def test_options_have_the_words_of_the_emulator():
    assert {name: (words, seeds) for name, (_, words, seeds) in OPTIONS.items()} == CHOICES
