"""Kernels compiled by the Triton that is installed run to NumPy's result."""

from __future__ import annotations

import re
import runpy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.peers.cases import CASES, check

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed (pip install astdsl[peers])"
)
# What Triton 3.9 itself cannot compile.
NOT_COMPILED = {("matmul_persistent", "sm_90a")}


def compiled(name: str, target: str) -> Any:
    return import_module("tests.peers.kernels").compiled(name, target)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_compiled_afresh_runs_without_a_report(name: str, target: str) -> None:
    if (name, target) in NOT_COMPILED:
        pytest.skip("Triton 3.9 does not specialise the warps of this kernel for Hopper")
    made = compiled(name, target)
    for completion, order in (("late", "min-pc"), ("early", "round-robin"), (3, 4)):
        check(name, made, completion=completion, order=order)


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "emulator.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^```py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    program = tmp_path / "example.py"  # Triton reads the source of a kernel from its file
    program.write_text(snippet, encoding="utf-8")
    runpy.run_path(str(program))
