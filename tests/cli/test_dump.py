"""`astdsl dump`: every stage, as text, as JSON, as a file."""

import base64
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from astdsl.cli.main import main
from tests.goldens import Golden

KERNELS = str(Path(__file__).with_name("kernels.py"))
ADD = [f"{KERNELS}:add", "--arg", "x=100x70"]
# How each stage begins, or a line of it.
MARKS = {
    "ast": r"^def add\(x, y, o",
    "ir": r"^kernel add",
    "schedule": r"^  Launch ",
    "llvm": r"^target triple = \"nvptx64-nvidia-cuda\"",
    "ptx": r"^\.target sm_90a",
    "cubin": r"^registers: \d+",
}


def dump(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["dump", *ADD, *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("stage", [stage for stage in MARKS if stage != "cubin"])
def test_a_stage_is_printed_by_its_option(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(MARKS[stage], dump(capsys, f"--{stage}"), re.MULTILINE)


def test_without_an_option_the_ir_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert dump(capsys) == dump(capsys, "--ir")


def test_several_stages_stand_under_their_names_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = dump(capsys, "--ir", "--ast")
    assert re.findall("^==> (.*) <==$", shown, re.MULTILINE) == ["ast", "ir"]


def test_all_prints_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    shown = dump(capsys, "--all")
    headings = re.findall("^==> (.*) <==$", shown, re.MULTILINE)
    assert headings == [*MARKS, "sass"]
    assert [s for s, mark in MARKS.items() if not re.search(mark, shown, re.MULTILINE)] == []


def test_the_target_is_chosen_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert ".target sm_100a" in dump(capsys, "--ptx", "--target", "sm_100a")


def test_a_constant_is_set_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert "f32[48x32] = Load" in dump(capsys, "--const", "bm=48")


def test_the_ir_after_a_pass_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", f"{KERNELS}:wasteful", "--after", "fold_constants"]) == 0
    assert "Multiply" in capsys.readouterr().out
    assert main(["dump", f"{KERNELS}:wasteful", "--after", "eliminate_dead_code"]) == 0
    assert "Multiply" not in capsys.readouterr().out


def test_an_unknown_pass_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["dump", *ADD, "--after", "fold"]) == 2
    assert "passes are fold_constants, " in capsys.readouterr().err


def test_piped_by_itself_the_cubin_is_the_file() -> None:
    command = [sys.executable, "-m", "astdsl.cli.main", "dump", "--cubin", *ADD]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout.startswith(b"\x7fELF")


def test_json_holds_the_stages_and_the_costs(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(dump(capsys, "--ptx", "--cubin", "--json"))
    assert (found["kernel"], found["target"]) == ("add", "sm_90a")
    assert ".target sm_90a" in found["ptx"]
    assert base64.b64decode(found["cubin"]).startswith(b"\x7fELF")
    assert found["resources"]["registers"] > 0
    assert found["resources"]["spill_bytes"] == 0


def test_a_wrong_kernel_is_reported_and_exits_1(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    assert main(["dump", f"{KERNELS}:misspelt", "--arg", "x=64"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    golden(err, "cli/misspelt.txt")


def test_a_wrong_argument_is_reported_and_exits_2(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    assert main(["dump", *ADD[:1], "--arg", "x=100x70:f16"]) == 2
    golden(capsys.readouterr().err, "cli/wrong-dtype.txt")


def test_a_missing_shape_is_reported_and_exits_2(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    assert main(["dump", ADD[0]]) == 2
    golden(capsys.readouterr().err, "cli/missing-shape.txt")


def test_json_holds_an_error_with_its_places(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "--json", f"{KERNELS}:misspelt", "--arg", "x=64"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "A103"
    assert error["places"][0]["file"] == KERNELS
    assert "sqrt" in error["help"]
