"""The assembler's process: started early or by the text, and gone afterwards."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from astdsl.lowering.nvptx import tools
from astdsl.lowering.nvptx.ptxas import AssemblyFailed, Ptxas
from astdsl.lowering.target import SM_90A

EMPTY = ".version 8.6\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n\tret;\n}\n"


@pytest.fixture
def path() -> str:
    found = tools.find_tool("ptxas")
    if found is None:
        pytest.skip("ptxas is not installed")
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """All processes that the test starts."""
    every: list[subprocess.Popen[str]] = []

    popen: Any = subprocess.Popen

    def begin(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        every.append(popen(*arguments, **options))
        return every[-1]

    monkeypatch.setattr(subprocess, "Popen", begin)
    return every


def test_a_process_that_was_started_early_makes_the_same_cubin(
    path: str, started: list[subprocess.Popen[str]]
) -> None:
    with Ptxas(path, SM_90A) as late:
        expected, _ = late.assemble(EMPTY)
    with Ptxas(path, SM_90A) as early:
        early.start()
        assert len(started) == 2
        image, said = early.assemble(EMPTY)
    assert len(started) == 2
    assert image == expected
    assert "Used" in said


def test_one_that_gets_no_text_is_ended_with_its_folder(
    path: str, started: list[subprocess.Popen[str]]
) -> None:
    with Ptxas(path, SM_90A) as unused:
        unused.start()
        assert started[0].poll() is None
        folder = Path(str(started[0].args[-1])).parent  # type: ignore[index]
        assert folder.is_dir()
    assert started[0].returncode is not None
    assert not folder.exists()


def test_a_second_text_starts_a_second_process(
    path: str, started: list[subprocess.Popen[str]]
) -> None:
    with Ptxas(path, SM_90A) as twice:
        assert twice.assemble(EMPTY)[0] == twice.assemble(EMPTY)[0]
    assert [each.returncode for each in started] == [0, 0]


def test_a_text_that_is_refused_is_called_kernel_ptx(path: str) -> None:
    with (
        pytest.raises(AssemblyFailed, match=r"ptxas kernel\.ptx, line 6; error"),
        Ptxas(path, SM_90A) as wrong,
    ):
        wrong.assemble(EMPTY.replace("ret;", "no.such r1;"))


def test_tunables_of_the_user_come_after_ours(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "ptxas"
    script.write_text('#!/bin/sh\necho "$GLIBC_TUNABLES" "$TMPDIR" >&2\nexit 3\n')
    script.chmod(0o700)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.perturb=1")
    with pytest.raises(AssemblyFailed) as caught, Ptxas(str(script), SM_90A) as told:
        told.assemble(EMPTY)
    tunables, folder = str(caught.value).split()
    assert tunables.startswith("glibc.malloc.hugetlb=1:")
    assert tunables.endswith(":glibc.malloc.perturb=1")
    assert folder != os.environ.get("TMPDIR")
