"""The command line as a whole: commands, exit codes, what nobody caught."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from astdsl.cli.main import COMMANDS, LATER, main, make_parser

ROOT = Path(__file__).resolve().parents[2]
KERNELS = str(Path(__file__).with_name("kernels.py"))


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if f"    {name} " not in shown] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_is_a_sentence_with_its_capitals(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    said = COMMANDS[name].help
    assert f" {said[0].upper()}{said[1:]}. " in shown


def test_no_command_prints_the_help_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("usage: astdsl")


@pytest.mark.parametrize("name", LATER)
def test_a_command_that_is_to_come_says_what_to_use(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "kernel.py"]) == 2
    assert (
        f"`astdsl {name}` is not in this version\n  help: {LATER[name]}" in capsys.readouterr().err
    )


def commands_of_pages() -> list[str]:
    """Return every call of `astdsl` in a fence of shell commands."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    fences = "".join(
        text
        for page in pages
        for text in re.findall("^```sh\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    )
    return re.findall(r"^(?:\.venv/bin/)?astdsl (.*)$", fences, re.MULTILINE)


@pytest.mark.parametrize("command", commands_of_pages())
def test_a_command_of_the_pages_can_be_parsed(command: str) -> None:
    assert make_parser().parse_args(shlex.split(command)).command in COMMANDS


NOISY = """
from astdsl import In, Out, f32, kernel
print("loaded")
@kernel
def k(x: In[f32, "8"], o: Out[f32, "8"]):
    print("traced")
    o[...] = x[...]
    print("ran with", x[...].sum())
"""


@pytest.mark.parametrize("command", ["run", "check", "explain", "dump"])
def test_with_json_what_a_kernel_prints_does_not_stand_in_the_output(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    assert main([command, str(tmp_path / "noisy.py"), "--json"]) == 0
    told = capsys.readouterr()
    assert isinstance(json.loads(told.out), dict)
    assert "loaded\ntraced\n" in told.err
    assert ("ran with" in told.err) is (command in {"run", "check"})


def test_a_stage_that_is_dumped_is_all_of_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    assert main(["dump", str(tmp_path / "noisy.py"), "--ptx"]) == 0
    assert capsys.readouterr().out.startswith("//")


def test_what_a_kernel_prints_is_shown_where_it_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    assert main(["run", str(tmp_path / "noisy.py")]) == 0
    assert "ran with" in capsys.readouterr().out


def test_a_misspelt_command_is_hinted_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dumb"]) == 2
    assert "did you mean `dump`?" in capsys.readouterr().err


def test_an_unknown_option_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["dump", "--irr", KERNELS])
    assert caught.value.code == 2
    assert "--irr" in capsys.readouterr().err


def test_a_file_that_python_cannot_parse_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def f(:\n")
    assert main(["dump", str(file)]) == 1
    assert "SyntaxError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ("x = 1\ny = (2\n", "SyntaxError: '(' was never closed", 2, 4),
        ("def f():\n  x = 1\n    y = 2\n", "IndentationError: unexpected indent", 3, 3),
        ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all'", 1, 0),
        ("x = 1\ny = x / 0\n", "ZeroDivisionError: division by zero", 2, 4),
        ("raise KeyError('a')\n", "KeyError: 'a'", 1, 0),
    ],
)
def test_json_tells_what_a_file_raises(
    text: str, message: str, line: int, column: int, tmp_path: Path
) -> None:
    done = run_file(tmp_path, text, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"], error["message"]) == (1, "", message)
    assert [(p["line"], p["column"]) for p in error["places"]] == [(line, column)]
    assert error["places"][0]["file"].endswith("file.py")
    assert message.partition(":")[0] in done.stderr


def test_json_tells_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "--irr", KERNELS, "--json"]) == 2
    assert "--irr" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize("end", ["sys.exit()", "sys.exit(3)", "sys.exit('no')", "raise SystemExit"])
def test_a_file_that_ends_the_program_is_refused(
    end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ends.py").write_text(f"import sys\n\n{end}\n")
    assert main(["dump", str(tmp_path / "ends.py")]) == 2
    assert '`if __name__ == "__main__":`' in capsys.readouterr().err


@pytest.mark.parametrize("name", ["queue", "numpy", "types", "astdsl"])
def test_a_file_may_be_called_like_a_module(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.py"
    file.write_text("from astdsl import kernel\n\n\ndef f():\n    1 / 0\n\n\nf()\n")
    command = [sys.executable, "-m", "astdsl.cli.main", "dump", str(file)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.stderr.startswith("Traceback"), done.stderr
    assert done.stderr.count("  File ") == 2


def run_file(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    file = folder / "file.py"
    file.write_text(text)
    command = [sys.executable, "-m", "astdsl.cli.main", "dump", str(file), *options]
    return subprocess.run(command, capture_output=True, check=False, text=True)


def test_an_exception_of_the_users_own_python_shows_the_users_frames_only(tmp_path: Path) -> None:
    done = run_file(tmp_path, "def f():\n    return 1 / 0\n\nf()\n")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.count("  File ") == 2
    assert "astdsl/cli" not in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_an_exception_of_a_helper_of_a_kernel_names_the_kernel(tmp_path: Path) -> None:
    done = run_file(
        tmp_path,
        "from astdsl import kernel\n\n@kernel\ndef f():\n    {}['missing']\n",
    )
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: 'missing'\nin kernel `f`, file.py:5:1\n")


def test_a_fault_of_ours_says_so(tmp_path: Path) -> None:
    done = run_file(
        tmp_path,
        "import astdsl.lowering.target as target\nfrom astdsl import kernel\n\n"
        "@kernel\ndef f():\n    pass\n\ntarget.TARGETS = {'sm_90a': None}\n",
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "This is a fault of astdsl, not of your kernel; please report it:"
    )


@pytest.mark.parametrize(
    "command", [["dump", "--ptx", f"{KERNELS}:fixed"], ["run", f"{KERNELS}:fixed"], ["doctor"]]
)
def test_a_reader_that_leaves_early_is_no_error(command: list[str]) -> None:
    place, end = os.pipe()
    os.close(place)
    with os.fdopen(end, "w") as left:
        done = subprocess.run(
            [sys.executable, "-m", "astdsl.cli.main", *command],
            stdout=left,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_doctor_tells_versions_tools_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["numpy"][0].isdigit()
    assert found["devices"]["emulator"] == "available"
    assert found["tools"]["ptxas"].endswith("ptxas")
    assert found["chosen"]["target"] == "sm_90a"


def test_explain_prints_what_was_inferred(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{KERNELS}:add", "--arg", "x=100x70"]) == 0
    assert "  x: f32 100 70; axis 1 contiguous; " in capsys.readouterr().out
