"""The `golden` fixture: texts compared by equality with files of tests/golden.

`pytest --update-golden` writes the files instead. A run of the whole suite that passes also fails
on orphans, files that no test asked for (an update deletes them). Under xdist the workers send the
names they used to the controller, which alone knows when the suite has ended.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

Golden = Callable[[str, str], None]


@dataclass
class GoldenFolder:
    """The golden files below one folder, and those that this process has used."""

    folder: Path
    is_update: bool
    used: dict[str, str | None] = field(default_factory=dict)

    def compare(self, text: str, name: str) -> None:
        """Fail unless `text` is what the file `name` holds; write it there under an update."""
        if self.used.setdefault(name, text) not in {None, text}:
            pytest.fail(f"{name} was compared with another text before", pytrace=False)
        path = self.folder / name
        if self.is_update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        elif not path.exists():
            pytest.fail(f"no golden file {name}: pytest --update-golden writes it", pytrace=False)
        elif (wanted := path.read_bytes().decode("utf-8")) != text:
            pytest.fail(f"{name} differs\n{difference(wanted, text)}", pytrace=False)

    def orphans(self) -> list[str]:
        """Name the files that were not used, sorted."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted({path.relative_to(self.folder).as_posix() for path in files} - set(self.used))


def difference(wanted: str, got: str) -> str:
    """Show two texts as a diff, a missing line end too."""
    old, new = wanted.splitlines(keepends=True), got.splitlines(keepends=True)
    diff = difflib.unified_diff(old, new, "golden", "this run")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ no line end\n" for line in diff)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden")


FOLDER = pytest.StashKey[GoldenFolder]()


def pytest_configure(config: pytest.Config) -> None:
    folder = config.rootpath / "tests" / "golden"
    config.stash[FOLDER] = GoldenFolder(folder, bool(config.getoption("update_golden")))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Give `golden(text, name)`: `text` must equal the file tests/golden/`name`."""
    return request.config.stash[FOLDER].compare


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    goldens = session.config.stash[FOLDER]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["goldens_used"] = sorted(goldens.used)
    elif exitstatus == pytest.ExitCode.OK and is_whole_suite(session.config):
        if goldens.is_update:
            for name in goldens.orphans():
                (goldens.folder / name).unlink()
        elif goldens.orphans():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    """Take over what a worker of xdist has used, when it goes."""
    del error
    used = getattr(node, "workeroutput", {}).get("goldens_used", [])
    goldens: GoldenFolder = node.config.stash[FOLDER]  # type: ignore[attr-defined]
    goldens.used |= dict.fromkeys(used)


def is_whole_suite(config: pytest.Config) -> bool:
    """Say whether nothing was selected: no paths but testpaths, no -k, -m, --deselect and so on."""
    options = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "stepwise")
    narrowed = any(config.getoption(name, None) for name in options)
    wanted = {(config.rootpath / path).resolve() for path in config.getini("testpaths")}
    given = {(config.invocation_params.dir / path).resolve() for path in config.args}
    return not narrowed and given == wanted


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    del exitstatus
    goldens = config.stash[FOLDER]
    failed = terminalreporter.stats.get("failed") or terminalreporter.stats.get("error")
    if not failed and not goldens.is_update and is_whole_suite(config):
        for name in goldens.orphans():
            terminalreporter.write_line(f"orphan golden file {name}: no test asks for it", red=True)
