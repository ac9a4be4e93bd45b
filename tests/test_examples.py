"""The examples run and say that they agree with NumPy, on the emulator and on the reference."""

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import astdsl

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

# Sizes at which a script is quick, by script; every script has a row.
SMALL = {
    "convolution.py": ["--shape", "20", "50"],
    "embedding.py": ["--shape", "50", "40", "60"],
    "grouped_matmul.py": ["--sizes", "40", "0", "70"],
    "histogram.py": ["--count", "3000"],
    "matmul.py": ["--shape", "96", "80", "128"],
    "matmul_bias_gelu.py": ["--shape", "96", "80", "128"],
    "prefix_sum.py": ["--size", "2500"],
    "softmax.py": ["--shape", "9", "100"],
    "split_k.py": ["--shape", "64", "64", "600"],
    "top_k.py": ["--shape", "9", "100"],
    "transpose.py": ["--shape", "70", "40"],
    "tutorial/01_add.py": ["--size", "100"],
    "tutorial/02_reduction.py": ["--shape", "3", "70", "130"],
    "tutorial/03_double_buffering.py": ["--rows", "128"],
}


def main_of(script: str) -> Callable[[list[str]], None]:
    main: Callable[[list[str]], None] = runpy.run_path(str(EXAMPLES / script))["main"]
    return main


def test_every_example_is_run() -> None:
    scripts = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")}
    assert scripts == set(SMALL)


@pytest.mark.parametrize("device", ["emulator", "reference"])
@pytest.mark.parametrize("script", SMALL)
def test_an_example_agrees_with_numpy(
    script: str, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with astdsl.device(device):
        main_of(script)(SMALL[script])
    shown = capsys.readouterr().out
    assert "to NumPy" in shown


def test_matmul_runs_for_both_targets_and_prints_the_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main_of("matmul.py")(SMALL["matmul.py"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["sm_90a", "sm_100a"]
    assert all("second" in line and line.endswith(" s") for line in lines)


def test_the_wrong_reductions_are_refused_with_their_codes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main_of("tutorial/02_reduction.py")(SMALL["tutorial/02_reduction.py"])
    shown = capsys.readouterr().out
    assert "sum0_unwritten is refused:\nA302: " in shown
    assert "sum0_outermost is refused:\nA303: " in shown


def test_an_example_runs_as_a_script() -> None:
    command = [sys.executable, str(EXAMPLES / "tutorial/01_add.py"), "--size", "64"]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "equal to NumPy" in done.stdout
