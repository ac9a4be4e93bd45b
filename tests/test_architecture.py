"""The house rules hold for the checkout, and every check fails on a planted fault."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture import (
    CHECKS,
    LATE_TABLES,
    LEVEL,
    REGISTRIES,
    SOFT_LIMIT_LINES,
    Module,
    read_tree,
    report,
)

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"cuda", "cupy", "jax", "llvmlite", "rich", "torch"}
DOC = '"""What it is."""\n'
AGAINST = "against the one direction"
LATE = (
    "only astdsl.backend, astdsl.runtime.devices, astdsl.on_demand, astdsl.emulator.native.host, "
    "astdsl.runtime.native"
)


@pytest.fixture(scope="module")
def house() -> list[Module]:
    return read_tree(ROOT)


@pytest.mark.parametrize("name", CHECKS)
def test_the_checkout_passes_the_check_of(name: str, house: list[Module]) -> None:
    assert house, "no modules were read"
    assert CHECKS[name](house) == []


def plant(root: Path, files: dict[str, str]) -> list[Module]:
    """Write files below `root`, with the `__init__.py` of every folder, and read them."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.relative_to(root).parents[:-1]:
            init = root / folder / "__init__.py"
            if not init.exists():
                init.write_text(DOC)
        path.write_text(DOC + text if text.startswith("\n") else text)
    return read_tree(root)


