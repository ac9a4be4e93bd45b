"""Every gate of CI fails on a planted fault: ruff's rules, mypy over all files, and .ci/run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.typecheck import check, count_files

ROOT = Path(__file__).resolve().parent.parent

NESTED = """
def _f(x):
    for a in x:
        for b in a:
            while b:
                {}
"""

# One row: the rule, and a text that breaks it. The text stands below a docstring.
RULES = [
    ("E501", f"x = '{'long ' * 20}'\n"),
    ("F401", "import os\n"),
    ("I001", "import sys\nimport os\nprint(os, sys)\n"),
    ("N802", 'def Load():\n    """Load."""\n'),
    ("UP007", "from typing import Union\nx: Union[int, str] = 1\n"),
    ("B006", 'def load(seen=[]):\n    """Load."""\n    return seen\n'),
    ("BLE001", "try:\n    x = 1\nexcept Exception:\n    x = 2\n"),
    ("C408", "x = dict()\n"),
    ("D103", "def load():\n    return 1\n"),
    ("D401", 'def load():\n    """Loads it."""\n'),
    ("D400", 'def load():\n    """Load it"""\n'),
    ("ERA001", "# x = load(1)\n"),
    ("PGH003", "x: int = 'a'  # type: ignore\n"),
    ("PTH123", "x = open('a')\n"),
    ("RET505", "def _f(x):\n    if x:\n        return 1\n    else:\n        return 2\n"),
    ("RUF100", "x = 1  # noqa: F401\n"),
    ("S102", "exec('x = 1')\n"),
    ("SIM102", "def _f(x, y):\n    if x:\n        if y:\n            print(x)\n"),
    ("T201", "print(1)\n"),
    ("TID252", "from ..ir import core\n"),
    ("PLC0415", "def _f():\n    import os\n    return os\n"),
    ("C901", "def _f(x):\n" + "".join(f"    if x == {i}:\n        x += 1\n" for i in range(10))),
    ("PLR0915", "def _f(x):\n" + "    x += 1\n" * 41),
    ("PLR0917", "def _f(a, b, c, d, e, f, g):\n    return a, b, c, d, e, f, g\n"),
    ("PLR1702", NESTED.format("if b:\n                    x.append(b)")),
]
# The same limits, met exactly.
WITHIN = [
    "def _f(x):\n" + "".join(f"    if x == {i}:\n        x += 1\n" for i in range(9)),
    "def _f(x):\n" + "    x += 1\n" * 40,
    "def _f(a, b, c, d, e, f):\n    return a, b, c, d, e, f\n",
    NESTED.format("x.append(b)"),
    "def _f(*, a, b, c, d, e, f, g, h):\n    return a, b, c, d, e, f, g, h\n",
]


def broken_rules(text: str) -> set[str]:
    """Lint `text` as if it were a module of astdsl; return the codes of the broken rules."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ruff", "check", "--output-format", "json"),
            *("--stdin-filename", "astdsl/planted.py", "-"),
        ],
        cwd=ROOT,
        input=f'"""What it is."""\n\n{text}',
        capture_output=True,
        text=True,
        check=False,
    )
    return {found["code"] for found in json.loads(done.stdout)}


@pytest.mark.parametrize(("rule", "text"), RULES, ids=[rule for rule, _ in RULES])
def test_ruff_reports_the_planted_fault(rule: str, text: str) -> None:
    assert rule in broken_rules(text)


@pytest.mark.parametrize("text", WITHIN)
def test_ruff_lets_the_limits_be_met(text: str) -> None:
    assert broken_rules(text) == set()


def test_ruff_reports_a_file_that_is_not_formatted() -> None:
    command = [sys.executable, "-m", "ruff", "format", "--check", "-"]
    done = subprocess.run(command, cwd=ROOT, input="x=1\n", text=True, check=False)
    assert done.returncode == 1


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Plant a small checkout that type-checks."""
    for folder in ("astdsl", "lowering", "stdlib", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    (tmp_path / "lowering/target.py").write_text("LANES: int = 32\n")
    (tmp_path / "setup.py").write_text("")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_mypy_passes_what_is_right_and_sees_every_file(checkout: Path, cache: Path) -> None:
    (checkout / "tests/test_it.py").write_text("from astdsl.lowering.target import LANES\n")
    assert count_files(checkout) == 7
    assert check(checkout, cache) == []


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("lowering/windows.py", "x: int = 'a'\n", "assignment"),
        ("stdlib/norm.py", "from astdsl.lowering.target import LANE\n", "attr-defined"),
        ("tests/test_it.py", "def test_it():\n    pass\n", "no-untyped-def"),
        ("astdsl/ir.py", "x = 1  # type: ignore\n", "unused-ignore"),
        ("examples/add.py", "rows = len(5)\n", "arg-type"),
    ],
)
def test_mypy_reports_the_planted_fault(
    checkout: Path, cache: Path, name: str, text: str, code: str
) -> None:
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).write_text(text)
    complaints = check(checkout, cache)
    assert any(line.startswith(f"{name}:1:") and f"[{code}]" in line for line in complaints)


def test_a_file_that_mypy_does_not_see_is_reported(checkout: Path, cache: Path) -> None:
    config = checkout / "pyproject.toml"
    config.write_text(config.read_text().replace("strict = true", 'strict = true\nexclude = "tar"'))
    assert check(checkout, cache) == ["mypy checked 5 files, the checkout has 6"]


# What .ci/run does, in order, as seen by the Python that it calls.
STEPS = [
    "-m venv",
    "-m pip install --quiet --editable .[test]",
    "-m ruff check .",
    "-m ruff format --check .",
    "-m tests.architecture",
    "-m tests.typecheck",
    "-m pytest -n 2",
]
# A Python that writes its arguments down, makes no environment but one with itself inside, and
# fails at the step that FAIL names.
STAND_IN = """#!/usr/bin/env bash
echo "$*" >> "$LOG"
if [ "$1 $2" = "-m venv" ]; then mkdir "$3/bin"; cp "$0" "$3/bin/python"; fi
if [ -n "$FAIL" ] && [[ "$*" == "$FAIL"* ]]; then exit 3; fi
"""


def run_ci(folder: Path, fail: str) -> tuple[int, list[str]]:
    """Run .ci/run with the stand-in; return its exit status and the steps that began."""
    stand_in, log = folder / "python", folder / "log"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    environment = os.environ | {"PYTHON": str(stand_in), "LOG": str(log), "FAIL": fail}
    done = subprocess.run([ROOT / ".ci/run"], env=environment, check=False)
    return done.returncode, log.read_text().splitlines()


def test_ci_runs_every_gate(tmp_path: Path) -> None:
    status, steps = run_ci(tmp_path, fail="")
    assert status == 0
    assert steps[0].startswith(STEPS[0])
    assert steps[1:] == STEPS[1:]


@pytest.mark.parametrize("number", range(len(STEPS)), ids=STEPS)
def test_ci_stops_at_the_step_that_fails(tmp_path: Path, number: int) -> None:
    status, steps = run_ci(tmp_path, fail=STEPS[number])
    assert status == 3
    assert len(steps) == number + 1
