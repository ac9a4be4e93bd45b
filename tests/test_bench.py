"""Every script of bench/ runs and prints its table; what the numbers are is not looked at."""

import ctypes
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from astdsl.errors import DeviceUnavailable
from astdsl.runtime.devices import why_no_gpu
from bench import gpu_smoke
from bench.common import Figure, run, show
from bench.machine_code import loop_with
from bench.sass import Cost, cost
from tests.runtime.drivers import StubApi

BENCH = Path(__file__).resolve().parent.parent / "bench"
QUICK = ["--repeats", "1"]

# Arguments with which a script is quick; every script has a row.
SCRIPTS = {
    "imports": QUICK,
    "compiling": QUICK,
    "emulating": [*QUICK, "--size", "64"],
    "emulator": [*QUICK, "--scale", "4"],
    "launch": QUICK,
    "machine_code": QUICK,
}
PARTS = {
    "common", "compared", "gpu_smoke", "kernels", "peers", "sass", "triton_code", "triton_kernels",
}  # fmt: skip


def test_the_smoke_test_of_a_gpu_passes_arrays_to_the_driver_and_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_smoke.make(tmp_path, "sm_90a")
    (matmul,) = (case for case in gpu_smoke.cases(tmp_path) if case[0].stem == "matmul-sm_90a")

    def run(name: str, grid: int, at: Sequence[int]) -> None:
        # The product does not run: its output is put where the last pointer points.
        assert (name, grid) == ("matmul", 2 * 3)
        out = ctypes.c_uint64.from_address(at[10]).value
        ctypes.memmove(out, matmul[2][2].ctypes.data, matmul[2][2].nbytes)

    for path in tmp_path.glob("add*"):
        path.unlink()
    assert gpu_smoke.run(StubApi(run, parameters=15), tmp_path) == 0
    assert "matmul-sm_90a: good" in capsys.readouterr().out


def test_every_script_is_run() -> None:
    assert {path.stem for path in BENCH.glob("*.py")} == {*SCRIPTS, *PARTS}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_its_figures(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    import_module(f"bench.{name}").main([*SCRIPTS[name], "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert {"processors", "load", "python", "reference_loop_ms"} == printed["machine"].keys()
    assert any(figure["at_most"] is not None for figure in printed["figures"])
    assert all(figure["value"] >= 0 for figure in printed["figures"])


def test_a_table_has_the_ratio_to_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert show([Figure("a call", 10, "us", 20), Figure("told", 3, "us")], as_json=False) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "a",
        "call",
        "10",
        "us",
        "20",
        "0.50",
    ]
    assert show([Figure("a call", 21, "us", 20)], as_json=False) == 1


def test_the_smallest_loop_around_an_instruction_is_counted() -> None:
    sass = """
.L_x_0:
        /*0000*/                   MOV R1, R2 ;
.L_x_1:
        /*0010*/                   HGMMA.64x128x16.F32 R88, gdesc[UR12], R88 ;
        /*0020*/              @!P0 BRA `(.L_x_1) ;
        /*0030*/               @P1 BRA `(.L_x_0) ;
        /*0040*/               @P1 BRA `(.L_x_2) ;
.L_x_2:
        /*0050*/                   EXIT ;
"""
    assert loop_with("HGMMA", sass) == 2
    assert loop_with("MOV", sass) == 4


def test_a_step_leaves_out_branches_and_what_waits_behind_the_code() -> None:
    body = "\n".join("        /*0100*/                   MOV R1, R2 ;" for _ in range(12))
    sass = f"""
.text.first:
        /*0000*/                   EXIT ;
.text.second:
.L_x_0:
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR1], R2 ;
        /*0020*/              @!P0 BRA `(.L_x_3) ;
.L_x_1:
        /*0030*/                   HGMMA.64x128x16.F32 R88, gdesc[UR12], R88 ;
        /*0040*/               @P1 BRA `(.L_x_2) ;
{body}
.L_x_2:
        /*0200*/                   BAR.SYNC 0x0 ;
        /*0210*/               @P2 BRA `(.L_x_0) ;
        /*0220*/                   EXIT ;
.L_x_3:
        /*0230*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR1], R2 ;
        /*0240*/              @!P0 BRA `(.L_x_3) ;
        /*0250*/                   BRA `(.L_x_1) ;
"""
    assert cost(sass) == Cost("second", instructions=22, loop=18, step=6, waits=2)


def test_a_step_without_a_loop_is_the_way_to_an_end() -> None:
    body = "\n".join("        /*0100*/                   MOV R1, R2 ;" for _ in range(12))
    sass = f"""
.text.first:
        /*0000*/                   MOV R1, R2 ;
        /*0010*/                   BRA.U !UP0, `(.L_x_1) ;
        /*0020*/                   BRA `(.L_x_0) ;
.L_x_1:
{body}
.L_x_0:
        /*0030*/              @!P0 EXIT ;
        /*0040*/                   MOV R1, R2 ;
        /*0050*/                   EXIT ;
        /*0060*/                   NOP ;
"""
    assert cost(sass) == Cost("first", instructions=19, loop=19, step=6, waits=0)


@pytest.mark.parametrize("folder", ["saved", "nothing"])
def test_the_smoke_test_without_a_gpu_says_what_is_missing(folder: str, tmp_path: Path) -> None:
    if why_no_gpu():
        if folder == "saved":
            gpu_smoke.make(tmp_path / folder, "sm_90a")
        with pytest.raises(SystemExit, match=r"no GPU can be used|holds no saved kernels"):
            gpu_smoke.main(["run", str(tmp_path / folder)])


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="nothing can be saved in"):
        gpu_smoke.main(["make", str(tmp_path / "file" / "in_it")])


def test_a_script_without_a_tool_ends_in_a_sentence() -> None:
    def main() -> int:
        raise DeviceUnavailable("SASS needs nvdisasm", help="pip install it")

    with pytest.raises(SystemExit, match="A404: SASS needs nvdisasm\n  help: pip install it"):
        run(main)
