"""`astdsl emulate`: PTX from a file, arguments from words."""

import json
from pathlib import Path

import numpy as np
import pytest

from astdsl.cli.emulate import read_arguments
from astdsl.cli.main import main
from astdsl.emulator import TensorMap
from astdsl.errors import BadCommand
from tests.emulator.asm import kernel

SCALE = """
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
  mad.lo.u32 %r3, %r0, %r1, %r2;
  ld.param.u32 %r4, [a2]; setp.ge.u32 %p0, %r3, %r4; @%p0 bra DONE;
  ld.param.u64 %d0, [a0]; mad.wide.u32 %d1, %r3, 4, %d0;
  ld.param.f32 %f0, [a1]; ld.global.f32 %f1, [%d1];
  mul.rn.f32 %f2, %f0, %f1; st.global.f32 [%d1], %f2;
DONE:
"""
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def place(tmp_path: Path) -> str:
    path = tmp_path / "scale.ptx"
    path.write_text(kernel(SCALE, ["u64", "f32", "u32"]), encoding="utf-8")
    return str(path)


def launch(place: str, n: int, *options: str) -> int:
    arguments = ["--arg", "range:1000:f32", "--arg", "2.0", "--arg", str(n)]
    return main(["emulate", place, "--grid", "8", "--block", "128", *arguments, *options])


def test_the_arguments_that_a_kernel_changes_are_shown(place: str, capsys: Captured) -> None:
    assert launch(place, 1000) == 0
    assert "999 of 1000 elements changed, the first to 2.0" in capsys.readouterr().out


def test_a_fault_of_the_kernel_exits_1(place: str, capsys: Captured) -> None:
    assert launch(f"{place}:k", 1024) == 1
    assert "E220" in capsys.readouterr().err


def test_a_fault_of_the_launch_exits_2_and_json_tells_it(place: str, capsys: Captured) -> None:
    assert main(["emulate", place, "--block", "4096", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "E202"


def test_json_tells_where_a_kernel_went_wrong(place: str, capsys: Captured) -> None:
    assert launch(place, 1024, "--json") == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["block"], error["warp"]) == ([7, 0, 0], 3)
    assert error["ptx_line"] > 0


def test_arrays_that_cannot_be_written_are_a_wrong_call(
    place: str, tmp_path: Path, capsys: Captured
) -> None:
    assert launch(place, 1000, "--save", str(tmp_path / "none" / "out.npz")) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--seed", "--shared"])
def test_negative_numbers_are_refused(place: str, option: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit, match="2"):
        launch(place, 1000, option, "-1")
    assert f"argument {option}: -1 is no integer of 0 or more" in capsys.readouterr().err


def test_the_arrays_are_written_where_that_is_asked_for(place: str, tmp_path: Path) -> None:
    assert launch(place, 1000, "--save", str(tmp_path / "out.npz"), "--completion", "3") == 0
    assert (np.load(tmp_path / "out.npz")["0"] == 2 * np.arange(1000)).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--grid", "x"], "`--grid x` is no extent"),
        (["--completion", "soon"], "choose late, early"),
        (["--order", "any"], "choose min-pc, max-pc, round-robin"),
        (["--arg", "3:f99"], "there is no dtype `f99`"),
        (["--arg", "none"], "is no argument"),
        (["--arg", "none.npy"], "`none.npy` cannot be read: No such file or directory\n"),
        (["--arg", __file__ + ".npy"], "cannot be read"),
        (["--arg", "1", "--arg", "1", "--arg", "1.5"], "1.5 is no integer, as .u32 needs"),
        (["--arg", f"{10**12}:f32"], "not enough memory"),
        (["--arg", "map(0@8x8)"], "argument 0 is no array"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    place: str, options: list[str], said: str, capsys: Captured
) -> None:
    assert main(["emulate", place, *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"), [(":q", "has no kernel `q`"), (".none", "cannot be read")]
)
def test_a_file_or_kernel_that_is_not_there_is_refused(
    place: str, change: str, said: str, capsys: Captured
) -> None:
    assert main(["emulate", place + change]) == 2
    assert said in capsys.readouterr().err


def test_a_tensor_map_is_of_an_array_before_it() -> None:
    array, tensor_map = read_arguments(["zeros:64x64:f16", "map(0@32x64@128)"], 0)
    assert isinstance(tensor_map, TensorMap)
    assert tensor_map.arrays[0] is array
    assert tensor_map.box == (64, 32)
    with pytest.raises(BadCommand, match="16-byte units"):
        read_arguments(["zeros:64x64:f16", "map(0@32x3)"], 0)
