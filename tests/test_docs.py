"""The pages tell the truth: their Python runs, their commands and links exist.

The snippets of one page run in order as one program, each line at the number it has in the page, so
that an error names the line of the page. They run from a file, as kernels need their source. What
stands in fences of `output` is what they print, or a part of it.
"""

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

import astdsl

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^]]+\]\(([^)#:]+)(?:#[^)]*)?\)")

# Packages that a module may need and that we do not: the docstrings of such a module wait for them.
OPTIONAL = {"cupy", "jax", "torch"}


def program_of(page: str) -> str:
    """Take the Python out of a page, every line at its number; "" if there is none."""
    lines = [""] * page.count("\n")
    for fence in FENCE.finditer(page):
        if fence[1] == "python":
            start = page.count("\n", 0, fence.start(2))
            code = fence[2].splitlines()
            lines[start : start + len(code)] = code
    return "\n".join(lines).rstrip()


def run_page(page: Path, folder: Path) -> None:
    """Run the snippets of a page, from a file in `folder`, and look for what they print."""
    text = page.read_text(encoding="utf-8")
    program = folder / f"{page.stem}.py"
    program.write_text(program_of(text), encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(program))
    left = printed.getvalue()
    for fence in FENCE.finditer(text):
        if fence[1] == "output":
            before, found, left = left.partition(fence[2])
            assert found, f"not printed:\n{fence[2]}what is:\n{before}"


@pytest.mark.parametrize("name", IDS)
def test_the_snippets_of_a_page_run(name: str, tmp_path: Path) -> None:
    run_page(ROOT / name, tmp_path)


def test_a_snippet_that_fails_names_its_line_in_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n```python\nx = 1\n```\n\n```python\ny = x\nassert y == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        run_page(page, tmp_path)
    assert caught.traceback[-1].lineno == 8  # counted from 0


def test_output_that_is_not_printed_is_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\nprint(2)\n```\n\n```output\n1\n2\n```\n")
    run_page(page, tmp_path)
    page.write_text("```python\nprint(1)\n```\n\n```output\n2\n```\n")
    with pytest.raises(AssertionError, match="not printed:"):
        run_page(page, tmp_path)


def test_only_fences_of_python_are_run() -> None:
    assert program_of("```sh\nls\n```\n\n```text\n1 +\n```\n") == ""


@pytest.mark.parametrize("name", IDS)
def test_every_fence_says_what_it_holds(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert [fence[2] for fence in FENCE.finditer(page) if not fence[1]] == []
    assert page.count("```") == 2 * len(FENCE.findall(page))


def broken_links(page: Path) -> list[str]:
    """Name the targets of links to files that do not exist."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    return [target for target in targets if not (page.parent / target).exists()]


@pytest.mark.parametrize("name", IDS)
def test_every_link_to_a_file_leads_somewhere(name: str) -> None:
    assert broken_links(ROOT / name) == []


def test_a_link_to_no_file_is_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[web](https://a.b/c), [this](page.md#top), [no](none.md), [no](a/b.md#top)\n")
    assert broken_links(page) == ["none.md", "a/b.md"]


@pytest.mark.parametrize("command", [".ci/run", "examples/matmul.py"])
def test_the_readme_gives_a_command_that_exists(command: str) -> None:
    shell = [fence[2] for fence in FENCE.finditer((ROOT / "README.md").read_text())]
    assert any(command in text for text in shell)
    assert (ROOT / command).is_file()


def module_names() -> Iterator[str]:
    """Name every module of the package, those of lowering/ and stdlib/ too."""
    for folder, prefix in (
        ("astdsl", "astdsl."),
        ("lowering", "astdsl.lowering."),
        ("stdlib", "astdsl.stdlib."),
    ):
        yield prefix[:-1]
        yield from (found.name for found in pkgutil.walk_packages([str(ROOT / folder)], prefix))


@pytest.mark.parametrize("name", sorted(module_names()))
def test_the_examples_in_the_docstrings_of_a_module_hold(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name not in OPTIONAL:
            raise
        pytest.skip(f"{missing.name} is not installed")
    assert doctest.testmod(module).failed == 0


def test_the_package_says_its_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", astdsl.__version__)