# One row: the check, the planted files (a text that begins with a line end gets a docstring), and
# the complaint, whole.
FAULTS = [
    (
        "layers",
        {"astdsl/ir/core.py": "\nfrom astdsl.lang import tile\n", "astdsl/lang/tile.py": "\n"},
        f"astdsl/ir/core.py:3: astdsl.ir.core imports astdsl.lang.tile, {AGAINST}",
    ),
    (
        "layers",
        {"astdsl/frontend/scopes.py": "\nimport astdsl.runtime\n"},
        f"astdsl/frontend/scopes.py:3: astdsl.frontend.scopes imports astdsl.runtime, {AGAINST}",
    ),
    (
        "layers",
        {"lowering/windows.py": "\nfrom astdsl.lang import tile\n"},
        f"lowering/windows.py:3: astdsl.lowering.windows imports astdsl.lang, {AGAINST}",
    ),
    (
        "layers",
        {"astdsl/emulator/clock.py": "\nfrom ..ir import types\n"},
        f"astdsl/emulator/clock.py:3: astdsl.emulator.clock imports astdsl.ir, {AGAINST}",
    ),
    (
        "layers",
        {"astdsl/compile.py": "\ndef late() -> None:\n    import astdsl.kernel\n"},
        f"astdsl/compile.py:4: astdsl.compile imports astdsl.kernel, {AGAINST}",
    ),
    (
        "layers",
        {"astdsl/runtime/devices.py": "\nimport astdsl.emulator\n"},
        f"astdsl/runtime/devices.py:3: astdsl.runtime.devices imports astdsl.emulator, {AGAINST}",
    ),
    (
        "layers",
        {"astdsl/kernel.py": "\nfrom astdsl import __version__\n"},
        f"astdsl/kernel.py:3: astdsl.kernel imports astdsl, {AGAINST}",
    ),
    (
        "layers",
        {"astdsl/backend.py": "\nfrom lowering import nvptx\n"},
        "astdsl/backend.py:3: `lowering` is imported as `astdsl.lowering`",
    ),
    (
        "layers",
        {"astdsl/attic.py": "\n"},
        "astdsl/attic.py:1: room `attic` has no level in LEVELS",
    ),
    (
        "layers",
        {"astdsl/ir/core.py": "\nif TYPE_CHECKING:\n    import astdsl.kernel\n"},
        f"astdsl/ir/core.py:4: astdsl.ir.core imports astdsl.kernel, {AGAINST}",
    ),
    (
        "late imports",
        {"astdsl/kernel.py": "\ndef call() -> None:\n    from astdsl import compile\n"},
        f"astdsl/kernel.py:4: late import of astdsl: {LATE}",
    ),
    (
        "late imports",
        {"lowering/target.py": "\ndef call() -> None:\n    importlib.import_module('rich')\n"},
        f"lowering/target.py:4: late import of rich: {LATE}",
    ),
    (
        "cycles",
        {
            "astdsl/ir/core.py": "\nfrom astdsl.ir import types\n",
            "astdsl/ir/types.py": "\ndef late() -> None:\n    from astdsl.ir.core import Node\n",
        },
        "astdsl/ir/core.py:1: import cycle astdsl.ir.core -> astdsl.ir.types -> astdsl.ir.core",
    ),
    (
        "module length",
        {"astdsl/ir/core.py": DOC + "x = 1\n" * 600},
        "astdsl/ir/core.py:1: 601 lines, the limit is 600",
    ),
    (
        "function length",
        {"astdsl/ir/core.py": "\ndef long() -> None:\n" + "    x = 1\n" * 41},
        "astdsl/ir/core.py:3: `long` has 41 statements, the limit is 40",
    ),
    (
        "broad excepts",
        {"stdlib/norm.py": "\ntry:\n    pass\nexcept (ValueError, Exception):\n    raise\n"},
        "stdlib/norm.py:5: catches everything: name the exceptions that are meant",
    ),
    (
        "broad excepts",
        {"stdlib/norm.py": "\ntry:\n    pass\nexcept:\n    raise\n"},
        "stdlib/norm.py:5: catches everything: name the exceptions that are meant",
    ),
    (
        "assert messages",
        {"astdsl/ir/core.py": "\nassert True\n"},
        "astdsl/ir/core.py:3: an assertion needs a message",
    ),
    (
        "assert messages",
        {"astdsl/ir/core.py": "\nraise AssertionError\n"},
        "astdsl/ir/core.py:3: an assertion needs a message",
    ),
    (
        "module docstrings",
        {"astdsl/ir/core.py": "x = 1\n"},
        "astdsl/ir/core.py:1: no module docstring",
    ),
    (
        "state",
        {"astdsl/ir/core.py": "\nSEEN: dict[str, int] = {}\n"},
        "astdsl/ir/core.py:3: `SEEN` is empty at module level, so it is state",
    ),
    (
        "state",
        {"astdsl/ir/core.py": "\nSEEN = defaultdict(list)\n"},
        "astdsl/ir/core.py:3: `SEEN` is empty at module level, so it is state",
    ),
    (
        "state",
        {"astdsl/ir/core.py": "\nSEEN = set[str]()\n"},
        "astdsl/ir/core.py:3: `SEEN` is empty at module level, so it is state",
    ),
    (
        "state",
        {"astdsl/ir/core.py": "\nROWS = {1: 2}\ndef put(key):\n    ROWS[key] = 1\n"},
        "astdsl/ir/core.py:5: `ROWS` of the module is changed in a function",
    ),
    (
        "state",
        {"astdsl/ir/core.py": "\nfrom a import ROWS\ndef put(key):\n    ROWS.append(key)\n"},
        "astdsl/ir/core.py:5: `ROWS` of the module is changed in a function",
    ),
    (
        "state",
        {"astdsl/ir/core.py": "\nCOUNT = 0\ndef put():\n    global COUNT\n"},
        "astdsl/ir/core.py:5: global COUNT: pass it, or return it",
    ),
    (
        "state",
        {"astdsl/ir/core.py": "\nNOW = ContextVar('NOW')\n"},
        "astdsl/ir/core.py:3: `NOW`: the one ContextVar stands in lang/tracing.py",
    ),
    (
        "public names",
        {"astdsl/ir/core.py": "\n__all__ = ['Node', 'Block']\nclass Node: ...\n"},
        "astdsl/ir/core.py:3: `Block` is in __all__ and not in the module",
    ),
    (
        "public names",
        {"astdsl/ir/core.py": "\n__all__ = sorted(globals())\n"},
        "astdsl/ir/core.py:3: __all__ is a list of names, written out",
    ),
    (
        "rich",
        {"astdsl/cli/main.py": "\nfrom rich.console import Console\n"},
        "astdsl/cli/main.py:3: rich is imported in astdsl.cli.render only",
    ),
]


@pytest.mark.parametrize(("check", "files", "complaint"), FAULTS)
def test_a_planted_fault_is_reported(
    tmp_path: Path, check: str, files: dict[str, str], complaint: str
) -> None:
    assert CHECKS[check](plant(tmp_path, files)) == [complaint]


