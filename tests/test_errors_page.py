"""docs/errors.md lists every error code with a report; `pytest --update-golden` writes it."""

import inspect
from pathlib import Path

import pytest

from astdsl import errors
from astdsl.errors import KernelError
from tests.goldens import GoldenFolder

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests" / "golden"

FAMILIES = {
    "A1": "The text of a kernel",
    "A2": "Signatures and calls",
    "A3": "Outputs and pipelines",
    "A4": "Resources, targets and devices",
    "A5": "Barriers and copies",
    "A6": "While a kernel runs",
    "A7": "The command line",
}

# The report that stands for each code, a file of tests/golden.
EXAMPLES = {
    "A101": "frontend/yield.txt",
    "A102": "lang/name_of_later.txt",
    "A103": "cli/misspelt.txt",
    "A104": "lang/one_kind.txt",
    "A105": "lang/no_common_shape.txt",
    "A106": "lang/runtime_extent.txt",
    "A107": "lang/tile_as_index.txt",
    "A108": "frontend/branch-mismatch.txt",
    "A109": "frontend/index-of-a-pipeline-outside.txt",
    "A110": "frontend/hidden-mutation-of-a-list.txt",
    "A111": "lang/outside_lost.txt",
    "A201": "errors/signature.txt",
    "A202": "cli/wrong-dtype.txt",
    "A203": "errors/aliased-output.txt",
    "A204": "errors/assertion.txt",
    "A205": "errors/no-source.txt",
    "A301": "lang/written_input.txt",
    "A302": "errors/unwritten-read.txt",
    "A303": "errors/scattered-accumulation.txt",
    "A304": "errors/overlapping-windows.txt",
    "A305": "errors/parallel-conflict.txt",
    "A306": "lang/no_axes.txt",
    "A307": "errors/repeated-index.txt",
    "A401": "errors/out-of-shared-memory.txt",
    "A402": "errors/too-large-a-tile.txt",
    "A403": "errors/unknown-target.txt",
    "A404": "errors/unknown-device.txt",
    "A501": "errors/deadlock-on-the-reference.txt",
    "A601": "errors/unwritten-shared-memory.txt",
    "A701": "cli/missing-shape.txt",
}

INTRODUCTION = """\
# Errors

<!-- Written by tests/test_errors_page.py: pytest --update-golden. -->

Every mistake in a kernel, or in a call of one, is an `astdsl.KernelError` with a code that does not
change between versions. Its report says what is wrong in one sentence, shows every place that is
involved, and the way out. Nothing is refused before the first call.
"""


def classes() -> list[type[KernelError]]:
    """Return the error classes in the order of their codes."""
    found = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, KernelError)]
    return sorted((c for c in found if c is not KernelError), key=lambda c: c.code)


def page() -> str:
    parts, family = [INTRODUCTION], ""
    for kind in classes():
        if kind.code[:2] != family:
            family = kind.code[:2]
            parts.append(f"## {FAMILIES[family]}\n")
        parts.append(f"### {kind.code} {kind.__name__}\n\n{inspect.getdoc(kind)}\n")
        report = (GOLDENS / EXAMPLES[kind.code]).read_text(encoding="utf-8").rstrip("\n")
        parts.append(f"```text\n{report}\n```\n")
    return "\n".join(parts)


def test_the_page_lists_every_error(request: pytest.FixtureRequest) -> None:
    is_update = bool(request.config.getoption("update_golden"))
    GoldenFolder(ROOT / "docs", is_update).compare(page(), "errors.md")


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_report_of_a_code_is_one_of_it(code: str) -> None:
    assert (GOLDENS / EXAMPLES[code]).read_text(encoding="utf-8").startswith(f"{code}: ")


def test_no_two_errors_have_one_code() -> None:
    codes = [kind.code for kind in classes()]
    assert len(set(codes)) == len(codes)
