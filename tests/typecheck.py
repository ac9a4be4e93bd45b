"""Run `mypy --strict` over every file of a checkout, in the layout in which it is installed.

mypy does not follow setuptools' package-dir: run at the root it takes lowering/ for a package of
its own, and says Success for what it has not seen. So it runs in a tree of links where
astdsl/lowering and astdsl/stdlib stand, and its count of checked files must be ours.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPTS = ("tests", "examples", "bench")
MAPPED = ("lowering", "stdlib")


def link_tree(root: Path, into: Path) -> None:
    """Link the folders of the checkout `root` into the empty folder `into`, as installed."""
    package = into / "astdsl"
    package.mkdir()
    for path in (root / "astdsl").iterdir():
        (package / path.name).symlink_to(path)
    for name in MAPPED:
        (package / name).symlink_to(root / name)
    for name in SCRIPTS:
        if any((root / name).rglob("*.py")):
            (into / name).symlink_to(root / name)
    (into / "setup.py").symlink_to(root / "setup.py")


def count_files(root: Path) -> int:
    """Count the Python files of the checkout."""
    folders = ("astdsl", *MAPPED, *SCRIPTS)
    return 1 + sum(len(list((root / name).rglob("*.py"))) for name in folders)


def check(root: Path, cache: Path) -> list[str]:
    """Type-check the checkout `root`; return the complaints."""
    with tempfile.TemporaryDirectory() as tree:
        link_tree(root, Path(tree))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml")),
                *("--cache-dir", str(cache), "."),
            ],
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
    lines = (done.stdout + done.stderr).splitlines() if done.returncode else []
    complaints = [re.sub(r"^astdsl/(?=(lowering|stdlib)/)", "", line) for line in lines]
    checked = re.search(r"(\d+) source files?\)?$", done.stdout.strip())
    seen, wanted = int(checked[1]) if checked else 0, count_files(root)
    if seen != wanted:
        complaints.append(f"mypy checked {seen} files, the checkout has {wanted}")
    return complaints


def main() -> int:
    """Print what mypy says of this checkout; return 1 if it complains."""
    root = Path(__file__).resolve().parent.parent
    complaints = check(root, root / ".mypy_cache")
    print(*(complaints or [f"mypy: {count_files(root)} files, no complaints"]), sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