def test_every_check_has_a_planted_fault() -> None:
    assert {row[0] for row in FAULTS} == set(CHECKS)


@pytest.mark.parametrize(
    "files",
    [
        {"astdsl/kernel.py": "\nfrom astdsl import compile\n", "astdsl/compile.py": "\n"},
        {"astdsl/errors.py": "\nfrom astdsl.source import Span\n", "astdsl/source.py": "\n"},
        {"astdsl/backend.py": "\ndef build() -> None:\n    import astdsl.lowering\n"},
        {"astdsl/runtime/devices.py": "\ndef find() -> None:\n    import astdsl.emulator\n"},
        {"astdsl/ir/core.py": "\nROWS = {1: 2}\ndef get(ROWS):\n    ROWS[1] = 2\n"},
        {
            "astdsl/ir/core.py": "\nif TYPE_CHECKING:\n    from astdsl.ir import types\n",
            "astdsl/ir/types.py": "\nfrom astdsl.ir.core import Node\n",
        },
        {"astdsl/ir/core.py": "\nimport numpy as np\ndef f(x):\n    np.append(x, x)\n"},
        {
            "astdsl/lang/arith.py": "\n",
            "astdsl/lang/tile.py": "\nfrom astdsl.lang import arith\ndef f():\n    arith.add(1)\n",
        },
        {"astdsl/ir/core.py": "\ndef f(x: int) -> None:\n    assert x, 'x is 0'\n"},
        {"stdlib/norm.py": "\nimport astdsl\n"},
        {"astdsl/cli/render.py": "\nfrom rich.console import Console\n"},
        {"astdsl/lang/tracing.py": "\nNOW = ContextVar('NOW')\n"},
        {"astdsl/__init__.py": DOC + "from astdsl import ir\n__all__ = ['ir', 'errors']\n",
         "astdsl/ir/core.py": "\n", "astdsl/errors.py": "\n"},
    ],
)  # fmt: skip
def test_what_is_allowed_passes_every_check(tmp_path: Path, files: dict[str, str]) -> None:
    modules = plant(tmp_path, files)
    assert [complaint for check in CHECKS.values() for complaint in check(modules)] == []


def test_every_registry_that_is_allowed_exists(house: list[Module]) -> None:
    names = {module.name for module in house}
    missing = [name for name in REGISTRIES if name.rpartition(".")[0] not in names]
    assert missing == []


def test_the_tables_of_late_imports_have_a_level() -> None:
    assert {table.split(".")[1] for table in LATE_TABLES} <= set(LEVEL)


def test_the_report_names_modules_over_the_soft_limit(tmp_path: Path) -> None:
    long = DOC + "x = 1\n" * SOFT_LIMIT_LINES
    text = report(plant(tmp_path, {"astdsl/ir/core.py": long, "astdsl/ir/ops.py": "\n"}))
    assert text.splitlines()[1:] == ["astdsl/ir/core.py: 401 lines, over 400"]


def test_the_report_gives_the_median_function(tmp_path: Path) -> None:
    body = "\ndef one():\n    return 1\ndef three():\n    x = 1\n    y = 2\n    return x\n"
    text = report(plant(tmp_path, {"astdsl/ir/core.py": body}))
    assert "median function 2 statements (goal 5), 2 functions" in text
    assert "largest function astdsl.ir.core.three, 3 statements" in text


def heavy_after_importing(package_root: Path) -> set[str]:
    """Import astdsl from `package_root` in a fresh process; say which heavy packages came along."""
    program = "import sys, astdsl; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=package_root,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split()) & HEAVY


def test_importing_astdsl_loads_no_compiler_no_driver_and_no_colour() -> None:
    assert heavy_after_importing(ROOT) == set()


def test_a_heavy_import_is_noticed(tmp_path: Path) -> None:
    plant(tmp_path, {"astdsl/ir/core.py": "\nimport llvmlite\n"})
    (tmp_path / "astdsl/__init__.py").write_text("import rich\nimport astdsl.ir.core\n")
    assert heavy_after_importing(tmp_path) == {"llvmlite", "rich"}
