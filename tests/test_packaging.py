"""What is installed is what the checkout has: every package, module and py.typed, mapped."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import astdsl

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"astdsl": "astdsl", "lowering": "astdsl/lowering", "stdlib": "astdsl/stdlib"}


def build_wheel(root: Path, into: Path) -> Path:
    """Build the wheel of the checkout `root` from a copy, so that the checkout stays clean."""
    copy = into / "checkout"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(root / name, copy)
    for name in FOLDERS:
        shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(into)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(copy)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = into.glob("*.whl")
    return wheel


def files_of_checkout(root: Path) -> set[str]:
    """Name the files that an install must have, by their place there."""
    return {
        f"{place}/{path.relative_to(root / folder).as_posix()}"
        for folder, place in FOLDERS.items()
        for path in (root / folder).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }


def files_of_wheel(wheel: Path) -> set[str]:
    """Name the files of a wheel that are not about the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_every_file_and_no_other(wheel: Path) -> None:
    assert files_of_wheel(wheel) == files_of_checkout(ROOT)


def test_every_folder_with_modules_is_a_package() -> None:
    modules = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in modules if not (path.parent / "__init__.py").exists()] == []


def test_a_module_outside_a_package_is_missing_from_the_wheel(tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    (tmp_path / "lowering/attic").mkdir()
    (tmp_path / "lowering/attic/old.py").write_text("")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "out").mkdir()
    wheel = build_wheel(tmp_path, tmp_path / "out")
    assert files_of_checkout(tmp_path) - files_of_wheel(wheel) == {"astdsl/lowering/attic/old.py"}


def where_imported_from(folder: Path, path: str) -> list[Path]:
    """Import the three folders in a fresh process started in `folder`; say where they lie."""
    program = (
        "import astdsl, astdsl.lowering, astdsl.stdlib\n"
        "for module in (astdsl, astdsl.lowering, astdsl.stdlib): print(module.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line).parent for line in done.stdout.splitlines()]


def test_the_three_folders_are_imported_from_an_unpacked_wheel(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    expected = [site / place for place in FOLDERS.values()]
    assert where_imported_from(tmp_path, str(site)) == expected


@pytest.mark.parametrize("start", ["checkout", "elsewhere"])
def test_the_three_folders_are_imported_from_an_editable_install(
    start: str, tmp_path: Path
) -> None:
    folder = ROOT if start == "checkout" else tmp_path
    assert where_imported_from(folder, "") == [ROOT / name for name in FOLDERS]


def test_the_version_is_one_everywhere() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert astdsl.__version__ == declared == version("astdsl")


def test_every_requirement_is_installed_in_a_tested_version() -> None:
    command = [sys.executable, "-m", "pip", "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "astdsl" not in done.stdout
