"""`astdsl run`: random data, compared with the reference."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from astdsl import f8e8m0, f16, spec
from astdsl.cli.main import main
from astdsl.cli.run import Array, Comparison, random_value

KERNELS = str(Path(__file__).with_name("kernels.py"))


def test_a_kernel_that_agrees_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{KERNELS}:fixed", "--device", "emulator"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split(maxsplit=1) == ["o", "equal, bit for bit"]


def test_the_reference_is_not_compared_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{KERNELS}:fixed", "--device", "reference"]) == 2
    assert "choose `--device emulator`" in capsys.readouterr().err


def test_an_array_that_is_changed_in_place_is_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--arg", "x=100:f16", "--arg", "alpha=0.3", "--json"]
    assert main(["run", f"{KERNELS}:scale", *options]) == 0
    assert list(json.loads(capsys.readouterr().out)["outputs"]) == ["x"]


def test_a_method_of_an_object_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{KERNELS}:bound"]) == 0
    assert "o       equal, bit for bit" in capsys.readouterr().out


def test_an_output_may_not_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{KERNELS}:fixed", "--arg", "o=8x16"]) == 2
    assert "leave `--arg o` out" in capsys.readouterr().err


def test_equal_arrays_are_equal_even_in_their_nans() -> None:
    a = np.array([1.0, np.nan], np.float32)
    assert Comparison.of("a", a, a.copy()) == Comparison("a", True, "equal, bit for bit")


def test_integers_that_differ_are_wrong() -> None:
    found = Comparison.of("a", np.array([1, 2]), np.array([1, 3]))
    assert not found.is_good
    assert found.text.endswith("the first at (1,) is 2, the reference has 3")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_floats_may_differ_as_a_reordered_sum_does(dtype: type) -> None:
    wanted: Array = np.array([100.0, 1.0], dtype)
    step: Array = np.array([0.0, 2.0 ** -(4 if dtype is not np.float32 else 10)], dtype)
    assert Comparison.of("a", (wanted + step).astype(dtype), wanted).is_good
    assert not Comparison.of("a", -wanted, wanted).is_good


def test_a_float_where_the_reference_has_a_nan_is_wrong() -> None:
    one, nan = np.array([1.0], np.float32), np.array([np.nan], np.float32)
    assert not Comparison.of("a", one, nan).is_good
    assert not Comparison.of("a", nan, one).is_good


def test_the_same_seed_gives_the_same_data() -> None:
    a, b = (random_value(spec((3, 4), f16), np.random.default_rng(7)) for _ in range(2))
    assert a.dtype == np.float16
    np.testing.assert_array_equal(a, b)


def test_random_scales_are_powers_of_two() -> None:
    found = random_value(spec((64,), f8e8m0), np.random.default_rng(0)).astype(np.float32)
    assert set(found.tolist()) == {0.25, 0.5, 1.0, 2.0, 4.0}
