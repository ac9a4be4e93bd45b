"""`astdsl check`: what is found is told once, with the way that shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astdsl.cli import check
from astdsl.cli.main import main
from astdsl.errors import DeviceError, ProtocolError
from astdsl.runtime.emulation import emulated, emulation
from astdsl.source import Span

HERE = Path(__file__).parent
BY_HAND, KERNELS = str(HERE / "by_hand.py"), str(HERE / "kernels.py")
QUICK = ["--runs", "3"]


@pytest.mark.parametrize("place", [f"{BY_HAND}:copied", f"{KERNELS}:fixed"])
def test_a_correct_kernel_exits_0(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", place, *QUICK]) == 0
    assert "nothing found: rehearsed, and run 3 times on the emulator" in capsys.readouterr().out


@pytest.mark.parametrize("runs", ["0", "-1", "many"])
def test_a_check_without_runs_is_refused(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["check", f"{KERNELS}:fixed", "--runs", runs])
    assert f"{runs} is no integer of 1 or more" in capsys.readouterr().err


def test_what_the_rehearsal_finds_is_told_with_both_accesses_and_not_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", f"{BY_HAND}:not_fenced", *QUICK]) == 1
    told = capsys.readouterr().out
    assert "A501: " in told
    assert "commit_smem()" in told
    assert "the store" in told
    assert "1 found: rehearsed, and run 0 times" in told


def test_what_data_decide_is_found_by_running_and_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", f"{BY_HAND}:not_checked", *QUICK, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["good"], found["runs"]) == (False, 3)
    hows = [finding["how"] for finding in found["findings"]]
    assert len(hows) == len(set(hows))
    assert any("on the emulator" in how and "copies complete late" in how for how in hows)
    assert all(finding["error"]["places"] for finding in found["findings"])


def test_a_result_that_differs_from_the_reference_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def outputs(self: check.Subject, device: str, seed: int) -> dict[str, Any]:
        return {"o": np.array([1, 2 if device == "emulator" else 3])}

    monkeypatch.setattr(check.Subject, "outputs", outputs)
    assert main(["check", f"{KERNELS}:fixed", *QUICK]) == 1
    told = capsys.readouterr().out
    assert "`o` is wrong: 1 of 2 elements differ" in told
    assert "threads go min-pc" in told


def test_no_run_begins_after_its_time_but_the_first_two(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", f"{KERNELS}:fixed", "--seconds", "0"]) == 0
    assert "run 2 times" in capsys.readouterr().out


def test_mistakes_of_the_call_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{KERNELS}:fixed", "--arg", "o=8x16"]) == 2
    assert "leave `--arg o` out" in capsys.readouterr().err


def test_one_mistake_found_in_two_ways_is_one_finding() -> None:
    span = Span("k.py", 3, 0, 3, 4)
    first, second = (check.Finding(how, DeviceError("a race", (span, ""))) for how in "ab")
    assert first.key == second.key
    assert first.key != check.Finding("a", ProtocolError("a race", (span, ""))).key


def test_the_emulator_runs_as_the_surrounding_block_says() -> None:
    usual = {"completion": "late", "order": "min-pc", "fp8_accumulate": "exact"}
    assert emulation() == usual
    with emulated({"completion": "7", "order": "max-pc"}):
        assert emulation() == {**usual, "completion": 7, "order": "max-pc"}
